//! The directory of a ZIP file, and its members by it.
//!
//! Read here and not by the `zip` crate, which sets memory aside for as many entries as a file claims to have (300 bytes for every
//! byte of a hostile file), keeps the last of two entries of one name, and looks for a directory wherever one might be.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::Crc;
use flate2::read::DeflateDecoder;

use crate::bytes::Bytes;

/// The record at the end of the file, without its comment.
const END: usize = 22;
/// The record before it that says where the 64-bit one is.
const LOCATOR: usize = 20;
const LONGEST_COMMENT: usize = 65_535;
/// An entry without its name and what follows; the header of a member without its name.
const ENTRY: usize = 46;
const HEADER: u64 = 30;
/// More than a million arrays.
const LARGEST_DIRECTORY: u64 = 64 << 20;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// An entry of the directory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// In the file.
    pub(crate) packed: u64,
    /// Unpacked.
    pub(crate) size: u64,
    method: u16,
    checksum: u32,
    /// Where the member's header begins.
    header: u64,
    /// Whether the checksum was found to be right. A storage of a PyTorch file may hold thousands of tensors.
    checked: AtomicBool,
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let bytes = bytes.get(at..at + width).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn read_at(file: &[u8], at: u64, length: u64) -> Option<&[u8]> {
    let (at, length) = (usize::try_from(at).ok()?, usize::try_from(length).ok()?);
    file.get(at..at.checked_add(length)?)
}

/// Reads the directory of a file.
pub(crate) fn read(file: &[u8]) -> Result<Vec<Entry>, String> {
    let (count, size, start) = place(file)?;
    let directory = read_at(file, start, size).filter(|_| size <= LARGEST_DIRECTORY && count <= size / ENTRY as u64);
    let mut rest = directory
        .ok_or_else(|| format!("its directory of {count} entries in {size} bytes at {start} does not fit into it"))?;
    let mut entries = Vec::with_capacity(count as usize);
    for index in 0..count {
        let (entry, length) = entry(rest).ok_or_else(|| format!("entry {index} of its directory is damaged"))?;
        if entry.header.saturating_add(HEADER).saturating_add(entry.packed) > start {
            return Err(format!("its entry {:?} lies outside of it", entry.name));
        }
        rest = &rest[length..];
        entries.push(entry);
    }
    Ok(entries)
}

/// The number of entries, the size of the directory and where it begins.
fn place(file: &[u8]) -> Result<(u64, u64, u64), String> {
    let tail = &file[file.len().saturating_sub(END + LONGEST_COMMENT + LOCATOR)..];
    let is_end = |&at: &usize| {
        tail[at..].starts_with(b"PK\x05\x06") && at + END + number(tail, at + 20, 2) as usize == tail.len()
    };
    let last = tail.len().checked_sub(END);
    let end = last.and_then(|last| (0..=last).rev().find(is_end)).ok_or("it has no directory at its end")?;
    let (count, size, start) = (number(tail, end + 10, 2), number(tail, end + 12, 4), number(tail, end + 16, 4));
    let locator = end.checked_sub(LOCATOR).filter(|&at| tail[at..].starts_with(b"PK\x06\x07"));
    let is_short = count < 0xffff && size < 0xffff_ffff && start < 0xffff_ffff;
    let Some(locator) = locator.filter(|_| !is_short) else { return Ok((count, size, start)) };
    let wide = read_at(file, number(tail, locator + 8, 8), 56).filter(|wide| wide.starts_with(b"PK\x06\x06"));
    let wide = wide.ok_or("the 64-bit end of its directory is damaged")?;
    Ok((number(wide, 32, 8), number(wide, 40, 8), number(wide, 48, 8)))
}

/// The first entry of what is left of a directory, and how many bytes of it.
fn entry(directory: &[u8]) -> Option<(Entry, usize)> {
    if directory.len() < ENTRY || !directory.starts_with(b"PK\x01\x02") {
        return None;
    }
    let field = |at, width| number(directory, at, width);
    let [name, extra, comment] = [28, 30, 32].map(|at| field(at, 2) as usize);
    let length = ENTRY + name + extra + comment;
    let rest = directory.get(ENTRY..length)?;
    let (mut packed, mut size, mut header) = (field(20, 4), field(24, 4), field(42, 4));
    // What does not fit into 32 bits follows in a field of its own, in this order.
    let mut wide = wide_field(&rest[name..name + extra]);
    for value in [&mut size, &mut packed, &mut header] {
        if *value == 0xffff_ffff && wide.len() >= 8 {
            *value = number(wide, 0, 8);
            wide = &wide[8..];
        }
    }
    let name = String::from_utf8(rest[..name].to_vec()).ok()?;
    let (encrypted, method) = (field(8, 2) & 1 == 1, field(10, 2) as u16);
    let is_known = !encrypted && (method == DEFLATED || method == STORED && packed == size);
    let (checksum, checked) = (field(16, 4) as u32, AtomicBool::new(false));
    is_known.then_some((Entry { name, packed, size, method, checksum, header, checked }, length))
}

/// The 64-bit field among the extra ones; nothing where there is none.
fn wide_field(mut extra: &[u8]) -> &[u8] {
    while extra.len() >= 4 {
        let (kind, length) = (number(extra, 0, 2), number(extra, 2, 2) as usize);
        let Some(content) = extra.get(4..4 + length) else { break };
        if kind == 1 {
            return content;
        }
        extra = &extra[4 + length..];
    }
    &[]
}

impl Entry {
    /// Whether the member's bytes are its content.
    pub(crate) fn is_stored(&self) -> bool {
        self.method == STORED
    }

    /// Takes the content as it is where the writer left the checksum out, which PyTorch can be told to do.
    pub(crate) fn skip_absent_checksum(&self) {
        if self.checksum == 0 {
            self.checked.store(true, Ordering::Relaxed);
        }
    }

    /// The member as it is in the file.
    fn packed(&self, file: &Bytes) -> Result<Bytes, String> {
        let header = read_at(file, self.header, HEADER).filter(|header| header.starts_with(b"PK\x03\x04"));
        let header = header.ok_or("it has no header")?;
        let start = self.header + HEADER + number(header, 26, 2) + number(header, 28, 2);
        let range = usize::try_from(start).ok().zip(usize::try_from(start.saturating_add(self.packed)).ok());
        let packed = range.and_then(|(start, end)| file.part(start..end));
        packed.ok_or_else(|| "it lies outside of the file".to_owned())
    }

    /// Up to so many bytes of the beginning of the content, not checked.
    pub(crate) fn start(&self, file: &Bytes, most: usize) -> Result<Bytes, String> {
        let packed = self.packed(file)?;
        if self.is_stored() {
            return packed.part(0..packed.len().min(most)).ok_or_else(|| "it is cut off".to_owned());
        }
        let mut start = Vec::new();
        let mut unpacked = DeflateDecoder::new(&packed[..]).take(self.size.min(most as u64));
        unpacked.read_to_end(&mut start).map(|_| start.into()).map_err(|error| error.to_string())
    }

    /// The content: a part of the file where it is stored, else unpacked, no further than its stated size.
    pub(crate) fn content(&self, file: &Bytes) -> Result<Bytes, String> {
        let packed = self.packed(file)?;
        let content = match self.is_stored() {
            true => packed,
            false => Bytes::shared(self.inflate(&packed)?),
        };
        if content.len() as u64 != self.size {
            return Err(format!("it has not the {} bytes that the directory states", self.size));
        }
        if !self.checked.load(Ordering::Relaxed) {
            let mut checksum = Crc::new();
            checksum.update(&content);
            if checksum.sum() != self.checksum {
                return Err("its checksum is wrong".to_owned());
            }
            self.checked.store(self.is_stored(), Ordering::Relaxed);
        }
        Ok(content)
    }

    fn inflate(&self, packed: &[u8]) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        let size = usize::try_from(self.size).ok();
        let reserved = size.and_then(|size| content.try_reserve_exact(size).ok());
        reserved.ok_or_else(|| format!("its {} bytes do not fit into memory", self.size))?;
        let mut unpacked = DeflateDecoder::new(packed).take(self.size.saturating_add(1));
        unpacked.read_to_end(&mut content).map_err(|error| error.to_string())?;
        Ok(content)
    }
}

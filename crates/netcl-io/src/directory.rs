//! The directory of a ZIP file, and its members by it.
//!
//! Read here and not by the `zip` crate, which sets memory aside for as many entries as a file claims to have (300 bytes for every
//! byte of a hostile file), keeps the last of two entries of one name, and looks for a directory wherever one might be.

use std::io::{Read, Seek, SeekFrom};

use flate2::Crc;
use flate2::read::DeflateDecoder;

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
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let bytes = bytes.get(at..at + width).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn read_at(file: &mut (impl Read + Seek), at: u64, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(|error| format!("it ends too soon ({error})"))
}

/// Reads the directory of a file of some length.
pub(crate) fn read(file: &mut (impl Read + Seek), length: u64) -> Result<Vec<Entry>, String> {
    let (count, size, start) = place(file, length)?;
    let end = start.checked_add(size).filter(|&end| end <= length && size <= LARGEST_DIRECTORY);
    if end.is_none() || count > size / ENTRY as u64 {
        return Err(format!("its directory of {count} entries in {size} bytes at {start} does not fit into it"));
    }
    let directory = read_at(file, start, size as usize)?;
    let mut entries = Vec::with_capacity(count as usize);
    let mut rest = &directory[..];
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
fn place(file: &mut (impl Read + Seek), length: u64) -> Result<(u64, u64, u64), String> {
    let tail_length = length.min((END + LONGEST_COMMENT + LOCATOR) as u64);
    let tail = read_at(file, length - tail_length, tail_length as usize)?;
    let is_end = |&at: &usize| {
        tail[at..].starts_with(b"PK\x05\x06") && at + END + number(&tail, at + 20, 2) as usize == tail.len()
    };
    let last = tail.len().checked_sub(END);
    let end = last.and_then(|last| (0..=last).rev().find(is_end)).ok_or("it has no directory at its end")?;
    let (count, size, start) = (number(&tail, end + 10, 2), number(&tail, end + 12, 4), number(&tail, end + 16, 4));
    let locator = end.checked_sub(LOCATOR).filter(|&at| tail[at..].starts_with(b"PK\x06\x07"));
    let is_short = count < 0xffff && size < 0xffff_ffff && start < 0xffff_ffff;
    let Some(locator) = locator.filter(|_| !is_short) else { return Ok((count, size, start)) };
    let wide = read_at(file, number(&tail, locator + 8, 8), 56)?;
    if !wide.starts_with(b"PK\x06\x06") {
        return Err("the 64-bit end of its directory is damaged".to_owned());
    }
    Ok((number(&wide, 32, 8), number(&wide, 40, 8), number(&wide, 48, 8)))
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
    is_known.then(|| (Entry { name, packed, size, method, checksum: field(16, 4) as u32, header }, length))
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
    /// Unpacks the member, no further than its stated size.
    pub(crate) fn unpack(&self, file: &mut (impl Read + Seek)) -> Result<Vec<u8>, String> {
        let header = read_at(file, self.header, HEADER as usize)?;
        if !header.starts_with(b"PK\x03\x04") {
            return Err("it has no header".to_owned());
        }
        let start = self.header + HEADER + number(&header, 26, 2) + number(&header, 28, 2);
        file.seek(SeekFrom::Start(start)).map_err(|error| error.to_string())?;
        let mut content = Vec::new();
        let size = usize::try_from(self.size).ok();
        let reserved = size.and_then(|size| content.try_reserve_exact(size).ok());
        reserved.ok_or_else(|| format!("its {} bytes do not fit into memory", self.size))?;
        let (packed, most) = (file.take(self.packed), self.size.saturating_add(1));
        let read = match self.method {
            DEFLATED => DeflateDecoder::new(packed).take(most).read_to_end(&mut content),
            _ => packed.take(most).read_to_end(&mut content),
        };
        read.map_err(|error| error.to_string())?;
        if content.len() as u64 != self.size {
            return Err(format!("it has not the {} bytes that the directory states", self.size));
        }
        let mut checksum = Crc::new();
        checksum.update(&content);
        if checksum.sum() != self.checksum {
            return Err("its checksum is wrong".to_owned());
        }
        Ok(content)
    }
}

//! The shared file of the ranks of a host: where everything lies.

use std::cell::UnsafeCell;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::MmapRaw;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::{MOST_RANKS, is_shared};
use crate::communicator::Call;
use crate::error::{Error, Result};

const PAGE: usize = 4096;
/// The head and the two slots' headers of a rank.
const HEAD: usize = 2 * PAGE;
/// Parts up to this many bytes together travel with the text of the call.
const INLINE: usize = 32 << 10;
/// Most bytes of a buffer, and of one buffer of all ranks together: `/dev/shm` of a container has 64 MiB.
const BUFFER: usize = 4 << 20;
const ALL_BUFFERS: usize = 16 << 20;

/// A counter on a cache line of its own, and how many wait for it.
#[repr(C, align(64))]
pub(super) struct Line {
    pub(super) value: AtomicU32,
    pub(super) waiters: AtomicU32,
}

/// Who a rank is and how far it has come.
#[repr(C)]
pub(super) struct Head {
    /// The process, 0 before it has come.
    pub(super) owner: AtomicU64,
    /// 1 when it makes no more calls.
    pub(super) ended: AtomicU32,
    reason_length: AtomicU32,
    reason: UnsafeCell<[u8; 512]>,
    pub(super) posted: Line,
    pub(super) written: Line,
    pub(super) read: Line,
    slots: [UnsafeCell<Slot>; 2],
}

/// A call as its rank describes it. Written before `posted` is raised, and read after.
#[repr(C)]
struct Slot {
    hash: u64,
    text_length: usize,
    /// Whether the parts are one and the same.
    shared: u32,
    /// Whether the parts follow here.
    inline: u32,
    lengths: [usize; MOST_RANKS],
    text: [u8; 512],
}

/// What a rank posted.
pub(super) struct Posted<'m> {
    text: String,
    hash: u64,
    pub(super) shared: bool,
    /// The length of its part for this rank, and the longest that goes through its buffer.
    pub(super) length: usize,
    pub(super) longest: usize,
    /// Bytes of a part that travel in a step.
    pub(super) chunk: usize,
    pub(super) inline: Option<&'m [u8]>,
}

const _: () = assert!(size_of::<Head>() <= HEAD);

/// A page with the word of the loss, then the segments.
pub(super) struct Memory {
    map: MmapRaw,
    size: usize,
}

/// A buffer's bytes: whole pages.
fn buffer_bytes(size: usize) -> usize {
    BUFFER.min(ALL_BUFFERS / size / PAGE * PAGE)
}

fn segment_bytes(size: usize) -> usize {
    HEAD + 2 * INLINE + 2 * buffer_bytes(size)
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

impl Memory {
    pub(super) fn open(call: &'static str, path: &Path, rank: usize, size: usize) -> Result<Memory> {
        let segment = segment_bytes(size);
        let length = PAGE + size * segment;
        let failed = |reason: std::io::Error| {
            Error::argument(call, format!("{} cannot be shared between ranks: {reason}", path.display()))
        };
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        // Whoever comes first makes it zeros of this length; for the others nothing changes.
        file.set_len(length as u64).map_err(failed)?;
        // Asked for before it is written: later its lack would end the process by SIGBUS.
        let (start, bytes) = (PAGE + rank * segment, segment as u64);
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), start as u64, bytes) {
            // Some file systems cannot say; the memory may still be there.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(Errno::NOSPC) => {
                let what = format!(
                    "{} has no room for the {} MiB that each rank shares; set NETCL_RENDEZVOUS to a folder with more",
                    path.parent().unwrap_or(path).display(),
                    segment.div_ceil(1 << 20)
                );
                return Err(Error::argument(call, what));
            }
            Err(reason) => return Err(failed(reason.into())),
        }
        let map = MmapRaw::map_raw(&file).map_err(failed)?;
        Ok(Memory { map, size })
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The rank that was lost, and why: 0 while all is well.
    pub(super) fn lost(&self) -> &AtomicU64 {
        // SAFETY: the map is at least a page long and page-aligned; the word is only used as an atomic.
        unsafe { &*self.map.as_ptr().cast::<AtomicU64>() }
    }

    fn segment(&self, rank: usize) -> *mut u8 {
        assert!(rank < self.size);
        // SAFETY: `open` made the file long enough for all segments.
        unsafe { self.map.as_mut_ptr().add(PAGE + rank * segment_bytes(self.size)) }
    }

    pub(super) fn head(&self, rank: usize) -> &Head {
        // SAFETY: page-aligned and inside the map. Other processes change the atomics at any time; the rest only its own rank, in the
        // order that the counters describe, and it is read through `slot` and `reason` alone.
        unsafe { &*self.segment(rank).cast::<Head>() }
    }

    /// Where the short parts of a call lie.
    fn inline(&self, rank: usize, call: u32) -> *mut u8 {
        // SAFETY: inside the segment.
        unsafe { self.segment(rank).add(HEAD + (call % 2) as usize * INLINE) }
    }

    /// Where the pieces of a step lie.
    pub(super) fn buffer(&self, rank: usize, step: u32) -> *mut u8 {
        // SAFETY: inside the segment.
        unsafe { self.segment(rank).add(HEAD + 2 * INLINE + (step % 2) as usize * buffer_bytes(self.size)) }
    }

    /// Bytes of a part that travel in a step: all of a buffer, or a share for every rank.
    pub(super) fn chunk(&self, shared: bool) -> usize {
        if shared { buffer_bytes(self.size) } else { buffer_bytes(self.size) / self.size / 64 * 64 }
    }

    /// Describes a call of this rank, with its parts if they are short; whether they are.
    pub(super) fn post(&self, rank: usize, call: u32, text: &str, parts: &[&[u8]]) -> bool {
        let shared = is_shared(parts);
        let all: usize = parts.iter().enumerate().filter(|(to, _)| *to != rank).map(|(_, part)| part.len()).sum();
        let inline = if shared { parts[0].len() } else { all } <= INLINE;
        if inline {
            let mut at = self.inline(rank, call);
            let count = if shared { 1 } else { parts.len() };
            for (_, part) in parts[..count].iter().enumerate().filter(|(to, _)| shared || *to != rank) {
                // SAFETY: they fit the space together; nobody reads it before `posted` is raised.
                unsafe {
                    std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
                    at = at.add(part.len());
                }
            }
        }
        let kept = text.floor_char_boundary(512);
        let slot = self.head(rank).slots[(call % 2) as usize].get();
        // SAFETY: this rank alone writes its slot, and nobody reads it before `posted` is raised: all ranks are done with the call before
        // the last one.
        let slot = unsafe { &mut *slot };
        (slot.hash, slot.text_length, slot.shared, slot.inline) = (hash(text), kept, shared.into(), inline.into());
        slot.text[..kept].copy_from_slice(&text.as_bytes()[..kept]);
        for (length, part) in slot.lengths.iter_mut().zip(parts) {
            *length = part.len();
        }
        inline
    }

    /// What a rank posted for rank `to`.
    pub(super) fn posted(&self, from: usize, call: u32, to: usize) -> Posted<'_> {
        // SAFETY: its rank has posted it, and writes it again only when all ranks have posted the next call.
        let slot = unsafe { &*self.head(from).slots[(call % 2) as usize].get() };
        let (shared, is_inline) = (slot.shared != 0, slot.inline != 0);
        let text = String::from_utf8_lossy(&slot.text[..slot.text_length.min(512)]).into_owned();
        let lengths = &slot.lengths[..self.size];
        let others = || lengths.iter().enumerate().filter(|(rank, _)| *rank != from).map(|(_, length)| *length);
        let inline = is_inline.then(|| {
            let start: usize = if shared { 0 } else { others().take(to - usize::from(to > from)).sum() };
            let end = start.saturating_add(lengths[to]).min(INLINE);
            let start = start.min(end);
            // SAFETY: inside the space; it is not written before all ranks have made the next call.
            unsafe { std::slice::from_raw_parts(self.inline(from, call).add(start), end - start) }
        });
        let longest = if is_inline { 0 } else { others().max().unwrap_or(0) };
        let chunk = self.chunk(shared);
        Posted { text, hash: slot.hash, shared, length: lengths[to], longest, chunk, inline }
    }

    /// Keeps why this rank gives up.
    pub(super) fn set_reason(&self, rank: usize, reason: &str) {
        let kept = reason.floor_char_boundary(512);
        let head = self.head(rank);
        // SAFETY: the caller writes it once, before the loss is told and others read it.
        let text = unsafe { &mut *head.reason.get() };
        text[..kept].copy_from_slice(&reason.as_bytes()[..kept]);
        head.reason_length.store(kept as u32, Ordering::Release);
    }
}

impl Head {
    pub(super) fn reason(&self) -> String {
        let length = self.reason_length.load(Ordering::Acquire) as usize;
        // SAFETY: its rank has written it before it told the loss, and does so once.
        let text = unsafe { &*self.reason.get() };
        String::from_utf8_lossy(&text[..length.min(512)]).into_owned()
    }
}

/// Compares the calls of all ranks; long texts by their hashes.
pub(super) fn check(call: &Call<'_>, own: usize, posted: &[Posted<'_>]) -> Result<()> {
    let same = hash(call.text);
    match posted.iter().position(|given| given.hash != same) {
        None => Ok(()),
        Some(rank) => {
            let (there, here) = (posted[rank].text.clone(), call.text.to_owned());
            Err(Error::Disagree { rank, own, there, here })
        }
    }
}

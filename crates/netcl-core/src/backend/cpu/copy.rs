//! Filling, copying, permuting and casting memory, in parallel.
//!
//! The functions work on raw pointers: whoever calls them answers for the memory, as each one states.

mod cast;
mod strided;
mod transpose;

use super::threads::{SharedPtr, num_threads, parallel_for};
use crate::error::{Error, Result};

pub use cast::{cast, cast_strided};
pub use strided::copy_strided;
pub use transpose::transpose;

/// The least a thread is woken for: copying this much takes longer than waking it.
const GRAIN: usize = 128 << 10;

/// Copies from this size on do not fit into the caches close to a core.
const LARGE: usize = 16 << 20;

/// Repeats a pattern of 1, 2, 4 or 8 bytes over `nbytes` bytes.
///
/// # Safety
/// `dst` must be valid for writing `nbytes` bytes that nobody else reads or writes meanwhile.
///
/// # Errors
/// [`Error::Argument`] for another length of the pattern, or if `nbytes` is not a multiple of it.
pub unsafe fn fill(dst: *mut u8, nbytes: usize, pattern: &[u8]) -> Result<()> {
    if !matches!(pattern.len(), 1 | 2 | 4 | 8) || !nbytes.is_multiple_of(pattern.len()) {
        let what = format!("cannot fill {nbytes} bytes with a pattern of {} bytes", pattern.len());
        return Err(Error::argument("fill", what));
    }
    let uniform = pattern.iter().all(|&b| b == pattern[0]);
    let mut word = [0u8; 8];
    for (byte, &from) in word.iter_mut().zip(pattern.iter().cycle()) {
        *byte = from;
    }
    let dst = SharedPtr::new(dst);
    parallel_for("fill", nbytes, GRAIN, |range| {
        // SAFETY: ranges are disjoint parts of what the caller vouched for.
        let part = unsafe { std::slice::from_raw_parts_mut(dst.get().add(range.start), range.len()) };
        if uniform {
            part.fill(word[0]);
        } else {
            // Ranges start at multiples of the grain, hence of the pattern.
            fill_words(part, word);
        }
    })
}

fn fill_words(part: &mut [u8], word: [u8; 8]) {
    let (words, rest) = part.as_chunks_mut::<8>();
    fill_whole_words(words, word);
    rest.copy_from_slice(&word[..rest.len()]);
}

/// The string instruction: unlike plain stores it does not read the lines it is about to overwrite, which is what memset
/// gains from it, too.
#[cfg(target_arch = "x86_64")]
fn fill_whole_words(words: &mut [[u8; 8]], word: [u8; 8]) {
    // SAFETY: writes `words.len()` words from the slice's start upwards (the ABI keeps the direction flag clear).
    unsafe {
        std::arch::asm!(
            "rep stosq",
            inout("rcx") words.len() => _,
            inout("rdi") words.as_mut_ptr() => _,
            in("rax") u64::from_ne_bytes(word),
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn fill_whole_words(words: &mut [[u8; 8]], word: [u8; 8]) {
    words.fill(word);
}

/// Copies `nbytes` bytes.
///
/// # Safety
/// `src` must be valid for reading and `dst` for writing `nbytes` bytes, the two must not overlap, and nobody may write the
/// former or use the latter meanwhile.
pub unsafe fn copy(src: *const u8, dst: *mut u8, nbytes: usize) -> Result<()> {
    let (src, dst) = (SharedPtr::new(src.cast_mut()), SharedPtr::new(dst));
    // Large copies are cut into one piece per thread: from some size on memcpy writes past the caches, and it can only
    // know that the copy is large if it sees a large piece.
    let grain = if nbytes < LARGE { GRAIN } else { nbytes.div_ceil(num_threads()).next_multiple_of(GRAIN) };
    parallel_for("copy", nbytes, grain, |range| {
        // SAFETY: the caller's promise, for disjoint ranges.
        unsafe { std::ptr::copy_nonoverlapping(src.get().add(range.start), dst.get().add(range.start), range.len()) };
    })
}

//! Ranks that are processes of one host and meet in shared memory.
//!
//! One file holds a segment for each rank, which only that rank writes: who it is, how far it has come (three counters that others
//! wait for by futex), two slots for the text of its call with the lengths of its parts, and two buffers for long parts.
//!
//! ```text
//!   posted   calls whose text, lengths and short parts lie in slot (call % 2)
//!   written  steps of long parts that lie in buffer (step % 2); all ranks count the same steps
//!   read     steps that this rank has read from all others, so that they may overwrite the buffer
//! ```
//!
//! Two slots are enough without a counter of readers: whoever posts call n + 2 has seen all ranks post call n + 1, so all are done with
//! call n. Short parts travel in the slot: such an exchange costs one wait. A buffer is written one step ahead of the reading.
//!
//! A rank that waits looks every 50 ms whether the rank that it waits for still lives. Whoever finds a loss writes it to one word at the
//! start of the file, the first wins, so all ranks name the same one.

mod memory;
mod process;

use std::cmp::Reverse;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use memory::{Head, Line, Memory, Posted};
use rustix::io::Errno;
use rustix::thread::futex;

use super::{Call, Communicator, PATROL, Piece, check_interrupt, check_parts, is_shared, time_limit};
use crate::error::{Error, Result};

/// How many ranks may meet.
pub(crate) const MOST_RANKS: usize = 64;

/// A rank looks so often at a counter before it sleeps: waking costs more than most waits are long.
const SPINS: u32 = 2000;

/// One of several processes of a host that work together.
///
/// ```
/// use netcl_distributed::{Communicator, Processes};
///
/// let folder = std::env::temp_dir().join(format!("netcl-doc-{}", std::process::id()));
/// std::fs::create_dir(&folder)?;
/// // Each process would do this with its own rank.
/// let only = Processes::join(&folder, 0, 1)?;
/// assert_eq!((only.rank(), only.size(), only.kind()), (0, 1, "processes"));
/// std::fs::remove_dir(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Processes {
    rank: usize,
    limit: Duration,
    spins: u32,
    memory: Memory,
    owner: u64,
    progress: Mutex<Progress>,
    gave_up: AtomicBool,
}

/// Calls and steps that are over; the same on all ranks.
#[derive(Clone, Copy, Default)]
struct Progress {
    calls: u32,
    steps: u32,
}

/// Why a rank is lost: the low byte of the word that all ranks read; the rank is in the next.
#[derive(Clone, Copy)]
enum Loss {
    Ended = 1,
    Silent,
    GaveUp,
}

impl Processes {
    /// Meets the other ranks in a folder that only they use, and returns when all are there. Nothing is left in the folder then.
    ///
    /// # Errors
    /// If the folder cannot be written to or has no room, the rank is taken, or the others do not come within the time limit.
    pub fn join(folder: &Path, rank: usize, size: usize) -> Result<Processes> {
        const CALL: &str = "init";
        if size == 0 || size > MOST_RANKS || rank >= size {
            let what = format!("rank {rank} of {size}: there may be 1 to {MOST_RANKS} ranks, numbered from 0");
            return Err(Error::argument(CALL, what));
        }
        let path = folder.join(format!("ranks-{size}"));
        let memory = Memory::open(CALL, &path, rank, size)?;
        let owner = process::current();
        let taken = memory.head(rank).owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Acquire);
        if let Err(other) = taken {
            let what = format!(
                "rank {rank} of {} is process {} already; give every rank its own number, and every job its own folder",
                folder.display(),
                process::id(other)
            );
            return Err(Error::argument(CALL, what));
        }
        // Spinning helps where every rank has a core of its own.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if size <= cores { SPINS } else { 0 };
        let (progress, gave_up) = (Mutex::default(), AtomicBool::new(false));
        let joined = Processes { rank, limit: time_limit(), spins, memory, owner, progress, gave_up };
        let met = joined.exchange(&Call { name: CALL, text: CALL }, &vec![&[][..]; size], &mut |_| Ok(()));
        if rank == 0 {
            // All have it open: the memory goes with the last of them, however they end.
            let _ = std::fs::remove_file(&path);
        }
        met.map(|()| joined)
    }

    fn own(&self) -> &Head {
        self.memory.head(self.rank)
    }

    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.memory.size()).filter(|&rank| rank != self.rank)
    }

    /// Waits until a counter of another rank has come to `goal`.
    fn wait(&self, call: &Call<'_>, rank: usize, line: fn(&Head) -> &Line, goal: u32) -> Result<()> {
        let head = self.memory.head(rank);
        let line = line(head);
        let reached = || line.value.load(Ordering::Acquire).wrapping_sub(goal) as i32 >= 0;
        for _ in 0..self.spins {
            if reached() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let began = Instant::now();
        loop {
            let seen = line.value.load(Ordering::Acquire);
            if reached() {
                return Ok(());
            }
            self.check_lost(call)?;
            let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: PATROL.subsec_nanos().into() };
            line.waiters.fetch_add(1, Ordering::SeqCst);
            let woken = futex::wait(&line.value, futex::Flags::empty(), seen, Some(&pause));
            line.waiters.fetch_sub(1, Ordering::SeqCst);
            if woken == Err(Errno::TIMEDOUT) || woken == Err(Errno::INTR) {
                check_interrupt(call)?;
                let owner = head.owner.load(Ordering::Acquire);
                let ended = owner != 0 && !process::is_alive(owner) || head.ended.load(Ordering::Acquire) != 0;
                // What it did before its end counts.
                if ended && !reached() {
                    self.lose(rank, Loss::Ended);
                } else if began.elapsed() >= self.limit {
                    self.lose(self.slowest(), Loss::Silent);
                }
            }
        }
    }

    /// Moves a counter of this rank, and wakes those that wait for it.
    fn publish(&self, line: &Line, value: u32) {
        line.value.store(value, Ordering::SeqCst);
        if line.waiters.load(Ordering::SeqCst) != 0 {
            wake(line);
        }
    }

    /// The rank that has come least far: others that wait for it may be waited for themselves.
    fn slowest(&self) -> usize {
        let own = self.own();
        let behind = |rank: usize| {
            let head = self.memory.head(rank);
            let lag = |line: fn(&Head) -> &Line| {
                let (ours, theirs) = (&line(own).value, &line(head).value);
                ours.load(Ordering::Acquire).wrapping_sub(theirs.load(Ordering::Acquire)) as i32
            };
            (lag(|head| &head.posted), lag(|head| &head.read), lag(|head| &head.written))
        };
        self.others().min_by_key(|&rank| Reverse(behind(rank))).unwrap_or(self.rank)
    }

    /// Tells all ranks of a loss, unless there has been one.
    fn lose(&self, rank: usize, loss: Loss) {
        let word = loss as u64 | (rank as u64) << 8;
        let _ = self.memory.lost().compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
        for rank in 0..self.memory.size() {
            let head = self.memory.head(rank);
            [&head.posted, &head.written, &head.read].into_iter().for_each(wake);
        }
    }

    fn check_lost(&self, call: &Call<'_>) -> Result<()> {
        let word = self.memory.lost().load(Ordering::Acquire);
        if word == 0 {
            return Ok(());
        }
        let rank = (word >> 8) as usize % MOST_RANKS;
        let head = self.memory.head(rank.min(self.memory.size() - 1));
        let owner = head.owner.load(Ordering::Acquire);
        let what = match word & 0xFF {
            1 => format!("has ended (process {})", process::id(owner)),
            2 if owner == 0 => format!("did not start within {:?}", self.limit),
            2 => format!("did not answer for {:?} (process {})", self.limit, process::id(owner)),
            _ => format!("gave up: {}", head.reason()),
        };
        Err(Error::Lost { call: call.name, rank, what })
    }

    /// Copies the next pieces of long parts to the buffer, when all ranks have read what lies there. `count` is the step's among all.
    fn write(&self, call: &Call<'_>, parts: &[&[u8]], count: u32, step: usize) -> Result<()> {
        for rank in self.others() {
            self.wait(call, rank, |head| &head.read, count.wrapping_sub(1))?;
        }
        let (buffer, shared) = (self.memory.buffer(self.rank, count), is_shared(parts));
        let chunk = self.memory.chunk(shared);
        let copy = |part: &[u8], start: usize| {
            let bytes = &part[(step * chunk).min(part.len())..((step + 1) * chunk).min(part.len())];
            // SAFETY: `Memory::chunk` chose the chunk so that all of them fit the buffer, which no other rank reads now.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.add(start), bytes.len()) };
        };
        if shared {
            copy(parts[0], 0);
        } else {
            self.others().for_each(|rank| copy(parts[rank], rank * chunk));
        }
        self.publish(&self.own().written, count.wrapping_add(1));
        Ok(())
    }

    /// Shows what all ranks wrote in a step.
    fn read(
        &self,
        call: &Call<'_>,
        own: &[u8],
        steps: &Steps<'_>,
        step: usize,
        receive: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let count = steps.before.wrapping_add(step as u32);
        for (from, given) in steps.posted.iter().enumerate() {
            let at_hand = if from == self.rank { Some(own) } else { given.inline };
            let chunk = if at_hand.is_some() { steps.chunk } else { given.chunk };
            let (total, offset) = (given.length, step.saturating_mul(chunk));
            if step > 0 && offset >= total {
                continue;
            }
            let end = if step + 1 >= steps.count { total } else { total.min(offset.saturating_add(chunk)) };
            let bytes = match at_hand {
                Some(part) => part.get(offset..end).unwrap_or_default(),
                None if total == 0 => &[],
                None => {
                    self.wait(call, from, |head| &head.written, count.wrapping_add(1))?;
                    let start = if given.shared { 0 } else { self.rank * chunk };
                    let length = (end - offset).min(chunk);
                    // SAFETY: inside the buffer by `Memory::chunk`; its rank does not write there before this one has published `read`.
                    unsafe { std::slice::from_raw_parts(self.memory.buffer(from, count).add(start), length) }
                }
            };
            receive(Piece { from, offset, total, bytes })?;
        }
        Ok(())
    }

    fn exchange_all(
        &self,
        call: &Call<'_>,
        parts: &[&[u8]],
        progress: &mut Progress,
        receive: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let Progress { calls, steps: before } = *progress;
        self.check_lost(call)?;
        let is_inline = self.memory.post(self.rank, calls, call.text, parts);
        if !is_inline {
            // Before the call is seen, so that it and its first step cost others one wait.
            self.write(call, parts, before, 0)?;
        }
        progress.calls = calls.wrapping_add(1);
        self.publish(&self.own().posted, progress.calls);
        for rank in self.others() {
            self.wait(call, rank, |head| &head.posted, progress.calls)?;
        }
        let posted: Vec<Posted<'_>> =
            (0..self.memory.size()).map(|from| self.memory.posted(from, calls, self.rank)).collect();
        memory::check(call, self.rank, &posted)?;
        let long = || posted.iter().filter(|given| given.inline.is_none());
        let count = long().map(|given| given.longest.div_ceil(given.chunk)).max().unwrap_or(0);
        // Parts at hand are cut like the others, so that the pieces at one offset come together.
        let chunk = long().map(|given| given.chunk).next().unwrap_or(usize::MAX);
        let steps = Steps { before, count, chunk, posted: &posted };
        if is_inline && count > 0 {
            self.write(call, parts, before, 0)?;
        }
        for step in 0..count.max(1) {
            let after = before.wrapping_add(step as u32 + 1);
            if step + 1 < count {
                self.write(call, parts, after, step + 1)?;
            }
            self.read(call, parts[self.rank], &steps, step, receive)?;
            if step < count {
                self.publish(&self.own().read, after);
            }
        }
        progress.steps = before.wrapping_add(count as u32);
        Ok(())
    }
}

/// How the long parts of an exchange are cut.
struct Steps<'p> {
    /// Steps of earlier exchanges.
    before: u32,
    count: usize,
    /// Bytes of a part that is at hand as a whole that are shown in a step.
    chunk: usize,
    posted: &'p [Posted<'p>],
}

fn wake(line: &Line) {
    // It fails for wrong addresses only.
    let _ = futex::wake(&line.value, futex::Flags::empty(), i32::MAX as u32);
}

impl Communicator for Processes {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.memory.size()
    }

    fn kind(&self) -> &'static str {
        "processes"
    }

    fn exchange(
        &self,
        call: &Call<'_>,
        parts: &[&[u8]],
        receive: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        check_parts(call, parts, self.size())?;
        if process::id(self.owner) != std::process::id() {
            let what =
                "this process was forked from a rank and is none itself; use the group in the process that made it";
            return Err(Error::argument(call.name, what));
        }
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.exchange_all(call, parts, &mut progress, receive);
        match &result {
            Ok(()) | Err(Error::Lost { .. } | Error::Disagree { .. }) => {}
            Err(error) => self.abort(&error.to_string()),
        }
        result
    }

    fn abort(&self, reason: &str) {
        // The text belongs to the first time, which others may be reading.
        if process::id(self.owner) == std::process::id() && !self.gave_up.swap(true, Ordering::AcqRel) {
            self.memory.set_reason(self.rank, reason);
            self.lose(self.rank, Loss::GaveUp);
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if process::id(self.owner) == std::process::id() {
            self.own().ended.store(1, Ordering::Release);
            let own = self.own();
            [&own.posted, &own.written, &own.read].into_iter().for_each(wake);
        }
    }
}

//! Ranks that are threads of one process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Communicator, Piece};
use crate::error::{Error, Result};

/// One of several threads that work together.
///
/// ```
/// use netcl_distributed::{Communicator, Threads};
///
/// let sums: Vec<usize> = std::thread::scope(|scope| {
///     let ranks = Threads::new(3).into_iter().map(|rank| {
///         scope.spawn(move || {
///             let (own, mut sum) = ([rank.rank() as u8], 0);
///             rank.exchange("sum", &[&own, &own, &own], &mut |piece| {
///                 sum += usize::from(piece.bytes[0]);
///                 Ok(())
///             })?;
///             Ok(sum)
///         })
///     });
///     let ranks: Vec<_> = ranks.collect();
///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<netcl_distributed::Result<_>>()
/// })?;
/// assert_eq!(sums, [3, 3, 3]);
/// # Ok::<(), netcl_distributed::Error>(())
/// ```
pub struct Threads {
    rank: usize,
    room: Arc<Room>,
    limit: Duration,
}

/// Where the threads meet.
struct Room {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What each rank gives in this round: the addresses and lengths of its parts.
    given: Vec<Option<Vec<(usize, usize)>>>,
    /// Ranks that have read everything of this round.
    done: usize,
    /// Rounds that are over.
    round: u64,
    /// The first rank that gave up, and why.
    lost: Option<(usize, String)>,
}

fn lock(room: &Room) -> MutexGuard<'_, State> {
    room.state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// So many ranks; each goes to its own thread.
    pub fn new(size: usize) -> Vec<Threads> {
        let state = State { given: vec![None; size], ..State::default() };
        let room = Arc::new(Room { state: Mutex::new(state), changed: Condvar::new() });
        (0..size).map(|rank| Threads { rank, room: room.clone(), limit: Duration::from_secs(600) }).collect()
    }

    /// Waits until `ready`, a rank is lost, or the time is over.
    fn wait<'r>(
        &'r self,
        call: &'static str,
        mut state: MutexGuard<'r, State>,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'r, State>> {
        let end = Instant::now() + self.limit;
        while !ready(&state) {
            if let Some((rank, what)) = &state.lost {
                let lost = Error::Lost { call, rank: *rank, what: what.clone() };
                // The parts end with this call: no rank may come later and read them.
                state.given[self.rank] = None;
                return Err(lost);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let rank = state.given.iter().position(Option::is_none).unwrap_or(self.rank);
                let what = format!("did not come within {} s", self.limit.as_secs());
                state.lost.get_or_insert((rank, what));
                self.room.changed.notify_all();
                continue;
            }
            state = self.room.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }
}

impl Communicator for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        lock(&self.room).given.len()
    }

    fn kind(&self) -> &'static str {
        "threads"
    }

    fn exchange(
        &self,
        call: &'static str,
        parts: &[&[u8]],
        receive: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut state = lock(&self.room);
        let round = state.round;
        state.given[self.rank] = Some(parts.iter().map(|part| (part.as_ptr() as usize, part.len())).collect());
        self.room.changed.notify_all();
        let mut state = self.wait(call, state, |state| state.given.iter().all(Option::is_some))?;
        let mine: Vec<(usize, usize)> = state.given.iter().flatten().map(|parts| parts[self.rank]).collect();
        drop(state);
        let mut result = Ok(());
        for (from, (start, total)) in mine.into_iter().enumerate() {
            // SAFETY: the part of rank `from` lives until all ranks are done with this round, which is waited for below on every path.
            let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, total) };
            if result.is_ok() {
                result = receive(Piece { from, offset: 0, total, bytes });
            }
        }
        state = lock(&self.room);
        if let Err(error) = &result {
            state.lost.get_or_insert((self.rank, error.to_string()));
        }
        state.done += 1;
        if state.done == state.given.len() {
            state.given.iter_mut().for_each(|parts| *parts = None);
            state.done = 0;
            state.round += 1;
        }
        self.room.changed.notify_all();
        // Others may still read this rank's parts: even after an error they are waited for, as reading never blocks.
        while state.round == round {
            state = self.room.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        result
    }

    fn abort(&self, reason: &str) {
        lock(&self.room).lost.get_or_insert((self.rank, reason.to_owned()));
        self.room.changed.notify_all();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.abort("has ended");
    }
}

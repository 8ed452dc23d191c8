//! Ranks that are threads of one process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Call, Communicator, PATROL, Piece, check_interrupt, check_parts, time_limit};
use crate::error::{Error, Result};

/// Long parts are read in pieces of this many bytes, so that what they are added to stays in a cache.
const PIECE: usize = 256 << 10;

/// One of several threads that work together.
///
/// ```
/// use netcl_distributed::{Call, Communicator, Threads};
///
/// let call = Call { name: "sum", text: "sum of a byte" };
/// let sums: Vec<usize> = std::thread::scope(|scope| {
///     let ranks = Threads::new(3).into_iter().map(|rank| {
///         scope.spawn(move || {
///             let (own, mut sum) = ([rank.rank() as u8], 0);
///             rank.exchange(&call, &[&own, &own, &own], &mut |piece| {
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
    size: usize,
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
    /// What each rank gives in this round.
    given: Vec<Option<Given>>,
    /// Ranks that make no more calls.
    ended: Vec<bool>,
    /// Ranks that have read everything of this round.
    done: usize,
    /// Rounds that are over.
    round: u64,
    /// The first rank that gave up, and why.
    lost: Option<(usize, String)>,
}

/// The text of a call, and the addresses and lengths of its parts.
#[derive(Clone)]
struct Given {
    text: String,
    parts: Vec<(usize, usize)>,
}

fn lock(room: &Room) -> MutexGuard<'_, State> {
    room.state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn check_lost(&self, call: &Call<'_>) -> Result<()> {
        let lost = |(rank, what): &(usize, String)| Error::Lost { call: call.name, rank: *rank, what: what.clone() };
        self.lost.as_ref().map_or(Ok(()), |found| Err(lost(found)))
    }
}

impl Threads {
    /// So many ranks; each goes to its own thread.
    pub fn new(size: usize) -> Vec<Threads> {
        let state = State { given: vec![None; size], ended: vec![false; size], ..State::default() };
        let room = Arc::new(Room { state: Mutex::new(state), changed: Condvar::new() });
        (0..size).map(|rank| Threads { rank, size, room: room.clone(), limit: time_limit() }).collect()
    }

    /// Waits until all ranks have given their parts, one is lost, or the time is over.
    fn wait_for_all<'r>(&'r self, call: &Call<'_>, mut state: MutexGuard<'r, State>) -> Result<MutexGuard<'r, State>> {
        let began = Instant::now();
        loop {
            let Some(missing) = state.given.iter().position(Option::is_none) else { return Ok(state) };
            if state.ended[missing] {
                state.lost.get_or_insert((missing, "has ended".to_owned()));
            } else if began.elapsed() >= self.limit {
                state.lost.get_or_insert((missing, format!("did not answer for {:?}", self.limit)));
            }
            let outcome = state.check_lost(call).and_then(|()| {
                let waited = self.room.changed.wait_timeout(state, PATROL).unwrap_or_else(PoisonError::into_inner);
                drop(waited);
                // Without the lock: the host may run other Python threads, which are ranks as well.
                check_interrupt(call)
            });
            state = lock(&self.room);
            if let Err(error) = outcome {
                // A rank that came meanwhile may read the parts already.
                if state.given.iter().all(Option::is_some) {
                    return Ok(state);
                }
                // The parts end with this call: no rank may come later and read them.
                state.given[self.rank] = None;
                if !matches!(error, Error::Lost { .. }) {
                    state.lost.get_or_insert((self.rank, "was interrupted".to_owned()));
                }
                self.room.changed.notify_all();
                return Err(error);
            }
        }
    }
}

/// A rank that reads the parts of others: when it is dropped, also by a panic, it waits until nobody reads its own.
struct Reading<'r> {
    room: &'r Room,
    round: u64,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = lock(self.room);
        state.done += 1;
        if state.done == state.given.len() {
            state.given.iter_mut().for_each(|given| *given = None);
            state.done = 0;
            state.round += 1;
            self.room.changed.notify_all();
        }
        // Even after an error: reading never blocks, so this ends.
        while state.round == self.round {
            state = self.room.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Communicator for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn kind(&self) -> &'static str {
        "threads"
    }

    fn exchange(
        &self,
        call: &Call<'_>,
        parts: &[&[u8]],
        receive: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        check_parts(call, parts, self.size)?;
        let mut state = lock(&self.room);
        state.check_lost(call)?;
        if state.given[self.rank].is_some() {
            return Err(Error::argument(call.name, "two threads use the same rank at once; give each its own"));
        }
        let addresses = parts.iter().map(|part| (part.as_ptr() as usize, part.len())).collect();
        state.given[self.rank] = Some(Given { text: call.text.to_owned(), parts: addresses });
        self.room.changed.notify_all();
        let state = self.wait_for_all(call, state)?;
        let reading = Reading { room: &self.room, round: state.round };
        let agreed = call.check(self.rank, state.given.iter().flatten().map(|given| &given.text));
        let mine: Vec<(usize, usize)> = state.given.iter().flatten().map(|given| given.parts[self.rank]).collect();
        drop(state);
        agreed?;
        let longest = mine.iter().map(|(_, total)| *total).max().unwrap_or(0);
        for offset in (0..longest.max(1)).step_by(PIECE) {
            for (from, &(start, total)) in mine.iter().enumerate().filter(|(_, part)| offset == 0 || offset < part.1) {
                // SAFETY: the part of rank `from` lives until all ranks have dropped their `Reading` of this round, which its owner waits
                // for on every path out of this function.
                let part = unsafe { std::slice::from_raw_parts(start as *const u8, total) };
                let bytes = &part[offset..(offset + PIECE).min(total)];
                if let Err(error) = receive(Piece { from, offset, total, bytes }) {
                    self.abort(&error.to_string());
                    return Err(error);
                }
            }
        }
        drop(reading);
        Ok(())
    }

    fn abort(&self, reason: &str) {
        lock(&self.room).lost.get_or_insert((self.rank, format!("gave up: {reason}")));
        self.room.changed.notify_all();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        lock(&self.room).ended[self.rank] = true;
        self.room.changed.notify_all();
    }
}

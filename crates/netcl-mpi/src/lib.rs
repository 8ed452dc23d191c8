//! Ranks that are members of an MPI job, on any number of hosts.
//!
//! ```no_run
//! let group = netcl_mpi::init()?;
//! group.barrier()?;
//! # Ok::<(), netcl_distributed::Error>(())
//! ```
//!
//! MPI has no way to go on without a rank: one that gives up, or does not come within `NETCL_RANK_TIMEOUT`, is named on standard error
//! and the whole job ends (`MPI_Abort`).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::{Request, Scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives, Destination, Source};
use netcl_core::{env, host};
use netcl_distributed::{Call, Communicator, Error, Group, Piece, Result};

/// Bytes of the text of a call that travel.
const TEXT: usize = 512;
/// Bytes of a message: MPI counts them in 31 bits.
const MESSAGE: usize = 1 << 30;
/// A rank looks so often before it lets others run.
const LOOKS: u32 = 1000;

/// One of the ranks of `MPI_COMM_WORLD`.
pub struct Mpi {
    rank: usize,
    size: usize,
    limit: Duration,
    world: Mutex<World>,
}

struct World {
    communicator: SimpleCommunicator,
    /// Ends MPI when it is dropped.
    _universe: Universe,
}

// SAFETY: MPI was initialised for calls of any thread, one at a time (`Threading::Serialized`), and `Mpi` locks it for each of them.
unsafe impl Send for World {}

/// The group of all ranks of the job.
///
/// # Errors
/// If MPI is in use already, or cannot be called by several threads in turn.
pub fn init() -> Result<Group> {
    let wrong = |what: &str| Error::Argument { call: "init", what: what.to_owned() };
    let (universe, threading) =
        mpi::initialize_with_threading(Threading::Serialized).ok_or_else(|| wrong("MPI was initialised before"))?;
    if threading < Threading::Serialized {
        return Err(wrong("this MPI cannot be called by several threads in turn; build it with MPI_THREAD_SERIALIZED"));
    }
    // Messages of our own never meet those of the program.
    let communicator = universe.world().duplicate();
    let (rank, size) = (communicator.rank() as usize, communicator.size() as usize);
    let seconds = env::RANK_TIMEOUT.amount().unwrap_or(60.0);
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    Ok(Group::new(Mpi { rank, size, limit, world: Mutex::new(World { communicator, _universe: universe }) }))
}

impl Mpi {
    /// Waits for a request; ends the job when the time is over.
    fn finish<'a, D: ?Sized, S: Scope<'a>>(
        &self,
        call: &Call<'_>,
        world: &SimpleCommunicator,
        rank: usize,
        mut request: Request<'a, D, S>,
    ) {
        let began = Instant::now();
        let mut looks = 0;
        loop {
            match request.test() {
                Ok(_) => return,
                Err(again) => request = again,
            }
            looks += 1;
            if looks > LOOKS {
                std::thread::yield_now();
            }
            if looks % LOOKS == 0 && began.elapsed() > self.limit {
                let what = format!("did not answer for {:?}", self.limit);
                eprintln!("netcl: rank {}: {}", self.rank, Error::Lost { call: call.name, rank, what });
                world.abort(1);
            }
        }
    }

    /// What all ranks call, and how much each gives to this one.
    fn announce(&self, call: &Call<'_>, world: &SimpleCommunicator, parts: &[&[u8]]) -> Result<Vec<(String, usize)>> {
        let length = TEXT + 8 * self.size;
        let mut own = vec![0u8; length];
        let kept = call.text.floor_char_boundary(TEXT - 8);
        own[..kept].copy_from_slice(&call.text.as_bytes()[..kept]);
        // A longer text is told from another by its length at least.
        own[TEXT - 8..TEXT].copy_from_slice(&(call.text.len() as u64).to_le_bytes());
        for (place, part) in own[TEXT..].chunks_exact_mut(8).zip(parts) {
            place.copy_from_slice(&(part.len() as u64).to_le_bytes());
        }
        let mut all = host::filled(call.name, length * self.size, 0u8)?;
        mpi::request::scope(|scope| {
            let request = world.immediate_all_gather_into(scope, &own[..], &mut all[..]);
            self.finish(call, world, (self.rank + 1) % self.size, request);
        });
        let read = |bytes: &[u8]| {
            let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte)) as usize;
            let kept = number(&bytes[TEXT - 8..TEXT]).min(TEXT - 8);
            let start = TEXT + 8 * self.rank;
            (String::from_utf8_lossy(&bytes[..kept]).trim_end_matches('\0').to_owned(), number(&bytes[start..start + 8]))
        };
        Ok(all.chunks_exact(length).map(read).collect())
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn kind(&self) -> &'static str {
        "MPI"
    }

    fn exchange(
        &self,
        call: &Call<'_>,
        parts: &[&[u8]],
        receive: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        let world = &world.communicator;
        let announced = self.announce(call, world, parts)?;
        let short = Call { name: call.name, text: &call.text[..call.text.floor_char_boundary(TEXT - 8)] };
        short.check(self.rank, announced.iter().map(|(text, _)| text))?;
        let mut received = Vec::with_capacity(self.size);
        for (from, (_, length)) in announced.iter().enumerate() {
            let needed = if from == self.rank { 0 } else { *length };
            received.push(host::filled(call.name, needed, 0u8)?);
        }
        mpi::request::scope(|scope| {
            let mut requests = Vec::new();
            for (from, message) in received.iter_mut().enumerate() {
                let process = world.process_at_rank(from as i32);
                for chunk in message.chunks_mut(MESSAGE) {
                    requests.push((from, process.immediate_receive_into(scope, chunk)));
                }
            }
            let mut sent = Vec::new();
            for (to, part) in parts.iter().enumerate().filter(|(to, _)| *to != self.rank) {
                let process = world.process_at_rank(to as i32);
                sent.extend(part.chunks(MESSAGE).map(|chunk| (to, process.immediate_send(scope, chunk))));
            }
            requests.into_iter().for_each(|(from, request)| self.finish(call, world, from, request));
            sent.into_iter().for_each(|(to, request)| self.finish(call, world, to, request));
        });
        for (from, message) in received.iter().enumerate() {
            let bytes = if from == self.rank { parts[from] } else { message };
            let shown = receive(Piece { from, offset: 0, total: bytes.len(), bytes });
            if let Err(error) = shown {
                eprintln!("netcl: rank {} gave up: {error}", self.rank);
                world.abort(1);
            }
        }
        Ok(())
    }

    fn abort(&self, reason: &str) {
        eprintln!("netcl: rank {} gave up: {reason}", self.rank);
        self.world.lock().unwrap_or_else(PoisonError::into_inner).communicator.abort(1);
    }
}

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

use std::hash::{DefaultHasher, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::{Request, Scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives, Destination, Source};
use netcl_core::host;
use netcl_distributed::communicator::time_limit;
use netcl_distributed::{Call, Communicator, Error, Group, Piece, Result};

/// Bytes of the text of a call that travel, for messages; before them goes a hash of the whole, by which calls are compared.
const TEXT: usize = 512;
const HASH: usize = 8;
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
    Ok(Group::new(Mpi { rank, size, limit: time_limit(), world: Mutex::new(World { communicator, _universe: universe }) }))
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
    fn announce(&self, call: &Call<'_>, world: &SimpleCommunicator, parts: &[&[u8]]) -> Result<Vec<Announced>> {
        const LENGTHS: usize = HASH + TEXT;
        let length = LENGTHS + 8 * self.size;
        let mut own = vec![0u8; length];
        own[..HASH].copy_from_slice(&hash(call.text).to_le_bytes());
        let kept = call.text.floor_char_boundary(TEXT);
        own[HASH..HASH + kept].copy_from_slice(&call.text.as_bytes()[..kept]);
        for (place, part) in own[LENGTHS..].chunks_exact_mut(8).zip(parts) {
            place.copy_from_slice(&(part.len() as u64).to_le_bytes());
        }
        let mut all = host::filled(call.name, length * self.size, 0u8)?;
        mpi::request::scope(|scope| {
            let request = world.immediate_all_gather_into(scope, &own[..], &mut all[..]);
            self.finish(call, world, (self.rank + 1) % self.size, request);
        });
        let number = |bytes: &[u8]| bytes.iter().rev().take(8).fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        let read = |bytes: &[u8]| Announced {
            hash: number(&bytes[..HASH]),
            text: String::from_utf8_lossy(&bytes[HASH..LENGTHS]).trim_end_matches('\0').to_owned(),
            length: number(&bytes[LENGTHS + 8 * self.rank..][..8]) as usize,
        };
        Ok(all.chunks_exact(length).map(read).collect())
    }
}

/// What a rank tells of its call.
struct Announced {
    hash: u64,
    text: String,
    /// The bytes of its part for this rank.
    length: usize,
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
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
        // All ranks look at the same hashes, so all come to the same answer.
        let own = hash(call.text);
        if let Some(rank) = announced.iter().position(|given| given.hash != own) {
            let (there, here) = (announced[rank].text.clone(), call.text.to_owned());
            return Err(Error::Disagree { rank, own: self.rank, there, here });
        }
        let mut received = Vec::with_capacity(self.size);
        for (from, given) in announced.iter().enumerate() {
            let needed = if from == self.rank { 0 } else { given.length };
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

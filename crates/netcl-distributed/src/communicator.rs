//! How ranks reach each other.

#[cfg(target_os = "linux")]
mod processes;
mod threads;

use std::time::Duration;

use netcl_core::backend::cpu::interrupt;
use netcl_core::env;
use netcl_nn::autograd::CoreError;
#[cfg(target_os = "linux")]
pub use processes::Processes;
pub use threads::Threads;

use crate::error::{Error, Result};

/// What all ranks must call together.
#[derive(Clone, Copy, Debug)]
pub struct Call<'c> {
    /// The name for messages: "all_reduce".
    pub name: &'static str,
    /// What all ranks must agree on: "all_reduce(sum) of float32 (3, 4)".
    pub text: &'c str,
}

impl Call<'_> {
    /// Compares the call of this rank with those of all ranks.
    ///
    /// # Errors
    /// [`Disagree`](Error::Disagree) with the first rank whose call differs.
    pub fn check<T: AsRef<str>>(&self, own: usize, texts: impl IntoIterator<Item = T>) -> Result<()> {
        let mut texts = texts.into_iter().enumerate();
        match texts.find(|(_, there)| there.as_ref() != self.text) {
            None => Ok(()),
            Some((rank, there)) => {
                Err(Error::Disagree { rank, own, there: there.as_ref().to_owned(), here: self.text.to_owned() })
            }
        }
    }
}

/// What a rank is shown of the bytes that another gave it.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'p> {
    /// The rank that gave them.
    pub from: usize,
    /// Where they begin in what that rank gave.
    pub offset: usize,
    /// How many bytes that rank gives in all.
    pub total: usize,
    /// The bytes. They are gone when the function returns.
    pub bytes: &'p [u8],
}

/// One of several ranks that work together: a thread, a process, a member of an MPI job.
///
/// All collectives of [`Group`](crate::Group) are made of [`exchange`](Communicator::exchange), so this trait is all that a new kind of
/// rank must bring.
pub trait Communicator: Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// What kind of ranks these are, for print-outs: "threads", "processes", "MPI".
    fn kind(&self) -> &'static str;

    /// Gives `parts[k]` to rank `k`, and shows `receive` what every rank gave to this one, itself included.
    ///
    /// Long parts come in pieces that begin and end at multiples of 64 bytes of the part (but for its end). The pieces at one offset come
    /// in the order of ranks, so that a sum over ranks is formed in one order. A rank that gives nothing is shown once, with no bytes.
    /// All ranks must call it, and none returns before it has everything. The text of the call travels with the parts, so that checking it
    /// costs no exchange of its own.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if a rank ends or does not come within the time limit, on every other rank. What `receive` returns
    /// ends the exchange, and the other ranks learn it as such a loss. [`Disagree`](Error::Disagree) on every rank if not all make this
    /// call; nothing is received then, and the ranks may go on.
    fn exchange(
        &self,
        call: &Call<'_>,
        parts: &[&[u8]],
        receive: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()>;

    /// Tells the other ranks that this one gives up, so that none waits for it.
    fn abort(&self, reason: &str);
}

/// The only rank of its group.
pub(crate) struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn kind(&self) -> &'static str {
        "alone"
    }

    fn exchange(
        &self,
        call: &Call<'_>,
        parts: &[&[u8]],
        receive: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        check_parts(call, parts, 1)?;
        receive(Piece { from: 0, offset: 0, total: parts[0].len(), bytes: parts[0] })
    }

    fn abort(&self, _reason: &str) {}
}

/// Waiting threads and processes look around this often: whether others still live, and whether the user pressed Ctrl+C.
const PATROL: Duration = Duration::from_millis(50);

/// How long a rank waits for another: `NETCL_RANK_TIMEOUT`.
pub fn time_limit() -> Duration {
    let seconds = env::RANK_TIMEOUT.amount().unwrap_or(60.0);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// An error if the user wants a wait to end.
fn check_interrupt(call: &Call<'_>) -> Result<()> {
    match interrupt::wants_stop() {
        true => Err(CoreError::Interrupted { op: call.name }.into()),
        false => Ok(()),
    }
}

/// Every rank gets a part.
fn check_parts(call: &Call<'_>, parts: &[&[u8]], size: usize) -> Result<()> {
    if parts.len() == size {
        return Ok(());
    }
    Err(Error::argument(call.name, format!("{} parts for {size} ranks; give one to each", parts.len())))
}

/// Whether all parts are the same memory, as when everything goes to everybody.
#[cfg(target_os = "linux")]
fn is_shared(parts: &[&[u8]]) -> bool {
    parts.windows(2).all(|pair| std::ptr::eq(pair[0], pair[1]))
}

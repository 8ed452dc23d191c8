//! How ranks reach each other.

mod threads;

pub use threads::Threads;

use crate::error::Result;

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
    /// All ranks must call it, and none returns before it has everything.
    ///
    /// `call` is the name for messages.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if a rank ends or does not come within the time limit, on every other rank. What `receive` returns
    /// ends the exchange, and the other ranks learn it as such a loss.
    fn exchange(
        &self,
        call: &'static str,
        parts: &[&[u8]],
        receive: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()>;

    /// Tells the other ranks that this one gives up, so that none waits for it.
    fn abort(&self, reason: &str);
}

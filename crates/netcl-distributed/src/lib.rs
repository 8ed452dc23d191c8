//! Collectives and data-parallel training: several devices of a process, several processes of a host, several hosts.
//!
//! ```text
//!   collectives::all_reduce(&[a, b, c])        devices of one process: each tensor lies on its own
//!   Group::all_reduce(&x)                      ranks: each has one tensor, and all call it together
//!        |                                     a rank is a thread, a process or a member of an MPI job
//!   Communicator::exchange(parts, receive)     bytes between ranks: the only thing that a new kind of rank must bring
//! ```
//!
//! Everything goes through the memory of the host, so any mixture of devices works together. Sums are formed in the order of ranks (or
//! of the list), so a result is the same from run to run, bit for bit.

pub mod collectives;
pub mod communicator;
pub mod data_parallel;
pub mod error;
pub mod group;
mod init;
pub mod reduction;
mod transfer;

#[cfg(target_os = "linux")]
pub use communicator::Processes;
pub use communicator::{Call, Communicator, Piece, Threads};
pub use error::{Error, Result};
pub use group::Group;
pub use init::init;
pub use reduction::Reduce;

//! Where batches come from.

use serde_json::Value;

use crate::error::Result;

/// How the ranks of a run share the batches of a loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All ranks have the same loader, and take its batches in turn: an update has the batches of all ranks.
    #[default]
    Turns,
    /// The loader gives this rank its part of every batch, and `None` where a batch has none for it: an update has one batch, as
    /// without ranks. It must know its number of batches.
    Parts,
    /// The loader has only samples of this rank, by a [`DistributedSampler`](netcl_data::DistributedSampler).
    Own,
}

/// Batches, epoch after epoch.
pub trait Loader {
    /// What a step takes: tensors on the model's device.
    type Batch;

    /// Batches in an epoch, where that is known.
    fn batches(&self) -> Option<usize> {
        None
    }

    /// Begins an epoch (from 1) without its first `skipped` batches. The same epoch has the same batches, so that a run can be
    /// resumed in the middle of it.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn begin(&mut self, epoch: usize, skipped: usize) -> Result<()>;

    /// The next batch of the epoch, `None` after the last.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn next_batch(&mut self) -> Result<Option<Self::Batch>>;

    /// Leaves out a batch, which another rank takes; `false` after the last.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn skip_batch(&mut self) -> Result<bool> {
        Ok(self.next_batch()?.is_some())
    }

    /// How ranks share its batches.
    fn sharing(&self) -> Sharing {
        Sharing::Turns
    }

    /// Where it is, for a checkpoint: `null` where epoch and number of the batch say it all.
    ///
    /// # Errors
    /// If that cannot be said.
    fn state(&mut self) -> Result<Value> {
        Ok(Value::Null)
    }

    /// Has the next epoch begin where [`Loader::state`] was asked.
    ///
    /// # Errors
    /// For the state of another loader.
    fn load_state(&mut self, _state: &Value) -> Result<()> {
        Ok(())
    }
}

/// The same batches in every epoch, from memory.
///
/// ```
/// use netcl_trainer::trainer::{Batches, Loader};
///
/// let mut loader = Batches::new(vec![1, 2, 3]);
/// loader.begin(1, 1)?;
/// assert_eq!(loader.next_batch()?, Some(2));
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batches<B> {
    batches: Vec<B>,
    at: usize,
}

impl<B> Batches<B> {
    /// These batches.
    pub fn new(batches: Vec<B>) -> Batches<B> {
        Batches { batches, at: 0 }
    }
}

impl<B: Clone> Loader for Batches<B> {
    type Batch = B;

    fn batches(&self) -> Option<usize> {
        Some(self.batches.len())
    }

    fn begin(&mut self, _epoch: usize, skipped: usize) -> Result<()> {
        self.at = skipped;
        Ok(())
    }

    fn next_batch(&mut self) -> Result<Option<B>> {
        let batch = self.batches.get(self.at).cloned();
        self.at += 1;
        Ok(batch)
    }
}

/// A loader from a function that opens an epoch: it gets the epoch (from 1) and the number of batches to leave out.
///
/// ```
/// use netcl_trainer::trainer::{Loader, Opened};
///
/// let mut loader = Opened::new(Some(3), |epoch, skipped| Ok((0..3).skip(skipped).map(move |i| Ok(10 * epoch + i))));
/// loader.begin(2, 1)?;
/// assert_eq!(loader.next_batch()?, Some(21));
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
pub struct Opened<F, I> {
    batches: Option<usize>,
    open: F,
    current: Option<I>,
}

impl<F, I> Opened<F, I> {
    /// A loader of so many batches in an epoch, if that is known.
    pub fn new(batches: Option<usize>, open: F) -> Opened<F, I>
    where
        F: FnMut(usize, usize) -> Result<I>,
    {
        Opened { batches, open, current: None }
    }
}

impl<B, I, F> Loader for Opened<F, I>
where
    I: Iterator<Item = Result<B>>,
    F: FnMut(usize, usize) -> Result<I>,
{
    type Batch = B;

    fn batches(&self) -> Option<usize> {
        self.batches
    }

    fn begin(&mut self, epoch: usize, skipped: usize) -> Result<()> {
        self.current = None; // Its threads end before others begin.
        self.current = Some((self.open)(epoch, skipped)?);
        Ok(())
    }

    fn next_batch(&mut self) -> Result<Option<B>> {
        self.current.as_mut().and_then(Iterator::next).transpose()
    }
}

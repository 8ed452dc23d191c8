//! Copies beside compute: the next batch travels while the device works on this one.
//!
//! ```text
//!   compute queue   | step 0 | step 1 | step 2 | ...
//!   copy queue   | b0 |  b1   |  b2   |  b3   |          b2 goes where b0 was, once step 0 is through
//! ```

use std::collections::VecDeque;

use netcl_core::backend::Queue;
use netcl_core::dtype::{DType, Element};
use netcl_core::shape::Shape;
use netcl_core::tensor::{Mark, Tensor};
use netcl_core::{Error, Result};

/// Host data to be uploaded: elements in row-major order.
///
/// ```
/// use netcl_core::dtype::DType;
/// use netcl_runtime::scheduler::HostArray;
///
/// let pixels = HostArray::u8(&[0, 255, 7, 9], [2, 2]);
/// assert_eq!(pixels.dtype(), DType::U8);
/// // Types without a constructor of their own go by their bytes.
/// assert_eq!(HostArray::bytes(&[0, 0x3c], DType::F16, [1]).dtype(), DType::F16);
/// ```
#[derive(Clone, Debug)]
pub struct HostArray<'d> {
    bytes: &'d [u8],
    dtype: DType,
    shape: Shape,
}

macro_rules! arrays {
    ($($ty:ident)*) => {
        $(
            #[doc = concat!("Values of `", stringify!($ty), "`.")]
            pub fn $ty(data: &'d [$ty], shape: impl Into<Shape>) -> HostArray<'d> {
                HostArray::bytes(bytemuck::cast_slice(data), <$ty as Element>::DTYPE, shape)
            }
        )*
    };
}

impl<'d> HostArray<'d> {
    arrays! { f32 f64 u8 i32 i64 }

    /// Values of any type, by their bytes.
    pub fn bytes(bytes: &'d [u8], dtype: DType, shape: impl Into<Shape>) -> HostArray<'d> {
        HostArray { bytes, dtype, shape: shape.into() }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}

/// Uploads batches ahead of the steps that use them, each into memory of its own that is used in turn.
///
/// [`submit`](Scheduler::submit) starts an upload, [`next`](Scheduler::next) gives the tensors of the oldest batch. Those are
/// overwritten later: use them for one step, and submit the following batch when that step has been given to the device.
///
/// ```
/// use netcl_core::device::manager;
/// use netcl_runtime::scheduler::{HostArray, Scheduler};
///
/// let queue = manager().get("auto")?.queue;
/// let mut scheduler = Scheduler::new(&queue, 2)?;
/// let batches: Vec<[f32; 2]> = (0..5).map(|i| [i as f32, 0.5]).collect();
/// scheduler.submit(&[HostArray::f32(&batches[0], [2])])?;
/// for i in 0..5 {
///     let batch = scheduler.next()?;
///     let result = batch[0].duplicate()?; // a step
///     if let Some(following) = batches.get(i + 1) {
///         scheduler.submit(&[HostArray::f32(following, [2])])?; // travels while the step runs
///     }
///     assert_eq!(result.to_host::<f32>()?, batches[i]);
/// }
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct Scheduler {
    queue: Queue,
    /// Batches that wait for their turn, the oldest first.
    waiting: VecDeque<Vec<Tensor>>,
    /// The batch in use.
    current: Option<Vec<Tensor>>,
    /// Batches that were used, and the work that used them.
    used: VecDeque<(Vec<Tensor>, Mark)>,
    depth: usize,
}

impl Scheduler {
    /// A scheduler that keeps memory for `depth` batches: two, or more where batches do not come evenly.
    ///
    /// # Errors
    /// For fewer than two.
    pub fn new(queue: &Queue, depth: usize) -> Result<Scheduler> {
        if depth < 2 {
            let what = format!("{depth} batches leave no room for the next one; use at least 2");
            return Err(Error::argument("Scheduler", what));
        }
        let (waiting, used) = (VecDeque::new(), VecDeque::new());
        Ok(Scheduler { queue: queue.clone(), waiting, current: None, used, depth })
    }

    /// How many batches wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Starts the upload of a batch; the data is copied before this returns.
    ///
    /// # Errors
    /// If as many batches as there is room for have not been used yet; what the driver says.
    pub fn submit(&mut self, batch: &[HostArray<'_>]) -> Result<()> {
        if self.waiting.len() + usize::from(self.current.is_some()) >= self.depth {
            let what = format!("{} batches are on their way and not used yet; call next() first", self.waiting.len());
            return Err(Error::State { op: "Scheduler.submit", what });
        }
        let fits = |tensors: &[Tensor]| {
            let same = |(tensor, array): (&Tensor, &HostArray<'_>)| {
                *tensor.shape() == array.shape && tensor.dtype() == array.dtype
            };
            tensors.len() == batch.len() && tensors.iter().zip(batch).all(same)
        };
        let room = self.waiting.len() + usize::from(self.current.is_some()) + self.used.len() >= self.depth;
        let reused = if room { self.used.pop_front() } else { None };
        let (tensors, free) = match reused {
            Some((tensors, free)) if fits(&tensors) => (tensors, Some(free)),
            _ => {
                let new = |array: &HostArray<'_>| Tensor::uninit(&self.queue, array.shape.clone(), array.dtype);
                (batch.iter().map(new).collect::<Result<Vec<Tensor>>>()?, None)
            }
        };
        let data: Vec<(&Tensor, &[u8])> = tensors.iter().zip(batch.iter().map(|array| array.bytes)).collect();
        Tensor::overwrite_after(&data, free.as_ref())?;
        self.waiting.push_back(tensors);
        Ok(())
    }

    /// The tensors of the oldest batch. What the queue was given until now is taken for the work that uses the one before.
    ///
    /// # Errors
    /// If no batch was submitted; what the driver says.
    #[expect(clippy::should_implement_trait, reason = "it fails, and an iterator would say that it has ended")]
    pub fn next(&mut self) -> Result<&[Tensor]> {
        let Some(batch) = self.waiting.pop_front() else {
            let what = "no batch was submitted; call submit() first".to_owned();
            return Err(Error::State { op: "Scheduler.next", what });
        };
        if let Some(tensors) = self.current.take() {
            self.used.push_back((tensors, Mark::of(&self.queue)?));
        }
        Ok(self.current.insert(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_core::device::manager;

    #[test]
    fn batches_come_in_order_and_memory_is_used_in_turn() {
        let mut handles = vec![manager().cpu()];
        handles.extend(manager().discover().unwrap().iter().map(|device| manager().handle(device).unwrap()));
        for queue in handles.into_iter().map(|handle| handle.queue) {
            let mut scheduler = Scheduler::new(&queue, 2).unwrap();
            assert!(scheduler.next().is_err());
            let batch = |i: usize| (vec![i as f32; 1000], vec![i as i64; 3]);
            let (mut sums, mut seen) = (Vec::new(), std::collections::HashSet::new());
            for i in 0..20 {
                if i == 0 {
                    let (x, y) = batch(0);
                    scheduler.submit(&[HostArray::f32(&x, [1000]), HostArray::i64(&y, [3])]).unwrap();
                }
                let tensors = scheduler.next().unwrap();
                seen.insert(tensors[0].storage().identity());
                sums.push((tensors[0].cast(DType::F64).unwrap(), tensors[1].duplicate().unwrap()));
                let (x, y) = batch(i + 1);
                scheduler.submit(&[HostArray::f32(&x, [1000]), HostArray::i64(&y, [3])]).unwrap();
                assert!(scheduler.submit(&[HostArray::f32(&x, [1000])]).is_err());
            }
            assert_eq!(seen.len(), 2);
            for (i, (x, y)) in sums.iter().enumerate() {
                assert!(x.to_host::<f64>().unwrap().iter().all(|&v| v == i as f64));
                assert_eq!(y.to_host::<i64>().unwrap(), [i as i64; 3]);
            }
        }
        assert!(Scheduler::new(&manager().cpu().queue, 1).is_err());
    }
}

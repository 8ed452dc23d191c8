//! Work of the host between launches, as a launch of its own: an exchange with other devices or processes.
//!
//! A recorded program repeats it at every run: the launches before it have been given to their queues by then, so whatever the
//! function reads it waits for, and what it writes is there for the launches after it.

use std::borrow::Cow;
use std::sync::Arc;

pub use super::launch::HostWork;
use super::launch::{self, Access, Arg, Cost, Launch, Work};
use crate::backend::Queue;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Layout;
use crate::tensor::Tensor;

/// How an argument of the launch is seen as a tensor.
struct View {
    layout: Layout,
    dtype: DType,
    queue: Queue,
}

/// Hands work of the host to the current sink; without one it runs.
///
/// `work` is given the tensors of `reads` and of `writes`, over the memory of the run. It runs at every replay of a program that is
/// being recorded, after the launches before it were enqueued: reading a tensor waits for them. What it launches itself is a part of
/// it. A tensor that is read and written is one of `writes`.
///
/// ```
/// use netcl_core::{device::manager, kernels::host_work::submit_host, tensor::Tensor};
///
/// let queue = manager().get("auto")?.queue;
/// let x = Tensor::from_host(&queue, &[3.0f32, 1.0, 2.0], [3])?;
/// submit_host("sort", &queue, &[], &[&x], |_, writes| {
///     let mut values = writes[0].to_host::<f32>()?;
///     values.sort_by(f32::total_cmp);
///     writes[0].write_bytes(bytemuck::cast_slice(&values), writes[0].dtype())
/// })?;
/// assert_eq!(x.to_host::<f32>()?, [1.0, 2.0, 3.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Errors
/// Those of the work, where it runs at once.
pub fn submit_host(
    name: impl Into<Cow<'static, str>>,
    queue: &Queue,
    reads: &[&Tensor],
    writes: &[&Tensor],
    work: impl Fn(&[Tensor], &[Tensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let all = || reads.iter().map(|t| (t, Access::Read)).chain(writes.iter().map(|t| (t, Access::Write)));
    let view = |tensor: &Tensor| {
        // One queue of a device orders everything.
        let queue = if tensor.queue().same_device(queue) { queue } else { tensor.queue() };
        View { layout: tensor.layout().clone(), dtype: tensor.dtype(), queue: queue.clone() }
    };
    let views: Vec<View> = all().map(|(tensor, _)| view(tensor)).collect();
    let queues = views.iter().map(|view| view.queue.clone()).collect();
    let count = reads.len();
    let body = move |args: &[Arg]| {
        let tensors = views.iter().zip(args).map(|(view, arg)| view.of(arg)).collect::<Result<Vec<Tensor>>>()?;
        // Launches of a program know nothing of other queues: what the work does there comes after and before them.
        let join = || tensors.iter().try_for_each(|tensor| tensor.storage().join(tensor.queue()));
        let (reads, writes) = tensors.split_at(count);
        launch::at_once(|| {
            join()?;
            let done = work(reads, writes);
            join()?;
            done
        })
    };
    let bytes: usize = all().map(|(tensor, _)| tensor.size() * tensor.dtype().size()).sum();
    launch::submit(Launch {
        name: name.into(),
        queue: queue.clone(),
        work: Work::Host(HostWork { queues, body: Arc::new(body) }),
        args: all().map(|(tensor, access)| Arg::Buffer(tensor.storage().clone(), access)).collect(),
        cost: Cost { flops: 0.0, bytes: bytes as f64 },
    })
}

impl View {
    fn of(&self, arg: &Arg) -> Result<Tensor> {
        match arg {
            Arg::Buffer(storage, _) => {
                Tensor::from_storage(&self.queue, storage.clone(), self.layout.clone(), self.dtype)
            }
            _ => Err(Error::argument("launch", "work of the host takes tensors only")),
        }
    }
}

//! Reads that do not wait: an ndarray that fills by itself.

use std::sync::{Arc, Mutex, PoisonError};

use netcl::core::backend::Queue;
use netcl::core::backend::cpu::CpuQueue;
use netcl::core::backend::opencl as cl;
use netcl::core::dtype::DType;
use netcl::core::kernels::launch;
use netcl::core::tensor::Tensor as Raw;
use netcl::core::{Error, Result};
use pyo3::prelude::*;

use super::event::Event;
use crate::autograd::site;
use crate::error::IntoPyResult;
use crate::ndarray;

/// A read under way and the memory it writes: held by the ndarray and by the event, and after both by `ABANDONED`.
pub(super) struct Download {
    event: cl::Event,
    target: Raw,
}

/// Reads that nobody waits for any more, but whose memory the device still writes.
static ABANDONED: Mutex<Vec<(cl::Event, Raw)>> = Mutex::new(Vec::new());

/// Forgets the reads that have ended meanwhile.
fn sweep() {
    if cl::is_forked_child() {
        return; // nothing writes into a child's memory, and the lock may be one that nobody opens there
    }
    let mut abandoned = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
    // A driver that cannot say whether it is done is not trusted with freed memory.
    abandoned.retain(|(event, _)| !event.is_complete().unwrap_or(false));
}

impl Download {
    pub(super) fn event(&self) -> &cl::Event {
        &self.event
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if cl::is_forked_child() {
            return;
        }
        sweep();
        if !self.event.is_complete().unwrap_or(false) {
            let mut abandoned = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
            abandoned.push((self.event.clone(), self.target.clone()));
        }
    }
}

/// Starts a read of a tensor's values: the array, and the event after which it holds them. bfloat16 becomes float32.
pub(crate) fn download<'py>(py: Python<'py>, tensor: &Raw) -> PyResult<(Bound<'py, PyAny>, Option<Event>)> {
    let Some(started) = site::detach(py, || start(tensor)).py()? else {
        return Ok((ndarray::copy_out(py, tensor)?, None));
    };
    let download = Arc::new(started);
    match ndarray::share_with(py, &download.target, Box::new(download.clone()))? {
        Some(array) => Ok((array, Some(Event::of_download(download)))),
        None => Ok((ndarray::copy_out(py, tensor)?, None)),
    }
}

fn start(tensor: &Raw) -> Result<Option<Download>> {
    let Queue::OpenCl(stream) = tensor.queue() else { return Ok(None) };
    launch::check_readable("to_host_async")?;
    sweep();
    // A cast keeps the order of axes in memory.
    let wide = if tensor.dtype() == DType::BF16 { tensor.cast(DType::F32)? } else { tensor.clone() };
    let dense = wide.contiguous()?;
    let target = Raw::uninit(&Queue::Cpu(CpuQueue::default()), dense.shape().clone(), dense.dtype())?;
    let (Some(memory), Some(pointer)) = (dense.storage().cl_memory(), target.cpu_ptr()) else { return Ok(None) };
    let (offset, nbytes) = (dense.layout().offset() * dense.dtype().size(), dense.size() * dense.dtype().size());
    // SAFETY: the target is fresh memory of this size; `Download` keeps it until the event is complete, whoever lets go first.
    let event = unsafe { memory.read_async(stream, offset, pointer, nbytes)? };
    let what = "the driver made no event for a read".to_owned();
    let event = event.ok_or(Error::State { op: "to_host_async", what })?;
    Ok(Some(Download { event, target }))
}

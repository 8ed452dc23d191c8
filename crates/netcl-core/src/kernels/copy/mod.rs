//! Filling, copying and casting: the launches that move elements without computing with them.

mod groups;
mod opencl;

use smallvec::{SmallVec, smallvec};

use super::described::{Described, Meaning};
use super::launch::{self, Access, Arg, Cost, Launch, Work};
use crate::backend::Queue;
use crate::backend::cpu::memory_kernels;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Sets every element of a tensor (which may be a view) to a value rounded to its dtype.
pub fn fill(tensor: &Tensor, value: f64) -> Result<()> {
    check_writable("fill", tensor)?;
    if tensor.size() == 0 {
        return Ok(());
    }
    if launch::offer(&Described { inputs: &[], outputs: &[tensor], meaning: Meaning::Fill(value) })? {
        return Ok(());
    }
    let works = match tensor.queue() {
        Queue::Cpu(_) => {
            let kernel = memory_kernels::fill(tensor.layout().clone(), tensor.dtype(), value);
            vec![(Work::Cpu(kernel), smallvec![Arg::Buffer(tensor.storage().clone(), Access::Write)])]
        }
        Queue::OpenCl(stream) => opencl::fill(stream, tensor, value)?,
    };
    submit("fill", tensor, works, tensor.dtype().size())
}

fn submit(name: &'static str, dst: &Tensor, works: Vec<(Work, SmallVec<[Arg; 8]>)>, bytes: usize) -> Result<()> {
    let cost = Cost { flops: 0.0, bytes: (dst.size() * bytes / works.len()) as f64 };
    for (work, args) in works {
        launch::submit(Launch { name: name.into(), queue: dst.queue().clone(), work, args, cost })?;
    }
    Ok(())
}

/// Writes `src` into `dst`, element by element, casting where the dtypes differ. Shapes must be equal (expand the source
/// first to broadcast), the device must be the same, and the two must not overlap partly.
pub fn copy(src: &Tensor, dst: &Tensor) -> Result<()> {
    check_writable("copy", dst)?;
    src.queue().check_same_device("copy", dst.queue())?;
    if src.shape() != dst.shape() {
        let why = format!("the destination has shape {}; expand the source to it first", dst.shape());
        return Err(Error::Shape { op: "copy", shape: src.shape().clone(), why });
    }
    if src.size() == 0 {
        return Ok(());
    }
    if src.shares_storage(dst) {
        if src.layout() == dst.layout() && src.dtype() == dst.dtype() {
            return Ok(());
        }
        // Source and destination may overlap in any way: go through memory of its own.
        let own = Tensor::uninit(src.queue(), src.shape().clone(), src.dtype())?;
        copy(src, &own)?;
        return copy(&own, dst);
    }
    if launch::offer(&Described { inputs: &[src], outputs: &[dst], meaning: Meaning::Copy })? {
        return Ok(());
    }
    let works = match dst.queue() {
        Queue::Cpu(_) => {
            let kernel = memory_kernels::copy((src.layout().clone(), src.dtype()), (dst.layout().clone(), dst.dtype()));
            let args = smallvec![
                Arg::Buffer(src.storage().clone(), Access::Read),
                Arg::Buffer(dst.storage().clone(), Access::Write)
            ];
            vec![(Work::Cpu(kernel), args)]
        }
        Queue::OpenCl(stream) => opencl::copy(stream, src, dst)?,
    };
    let name = if src.dtype() == dst.dtype() { "copy" } else { "cast" };
    submit(name, dst, works, src.dtype().size() + dst.dtype().size())
}

/// An error if elements of a tensor share memory, so that writing it makes no sense.
pub(crate) fn check_writable(op: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.layout().overlaps_itself() {
        let why = "it is an expanded view whose elements share memory; make it contiguous before writing".to_owned();
        return Err(Error::Shape { op, shape: tensor.shape().clone(), why });
    }
    Ok(())
}

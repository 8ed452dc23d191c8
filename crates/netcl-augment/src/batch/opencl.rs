//! Steps on OpenCL devices: one launch per pass, and one before it where whole channels must be known.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Kernel, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::tensor::Tensor;

use super::OP;
use super::table::Table;

/// Numbers that a pass may know of each channel: a table for equalize.
const STATISTICS: usize = 256;

/// Work-items of a group that sums up a channel.
fn group(stream: &Stream) -> usize {
    1 << stream.device().info().max_work_group_size.clamp(1, 64).ilog2()
}

/// A kernel of augment.cl; all of them are one program.
pub(crate) fn kernel(stream: &Stream, name: &'static str) -> Result<Kernel> {
    stream.kernel(&("augment.cl", name), || {
        let define = format!("#define GROUP {}\n", group(stream));
        (Source::new(define + include_str!("augment.cl"), ""), name)
    })
}

/// One work-item for each place of each image.
pub(crate) struct Axes {
    pub(crate) places: usize,
    pub(crate) images: usize,
}

impl Axes {
    pub(crate) fn grid(&self, stream: &Stream) -> Grid {
        let group = stream.device().info().max_work_group_size.min(128);
        Grid::new([self.places.next_multiple_of(group), self.images]).local([group, 1])
    }
}

pub(super) fn run(stream: &Stream, images: &Tensor, table: &Table, result: &Tensor) -> Result<()> {
    let [count, channels] = [images.shape()[0], images.shape()[1]];
    let queue = images.queue();
    let words = Tensor::from_host(queue, &table.words, [table.words.len()])?;
    let needs_statistics = table.passes.iter().any(|pass| pass.statistics);
    // One number stands in where none is needed: not every driver takes a null pointer.
    let known = if needs_statistics { count * channels * STATISTICS } else { 1 };
    let statistics = Tensor::uninit(queue, [known], DType::F32)?;
    let mut old = images.clone();
    for (number, pass) in table.passes.iter().enumerate() {
        let is_last = number + 1 == table.passes.len();
        let new =
            if is_last { result.clone() } else { Tensor::uninit(queue, [count, channels, pass.pixels], DType::F32)? };
        let read = |tensor: &Tensor| Arg::Buffer(tensor.storage().clone(), Access::Read);
        let write = |tensor: &Tensor| Arg::Buffer(tensor.storage().clone(), Access::Write);
        let long = |x: usize| Arg::Scalar(Scalar::U64(x as u64));
        let int = |x: usize| Arg::Scalar(Scalar::U32(x as u32));
        let is_bytes = Arg::Scalar(Scalar::I32((old.dtype() == DType::U8).into()));
        let source = [read(&old), long(old.layout().offset()), is_bytes, long(old.size() / count)];
        let whole = (old.size() * old.dtype().size()) as f64;
        let submit = |name: &'static str, grid, args, bytes| {
            let work = Work::OpenCl(kernel(stream, name)?, grid);
            launch::submit(Launch {
                name: name.into(),
                queue: queue.clone(),
                work,
                args,
                cost: Cost { flops: 0.0, bytes },
            })
        };
        let first = int(number * count);
        if pass.statistics {
            let mut args: smallvec::SmallVec<[Arg; 8]> = source.iter().cloned().collect();
            args.extend([read(&words), first.clone(), write(&statistics), int(channels)]);
            let group = group(stream);
            let grid = Grid::new([group * channels, count]).local([group, 1]);
            submit("augment_statistics", grid, args, whole)?;
        }
        let mut args: smallvec::SmallVec<[Arg; 8]> = source.into_iter().collect();
        args.extend([read(&words), first, read(&statistics), write(&new), long(new.size() / count), int(channels)]);
        let grid = Axes { places: pass.pixels, images: count }.grid(stream);
        submit(OP, grid, args, whole + (new.size() * size_of::<f32>()) as f64)?;
        old = new;
    }
    Ok(())
}

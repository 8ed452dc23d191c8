//! Rows of two tables added, as vectors of tokens and of their places.

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::backend::opencl::Stream;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::launch::{self, Access, Cost, Launch};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;

use super::opencl::{buffer, work};
use super::problem::{Args, look};
use super::{check_same, embedding};
use crate::elements::{element_defines, kernel_source};
use crate::elementwise::add;

/// [`embedding`] of a table plus that of another, whose indices are as many or only one: one launch on OpenCL devices.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let words = Tensor::from_host(&queue, &[0.0f32, 0.5, 1.0, 1.5], [2, 2])?;
/// let places = Tensor::from_host(&queue, &[10.0f32, 20.0], [1, 2])?;
/// let [word, place] = [IndexTensor::from_host(&queue, &[1i64, 0], [2, 1])?, IndexTensor::from_host(&queue, &[0i64], [1])?];
/// let sum = netcl_ops::embedding_sum((&words, &word), (&places, &place))?;
/// assert_eq!(sum.to_host::<f32>()?, [11.0, 21.5, 10.0, 20.5]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn embedding_sum(first: (&Tensor, &IndexTensor), second: (&Tensor, &IndexTensor)) -> Result<Tensor> {
    const OP: &str = "embedding_sum";
    let (x, y, at, place) = (first.0, second.0, first.1.tensor(), second.1.tensor());
    check_same(OP, x, y)?;
    let (rows, widths) = (at.size(), [x, y].map(|table| table.shape().get(1).copied()));
    let one_launch =
        [x, y].into_iter().all(|table| table.ndim() == 2 && table.layout().is_contiguous() && table.size() > 0)
            && x.dtype().is_float()
            && widths[0] == widths[1]
            && rows > 0
            && (place.size() == 1 || place.shape() == at.shape());
    match x.queue() {
        Queue::OpenCl(stream) if one_launch => {
            look(OP, at, x.shape()[0], true)?;
            look(OP, place, y.shape()[0], true)?;
            launch_sum(stream, [x, y], [&at.contiguous()?, &place.contiguous()?])
        }
        _ => add(&embedding(x, first.1)?, &embedding(y, second.1)?),
    }
}

fn launch_sum(stream: &Stream, [x, y]: [&Tensor; 2], [at, place]: [&Tensor; 2]) -> Result<Tensor> {
    let width = x.shape()[1];
    let shape: Shape = at.shape().iter().copied().chain([width]).collect();
    let out = Tensor::uninit(x.queue(), shape, x.dtype())?;
    let uint = IndexWidth::for_span(x.size().max(y.size()).max(out.size()));
    let (dtype, types) = (x.dtype(), [at, place].map(|indices| indices.dtype().cl_type()));
    let kernel = stream.kernel(&("take_sum.cl:take_sum", dtype, types, uint.names().0), || {
        let [index, place] = types;
        let defines = format!("#define INDEX {index}\n#define PLACE {place}\n#define UINT {}\n", uint.names().0);
        (kernel_source(&(element_defines(dtype) + &defines), &[include_str!("take_sum.cl")]), "take_sum")
    })?;
    let mut args = Args::new();
    args.extend([x, at, y, place].into_iter().flat_map(|tensor| buffer(tensor, Access::Read)));
    args.extend(buffer(&out, Access::Write));
    let counts = [out.size(), x.shape()[0], y.shape()[0], width, place.size()];
    args.extend(counts.map(|count| uint.unsigned(count)));
    let cost = Cost { flops: out.size() as f64, bytes: (3 * out.size() * dtype.size()) as f64 };
    let work = work(kernel, out.size())?;
    launch::submit(Launch { name: "embedding_sum".into(), queue: x.queue().clone(), work, args, cost })?;
    Ok(out)
}

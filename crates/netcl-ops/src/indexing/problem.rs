//! What both backends need to know: where a row of indices leads, and the launches for it.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{self, Arg, Cost, Launch, Work};
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::{cpu, opencl};

/// The arguments of a launch.
pub(super) type Args = SmallVec<[Arg; 8]>;

/// A tensor `[outer, n, inner]` and `k` indices along its middle axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) op: &'static str,
    pub(super) axis: usize,
    pub(super) outer: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) inner: usize,
    /// Each place `(outer, inner)` has indices of its own: `outer * k * inner` of them instead of `k`.
    pub(super) along: bool,
}

impl Rows {
    /// One row of indices for all places.
    pub(super) fn new(op: &'static str, shape: &Shape, axis: usize, k: usize) -> Rows {
        let product = |part: &[usize]| part.iter().product::<usize>();
        let (outer, inner) = (product(&shape[..axis]), product(&shape[axis + 1..]));
        Rows { op, axis, outer, n: shape[axis], k, inner, along: false }
    }

    /// A row of indices for each place.
    pub(super) fn along(op: &'static str, shape: &Shape, axis: usize, k: usize) -> Rows {
        Rows { along: true, ..Rows::new(op, shape, axis, k) }
    }

    /// A shape with another length along the axis.
    pub(super) fn with_length(&self, shape: &Shape, length: usize) -> Shape {
        (0..shape.ndim()).map(|a| if a == self.axis { length } else { shape[a] }).collect()
    }

    /// What additions see: outer length, destinations, sources, inner length. Where every place has indices of its own,
    /// destinations are single elements.
    pub(super) fn destinations(&self) -> (usize, usize, usize, usize) {
        match self.along {
            true => (1, self.outer * self.n * self.inner, self.outer * self.k * self.inner, 1),
            false => (self.outer, self.n, self.k, self.inner),
        }
    }

    /// Reads a tensor at the indices.
    pub(super) fn take(self, x: &Tensor, indices: &IndexTensor, shape: Shape) -> Result<Tensor> {
        look(self.op, indices.tensor(), self.n, shape.size() > 0)?;
        self.take_checked(x, indices, shape)
    }

    /// [`Rows::take`] of indices that are known to be in range.
    pub(super) fn take_checked(self, x: &Tensor, indices: &IndexTensor, shape: Shape) -> Result<Tensor> {
        x.queue().check_same_device(self.op, indices.tensor().queue())?;
        let out = Tensor::uninit(x.queue(), shape, x.dtype())?;
        let at = indices.tensor().contiguous()?;
        if out.size() == 0 {
            return Ok(out);
        }
        let x = x.contiguous()?;
        let bytes = out.size() * (2 * x.dtype().size()) + at.size() * at.dtype().size();
        let (op, cost) = (self.op, Cost { flops: 0.0, bytes: bytes as f64 });
        let (work, args) = match x.queue() {
            Queue::Cpu(_) => cpu::take(self, &x, &at, &out),
            Queue::OpenCl(stream) => opencl::take(&self, stream, &x, &at, &out)?,
        };
        submit(op, &out, (work, args), cost)?;
        Ok(out)
    }

    /// Adds a source at the indices of a tensor, or of zeros.
    pub(super) fn add(
        self,
        x: Option<&Tensor>,
        indices: &IndexTensor,
        source: &Tensor,
        shape: Shape,
    ) -> Result<Tensor> {
        source.queue().check_same_device(self.op, indices.tensor().queue())?;
        let out = Tensor::uninit(source.queue(), shape, source.dtype())?;
        let at = indices.tensor().contiguous()?;
        let base = x.map(Tensor::contiguous).transpose()?;
        let source = source.contiguous()?;
        let moved = out.size() * if base.is_some() { 2 } else { 1 } + source.size();
        let bytes = moved * out.dtype().size() + at.size() * at.dtype().size();
        let (op, cost) = (self.op, Cost { flops: source.size() as f64, bytes: bytes as f64 });
        let prepared = match source.queue() {
            Queue::Cpu(_) => {
                look(op, &at, self.n, out.size() > 0)?;
                if out.size() == 0 {
                    return Ok(out);
                }
                cpu::add(self, base.as_ref(), &at, &source, &out)
            }
            Queue::OpenCl(stream) => match opencl::add(&self, stream, base.as_ref(), &at, &source, &out)? {
                Some(prepared) => prepared,
                None => return Ok(out),
            },
        };
        submit(op, &out, prepared, cost)?;
        Ok(out)
    }
}

/// 1 at each index, 0 elsewhere.
pub(super) fn one_hot(indices: &IndexTensor, classes: usize, dtype: DType) -> Result<Tensor> {
    const OP: &str = "one_hot";
    let at = indices.tensor().contiguous()?;
    let shape: Shape = at.shape().iter().copied().chain([classes]).collect();
    let out = Tensor::uninit(at.queue(), shape, dtype)?;
    out.check_float(OP)?;
    look(OP, &at, classes, out.size() > 0)?;
    if out.size() == 0 {
        return Ok(out);
    }
    let prepared = match at.queue() {
        Queue::Cpu(_) => cpu::one_hot(&at, &out, classes),
        Queue::OpenCl(stream) => opencl::one_hot(stream, &at, &out, classes)?,
    };
    submit(OP, &out, prepared, Cost { flops: 0.0, bytes: (out.size() * dtype.size()) as f64 })?;
    Ok(out)
}

fn submit(op: &'static str, out: &Tensor, (work, args): (Work, Args), cost: Cost) -> Result<()> {
    launch::submit(Launch { name: op.into(), queue: out.queue().clone(), work, args, cost })
}

/// Looks at the indices, unless a native kernel is about to do so itself or nothing has run yet.
pub(super) fn look(op: &'static str, indices: &Tensor, limit: usize, launched: bool) -> Result<()> {
    let by_kernel = launched && matches!(indices.queue(), Queue::Cpu(_));
    if by_kernel || indices.size() == 0 || launch::check_readable(op).is_err() {
        return Ok(());
    }
    check(op, &host(indices)?, indices.shape(), limit)
}

/// All indices in row-major order.
pub(super) fn host(indices: &Tensor) -> Result<Vec<i64>> {
    match indices.dtype() {
        DType::I32 => netcl_core::host::collect("to_host", indices.to_host::<i32>()?.into_iter().map(i64::from)),
        _ => indices.to_host::<i64>(),
    }
}

/// An error that names the first index outside `0..limit`.
pub(super) fn check(op: &'static str, values: &[i64], shape: &Shape, limit: usize) -> Result<()> {
    match values.iter().position(|&v| v < 0 || v as u64 >= limit as u64) {
        None => Ok(()),
        Some(at) => Err(outside(op, shape, at, values[at], limit)),
    }
}

/// The error for the index at a flat position.
pub(super) fn outside(op: &'static str, shape: &Shape, mut at: usize, value: i64, limit: usize) -> Error {
    let mut position: Vec<String> = Vec::new();
    for &n in shape.iter().rev() {
        position.push((at % n).to_string());
        at /= n;
    }
    position.reverse();
    let position = position.join(", ");
    let hint = if value < 0 { "; negative indices do not count from the end here" } else { "" };
    Error::argument(op, format!("indices[{position}] is {value}, but must lie in 0..{limit}{hint}"))
}

/// The first elements of a tensor along every axis but one, as a view.
pub(super) fn cut(x: &Tensor, lengths: &Shape, except: Option<usize>) -> Result<Tensor> {
    let mut out = x.clone();
    for (axis, &n) in lengths.iter().enumerate() {
        if Some(axis) != except && out.shape()[axis] != n {
            out = out.slice(axis as isize, Slice::new(Some(0), Some(n as isize), 1))?;
        }
    }
    Ok(out)
}

//! Launches of `copy_groups.cl`, and of `copy.cl` for what is strided: fills, and casts.

use smallvec::{SmallVec, smallvec};

use super::groups::{Axis, Part, conversion, declared};
use crate::backend::opencl::{Grid, Source, Stream};
use crate::dtype::Element;
use crate::error::Result;
use crate::kernels::expr::opencl::bits_type;
use crate::kernels::launch::{Access, Arg, Scalar, Work};
use crate::shape::Layout;
use crate::tensor::Tensor;
use crate::with_element;

/// The axes `copy.cl` has arguments for; views with more are copied slice by slice.
pub(super) const MAX_RANK: usize = 6;

pub(super) type Args = SmallVec<[Arg; 8]>;

/// Sets the elements of a tensor; one piece of work per slice of at most [`MAX_RANK`] axes.
pub(super) fn fill(stream: &Stream, tensor: &Tensor, value: f64) -> Result<Vec<(Work, Args)>> {
    let bits = with_element!(tensor.dtype(), T => {
        let mut raw = [0u8; 8];
        let element = T::from_f64(value);
        raw[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&element));
        u64::from_le_bytes(raw)
    });
    let size = tensor.dtype().size();
    slices(&[tensor.layout()], |shape, strides, offsets| {
        let Some(strides) = &strides[0] else {
            return super::groups::fill(stream, tensor, offsets[0], shape.iter().product(), scalar(bits));
        };
        let kernel = stream.kernel(&("copy.cl:fill_strided", size), || {
            (source(format!("#define BITS {}\n", bits_type(size))), "fill_strided")
        })?;
        let n: u64 = shape.iter().product();
        let mut args: Args = smallvec![
            Arg::Buffer(tensor.storage().clone(), Access::Write),
            scalar(offsets[0]),
            scalar(n),
            scalar(bits),
        ];
        args.extend(shape[1..].iter().map(|&n| scalar(n)));
        args.extend(strides.iter().map(|&s| Arg::Scalar(Scalar::I64(s))));
        Ok((Work::OpenCl(kernel, grid(stream, n)), args))
    })
}

/// Copies or casts one tensor into another of the same shape.
pub(super) fn copy(stream: &Stream, src: &Tensor, dst: &Tensor) -> Result<Vec<(Work, Args)>> {
    let (from, to) = (src.dtype(), dst.dtype());
    slices(&[src.layout(), dst.layout()], |shape, strides, offsets| {
        let steps = [0, 1].map(|side: usize| strides[side].unwrap_or_else(|| dense_strides(shape)));
        let axes = (0..MAX_RANK).filter(|&a| shape[a] != 1);
        let axes = axes.map(|a| Axis { n: shape[a], steps: [steps[0][a], steps[1][a]] }).collect();
        let part = Part { src, dst, offsets: [offsets[0], offsets[1]], axes };
        if let Some(work) = part.work(stream)? {
            return Ok(work);
        }
        // A cast of something strided.
        let kernel = stream.kernel(&("copy.cl:copy_strided", from, to), || {
            let types = format!("#define SRC {}\n#define DST {}\n", declared(from), declared(to));
            (source(types + &conversion(from, to)), "copy_strided")
        })?;
        let n: u64 = shape.iter().product();
        let mut args = part.buffers();
        args.push(scalar(n));
        args.extend(shape[1..].iter().map(|&n| scalar(n)));
        args.extend(steps.iter().flatten().map(|&s| Arg::Scalar(Scalar::I64(s))));
        Ok((Work::OpenCl(kernel, grid(stream, n)), args))
    })
}

/// Calls `make` for each slice of at most [`MAX_RANK`] merged axes, with the padded shape, each layout's padded strides
/// (`None` where they are dense) and its offset.
fn slices(
    layouts: &[&Layout],
    mut make: impl FnMut(&[u64; MAX_RANK], &[Option<[i64; MAX_RANK]>], &[u64]) -> Result<(Work, Args)>,
) -> Result<Vec<(Work, Args)>> {
    let (merged, strides) = Layout::collapse_in_memory_order(layouts);
    let outer = merged.ndim().saturating_sub(MAX_RANK);
    let mut shape = [1u64; MAX_RANK];
    for (slot, &n) in shape.iter_mut().rev().zip(merged[outer..].iter().rev()) {
        *slot = n as u64;
    }
    let padded: Vec<Option<[i64; MAX_RANK]>> = strides
        .iter()
        .map(|strides| {
            let mut padded = [0i64; MAX_RANK];
            for (slot, &s) in padded.iter_mut().rev().zip(strides[outer..].iter().rev()) {
                *slot = s as i64;
            }
            let dense = dense_strides(&shape);
            let same = shape.iter().zip(padded.iter().zip(&dense)).all(|(&n, (a, b))| n == 1 || a == b);
            (!same).then_some(padded)
        })
        .collect();
    let starts = layouts
        .iter()
        .zip(&strides)
        .map(|(layout, strides)| {
            let outer = Layout::strided(merged[..outer].into(), &strides[..outer], layout.offset())?;
            Ok(outer.offsets().map(|at| at as u64).collect())
        })
        .collect::<Result<Vec<Vec<u64>>>>()?;
    (0..starts[0].len())
        .map(|i| make(&shape, &padded, &starts.iter().map(|starts| starts[i]).collect::<SmallVec<[u64; 2]>>()))
        .collect()
}

fn dense_strides(shape: &[u64; MAX_RANK]) -> [i64; MAX_RANK] {
    let mut strides = [1i64; MAX_RANK];
    for axis in (0..MAX_RANK - 1).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1] as i64;
    }
    strides
}

pub(super) fn scalar(value: u64) -> Arg {
    Arg::Scalar(Scalar::U64(value))
}

pub(super) fn grid(stream: &Stream, n: u64) -> Grid {
    let local = stream.device().info().max_work_group_size.min(256);
    Grid::new([(n as usize).next_multiple_of(local)]).local([local])
}

fn source(mut defines: String) -> Source {
    defines.push_str(include_str!("copy.cl"));
    Source::new(defines, "")
}

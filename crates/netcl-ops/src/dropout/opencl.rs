//! Launches of `dropout.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::Stream;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Access, Arg, Scalar, Work};
use netcl_core::random::PHILOX_CL;
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::cpu::keep_below;
use super::{MaskPlace, keep_and_scale};
use crate::elements::{element_defines, kernel_source};
use crate::indexing::opencl::{buffer, work as grid};

pub(super) fn work(
    stream: &Stream,
    x: &Tensor,
    out: &Tensor,
    p: f64,
    place: &MaskPlace,
) -> Result<(Work, SmallVec<[Arg; 8]>)> {
    let dtype = x.dtype();
    let kernel = stream.kernel(&("dropout.cl", dtype), || {
        (kernel_source(&element_defines(dtype), &[PHILOX_CL, include_str!("dropout.cl")]), "dropout")
    })?;
    let (keep, scale) = keep_and_scale(p);
    let mut args = SmallVec::new();
    args.extend(buffer(x, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.push(Arg::Scalar(Scalar::U64(x.size() as u64)));
    args.extend(place.scalars().map(Arg::Scalar));
    args.push(Arg::Scalar(Scalar::U32(keep_below(keep))));
    args.push(Arg::Scalar(if dtype == DType::F64 { Scalar::F64(scale) } else { Scalar::F32(scale as f32) }));
    Ok((grid(kernel, x.size().div_ceil(4))?, args))
}

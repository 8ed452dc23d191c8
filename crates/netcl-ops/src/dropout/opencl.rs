//! Launches of `dropout.cl`, and of `dropout_vector.cl` on processors.

use netcl_core::Result;
use netcl_core::backend::opencl::{Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::form::Form;
use netcl_core::kernels::launch::{Access, Arg, Scalar, Work};
use netcl_core::random::PHILOX_CL;
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::cpu::keep_below;
use super::{MaskPlace, keep_and_scale};
use crate::indexing::opencl::{buffer, element_defines, work as grid};
use crate::random::opencl::{PHILOX_VECTOR_CL, PHILOX_WORDS};
use crate::wide::{ITEMS_PER_UNIT, loose_defines, stretches};

pub(super) fn work(
    stream: &Stream,
    x: &Tensor,
    out: &Tensor,
    p: f64,
    place: &MaskPlace,
) -> Result<(Work, SmallVec<[Arg; 8]>)> {
    let dtype = x.dtype();
    let vectors = Form::of(stream.device()) == Form::Items;
    let kernel = if vectors {
        stream.kernel(&format!("dropout_vector.cl:{dtype}"), || {
            let (elements, vectors) = (element_defines(dtype), loose_defines(dtype));
            let source = [PHILOX_VECTOR_CL, &elements, &vectors, include_str!("dropout_vector.cl")];
            (Source::new(source.concat(), ""), "dropout_vector")
        })?
    } else {
        stream.kernel(&format!("dropout.cl:{dtype}"), || {
            (Source::new([PHILOX_CL, &element_defines(dtype), include_str!("dropout.cl")].concat(), ""), "dropout")
        })?
    };
    let (keep, scale) = keep_and_scale(p);
    let mut args = SmallVec::new();
    args.extend(buffer(x, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.push(Arg::Scalar(Scalar::U64(x.size() as u64)));
    args.extend(place.scalars().map(Arg::Scalar));
    args.push(Arg::Scalar(Scalar::U32(keep_below(keep))));
    args.push(Arg::Scalar(if dtype == DType::F64 { Scalar::F64(scale) } else { Scalar::F32(scale as f32) }));
    if vectors {
        let (grid, per) = stretches(stream, x.size(), ITEMS_PER_UNIT, PHILOX_WORDS);
        args.push(Arg::Scalar(Scalar::U64(per as u64)));
        return Ok((Work::OpenCl(kernel, grid), args));
    }
    Ok((grid(kernel, x.size().div_ceil(4))?, args))
}

//! Launches of `random.cl`, and of `random_vector.cl` on processors.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::form::Form;
use netcl_core::kernels::launch::{Arg, Scalar, Work};
use netcl_core::random::PHILOX_CL;
use smallvec::SmallVec;

use super::Law;
use crate::indexing::opencl::element_defines;
use crate::wide::{ITEMS_PER_UNIT, loose_defines, stretches};

/// Philox for eight blocks at once: `philox_vector` and [`PHILOX_WORDS`].
pub(crate) const PHILOX_VECTOR_CL: &str = include_str!("philox_vector.cl");
/// The words of eight blocks.
pub(crate) const PHILOX_WORDS: usize = 32;

/// The work; `args` become those of the kernel.
pub(super) fn work(stream: &Stream, law: Law, dtype: DType, n: u64, args: &mut SmallVec<[Arg; 8]>) -> Result<Work> {
    if let Some((name, source)) = in_vectors(stream, law, dtype) {
        let kernel = stream.kernel(&format!("random_vector.cl:{name}:{dtype}"), || (source(), name))?;
        let (grid, per) = stretches(stream, n as usize, ITEMS_PER_UNIT, PHILOX_WORDS);
        args.push(Arg::Scalar(Scalar::U64(per as u64)));
        return Ok(Work::OpenCl(kernel, grid));
    }
    let kernel = stream.kernel(&format!("random.cl:{}:{dtype}", law.name()), || (source(dtype), law.name()))?;
    let per_block = if dtype == DType::F64 && !matches!(law, Law::Bernoulli { .. }) { 2 } else { 4 };
    let local = kernel.work_group_info()?.max_size.min(128);
    let grid = Grid::new([n.div_ceil(per_block).next_multiple_of(local as u64) as usize]).local([local]);
    Ok(Work::OpenCl(kernel, grid))
}

fn source(dtype: DType) -> Source {
    let defines = match dtype {
        DType::F64 => "#define OUT double\n#define WIDE\n",
        DType::F16 => "#define OUT half\n#define STORE(v, p, i) vstore_half_rte(v, i, p)\n",
        DType::BF16 => "#define OUT ushort\n#define STORE(v, p, i) ((p)[i] = netcl_to_bf16(v))\n",
        _ => "#define OUT float\n",
    };
    Source::new([defines, PHILOX_CL, "\n", include_str!("random.cl")].concat(), "")
}

/// The kernel of `random_vector.cl`, on processors. Normals are computed in double precision and rounded to something else.
fn in_vectors(stream: &Stream, law: Law, dtype: DType) -> Option<(&'static str, impl Fn() -> Source)> {
    let name = match law {
        Law::Uniform { .. } => "random_uniform_vector",
        Law::Bernoulli { .. } => "random_bernoulli_vector",
        Law::Normal { .. } if dtype != DType::F64 && stream.device().has_extension("cl_khr_fp64") => {
            "random_normal_vector"
        }
        Law::Normal { .. } => return None,
    };
    let source = move || {
        let text = include_str!("random_vector.cl");
        Source::new([PHILOX_VECTOR_CL, &element_defines(dtype), &loose_defines(dtype), text].concat(), "")
    };
    (Form::of(stream.device()) == Form::Items).then_some((name, source))
}

//! Launches of `random.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::Work;
use netcl_core::random::PHILOX_CL;

use super::Law;
use crate::elements::{kernel_source, rounding};

pub(super) fn work(stream: &Stream, law: Law, dtype: DType, n: u64) -> Result<Work> {
    let kernel = stream.kernel(&("random.cl", law.name(), dtype), || (program(dtype), law.name()))?;
    let per_block = if dtype == DType::F64 && !matches!(law, Law::Bernoulli { .. }) { 2 } else { 4 };
    let local = kernel.group_up_to(128)?;
    let grid = Grid::new([n.div_ceil(per_block).next_multiple_of(local as u64) as usize]).local([local]);
    Ok(Work::OpenCl(kernel, grid))
}

fn program(dtype: DType) -> Source {
    let defines = match dtype {
        DType::F64 => "#define OUT double\n#define WIDE\n",
        DType::F16 => "#define OUT half\n#define STEPS 0x1.0p11f\n#define STORE(v, p, i) vstore_half_rte(v, i, p)\n",
        DType::BF16 => "#define OUT ushort\n#define STEPS 0x1.0p8f\n#define STORE(v, p, i) ((p)[i] = bf16_bits(v))\n",
        _ => "#define OUT float\n",
    };
    kernel_source(&(rounding(dtype, 1) + defines), &[PHILOX_CL, include_str!("random.cl")])
}

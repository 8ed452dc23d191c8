//! Random tensors on the native CPU.

use netcl_core::Result;
use netcl_core::backend::cpu::{CpuArgs, CpuKernel, copy};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::Work;
use netcl_core::random::{self, Generator};

use super::Law;

pub(super) fn work(law: Law, dtype: DType) -> Work {
    Work::Cpu(CpuKernel::new(move |args| fill(args, law, dtype)))
}

fn fill(args: &CpuArgs<'_>, law: Law, dtype: DType) -> Result<()> {
    let (offset, n) = (args.integer(1)? as usize, args.integer(2)? as usize);
    let place = Generator { seed: args.integer(3)? as u64, offset: args.integer(4)? as u64 };
    let start = args.checked_memory(0, (offset + n) * dtype.size())?.wrapping_add(offset * dtype.size());
    match (law, dtype) {
        (Law::Bernoulli { .. }, _) => {
            let mut drawn = vec![0u8; n];
            random::fill_bernoulli_u8(&mut drawn, args.float(5)? as f32, &place)?;
            // SAFETY: `n` elements of the dtype lie at `start`, and the launch holds the buffer for writing.
            unsafe { copy::cast(drawn.as_ptr(), DType::U8, start, dtype, n) }
        }
        (_, DType::F64) => {
            // SAFETY: as above; the memory is initialised (pools hand out zeroed or used memory) and aligned for f64.
            let out = unsafe { std::slice::from_raw_parts_mut(start.cast::<f64>(), n) };
            match law {
                Law::Normal { .. } => random::fill_normal_f64(out, &place)?,
                _ => random::fill_uniform_f64(out, &place)?,
            }
            let (scale, shift) = (args.float(5)?, args.float(6)?);
            if (scale, shift) != (1.0, 0.0) {
                out.iter_mut().for_each(|v| *v = *v * scale + shift);
            }
            Ok(())
        }
        (_, DType::F32) => {
            // SAFETY: as above.
            let out = unsafe { std::slice::from_raw_parts_mut(start.cast::<f32>(), n) };
            fill_f32(args, law, &place, None, out)
        }
        _ => {
            let mut drawn = vec![0f32; n];
            // As many numbers of [0, 1) as the type has at equal distances: rounding would make 1 of the last ones.
            let steps = if dtype == DType::F16 { 2048.0 } else { 256.0 };
            fill_f32(args, law, &place, Some(steps), &mut drawn)?;
            // SAFETY: as above.
            unsafe { copy::cast(drawn.as_ptr().cast(), DType::F32, start, dtype, n) }
        }
    }
}

fn fill_f32(args: &CpuArgs<'_>, law: Law, place: &Generator, steps: Option<f32>, out: &mut [f32]) -> Result<()> {
    match (law, steps) {
        (Law::Normal { .. }, _) => random::fill_normal_f32(out, place)?,
        (_, None) => random::fill_uniform_f32(out, place)?,
        (_, Some(steps)) => {
            random::fill_uniform_f32(out, place)?;
            out.iter_mut().for_each(|v| *v = (*v * steps).floor() / steps);
        }
    }
    let (scale, shift) = (args.float(5)? as f32, args.float(6)? as f32);
    if (scale, shift) != (1.0, 0.0) {
        out.iter_mut().for_each(|v| *v = *v * scale + shift);
    }
    Ok(())
}

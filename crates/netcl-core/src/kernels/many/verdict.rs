//! What becomes of gradients, decided on the device: unscaling, clipping by norm, skipping.

use smallvec::{SmallVec, smallvec};

use super::OP;
use crate::backend::Queue;
use crate::backend::cpu::{CpuArgs, CpuKernel};
use crate::backend::opencl::{Grid, Source, Stream};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::elementwise::Number;
use crate::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use crate::tensor::Tensor;

/// How many controls a verdict writes: the factor of every gradient, 1 if the update is skipped, how many were skipped so
/// far, and the norm.
pub const CONTROLS: usize = 4;

const LABEL: &str = "verdict";
const HAS_NORM: u32 = 1;
const HAS_SCALE: u32 = 2;
const HAS_FOUND: u32 = 4;
const HAS_MAX: u32 = 8;
const SKIP_NON_FINITE: u32 = 16;

/// What to decide by.
#[derive(Clone, Debug)]
pub struct Verdict<'a> {
    /// Partial sums of the gradients' squares, from [`sum_of_squares`](super::sum_of_squares).
    pub sums: Option<&'a Tensor>,
    /// What gradients are multiplied by.
    pub inverse_scale: Number,
    /// A float32 number on the device that gradients are divided by, too.
    pub scale: Option<&'a Tensor>,
    /// The largest norm, after unscaling; larger gradients are scaled down to it. Needs the sums.
    pub max_norm: Option<Number>,
    /// A float32 number on the device: anything but zero skips the update.
    pub found_inf: Option<&'a Tensor>,
    /// Whether a norm that is not finite skips the update. Needs the sums.
    pub skip_non_finite: bool,
}

/// Writes the [`CONTROLS`] of a flat tensor from element `at` on, in one launch.
pub fn verdict(by: &Verdict<'_>, controls: &Tensor, at: usize) -> Result<()> {
    let queue = controls.queue();
    if !controls.layout().is_contiguous() || controls.size() < at + CONTROLS {
        let why = format!("{CONTROLS} controls from element {at} on do not lie densely in it");
        return Err(Error::Shape { op: OP, shape: controls.shape().clone(), why });
    }
    if !matches!(controls.dtype(), DType::F32 | DType::F64) {
        let expected = "controls of float32 or float64".to_owned();
        return Err(Error::Dtype { op: OP, expected, got: controls.dtype() });
    }
    if by.sums.is_none() && (by.max_norm.is_some() || by.skip_non_finite) {
        return Err(Error::argument(OP, "a norm is asked for, so the sums of squares are needed"));
    }
    for tensor in by.scale.iter().chain(&by.found_inf) {
        queue.check_same_device(OP, tensor.queue())?;
        if tensor.size() != 1 || tensor.dtype() != DType::F32 {
            let why = format!("the scale and the flag are one float32 number each, this is {}", tensor.dtype());
            return Err(Error::Shape { op: OP, shape: tensor.shape().clone(), why });
        }
    }
    if let Some(sums) = by.sums {
        queue.check_same_device(OP, sums.queue())?;
        if !sums.layout().is_contiguous() {
            let why = "partial sums are a dense list".to_owned();
            return Err(Error::Shape { op: OP, shape: sums.shape().clone(), why });
        }
    }
    let flag = |given: bool, bit: u32| if given { bit } else { 0 };
    let flags = flag(by.sums.is_some(), HAS_NORM)
        | flag(by.scale.is_some(), HAS_SCALE)
        | flag(by.found_inf.is_some(), HAS_FOUND)
        | flag(by.max_norm.is_some(), HAS_MAX)
        | flag(by.skip_non_finite, SKIP_NON_FINITE);
    let place = |tensor: Option<&Tensor>| {
        let tensor = tensor.unwrap_or(controls);
        (Arg::Buffer(tensor.storage().clone(), Access::Read), tensor.layout().offset())
    };
    let unsigned = |value: usize| Arg::Scalar(Scalar::U64(value as u64));
    let ((sums, sums_at), (scale, scale_at), (found, found_at)) =
        (place(by.sums), place(by.scale), place(by.found_inf));
    debug_assert!(by.sums.is_none() || sums_at == 0, "partial sums are a tensor of their own");
    let count = by.sums.map_or(0, Tensor::size);
    let dtype = controls.dtype();
    let max_norm = by.max_norm.clone().unwrap_or(Number::Value(0.0));
    let mut args: SmallVec<[Arg; 8]> = smallvec![
        Arg::Buffer(controls.storage().clone(), Access::Write),
        unsigned(controls.layout().offset() + at),
        sums,
        Arg::Scalar(Scalar::U32(count as u32)),
        scale,
        unsigned(scale_at),
        found,
        unsigned(found_at),
        by.inverse_scale.arg(dtype),
        max_norm.arg(dtype),
        Arg::Scalar(Scalar::U32(flags)),
    ];
    let sum_type = by.sums.map_or(dtype, Tensor::dtype);
    let work = match queue {
        Queue::Cpu(_) => Work::Cpu(CpuKernel::new(move |args| native(args, dtype))),
        Queue::OpenCl(stream) => opencl(stream, dtype, sum_type, &mut args)?,
    };
    let cost = Cost { flops: count as f64, bytes: (count * sum_type.size()) as f64 };
    launch::submit(Launch { name: LABEL.into(), queue: queue.clone(), work, args, cost })
}

fn opencl(stream: &Stream, real: DType, sum: DType, args: &mut SmallVec<[Arg; 8]>) -> Result<Work> {
    let kernel = stream.kernel(&("verdict.cl", real, sum), || {
        let defines = format!("#define REAL {}\n#define SUM {}\n", real.cl_type(), sum.cl_type());
        (Source::new(defines + include_str!("verdict.cl"), ""), "verdict")
    })?;
    let most = kernel.group_up_to(64)?.max(1);
    let local = 1 << most.ilog2();
    args.push(Arg::Local(local * sum.size()));
    Ok(Work::OpenCl(kernel, Grid::new([local]).local([local])))
}

/// The same as `verdict.cl` does.
fn native(args: &CpuArgs<'_>, dtype: DType) -> Result<()> {
    let (at, count, flags) = (args.integer(1)? as usize, args.integer(3)? as usize, args.integer(10)? as u32);
    let has = |bit: u32| flags & bit != 0;
    let number = |buffer: usize| -> Result<f32> {
        let at = args.integer(buffer + 1)? as usize;
        let memory = args.checked_memory(buffer, (at + 1) * size_of::<f32>())?.cast::<f32>();
        // SAFETY: a float32 number inside its memory, as just checked; the launch holds it.
        Ok(unsafe { *memory.add(at) })
    };
    let mut unscale = args.float(8)?;
    if has(HAS_SCALE) {
        unscale /= f64::from(number(4)?);
    }
    let mut norm = 0.0;
    if has(HAS_NORM) {
        let memory = args.checked_memory(2, count * size_of::<f64>())?.cast::<f64>();
        // SAFETY: native partial sums are f64, and there are `count` of them, as just checked.
        let sums = unsafe { std::slice::from_raw_parts(memory, count) };
        norm = pairwise(sums).sqrt() * unscale;
    }
    let mut factor = unscale;
    if has(HAS_MAX) {
        let limit = args.float(9)? / (norm + 1e-6);
        // A NaN stays, and shows.
        if limit.is_nan() || limit < 1.0 {
            factor *= limit;
        }
    }
    let found = has(HAS_FOUND) && number(6)? != 0.0;
    let skip = f64::from(u8::from(found || (has(SKIP_NON_FINITE) && !norm.is_finite())));
    let memory = args.checked_memory(0, (at + CONTROLS) * dtype.size())?;
    // SAFETY: the controls lie inside their memory, as just checked, and the launch declares it as written.
    unsafe {
        if dtype == DType::F64 {
            let controls = memory.cast::<f64>().add(at);
            let skipped = *controls.add(2) + skip;
            [factor, skip, skipped, norm].into_iter().enumerate().for_each(|(i, v)| *controls.add(i) = v);
        } else {
            let controls = memory.cast::<f32>().add(at);
            let skipped = f64::from(*controls.add(2)) + skip;
            [factor, skip, skipped, norm].into_iter().enumerate().for_each(|(i, v)| *controls.add(i) = v as f32);
        }
    }
    Ok(())
}

fn pairwise(values: &[f64]) -> f64 {
    match values {
        [] => 0.0,
        [value] => *value,
        _ => {
            let (low, high) = values.split_at(values.len() / 2);
            pairwise(low) + pairwise(high)
        }
    }
}

//! Random tensors: a pure function of the generator's seed and the element's place, so every device draws the same numbers.

mod cpu;
mod opencl;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::host;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar};
use netcl_core::random::{
    Generator, blocks_for, check_own_generator, fill_below_i64, permutation as permute, reserve_default,
};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::smallvec;

use crate::dropout::reserve;

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Law {
    /// `u * scale + shift`, `u` uniform in [0, 1).
    Uniform { scale: f64, shift: f64 },
    /// `z * scale + shift`, `z` normal.
    Normal { scale: f64, shift: f64 },
    /// 1 with a probability, else 0.
    Bernoulli { p: f64 },
}

impl Law {
    const fn name(self) -> &'static str {
        match self {
            Law::Uniform { .. } => "random_uniform",
            Law::Normal { .. } => "random_normal",
            Law::Bernoulli { .. } => "random_bernoulli",
        }
    }
}

/// Uniform numbers in [low, high). float32 numbers are bit-equal on every device.
///
/// With `None` for the generator the process-wide one ([`netcl_core::random::manual_seed`]) is used and moved on.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, random::Generator};
/// use netcl_ops::random::uniform;
///
/// let queue = manager().cpu().queue;
/// let mut generator = Generator::new(7);
/// let first = uniform(&queue, [2, 3], DType::F32, -1.0, 1.0, Some(&mut generator))?;
/// let again = uniform(&queue, [2, 3], DType::F32, -1.0, 1.0, Some(&mut Generator::new(7)))?;
/// assert_eq!(first.to_host::<f32>()?, again.to_host::<f32>()?);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn uniform(
    queue: &Queue,
    shape: impl Into<Shape>,
    dtype: DType,
    low: f64,
    high: f64,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    if !(low.is_finite() && high.is_finite() && low <= high) {
        return Err(Error::argument("uniform", format!("the bounds {low} and {high} must be finite and in order")));
    }
    draw(queue, shape.into(), dtype, Law::Uniform { scale: high - low, shift: low }, generator)
}

/// Normal numbers. Equal on every device with double precision; elsewhere within a few units in the last place.
pub fn normal(
    queue: &Queue,
    shape: impl Into<Shape>,
    dtype: DType,
    mean: f64,
    std: f64,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    if !(mean.is_finite() && std.is_finite() && std >= 0.0) {
        return Err(Error::argument("normal", format!("mean {mean} and std {std} must be finite, std not negative")));
    }
    draw(queue, shape.into(), dtype, Law::Normal { scale: std, shift: mean }, generator)
}

/// 1 with probability `p`, else 0.
pub fn bernoulli(
    queue: &Queue,
    shape: impl Into<Shape>,
    dtype: DType,
    p: f64,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::argument("bernoulli", format!("{p} is not a probability; use a number from 0 to 1")));
    }
    draw(queue, shape.into(), dtype, Law::Bernoulli { p }, generator)
}

/// The numbers 0 to n - 1 in a random order; the same order on every device.
pub fn permutation(queue: &Queue, n: usize, generator: Option<&mut Generator>) -> Result<IndexTensor> {
    // Computed on the host, and therefore once for all replays.
    check_own_generator("permutation")?;
    host::check::<(u64, usize)>("permutation", n)?;
    // Two words per element decide its place.
    let words = blocks_for(2 * n);
    let place = match generator {
        Some(generator) => generator.reserve(words),
        None => reserve_default(words),
    };
    let order: Vec<i64> = permute(n, &place)?.into_iter().map(|i| i as i64).collect();
    IndexTensor::from_host(queue, &order, [n])
}

/// Whole numbers in [low, high), int64; the same on every device.
pub fn integers(
    queue: &Queue,
    shape: impl Into<Shape>,
    low: i64,
    high: i64,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    let shape = shape.into();
    // Drawn on the host, and therefore once for all replays.
    check_own_generator("randint")?;
    let Some(count) = high.checked_sub(low).filter(|&count| count > 0) else {
        let what =
            format!("there are no numbers from {low} to below {high}; low must be below high, by less than 2^63");
        return Err(Error::argument("randint", what));
    };
    shape.nbytes("randint", DType::I64)?;
    let mut numbers = host::filled("randint", shape.size(), 0i64)?;
    let words = blocks_for(2 * numbers.len());
    let place = match generator {
        Some(generator) => generator.reserve(words),
        None => reserve_default(words),
    };
    fill_below_i64(&mut numbers, count, &place)?;
    numbers.iter_mut().for_each(|number| *number += low);
    Tensor::from_host(queue, &numbers, shape)
}

fn draw(queue: &Queue, shape: Shape, dtype: DType, law: Law, generator: Option<&mut Generator>) -> Result<Tensor> {
    let out = Tensor::uninit(queue, shape, dtype)?;
    out.check_float(law.name())?;
    let wide = dtype == DType::F64 && !matches!(law, Law::Bernoulli { .. });
    if generator.is_some() {
        check_own_generator(law.name())?;
    }
    let [seed, offset] = reserve(generator, blocks_for(out.size() * if wide { 2 } else { 1 })).scalars();
    if out.size() == 0 {
        return Ok(out);
    }
    let n = out.size() as u64;
    // The same arguments for both backends; the block is where the generator stands, which a replayed step moves on.
    let mut args = smallvec![
        Arg::Buffer(out.storage().clone(), Access::Write),
        Arg::Scalar(Scalar::U64(out.layout().offset() as u64)),
        Arg::Scalar(Scalar::U64(n)),
        Arg::Scalar(seed),
        Arg::Scalar(offset),
    ];
    let number = |value: f64| Arg::Scalar(if wide { Scalar::F64(value) } else { Scalar::F32(value as f32) });
    match law {
        Law::Uniform { scale, shift } | Law::Normal { scale, shift } => args.extend([number(scale), number(shift)]),
        Law::Bernoulli { p } => args.push(number(p)),
    }
    let work = match queue {
        Queue::Cpu(_) => cpu::work(law, dtype),
        Queue::OpenCl(stream) => opencl::work(stream, law, dtype, n)?,
    };
    let cost = Cost { flops: 0.0, bytes: (out.size() * dtype.size()) as f64 };
    launch::submit(Launch { name: law.name().into(), queue: queue.clone(), work, args, cost })?;
    Ok(out)
}

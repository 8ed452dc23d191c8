//! Products with weights of 8 or 4 bits: `x @ W.T + bias`, where W is dequantised on the way.
//!
//! ```text
//!   one row of W (out_features, in_features), symmetric: w[i] = scale[i / group] * q[i]
//!
//!   weight  int32 words  | q3 q2 q1 q0 | q7 q6 q5 q4 | ...     8 bits: four to a word, q + 128 in -127..=127, one scale a row
//!                        | q7 ... q1 q0 | q15 ... q8 | ...     4 bits: eight to a word, q + 8 in -7..=7, a scale for `group` inputs
//!   scale                | s0 | s1 | ...                       in the dtype of x
//! ```
//!
//! The first value is in the lowest bits, and the last word of a row is filled up with zeros. Values are stored with an offset, so that a
//! kernel makes a float of one by two bit operations and a subtraction: conversions of integers run at an eighth of the rate of additions on
//! NVIDIA's GPUs.
//!
//! A few rows of x (decoding) read the packed weights once for eight of them. Many rows are an ordinary product with weights that are
//! dequantised into a temporary, because that runs on matrix units.

mod cpu;
mod opencl;

use netcl_core::backend::Queue;
use netcl_core::dtype::{DType, Element};
use netcl_core::kernels::launch::{Access, Cost};
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use crate::dense::{Args, Job, check_shape, with_stored};
use crate::matmul::linear;

const OP: &str = "quantized_linear";
/// More rows than this are multiplied by dequantised weights.
const FEW_ROWS: usize = 16;
/// Weights that are quantised at once: what the host holds of them in float64.
const BLOCK: usize = 1 << 22;

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    bits: usize,
    /// Inputs that share a scale; all of a row with 8 bits.
    group: Option<usize>,
}

impl Packing {
    /// 8 bits with a scale for each row, or 4 bits with a scale for each group of 32, 64 or 128 inputs (8 bits take no notice of it).
    ///
    /// # Errors
    /// For other numbers.
    pub fn new(bits: usize, group: usize) -> Result<Packing> {
        match (bits, group) {
            (8, _) => Ok(Packing { bits, group: None }),
            (4, 32 | 64 | 128) => Ok(Packing { bits, group: Some(group) }),
            (4, _) => Err(Error::argument("quantize", format!("group is {group}; with 4 bits use 32, 64 or 128"))),
            _ => Err(Error::argument("quantize", format!("bits is {bits}; weights have 8 or 4"))),
        }
    }

    /// The bits of a weight.
    pub const fn bits(self) -> usize {
        self.bits
    }

    /// Weights in a word.
    const fn per_word(self) -> usize {
        32 / self.bits
    }

    /// What is added to a value before it is stored; values lie within one less.
    const fn offset(self) -> i32 {
        1 << (self.bits - 1)
    }

    /// Words of a row.
    pub const fn words(self, in_features: usize) -> usize {
        in_features.div_ceil(self.per_word())
    }

    /// Appends a row's words and scales.
    fn pack<E: Element>(self, row: &[f64], words: &mut Vec<i32>, scales: &mut Vec<f64>) {
        let limit = f64::from(self.offset() - 1);
        let mut values = Vec::with_capacity(row.len());
        for group in row.chunks(self.group.unwrap_or(row.len()).max(1)) {
            let most = group.iter().fold(0.0f64, |most, weight| most.max(weight.abs()));
            // Values are multiples of the scale as it is stored.
            let scale = E::from_f64(most / limit).to_f64();
            let value = |weight: &f64| if scale > 0.0 { (weight / scale).round_ties_even() } else { 0.0 };
            values.extend(group.iter().map(|weight| value(weight).clamp(-limit, limit) as i32));
            scales.push(scale);
        }
        // The scale of a row without inputs.
        scales.extend((row.is_empty() && self.group.is_none()).then_some(0.0));
        words.extend(values.chunks(self.per_word()).map(|values| {
            let value = |i| values.get(i).copied().unwrap_or(0) + self.offset();
            (0..self.per_word()).fold(0, |word, i| word | value(i) << (self.bits * i))
        }));
    }

    /// Scales of a row.
    pub const fn scales(self, in_features: usize) -> usize {
        match self.group {
            Some(group) => in_features.div_ceil(group),
            None => 1,
        }
    }
}

/// A weight `(out_features, in_features)` of 8 or 4 bits.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::quantized::{Packing, QuantizedWeight, quantized_linear};
///
/// let queue = manager().cpu().queue;
/// let weight = Tensor::from_host(&queue, &[127.0f32, -64.0, 0.5, 0.25], [2, 2])?;
/// let weight = QuantizedWeight::quantize(&weight, Packing::new(8, 64)?)?;
/// let x = Tensor::from_host(&queue, &[1.0f32, 1.0], [1, 2])?;
/// assert_eq!(weight.dequantize()?.to_host::<f32>()?[..2], [127.0, -64.0]);
/// assert_eq!(quantized_linear(&x, &weight, None)?.to_host::<f32>()?[0], 63.0);
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QuantizedWeight {
    packed: Tensor,
    scale: Tensor,
    packing: Packing,
    in_features: usize,
}

impl QuantizedWeight {
    /// Rounds weights to the nearest multiples of their scale, which makes the largest of a row or group 127 or 7. On the host, so that
    /// the bits are the same on every device. The scale gets the dtype of the weight.
    ///
    /// # Errors
    /// For a tensor that is no matrix of floats, and for infinity and NaN.
    pub fn quantize(weight: &Tensor, packing: Packing) -> Result<QuantizedWeight> {
        let op = "quantize";
        weight.check_float(op)?;
        let [rows, columns] = weight.shape()[..] else {
            let why = "the weight must be a matrix of shape (out_features, in_features)";
            return Err(Error::shape(op, weight.shape(), why));
        };
        let (mut packed, mut scale) = (Vec::new(), Vec::new());
        let block = (BLOCK / columns.max(1)).max(1);
        for start in (0..rows).step_by(block) {
            let end = rows.min(start + block);
            let part = weight.slice(0, Slice::new(Some(start as isize), Some(end as isize), 1))?.to_f64_vec()?;
            for at in 0..end - start {
                let row = &part[at * columns..][..columns];
                if row.iter().any(|weight| !weight.is_finite()) {
                    let what = format!("row {} of the weight holds infinity or NaN, which has no scale", start + at);
                    return Err(Error::argument(op, what));
                }
                with_stored!(weight.dtype(), E => packing.pack::<E>(row, &mut packed, &mut scale));
            }
        }
        let queue = weight.queue();
        let packed = Tensor::from_host(queue, &packed, [rows, packing.words(columns)])?;
        let scale = Tensor::from_host(queue, &scale, [rows, packing.scales(columns)])?.cast(weight.dtype())?;
        Ok(QuantizedWeight { packed, scale, packing, in_features: columns })
    }

    /// A weight of what [`QuantizedWeight::packed`] and [`QuantizedWeight::scale`] gave.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not fit.
    pub fn from_parts(
        packed: &Tensor,
        scale: &Tensor,
        packing: Packing,
        in_features: usize,
    ) -> Result<QuantizedWeight> {
        if packed.dtype() != DType::I32 {
            let expected = "the packed weight as int32 words".to_owned();
            return Err(Error::Dtype { op: OP, expected, got: packed.dtype() });
        }
        scale.check_float(OP)?;
        packed.queue().check_same_device(OP, scale.queue())?;
        let rows = packed.shape().first().copied().unwrap_or(0);
        check_shape(OP, "the packed weight", packed, &[rows, packing.words(in_features)])?;
        check_shape(OP, "the scale", scale, &[rows, packing.scales(in_features)])?;
        Ok(QuantizedWeight { packed: packed.clone(), scale: scale.clone(), packing, in_features })
    }

    /// The packed values, int32 `(out_features, words)`.
    pub fn packed(&self) -> &Tensor {
        &self.packed
    }

    /// The scales, `(out_features, 1 or groups)`.
    pub fn scale(&self) -> &Tensor {
        &self.scale
    }

    fn out_features(&self) -> usize {
        self.packed.shape()[0]
    }

    /// The weight `(out_features, in_features)` in the dtype of the scale.
    pub fn dequantize(&self) -> Result<Tensor> {
        let out = Tensor::uninit(self.scale.queue(), [self.out_features(), self.in_features], self.scale.dtype())?;
        if out.size() > 0 {
            let (packed, scale) = (self.packed.contiguous()?, self.scale.contiguous()?);
            let args = Args::default().read(&packed).read(&scale).write(&out);
            let job = self.job("dequantize", args, &[&packed, &scale, &out], out.size() as f64);
            match out.queue() {
                Queue::Cpu(_) => cpu::dequantize(job, self.lengths(0))?,
                Queue::OpenCl(stream) => opencl::dequantize(stream, job, self.lengths(0))?,
            }
        }
        Ok(out)
    }

    fn lengths(&self, m: usize) -> Lengths {
        Lengths { m, n: self.out_features(), k: self.in_features, packing: self.packing }
    }

    fn job(&self, name: &'static str, args: Args, tensors: &[&Tensor], flops: f64) -> Job {
        let bytes = tensors.iter().map(|t| (t.size() * t.dtype().size()) as f64).sum();
        let (queue, dtype) = (self.scale.queue().clone(), self.scale.dtype());
        Job { name, queue, dtype, cost: Cost { flops, bytes }, args }
    }
}

/// Rows of x, features of the result and of x, and how the weight is stored.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    m: usize,
    n: usize,
    k: usize,
    packing: Packing,
}

/// `x` times the transposed weight plus `bias`, over the last axis. Sums are made in float32 (float64 for float64).
///
/// # Errors
/// For shapes that do not fit, and unless x, the weight's scale and the bias have one float dtype and device.
pub fn quantized_linear(x: &Tensor, weight: &QuantizedWeight, bias: Option<&Tensor>) -> Result<Tensor> {
    x.check_float(OP)?;
    let Lengths { n, k, .. } = weight.lengths(0);
    let Some((&columns, outer)) = x.shape().split_last() else {
        return Err(Error::shape(OP, x.shape(), format!("x must end with the {k} features of the weight")));
    };
    if columns != k {
        return Err(Error::shape(OP, x.shape(), format!("x must end with the {k} features of the weight")));
    }
    for tensor in [Some(&weight.scale), bias].into_iter().flatten() {
        x.queue().check_same_device(OP, tensor.queue())?;
        if tensor.dtype() != x.dtype() {
            return Err(Error::DtypeMismatch { op: OP, lhs: x.dtype(), rhs: tensor.dtype() });
        }
    }
    if let Some(bias) = bias {
        check_shape(OP, "the bias", bias, &[n])?;
    }
    let m = outer.iter().product();
    if m > FEW_ROWS || m * n * k == 0 {
        return linear(x, &weight.dequantize()?, bias);
    }
    let shape: Vec<usize> = outer.iter().copied().chain([n]).collect();
    let out = Tensor::uninit(x.queue(), shape, x.dtype())?;
    let (x, packed, scale) = (x.contiguous()?, weight.packed.contiguous()?, weight.scale.contiguous()?);
    let bias = bias.map(Tensor::contiguous).transpose()?;
    let args = Args::default().read(&x).read(&packed).read(&scale).maybe(bias.as_ref(), Access::Read).write(&out);
    let job = weight.job(OP, args, &[&x, &packed, &scale, &out], 2.0 * (m * n) as f64 * k as f64);
    match x.queue() {
        Queue::Cpu(_) => cpu::multiply(job, weight.lengths(m))?,
        Queue::OpenCl(stream) => opencl::multiply(stream, job, weight.lengths(m))?,
    }
    Ok(out)
}

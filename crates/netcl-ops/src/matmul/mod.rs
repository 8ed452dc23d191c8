//! Matrix products: batches, any strides, and an epilogue expression applied before a result is written.
//!
//! ```text
//!            k                 n                     n
//!       +---------+       +---------+          +-----------+
//!     m |    a    |  x  k |    b    |  ->    m | epilogue( |   for every index of the batch axes,
//!       +---------+       +---------+          |   a x b)  |   which broadcast as NumPy's do
//!                                              +-----------+
//! ```
//!
//! Operands are read where they lie: a transposed or sliced view is a pair of strides, a broadcast batch axis a stride of
//! zero. `cpu` is the native engine; `opencl` has a kernel for each [`Variant`], in `.cl` files of their own.

mod cpu;
pub(crate) mod fusable;
pub(crate) mod opencl;
mod problem;
pub(crate) mod prologue;

use std::sync::LazyLock;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::{KernelVariant, has_mma, has_wgmma};
use netcl_core::kernels::described::{CanFuse, RowNorm};
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::Cost;
use netcl_core::precision::{MatmulPrecision, matmul_precision};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use crate::prologue::CheckedPrologue;
pub(crate) use cpu::{Multiply, Operand, PANEL, Sum, View, dot, gemm, panel_product};
pub use netcl_core::kernels::described::{Epilogue, Prologue};
pub use opencl::build_matmul_kernel;
use problem::{Problem, overlap};
use prologue::can_fuse;

const OP: &str = "matmul";

/// An OpenCL kernel. The native CPU has an engine of its own and takes no notice of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// One work-item per element, no local memory: tiny products.
    Naive,
    /// Square tiles in local memory, one element per work-item: small products.
    Tiled,
    /// Tiles in local memory, a block of elements per work-item: large products on GPUs.
    RegisterTiled,
    /// Blocks of vectors per work-item, no barriers, operands packed into panels where that pays: CPU devices.
    Vectorized,
    /// Blocks of one operand per work-item, read once and in vectors: a few rows or columns on GPUs.
    Strip,
    /// Hopper's matrix units on 16-bit operands as they are; on float32 ones as tf32, or as bfloat16 at
    /// [`MatmulPrecision::Medium`].
    Wgmma,
    /// Hopper's matrix units on float32 operands in three bfloat16 parts: as accurate as float32.
    WgmmaSplit,
    /// The matrix units of NVIDIA's Ampere family and later on the same operands as [`Wgmma`](Variant::Wgmma).
    Mma,
    /// These units on float32 operands in three parts.
    MmaSplit,
}

impl Variant {
    /// The kernels that every device runs, in order of growing work per work-item.
    pub const PORTABLE: [Variant; 5] =
        [Variant::Naive, Variant::Tiled, Variant::RegisterTiled, Variant::Vectorized, Variant::Strip];

    /// The kernels that need matrix units.
    pub const MATRIX_UNITS: [Variant; 4] = [Variant::Wgmma, Variant::WgmmaSplit, Variant::Mma, Variant::MmaSplit];

    /// The name of the kernel, which its launches carry.
    pub const fn kernel_name(self) -> &'static str {
        match self {
            Variant::Naive => "matmul_naive",
            Variant::Tiled => "matmul_tiled",
            Variant::RegisterTiled => "matmul_register_tiled",
            Variant::Vectorized => "matmul_vectorized",
            Variant::Strip => "matmul_strip",
            Variant::Wgmma => "matmul_wgmma",
            Variant::WgmmaSplit => "matmul_wgmma_split",
            Variant::Mma => "matmul_mma",
            Variant::MmaSplit => "matmul_mma_split",
        }
    }

    /// What the selector calls it.
    fn of(selected: KernelVariant) -> Variant {
        match selected {
            KernelVariant::MatmulTiled => Variant::Tiled,
            KernelVariant::MatmulRegisterTiled => Variant::RegisterTiled,
            KernelVariant::MatmulVectorized => Variant::Vectorized,
            KernelVariant::MatmulStrip => Variant::Strip,
            KernelVariant::MatmulWgmma => Variant::Wgmma,
            KernelVariant::MatmulWgmmaSplit => Variant::WgmmaSplit,
            KernelVariant::MatmulMma => Variant::Mma,
            KernelVariant::MatmulMmaSplit => Variant::MmaSplit,
            _ => Variant::Naive,
        }
    }

    /// Whether a queue's device runs the kernel on operands of a dtype. The first question of this kind may build and run a
    /// small program.
    pub fn runs_on(self, queue: &Queue, dtype: DType) -> bool {
        let Queue::OpenCl(stream) = queue else { return false };
        match self {
            Variant::Wgmma | Variant::WgmmaSplit | Variant::Mma | Variant::MmaSplit => {
                let has = if matches!(self, Variant::Mma | Variant::MmaSplit) { has_mma } else { has_wgmma };
                opencl::Arithmetic::of(self, dtype, MatmulPrecision::Highest).is_some() && has(stream.device())
            }
            _ => dtype.is_float() && queue.check_dtype(OP, dtype).is_ok(),
        }
    }
}

/// How [`matmul_with`] multiplies.
///
/// ```
/// use netcl_core::{device::manager, kernels::expr::Graph, tensor::Tensor};
/// use netcl_ops::matmul::{MatmulOptions, Prologue, matmul_with};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[1.0f32, -2.0, 3.0, 4.0], [2, 2])?;
/// let scale = Tensor::from_host(&queue, &[10.0f32, 1.0], [2])?;
/// let g = Graph::new();
/// let scaled_relu = g.finish(&[g.input(0).relu() * g.input(1)]);
/// let prologue = Prologue { operand: 0, expr: &scaled_relu, inputs: vec![scale], scalars: vec![] };
/// let product = matmul_with(&a, &a, &MatmulOptions { prologue: Some(prologue), ..Default::default() })?;
/// assert_eq!(product.to_host::<f32>()?, [10.0, -20.0, 42.0, -44.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MatmulOptions<'e> {
    /// Swap the last two axes of the first operand (of a matrix; a vector stays one).
    pub transpose_a: bool,
    /// Swap the last two axes of the second operand.
    pub transpose_b: bool,
    /// Computes one of the operands while it is read (after it was transposed).
    pub prologue: Option<Prologue<'e>>,
    /// Applied to each element before it is written.
    pub epilogue: Option<Epilogue<'e>>,
    /// Where the result goes, instead of a new tensor. It may be an operand.
    pub out: Option<&'e Tensor>,
    /// The OpenCL kernel to use, instead of the one that the shape and the device suggest.
    pub variant: Option<Variant>,
    /// How exactly float32 operands are multiplied, instead of what
    /// [`set_matmul_precision`](netcl_core::precision::set_matmul_precision) says.
    pub precision: Option<MatmulPrecision>,
}

/// The matrix product by NumPy's rules: the last two axes are multiplied, axes before them broadcast, a vector on the left
/// is a row and on the right a column whose axis disappears again.
///
/// Operands share one float dtype, which is the result's. 16-bit floats are summed in float32.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let x = Tensor::from_host(&queue, &[10.0f32, 1.0], [2])?;
/// assert_eq!(netcl_ops::matmul(&a, &x)?.to_host::<f32>()?, [12.0, 34.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    matmul_with(a, b, &MatmulOptions::default())
}

/// [`matmul`] with transposes, an epilogue, an output or a chosen kernel.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, kernels::expr::Graph, tensor::Tensor};
/// use netcl_ops::matmul::{Epilogue, MatmulOptions, matmul_with};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[1.0f32, -2.0], [2, 1])?;
/// let g = Graph::new();
/// let scaled_relu = g.finish(&[(g.input(0) * g.scalar(0)).relu()]);
/// let epilogue = Epilogue { expr: &scaled_relu, inputs: vec![], scalars: vec![0.5.into()], dtype: Some(DType::F64) };
/// let options = MatmulOptions { transpose_b: true, epilogue: Some(epilogue), ..Default::default() };
/// let outer = matmul_with(&a, &a, &options)?;
/// assert_eq!(outer.to_host::<f64>()?, [0.5, 0.0, 0.0, 2.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn matmul_with(a: &Tensor, b: &Tensor, options: &MatmulOptions<'_>) -> Result<Tensor> {
    check_operands(a, b)?;
    let views = (transposed(a, options.transpose_a)?, transposed(b, options.transpose_b)?);
    let (a, b) = (views.0.as_ref().unwrap_or(a), views.1.as_ref().unwrap_or(b));
    let rule = ShapeRule::new(a, b)?;
    if let Some(epilogue) = &options.epilogue {
        crate::epilogue::check(OP, a, epilogue)?;
    }
    let dtype = options.epilogue.as_ref().and_then(|e| e.dtype).unwrap_or(a.dtype());
    let out = output(a, rule.out.clone(), dtype, options.out)?;
    if out.size() == 0 {
        return Ok(out);
    }
    let inputs = epilogue_inputs(options.epilogue.as_ref(), &out)?;
    if rule.k == 0 {
        empty_sum(a, &out, inputs, options.epilogue.as_ref())?;
        return Ok(out);
    }
    if options.out.is_none()
        && options.variant.is_none()
        && options.prologue.is_none()
        && fusable::offer(a, b, options, &out)?
    {
        return Ok(out);
    }
    let precision = options.precision.unwrap_or_else(matmul_precision);
    let prologue = match &options.prologue {
        Some(Prologue { operand, expr, inputs, scalars }) => {
            let Some(&computed) = [a, b].get(*operand) else {
                return Err(Error::argument(OP, format!("a product has operands 0 and 1, no operand {operand}")));
            };
            Some((*operand == 0, CheckedPrologue::new(OP, computed, expr, inputs, scalars)?))
        }
        None => None,
    };
    if let Some((first, prologue)) = &prologue {
        let first = *first;
        let apart = !prologue.tensors().any(|t| overlap(t, &out));
        let fused = apart && can_fuse([a, b, &out], precision, options.variant, first, prologue)? == CanFuse::Yes;
        if !fused {
            let operand = prologue.computed()?;
            let (a, b) = if first { (&operand, b) } else { (a, &operand) };
            let MatmulOptions { epilogue, variant, .. } = options.clone();
            let plain =
                MatmulOptions { epilogue, variant, out: Some(&out), precision: Some(precision), ..Default::default() };
            return matmul_with(a, b, &plain);
        }
    }
    // An operand that the result would overwrite is moved out of the way.
    let copies = (apart(a, &out)?, apart(b, &out)?);
    let (a, b) = (copies.0.as_ref().unwrap_or(a), copies.1.as_ref().unwrap_or(b));
    let prologue = prologue.as_ref().map(|(first, prologue)| (*first, prologue));
    let problem = Problem::new(&rule, a, b, &out, &inputs, options.epilogue.as_ref(), prologue)?;
    match out.queue() {
        Queue::Cpu(_) => cpu::run(problem)?,
        queue @ Queue::OpenCl(stream) => {
            let (variant, config) = match options.variant {
                Some(forced) => (check_variant(forced, queue, a.dtype())?, None),
                None => opencl::variant(&problem, precision)?,
            };
            let config = config.as_ref();
            // A product by parts may be computed a second time, when what it overwrites is no longer there to be read.
            let by_parts = matches!(variant, Variant::WgmmaSplit | Variant::MmaSplit);
            if by_parts && inputs.iter().any(|input| overlap(input, &out)) {
                let inputs = inputs.iter().map(Tensor::duplicate).collect::<Result<Vec<Tensor>>>()?;
                let problem = Problem::new(&rule, a, b, &out, &inputs, options.epilogue.as_ref(), prologue)?;
                opencl::run(stream, problem, variant, precision, config)?;
            } else {
                opencl::run(stream, problem, variant, precision, config)?;
            }
        }
    }
    Ok(out)
}

/// [`matmul_with`] of an operand whose rows are normalised while they are read, if that gives the same bits as a launch of the
/// normalisation before it.
fn normed(
    a: &Tensor,
    b: &Tensor,
    norm: &RowNorm,
    epilogue: Option<&Epilogue<'_>>,
    precision: MatmulPrecision,
) -> Result<Option<Tensor>> {
    let Queue::OpenCl(stream) = a.queue() else { return Ok(None) };
    let rule = ShapeRule::new(a, b)?;
    let dtype = epilogue.and_then(|epilogue| epilogue.dtype).unwrap_or(a.dtype());
    let out = Tensor::uninit(a.queue(), rule.out.clone(), dtype)?;
    if out.size() == 0 || rule.k == 0 {
        return Ok(None);
    }
    let inputs = epilogue_inputs(epilogue, &out)?;
    let problem = Problem::new(&rule, a, b, &out, &inputs, epilogue, None)?;
    Ok(opencl::run_normed(stream, &problem, precision, norm)?.then_some(out))
}

/// `x` times the transposed `weight` (of shape `[out_features, in_features]`) plus `bias`, in one launch.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 2])?;
/// let weight = Tensor::from_host(&queue, &[1.0f32, 1.0, 0.0, 3.0, 2.0, 2.0], [3, 2])?;
/// let bias = Tensor::from_host(&queue, &[0.5f32, 0.0, -1.0], [3])?;
/// assert_eq!(netcl_ops::linear(&x, &weight, Some(&bias))?.to_host::<f32>()?, [3.5, 6.0, 5.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    static ADD: LazyLock<Expr> = LazyLock::new(|| {
        let g = Graph::new();
        g.finish(&[g.input(0) + g.input(1)])
    });
    if weight.ndim() != 2 {
        let why = "the weight must be a matrix of shape (out_features, in_features)".to_owned();
        return Err(Error::Shape { op: "linear", shape: weight.shape().clone(), why });
    }
    let epilogue = match bias {
        Some(bias) if bias.shape() != &Shape::from([weight.shape()[0]]) => {
            let why = format!("the bias must have one element for each of the {} output features", weight.shape()[0]);
            return Err(Error::Shape { op: "linear", shape: bias.shape().clone(), why });
        }
        Some(bias) => Some(Epilogue { expr: &ADD, inputs: vec![bias.clone()], scalars: vec![], dtype: None }),
        None => None,
    };
    matmul_with(x, weight, &MatmulOptions { transpose_b: true, epilogue, ..Default::default() })
}

/// Adds a vector along the channel axis: the last axis of vectors, matrices and sequences, axis 1 of images (4 or 5 axes, NCHW).
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let bias = Tensor::from_host(&queue, &[1.0f32, 2.0], [2])?;
/// let rows = Tensor::from_shape(&queue, [2, 2], DType::F32)?;
/// assert_eq!(netcl_ops::bias_add(&rows, &bias)?.to_host::<f32>()?, [1.0, 2.0, 1.0, 2.0]);
/// let image = Tensor::from_shape(&queue, [1, 2, 1, 2], DType::F32)?;
/// assert_eq!(netcl_ops::bias_add(&image, &bias)?.to_host::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn bias_add(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let axis = if matches!(x.ndim(), 4 | 5) { 1 } else { x.ndim().saturating_sub(1) };
    let channels = x.shape().get(axis).copied();
    if bias.ndim() != 1 || channels != Some(bias.size()) {
        let why = format!("it must be a vector as long as axis {axis} of a tensor of shape {}", x.shape());
        return Err(Error::Shape { op: "bias_add", shape: bias.shape().clone(), why });
    }
    let mut shape = vec![1; x.ndim()];
    shape[axis] = bias.size();
    let column = netcl_core::tensor::reshape(bias, shape.as_slice())?;
    crate::elementwise::add(x, &column)
}

/// The lengths of a product, and the shape of its result.
struct ShapeRule {
    m: usize,
    n: usize,
    k: usize,
    /// The broadcast batch axes.
    batch: Shape,
    out: Shape,
    /// Whether the row and the column axis appear in the result: not those of vectors.
    rows: bool,
    cols: bool,
}

impl ShapeRule {
    fn new(a: &Tensor, b: &Tensor) -> Result<Self> {
        let (m, ka) = match **a.shape() {
            [k] => (1, k),
            [.., m, k] => (m, k),
            [] => return Err(scalar_operand(a)),
        };
        let (kb, n) = match **b.shape() {
            [k] => (k, 1),
            [.., k, n] => (k, n),
            [] => return Err(scalar_operand(b)),
        };
        if ka != kb {
            let why = format!(
                "the operands have shapes {} and {}; the inner lengths {ka} and {kb} must be equal",
                a.shape(),
                b.shape()
            );
            return Err(Error::Shape { op: OP, shape: a.shape().clone(), why });
        }
        let batch = batch_axes(a).broadcast(OP, &batch_axes(b))?;
        let (rows, cols) = (a.ndim() > 1, b.ndim() > 1);
        let out = batch.iter().copied().chain(rows.then_some(m)).chain(cols.then_some(n)).collect();
        Ok(ShapeRule { m, n, k: ka, batch, out, rows, cols })
    }

    fn cost(&self, operands: &[&Tensor]) -> Cost {
        let bytes: usize = operands.iter().map(|t| t.size() * t.dtype().size()).sum();
        Cost { flops: 2.0 * self.batch.size() as f64 * (self.m * self.n) as f64 * self.k as f64, bytes: bytes as f64 }
    }
}

fn scalar_operand(tensor: &Tensor) -> Error {
    let why = "operands need at least one axis; multiply by a number with mul".to_owned();
    Error::Shape { op: OP, shape: tensor.shape().clone(), why }
}

fn batch_axes(tensor: &Tensor) -> Shape {
    tensor.shape()[..tensor.ndim().saturating_sub(2)].into()
}

/// A view with the last two axes swapped, if that is asked for and they exist.
fn transposed(tensor: &Tensor, asked: bool) -> Result<Option<Tensor>> {
    let n = tensor.ndim() as isize;
    if !asked || n < 2 {
        return Ok(None);
    }
    let axes: Vec<isize> = (0..n - 2).chain([n - 1, n - 2]).collect();
    tensor.permute(&axes).map(Some)
}

/// A copy of an operand that shares elements with the result.
fn apart(operand: &Tensor, out: &Tensor) -> Result<Option<Tensor>> {
    if overlap(operand, out) { operand.duplicate().map(Some) } else { Ok(None) }
}

fn check_operands(a: &Tensor, b: &Tensor) -> Result<()> {
    a.check_float(OP)?;
    b.check_float(OP)?;
    if a.dtype() != b.dtype() {
        return Err(Error::DtypeMismatch { op: OP, lhs: a.dtype(), rhs: b.dtype() });
    }
    a.queue().check_same_device(OP, b.queue())
}

fn check_variant(variant: Variant, queue: &Queue, dtype: DType) -> Result<Variant> {
    if variant.runs_on(queue, dtype) {
        return Ok(variant);
    }
    let what = format!(
        "the kernel {} does not run here on operands of {dtype}; ask Variant::runs_on, or leave the kernel to netcl",
        variant.kernel_name()
    );
    Err(Error::argument(OP, what))
}

/// The given output after checking it, or a new one.
fn output(a: &Tensor, shape: Shape, dtype: DType, out: Option<&Tensor>) -> Result<Tensor> {
    let Some(out) = out else { return Tensor::uninit(a.queue(), shape, dtype) };
    a.queue().check_same_device(OP, out.queue())?;
    if out.dtype() != dtype {
        return Err(Error::Dtype { op: OP, expected: format!("out to be a tensor of {dtype}"), got: out.dtype() });
    }
    let wrong = |why: String| Error::Shape { op: OP, shape: out.shape().clone(), why };
    if out.shape() != &shape {
        return Err(wrong(format!("the result has shape {shape}, so out must have it too")));
    }
    if out.layout().overlaps_itself() {
        return Err(wrong("elements of out share memory, which cannot be written".to_owned()));
    }
    Ok(out.clone())
}

/// The epilogue's tensors, expanded to the result. One that the result would overwrite before it is read is copied.
fn epilogue_inputs(epilogue: Option<&Epilogue<'_>>, out: &Tensor) -> Result<Vec<Tensor>> {
    let Some(epilogue) = epilogue else { return Ok(Vec::new()) };
    let place = |input: &Tensor| -> Result<Tensor> {
        let input = input.expand(out.shape())?;
        // The very same elements are read before they are written.
        let in_place = (input.layout(), input.dtype()) == (out.layout(), out.dtype());
        if overlap(&input, out) && !in_place { input.duplicate() } else { Ok(input) }
    };
    epilogue.inputs.iter().map(place).collect()
}

/// A product over no terms: zeros, then the epilogue.
fn empty_sum(a: &Tensor, out: &Tensor, inputs: Vec<Tensor>, epilogue: Option<&Epilogue<'_>>) -> Result<()> {
    let Some(epilogue) = epilogue else { return out.fill(0.0) };
    let zero = Tensor::full(a.queue(), (), a.dtype(), 0.0)?.expand(out.shape())?;
    let operands: Vec<&Tensor> = std::iter::once(&zero).chain(&inputs).collect();
    // An epilogue that does not look at the sum at all may have no inputs.
    let operands = &operands[..epilogue.expr.inputs()];
    Elementwise::new(OP, epilogue.expr.clone()).run(operands, &epilogue.scalars, &[out])
}

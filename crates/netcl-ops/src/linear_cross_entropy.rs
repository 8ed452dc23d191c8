//! The cross-entropy of a linear layer's results, piece by piece: logits of a vocabulary are the largest tensor of a language
//! model, and only some rows of them are ever in memory.
//!
//! ```text
//!    x                     weight                 logits of some rows, in memory that every piece uses again
//!   +-------+   rows      +--------+             +--------------------+ losses     gradient of x    of weight
//!   |-------|---------- x |        |  T  ->      |                    |  ->  its gradient x weight, its gradient T x rows, added up
//!   +-------+             +--------+             +--------------------+ in their place
//! ```
//!
//! Gradients are made while the logits are there, so that products are computed once; they are those of the sum of the losses.

use std::sync::LazyLock;

use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

pub use crate::cross_entropy::rows::RowRule;
use crate::cross_entropy::rows::cross_entropy_rows;
use crate::matmul::{Epilogue, MatmulOptions, matmul_with};

const OP: &str = "linear_cross_entropy";
/// Logits that are in memory at once, unless the caller says otherwise: each piece reads and writes the gradient of the weight.
const BYTES: usize = 256 << 20;
/// Rows of a piece are a multiple of this, the tiles of products, where there are as many.
const TILE: usize = 128;
/// Rows of logits begin at multiples of so many elements, which matrix units and vectors ask for.
const ALIGN: usize = 64;

/// What [`linear_cross_entropy`] is computed from.
#[derive(Clone, Copy)]
pub struct LinearLoss<'t> {
    /// `(rows, features)`.
    pub x: &'t Tensor,
    /// `(classes, features)`, of the dtype of `x`.
    pub weight: &'t Tensor,
    /// `(classes,)`, of any float dtype.
    pub bias: Option<&'t Tensor>,
    /// `(rows,)`.
    pub labels: &'t IndexTensor,
    /// How rows are compared with their labels.
    pub rule: RowRule,
    /// How many rows of logits are in memory at once; `None` for as many as fit 256 MiB.
    pub chunk: Option<usize>,
}

/// What [`linear_cross_entropy`] gives.
pub struct LinearLosses {
    /// The loss of each row, in the type sums are carried in; 0 for a row that is ignored.
    pub losses: Tensor,
    /// The gradient for `x`, in its dtype.
    pub x: Option<Tensor>,
    /// The gradient for the weight, in the type sums are carried in.
    pub weight: Option<Tensor>,
    /// The gradient for the bias, in the type sums are carried in.
    pub bias: Option<Tensor>,
}

static SUM: LazyLock<Expr> = LazyLock::new(|| {
    let g = Graph::new();
    g.finish(&[g.input(0)])
});
static ADD: LazyLock<Expr> = LazyLock::new(|| {
    let g = Graph::new();
    g.finish(&[g.input(0) + g.input(1)])
});

/// The cross-entropy of each row of `x` times the transposed weight, plus the bias, and the wanted gradients (for `x`, weight and
/// bias) of the sum of these losses, each times its element of `scales`.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
/// use netcl_ops::linear_cross_entropy::{LinearLoss, RowRule, linear_cross_entropy};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 0.0], [2, 1])?;
/// let weight = Tensor::from_host(&queue, &[0.0f32, 0.0], [2, 1])?;
/// let labels = IndexTensor::from_host(&queue, &[1i64, 0], [2])?;
/// let given = LinearLoss { x: &x, weight: &weight, bias: None, labels: &labels, rule: RowRule::default(), chunk: Some(1) };
/// let made = linear_cross_entropy(&given, [false, true, false], None)?;
/// assert!((made.losses.to_host::<f32>()?[0] - 2f32.ln()).abs() < 1e-6);
/// assert_eq!(made.weight.unwrap().to_host::<f32>()?, [0.5, -0.5]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Errors
/// For shapes and dtypes that do not fit, and no memory.
pub fn linear_cross_entropy(
    given: &LinearLoss<'_>,
    wanted: [bool; 3],
    scales: Option<&Tensor>,
) -> Result<LinearLosses> {
    let &LinearLoss { x, weight, bias, labels, rule, chunk } = given;
    let (rows, classes) = given.check()?;
    let (queue, dtype) = (x.queue(), x.dtype());
    let wide = dtype.accumulator();
    // Every element is written by the first piece, if there is one.
    let make = |wanted: bool, like: &Tensor, dtype| {
        let made = || match rows {
            0 => Tensor::full(queue, like.shape().clone(), dtype, 0.0),
            _ => Tensor::uninit(queue, like.shape().clone(), dtype),
        };
        wanted.then(made).transpose()
    };
    let backward = wanted.contains(&true);
    let made = LinearLosses {
        losses: Tensor::uninit(queue, [rows], wide)?,
        x: make(wanted[0], x, dtype)?,
        weight: make(wanted[1], weight, wide)?,
        bias: bias.map(|bias| make(wanted[2], bias, wide)).transpose()?.flatten(),
    };
    if rows == 0 {
        return Ok(made);
    }
    let step = classes.next_multiple_of(ALIGN);
    let most = chunk.unwrap_or((BYTES / (step * dtype.size())).max(1)).clamp(1, rows);
    // Pieces of about one size.
    let per = rows.div_ceil(rows.div_ceil(most));
    let per = if chunk.is_none() && per > TILE { per.next_multiple_of(TILE).min(rows) } else { per };
    let memory = Tensor::uninit(queue, [per, step], dtype)?.slice(1, range(0, classes))?;
    let ones = made.bias.is_some().then(|| Tensor::full(queue, [per], dtype, 1.0)).transpose()?;
    for start in (0..rows).step_by(per) {
        let end = (start + per).min(rows);
        let part = |t: &Tensor| t.slice(0, range(start, end));
        let (x, logits) = (part(x)?, memory.slice(0, range(0, end - start))?);
        let epilogue =
            bias.map(|bias| Epilogue { expr: &ADD, inputs: vec![bias.clone()], scalars: vec![], dtype: None });
        matmul_with(
            &x,
            weight,
            &MatmulOptions { transpose_b: true, epilogue, out: Some(&logits), ..Default::default() },
        )?;
        let labels = IndexTensor::from_tensor(part(labels.tensor())?)?;
        let scales = scales.map(part).transpose()?;
        cross_entropy_rows(&logits, &labels, rule, scales.as_ref(), &part(&made.losses)?, backward)?;
        if let Some(of_x) = &made.x {
            matmul_with(&logits, weight, &MatmulOptions { out: Some(&part(of_x)?), ..Default::default() })?;
        }
        if let Some(of_weight) = &made.weight {
            added(&logits, true, &x, of_weight, start > 0)?;
        }
        if let (Some(of_bias), Some(ones)) = (&made.bias, &ones) {
            added(&ones.slice(0, range(0, end - start))?, false, &logits, of_bias, start > 0)?;
        }
    }
    Ok(made)
}

/// A product, added to what is there from the second piece on.
fn added(a: &Tensor, transpose_a: bool, b: &Tensor, out: &Tensor, more: bool) -> Result<()> {
    let (expr, inputs) = if more { (&*ADD, vec![out.clone()]) } else { (&*SUM, vec![]) };
    let epilogue = Some(Epilogue { expr, inputs, scalars: vec![], dtype: Some(out.dtype()) });
    matmul_with(a, b, &MatmulOptions { transpose_a, epilogue, out: Some(out), ..Default::default() })?;
    Ok(())
}

fn range(start: usize, end: usize) -> Slice {
    Slice::new(Some(start as isize), Some(end as isize), 1)
}

impl LinearLoss<'_> {
    /// The lengths, if everything fits.
    fn check(&self) -> Result<(usize, usize)> {
        let LinearLoss { x, weight, bias, labels, chunk, .. } = self;
        x.check_float(OP)?;
        let (&[rows, features], &[classes, others]) = (&x.shape()[..], &weight.shape()[..]) else {
            let why =
                format!("x is (rows, features) and weight (classes, features); weight has shape {}", weight.shape());
            return Err(Error::Shape { op: OP, shape: x.shape().clone(), why });
        };
        if features != others || classes == 0 {
            let why =
                format!("weight must be (classes, {features}) with at least one class beside x of shape {}", x.shape());
            return Err(Error::Shape { op: OP, shape: weight.shape().clone(), why });
        }
        if x.dtype() != weight.dtype() {
            return Err(Error::DtypeMismatch { op: OP, lhs: x.dtype(), rhs: weight.dtype() });
        }
        if let Some(bias) = bias.filter(|bias| bias.shape()[..] != [classes]) {
            let why = format!("the bias must have one element for each of {classes} classes");
            return Err(Error::Shape { op: OP, shape: bias.shape().clone(), why });
        }
        if labels.tensor().shape()[..] != [rows] {
            let why = format!("there must be one label for each of {rows} rows");
            return Err(Error::Shape { op: OP, shape: labels.tensor().shape().clone(), why });
        }
        if *chunk == Some(0) {
            return Err(Error::argument(OP, "chunk is 0; give the rows of logits to keep in memory, 1 or more"));
        }
        Ok((rows, classes))
    }
}

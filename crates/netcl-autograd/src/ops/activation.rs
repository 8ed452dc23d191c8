//! Activations that are more than one expression of one element: gates and random slopes.

use std::sync::{Arc, LazyLock};

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Graph;
use netcl_core::random::Generator;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor as Raw;
use smallvec::smallvec;

use super::elementwise::{ExprOp, cast, leaky_relu, mul, prelu, sigmoid};
use super::layout::{cat, slice};
use super::random::uniform;
use crate::error::{Error, Result};
use crate::graph::{Save, no_grad, record};
use crate::tensor::Tensor;

/// The first half of an axis times the sigmoid of the second.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::activation::glu};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[4.0f32, 6.0, 0.0, 0.0], [4])?;
/// assert_eq!(glu(&x, 0)?.to_host::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn glu(x: &Tensor, axis: isize) -> Result<Tensor> {
    /// The gate, and its gradient for the second half. Inputs: the halves, the upstream gradient.
    static OPS: LazyLock<[Arc<ExprOp>; 2]> = LazyLock::new(|| {
        let g = Graph::new();
        let (value, open) = (g.input(0), g.input(1).sigmoid());
        let gate = ExprOp::new("glu", g.finish_with(&[value * open], 2, 0));
        [gate, ExprOp::new("glu_backward", g.finish(&[g.input(2) * value * open * (1.0 - open)]))]
    });
    let op = "glu";
    let length = x.shape()[x.shape().axis(op, axis)?];
    if !length.is_multiple_of(2) {
        return Err(Error::shape(
            op,
            x.shape(),
            format!("axis {axis} has {length} elements, which have no two equal halves"),
        ));
    }
    let halves = move |x: &Tensor| -> Result<[Tensor; 2]> {
        let middle = Some((length / 2) as isize);
        Ok([slice(x, axis, Slice::new(None, middle, 1))?, slice(x, axis, Slice::new(middle, None, 1))?])
    };
    let output: Raw = {
        let _scope = no_grad();
        let [value, gate] = halves(x)?;
        OPS[0].apply(&[&value, &gate], &[])?.raw().clone()
    };
    // One rule for both halves: the gradients of two slices would each be a tensor of zeros to add.
    record(op, &[x], output, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let [value, gate] = halves(&context.input(0)?)?;
            let of_value = mul(upstream, &sigmoid(&gate)?)?;
            let of_gate = OPS[1].apply(&[&value, &gate, upstream], &[])?;
            Ok(smallvec![Some(cat(&[&of_value, &of_gate], axis)?)])
        })
    })
}

/// `x` above 0, elsewhere `x` times a slope: in training a random one from `[lower, upper)` for each element, else their mean.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::activation::rrelu};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[2.0f32, -8.0], [2])?;
/// assert_eq!(rrelu(&x, 0.25, 0.75, false, None)?.to_host::<f32>()?, [2.0, -4.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn rrelu(x: &Tensor, lower: f64, upper: f64, training: bool, generator: Option<&mut Generator>) -> Result<Tensor> {
    if !(lower.is_finite() && upper.is_finite() && lower <= upper) {
        return Err(Error::argument(
            "rrelu",
            format!("slopes from {lower} to {upper} are no range; give lower <= upper"),
        ));
    }
    if !training {
        return leaky_relu(x, (lower + upper) / 2.0);
    }
    // float32 for every dtype: the same slopes for the same generator.
    let slopes = uniform(x.queue(), x.shape().clone(), DType::F32, lower, upper, generator)?;
    prelu(x, &cast(&slopes, x.dtype())?)
}

//! Gradients held against finite differences: public, so that custom ops can be checked like our own.

use netcl_core::dtype::DType;
use netcl_core::shape::Shape;

use crate::error::{Error, Result};
use crate::graph::{BackwardOptions, grad};
use crate::ops::elementwise::mul;
use crate::ops::reduce::sum;
use crate::tensor::Tensor;

/// Step and tolerances of [`gradcheck`].
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// The step of the central difference.
    pub eps: f64,
    /// Allowed absolute difference.
    pub atol: f64,
    /// Allowed relative difference.
    pub rtol: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Tolerance { eps: 1e-6, atol: 1e-5, rtol: 1e-3 }
    }
}

/// Compares the gradients of a function of float64 tensors with central differences, for every element of every input that
/// requires a gradient. The error names the first element that differs.
///
/// ```
/// use netcl_autograd::{Tensor, gradcheck::{Tolerance, gradcheck}, manager, ops::elementwise::exp};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[0.1f64, -0.7], [2])?.with_grad();
/// gradcheck(|inputs| exp(inputs[0]), &[&x], Tolerance::default())?;
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub fn gradcheck(
    function: impl Fn(&[&Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    tolerance: Tolerance,
) -> Result<()> {
    let output = function(inputs)?;
    // A fixed, uneven weighting makes one number of the output that depends on every element differently.
    let weights: Vec<f64> = (0..output.size()).map(|i| 0.5 + (i as f64 * 0.7).sin()).collect();
    let weights = Tensor::from_host(output.queue(), &weights, output.shape().clone())?;
    let score = |inputs: &[&Tensor]| -> Result<Tensor> { sum(&mul(&function(inputs)?, &weights)?, (), false) };
    let wanted: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i].requires_grad()).collect();
    let chosen: Vec<&Tensor> = wanted.iter().map(|&i| inputs[i]).collect();
    let analytic = score(inputs)?;
    // A constant depends on nothing: its gradients are zero.
    let gradients = match analytic.requires_grad() || analytic.unrecorded().is_some() {
        true => grad(&[&analytic], &chosen, &[], BackwardOptions::default())?,
        false => vec![None; chosen.len()],
    };
    for (&which, gradient) in wanted.iter().zip(gradients) {
        let input = inputs[which];
        if input.dtype() != DType::F64 {
            let what = format!("input {which} is {}; differences need float64", input.dtype());
            return Err(Error::NoGradient { op: "gradcheck", what });
        }
        let analytic = match gradient {
            Some(gradient) => gradient.to_f64_vec()?,
            None => vec![0.0; input.size()],
        };
        let values = input.to_f64_vec()?;
        for at in 0..values.len() {
            let shifted = |by: f64| -> Result<f64> {
                let mut moved = values.clone();
                moved[at] += by;
                let replaced = Tensor::from_host(input.queue(), &moved, Shape::from(input.shape()))?;
                let mut all = inputs.to_vec();
                all[which] = &replaced;
                Ok(score(&all)?.item()?)
            };
            let numeric = (shifted(tolerance.eps)? - shifted(-tolerance.eps)?) / (2.0 * tolerance.eps);
            let difference = (analytic[at] - numeric).abs();
            if difference.is_nan() || difference > tolerance.atol + tolerance.rtol * numeric.abs() {
                let what = format!(
                    "the gradient of element {at} of input {which} is {:e}, finite differences give {numeric:e}",
                    analytic[at]
                );
                return Err(Error::NoGradient { op: "gradcheck", what });
            }
        }
    }
    Ok(())
}

/// [`gradcheck`] of the gradient itself: checks second derivatives.
pub fn gradgradcheck(
    function: impl Fn(&[&Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    tolerance: Tolerance,
) -> Result<()> {
    let first = |inputs: &[&Tensor]| -> Result<Tensor> {
        // Fresh leaves stand for replaced inputs, which carry no flag of their own.
        let leaves: Vec<Tensor> =
            inputs.iter().map(|t| if t.requires_grad() { (*t).clone() } else { t.detach().with_grad() }).collect();
        let refs: Vec<&Tensor> = leaves.iter().collect();
        let output = function(&refs)?;
        let weights: Vec<f64> = (0..output.size()).map(|i| 1.0 - (i as f64 * 1.3).cos() * 0.6).collect();
        let weights = Tensor::from_host(output.queue(), &weights, output.shape().clone())?;
        let score = sum(&mul(&output, &weights)?, (), false)?;
        let options = BackwardOptions { create_graph: true, retain_graph: true };
        let gradients = match score.requires_grad() {
            true => grad(&[&score], &refs, &[], options)?,
            false => Vec::new(),
        };
        let mut total: Option<Tensor> = None;
        for (i, gradient) in gradients.into_iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let part = mul(&sum(&mul(&gradient, &gradient)?, (), false)?, 0.5 + i as f64)?;
            total = Some(match total {
                Some(before) => crate::ops::elementwise::add(&before, &part)?,
                None => part,
            });
        }
        match total {
            Some(total) => Ok(total),
            None => Ok(Tensor::from_shape(output.queue(), (), DType::F64)?),
        }
    };
    gradcheck(first, inputs, tolerance)
}

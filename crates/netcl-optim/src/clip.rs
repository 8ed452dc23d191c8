//! Keeping gradients within bounds.

use std::sync::{Arc, LazyLock};

use netcl_autograd::{Error, Result, Tensor};
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::many::{
    CONTROLS, Many, Operands, Segment, Segments, Target, Verdict, sum_of_squares, verdict,
};
use netcl_core::shape::Layout;
use netcl_core::tensor::Tensor as Raw;

use crate::settings::not_negative;

/// Scales the gradients of all parameters down so that their norm together is at most `max_norm`. Gives the norm
/// they had; zero if there are none.
///
/// Gradients are changed in place, and replaced where somebody else holds their memory. As in PyTorch the factor is `max_norm / (norm + 1e-6)`, at most one. The norm is read by the host, which waits for it:
/// [`clip_grad_norm_device`] does not.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::clip_grad_norm;
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[0.0f32, 0.0], [2])?.with_grad();
/// p.set_grad(Some(Tensor::from_host(&queue, &[3.0f32, 4.0], [2])?));
/// assert_eq!(clip_grad_norm([&p], 1.0)?, 5.0);
/// assert!((p.grad().unwrap().to_f64_vec()?[0] - 0.6).abs() < 1e-6);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
///
/// # Errors
/// For a bound that is negative or not a number, and for parameters on several devices.
pub fn clip_grad_norm<'t>(params: impl IntoIterator<Item = &'t Tensor>, max_norm: f64) -> Result<f64> {
    match clip("clip_grad_norm", params, max_norm)? {
        Some(norm) => Ok(norm.item()?),
        None => Ok(0.0),
    }
}

/// [`clip_grad_norm`] without a word to the host: the norm stays on the device, as a tensor without axes. `None` if no
/// parameter has a gradient.
///
/// Two launches and one for each dtype to add up, and one for each dtype to scale: three for most models.
///
/// # Errors
/// As [`clip_grad_norm`].
pub fn clip_grad_norm_device<'t>(
    params: impl IntoIterator<Item = &'t Tensor>,
    max_norm: f64,
) -> Result<Option<Tensor>> {
    Ok(clip("clip_grad_norm_device", params, max_norm)?.map(Tensor::from))
}

/// Limits every element of the gradients of all parameters to `[-limit, limit]`, in one launch per dtype; in place as
/// in [`clip_grad_norm`].
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::clip_grad_value;
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[0.0f32; 3], [3])?.with_grad();
/// p.set_grad(Some(Tensor::from_host(&queue, &[3.0f32, -4.0, 0.5], [3])?));
/// clip_grad_value([&p], 1.0)?;
/// assert_eq!(p.grad().unwrap().to_f64_vec()?, [1.0, -1.0, 0.5]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
///
/// # Errors
/// For a limit that is negative or not a number.
pub fn clip_grad_value<'t>(params: impl IntoIterator<Item = &'t Tensor>, limit: f64) -> Result<()> {
    static CLAMP: LazyLock<Arc<Many>> = LazyLock::new(|| {
        let g = Graph::new();
        let clamped = g.input(0).max(-g.scalar(0)).min(g.scalar(0));
        Many::new("clip_grad_value", g.finish(&[clamped]), 1, 0, vec![Target::List(0)])
    });
    not_negative("clip_grad_value", "limit", limit)?;
    for list in lists(params)? {
        let sets = [vec![Number::Value(limit)]];
        CLAMP.run(&segments(&list), &Operands { lists: &[&list], flat: None, sets: &sets })?;
    }
    Ok(())
}

fn clip<'t>(op: &'static str, params: impl IntoIterator<Item = &'t Tensor>, max_norm: f64) -> Result<Option<Raw>> {
    if max_norm.is_nan() || max_norm < 0.0 {
        let what = format!("max_norm is {max_norm}; use a number that is not negative");
        return Err(Error::argument(op, what));
    }
    let controls = rescale(op, params, None, Some(max_norm))?;
    controls.map(|controls| control(&controls, CONTROLS - 1)).transpose()
}

/// What [`unscale_grads`] found.
#[derive(Clone, Debug)]
pub struct Unscaled {
    /// The norm of all gradients after unscaling, without axes.
    pub norm: Tensor,
    /// One float32 number: 1 if the norm is not finite, else 0. What [`StepOptions::found_inf`](crate::StepOptions) takes.
    pub found_inf: Tensor,
}

/// Divides the gradients of all parameters by a float32 number on their device, in place as in [`clip_grad_norm`], and looks
/// whether they are finite, without a word to the host. `None` if no parameter has a gradient.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::unscale_grads;
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[0.0f32, 0.0], [2])?.with_grad();
/// p.set_grad(Some(Tensor::from_host(&queue, &[48.0f32, 64.0], [2])?));
/// let found = unscale_grads([&p], &Tensor::from_host(&queue, &[16.0f32], ())?)?.unwrap();
/// assert_eq!(p.grad().unwrap().to_host::<f32>()?, [3.0, 4.0]);
/// assert_eq!((found.norm.item()?, found.found_inf.item()?), (5.0, 0.0));
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
///
/// # Errors
/// For a scale that is no single float32 number, and for parameters on several devices.
pub fn unscale_grads<'t>(params: impl IntoIterator<Item = &'t Tensor>, scale: &Tensor) -> Result<Option<Unscaled>> {
    let Some(controls) = rescale("unscale_grads", params, Some(scale.raw()), None)? else { return Ok(None) };
    let (norm, flag) = (control(&controls, CONTROLS - 1)?, control(&controls, 1)?);
    Ok(Some(Unscaled { norm: norm.into(), found_inf: flag.cast(DType::F32)?.into() }))
}

/// One of the controls, without axes.
fn control(controls: &Raw, at: usize) -> Result<Raw> {
    Ok(controls.with_layout(Layout::contiguous(().into()).shifted(at))?)
}

/// Divides all gradients by a scale and clips them to a norm; gives the controls of what was decided.
fn rescale<'t>(
    op: &'static str,
    params: impl IntoIterator<Item = &'t Tensor>,
    scale: Option<&Raw>,
    max_norm: Option<f64>,
) -> Result<Option<Raw>> {
    static SCALE: LazyLock<Arc<Many>> = LazyLock::new(|| {
        let g = Graph::new();
        Many::new("scale_grads", g.finish(&[g.input(0) * g.input(1)]), 1, 0, vec![Target::List(0)])
    });
    let lists = lists(params)?;
    let Some(first) = lists.first() else { return Ok(None) };
    for list in &lists {
        first[0].queue().check_same_device(op, list[0].queue())?;
    }
    let segments: Vec<Segments> = lists.iter().map(|list| segments(list)).collect();
    let parts: Vec<(&Segments, &[Raw])> =
        segments.iter().zip(&lists).map(|(segments, list)| (segments, list.as_slice())).collect();
    let sums = sum_of_squares(&parts)?;
    let mut decided = None;
    for (segments, list) in parts {
        // A factor in the type that this list is computed in.
        let compute = if list[0].dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let controls = Raw::uninit(list[0].queue(), [CONTROLS], compute)?;
        let by = Verdict {
            sums: Some(&sums),
            inverse_scale: Number::Value(1.0),
            scale,
            max_norm: max_norm.map(Number::Value),
            found_inf: None,
            skip_non_finite: scale.is_some(),
        };
        verdict(&by, &controls, 0)?;
        SCALE.run(segments, &Operands { lists: &[list], flat: Some(&controls), sets: &[Vec::new()] })?;
        decided.get_or_insert(controls);
    }
    Ok(decided)
}

/// The gradients of parameters by dtype and device, dense and theirs alone.
fn lists<'t>(params: impl IntoIterator<Item = &'t Tensor>) -> Result<Vec<Vec<Raw>>> {
    let mut lists: Vec<Vec<Raw>> = Vec::new();
    for parameter in params {
        let Some(grad) = parameter.grad().filter(|grad| grad.size() > 0) else { continue };
        // The parameter's and ours. Whoever else holds the memory (another parameter, a tensor of the user's that the gradient
        // happens to be) does not expect it to change.
        let shared = Arc::strong_count(grad.storage()) > 2;
        let grad = if shared || !grad.layout().is_contiguous() {
            let own = grad.raw().duplicate()?;
            parameter.set_grad(Some(own.clone().into()));
            own
        } else {
            grad.raw().clone()
        };
        let fits = |list: &&mut Vec<Raw>| list[0].dtype() == grad.dtype() && list[0].queue().same_device(grad.queue());
        match lists.iter_mut().find(fits) {
            Some(list) => list.push(grad),
            None => lists.push(vec![grad]),
        }
    }
    Ok(lists)
}

fn segments(list: &[Raw]) -> Segments {
    Segments::new(list.iter().map(|tensor| Segment::of(tensor.size())).collect())
}

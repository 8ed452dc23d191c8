//! Operations along an axis in their parts, so that they fuse with what is around them.

use std::sync::Arc;

use netcl_core::Result;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::described::{AlongAxis, Combine};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::{Expr, Graph, Val};
use netcl_core::kernels::launch::Launch;
use netcl_core::tensor::Tensor as Raw;

use super::lower::collect;
use super::trace::Tracer;

/// Positions along an axis are floats: beyond this, neighbours would be equal.
const MAX_CLASSES: usize = 1 << 24;

fn expr(build: impl for<'g> Fn(&'g Graph) -> Val<'g>) -> Expr {
    let g = Graph::new();
    let value = build(&g);
    g.finish(&[value])
}

/// The one launch that does an operation as it is, over the same memory; `None` where it takes more.
pub(super) fn whole(axis: usize, along: AlongAxis, inputs: &[&Raw], out: &Raw) -> Result<Option<Launch>> {
    let axis = axis as isize;
    let labels = || IndexTensor::from_tensor(inputs[1].clone());
    let (made, launches) = collect(|| match along {
        AlongAxis::Softmax => netcl_ops::softmax(inputs[0], axis),
        AlongAxis::LogSoftmax => netcl_ops::log_softmax(inputs[0], axis),
        AlongAxis::SoftmaxBackward => netcl_ops::softmax_backward(inputs[0], inputs[1], axis),
        AlongAxis::LogSoftmaxBackward => netcl_ops::log_softmax_backward(inputs[0], inputs[1], axis),
        AlongAxis::Pick { ignore } => netcl_ops::pick(inputs[0], axis, &labels()?, ignore),
        AlongAxis::Unpick { ignore } => {
            netcl_ops::unpick(inputs[0], axis, &labels()?, out.shape()[axis as usize], ignore)
        }
    })?;
    let Ok([mut launch]) = <[Launch; 1]>::try_from(launches) else { return Ok(None) };
    launch.bind(|storage| Arc::ptr_eq(storage, made.storage()).then(|| out.storage().clone()));
    Ok(Some(launch))
}

impl Tracer {
    /// Writes an operation down in its parts; not along an axis with others behind it, where its own kernel is better.
    pub(super) fn along(&self, axis: usize, along: AlongAxis, inputs: &[&Raw], out: &Raw) -> Result<bool> {
        let full = if matches!(along, AlongAxis::Unpick { .. }) { out } else { inputs[0] };
        let behind: usize = full.shape()[axis + 1..].iter().product();
        if behind != 1 || full.shape()[axis] > MAX_CLASSES {
            return Ok(false);
        }
        let dtype = if inputs[0].dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let temporary = || self.plan(full.queue(), full.shape().clone(), dtype);
        match along {
            AlongAxis::Softmax | AlongAxis::LogSoftmax => {
                let name = if along == AlongAxis::Softmax { "softmax" } else { "log_softmax" };
                let x = inputs[0];
                let top = self.total(name, Combine::Max, x, axis, dtype)?.expand(x.shape())?;
                let powers = temporary()?;
                self.map(name.into(), expr(|g| (g.input(0) - g.input(1)).exp()), &[], &[x, &top], &[&powers])?;
                let sum = self.total(name, Combine::Sum, &powers, axis, dtype)?.expand(x.shape())?;
                if along == AlongAxis::Softmax {
                    self.map(name.into(), expr(|g| g.input(0) / g.input(1)), &[], &[&powers, &sum], &[out])?;
                } else {
                    let log = expr(|g| (g.input(0) - g.input(1)) - g.input(2).log());
                    self.map(name.into(), log, &[], &[x, &top, &sum], &[out])?;
                }
            }
            AlongAxis::SoftmaxBackward => {
                let (name, product) = ("softmax_backward", temporary()?);
                self.map(name.into(), expr(|g| g.input(0) * g.input(1)), &[], inputs, &[&product])?;
                let sum = self.total(name, Combine::Sum, &product, axis, dtype)?.expand(full.shape())?;
                let result = expr(|g| g.input(1) * (g.input(0) - g.input(2)));
                self.map(name.into(), result, &[], &[inputs[0], inputs[1], &sum], &[out])?;
            }
            AlongAxis::LogSoftmaxBackward => {
                let name = "log_softmax_backward";
                let sum = self.total(name, Combine::Sum, inputs[0], axis, dtype)?.expand(full.shape())?;
                let result = expr(|g| g.input(0) - g.input(1).exp() * g.input(2));
                self.map(name.into(), result, &[], &[inputs[0], inputs[1], &sum], &[out])?;
            }
            AlongAxis::Pick { ignore } => {
                let (labels, places) = self.labels(inputs[1], full, axis)?;
                let chosen = temporary()?;
                let choose = expr(|g| g.input(2).eq(g.input(1)).select(g.input(0), 0.0));
                self.map("pick".into(), choose, &[], &[inputs[0], &labels, &places], &[&chosen])?;
                let sum = self.total("pick", Combine::Sum, &chosen, axis, dtype)?;
                let sum = netcl_core::tensor::reshape(&sum, out.shape().clone())?;
                let (checked, scalars) = checked(full.shape()[axis], ignore);
                self.map("pick".into(), checked, &scalars, &[&sum, inputs[1]], &[out])?;
            }
            AlongAxis::Unpick { ignore } => {
                let (labels, places) = self.labels(inputs[1], full, axis)?;
                let value = per_line(inputs[0], full, axis)?;
                let (spread, scalars) = spread(full.shape()[axis], ignore);
                self.map("unpick".into(), spread, &scalars, &[&value, &labels, &places], &[out])?;
            }
        }
        Ok(true)
    }

    /// The label of each element's line, and the element's place in it.
    fn labels(&self, labels: &Raw, full: &Raw, axis: usize) -> Result<(Raw, Raw)> {
        let places: Vec<f32> = (0..full.shape()[axis]).map(|i| i as f32).collect();
        let shape: Vec<usize> = (0..full.ndim()).map(|a| if a == axis { places.len() } else { 1 }).collect();
        let places = Raw::from_host(full.queue(), &places, shape)?.expand(full.shape())?;
        Ok((per_line(labels, full, axis)?, places))
    }
}

/// A tensor of one element per line, as every element sees it.
fn per_line(tensor: &Raw, full: &Raw, axis: usize) -> Result<Raw> {
    tensor.with_layout(tensor.layout().unsqueeze("pick", axis as isize)?)?.expand(full.shape())
}

/// `value`, but 0 for a label that is ignored, and NaN for any other that is none of the classes (scalar 0).
fn guard<'g>(g: &'g Graph, value: Val<'g>, label: Val<'g>, ignores: bool) -> Val<'g> {
    let outside = label.ge(g.scalar(0)).select(f64::NAN, value);
    let known = label.lt(0.0).select(f64::NAN, outside);
    if ignores { label.eq(g.scalar(1)).select(0.0, known) } else { known }
}

fn numbers(classes: usize, ignore: Option<i64>) -> Vec<Number> {
    [classes as f64].into_iter().chain(ignore.map(|label| label as f64)).map(Number::Value).collect()
}

fn checked(classes: usize, ignore: Option<i64>) -> (Expr, Vec<Number>) {
    (expr(|g| guard(g, g.input(0), g.input(1), ignore.is_some())), numbers(classes, ignore))
}

fn spread(classes: usize, ignore: Option<i64>) -> (Expr, Vec<Number>) {
    let build = |g: &Graph| -> Expr {
        let here = g.input(2).eq(g.input(1)).select(g.input(0), 0.0);
        g.finish(&[guard(g, here, g.input(1), ignore.is_some())])
    };
    (build(&Graph::new()), numbers(classes, ignore))
}

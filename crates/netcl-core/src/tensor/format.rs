//! How a tensor prints: values in nested brackets, then shape, dtype and device.

use std::fmt;

use super::Tensor;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::{copy, launch};
use crate::shape::{Shape, Slice};

/// Tensors with more elements than this show only the edges of each axis.
const SUMMARISE_ABOVE: usize = 1000;
const EDGE: usize = 3;
/// A tensor of many axes has that many corners: it shows narrower edges, in the end none.
const MOST_SHOWN: usize = 50_000;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tensor(")?;
        let edge = edge(self.shape());
        match (edge, self.size()) {
            (_, 0) => f.write_str("[]")?,
            (0, _) => f.write_str("[...]")?,
            _ => match corners(self, edge).and_then(|corners| corners.to_f64_vec()) {
                Ok(values) => write_values(f, &values, self.shape(), edge, 1, self.dtype())?,
                Err(error) => write!(f, "<{error}>")?,
            },
        }
        write!(f, ", shape={}, dtype={}, device={:?})", self.shape(), self.dtype(), self.queue().device_name())
    }
}

/// How many elements of either end of an axis are shown; an axis that is no longer than twice that is shown whole.
fn edge(shape: &Shape) -> usize {
    if shape.size() <= SUMMARISE_ABOVE {
        return SUMMARISE_ABOVE;
    }
    let fits = |edge: &usize| shape.iter().map(|&n| n.min(2 * edge)).fold(1, usize::saturating_mul) <= MOST_SHOWN;
    (1..=EDGE).rev().find(fits).unwrap_or(0)
}

/// What is shown of a tensor, as a tensor of its own: the rest is neither copied nor read.
fn corners(tensor: &Tensor, edge: usize) -> Result<Tensor> {
    let short: Vec<usize> = (0..tensor.ndim()).filter(|&axis| tensor.shape()[axis] > 2 * edge).collect();
    if short.is_empty() {
        return Ok(tensor.clone());
    }
    launch::check_readable("to_host")?;
    let shown: Shape = tensor.shape().iter().map(|&n| n.min(2 * edge)).collect();
    let out = Tensor::uninit(tensor.queue(), shown, tensor.dtype())?;
    let first = Slice::new(None, Some(edge as isize), 1);
    let last = Slice::new(Some(-(edge as isize)), None, 1);
    for corner in 0..1usize << short.len() {
        let (mut from, mut to) = (tensor.clone(), out.clone());
        for (bit, &axis) in short.iter().enumerate() {
            let part = if corner >> bit & 1 == 0 { first } else { last };
            (from, to) = (from.slice(axis as isize, part)?, to.slice(axis as isize, part)?);
        }
        copy::copy(&from, &to)?;
    }
    Ok(out)
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor(shape={}, dtype={}, strides={:?}", self.shape(), self.dtype(), self.layout().strides())?;
        write!(f, ", offset={}, device={:?})", self.layout().offset(), self.queue().device_name())
    }
}

/// Writes the values of [`corners`] of a tensor with these lengths.
fn write_values(
    f: &mut fmt::Formatter<'_>,
    values: &[f64],
    dims: &[usize],
    edge: usize,
    depth: usize,
    dtype: DType,
) -> fmt::Result {
    let Some((&n, rest)) = dims.split_first() else {
        return values.first().map_or(Ok(()), |&value| write_number(f, value, dtype));
    };
    let shown = n.min(2 * edge);
    let separator = if rest.is_empty() { ", ".to_owned() } else { format!(",\n{:1$}", "", depth + 7) };
    f.write_str("[")?;
    for (i, part) in values.chunks((values.len() / shown).max(1)).enumerate() {
        if i > 0 {
            f.write_str(&separator)?;
        }
        if i == edge && n > shown {
            write!(f, "...{separator}")?;
        }
        write_values(f, part, rest, edge, depth + 1, dtype)?;
    }
    f.write_str("]")
}

fn write_number(f: &mut fmt::Formatter<'_>, value: f64, dtype: DType) -> fmt::Result {
    if dtype == DType::U8 {
        return f.write_str(if value != 0.0 { "True" } else { "False" });
    }
    if !dtype.is_float() {
        return write!(f, "{value:.0}");
    }
    if value.is_finite() && value == value.trunc() && value.abs() < 1e8 {
        write!(f, "{value:.0}.")
    } else if value.is_finite() && (1e-4..1e8).contains(&value.abs()) {
        let text = format!("{value:.4}");
        f.write_str(text.trim_end_matches('0'))
    } else {
        write!(f, "{value:.4e}")
    }
}

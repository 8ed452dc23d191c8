//! Sums of products by index notation, on top of the matrix product.

use std::collections::HashMap;
use std::fmt;

use netcl_core::shape::Layout;
use netcl_core::tensor::Tensor as Raw;

use super::elementwise::mul;
use super::layout::{expand, permute, reshape};
use super::linear_map::LinearMap;
use super::matmul::matmul;
use super::reduce::sum;
use crate::autocast;
use crate::error::Result;
use crate::tensor::Tensor;

/// An axis: a letter, or one of those that an ellipsis stands for (counted from the last).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Label {
    Letter(char),
    Ellipsis(usize),
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Letter(letter) => write!(f, "axis {letter:?}"),
            Label::Ellipsis(0) => write!(f, "the last axis of \"...\""),
            Label::Ellipsis(after) => write!(f, "axis {} of \"...\"", -1 - *after as isize),
        }
    }
}

/// A tensor whose axes have names.
struct Named {
    tensor: Tensor,
    labels: Vec<Label>,
}

/// Sums of products in Einstein's notation, as in NumPy: `"ij,jk->ik"` is the matrix product, `"ii"` the trace, `"bi,bj->bij"` a
/// batch of outer products. Without `->` the result has the letters that occur once, in alphabetical order. `...` stands for
/// any number of axes, which broadcast.
///
/// Operands are multiplied from left to right.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::einsum::einsum};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let b = Tensor::from_host(&queue, &[1.0f32, 10.0], [2])?;
/// assert_eq!(einsum("ij,j->i", &[&a, &b])?.to_host::<f32>()?, [21.0, 43.0]);
/// assert_eq!(einsum("ii", &[&a])?.item()?, 5.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn einsum(notation: &str, operands: &[&Tensor]) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("einsum", operands.iter().copied()) {
        let operands = operands.iter().map(|operand| casts.of(operand)).collect::<Result<Vec<Tensor>>>()?;
        return einsum(notation, &operands.iter().collect::<Vec<_>>());
    }
    let (inputs, output) = parse(notation, operands)?;
    let sizes = sizes(notation, operands, &inputs)?;
    if let Some(label) = output.iter().find(|label| !sizes.contains_key(label)) {
        return Err(wrong(notation, format!("the output has {label}, which no operand has")));
    }
    let mut named = Vec::new();
    for (tensor, labels) in operands.iter().zip(inputs) {
        let full: Vec<usize> = labels.iter().map(|label| sizes[label]).collect();
        named.push(diagonals(Named { tensor: expand(tensor, full)?, labels })?);
    }
    let mut rest = named.into_iter();
    let Some(mut result) = rest.next() else { return Err(wrong(notation, "there are no operands".to_owned())) };
    let mut rest: Vec<Named> = rest.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let later = |label: &Label| output.contains(label) || rest.iter().any(|named| named.labels.contains(label));
        result = contract(result, next, &later)?;
    }
    finish(result, &output)
}

fn wrong(notation: &str, what: String) -> crate::Error {
    netcl_core::Error::argument("einsum", format!("{notation:?}: {what}")).into()
}

/// The labels of each operand and of the result.
fn parse(notation: &str, operands: &[&Tensor]) -> Result<(Vec<Vec<Label>>, Vec<Label>)> {
    let text: String = notation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (text.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != operands.len() {
        return Err(wrong(
            notation,
            format!("there are subscripts for {} operands, but {} given", terms.len(), operands.len()),
        ));
    }
    let mut inputs = Vec::new();
    for (i, (term, operand)) in terms.iter().zip(operands).enumerate() {
        let letters = term.replace("...", "").chars().count();
        let hidden = match (term.contains("..."), operand.ndim().checked_sub(letters)) {
            (true, Some(hidden)) => hidden,
            (false, Some(0)) => 0,
            _ => {
                let what =
                    format!("operand {i} has shape {}, but its subscripts {term:?} are {letters}", operand.shape());
                return Err(wrong(notation, what));
            }
        };
        inputs.push(labels(notation, term, hidden)?);
    }
    let widest = inputs.iter().map(|labels| labels.iter().filter(|l| matches!(l, Label::Ellipsis(_))).count()).max();
    let output = match right {
        Some(right) => labels(notation, right, widest.unwrap_or(0))?,
        None => {
            let all: Vec<Label> = inputs.iter().flatten().copied().collect();
            let once = |label: &&Label| all.iter().filter(|l| l == label).count() == 1;
            let mut letters: Vec<char> = all
                .iter()
                .filter(once)
                .filter_map(|label| if let Label::Letter(letter) = label { Some(*letter) } else { None })
                .collect();
            letters.sort_unstable();
            let hidden = (0..widest.unwrap_or(0)).rev().map(Label::Ellipsis);
            hidden.chain(letters.into_iter().map(Label::Letter)).collect()
        }
    };
    if let Some(label) = output.iter().enumerate().find_map(|(i, l)| output[..i].contains(l).then_some(l)) {
        return Err(wrong(notation, format!("the output has {label} twice")));
    }
    Ok((inputs, output))
}

/// The labels of one term, whose ellipsis stands for so many axes.
fn labels(notation: &str, term: &str, hidden: usize) -> Result<Vec<Label>> {
    let mut found = Vec::new();
    for (i, part) in term.split("...").enumerate() {
        if i == 1 {
            found.extend((0..hidden).rev().map(Label::Ellipsis));
        }
        if i == 2 {
            return Err(wrong(notation, format!("{term:?} has more than one ellipsis")));
        }
        for letter in part.chars() {
            if !letter.is_ascii_alphabetic() {
                return Err(wrong(notation, format!("subscripts are letters, not {letter:?}")));
            }
            found.push(Label::Letter(letter));
        }
    }
    Ok(found)
}

/// The length of each axis; lengths of 1 broadcast.
fn sizes(notation: &str, operands: &[&Tensor], inputs: &[Vec<Label>]) -> Result<HashMap<Label, usize>> {
    let mut sizes: HashMap<Label, usize> = HashMap::new();
    for (i, (operand, labels)) in operands.iter().zip(inputs).enumerate() {
        for (&label, &length) in labels.iter().zip(operand.shape().iter()) {
            let known = sizes.entry(label).or_insert(length);
            if *known == 1 {
                *known = length;
            } else if length != *known && length != 1 {
                let what = format!("{label} has length {length} in operand {i}, but {known} before");
                return Err(wrong(notation, what));
            }
        }
    }
    Ok(sizes)
}

/// Every label once: a repeated one selects the diagonal.
fn diagonals(named: Named) -> Result<Named> {
    let mut unique: Vec<Label> = Vec::new();
    named.labels.iter().for_each(|label| {
        if !unique.contains(label) {
            unique.push(*label)
        }
    });
    if unique.len() == named.labels.len() {
        return Ok(named);
    }
    let (shape, labels) = (named.tensor.shape().clone(), named.labels);
    let view = {
        let unique = unique.clone();
        move |raw: &Raw| -> netcl_core::Result<Raw> {
            let labels = &labels;
            let axes = |label: Label| (0..labels.len()).filter(move |&axis| labels[axis] == label);
            let strides: Vec<isize> =
                unique.iter().map(|&label| axes(label).map(|axis| raw.layout().strides()[axis]).sum()).collect();
            let lengths = unique.iter().filter_map(|&label| axes(label).next().map(|axis| raw.shape()[axis])).collect();
            raw.with_layout(Layout::strided(lengths, &strides, raw.layout().offset())?)
        }
    };
    let write = view.clone();
    let map = LinearMap::new(["diagonal", "diagonal_backward"], view, move |grad| {
        let out = Raw::from_shape(grad.queue(), shape.clone(), grad.dtype())?;
        write(&out)?.assign(grad)?;
        Ok(out)
    });
    Ok(Named { tensor: map.apply(&named.tensor)?, labels: unique })
}

/// The axes in the order of some labels; others are summed.
fn finish(named: Named, order: &[Label]) -> Result<Tensor> {
    let alone: Vec<isize> =
        (0..named.labels.len()).filter(|&i| !order.contains(&named.labels[i])).map(|i| i as isize).collect();
    let left: Vec<Label> = named.labels.iter().filter(|label| order.contains(label)).copied().collect();
    let summed = if alone.is_empty() { named.tensor } else { sum(&named.tensor, alone.as_slice(), false)? };
    let axes: Vec<isize> =
        order.iter().filter_map(|label| left.iter().position(|l| l == label)).map(|i| i as isize).collect();
    permute(&summed, &axes)
}

/// The product of two operands, summed over labels that nothing later has.
fn contract(a: Named, b: Named, later: &dyn Fn(&Label) -> bool) -> Result<Named> {
    let shared = |label: &&Label| b.labels.contains(label);
    let batch: Vec<Label> = a.labels.iter().filter(shared).filter(|label| later(label)).copied().collect();
    let inner: Vec<Label> = a.labels.iter().filter(shared).filter(|label| !later(label)).copied().collect();
    // What only one operand has, and nobody needs later, is summed before the product.
    let rows: Vec<Label> = a.labels.iter().filter(|l| !b.labels.contains(l) && later(l)).copied().collect();
    let columns: Vec<Label> = b.labels.iter().filter(|l| !a.labels.contains(l) && later(l)).copied().collect();
    let left = finish(a, &[batch.as_slice(), &rows, &inner].concat())?;
    let right = finish(b, &[batch.as_slice(), &inner, &columns].concat())?;
    let labels = [batch.as_slice(), &rows, &columns].concat();
    if inner.is_empty() && rows.is_empty() && columns.is_empty() {
        return Ok(Named { tensor: mul(&left, &right)?, labels });
    }
    let (n_batch, n_rows, n_inner) = (batch.len(), rows.len(), inner.len());
    let length = |dims: &[usize]| dims.iter().product::<usize>();
    let (shape_a, shape_b) = (left.shape().to_vec(), right.shape().to_vec());
    let outer = [&shape_a[..n_batch + n_rows], &shape_b[n_batch + n_inner..]].concat();
    let (m, k, n) = (
        length(&shape_a[n_batch..n_batch + n_rows]),
        length(&shape_a[n_batch + n_rows..]),
        length(&shape_b[n_batch + n_inner..]),
    );
    let batches = length(&shape_a[..n_batch]);
    let product = matmul(&reshape(&left, [batches, m, k])?, &reshape(&right, [batches, k, n])?)?;
    Ok(Named { tensor: reshape(&product, outer)?, labels })
}

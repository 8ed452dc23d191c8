//! Sizes, margins and indices as Python writes them. Errors name the operation, the argument and what was given.

use std::sync::Arc;

use netcl::Tensor as Recorded;
use netcl::autograd::ops::indexing;
use netcl::core::backend::Queue;
use netcl::core::dtype::DType;
use netcl::core::index::IndexTensor as Index;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::IntoPyResult;
use crate::index::index_from_host;
use crate::tensor::Tensor;

/// An argument that may be left out.
pub(super) type Given<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// An argument unless it is left out or `None`.
pub(super) fn present<'a, 'py>(given: Given<'a, 'py>) -> Given<'a, 'py> {
    given.filter(|given| !given.is_none())
}

/// The tensor of an argument that may be left out.
pub(super) fn inner(tensor: Option<&Tensor>) -> Option<Arc<Recorded>> {
    tensor.map(Tensor::inner)
}

fn shown(given: &Bound<'_, PyAny>) -> String {
    given.repr().map_or_else(|_| "an object without repr".to_owned(), |text| text.to_string())
}

/// One whole number or several, none of them negative.
pub(crate) fn whole(op: &str, name: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let one = |item: &Bound<'_, PyAny>| -> PyResult<usize> {
        let number: i64 = item.extract().map_err(|_| {
            PyTypeError::new_err(format!("{op}: {name} is made of whole numbers, and {} is given", shown(given)))
        })?;
        usize::try_from(number).map_err(|_| {
            PyValueError::new_err(format!("{op}: {name} cannot be negative, and {} is given", shown(given)))
        })
    };
    match given.try_iter() {
        Ok(items) => items.map(|item| one(&item?)).collect(),
        Err(_) => Ok(vec![one(given)?]),
    }
}

fn wrong_count(op: &str, name: &str, forms: &str, given: &Bound<'_, PyAny>) -> PyErr {
    PyValueError::new_err(format!("{op}: {name} is {forms}, and {} is given", shown(given)))
}

/// One number for all axes, or one for each.
pub(super) fn numbers<const N: usize>(
    op: &str,
    name: &str,
    given: Given<'_, '_>,
    default: [usize; N],
) -> PyResult<[usize; N]> {
    let Some(given) = present(given) else { return Ok(default) };
    let list = whole(op, name, given)?;
    match list[..] {
        [one] => Ok([one; N]),
        _ => {
            list.try_into().map_err(|_| wrong_count(op, name, &format!("one number or {N}, one for each axis"), given))
        }
    }
}

/// One number that is not negative.
pub(crate) fn count(op: &str, name: &str, given: &Bound<'_, PyAny>) -> PyResult<usize> {
    numbers(op, name, Some(given), [1]).map(|[one]| one)
}

/// The zeros around an image: of its four sides. The argument has two names, of which one may be used.
pub(super) fn margins2(op: &str, pad: Given<'_, '_>, padding: Given<'_, '_>) -> PyResult<[usize; 4]> {
    let Some((name, given)) = either(op, pad, padding)? else { return Ok([0; 4]) };
    match whole(op, name, given)?[..] {
        [all] => Ok([all; 4]),
        [rows, columns] => Ok([rows, rows, columns, columns]),
        [top, bottom, left, right] => Ok([top, bottom, left, right]),
        _ => Err(wrong_count(op, name, "one number, a pair (rows, columns) or four (top, bottom, left, right)", given)),
    }
}

/// The zeros before and after a sequence.
pub(super) fn margins1(op: &str, pad: Given<'_, '_>, padding: Given<'_, '_>) -> PyResult<[usize; 2]> {
    let Some((name, given)) = either(op, pad, padding)? else { return Ok([0; 2]) };
    match whole(op, name, given)?[..] {
        [all] => Ok([all; 2]),
        [before, after] => Ok([before, after]),
        _ => Err(wrong_count(op, name, "one number or a pair (before, after)", given)),
    }
}

/// The zeros before and after each axis of a convolution where the argument is a text: ``"valid"`` for none, ``"same"`` for as many
/// as keep the lengths.
pub(super) fn margins_by_name<const N: usize>(
    op: &str,
    [pad, padding]: [Given<'_, '_>; 2],
    weight: &Tensor,
    stride: [usize; N],
    dilation: [usize; N],
) -> PyResult<Option<[[usize; 2]; N]>> {
    let Some((name, given)) = either(op, pad, padding)? else { return Ok(None) };
    let Ok(text) = given.extract::<&str>() else { return Ok(None) };
    let weight = weight.inner();
    match text {
        "valid" => Ok(Some([[0; 2]; N])),
        "same" if stride != [1; N] => {
            Err(PyValueError::new_err(format!("{op}: {name}=\"same\" needs a stride of 1, not {stride:?}")))
        }
        "same" => Ok(Some(std::array::from_fn(|axis| {
            // Filters with too few axes are refused later.
            let taps = weight.shape().get(2 + axis).map_or(0, |taps| taps.saturating_sub(1));
            let span = dilation[axis].saturating_mul(taps);
            [span / 2, span.div_ceil(2)]
        }))),
        _ => Err(PyValueError::new_err(format!(
            "{op}: {name} is a number, several, \"same\" or \"valid\", not {text:?}"
        ))),
    }
}

type NamedArgument<'a, 'py> = (&'static str, &'a Bound<'py, PyAny>);

fn either<'a, 'py>(op: &str, pad: Given<'a, 'py>, padding: Given<'a, 'py>) -> PyResult<Option<NamedArgument<'a, 'py>>> {
    match (present(pad), present(padding)) {
        (Some(_), Some(_)) => {
            Err(PyValueError::new_err(format!("{op}: pad and padding are two names of one argument; give one of them")))
        }
        (Some(given), None) => Ok(Some(("pad", given))),
        (None, Some(given)) => Ok(Some(("padding", given))),
        (None, None) => Ok(None),
    }
}

/// The lengths of a result: one for all axes or one for each, where `None` keeps the length that the axis has.
pub(super) fn lengths<const N: usize>(op: &str, given: &Bound<'_, PyAny>, now: &[usize]) -> PyResult<[usize; N]> {
    let Some(now) = now.len().checked_sub(N).and_then(|first| <[usize; N]>::try_from(&now[first..]).ok()) else {
        return Err(PyValueError::new_err(format!(
            "{op}: the tensor has shape {now:?}, and {N} axes or more are needed"
        )));
    };
    let Ok(items) = given.try_iter() else { return numbers(op, "output_size", Some(given), now) };
    // One more is enough to see that there are too many: a tensor has millions.
    let items: Vec<Bound<'_, PyAny>> = items.take(N + 1).collect::<PyResult<_>>()?;
    if items.len() != N {
        return numbers(op, "output_size", Some(given), now);
    }
    let mut all = now;
    for (length, item) in all.iter_mut().zip(&items) {
        [*length] = numbers(op, "output_size", Some(item), [*length])?;
    }
    Ok(all)
}

/// Indices: an ``IndexTensor``, a ``Tensor`` of whole numbers, or an array or list of them, which goes to the queue's device.
pub(crate) fn indices(given: &Bound<'_, PyAny>, queue: &Queue) -> PyResult<Index> {
    if let Ok(tensor) = given.cast::<Tensor>() {
        let tensor = tensor.get().inner();
        return indexing::indices(&tensor).py();
    }
    index_from_host(queue, given, DType::I64)
}

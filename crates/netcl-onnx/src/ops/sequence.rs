//! Lists of values, and values that may be absent.

use netcl_nn::autograd::Result;

use super::layout::{joined, lengths, reshaped, sliced};
use super::{Op, Table, one};
use crate::array::{Array, axis, bad, sum};
use crate::kind::Kind;
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("ConcatFromSequence", concat as Op),
    ("Optional", optional),
    ("OptionalGetElement", optional),
    ("OptionalHasElement", has_element),
    ("SequenceAt", at),
    ("SequenceConstruct", construct),
    ("SequenceEmpty", construct),
    ("SequenceErase", erase),
    ("SequenceInsert", insert),
    ("SequenceLength", length),
    ("SplitToSequence", split),
];

fn list(value: &Value) -> Result<&[Value]> {
    match value {
        Value::Sequence(list) => Ok(list),
        _ => Err(bad("expected a sequence, got a tensor")),
    }
}

/// Tensors of a sequence.
const MOST_ITEMS: usize = 1 << 16;
/// Elements of the tensors of a sequence that lie on the host.
const MOST_ELEMENTS: usize = 1 << 28;

/// A sequence of tensors within limits. Sequences of sequences are none: a few nodes could double them without end.
fn sequence(items: Vec<Value>) -> Result<Vec<Value>> {
    let elements = |item: &Value| match item {
        Value::Tensor(_) => Ok(0),
        Value::Array(array) => Ok(array.len()),
        Value::Sequence(_) | Value::None => Err(bad("a sequence holds tensors, got a sequence or an absent value")),
    };
    let all = sum(items.iter().map(elements).collect::<Result<Vec<_>>>()?)?;
    if items.len() > MOST_ITEMS || all > MOST_ELEMENTS {
        let what = format!("a sequence of {} tensors and {all} elements on the host", items.len());
        return Err(bad(format!("{what}, at most {MOST_ITEMS} and {MOST_ELEMENTS} are supported")));
    }
    one(Value::Sequence(items))
}

fn construct(call: &Call<'_>) -> Result<Vec<Value>> {
    sequence((0..call.inputs.len()).map(|i| call.value(i).cloned()).collect::<Result<_>>()?)
}

/// The place that an index means; one past the end where something is put in.
fn place(call: &Call<'_>, input: usize, n: usize, default: usize) -> Result<usize> {
    let Some(given) = call.optional_ints(input)?.and_then(|list| list.first().copied()) else { return Ok(default) };
    let from_start = if given < 0 { given + n as i64 } else { given };
    let found = usize::try_from(from_start).ok().filter(|&at| at <= default);
    found.ok_or_else(|| bad(format!("place {given} is outside of a sequence of {n}")))
}

fn last(n: usize) -> Result<usize> {
    n.checked_sub(1).ok_or_else(|| bad("the sequence is empty"))
}

fn at(call: &Call<'_>) -> Result<Vec<Value>> {
    let list = list(call.value(0)?)?;
    one(list[place(call, 1, list.len(), last(list.len())?)?].clone())
}

fn erase(call: &Call<'_>) -> Result<Vec<Value>> {
    let mut list = list(call.value(0)?)?.to_vec();
    list.remove(place(call, 1, list.len(), last(list.len())?)?);
    one(Value::Sequence(list))
}

fn insert(call: &Call<'_>) -> Result<Vec<Value>> {
    let mut list = list(call.value(0)?)?.to_vec();
    list.insert(place(call, 2, list.len(), list.len())?, call.value(1)?.clone());
    sequence(list)
}

fn length(call: &Call<'_>) -> Result<Vec<Value>> {
    one(Array::ints(Kind::I64, vec![], vec![list(call.value(0)?)?.len() as i64]))
}

fn concat(call: &Call<'_>) -> Result<Vec<Value>> {
    let parts = list(call.value(0)?)?;
    let rank = parts.first().ok_or_else(|| bad("the sequence is empty"))?.shape()?.len();
    if !call.flag("new_axis") {
        return one(joined(call, parts, axis(call.int("axis", 0), rank)?)?);
    }
    let at = axis(call.int("axis", 0), rank + 1)?;
    let grown = parts.iter().map(|part| {
        let mut shape = part.shape()?;
        shape.insert(at.min(shape.len()), 1);
        reshaped(part, shape)
    });
    one(joined(call, &grown.collect::<Result<Vec<_>>>()?, at)?)
}

fn split(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let at = axis(call.int("axis", 0), shape.len())?;
    let n = shape[at];
    let equal = |size: usize| match n.div_ceil(size) {
        parts if parts > MOST_ITEMS => {
            Err(bad(format!("{n} elements in parts of {size} are more than {MOST_ITEMS} parts")))
        }
        parts => Ok((0..parts).map(|i| size.min(n - i * size)).collect::<Vec<_>>()),
    };
    let (sizes, keep) = match call.optional(1) {
        None => (equal(1)?, call.int("keepdims", 1) != 0),
        Some(given) if given.shape()?.is_empty() => {
            let size = lengths(&call.ints(1)?)?.first().copied().unwrap_or(1);
            (equal(size.max(1))?, true)
        }
        Some(_) => (lengths(&call.ints(1)?)?, true),
    };
    if sizes.len() > MOST_ITEMS || sum(sizes.iter().copied())? != n {
        return Err(bad(format!("{} lengths do not add up to {n}, or are more than {MOST_ITEMS}", sizes.len())));
    }
    let mut start = 0;
    let parts = sizes.into_iter().map(|size| {
        let part = sliced(value, at, start, 1, size)?;
        start += size;
        let mut shape = shape.clone();
        shape.remove(at);
        if keep { Ok(part) } else { reshaped(&part, shape) }
    });
    sequence(parts.collect::<Result<_>>()?)
}

fn optional(call: &Call<'_>) -> Result<Vec<Value>> {
    one(call.inputs.first().cloned().flatten().unwrap_or(Value::None))
}

fn has_element(call: &Call<'_>) -> Result<Vec<Value>> {
    one(Array::ints(Kind::Bool, vec![], vec![i64::from(call.optional(0).is_some())]))
}

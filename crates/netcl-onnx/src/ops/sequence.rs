//! Lists of values, and values that may be absent.

use netcl_nn::autograd::Result;

use super::layout::{joined, lengths, reshaped, sliced};
use super::{Op, Table, one};
use crate::array::{Array, axis, bad};
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

fn construct(call: &Call<'_>) -> Result<Vec<Value>> {
    one(Value::Sequence((0..call.inputs.len()).map(|i| call.value(i).cloned()).collect::<Result<_>>()?))
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
    one(Value::Sequence(list))
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
    let (sizes, keep) = match call.optional(1) {
        None => (vec![1; n], call.int("keepdims", 1) != 0),
        Some(given) if given.shape()?.is_empty() => {
            let size = lengths(&given.to_array()?.to_ints()?)?[0].max(1);
            ((0..n.div_ceil(size)).map(|i| size.min(n - i * size)).collect(), true)
        }
        Some(given) => (lengths(&given.to_array()?.to_ints()?)?, true),
    };
    if sizes.iter().sum::<usize>() != n {
        return Err(bad(format!("{sizes:?} do not add up to {n}")));
    }
    let mut start = 0;
    let parts = sizes.into_iter().map(|size| {
        let part = sliced(value, at, start, 1, size)?;
        start += size;
        let mut shape = shape.clone();
        shape.remove(at);
        if keep { Ok(part) } else { reshaped(&part, shape) }
    });
    one(Value::Sequence(parts.collect::<Result<_>>()?))
}

fn optional(call: &Call<'_>) -> Result<Vec<Value>> {
    one(call.inputs.first().cloned().flatten().unwrap_or(Value::None))
}

fn has_element(call: &Call<'_>) -> Result<Vec<Value>> {
    one(Array::ints(Kind::Bool, vec![], vec![i64::from(call.optional(0).is_some())]))
}

//! Control flow: If, Loop, Scan, SequenceMap, and the functions that a file defines.

use std::cell::Cell;

use netcl_nn::autograd::Result;

use super::layout::{joined, reshaped, sliced};
use super::{Op, Table};
use crate::array::{Array, axis, bad, product};
use crate::kind::Kind;
use crate::run::{Call, run};
use crate::value::Value;

pub(super) const TABLE: Table =
    &[("If", branch as Op), ("Loop", repeat), ("Scan", scan), ("SequenceMap", sequence_map)];

/// Rounds of all loops of a run, those inside of each other included.
const MOST_ROUNDS: usize = 1 << 20;
/// Elements that the rounds of a loop collect.
const MOST_COLLECTED: usize = 1 << 30;

thread_local! {
    static ROUNDS: Cell<usize> = const { Cell::new(0) };
}

/// A run of a model begins: its loops are counted anew.
pub(crate) fn begin_run() {
    ROUNDS.set(0);
}

/// Counts a round of a loop.
fn count_round() -> Result<()> {
    ROUNDS.set(ROUNDS.get() + 1);
    match ROUNDS.get() <= MOST_ROUNDS {
        true => Ok(()),
        false => Err(bad(format!("loops of more than {MOST_ROUNDS} rounds in a run"))),
    }
}

/// What the rounds of a loop give, a list for each result.
struct Collected {
    lists: Vec<Vec<Value>>,
    elements: usize,
}

impl Collected {
    fn new(results: usize) -> Collected {
        Collected { lists: vec![Vec::new(); results], elements: 0 }
    }

    fn push(&mut self, results: impl Iterator<Item = Value>) -> Result<()> {
        for (list, value) in self.lists.iter_mut().zip(results) {
            self.elements = self.elements.saturating_add(product(&value.shape()?)).saturating_add(1);
            list.push(value);
        }
        match self.elements <= MOST_COLLECTED {
            true => Ok(()),
            false => Err(bad(format!("a loop that collects more than {MOST_COLLECTED} elements"))),
        }
    }
}

/// Runs the body of a function that the file defines; it sees nothing of what is around.
pub(crate) fn call_body(call: &Call<'_>) -> Result<Vec<Value>> {
    let body = call.node.body.as_deref().ok_or_else(|| bad("the function has no body"))?;
    let mut inputs: Vec<Value> = call.inputs.iter().map(|value| value.clone().unwrap_or(Value::None)).collect();
    inputs.resize(body.inputs.len().max(inputs.len()), Value::None);
    run(body, inputs, call.queue, None)
}

fn truth(value: &Value) -> Result<bool> {
    Ok(value.to_array()?.to_ints()?.first().is_some_and(|&v| v != 0))
}

fn branch(call: &Call<'_>) -> Result<Vec<Value>> {
    let name = if truth(call.value(0)?)? { "then_branch" } else { "else_branch" };
    call.run(call.graph(name)?, Vec::new())
}

/// Results of rounds, one after the other along a new axis.
fn stacked(call: &Call<'_>, parts: &[Value], at: usize) -> Result<Value> {
    let Some(first) = parts.first() else { return Ok(Array::floats(Kind::F32, vec![0], vec![]).into()) };
    let mut shape = first.shape()?;
    shape.insert(at.min(shape.len()), 1);
    let parts = parts.iter().map(|part| reshaped(part, shape.clone())).collect::<Result<Vec<_>>>()?;
    joined(call, &parts, at)
}

fn repeat(call: &Call<'_>) -> Result<Vec<Value>> {
    let body = call.graph("body")?;
    let rounds = call.optional_ints(0)?.and_then(|n| n.first().copied()).unwrap_or(i64::MAX);
    let mut go_on = call.optional(1).map(truth).transpose()?.unwrap_or(true);
    let mut carried: Vec<Value> =
        call.inputs.iter().skip(2).map(|value| value.clone().unwrap_or(Value::None)).collect();
    let outputs =
        body.outputs.len().checked_sub(1 + carried.len()).ok_or_else(|| bad("its body has too few outputs"))?;
    let mut collected = Collected::new(outputs);
    let mut round = 0;
    while go_on && round < rounds {
        count_round()?;
        let mut inputs =
            vec![Array::ints(Kind::I64, vec![], vec![round]).into(), Array::ints(Kind::Bool, vec![], vec![1]).into()];
        inputs.extend(carried.iter().cloned());
        let mut results = call.run(body, inputs)?.into_iter();
        go_on = results.next().map(|value| truth(&value)).transpose()?.unwrap_or(false);
        for value in &mut carried {
            *value = results.next().unwrap_or(Value::None);
        }
        collected.push(results)?;
        round += 1;
    }
    for parts in &collected.lists {
        carried.push(stacked(call, parts, 0)?);
    }
    Ok(carried)
}

fn scan(call: &Call<'_>) -> Result<Vec<Value>> {
    if call.node.opset < 9 {
        return scan_batches(call);
    }
    let inputs: Vec<Value> = call.inputs.iter().map(|value| value.clone().unwrap_or(Value::None)).collect();
    let list = |name| call.int_list(name).map(<[i64]>::to_vec);
    scan_over(
        call,
        inputs,
        &[list("scan_input_axes"), list("scan_output_axes")],
        &[list("scan_input_directions"), list("scan_output_directions")],
    )
}

/// Opset 8: every batch by itself; the first input holds the lengths.
fn scan_batches(call: &Call<'_>) -> Result<Vec<Value>> {
    let inputs: Vec<&Value> = (1..call.inputs.len()).map(|i| call.value(i)).collect::<Result<_>>()?;
    let mut batches = None;
    for value in &inputs {
        let shape = value.shape()?;
        let &batch = shape.first().ok_or_else(|| bad("an input has no axis for batches"))?;
        if *batches.get_or_insert(batch) != batch {
            return Err(bad(format!("an input of shape {shape:?} has not as many batches as the first one")));
        }
    }
    let batches = batches.ok_or_else(|| bad("it has no inputs"))?;
    let directions = call.int_list("directions").map(<[i64]>::to_vec);
    let mut results: Vec<Vec<Value>> = Vec::new();
    for batch in 0..batches {
        count_round()?;
        let part = |value: &&Value| {
            let shape = value.shape()?;
            reshaped(&sliced(value, 0, batch, 1, 1)?, shape[1..].to_vec())
        };
        let inputs = inputs.iter().map(part).collect::<Result<Vec<_>>>()?;
        results.push(scan_over(call, inputs, &[None, None], &[directions.clone(), None])?);
    }
    let outputs = results.first().map_or(0, Vec::len);
    (0..outputs).map(|i| stacked(call, &results.iter().map(|row| row[i].clone()).collect::<Vec<_>>(), 0)).collect()
}

fn scan_over(
    call: &Call<'_>,
    inputs: Vec<Value>,
    axes: &[Option<Vec<i64>>; 2],
    directions: &[Option<Vec<i64>>; 2],
) -> Result<Vec<Value>> {
    let body = call.graph("body")?;
    let scanned = usize::try_from(call.int("num_scan_inputs", 0)).unwrap_or(0);
    let states = inputs.len().checked_sub(scanned).filter(|_| scanned > 0);
    let states = states.ok_or_else(|| bad("num_scan_inputs does not fit the inputs"))?;
    let outputs = body.outputs.len().checked_sub(states).ok_or_else(|| bad("its body has too few outputs"))?;
    let nth = |list: &Option<Vec<i64>>, i: usize| list.as_ref().and_then(|list| list.get(i).copied()).unwrap_or(0);
    let (mut carried, sequences) = (inputs[..states].to_vec(), &inputs[states..]);
    let places = sequences.iter().enumerate().map(|(i, value)| axis(nth(&axes[0], i), value.shape()?.len()));
    let places = places.collect::<Result<Vec<_>>>()?;
    let length = sequences[0].shape()?[places[0]];
    let mut collected = Collected::new(outputs);
    for round in 0..length {
        count_round()?;
        let mut inputs = carried.clone();
        for (i, value) in sequences.iter().enumerate() {
            let mut shape = value.shape()?;
            if shape[places[i]] != length {
                return Err(bad("the scanned inputs have not the same length"));
            }
            let at = if nth(&directions[0], i) == 1 { length - 1 - round } else { round };
            shape.remove(places[i]);
            inputs.push(reshaped(&sliced(value, places[i], at, 1, 1)?, shape)?);
        }
        let mut results = call.run(body, inputs)?.into_iter();
        for value in &mut carried {
            *value = results.next().unwrap_or(Value::None);
        }
        collected.push(results)?;
    }
    for (i, parts) in collected.lists.iter_mut().enumerate() {
        if nth(&directions[1], i) == 1 {
            parts.reverse();
        }
        let rank = parts.first().map_or(Ok(0), |part| part.shape().map(|shape| shape.len()))?;
        carried.push(stacked(call, parts, axis(nth(&axes[1], i), rank + 1)?)?);
    }
    Ok(carried)
}

fn sequence_map(call: &Call<'_>) -> Result<Vec<Value>> {
    let body = call.graph("body")?;
    let Value::Sequence(first) = call.value(0)? else { return Err(bad("expected a sequence")) };
    let mut collected = Collected::new(body.outputs.len());
    for i in 0..first.len() {
        count_round()?;
        let item = |value: &Option<Value>| match value {
            Some(Value::Sequence(list)) => {
                list.get(i).cloned().ok_or_else(|| bad("the sequences have not the same length"))
            }
            Some(value) => Ok(value.clone()),
            None => Ok(Value::None),
        };
        let inputs = call.inputs.iter().map(item).collect::<Result<Vec<_>>>()?;
        // Only tensors are collected: they have shapes.
        collected.push(call.run(body, inputs)?.into_iter())?;
    }
    Ok(collected.lists.into_iter().map(Value::Sequence).collect())
}

//! Collectives over a list of tensors, each on a device of this process: any OpenCL devices and the native CPU together.
//!
//! Tensors of one device meet there; otherwise the bytes go through page-locked memory of the host, in chunks whose copies overlap
//! with the reduction of others. Sums are formed in the order of the list. Inside a captured function a collective is a step
//! of the program.
//!
//! ```
//! use netcl_distributed::{Reduce, collectives};
//! use netcl_nn::autograd::{RawTensor, manager};
//!
//! let (here, there) = (manager().get("auto")?.queue, manager().cpu().queue);
//! let a = RawTensor::from_host(&here, &[1.0f32, 2.0, 3.0], [3])?;
//! let b = RawTensor::from_host(&there, &[10.0f32, 20.0, 30.0], [3])?;
//! collectives::all_reduce(&[a.clone(), b.clone()], Reduce::Mean)?;
//! assert_eq!(a.to_host::<f32>()?, [5.5, 11.0, 16.5]);
//! let parts = collectives::scatter(&b, &[here, there])?;
//! assert_eq!(parts[0].to_host::<f32>()?, [5.5, 11.0]); // as numpy.array_split: the first ones are longer
//! # Ok::<(), netcl_distributed::Error>(())
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::Graph;
use netcl_core::tensor::reshape;
use netcl_nn::autograd::{DType, Queue, RawTensor, Shape, Slice};

use crate::error::{Error, Result};
use crate::reduction::Reduce;
use crate::transfer::{on_host, reduce_into};

/// More inputs than this are too many arguments for one kernel of some drivers.
const MAX_INPUTS: usize = 8;

/// Overwrites every tensor with the reduction of all. An empty list is left as it is.
///
/// # Errors
/// For tensors of different shapes or dtypes, which are named by their place in the list; for the mean of integers.
pub fn all_reduce(tensors: &[RawTensor], op: Reduce) -> Result<()> {
    const CALL: &str = "all_reduce";
    check_alike(CALL, tensors)?;
    check_apart(CALL, tensors)?;
    let Some(first) = tensors.first() else { return Ok(()) };
    op.check(CALL, first.dtype())?;
    if tensors.len() == 1 || first.size() == 0 {
        return Ok(());
    }
    if let Some(result) = reduce_on_device(CALL, tensors, op)? {
        return Ok(tensors.iter().try_for_each(|tensor| tensor.assign(&result))?);
    }
    let all: Vec<&RawTensor> = tensors.iter().collect();
    on_host(CALL, first.queue(), &[], &all, move |_, tensors| reduce_into(CALL, tensors, op, tensors))
}

/// Overwrites tensor `root` with the reduction of all; the others stay.
///
/// # Errors
/// As for [`all_reduce`]; for a root that is not in the list.
pub fn reduce(tensors: &[RawTensor], op: Reduce, root: usize) -> Result<()> {
    const CALL: &str = "reduce";
    check_alike(CALL, tensors)?;
    let target = check_root(CALL, tensors, root)?;
    op.check(CALL, target.dtype())?;
    check_writable(CALL, root, target)?;
    if tensors.len() == 1 || target.size() == 0 {
        return Ok(());
    }
    if let Some(result) = reduce_on_device(CALL, tensors, op)? {
        return Ok(target.assign(&result)?);
    }
    let others: Vec<&RawTensor> = tensors.iter().enumerate().filter(|(at, _)| *at != root).map(|(_, t)| t).collect();
    on_host(CALL, target.queue(), &others, &[target], move |others, target| {
        let mut sources = others.to_vec();
        sources.insert(root, target[0].clone());
        reduce_into(CALL, &sources, op, target)
    })
}

/// Overwrites every tensor with tensor `root`.
///
/// # Errors
/// As for [`reduce`].
pub fn broadcast(tensors: &[RawTensor], root: usize) -> Result<()> {
    const CALL: &str = "broadcast";
    check_alike(CALL, tensors)?;
    check_apart(CALL, tensors)?;
    let source = check_root(CALL, tensors, root)?;
    let others = tensors.iter().enumerate().filter(|(at, _)| *at != root).map(|(_, tensor)| tensor.clone());
    copy_all(CALL, vec![(source.clone(), others.collect())])
}

/// One tensor on a queue: all of them, one after the other along the first axis, in which they may differ. A tensor without axes
/// counts as one element.
///
/// # Errors
/// For an empty list; for tensors of different dtypes or other axes.
pub fn gather(tensors: &[RawTensor], queue: &Queue) -> Result<RawTensor> {
    const CALL: &str = "gather";
    Ok(gathered(CALL, tensors, std::slice::from_ref(queue))?.remove(0))
}

/// What [`gather`] gives, on the device of each tensor.
///
/// # Errors
/// As for [`gather`]; an empty list gives an empty one.
pub fn all_gather(tensors: &[RawTensor]) -> Result<Vec<RawTensor>> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let queues: Vec<Queue> = tensors.iter().map(|tensor| tensor.queue().clone()).collect();
    gathered("all_gather", tensors, &queues)
}

/// Parts of a tensor along its first axis, one on each queue. Where its length cannot be divided the first parts have one more.
///
/// # Errors
/// For a tensor without axes.
pub fn scatter(tensor: &RawTensor, queues: &[Queue]) -> Result<Vec<RawTensor>> {
    const CALL: &str = "scatter";
    let rows = rows_of(CALL, 0, tensor)?;
    let mut parts = Vec::with_capacity(queues.len());
    for (queue, range) in queues.iter().zip(split(rows, queues.len())) {
        parts.push((part(tensor, range.clone())?, vec![with_rows(tensor, range.len(), queue)?]));
    }
    let results = parts.iter().flat_map(|(_, to)| to.clone()).collect();
    copy_all(CALL, parts)?;
    Ok(results)
}

/// Part `k` of the reduction of all along the first axis, on the device of tensor `k`; cut as by [`scatter`].
///
/// # Errors
/// As for [`all_reduce`]; for tensors without axes.
pub fn reduce_scatter(tensors: &[RawTensor], op: Reduce) -> Result<Vec<RawTensor>> {
    const CALL: &str = "reduce_scatter";
    check_alike(CALL, tensors)?;
    let Some(first) = tensors.first() else { return Ok(Vec::new()) };
    op.check(CALL, first.dtype())?;
    let ranges = split(rows_of(CALL, 0, first)?, tensors.len());
    if let Some(result) = reduce_on_device(CALL, tensors, op)? {
        return ranges.iter().map(|range| Ok(part(&result, range.clone())?.duplicate()?)).collect();
    }
    let outs = tensors
        .iter()
        .zip(&ranges)
        .map(|(tensor, range)| with_rows(tensor, range.len(), tensor.queue()))
        .collect::<Result<Vec<RawTensor>>>()?;
    let (reads, writes): (Vec<&RawTensor>, Vec<&RawTensor>) = (tensors.iter().collect(), outs.iter().collect());
    on_host(CALL, first.queue(), &reads, &writes, move |tensors, outs| {
        for (out, range) in outs.iter().zip(&ranges) {
            let parts = tensors.iter().map(|tensor| part(tensor, range.clone())).collect::<Result<Vec<_>>>()?;
            reduce_into(CALL, &parts, op, std::slice::from_ref(out))?;
        }
        Ok(())
    })?;
    Ok(outs)
}

/// Cuts every tensor as [`scatter`] does, and gives device `k` the parts `k` of all, one after the other.
///
/// # Errors
/// For tensors of different dtypes or other axes than the first, and for tensors without axes.
pub fn all_to_all(tensors: &[RawTensor]) -> Result<Vec<RawTensor>> {
    const CALL: &str = "all_to_all";
    check_stackable(CALL, tensors)?;
    let count = tensors.len();
    let mut cuts = Vec::with_capacity(count);
    for (at, tensor) in tensors.iter().enumerate() {
        cuts.push(split(rows_of(CALL, at, tensor)?, count));
    }
    let (mut results, mut copies) = (Vec::with_capacity(count), Vec::with_capacity(count * count));
    for (to, tensor) in tensors.iter().enumerate() {
        let out = with_rows(tensor, cuts.iter().map(|cut| cut[to].len()).sum(), tensor.queue())?;
        let mut start = 0;
        for (tensor, cut) in tensors.iter().zip(&cuts) {
            let range = cut[to].clone();
            copies.push((part(tensor, range.clone())?, vec![part(&out, start..start + range.len())?]));
            start += range.len();
        }
        results.push(out);
    }
    copy_all(CALL, copies)?;
    Ok(results)
}

/// All tensors, one after the other along the first axis, on each queue.
pub(crate) fn gathered(call: &'static str, tensors: &[RawTensor], queues: &[Queue]) -> Result<Vec<RawTensor>> {
    check_stackable(call, tensors)?;
    let Some(first) = tensors.first() else {
        return Err(Error::argument(call, "the list is empty: there is no dtype to give"));
    };
    let rows = |tensor: &RawTensor| tensor.shape().first().copied().unwrap_or(1);
    let total = tensors.iter().map(rows).sum();
    let outs = queues.iter().map(|queue| with_rows(first, total, queue)).collect::<Result<Vec<_>>>()?;
    let (mut start, mut copies) = (0, Vec::with_capacity(tensors.len()));
    for tensor in tensors {
        let range = start..start + rows(tensor);
        start = range.end;
        let place = |out: &RawTensor| Ok(reshape(&part(out, range.clone())?, tensor.shape().clone())?);
        copies.push((tensor.clone(), outs.iter().map(place).collect::<Result<Vec<_>>>()?));
    }
    copy_all(call, copies)?;
    Ok(outs)
}

/// Copies each tensor to others of its size: on its device, in its context, or through the host in one step.
fn copy_all(call: &'static str, copies: Vec<(RawTensor, Vec<RawTensor>)>) -> Result<()> {
    let mut far: Vec<(RawTensor, Vec<RawTensor>)> = Vec::new();
    for (from, targets) in copies {
        let (near, away): (Vec<_>, Vec<_>) = targets.into_iter().partition(|to| to.queue().same_device(from.queue()));
        near.iter().filter(|to| to.size() > 0).try_for_each(|to| to.assign(&from))?;
        if from.size() > 0 && !away.is_empty() {
            far.push((from, away));
        }
    }
    let Some((first, _)) = far.first() else { return Ok(()) };
    let reads: Vec<&RawTensor> = far.iter().map(|(from, _)| from).collect();
    let writes: Vec<&RawTensor> = far.iter().flat_map(|(_, to)| to).collect();
    let counts: Vec<usize> = far.iter().map(|(_, to)| to.len()).collect();
    on_host(call, first.queue(), &reads, &writes, move |reads, writes| {
        let mut rest = writes;
        for (from, &count) in reads.iter().zip(&counts) {
            let (targets, after) = rest.split_at(count);
            let mut through_host = Vec::with_capacity(count);
            for to in targets {
                if !to.copy_in_context(from)? {
                    through_host.push(to.clone());
                }
            }
            if !through_host.is_empty() {
                reduce_into(call, std::slice::from_ref(from), Reduce::Sum, &through_host)?;
            }
            rest = after;
        }
        Ok(())
    })
}

/// The reduction as one kernel, where all tensors are floats of one device.
fn reduce_on_device(call: &'static str, tensors: &[RawTensor], op: Reduce) -> Result<Option<RawTensor>> {
    type Kernels = HashMap<(&'static str, usize), Arc<Elementwise>>;
    static KERNELS: LazyLock<Mutex<Kernels>> = LazyLock::new(Mutex::default);
    let Some((first, others)) = tensors.split_first() else { return Ok(None) };
    let here = |other: &RawTensor| other.queue().same_device(first.queue());
    if tensors.len() > MAX_INPUTS || !DType::FLOATS.contains(&first.dtype()) || !others.iter().all(here) {
        return Ok(None);
    }
    let make = || {
        let g = Graph::new();
        let values = (0..tensors.len()).map(|at| g.input(at));
        let folded = values.reduce(|a, b| match op {
            Reduce::Sum | Reduce::Mean => a + b,
            Reduce::Max => a.max(b),
            Reduce::Min => a.min(b),
        });
        let folded = folded.unwrap_or_else(|| g.input(0));
        let result = if op == Reduce::Mean { folded / tensors.len() as f64 } else { folded };
        Elementwise::new(call, g.finish(&[result]))
    };
    let kernel = KERNELS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry((op.name(), tensors.len()))
        .or_insert_with(make)
        .clone();
    let out = RawTensor::uninit(first.queue(), first.shape().clone(), first.dtype())?;
    kernel.run(&tensors.iter().collect::<Vec<_>>(), &[], &[&out])?;
    Ok(Some(out))
}

/// The ranges of `count` parts of so many rows: the first ones have one more where they cannot be equal.
pub(crate) fn split(rows: usize, count: usize) -> Vec<Range<usize>> {
    let start = |part: usize| part * (rows / count) + part.min(rows % count);
    (0..count).map(|part| start(part)..start(part + 1)).collect()
}

/// Some rows of a tensor, as a view.
fn part(tensor: &RawTensor, rows: Range<usize>) -> Result<RawTensor> {
    Ok(tensor.slice(0, Slice::new(Some(rows.start as isize), Some(rows.end as isize), 1))?)
}

/// New memory for a tensor with so many rows.
fn with_rows(tensor: &RawTensor, rows: usize, queue: &Queue) -> Result<RawTensor> {
    let rest = tensor.shape().iter().skip(1).copied();
    let shape: Shape = [rows].into_iter().chain(rest).collect();
    Ok(RawTensor::uninit(queue, shape, tensor.dtype())?)
}

fn rows_of(call: &'static str, at: usize, tensor: &RawTensor) -> Result<usize> {
    let none = || Error::argument(call, format!("tensor {at} has no axis to be cut along; reshape it to (1,)"));
    tensor.shape().first().copied().ok_or_else(none)
}

fn check_root<'t>(call: &'static str, tensors: &'t [RawTensor], root: usize) -> Result<&'t RawTensor> {
    let count = tensors.len();
    tensors.get(root).ok_or_else(|| Error::argument(call, format!("there is no tensor {root} in a list of {count}")))
}

fn check_alike(call: &'static str, tensors: &[RawTensor]) -> Result<()> {
    check(call, tensors, "must be alike", |tensor| tensor.shape().to_vec())
}

fn check_stackable(call: &'static str, tensors: &[RawTensor]) -> Result<()> {
    let rest = |tensor: &RawTensor| match &tensor.shape()[..] {
        [] => vec![usize::MAX],
        [_, rest @ ..] => rest.to_vec(),
    };
    check(call, tensors, "may differ in their first axis only", rest)
}

/// An error that names the first tensor whose dtype or axes are not those of tensor 0.
fn check(call: &'static str, tensors: &[RawTensor], rule: &str, axes: impl Fn(&RawTensor) -> Vec<usize>) -> Result<()> {
    let Some(first) = tensors.first() else { return Ok(()) };
    let differs = |tensor: &RawTensor| tensor.dtype() != first.dtype() || axes(tensor) != axes(first);
    match tensors.iter().position(differs) {
        None => Ok(()),
        Some(at) => {
            let text = |tensor: &RawTensor| format!("{} of shape {}", tensor.dtype(), tensor.shape());
            let what = format!("tensor {at} is {}, tensor 0 is {}; they {rule}", text(&tensors[at]), text(first));
            Err(Error::argument(call, what))
        }
    }
}

fn check_writable(call: &'static str, at: usize, tensor: &RawTensor) -> Result<()> {
    if tensor.layout().overlaps_itself() {
        let what = format!("tensor {at} is an expanded view, whose elements share memory; make a copy first");
        return Err(Error::argument(call, what));
    }
    Ok(())
}

/// An error for tensors that cannot be written in any order: parts of one memory that overlap without being the same.
fn check_apart(call: &'static str, tensors: &[RawTensor]) -> Result<()> {
    for (at, tensor) in tensors.iter().enumerate() {
        check_writable(call, at, tensor)?;
        let (start, end) = (tensor.layout().offset(), tensor.layout().end());
        let meets = |other: &RawTensor| {
            let layout = other.layout();
            other.shares_storage(tensor)
                && layout != tensor.layout()
                && (start < layout.end() && layout.offset() < end || layout.strides().iter().any(|&step| step < 0))
        };
        if let Some(other) = tensors[..at].iter().position(meets) {
            let what = format!("tensors {other} and {at} are views that overlap; make a copy of one");
            return Err(Error::argument(call, what));
        }
    }
    Ok(())
}

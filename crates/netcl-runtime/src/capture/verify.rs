//! A guard: one step run both ways, compared bit by bit.

use std::collections::HashMap;
use std::rc::Rc;

use netcl_core::kernels::launch::{self, Arg, Scalar};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::journal::{Journal, Noted};
use super::{Captured, Tensors};

impl<I, O, E, F> Captured<I, O, E, F>
where
    I: Tensors,
    O: Tensors,
    E: From<Error>,
    F: FnMut(&I) -> Result<O, E>,
{
    /// Makes one step twice, by the function itself and by a replay from the same state with the same numbers, and compares
    /// everything that either writes, bit by bit. Afterwards one step has been made.
    ///
    /// ```
    /// use netcl_runtime::capture::capture;
    /// use netcl_runtime::core::{Error, device::manager, dtype::DType, tensor::Tensor};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[0.5f32], [1])?;
    /// let mut step = capture(|x: &Tensor| x.cast(DType::F16));
    /// step.verify(&x)?;
    ///
    /// // A number that changes without a slot is baked into the recording.
    /// let mut calls = 0.0;
    /// let mut wrong = capture(|x: &Tensor| {
    ///     calls += 1.0;
    ///     Tensor::full(x.queue(), [1], DType::F32, calls)
    /// });
    /// let error = wrong.verify(&x).unwrap_err().to_string();
    /// assert!(error.contains("output 0"), "{error}");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Names the first difference: a launch that only one of them makes, a tensor and its first byte that differs.
    /// Otherwise those of [`Captured::call`].
    pub fn verify(&mut self, inputs: &I) -> Result<O, E> {
        self.prepare(inputs)?;
        let Some(entry) = self.programs.last() else { return self.replay() };
        let before = entry.program.snapshot()?;
        let journal = Rc::new(Journal::default());
        let eager = launch::with_sink(journal.clone(), || (self.function)(inputs))?;
        let expected = tensors_of(&eager).into_iter().map(Tensor::duplicate).collect::<Result<Vec<Tensor>>>()?;
        let Some(entry) = self.programs.last() else { return Ok(eager) };
        let after = entry.program.snapshot()?;
        for (state, before) in entry.program.changed()?.iter().zip(&before) {
            state.assign(before)?;
        }
        let noted = journal.take();
        let stats = entry.program.stats();
        if let Some(strange) = unexplained(&noted, &stats.names) {
            let names: Vec<&str> = noted.iter().map(|noted| noted.name.as_str()).collect();
            let what = format!(
                "{strange}: the function makes {} launches, the recording {}: {names:?} against {:?}",
                noted.len(),
                stats.launches,
                stats.names
            );
            return Err(differs(what).into());
        }
        // Launches with slots, in order: they are the same in both.
        let mut rest = noted.iter();
        entry.program.run_launches(|at, launch| {
            let slot =
                |arg: &Arg| matches!(arg, Arg::Scalar(Scalar::SlotF32(_) | Scalar::SlotF64(_) | Scalar::SlotU64(_)));
            if !launch.args.iter().any(slot) {
                return Ok(());
            }
            let same = |noted: &&Noted| noted.name == launch.name && noted.args == launch.args.len();
            let Some(noted) = rest.find(same) else {
                let what = format!("launch {at}, {}, is not among those that the function makes then", launch.name);
                return Err(differs(what));
            };
            for (arg, number) in &noted.numbers {
                if let Some(given) = launch.args.get_mut(*arg).filter(|arg| slot(arg)) {
                    *given = Arg::Scalar(number.clone());
                }
            }
            Ok(())
        })?;
        for (i, (expected, replayed)) in expected.iter().zip(tensors_of(&entry.output)).enumerate() {
            compare(&format!("output {i}"), expected, replayed)?;
        }
        for (i, (expected, state)) in after.iter().zip(entry.program.changed()?).enumerate() {
            compare(&format!("tensor {i} of those that the step changes"), expected, &state)?;
        }
        Ok(super::same(&entry.output)?)
    }
}

/// What keeps a recording from being the function's launches, but for products that have taken in what followed them
/// (`matmul` and `relu` as `matmul_relu`) and constants that are filled once.
fn unexplained(noted: &[Noted], recorded: &[String]) -> Option<String> {
    let mut left: HashMap<&str, usize> = HashMap::new();
    noted.iter().for_each(|noted| *left.entry(noted.name.as_str()).or_default() += 1);
    let mut joined = Vec::new();
    for name in recorded {
        match left.get_mut(name.as_str()).filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => joined.push(name),
        }
    }
    for name in joined {
        let there = |name: &str| left.get(name).is_some_and(|count| *count > 0);
        let mut cuts = name.match_indices('_').map(|(at, _)| (&name[..at], &name[at + 1..]));
        let Some((product, behind)) = cuts.find(|(product, behind)| there(product) && there(behind)) else {
            return Some(format!("{name} is only in the recording"));
        };
        for part in [product, behind] {
            if let Some(count) = left.get_mut(part) {
                *count -= 1;
            }
        }
    }
    left.retain(|name, count| *count > 0 && *name != "fill");
    left.keys().min().map(|name| format!("{name} is only in the function"))
}

fn tensors_of<T: Tensors>(tensors: &T) -> Vec<&Tensor> {
    let mut all = Vec::new();
    tensors.visit(&mut |tensor| all.push(tensor));
    all
}

fn compare(what: &str, expected: &Tensor, replayed: &Tensor) -> Result<()> {
    if (expected.shape(), expected.dtype()) != (replayed.shape(), replayed.dtype()) {
        let (shape, dtype) = (replayed.shape(), replayed.dtype());
        return Err(differs(format!(
            "{what} is {} of shape {} from the function, {dtype} of shape {shape} replayed",
            expected.dtype(),
            expected.shape()
        )));
    }
    let bytes = |tensor: &Tensor| {
        let mut bytes = vec![0u8; tensor.size() * tensor.dtype().size()];
        tensor.read_bytes(&mut bytes).map(|()| bytes)
    };
    let size = expected.dtype().size();
    match bytes(expected)?.chunks(size).zip(bytes(replayed)?.chunks(size)).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(differs(format!("{what} differs from element {at} on, of {}", expected.size()))),
    }
}

fn differs(what: String) -> Error {
    let why = "a number that changes from step to step without a slot, or a branch that goes another way, is baked into a \
               recording";
    Error::State { op: "verify", what: format!("{what}; {why}") }
}

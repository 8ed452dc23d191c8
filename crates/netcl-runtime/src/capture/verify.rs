//! A guard: one step run both ways, compared bit by bit.

use std::rc::Rc;

use netcl_core::kernels::launch::{self, Arg};
use netcl_core::kernels::recording::Origin;
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
    /// use netcl_core::{Error, device::manager, dtype::DType, tensor::Tensor};
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
        let program = &entry.program;
        check_same_launches(&noted, &program.origins)?;
        program.run_launches(|at, launch| {
            for slot in program.slots.iter().filter(|slot| slot.launch == at) {
                let mut numbers = noted[slot.origin].numbers.iter();
                if let Some((_, number)) = numbers.find(|(arg, _)| *arg == slot.origin_arg) {
                    launch.args[slot.arg] = Arg::Scalar(number.clone());
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

/// An error that names the first launch of the function that is not the one it made when it was recorded.
fn check_same_launches(noted: &[Noted], recorded: &[Origin]) -> Result<()> {
    let now = |at: usize| noted.get(at).map(|noted| &noted.origin);
    let Some(at) = (0..noted.len().max(recorded.len())).find(|&at| now(at) != recorded.get(at)) else {
        return Ok(());
    };
    let name = |origin: Option<&Origin>| origin.map_or_else(|| "nothing".to_owned(), |origin| origin.name.to_string());
    let what = format!(
        "launch {at} of the function is {} now and was {} when it was recorded ({} launches now, {} then)",
        name(now(at)),
        name(recorded.get(at)),
        noted.len(),
        recorded.len()
    );
    Err(differs(what))
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

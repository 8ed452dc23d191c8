//! Capture and replay: a whole step as a flat list of launches.
//!
//! [`capture`] runs a function once while its launches are recorded instead of run; from then on a call is a replay: the same
//! launches in the same order, with their arguments set and their memory planned, without allocation, shapes, graphs or Rust
//! code of the function. A replay gives the bits that the function itself would give.
//!
//! ```text
//!   recorded     launch  launch  host   launch  ...          host: count a step, next learning rate, next random numbers
//!   planned      [  a  ][   b   ]                            tensors that never live at the same time share bytes
//!                [    c    ][ d ]
//!   replayed     with the inputs of the call, the slots' numbers of the moment
//! ```
//!
//! Where nobody could tell, a recorded step has fewer launches than the function: an activation behind a product or a convolution,
//! or its gradient, becomes a part of it, and small constants are filled once.
//!
//! What is not a launch happens once, while recording: branches are taken, numbers are baked in. What changes from step to
//! step lives in slots (the learning rate and step of an optimizer, the place of dropout's random numbers) and is moved on by
//! the host at every replay; [`netcl_core::kernels::launch::each_run`] adds such an action.

mod journal;
mod kernel_capture;
pub mod plan;
mod program;
mod tensors;
mod verify;

use std::marker::PhantomData;
use std::rc::Rc;

use netcl_core::kernels::launch;
use netcl_core::kernels::recording::Recording;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

pub use kernel_capture::{KernelCapture, Paused};
pub use program::CaptureStats;
pub(crate) use program::{Input, Program};
pub use tensors::Tensors;

/// How many programs a captured function keeps, for as many kinds of inputs.
const PROGRAMS: usize = 8;

/// A function whose launches are recorded at its first call and replayed from then on; see [`capture`].
pub struct Captured<I, O, E, F> {
    function: F,
    /// By kind of input, the one used last at the end.
    programs: Vec<Entry<O>>,
    recordings: usize,
    signature: PhantomData<Signature<I, O, E>>,
}

/// What a captured function takes and gives.
type Signature<I, O, E> = fn(&I) -> Result<O, E>;

struct Entry<O> {
    /// Which recording it is, from 1.
    number: usize,
    program: Program,
    output: O,
}

/// Makes a function of tensors replayable.
///
/// The first call with inputs of some shapes, dtypes and device records the function and then runs what was recorded; later
/// calls only run it. Other shapes, dtypes, orders of axes in memory, another device or another precision of products (autocast,
/// [`set_matmul_precision`](netcl_core::precision::set_matmul_precision)) record another program; the eight used last are kept.
///
/// - The function is run while recording only. Reading values there ([`Tensor::item`], [`Tensor::to_host`]) is an error.
/// - The tensors it returns, and those that it leaves behind (gradients that are not cleared), are overwritten by the next
///   call; they carry no graph.
/// - Optimizers, schedules, weight averages and the process-wide random generator move on at every replay as they would in
///   the function itself. Other state of the host does not: see
///   [`each_run`](netcl_core::kernels::launch::each_run).
///
/// ```
/// use netcl_runtime::capture::capture;
/// use netcl_core::{Error, device::manager, dtype::DType, tensor::Tensor};
///
/// let queue = manager().get("auto")?.queue;
/// let total = Tensor::from_shape(&queue, [2], DType::F32)?;
/// let sum = total.clone();
/// let mut step = capture(move |x: &Tensor| {
///     let wide = x.cast(DType::F64)?;
///     sum.assign(x)?;
///     Ok::<_, Error>(wide)
/// });
/// for i in 0..3 {
///     let x = Tensor::from_host(&queue, &[i as f32, 1.0], [2])?;
///     assert_eq!(step.call(&x)?.to_host::<f64>()?, [f64::from(i), 1.0]);
/// }
/// assert_eq!(total.to_host::<f32>()?, [2.0, 1.0]);
/// assert_eq!(step.recordings(), 1);
/// # Ok::<(), Error>(())
/// ```
pub fn capture<I, O, E, F>(function: F) -> Captured<I, O, E, F>
where
    I: Tensors,
    O: Tensors,
    E: From<Error>,
    F: FnMut(&I) -> Result<O, E>,
{
    Captured { function, programs: Vec::new(), recordings: 0, signature: PhantomData }
}

impl<I, O, E, F> Captured<I, O, E, F>
where
    I: Tensors,
    O: Tensors,
    E: From<Error>,
    F: FnMut(&I) -> Result<O, E>,
{
    /// One step with these inputs.
    ///
    /// Nothing waits for the device. Inputs are read where they lie if they can be: do not write to them before the step is
    /// through, other than by work on the same queue.
    ///
    /// # Errors
    /// Those of the function while recording; a call inside another recording; what the driver says.
    pub fn call(&mut self, inputs: &I) -> Result<O, E> {
        self.prepare(inputs)?;
        self.replay()
    }

    /// The step of the last call once more, with the same inputs.
    ///
    /// # Errors
    /// Before the first call; inside a recording; what the driver says.
    pub fn replay(&mut self) -> Result<O, E> {
        check_outside()?;
        let Some(Entry { program, output, .. }) = self.programs.last_mut() else {
            let what = "nothing has been recorded yet; call it with inputs first".to_owned();
            return Err(Error::State { op: "replay", what }.into());
        };
        if program.is_outdated() {
            let what =
                "a tensor that the step uses has moved to another device or dtype; call it with inputs".to_owned();
            return Err(Error::State { op: "replay", what }.into());
        }
        program.run()?;
        Ok(same(output)?)
    }

    /// Launches and memory of the program that was used last; `None` before the first call.
    pub fn stats(&self) -> Option<&CaptureStats> {
        self.programs.last().map(|entry| entry.program.stats())
    }

    /// How often the function was recorded.
    pub fn recordings(&self) -> usize {
        self.recordings
    }

    /// Which recording was used last, counted from 1; 0 before the first call.
    pub fn current(&self) -> usize {
        self.programs.last().map_or(0, |entry| entry.number)
    }

    /// Forgets all programs and gives their memory back, but for tensors that are still held. The next call records.
    pub fn clear(&mut self) {
        self.programs.clear();
    }

    /// The function itself, and an end to all programs.
    pub fn into_inner(self) -> F {
        self.function
    }

    /// Puts the program for these inputs last and feeds it; records it if there is none.
    fn prepare(&mut self, inputs: &I) -> Result<(), E> {
        check_outside()?;
        let mut given: Vec<&Tensor> = Vec::new();
        inputs.visit(&mut |tensor| given.push(tensor));
        match self.programs.iter().position(|entry| entry.program.fits(&given)) {
            Some(at) => {
                self.programs[at..].rotate_left(1);
                if let Some(entry) = self.programs.last_mut() {
                    entry.program.feed(&given)?;
                }
            }
            None => {
                let entry = self.record(inputs, &given)?;
                if self.programs.len() == PROGRAMS {
                    self.programs.remove(0);
                }
                self.programs.push(entry);
            }
        }
        Ok(())
    }

    fn record(&mut self, inputs: &I, given: &[&Tensor]) -> Result<Entry<O>, E> {
        let recording = Rc::new(Recording::new());
        let mut known: Vec<(Input, usize)> = Vec::with_capacity(given.len());
        let stand_ins = inputs.replace(&mut |tensor| {
            let input = Input::like(tensor)?;
            let (storage, need) = recording.input(tensor.queue(), input.nbytes());
            let stand_in = input.tensor(storage)?;
            known.push((input, need));
            Ok(stand_in)
        })?;
        let output = launch::with_sink(recording.clone(), || (self.function)(&stand_ins));
        drop(stand_ins);
        // What made the result is not needed: nobody can go back through a replay.
        let output = same(&output?)?;
        let program = Program::new(recording.finish()?, known, given)?;
        self.recordings += 1;
        Ok(Entry { number: self.recordings, program, output })
    }
}

/// The same tensors without what made them.
fn same<T: Tensors>(tensors: &T) -> Result<T> {
    tensors.replace(&mut |tensor| Ok(tensor.clone()))
}

fn check_outside() -> Result<()> {
    if !launch::is_repeating() {
        return Ok(());
    }
    let what = "a captured function cannot be called while another one is being recorded; call the plain function there, which \
                becomes a part of the recording";
    Err(Error::State { op: "capture", what: what.to_owned() })
}

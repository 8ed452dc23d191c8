//! Averages of weights over the steps of a training.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use netcl_autograd::{Error, Result, Tensor};
use netcl_core::Error as CoreError;
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::launch::{self, Slot};
use netcl_core::kernels::many::{Many, Operands, Segment, Segments, Target};
use netcl_core::shape::Layout;
use netcl_core::tensor::Tensor as Raw;

use crate::state::{State, StateCheck};

const OP: &str = "Ema";

/// An exponential moving average of parameters: `average = decay * average + (1 - decay) * p` after each step.
///
/// With warm-up the decay starts at 1/10 and rises as `min(decay, (1 + n) / (10 + n))` after `n` updates, so that the random
/// start is soon forgotten. An update is one launch for all parameters of a dtype; the averages are kept in float32 for
/// 16-bit parameters.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{Ema, EmaOptions};
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[1.0f32], [1])?.with_grad();
/// let mut ema = Ema::new([p.clone()], EmaOptions { decay: 0.75, warmup: false })?;
/// p.fill(5.0)?;
/// ema.update()?;
/// assert_eq!(ema.averages()?[0].item()?, 2.0);
///
/// ema.swap()?; // evaluate with the averages ...
/// assert_eq!(p.item()?, 2.0);
/// ema.swap()?; // ... and train on
/// assert_eq!(p.item()?, 5.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct Ema {
    params: Vec<Tensor>,
    options: EmaOptions,
    updates: Arc<AtomicU64>,
    decay: Arc<Slot>,
    rest: Arc<Slot>,
    arenas: Vec<Arena>,
    /// For each parameter its arena and where its part starts.
    places: Vec<Place>,
    swapped: bool,
}

/// The settings of [`Ema`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmaOptions {
    /// How much of the average is kept in an update.
    pub decay: f64,
    /// Whether the decay starts small.
    pub warmup: bool,
}

impl Default for EmaOptions {
    fn default() -> Self {
        EmaOptions { decay: 0.999, warmup: true }
    }
}

impl EmaOptions {
    /// The decay after so many updates.
    fn after(&self, updates: u64) -> f64 {
        let n = updates as f64;
        if self.warmup { self.decay.min((1.0 + n) / (10.0 + n)) } else { self.decay }
    }

    fn set(&self, updates: u64, [decay, rest]: &[Arc<Slot>; 2]) {
        let value = self.after(updates);
        decay.set_float(value);
        rest.set_float(1.0 - value);
    }
}

/// The arena of a parameter, and where its part starts.
type Place = (usize, usize);

/// The parameters of one dtype and device.
#[derive(Debug)]
struct Arena {
    params: Vec<Raw>,
    flat: Raw,
    segments: Segments,
}

impl Ema {
    /// Averages that start as copies of the parameters.
    ///
    /// # Errors
    /// For a decay that is not between 0 and 1, and for parameters that are none or not dense.
    pub fn new(params: impl IntoIterator<Item = Tensor>, options: EmaOptions) -> Result<Ema> {
        let params: Vec<Tensor> = params.into_iter().collect();
        if !(options.decay > 0.0 && options.decay < 1.0) {
            let what = format!("the decay is {}; use a number between 0 and 1", options.decay);
            return Err(Error::argument(OP, what));
        }
        if params.is_empty() {
            return Err(Error::argument(OP, "there are no parameters; pass model.parameters()"));
        }
        let (arenas, places) = homes(&params)?;
        let (decay, rest) = (Slot::float(0.0), Slot::float(1.0));
        let ema = Ema { params, options, updates: Arc::default(), decay, rest, arenas, places, swapped: false };
        // A decay of zero copies.
        ema.run()?;
        ema.set_decay();
        Ok(ema)
    }

    /// The parameters. One that was moved since the last update is found by [`Tensor::latest`].
    pub fn params(&self) -> &[Tensor] {
        &self.params
    }

    /// The settings.
    pub fn options(&self) -> EmaOptions {
        self.options
    }

    /// How many updates there were.
    pub fn updates(&self) -> u64 {
        self.updates.load(Ordering::Acquire)
    }

    /// The decay of the next update.
    pub fn current_decay(&self) -> f64 {
        self.options.after(self.updates())
    }

    /// Where parameters were moved (another device, another dtype), their averages move too.
    fn follow(&mut self) -> Result<()> {
        if !self.params.iter().any(Tensor::has_moved) {
            return Ok(());
        }
        let before = self.averages()?;
        let params: Vec<Tensor> = self.params.iter().map(Tensor::latest).collect();
        let (arenas, places) = launch::at_once(|| homes(&params))?;
        (self.params, self.arenas, self.places) = (params, arenas, places);
        for (average, before) in self.averages()?.iter().zip(before) {
            launch::at_once(|| average.assign(&before.raw().to(average.queue())?))?;
        }
        Ok(())
    }

    /// Takes the parameters into the average: call it after each step.
    ///
    /// # Errors
    /// While the averages are swapped in.
    pub fn update(&mut self) -> Result<()> {
        self.check_not_swapped("update")?;
        self.follow()?;
        self.run()?;
        let (options, updates) = (self.options, self.updates.clone());
        let slots = [self.decay.clone(), self.rest.clone()];
        launch::each_run(move || {
            options.set(updates.fetch_add(1, Ordering::AcqRel) + 1, &slots);
            Ok(())
        })?;
        Ok(())
    }

    /// Counts an update without running one: for whoever replays a captured one, before the next replay.
    pub fn advance(&mut self) {
        self.updates.fetch_add(1, Ordering::AcqRel);
        self.set_decay();
    }

    /// The averages, one for each parameter. They share the average's memory: duplicate them to keep them.
    pub fn averages(&self) -> Result<Vec<Tensor>> {
        let place = |(parameter, &(arena, at)): (&Tensor, &(usize, usize))| {
            let flat = &self.arenas[arena].flat;
            Ok(flat.with_layout(Layout::contiguous(parameter.shape().clone()).shifted(at))?.into())
        };
        self.params.iter().zip(&self.places).map(place).collect()
    }

    /// Whether the parameters hold the averages at the moment.
    pub fn is_swapped(&self) -> bool {
        self.swapped
    }

    /// Exchanges parameters and averages, in one launch per dtype; once more brings them back.
    pub fn swap(&mut self) -> Result<()> {
        static SWAP: LazyLock<Arc<Many>> = LazyLock::new(|| {
            let g = Graph::new();
            let exchanged = g.finish(&[g.input(1), g.input(0)]);
            Many::new("ema_swap", exchanged, 1, 1, vec![Target::List(0), Target::Row(0)])
        });
        self.follow()?;
        for Arena { params, flat, segments } in &self.arenas {
            SWAP.run(segments, &Operands { lists: &[params], flat: Some(flat), sets: &[Vec::new()] })?;
        }
        self.swapped = !self.swapped;
        Ok(())
    }

    /// Overwrites the parameters with the averages for good.
    ///
    /// # Errors
    /// While the averages are swapped in: they are there already, and swapping back would undo it.
    pub fn copy_to_params(&self) -> Result<()> {
        self.check_not_swapped("copy_to_params")?;
        for (parameter, average) in self.params.iter().map(Tensor::latest).zip(self.averages()?) {
            parameter.assign(&average.raw().to(parameter.queue())?)?;
        }
        Ok(())
    }

    /// Everything another average needs to go on exactly where this one stands.
    ///
    /// # Errors
    /// While the averages are swapped in.
    pub fn state(&self) -> Result<State> {
        self.check_not_swapped("state")?;
        let mut state = State::default();
        state.numbers.insert("updates".to_owned(), self.updates() as f64);
        for (i, average) in self.averages()?.into_iter().enumerate() {
            state.tensors.insert(format!("{i}.average"), average);
        }
        Ok(state)
    }

    /// Goes on from a state that [`Ema::state`] gave for the same parameters.
    ///
    /// # Errors
    /// Names every entry that is missing, unknown or of the wrong shape; nothing has changed then.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        self.check_not_swapped("load_state")?;
        let mut check = StateCheck::default();
        check.numbers(state, ["updates"].into_iter(), |_| false);
        let shapes = self.params.iter().enumerate().map(|(i, p)| (format!("{i}.average"), p.shape().clone()));
        check.tensors(state, &shapes.collect());
        check.finish(OP)?;
        self.follow()?;
        for (i, average) in self.averages()?.iter().enumerate() {
            if let Some(stored) = state.tensors.get(&format!("{i}.average")) {
                average.assign(&stored.raw().to(average.queue())?)?;
            }
        }
        self.updates.store(state.number("updates") as u64, Ordering::Release);
        self.set_decay();
        Ok(())
    }

    fn set_decay(&self) {
        self.options.set(self.updates(), &[self.decay.clone(), self.rest.clone()]);
    }

    fn run(&self) -> Result<()> {
        static AVERAGE: LazyLock<Arc<Many>> = LazyLock::new(|| {
            let g = Graph::new();
            let average = g.input(1) * g.scalar(0) + g.input(0) * g.scalar(1);
            Many::new("ema", g.finish(&[average]), 1, 1, vec![Target::Row(0)])
        });
        let sets = [vec![Number::Slot(self.decay.clone()), Number::Slot(self.rest.clone())]];
        for Arena { params, flat, segments } in &self.arenas {
            AVERAGE.run(segments, &Operands { lists: &[params], flat: Some(flat), sets: &sets })?;
        }
        Ok(())
    }

    fn check_not_swapped(&self, what: &str) -> Result<()> {
        if !self.swapped {
            return Ok(());
        }
        let what = format!("{what}: the parameters hold the averages at the moment; call swap() first");
        Err(CoreError::State { op: OP, what }.into())
    }
}

/// Memory for the averages of parameters, by dtype and device, and each parameter's place in it.
fn homes(params: &[Tensor]) -> Result<(Vec<Arena>, Vec<Place>)> {
    let mut lists: Vec<(Vec<Raw>, Vec<Segment>, usize)> = Vec::new();
    let mut places = Vec::with_capacity(params.len());
    for (i, parameter) in params.iter().enumerate() {
        parameter.check_float(OP)?;
        if !parameter.layout().is_contiguous() {
            let what = format!("parameter {i} is a view that is not dense; average the tensor it is a view of");
            return Err(Error::argument(OP, what));
        }
        let fits = |(list, ..): &(Vec<Raw>, Vec<Segment>, usize)| {
            list[0].dtype() == parameter.dtype() && list[0].queue().same_device(parameter.queue())
        };
        let at = lists.iter().position(fits).unwrap_or_else(|| {
            lists.push(Default::default());
            lists.len() - 1
        });
        let (list, segments, stride) = &mut lists[at];
        places.push((at, *stride));
        list.push(parameter.raw().clone());
        segments.push(Segment { count: parameter.size(), flat: *stride, set: 0 });
        *stride += parameter.size().next_multiple_of(16);
    }
    let arenas = lists
        .into_iter()
        .map(|(params, segments, stride)| {
            let compute = if params[0].dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            let flat = Raw::from_shape(params[0].queue(), [stride], compute)?;
            Ok(Arena { params, flat, segments: Segments::with_stride(segments, stride) })
        })
        .collect::<Result<Vec<Arena>>>()?;
    Ok((arenas, places))
}

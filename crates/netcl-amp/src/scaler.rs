//! Loss scaling: gradients of float16 below 6e-8 are zero, so that the loss is multiplied before the walk backwards and gradients are
//! divided before the update.
//!
//! The scale, the check of gradients, the skipped update and the scale's own growth stay on the device: nothing waits, and a
//! captured step does all of it at every replay.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use netcl_autograd::ops::elementwise::{add, cast, mul};
use netcl_autograd::{Error, Queue, RawTensor, Result, Tensor};
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::{Elementwise, Number};
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::launch::{Slot, at_once};
use netcl_optim::{GradScale, Optimizer, ParamGroup, State, StepOptions, unscale_grads};

/// How a [`GradScaler`] begins, and how its scale moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradScalerOptions {
    /// The first scale.
    pub init_scale: f64,
    /// What the scale is multiplied by after `growth_interval` steps in a row with finite gradients.
    pub growth_factor: f64,
    /// What it is multiplied by after a step whose gradients were not finite, and which was skipped.
    pub backoff_factor: f64,
    /// How many steps must go well before the scale grows.
    pub growth_interval: u64,
    /// Off, it leaves losses as they are and steps are plain.
    pub enabled: bool,
}

impl Default for GradScalerOptions {
    /// PyTorch's: 65536, 2, 0.5, 2000.
    fn default() -> Self {
        GradScalerOptions {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            enabled: true,
        }
    }
}

/// Scales losses, unscales gradients, skips updates whose gradients are not finite, and finds the largest scale that works.
///
/// One scaler serves several optimizers. A step is `scale(loss).backward()`, `step(optimizer)`, `update()`; for clipping,
/// [`step_with`](GradScaler::step_with) takes a norm, or [`unscale`](GradScaler::unscale) comes before anything that reads gradients.
///
/// ```
/// use netcl_amp::{DType, GradScaler};
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{Optimizer, SGD};
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[1.0f32], [1])?.with_grad();
/// let mut optimizer = SGD::new([p.clone()], 0.5)?;
/// let mut scaler = GradScaler::default();
/// for factor in [1.0, f64::INFINITY] {
///     let loss = (&p * factor)?.sum((), false)?;
///     scaler.scale(&loss)?.backward()?;
///     scaler.step(&mut optimizer)?;
///     scaler.update()?;
///     optimizer.zero_grad();
/// }
/// assert_eq!(p.item()?, 0.5); // the second step was skipped
/// assert_eq!(scaler.get_scale()?, 32768.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct GradScaler {
    enabled: bool,
    growth_factor: Arc<Slot>,
    backoff_factor: Arc<Slot>,
    growth_interval: Arc<Slot>,
    place: Place,
    /// What has become of each optimizer since the last update, by its number.
    stages: HashMap<u64, Stage>,
}

/// The scale and the number of good steps in a row.
#[derive(Debug)]
enum Place {
    /// No loss was scaled yet.
    Host([f64; 2]),
    /// One float32 number each.
    Device(Box<[RawTensor; 2]>),
}

impl Place {
    /// Both numbers, which may have to wait for the device.
    fn read(&self) -> Result<[f64; 2]> {
        match self {
            Place::Host(numbers) => Ok(*numbers),
            Place::Device(numbers) => Ok([numbers[0].item()?, numbers[1].item()?]),
        }
    }
}

#[derive(Debug)]
enum Stage {
    /// With the norm, and 1 if it is not finite; `None` where nothing has a gradient.
    Unscaled(Option<(Tensor, Tensor)>),
    /// With the norm.
    Stepped(Option<Tensor>),
}

impl Default for GradScaler {
    fn default() -> Self {
        GradScaler::made(&GradScalerOptions::default())
    }
}

impl GradScaler {
    /// A scaler with settings of its own.
    ///
    /// # Errors
    /// For a scale, factors or an interval that cannot work.
    pub fn new(options: &GradScalerOptions) -> Result<GradScaler> {
        let GradScalerOptions { init_scale, growth_factor, backoff_factor, growth_interval, .. } = *options;
        check("init_scale", init_scale, init_scale > 0.0, "above 0")?;
        check("growth_factor", growth_factor, growth_factor > 1.0, "above 1")?;
        check("backoff_factor", backoff_factor, backoff_factor > 0.0 && backoff_factor < 1.0, "between 0 and 1")?;
        // Good steps are counted in a float32 number.
        let fits = (1..=1 << 24).contains(&growth_interval);
        check("growth_interval", growth_interval as f64, fits, "from 1 to 16777216")?;
        Ok(GradScaler::made(options))
    }

    fn made(options: &GradScalerOptions) -> GradScaler {
        GradScaler {
            enabled: options.enabled,
            growth_factor: Slot::float(options.growth_factor),
            backoff_factor: Slot::float(options.backoff_factor),
            growth_interval: Slot::float(options.growth_interval as f64),
            place: Place::Host([options.init_scale, 0.0]),
            stages: HashMap::new(),
        }
    }

    /// Whether it does anything.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// What the scale is multiplied by when it grows.
    pub fn growth_factor(&self) -> f64 {
        self.growth_factor.get_float()
    }

    /// What the scale is multiplied by after a skipped step.
    pub fn backoff_factor(&self) -> f64 {
        self.backoff_factor.get_float()
    }

    /// How many steps must go well before the scale grows.
    pub fn growth_interval(&self) -> u64 {
        self.growth_interval.get_float() as u64
    }

    /// Changes how the scale moves from now on, also in captured steps; `None` leaves a number as it is.
    ///
    /// # Errors
    /// As [`GradScaler::new`]; nothing has changed then.
    pub fn set_growth(&mut self, growth: Option<f64>, backoff: Option<f64>, interval: Option<u64>) -> Result<()> {
        let growth_factor = growth.unwrap_or(self.growth_factor());
        let backoff_factor = backoff.unwrap_or(self.backoff_factor());
        let growth_interval = interval.unwrap_or(self.growth_interval());
        GradScaler::new(&GradScalerOptions { growth_factor, backoff_factor, growth_interval, ..Default::default() })?;
        self.growth_factor.set_float(growth_factor);
        self.backoff_factor.set_float(backoff_factor);
        self.growth_interval.set_float(growth_interval as f64);
        Ok(())
    }

    /// A loss times the scale, whose `backward` gives scaled gradients. A 16-bit loss becomes float32, where the scale fits.
    ///
    /// # Errors
    /// For a tensor that is not float.
    #[track_caller]
    pub fn scale(&mut self, loss: &Tensor) -> Result<Tensor> {
        loss.check_float("scale")?;
        if !self.enabled {
            return Ok(loss.clone());
        }
        let [scale, _] = self.on(loss.queue())?;
        let dtype = loss.dtype().accumulator();
        mul(&cast(loss, dtype)?, &scale.cast(dtype)?.into())
    }

    /// Divides the gradients of an optimizer's parameters by the scale, for code that reads them before the step (clipping). The
    /// step then does not divide again.
    ///
    /// # Errors
    /// If that was done already since the last [`update`](GradScaler::update), and before the first
    /// [`scale`](GradScaler::scale).
    pub fn unscale(&mut self, optimizer: &dyn Optimizer) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let id = optimizer.base().id();
        if let Some(Stage::Unscaled(_)) = self.stages.get(&id) {
            return Err(state("unscale", "these gradients were unscaled already; call update() after step()"));
        }
        let scale = self.scale_of_gradients(id, "unscale")?;
        let params = optimizer.groups().iter().flat_map(ParamGroup::params).map(Tensor::latest).collect::<Vec<_>>();
        let found = unscale_grads(&params, &scale.into())?;
        let stage = Stage::Unscaled(found.map(|found| (found.norm, found.found_inf)));
        self.stages.insert(id, stage);
        Ok(())
    }

    /// The scale that an optimizer's gradients have. Where nobody called [`update`](GradScaler::update) after its last step, that
    /// is made up for: in the published package a step moves the scale by itself.
    fn scale_of_gradients(&mut self, id: u64, op: &'static str) -> Result<RawTensor> {
        let scale = self.scaled(op)?;
        let Some(Stage::Stepped(_)) = self.stages.get(&id) else { return Ok(scale) };
        let scale = scale.duplicate()?;
        self.update()?;
        Ok(scale)
    }

    /// A step of an optimizer with unscaled gradients. The device leaves everything as it is, the count of steps included, where
    /// they are not all finite.
    ///
    /// # Errors
    /// Before the first [`scale`](GradScaler::scale).
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        self.step_with(optimizer, StepOptions::default()).map(drop)
    }

    /// [`GradScaler::step`] that also scales gradients down to a largest norm, or skips the update for a reason of the caller's
    /// ([`StepOptions::found_inf`]). Gives the norm before that, as [`Optimizer::step_with`] does.
    ///
    /// # Errors
    /// As [`GradScaler::step`].
    pub fn step_with(&mut self, optimizer: &mut dyn Optimizer, mut options: StepOptions) -> Result<Option<Tensor>> {
        if !self.enabled {
            return optimizer.step_with(&options);
        }
        let id = optimizer.base().id();
        let unscaled = match self.stages.get(&id) {
            Some(Stage::Unscaled(found)) => Some(found.clone()),
            Some(Stage::Stepped(_)) | None => None,
        };
        let norm = match unscaled {
            None => {
                options.grad_scale = Some(GradScale::Device(self.scale_of_gradients(id, "step")?.into()));
                options.skip_non_finite = true;
                optimizer.step_with(&options)?
            }
            Some(Some((norm, found_inf))) => {
                options.found_inf = Some(match options.found_inf.take() {
                    Some(given) => add(&given, &found_inf)?,
                    None => found_inf,
                });
                let now = optimizer.step_with(&options)?;
                // The scale follows the gradients as they were before anyone clipped them.
                self.stages.insert(id, Stage::Stepped(Some(norm)));
                return Ok(now);
            }
            // Nothing had a gradient.
            Some(None) => optimizer.step_with(&options)?,
        };
        self.stages.insert(id, Stage::Stepped(norm.clone()));
        Ok(norm)
    }

    /// Moves the scale after the steps of all optimizers: down if one of them was skipped, up if enough steps in a row were not.
    ///
    /// # Errors
    /// If no optimizer has stepped or unscaled since the last update.
    pub fn update(&mut self) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        if self.stages.is_empty() {
            return Err(state("update", "no optimizer has stepped since the last update; call step() first"));
        }
        let Place::Device(place) = &self.place else { return Err(unscaled("update")) };
        let [scale, tracker] = (**place).clone();
        let norm = |stage| match stage {
            Stage::Unscaled(found) => found.map(|(norm, _)| norm),
            Stage::Stepped(norm) => norm,
        };
        let norms: Vec<Tensor> = std::mem::take(&mut self.stages).into_values().filter_map(norm).collect();
        let norms = norms.iter().map(|norm| norm.raw().cast(DType::F32)).collect::<netcl_core::Result<Vec<_>>>()?;
        let inputs: Vec<&RawTensor> = [&scale, &tracker].into_iter().chain(&norms).collect();
        let numbers = [&self.growth_factor, &self.backoff_factor, &self.growth_interval];
        let numbers = numbers.map(|slot| Number::Slot(slot.clone()));
        Ok(movement(norms.len()).run(&inputs, &numbers, &[&scale, &tracker])?)
    }

    /// Sets the scale, and forgets what the steps so far would have done to it.
    ///
    /// # Errors
    /// For a scale that is not above 0.
    pub fn set_scale(&mut self, scale: f64) -> Result<()> {
        check("scale", scale, scale > 0.0, "above 0")?;
        self.stages.clear();
        match &mut self.place {
            Place::Host(now) => now[0] = scale,
            Place::Device(now) => now[0].fill(scale)?,
        }
        Ok(())
    }

    /// The scale. This waits for the device.
    ///
    /// # Errors
    /// While a step is being recorded.
    pub fn get_scale(&self) -> Result<f64> {
        if self.enabled { Ok(self.place.read()?[0]) } else { Ok(1.0) }
    }

    /// Everything that goes on with a run, under PyTorch's names; nothing where the scaler is off. This waits for the device.
    ///
    /// # Errors
    /// While a step is being recorded.
    pub fn state(&self) -> Result<State> {
        let mut state = State::default();
        if !self.enabled {
            return Ok(state);
        }
        let [scale, tracker] = self.place.read()?;
        let values = [scale, self.growth_factor(), self.backoff_factor(), self.growth_interval() as f64, tracker];
        state.numbers = NAMES.iter().map(|name| (*name).to_owned()).zip(values).collect();
        Ok(state)
    }

    /// Goes on from a state that [`GradScaler::state`] gave.
    ///
    /// # Errors
    /// Names what is missing, unknown or out of range; nothing has changed then.
    pub fn load_state(&mut self, given: &State) -> Result<()> {
        let op = "load_state";
        if !self.enabled {
            return Ok(());
        }
        let missing = NAMES
            .iter()
            .filter(|name| !given.numbers.contains_key(**name))
            .map(|name| format!("has no number {name:?}"));
        let names = given.numbers.keys().chain(given.tensors.keys());
        let unknown =
            names.filter(|name| !NAMES.contains(&&name[..])).map(|name| format!("has an unknown entry {name:?}"));
        let problems: Vec<String> = missing.chain(unknown).collect();
        if !problems.is_empty() {
            let hint = if given.numbers.is_empty() { "; a scaler that was off has none" } else { "" };
            return Err(Error::argument(op, format!("the state of a scaler {}{hint}", problems.join("; it "))));
        }
        let [scale, growth, backoff, interval, tracker] = NAMES.map(|name| given.numbers[name]);
        check("scale", scale, scale > 0.0, "above 0")?;
        check("_growth_tracker", tracker, tracker >= 0.0, "0 or more")?;
        self.set_growth(Some(growth), Some(backoff), Some(interval as u64))?;
        self.stages.clear();
        match &mut self.place {
            Place::Host(now) => *now = [scale, tracker],
            Place::Device(now) => at_once(|| {
                now[0].fill(scale)?;
                now[1].fill(tracker)
            })?,
        }
        Ok(())
    }

    /// The scale, which a step needs.
    fn scaled(&self, op: &'static str) -> Result<RawTensor> {
        match &self.place {
            Place::Device(place) => Ok(place[0].clone()),
            Place::Host(_) => Err(unscaled(op)),
        }
    }

    /// The scale and the number of good steps, on a device.
    fn on(&mut self, queue: &Queue) -> Result<[RawTensor; 2]> {
        // Made and moved once, and not at every replay of a captured step.
        let placed = at_once(|| -> Result<[RawTensor; 2]> {
            Ok(match &self.place {
                Place::Device(place) => [place[0].to(queue)?, place[1].to(queue)?],
                Place::Host(numbers) => {
                    let made = |value| RawTensor::full(queue, (), DType::F32, value);
                    [made(numbers[0])?, made(numbers[1])?]
                }
            })
        })?;
        self.place = Place::Device(Box::new(placed.clone()));
        Ok(placed)
    }
}

/// The numbers of a state, as PyTorch calls them.
const NAMES: [&str; 5] = ["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"];

/// How the scale and the number of good steps move by the norms of so many optimizers.
///
/// Inputs: both, the norms. Scalars: growth factor, backoff factor, growth interval.
fn movement(norms: usize) -> Arc<Elementwise> {
    static MADE: LazyLock<Mutex<HashMap<usize, Arc<Elementwise>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let build = || {
        let g = Graph::new();
        let largest = f64::from(f32::MAX);
        let (scale, count) = (g.input(0), g.input(1) + 1.0);
        // False for NaN as well as for infinity.
        let fine = (0..norms).fold(g.constant(1.0), |fine, i| fine * g.input(2 + i).le(largest));
        let due = count.ge(g.scalar(2));
        let grown = scale * g.scalar(0);
        // A scale that overflows would never come back.
        let grown = grown.le(largest).select(grown, scale);
        let scale = fine.select(due.select(grown, scale), scale * g.scalar(1));
        let count = fine.select(due.select(0.0, count), 0.0);
        Elementwise::new("update_grad_scale", g.finish_with(&[scale, count], 2 + norms, 3))
    };
    made.entry(norms).or_insert_with(build).clone()
}

fn check(name: &str, value: f64, valid: bool, wanted: &str) -> Result<()> {
    if valid && value.is_finite() {
        return Ok(());
    }
    Err(Error::argument("GradScaler", format!("{name} is {value}, but must be {wanted}")))
}

fn unscaled(op: &'static str) -> Error {
    state(op, "no loss was scaled yet; call scale(loss).backward() first")
}

fn state(op: &'static str, what: &str) -> Error {
    netcl_core::Error::State { op, what: what.to_owned() }.into()
}

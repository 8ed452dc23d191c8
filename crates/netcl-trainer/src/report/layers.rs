//! The table of a model's layers: parameters, and the FLOPs and time of each in a forward pass.
//!
//! Modules call each other directly, so nothing announces whose launch comes next. Two things tell: a hook after each module of a
//! [`Sequential`] (all that was launched since the hook before belongs to it), and, inside other modules, the weights that a
//! launch reads. A launch without weights (an activation, a sum) counts to the layer before it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netcl_nn::autograd::{RawTensor, Tensor, no_grad};
use netcl_nn::{ForwardHook, Module, Sequential};
use netcl_profiling::gauges::{LaunchEntry, LaunchLog};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// A row of the table: a module, those inside it included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Layer {
    /// Its dotted name; empty for the whole model.
    pub name: String,
    /// What it is, with its settings: `Linear(in_features=2, ...)`.
    pub kind: String,
    /// Elements of its parameters.
    pub parameters: usize,
    /// The shape of its result, where it is known.
    pub shape: Vec<usize>,
    /// Floating-point operations of a forward pass; `None` where nothing was launched for it.
    pub flops: Option<f64>,
    /// Time of a forward pass, in seconds.
    pub seconds: Option<f64>,
}

/// Forward passes that are timed, after one that compiles kernels. The shortest counts.
const PASSES: usize = 3;
/// No further pass begins after this time.
const MOST_TIME: Duration = Duration::from_secs(2);
/// Weights are copied to tell their launches apart, up to so many bytes.
const MOST_COPIED: usize = 2 << 30;

/// The layers of a model without figures of a forward pass, each before those inside it.
///
/// ```
/// use netcl_nn::{Linear, ReLU, autograd::manager, sequential};
/// use netcl_trainer::report::layers;
///
/// let model = sequential![Linear::new(&manager().cpu().queue, 2, 8)?, ReLU];
/// let rows = layers::list(&model);
/// let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
/// assert_eq!((names, rows[0].parameters), (vec!["", "0", "1"], 24));
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
pub fn list(model: &dyn Module) -> Vec<Layer> {
    let row = |(name, module): (String, &dyn Module)| {
        let kind = match module.arguments() {
            arguments if arguments.is_empty() => module.kind().to_owned(),
            arguments => format!("{}({arguments})", module.kind()),
        };
        Layer { name, kind, parameters: module.num_parameters(), ..Layer::default() }
    };
    model.named_modules().into_iter().map(row).collect()
}

/// The layers of a model with the FLOPs and the time of each in a forward pass, which `forward` runs.
///
/// It is called up to four times, in inference mode and without gradients, within about two seconds. The model is left as it was:
/// meanwhile its weights are replaced by copies in memory of their own (up to 2 GiB), and modules of a [`Sequential`] get hooks.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Linear, Module, ReLU, sequential};
/// use netcl_trainer::report::layers;
///
/// let queue = manager().cpu().queue;
/// let mut model = sequential![Linear::new(&queue, 4, 8)?, ReLU, Linear::new(&queue, 8, 2)?];
/// let x = Tensor::from_host(&queue, &[1.0f32; 40], [10, 4])?;
/// let rows = layers::measure(&mut model, &mut |model| {
///     model.forward(&x)?;
///     Ok(())
/// })?;
/// assert!(rows[1].flops >= Some(2.0 * 10.0 * 4.0 * 8.0) && rows[2].seconds > Some(0.0));
/// assert_eq!(rows[3].shape, [10, 2]);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
///
/// # Errors
/// What `forward` and the device say.
pub fn measure(model: &mut dyn Module, forward: &mut dyn FnMut(&dyn Module) -> Result<()>) -> Result<Vec<Layer>> {
    let mut rows = list(model);
    let training = model.training();
    model.eval();
    let mut swapped = Vec::new();
    let figures = swap(model, &mut swapped).and_then(|owners| figures(model, owners, forward));
    for (name, original) in swapped {
        model.set_tensor(&name, Some(original))?;
    }
    if training {
        model.train();
    }
    let Figures { spent, shapes } = figures?;
    for row in &mut rows {
        let inside = |name: &str| row.name.is_empty() || is_inside(name, &row.name);
        let parts: Vec<Spent> = spent.iter().filter(|(name, _)| inside(name)).map(|(_, spent)| *spent).collect();
        if !parts.is_empty() {
            row.flops = Some(parts.iter().map(|part| part.flops).sum());
            row.seconds = Some(parts.iter().map(|part| part.seconds).sum());
        }
        row.shape = shapes.get(&row.name).cloned().unwrap_or_default();
    }
    Ok(rows)
}

/// Whether a dotted name is a module's or lies inside it.
fn is_inside(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The tensors of a model in memory of their own, each with the module it belongs to.
struct Owners {
    tensors: Vec<RawTensor>,
    modules: Vec<String>,
}

/// Replaces the weights, which an optimizer keeps in one block of memory, by copies. `swapped` gets the originals by name.
fn swap(model: &mut dyn Module, swapped: &mut Vec<(String, Tensor)>) -> Result<Owners> {
    let mut owners = Owners { tensors: Vec::new(), modules: Vec::new() };
    if model.summary().bytes > MOST_COPIED {
        return Ok(owners);
    }
    for (name, original) in model.named_parameters().into_iter().chain(model.named_buffers()) {
        let copy = original.raw().duplicate()?;
        owners.tensors.push(copy.clone());
        owners.modules.push(name.rsplit_once('.').map_or("", |(module, _)| module).to_owned());
        model.set_tensor(&name, Some(copy.into()))?;
        swapped.push((name, original));
    }
    Ok(owners)
}

/// What the launches of a module took.
#[derive(Clone, Copy, Default)]
struct Spent {
    flops: f64,
    seconds: f64,
}

struct Figures {
    spent: BTreeMap<String, Spent>,
    shapes: BTreeMap<String, Vec<usize>>,
}

/// The end of a module of a [`Sequential`].
struct Mark {
    module: String,
    is_leaf: bool,
    /// Launches so far.
    launches: usize,
    shape: Vec<usize>,
}

fn figures(
    model: &mut dyn Module,
    owners: Owners,
    forward: &mut dyn FnMut(&dyn Module) -> Result<()>,
) -> Result<Figures> {
    let log = LaunchLog::new(&owners.tensors);
    let marks = Arc::new(Mutex::new(Vec::new()));
    let hooks = hook(model, &log, &marks)?;
    let mut figures = Figures { spent: BTreeMap::new(), shapes: BTreeMap::new() };
    let start = Instant::now();
    let mut outcome = Ok(());
    for pass in 0..=PASSES {
        outcome = log.run(|| {
            let _scope = no_grad();
            forward(model)
        });
        let (launches, marks) =
            (log.take(), std::mem::take(&mut *marks.lock().unwrap_or_else(PoisonError::into_inner)));
        if outcome.is_err() {
            break;
        }
        // The first pass compiles; its time is that of later ones only if there are none.
        let best = if pass == 1 { BTreeMap::new() } else { std::mem::take(&mut figures.spent) };
        figures.spent = attributed(&launches, &marks, &owners.modules);
        for (name, spent) in &mut figures.spent {
            spent.seconds = best.get(name).map_or(spent.seconds, |best| best.seconds.min(spent.seconds));
        }
        figures.shapes.extend(marks.into_iter().map(|mark| (mark.module, mark.shape)));
        if start.elapsed() > MOST_TIME {
            break;
        }
    }
    hooks.iter().for_each(ForwardHook::remove);
    outcome.map(|()| figures)
}

fn hook(model: &mut dyn Module, log: &LaunchLog, marks: &Arc<Mutex<Vec<Mark>>>) -> Result<Vec<ForwardHook>> {
    let mut hooks = Vec::new();
    model.apply(&mut |path, module| {
        let Some(sequence) = module.downcast_mut::<Sequential>() else { return Ok(()) };
        for at in 0..sequence.len() {
            let name = if path.is_empty() { at.to_string() } else { format!("{path}.{at}") };
            let is_leaf = sequence.get(at).is_some_and(|child| child.named_modules().len() == 1);
            let (count, marks) = (log.count(), marks.clone());
            hooks.push(sequence.hook(at, move |_, output| {
                let (module, launches) = (name.clone(), count.load(Ordering::Relaxed));
                let mark = Mark { module, is_leaf, launches, shape: output.shape().to_vec() };
                marks.lock().unwrap_or_else(PoisonError::into_inner).push(mark);
                Ok(None)
            })?);
        }
        Ok(())
    })?;
    Ok(hooks)
}

/// What each module took itself.
fn attributed(launches: &[LaunchEntry], marks: &[Mark], owners: &[String]) -> BTreeMap<String, Spent> {
    let mut spent: BTreeMap<String, Spent> = BTreeMap::new();
    let mut marks = marks.iter().peekable();
    let mut last: Option<&str> = None;
    for (at, launch) in launches.iter().enumerate() {
        while marks.next_if(|mark| mark.launches <= at).is_some() {
            last = None;
        }
        let (module, is_leaf) = marks.peek().map_or(("", false), |mark| (mark.module.as_str(), mark.is_leaf));
        if !is_leaf && let Some(owner) = launch.uses.map(|index| owners[index].as_str()) {
            last = Some(owner);
        }
        let part = spent.entry(last.unwrap_or(module).to_owned()).or_default();
        part.flops += launch.flops;
        part.seconds += launch.seconds;
    }
    spent
}

#[cfg(test)]
mod tests {
    use netcl_nn::autograd::{Generator, manager};
    use netcl_optim::{AdamW, AdamWOptions};

    use super::*;
    use crate::architecture::{Architecture, Network};

    #[test]
    fn layers_of_a_resnet_have_their_flops_and_the_model_is_left_as_it_was() {
        let queue = manager().cpu().queue;
        let network = Architecture::new(Network::Resnet18, &[1, 8, 8], 10);
        let mut model = network.build(&queue, &mut Generator::new(0)).unwrap();
        // From here on all weights lie in one block of memory.
        let _optimizer = AdamW::new_with(model.parameters(), AdamWOptions::default()).unwrap();
        let parameters = model.parameters();
        let x = Tensor::from_host(&queue, &[0.5f32; 128], [2, 1, 8, 8]).unwrap();
        let rows = measure(&mut *model, &mut |model| Ok(model.forward(&x).map(drop)?)).unwrap();
        let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no layer {name}"));
        // Two images, 64 to 64 channels, 3x3, 8x8 pixels, multiply and add.
        let conv = 2.0 * 2.0 * 64.0 * 64.0 * 9.0 * 64.0;
        let found = row("layer1.0.conv1").flops.unwrap();
        assert!(found >= conv && found < conv * 1.05, "{found} beside {conv}");
        assert!(row("fc").flops.unwrap() >= 2.0 * 2.0 * 512.0 * 10.0);
        assert!(row("layer1.0").flops.unwrap() >= 2.0 * conv && row("").flops > row("layer1.0").flops);
        assert!(row("").seconds.unwrap() > 0.0 && row("").parameters == model.num_parameters());
        let is_before = |model: &dyn Module| {
            let same = |(now, then): (&Tensor, &Tensor)| Arc::ptr_eq(now.raw().storage(), then.raw().storage());
            model.training() && model.parameters().iter().zip(&parameters).all(same)
        };
        assert!(is_before(&*model));
        let wrong = Tensor::from_host(&queue, &[0.5f32; 8], [2, 4]).unwrap();
        assert!(measure(&mut *model, &mut |model| Ok(model.forward(&wrong).map(drop)?)).is_err());
        assert!(is_before(&*model));
    }
}

//! Which module runs, by its dotted path: for whoever observes launches ([`netcl_autograd::observe`]), a profiler for one.
//!
//! A layer does not know its name. The outermost module does: it lists everything inside, and a layer that runs is found in that list by
//! its address and kind. Nothing is looked up unless somebody asks.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use netcl_autograd::error::InLayer;
use netcl_autograd::{Error, ErrorKind, Result, observe};

use crate::module::Module;

/// Address and kind: a struct begins where its first field does.
type Key = (usize, &'static str);

/// The modules that this thread is in.
#[derive(Default)]
struct Running {
    keys: Vec<Key>,
    /// The paths of all modules inside the outermost one; `None` where two cannot be told apart.
    paths: HashMap<Key, Option<Arc<str>>>,
}

thread_local! {
    static RUNNING: RefCell<Running> = RefCell::default();
}

/// A module that runs until this is dropped.
#[must_use = "the module is left when this is dropped"]
pub struct Scope {
    depth: usize,
    _observed: observe::Scope,
}

impl Drop for Scope {
    fn drop(&mut self) {
        // At the end of a thread the list may be gone.
        let _ = RUNNING.try_with(|running| {
            let mut running = running.borrow_mut();
            running.keys.truncate(self.depth);
            if self.depth == 0 {
                running.paths.clear();
            }
        });
    }
}

fn key(module: &dyn Module) -> Key {
    let any: &dyn Any = module.as_module();
    match any.downcast_ref::<Box<dyn Module>>() {
        // What runs is the module inside.
        Some(inside) => key(&**inside),
        None => (std::ptr::from_ref(module).cast::<()>() as usize, module.kind()),
    }
}

/// Tells observers that a module runs: what every `forward` begins with. `#[derive(Module)]` writes it.
///
/// ```
/// use netcl_nn::autograd::{Result, Tensor};
/// use netcl_nn::{Linear, Module, members, scope};
///
/// struct Own {
///     inner: Linear,
/// }
///
/// impl Module for Own {
///     fn forward(&self, input: &Tensor) -> Result<Tensor> {
///         let _scope = scope::enter(self);
///         self.inner.forward(input)
///     }
///
///     members! { children: inner }
/// }
/// ```
#[inline]
pub fn enter<M: Module + ?Sized>(module: &M) -> Option<Scope> {
    if observe::wants_places() { enter_named(key(module.as_module()), module.as_module(), None) } else { None }
}

/// Runs a module's computation: [`enter`] while it lasts, and its errors say where in the model they come from. `#[derive(Module)]`
/// writes it around `forward`.
#[inline]
pub fn run<M: Module + ?Sized, T>(module: &M, forward: impl FnOnce() -> Result<T>) -> Result<T> {
    let _scope = enter(module);
    forward().map_err(|error| placed(module.as_module(), error))
}

/// An error with the module that it comes from: the innermost one first, then its path in those around it.
#[cold]
pub(crate) fn placed(module: &dyn Module, error: Error) -> Error {
    let here = key(module);
    match error {
        Error::Layer(mut layer) => {
            let parts = module.named_modules();
            if let Some((name, _)) = parts.iter().skip(1).find(|(_, part)| key(*part) == layer.within) {
                layer.path = if layer.path.is_empty() { name.clone() } else { format!("{name}.{}", layer.path) };
                layer.within = here;
            }
            Error::Layer(layer)
        }
        error if matches!(error.kind(), ErrorKind::Value | ErrorKind::Type) => {
            Error::Layer(Box::new(InLayer { path: String::new(), kind: here.1, within: here, source: error }))
        }
        error => error,
    }
}

/// The same for a part whose name its owner knows.
#[inline]
pub(crate) fn enter_part(part: &dyn Module, name: impl FnOnce() -> String) -> Option<Scope> {
    if observe::wants_places() { enter_named(key(part), part, Some(name())) } else { None }
}

fn enter_named(key: Key, module: &dyn Module, name: Option<String>) -> Option<Scope> {
    let (outermost, again) =
        RUNNING.with_borrow(|running| (running.keys.is_empty(), running.keys.last() == Some(&key)));
    // A derived `forward` that calls the struct's own, and a part that was entered by its name.
    if again {
        return None;
    }
    let within = observe::module();
    let path: Arc<str> = if outermost {
        // What a Python module holds goes by that module's name.
        let root = within.unwrap_or_else(|| module.kind().into());
        let mut paths: HashMap<Key, Option<Arc<str>>> = HashMap::new();
        for (name, part) in module.named_modules().into_iter().skip(1) {
            let path = Arc::from(format!("{root}.{name}"));
            paths.entry(self::key(part)).and_modify(|known| *known = None).or_insert(Some(path));
        }
        RUNNING.with_borrow_mut(|running| running.paths = paths);
        root
    } else {
        let within = within.unwrap_or_default();
        let known = || RUNNING.with_borrow(|running| running.paths.get(&key).cloned().flatten());
        match name {
            Some(name) => format!("{within}.{name}").into(),
            None => known().unwrap_or_else(|| format!("{within}.{}", module.kind()).into()),
        }
    };
    let depth = RUNNING.with_borrow_mut(|running| {
        running.keys.push(key);
        running.keys.len() - 1
    });
    Some(Scope { depth, _observed: observe::enter(|| path) })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use netcl_autograd::observe::{self, Command, Observer};
    use netcl_autograd::{Tensor, manager};

    use crate::{Linear, Module, ReLU, functional as F, sequential};

    #[derive(Default)]
    struct Paths(Mutex<Vec<(String, bool)>>);

    impl Observer for Paths {
        fn command(&self, command: Command) {
            if let Some(place) = command.place.filter(|place| !place.module.is_empty()) {
                self.0.lock().unwrap().push((place.module.to_string(), place.backward));
            }
        }
    }

    #[test]
    fn launches_of_both_passes_carry_the_path_of_their_layer() {
        let queue = manager().cpu().queue;
        let inner = sequential![ReLU, Linear::new(&queue, 8, 8).unwrap(), ReLU];
        let model = sequential![Linear::new(&queue, 2, 8).unwrap(), inner];
        let x = Tensor::from_host(&queue, &[0.5f32, -1.0], [1, 2]).unwrap();
        let paths = Arc::new(Paths::default());
        let observing = observe::observe(paths.clone());
        let y = model.forward(&x).unwrap();
        y.sum((), false).unwrap().backward().unwrap();
        drop(observing);
        let seen = paths.0.lock().unwrap();
        let has = |path: &str, backward| seen.iter().any(|(name, back)| (name.as_str(), *back) == (path, backward));
        for path in ["Sequential.0", "Sequential.1.0", "Sequential.1.1", "Sequential.1.2"] {
            assert!(has(path, false) && has(path, true), "{path}: {seen:?}");
        }
        assert!(observe::module().is_none() && !seen.iter().any(|(name, _)| name.contains("ReLU")), "{seen:?}");
    }

    /// A model that calls its layers by their own `forward`, as users' do.
    #[derive(Module)]
    struct Net {
        stem: Linear,
        heads: Vec<Linear>,
    }

    impl Net {
        fn forward(&self, x: &Tensor) -> netcl_autograd::Result<Tensor> {
            let x = self.stem.forward(x)?;
            F::add(&self.heads[0].forward(&x)?, &self.heads[1].forward(&x)?)
        }
    }

    #[test]
    fn errors_name_the_path_of_the_layer() {
        let queue = manager().cpu().queue;
        let linear = |inputs, outputs| Linear::new(&queue, inputs, outputs).unwrap();
        let net = Net { stem: linear(4, 8), heads: vec![linear(8, 3), linear(9, 3)] };
        assert!(net.to_string().starts_with("Net(\n  (stem): Linear(in_features=4,"), "{net}");
        let x = Tensor::zeros(&queue, [2, 4]).unwrap();
        let text = |result: netcl_autograd::Result<Tensor>| result.unwrap_err().to_string();
        assert_eq!(text(linear(9, 3).forward(&x)), "Linear(in_features=9): expected input (..., 9), got (2, 4)");
        assert_eq!(text(Module::forward(&net, &x)), "heads.1 (Linear): expected input (..., 9), got (2, 8)");
        let model = sequential![ReLU, sequential![net]];
        assert_eq!(text(model.forward(&x)), "1.0.heads.1 (Linear): expected input (..., 9), got (2, 8)");
        assert_eq!(model.forward(&x).unwrap_err().kind(), netcl_autograd::ErrorKind::Value);
        // What is wrong between layers is the model's own.
        let net = Net { stem: linear(4, 8), heads: vec![linear(8, 3), linear(8, 2)] };
        let error = text(sequential![net].forward(&x));
        assert!(error.starts_with("0 (Net): add: shapes (2, 3) and (2, 2)"), "{error}");
    }
}

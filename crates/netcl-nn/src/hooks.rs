//! Functions that see what goes into a module and what comes out.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use netcl_autograd::{Result, Tensor};

use crate::members::{Member, MemberMut};
use crate::module::Module;
use crate::settings::Value;

/// Sees a tensor on its way and may replace it.
type Before = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// Sees an input and its result and may replace the result.
type After = Arc<dyn Fn(&Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync>;

#[derive(Clone)]
enum Hook {
    Before(Before),
    After(After),
}

type List = Mutex<Vec<(u64, Hook)>>;

fn lock(list: &List) -> MutexGuard<'_, Vec<(u64, Hook)>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A module with functions that see what goes into it and what comes out.
///
/// To names, print-outs, state and configurations it is the module inside. The hooks belong to the wrapper and not to every
/// module: a layer is then nothing but its fields, and whoever wants to look in pays for it. Gradients have hooks of their own:
/// [`Tensor::register_hook`](netcl_autograd::Tensor::register_hook), also inside these.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Hooked, Linear, Module, ReLU, sequential};
///
/// let queue = manager().cpu().queue;
/// let shapes = Arc::new(Mutex::new(Vec::new()));
/// let layer = Hooked::new(Linear::new(&queue, 2, 8)?);
/// let seen = shapes.clone();
/// let handle = layer.on_forward(move |_input, output| {
///     seen.lock().unwrap().push(output.shape().clone());
///     Ok(None)
/// });
/// let model = sequential![layer, ReLU];
/// model.forward(&Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 2])?)?;
/// handle.remove();
/// assert_eq!(shapes.lock().unwrap().len(), 1);
/// assert_eq!(model.state_dict().names().collect::<Vec<_>>(), ["0.weight", "0.bias"]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct Hooked<M> {
    inner: M,
    hooks: Arc<List>,
}

/// Takes a hook away again. Dropping it leaves the hook where it is.
#[derive(Clone)]
pub struct ForwardHook {
    list: Weak<List>,
    number: u64,
}

impl<M: Module> Hooked<M> {
    /// A module without hooks yet.
    pub fn new(inner: M) -> Hooked<M> {
        Hooked { inner, hooks: Arc::default() }
    }

    /// Calls a function with every input, before the module sees it; what it returns takes the input's place.
    pub fn before_forward(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> ForwardHook {
        self.add(Hook::Before(Arc::new(hook)))
    }

    /// Calls a function with every input and its result; what it returns takes the result's place.
    pub fn on_forward(
        &self,
        hook: impl Fn(&Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> ForwardHook {
        self.add(Hook::After(Arc::new(hook)))
    }

    fn add(&self, hook: Hook) -> ForwardHook {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        lock(&self.hooks).push((number, hook));
        ForwardHook { list: Arc::downgrade(&self.hooks), number }
    }

    /// The module inside.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// The module inside, to change.
    pub fn inner_mut(&mut self) -> &mut M {
        &mut self.inner
    }

    /// The module inside, without its hooks.
    pub fn into_inner(self) -> M {
        self.inner
    }
}

impl ForwardHook {
    /// Takes the hook away; nothing happens if it or its module is gone.
    pub fn remove(&self) {
        if let Some(list) = self.list.upgrade() {
            // Dropped after the lock: what the hook captured may itself have a drop that takes long or comes back here.
            let removed = {
                let mut hooks = lock(&list);
                hooks.iter().position(|(number, _)| *number == self.number).map(|at| hooks.remove(at))
            };
            drop(removed);
        }
    }
}

impl fmt::Debug for ForwardHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForwardHook({})", self.number)
    }
}

impl<M: Module> Module for Hooked<M> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        // A hook may add or remove hooks, so the lock is not held while one runs.
        let hooks = lock(&self.hooks).clone();
        let mut input = input.clone();
        for (_, hook) in &hooks {
            if let Hook::Before(hook) = hook
                && let Some(replaced) = hook(&input)?
            {
                input = replaced;
            }
        }
        let mut output = self.inner.forward(&input)?;
        for (_, hook) in &hooks {
            if let Hook::After(hook) = hook
                && let Some(replaced) = hook(&input, &output)?
            {
                output = replaced;
            }
        }
        Ok(output)
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        self.inner.visit(see);
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        self.inner.visit_mut(see);
    }

    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn arguments(&self) -> String {
        self.inner.arguments()
    }

    fn shown(&self) -> Vec<(&'static str, Value)> {
        self.inner.shown()
    }

    fn settings(&self) -> Vec<(&'static str, Value)> {
        self.inner.settings()
    }

    fn set_setting(&mut self, name: &str, value: &Value) -> Result<()> {
        self.inner.set_setting(name, value)
    }
}

impl<M: Module> fmt::Display for Hooked<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self as &dyn Module, f)
    }
}

impl<M: Module> fmt::Debug for Hooked<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

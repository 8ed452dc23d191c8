//! Modules one after the other.

use std::any::Any;

use netcl_autograd::{Error, Result, Tensor};

use crate::config::{LayerConfig, layer_config};
use crate::hooks::{ForwardHook, Hooked};
use crate::module::{Member, MemberMut, Module, print_as_module};

/// Modules that are applied one after the other; their names are their numbers.
///
/// ```
/// use netcl_nn::autograd::manager;
/// use netcl_nn::{Linear, Module, ReLU, sequential};
///
/// let queue = manager().cpu().queue;
/// let model = sequential![Linear::new(&queue, 2, 8)?, ReLU, Linear::new(&queue, 8, 1)?];
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
/// assert_eq!(model.to_string(), "Sequential(
///   (0): Linear(in_features=2, out_features=8, bias=True)
///   (1): ReLU()
///   (2): Linear(in_features=8, out_features=1, bias=True)
/// )");
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Module>>,
}

impl Sequential {
    /// Modules in the order in which they are applied. Without any, the result is the input.
    pub fn new(layers: Vec<Box<dyn Module>>) -> Sequential {
        Sequential { layers }
    }

    /// Appends a module.
    pub fn push(&mut self, module: impl Module + 'static) {
        self.layers.push(Box::new(module));
    }

    /// This sequence with one more module, for building one in a single expression.
    pub fn with(mut self, module: impl Module + 'static) -> Sequential {
        self.push(module);
        self
    }

    /// The number of modules.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The module at an index.
    pub fn get(&self, index: usize) -> Option<&dyn Module> {
        self.layers.get(index).map(|layer| &**layer as &dyn Module)
    }

    /// The module at an index, to change.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut dyn Module> {
        self.layers.get_mut(index).map(|layer| &mut **layer as &mut dyn Module)
    }

    /// The modules in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &dyn Module> + ExactSizeIterator {
        self.layers.iter().map(|layer| &**layer as &dyn Module)
    }

    /// Calls a function with every input and result of the module at an index; see [`Hooked::on_forward`].
    ///
    /// # Errors
    /// If there is no such module.
    pub fn hook(
        &mut self,
        index: usize,
        hook: impl Fn(&Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<ForwardHook> {
        let len = self.layers.len();
        let Some(layer) = self.layers.get_mut(index) else {
            let what = format!("there is no module {index} among {len}");
            return Err(Error::argument("Sequential::hook", what));
        };
        let any: &mut dyn Any = &mut **layer;
        if let Some(hooked) = any.downcast_ref::<Hooked<Box<dyn Module>>>() {
            return Ok(hooked.on_forward(hook));
        }
        let hooked = Hooked::new(std::mem::replace(layer, Box::new(Sequential::default())));
        let handle = hooked.on_forward(hook);
        *layer = Box::new(hooked);
        Ok(handle)
    }

    /// The modules as data, from which [`build_sequential`](crate::build_sequential) makes the same network with new values.
    ///
    /// # Errors
    /// For a module that is not [`Configured`](crate::Configured) or not registered, by its name.
    pub fn config(&self) -> Result<Vec<LayerConfig>> {
        self.layers.iter().map(|layer| layer_config(&**layer)).collect()
    }
}

impl Module for Sequential {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            self.layers.iter().enumerate().try_fold(input.clone(), |value, (i, layer)| {
                let _part = crate::scope::enter_part(&**layer, || i.to_string());
                layer.forward(&value).map_err(|error| crate::scope::placed(&**layer, error))
            })
        })
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (i, layer) in self.layers.iter().enumerate() {
            see(&i.to_string(), Member::Child(&**layer));
        }
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            see(&i.to_string(), MemberMut::Child(layer));
        }
    }
}

print_as_module!(Sequential);

/// A [`Sequential`] of the given modules: `sequential![Linear::new(&queue, 2, 8)?, ReLU]`.
#[macro_export]
macro_rules! sequential {
    ($($layer:expr),* $(,)?) => {
        $crate::Sequential::new(vec![$(Box::new($layer) as Box<dyn $crate::Module>),*])
    };
}

//! Modules one after the other.

use netcl_autograd::{Result, Tensor};

use crate::module::{Member, MemberMut, Module, print_as_module};

/// Modules that are applied one after the other; their names are their numbers.
///
/// ```
/// use netcl_nn::autograd::core::device::manager;
/// use netcl_nn::{Linear, Module, ReLU, sequential};
///
/// let queue = manager().cpu().queue;
/// let model = sequential![Linear::new(&queue, 2, 8)?, ReLU, Linear::new(&queue, 8, 1)?];
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
/// assert_eq!(model.to_string(), "Sequential(
///   (0): Linear(in_features=2, out_features=8, bias=true)
///   (1): ReLU()
///   (2): Linear(in_features=8, out_features=1, bias=true)
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

    /// The modules in order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Module> {
        self.layers.iter().map(|layer| &**layer as &dyn Module)
    }
}

impl Module for Sequential {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(input.clone(), |value, layer| layer.forward(&value))
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (i, layer) in self.layers.iter().enumerate() {
            see(&i.to_string(), Member::Child(&**layer));
        }
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            see(&i.to_string(), MemberMut::Child(&mut **layer));
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

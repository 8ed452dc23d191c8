//! Modules in a list, for another module to call.

use netcl_autograd::{Result, Tensor};

use crate::members::{Member, MemberMut};
use crate::module::{Module, derive, print_as_module};

/// Modules in a list; their names are their numbers.
///
/// It does not say in which order they are applied: the module that holds the list does. Modules of one type need no more than
/// a `Vec` field; this one holds different types, grows, and is a module of its own.
///
/// ```
/// use netcl_nn::autograd::{Result, Tensor, manager};
/// use netcl_nn::{Linear, Module, ModuleList, functional as F};
///
/// #[derive(Module)]
/// struct Branches {
///     branches: ModuleList,
/// }
///
/// impl Branches {
///     fn forward(&self, input: &Tensor) -> Result<Tensor> {
///         let results = self.branches.iter().map(|branch| branch.forward(input)).collect::<Result<Vec<_>>>()?;
///         F::cat(&results.iter().collect::<Vec<_>>(), -1)
///     }
/// }
///
/// let queue = manager().cpu().queue;
/// let mut branches = ModuleList::default();
/// branches.push(Linear::new(&queue, 2, 3)?);
/// branches.push(Linear::new(&queue, 2, 4)?);
/// let model = Branches { branches };
/// assert_eq!(model.named_parameters()[2].0, "branches.1.weight");
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 2])?;
/// assert_eq!(model.forward(&x)?.shape()[..], [1, 7]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Default)]
pub struct ModuleList {
    modules: Vec<Box<dyn Module>>,
}

impl ModuleList {
    /// A list of these modules.
    pub fn new(modules: Vec<Box<dyn Module>>) -> ModuleList {
        ModuleList { modules }
    }

    /// Appends a module.
    pub fn push(&mut self, module: impl Module) {
        self.modules.push(Box::new(module));
    }

    /// The number of modules.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }

    /// The module at an index.
    pub fn get(&self, index: usize) -> Option<&dyn Module> {
        self.modules.get(index).map(|module| &**module)
    }

    /// The module at an index, to change.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut dyn Module> {
        self.modules.get_mut(index).map(|module| &mut **module)
    }

    /// The modules in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &dyn Module> + ExactSizeIterator {
        self.modules.iter().map(|module| &**module)
    }
}

impl FromIterator<Box<dyn Module>> for ModuleList {
    fn from_iter<I: IntoIterator<Item = Box<dyn Module>>>(modules: I) -> Self {
        ModuleList::new(modules.into_iter().collect())
    }
}

impl Module for ModuleList {
    /// # Errors
    /// Always: a list does not say what its modules are applied to.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        derive::no_forward("ModuleList", input)
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (i, module) in self.modules.iter().enumerate() {
            see(&i.to_string(), Member::Child(&**module));
        }
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for (i, module) in self.modules.iter_mut().enumerate() {
            see(&i.to_string(), MemberMut::Child(module));
        }
    }
}

print_as_module!(ModuleList);

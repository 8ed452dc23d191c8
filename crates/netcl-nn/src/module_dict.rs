//! Modules by name, for another module to call.

use netcl_autograd::{Error, Result, Tensor};

use crate::members::{Member, MemberMut};
use crate::module::{Module, derive, print_as_module};

/// An error unless members can be called by this name.
pub(crate) fn check_name(op: &'static str, name: &str) -> Result<()> {
    if !name.is_empty() && !name.contains('.') {
        return Ok(());
    }
    Err(Error::argument(op, format!("{name:?} cannot name a member: it must not be empty or contain a dot")))
}

/// Modules by name, in the order in which they came; the module that holds them says when each is applied.
///
/// ```
/// use netcl_nn::autograd::manager;
/// use netcl_nn::{Linear, Module, ModuleDict, Tanh};
///
/// let mut heads = ModuleDict::default();
/// heads.insert("value", Linear::new(&manager().cpu().queue, 4, 1)?)?;
/// heads.insert("squash", Tanh)?;
/// assert_eq!(heads.named_parameters()[0].0, "value.weight");
/// assert_eq!(heads.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["value", "squash"]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Default)]
pub struct ModuleDict {
    modules: Vec<(String, Box<dyn Module>)>,
}

impl ModuleDict {
    /// Adds a module, or replaces the one of the same name, which is returned.
    ///
    /// # Errors
    /// For an empty name, or one with a dot: dots separate the names of modules inside modules.
    pub fn insert(&mut self, name: impl Into<String>, module: impl Module) -> Result<Option<Box<dyn Module>>> {
        let name = name.into();
        check_name("ModuleDict", &name)?;
        let module = Box::new(module);
        match self.modules.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => Ok(Some(std::mem::replace(known, module))),
            None => {
                self.modules.push((name, module));
                Ok(None)
            }
        }
    }

    /// Takes out the module of a name.
    pub fn remove(&mut self, name: &str) -> Option<Box<dyn Module>> {
        let at = self.modules.iter().position(|(known, _)| known == name)?;
        Some(self.modules.remove(at).1)
    }

    /// The module of a name.
    pub fn get(&self, name: &str) -> Option<&dyn Module> {
        self.iter().find_map(|(known, module)| (known == name).then_some(module))
    }

    /// The module of a name, to change.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut dyn Module> {
        self.modules.iter_mut().find_map(|(known, module)| (known == name).then_some(&mut **module))
    }

    /// The number of modules.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }

    /// The names and modules in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &dyn Module)> + ExactSizeIterator {
        self.modules.iter().map(|(name, module)| (name.as_str(), &**module))
    }
}

impl Module for ModuleDict {
    /// # Errors
    /// Always: a dictionary does not say what its modules are applied to.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        derive::no_forward("ModuleDict", input)
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (name, module) in &self.modules {
            see(name, Member::Child(&**module));
        }
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for (name, module) in &mut self.modules {
            see(name, MemberMut::Child(module));
        }
    }
}

print_as_module!(ModuleDict);

//! Parameters in a list or by name, for another module to use.

use netcl_autograd::{Result, Tensor};

use crate::members::{Member, MemberMut, Role};
use crate::module::{Module, derive, print_as_module};
use crate::module_dict::check_name;

/// Parameters in a list; their names are their numbers.
///
/// A fixed number of them needs no more than a `Vec` field; this list grows, and is a module of its own.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Module, ParameterList};
///
/// let mut scales = ParameterList::default();
/// scales.push(Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [2])?);
/// assert_eq!(scales.named_parameters()[0].0, "0");
/// assert!(scales[0].requires_grad());
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Default)]
pub struct ParameterList {
    parameters: Vec<Tensor>,
}

impl ParameterList {
    /// A list of these tensors, which are trained from now on.
    pub fn new(tensors: impl IntoIterator<Item = Tensor>) -> ParameterList {
        ParameterList { parameters: tensors.into_iter().map(Tensor::with_grad).collect() }
    }

    /// Appends a tensor, which is trained from now on.
    pub fn push(&mut self, tensor: Tensor) {
        self.parameters.push(tensor.with_grad());
    }
}

/// Indexing, length and iteration are a slice's.
impl std::ops::Deref for ParameterList {
    type Target = [Tensor];
    fn deref(&self) -> &[Tensor] {
        &self.parameters
    }
}

impl Module for ParameterList {
    /// # Errors
    /// Always: parameters alone compute nothing.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        derive::no_forward("ParameterList", input)
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (i, tensor) in self.parameters.iter().enumerate() {
            see(&i.to_string(), Member::Parameter(tensor));
        }
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for (i, tensor) in self.parameters.iter_mut().enumerate() {
            see(&i.to_string(), MemberMut::Tensor(Role::Parameter, tensor));
        }
    }
}

/// Parameters by name, in the order in which they came.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Module, ParameterDict};
///
/// let mut tables = ParameterDict::default();
/// tables.insert("left", Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [2])?)?;
/// assert_eq!(tables.named_parameters()[0].0, "left");
/// assert_eq!(tables.get("left").unwrap().size(), 2);
/// assert!(tables.insert("a.b", tables.get("left").unwrap().clone()).is_err());
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Default)]
pub struct ParameterDict {
    parameters: Vec<(String, Tensor)>,
}

impl ParameterDict {
    /// Adds a tensor, which is trained from now on, or replaces the one of the same name, which is returned.
    ///
    /// # Errors
    /// For an empty name, or one with a dot: dots separate the names of modules inside modules.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> Result<Option<Tensor>> {
        let (name, tensor) = (name.into(), tensor.with_grad());
        check_name("ParameterDict", &name)?;
        match self.parameters.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => Ok(Some(std::mem::replace(known, tensor))),
            None => {
                self.parameters.push((name, tensor));
                Ok(None)
            }
        }
    }

    /// Takes out the parameter of a name.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let at = self.parameters.iter().position(|(known, _)| known == name)?;
        Some(self.parameters.remove(at).1)
    }

    /// The parameter of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.iter().find_map(|(known, tensor)| (known == name).then_some(tensor))
    }

    /// The number of parameters.
    pub fn len(&self) -> usize {
        self.parameters.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// The names and parameters in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &Tensor)> + ExactSizeIterator {
        self.parameters.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

impl Module for ParameterDict {
    /// # Errors
    /// Always: parameters alone compute nothing.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        derive::no_forward("ParameterDict", input)
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (name, tensor) in &self.parameters {
            see(name, Member::Parameter(tensor));
        }
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for (name, tensor) in &mut self.parameters {
            see(name, MemberMut::Tensor(Role::Parameter, tensor));
        }
    }
}

print_as_module!(ParameterList, ParameterDict);

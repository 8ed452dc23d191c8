//! The values of a module by name, and putting values back.

use std::collections::HashMap;
use std::fmt;

use netcl_autograd::{Error, RawTensor, Result, Shape, Tensor};

use crate::members::Member;
use crate::module::Module;
use crate::walk::{same, walk};

/// Tensors by name, in the order in which they were put in.
///
/// ```
/// use netcl_nn::autograd::{DType, manager};
/// use netcl_nn::{Build, Linear, LinearOptions, Module, Strict};
///
/// let queue = manager().cpu().queue;
/// let (single, double) = (Build::on(&queue), Build::on(&queue).dtype(DType::F64));
/// let trained = Linear::new_with(single, LinearOptions::new(4, 2))?;
/// let other = Linear::new_with(double, LinearOptions::new(4, 2))?;
/// other.load_state_dict(&trained.state_dict(), Strict::Yes)?; // cast on the way
/// assert_eq!(other.weight().to_f64_vec()?, trained.weight().to_f64_vec()?);
/// assert_eq!(trained.state_dict().names().collect::<Vec<_>>(), ["weight", "bias"]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct StateDict {
    entries: Vec<(String, Tensor)>,
    places: HashMap<String, usize>,
}

impl StateDict {
    /// One without tensors.
    pub fn new() -> StateDict {
        StateDict::default()
    }

    /// Puts a tensor under a name, at the end if the name is new, and returns the one it replaces.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> Option<Tensor> {
        let name = name.into();
        if let Some(&place) = self.places.get(&name) {
            return Some(std::mem::replace(&mut self.entries[place].1, tensor));
        }
        self.places.insert(name.clone(), self.entries.len());
        self.entries.push((name, tensor));
        None
    }

    /// Takes a tensor out; the others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let place = self.places.remove(name)?;
        for later in self.places.values_mut().filter(|later| **later > place) {
            *later -= 1;
        }
        Some(self.entries.remove(place).1)
    }

    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.places.get(name).map(|&place| &self.entries[place].1)
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// The names and tensors in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The same names with copies of the values, which no further training changes.
    pub fn snapshot(&self) -> Result<StateDict> {
        let mut copies: Vec<(&Tensor, Tensor)> = Vec::new();
        let copied = self.iter().map(|(name, tensor)| {
            // What is shared stays shared: a name more costs no memory.
            let known = copies.iter().find(|(original, _)| same(original, tensor)).map(|(_, copy)| copy.clone());
            let copy = match known {
                Some(copy) => copy,
                None => Tensor::from(tensor.raw().duplicate()?),
            };
            copies.push((tensor, copy.clone()));
            Ok((name.to_owned(), copy))
        });
        copied.collect()
    }
}

impl FromIterator<(String, Tensor)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(entries: I) -> Self {
        let mut state = StateDict::new();
        state.extend(entries);
        state
    }
}

impl Extend<(String, Tensor)> for StateDict {
    fn extend<I: IntoIterator<Item = (String, Tensor)>>(&mut self, entries: I) {
        for (name, tensor) in entries {
            self.insert(name, tensor);
        }
    }
}

impl IntoIterator for StateDict {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<(String, Tensor)>;
    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// Names and shapes: values would drown them.
impl fmt::Debug for StateDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(name, tensor)| (name, tensor.shape()))).finish()
    }
}

/// Whether [`Module::load_state_dict`] needs every name to be on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strict {
    /// A name that is missing or unexpected is an error.
    #[default]
    Yes,
    /// Such names are reported and passed by.
    No,
}

/// What [`Module::load_state_dict`] passed by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Names of the module without a value.
    pub missing: Vec<String>,
    /// Names of values that the module does not have.
    pub unexpected: Vec<String>,
}

impl LoadReport {
    /// Whether every name was on both sides.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty()
    }
}

/// A value that does not fit its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misshapen {
    /// The name.
    pub name: String,
    /// The shape in the module.
    pub expected: Shape,
    /// The shape of the value.
    pub got: Shape,
}

/// Why values cannot be loaded: all reasons at once.
///
/// It arrives as [`Error::Custom`]; `downcast_ref` brings the lists back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateMismatch {
    /// What print-outs call the module.
    pub module: &'static str,
    /// Names of the module without a value.
    pub missing: Vec<String>,
    /// Names of values that the module does not have.
    pub unexpected: Vec<String>,
    /// Values of other shapes.
    pub misshapen: Vec<Misshapen>,
}

impl fmt::Display for StateMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "load_state_dict: the state does not fit {}, and nothing was loaded", self.module)?;
        for (what, names) in [("missing", &self.missing), ("unexpected", &self.unexpected)] {
            if !names.is_empty() {
                write!(f, "; {what}: {}", names.join(", "))?;
            }
        }
        for (i, Misshapen { name, expected, got }) in self.misshapen.iter().enumerate() {
            let start = if i == 0 { "; of another shape: " } else { ", " };
            write!(f, "{start}{name} is {got} and should be {expected}")?;
        }
        if self.misshapen.is_empty() {
            f.write_str("; use Strict::No to load what fits")?;
        }
        Ok(())
    }
}

impl std::error::Error for StateMismatch {}

pub(crate) fn collect(module: &dyn Module) -> StateDict {
    let mut state = StateDict::new();
    walk(module, "", &mut |name, member| {
        if let Member::Parameter(tensor) | Member::Buffer(tensor) = member {
            state.insert(name, tensor.detach());
        }
    });
    state
}

pub(crate) fn load(module: &dyn Module, state: &StateDict, strict: Strict) -> Result<LoadReport> {
    let targets = collect(module);
    let mut report = LoadReport::default();
    let mut misshapen = Vec::new();
    let mut pairs: Vec<(&Tensor, &Tensor)> = Vec::new();
    for (name, target) in targets.iter() {
        match state.get(name) {
            Some(value) if value.shape() == target.shape() => pairs.push((target, value)),
            Some(value) => {
                let (expected, got) = (target.shape().clone(), value.shape().clone());
                misshapen.push(Misshapen { name: name.to_owned(), expected, got });
            }
            None => report.missing.push(name.to_owned()),
        }
    }
    let elsewhere =
        |name: &String| targets.get(name).is_some_and(|target| pairs.iter().any(|(other, _)| same(other, target)));
    report.missing.retain(|name| !elsewhere(name));
    report.unexpected.extend(state.names().filter(|name| targets.get(name).is_none()).map(str::to_owned));
    if !misshapen.is_empty() || (strict == Strict::Yes && !report.is_complete()) {
        let LoadReport { missing, unexpected } = report;
        let mismatch = StateMismatch { module: module.kind(), missing, unexpected, misshapen };
        return Err(Error::Custom(Box::new(mismatch)));
    }
    pairs.retain(|(target, value)| !same(target, value));
    // Whatever can fail for lack of memory or a dtype comes before the first write.
    let prepared: Vec<(&Tensor, RawTensor)> =
        pairs.iter().map(|&(target, value)| Ok((target, prepared(target, value, &targets)?))).collect::<Result<_>>()?;
    for (target, value) in prepared {
        target.assign(&value)?;
    }
    Ok(report)
}

/// A value in the target's dtype, on its device, and in memory that loading does not write to.
fn prepared(target: &Tensor, value: &Tensor, targets: &StateDict) -> Result<RawTensor> {
    let ready = value.raw().cast(target.dtype())?.to(target.queue())?;
    let written = targets.iter().any(|(_, other)| other.shares_storage(&ready));
    Ok(if written { ready.duplicate()? } else { ready })
}

//! A module of Python's as a module of Rust's.
//!
//! Code that is written once against `dyn Module` (saving, training, data parallelism) takes a user's Python class: the adapter shows
//! its members and calls back into Python for `forward`.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};

use netcl::autograd::ops::loss::cross_entropy;
use netcl::nn::{Member, MemberMut, Module, Role};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySet};

use super::layer::{held, object};
use crate::error::{IntoPyResult, carry};
use crate::optim::Optimizer;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(training_step, module)?)
}

/// A module of Python's, as it was composed when this was made; parameters and buffers are the module's own.
pub(crate) struct PythonModule {
    object: Py<PyAny>,
    kind: &'static str,
    tensors: Vec<Place>,
    children: Vec<(String, PythonModule)>,
    training: bool,
}

/// A parameter or buffer.
struct Place {
    name: String,
    role: Role,
    tensor: Option<netcl::Tensor>,
    /// What stood there when the adapter was made.
    found: Option<netcl::Tensor>,
}

impl Place {
    /// Whether Rust code has put something else there.
    fn replaced(&self) -> bool {
        match (&self.tensor, &self.found) {
            (Some(now), Some(then)) => !now.shares_storage(then),
            (None, None) => false,
            _ => true,
        }
    }
}

impl PythonModule {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<PythonModule> {
        let py = object.py();
        let table = |name| -> PyResult<Bound<'_, PyDict>> {
            let found = object
                .getattr(name)
                .map_err(|_| PyTypeError::new_err(format!("a netcl.nn.Module is needed, not {}", object.get_type())))?;
            Ok(found.cast_into()?)
        };
        let mut tensors = Vec::new();
        let children_of = table("_modules")?;
        let unsaved = object.getattr(intern!(py, "_unsaved"))?.cast_into::<PySet>()?;
        for (names, saved) in [("_parameters", Role::Parameter), ("_buffers", Role::Buffer)] {
            for (name, value) in table(names)?.iter() {
                let role = if unsaved.contains(&name)? { Role::Constant } else { saved };
                let name: String = name.extract()?;
                let tensor = if value.is_none() { None } else { Some(held(&value, &name)?.as_ref().clone()) };
                tensors.push(Place { name, role, found: tensor.clone(), tensor });
            }
        }
        let mut children = Vec::new();
        for (name, child) in children_of.iter().filter(|(_, child)| !child.is_none()) {
            children.push((name.extract()?, PythonModule::new(&child)?));
        }
        Ok(PythonModule {
            object: object.clone().unbind(),
            kind: kept(&object.get_type().name()?.to_string()),
            tensors,
            children,
            training: object.getattr(intern!(py, "training"))?.is_truthy()?,
        })
    }

    /// Brings what Rust code has changed (the mode, tensors in other memory) to the module.
    pub(crate) fn bring_back(&self, py: Python<'_>) -> PyResult<()> {
        let module = self.object.bind(py);
        let mode = intern!(py, "training");
        if module.getattr(mode)?.is_truthy()? != self.training {
            module.setattr(mode, self.training)?;
        }
        for place in self.tensors.iter().filter(|place| place.replaced()) {
            let table = if place.role == Role::Parameter { "_parameters" } else { "_buffers" };
            let table = module.getattr(table)?.cast_into::<PyDict>()?;
            let now = table.get_item(&place.name)?.filter(|now| !now.is_none());
            let there = match (&now, &place.tensor) {
                (Some(now), Some(tensor)) => held(now, &place.name)?.shares_storage(tensor),
                (now, tensor) => now.is_none() && tensor.is_none(),
            };
            if !there {
                let tensor = place.tensor.clone().map(|tensor| object(py, tensor)).transpose()?;
                table.as_any().set_item(&place.name, tensor)?;
            }
        }
        self.children.iter().try_for_each(|(_, child)| child.bring_back(py))
    }
}

/// A name that lives as long as the process; classes are few.
fn kept(name: &str) -> &'static str {
    static NAMES: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.get(name).copied().unwrap_or_else(|| {
        let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
        names.insert(name);
        name
    })
}

impl Module for PythonModule {
    fn forward(&self, input: &netcl::Tensor) -> netcl::Result<netcl::Tensor> {
        let called = |py: Python<'_>| {
            self.bring_back(py)?;
            let result = self.object.bind(py).call1((Tensor::new(input.clone()),))?;
            match result.cast::<Tensor>() {
                Ok(tensor) => Ok(tensor.get().inner().as_ref().clone()),
                Err(_) => {
                    let what = format!("{}: forward gave {}; a tensor is needed here", self.kind, result.get_type());
                    Err(PyTypeError::new_err(what))
                }
            }
        };
        Python::attach(called).map_err(carry)
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        for Place { name, role, tensor, .. } in &self.tensors {
            let member = match (tensor, role) {
                (None, role) => Member::Absent(*role),
                (Some(tensor), Role::Parameter) => Member::Parameter(tensor),
                (Some(tensor), Role::Buffer) => Member::Buffer(tensor),
                (Some(tensor), Role::Constant) => Member::Constant(tensor),
            };
            see(name, member);
        }
        see("training", Member::Mode(self.training));
        for (name, child) in &self.children {
            see(name, Member::Child(child));
        }
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for Place { name, role, tensor, .. } in &mut self.tensors {
            see(name, MemberMut::Optional(*role, tensor));
        }
        see("training", MemberMut::Mode(&mut self.training));
        for (name, child) in &mut self.children {
            see(name, MemberMut::Child(child));
        }
    }

    fn kind(&self) -> &'static str {
        self.kind
    }
}

/// One step of training a classifier: the loss of a batch, its gradients and the optimizer's update.
#[pyfunction]
fn training_step(
    py: Python<'_>,
    model: &Bound<'_, PyAny>,
    optimizer: &Bound<'_, Optimizer>,
    x: &Tensor,
    labels: Vec<i64>,
) -> PyResult<f64> {
    let (module, x, optimizer) = (PythonModule::new(model)?, x.inner(), optimizer.get());
    py.detach(|| {
        module.zero_grad();
        let loss = cross_entropy(&module.forward(&x)?, &labels, &Default::default())?;
        loss.backward()?;
        optimizer.lock().step()?;
        Ok::<_, netcl::Error>(loss.item()?)
    })
    .py()
}

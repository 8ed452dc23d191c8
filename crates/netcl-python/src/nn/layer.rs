//! A layer of Rust's inside a module of Python's.
//!
//! The module's tables of parameters and buffers, its settings and its mode are the user's, who may replace, move or share
//! anything in them. The layer looks at them before it computes: what is another object than the last time is taken over. A
//! look costs some lookups in dictionaries, and no way of changing a module has to know of the layer inside.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use netcl::core::device::manager;
use netcl::nn::settings::Value;
use netcl::nn::{Build, LayerConfig, Member, MemberMut, Module, Role, build_layer, layer_config};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use smallvec::SmallVec;

use super::values::{from_py, named, to_py};
use crate::autograd::{run, wrap};
use crate::device::resolve_queue;
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::tensor::{Tensor, parse_dtype};

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Layer>()
}

/// What makes an object again, and with which arguments.
type Reduced<'py> = (Bound<'py, PyAny>, (String, Bound<'py, PyDict>));

/// The part of a layer that computes.
#[pyclass(module = "netcl._netcl.nn", frozen)]
pub(crate) struct Layer {
    #[pyo3(get)]
    kind: String,
    module: RwLock<Box<dyn Module>>,
    seen: Mutex<Seen>,
}

/// What the layer has taken over from the module of Python's.
struct Seen {
    /// The module itself and those inside it, each before those inside it.
    parts: Vec<Part>,
    slots: Vec<Slot>,
}

/// The module, or one inside.
struct Part {
    /// The part that it is a child of, and its name there.
    inside: Option<(usize, Py<PyString>)>,
    /// The dotted name.
    full: String,
    kind: &'static str,
    /// The module's `_version` at the time: an object that every change of a setting or the mode replaces.
    version: Option<Py<PyAny>>,
    settings: Vec<(&'static str, Value)>,
}

/// A parameter or buffer.
struct Slot {
    /// Whose it is.
    part: usize,
    name: Py<PyString>,
    /// The dotted name.
    full: String,
    role: Role,
    /// Whether what stands there was taken over once.
    taken: bool,
    object: Option<Py<PyAny>>,
    tensor: Option<Arc<netcl::Tensor>>,
}

#[pymethods]
impl Layer {
    /// A new layer of a kind; ``settings`` are the arguments of its constructor.
    #[new]
    #[pyo3(signature = (kind, settings, queue=None, dtype=None))]
    fn new(
        py: Python<'_>,
        kind: &str,
        settings: &Bound<'_, PyDict>,
        queue: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Layer> {
        let (queue, dtype) = (resolve_queue(py, queue, None)?, parse_dtype(dtype)?);
        Layer::build(py, kind, settings, Build::on(&queue).dtype(dtype))
    }

    /// The result for a tensor: the object itself where the layer passes it on. ``own`` is the ``__dict__`` of the module that the
    /// layer is inside of, None for a layer that is inside of none.
    fn forward<'py>(
        &self,
        py: Python<'py>,
        own: Option<&Bound<'py, PyDict>>,
        x: &Bound<'py, Tensor>,
    ) -> PyResult<Bound<'py, Tensor>> {
        let input = &x.get().inner();
        let result = self.with(py, own, input, |module| module.forward(input))?;
        if result.is(input) { Ok(x.clone()) } else { wrap(py, result)?.into_pyobject(py) }
    }

    /// The settings by name: what became of the constructor's arguments.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dict(py, self.read().settings())
    }

    /// The settings that print-outs show.
    fn shown<'py>(&self, own: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
        self.follow(own.py(), own)?;
        dict(own.py(), self.read().shown())
    }

    /// The parameters, or with ``buffers`` the buffers, by name; None for one that this layer does without.
    #[pyo3(signature = (buffers=false))]
    fn tensors<'py>(&self, py: Python<'py>, buffers: bool) -> PyResult<Bound<'py, PyDict>> {
        let mut found: Vec<(String, Option<netcl::Tensor>)> = Vec::new();
        self.read().visit(&mut |name, member| {
            let (role, tensor) = match member {
                Member::Parameter(tensor) => (Role::Parameter, Some(tensor.clone())),
                Member::Buffer(tensor) => (Role::Buffer, Some(tensor.clone())),
                Member::Absent(role) => (role, None),
                _ => return,
            };
            if (role == Role::Buffer) == buffers && role != Role::Constant {
                found.push((name.to_owned(), tensor));
            }
        });
        let tensors = PyDict::new(py);
        for (name, tensor) in found {
            tensors.set_item(name, tensor.map(|tensor| object(py, tensor)).transpose()?)?;
        }
        Ok(tensors)
    }

    /// All parameters and buffers, those of the layers inside included, by dotted name.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = PyDict::new(py);
        for (name, tensor) in self.read().state_dict().iter() {
            state.set_item(name, object(py, tensor.clone())?)?;
        }
        Ok(state)
    }

    /// Behaves as in training, or not.
    fn train(&self, mode: bool) {
        if mode { self.write().train() } else { self.write().eval() }
    }

    /// The layers inside by name, with tensors that are this layer's.
    fn children(&self, py: Python<'_>) -> PyResult<Vec<(String, Layer)>> {
        let mut found = Vec::new();
        self.read().visit(&mut |name, member| {
            if let Member::Child(child) = member {
                found.push((
                    name.to_owned(),
                    layer_config(child),
                    [child.named_parameters(), child.named_buffers()].concat(),
                ));
            }
        });
        let children = found.into_iter().map(|(name, config, tensors)| {
            let layer = Layer::of(py, &config.py()?, hollow())?;
            for (name, tensor) in tensors {
                layer.write().set_tensor(&name, Some(tensor)).py()?;
            }
            Ok((name, layer))
        });
        children.collect()
    }

    /// A layer of these settings without memory of its own: for a module that has its parameters already.
    #[staticmethod]
    fn hollow(py: Python<'_>, kind: &str, settings: &Bound<'_, PyDict>) -> PyResult<Layer> {
        Layer::build(py, kind, settings, hollow())
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Layer> {
        Layer::hollow(py, &self.kind, &self.settings(py)?)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let hollow = py.get_type::<Layer>().getattr(intern!(py, "hollow"))?;
        Ok((hollow, (self.kind.clone(), self.settings(py)?)))
    }

    fn __repr__(&self) -> String {
        format!("<the layer of a {}>", self.kind)
    }
}

impl Layer {
    fn build(py: Python<'_>, kind: &str, settings: &Bound<'_, PyDict>, build: Build<'_>) -> PyResult<Layer> {
        let settings = named(settings)?.into_iter().map(|(name, value)| (name, value.into())).collect();
        Layer::of(py, &LayerConfig { kind: kind.to_owned(), settings }, build)
    }

    fn of(py: Python<'_>, config: &LayerConfig, build: Build<'_>) -> PyResult<Layer> {
        Ok(Layer::holding(py, py.detach(|| build_layer(build, config)).py()?))
    }

    /// A layer that Rust has made.
    pub(super) fn holding(py: Python<'_>, module: Box<dyn Module>) -> Layer {
        let (kind, seen) = (module.kind().to_owned(), Mutex::new(Seen::of(py, &*module)));
        Layer { kind, module: RwLock::new(module), seen }
    }

    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    fn read(&self) -> RwLockReadGuard<'_, Box<dyn Module>> {
        self.module.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Box<dyn Module>> {
        self.module.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something on the layer as the module of Python's is now.
    pub(super) fn with<'o, 'py: 'o, T: Send>(
        &self,
        py: Python<'_>,
        own: impl Into<Option<&'o Bound<'py, PyDict>>>,
        on: &netcl::Tensor,
        operation: impl FnOnce(&dyn Module) -> netcl::Result<T> + Send,
    ) -> PyResult<T> {
        own.into().map_or(Ok(()), |own| self.follow(py, own))?;
        // The lock is free again before the interpreter is waited for: whoever changes the layer holds the interpreter.
        run(py, on, || operation(&**self.read())).py()
    }

    /// [`Layer::with`] for what only one kind of layer can do.
    pub(super) fn with_kind<'o, 'py: 'o, M: Module, T: Send>(
        &self,
        py: Python<'_>,
        own: impl Into<Option<&'o Bound<'py, PyDict>>>,
        on: &netcl::Tensor,
        operation: impl FnOnce(&M) -> netcl::Result<T> + Send,
    ) -> PyResult<T> {
        self.with(py, own, on, |module| match module.downcast_ref::<M>() {
            Some(layer) => operation(layer),
            None => Err(wrong_kind(module)),
        })
    }

    /// What one kind of layer knows, as the module of Python's is now.
    pub(super) fn look<M: Module, T>(
        &self,
        py: Python<'_>,
        own: &Bound<'_, PyDict>,
        look: impl FnOnce(&M) -> T,
    ) -> PyResult<T> {
        self.follow(py, own)?;
        let module = self.read();
        module.downcast_ref::<M>().map(look).ok_or_else(|| wrong_kind(&**module)).py()
    }

    /// Takes over what has changed in the module.
    fn follow(&self, py: Python<'_>, own: &Bound<'_, PyDict>) -> PyResult<()> {
        let module = own;
        let mut seen = self.seen();
        let Seen { parts, slots } = &mut *seen;
        // The `__dict__` of each part, or none where a child is missing.
        let mut found: SmallVec<[Option<Bound<'_, PyDict>>; 4]> = SmallVec::new();
        for part in parts {
            let own = match &part.inside {
                None => Some(own.clone()),
                Some((outer, name)) => found[*outer].as_ref().map_or(Ok(None), |outer| child(outer, name.bind(py)))?,
            };
            if let Some(own) = &own {
                let version = own.get_item(intern!(py, "_version"))?;
                let steady = matches!((&version, &part.version), (Some(now), Some(then)) if now.is(then));
                if !steady {
                    if self.exchanged(own, part)? {
                        *seen = Seen::of(py, &**self.read());
                        drop(seen);
                        return self.follow(py, module);
                    }
                    self.follow_settings(own, part)?;
                    part.version = version.map(Bound::unbind);
                }
            }
            found.push(own);
        }
        for slot in slots {
            let now = found[slot.part].as_ref().map_or(Ok(None), |own| slot.find(own))?;
            let same = match (&now, &slot.object) {
                (None, None) => slot.taken,
                (Some(now), Some(then)) if now.is(then) => match (now.cast::<Tensor>(), &slot.tensor) {
                    // The object may hold another tensor by now: it has moved, or was written to.
                    (Ok(tensor), Some(then)) => Arc::ptr_eq(&tensor.get().inner(), then),
                    _ => true,
                },
                _ => false,
            };
            if !same {
                slot.tensor = now.as_ref().map(|now| held(now, &slot.full)).transpose()?;
                let tensor = slot.tensor.as_deref().cloned();
                self.write().set_tensor(&slot.full, tensor).py()?;
                (slot.object, slot.taken) = (now.map(Bound::unbind), true);
            }
        }
        Ok(())
    }

    /// Whether another kind of layer stood in the place of a part, and is there now: a `QuantizedLinear` for a `Linear`.
    fn exchanged(&self, own: &Bound<'_, PyDict>, part: &Part) -> PyResult<bool> {
        let layer = own.get_item(intern!(own.py(), "_layer"))?;
        let layer = layer.as_ref().and_then(|layer| layer.cast::<Layer>().ok());
        if part.inside.is_none() || layer.is_some_and(|layer| layer.get().kind == part.kind) {
            return Ok(false);
        }
        let mut exchanged = false;
        let mut new = match layer {
            Some(layer) => {
                let config = layer_config(&**layer.get().read()).py()?;
                Some(build_layer(hollow(), &config).py()?)
            }
            None => None,
        };
        let exchange = &mut |path: &str, module: &mut dyn Module| {
            if path == part.full
                && let Some(place) = module.place()
                && let Some(new) = new.take()
            {
                *place = new;
                exchanged = true;
            }
            Ok(())
        };
        self.write().apply(exchange).py()?;
        if exchanged {
            return Ok(true);
        }
        let (outer, name, kind) = (&self.kind, &part.full, part.kind);
        let what = format!("{outer}: {name} is computed as a {kind}; this module cannot take its place");
        Err(PyTypeError::new_err(what))
    }

    fn follow_settings(&self, own: &Bound<'_, PyDict>, part: &mut Part) -> PyResult<()> {
        let mut changed = Vec::new();
        for (name, then) in &part.settings {
            // A bias that is there or not is a setting to the constructor, and a parameter afterwards.
            let Some(now) = own.get_item(*name)? else { continue };
            let now = from_py(&now)?;
            if now != *then {
                changed.push((*name, now));
            }
        }
        let training = own.get_item(intern!(own.py(), "training"))?.is_none_or(|mode| mode.is_truthy().unwrap_or(true));
        let follow = &mut |path: &str, module: &mut dyn Module| {
            if path == part.full {
                changed.iter().try_for_each(|(name, now)| module.set_setting(name, now))?;
                module.visit_mut(&mut |_, member| {
                    if let MemberMut::Mode(mode) = member {
                        *mode = training;
                    }
                });
            }
            Ok(())
        };
        self.write().apply(follow).py()?;
        for (name, now) in changed {
            part.settings.iter_mut().filter(|(known, _)| *known == name).for_each(|(_, then)| *then = now.clone());
        }
        Ok(())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn of(py: Python<'_>, module: &dyn Module) -> Seen {
        let mut seen = Seen { parts: Vec::new(), slots: Vec::new() };
        seen.add(py, module, None, "");
        seen
    }

    /// Adds the places of a module: its settings and tensors, and those of the modules inside.
    fn add(&mut self, py: Python<'_>, module: &dyn Module, inside: Option<(usize, Py<PyString>)>, full: &str) {
        let part = self.parts.len();
        let (kind, settings) = (module.kind(), module.settings());
        self.parts.push(Part { inside, full: full.to_owned(), kind, version: None, settings });
        module.visit(&mut |name, member| {
            let full = if full.is_empty() { name.to_owned() } else { format!("{full}.{name}") };
            let here = PyString::intern(py, name).unbind();
            let role = match member {
                Member::Parameter(_) => Role::Parameter,
                Member::Buffer(_) => Role::Buffer,
                Member::Absent(role) => role,
                Member::Child(child) => return self.add(py, child, Some((part, here)), &full),
                Member::Constant(_) | Member::Mode(_) => return,
            };
            if role != Role::Constant {
                self.slots.push(Slot { part, name: here, full, role, taken: false, object: None, tensor: None });
            }
        });
    }
}

/// The `__dict__` of a module inside another.
fn child<'py>(own: &Bound<'py, PyDict>, name: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let py = own.py();
    let Some(modules) = own.get_item(intern!(py, "_modules"))? else { return Ok(None) };
    let child = modules.cast::<PyDict>()?.get_item(name)?.filter(|child| !child.is_none());
    child.map(|child| Ok(child.getattr(intern!(py, "__dict__"))?.cast_into()?)).transpose()
}

impl Slot {
    /// What stands there now: in the table of parameters or buffers, or as an attribute if it is the result of a computation.
    fn find<'py>(&self, own: &Bound<'py, PyDict>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = own.py();
        let table = match self.role {
            Role::Parameter => intern!(py, "_parameters"),
            Role::Buffer | Role::Constant => intern!(py, "_buffers"),
        };
        let name = self.name.bind(py);
        let found = match own.get_item(table)? {
            Some(table) => table.cast::<PyDict>()?.get_item(name)?,
            None => None,
        };
        let found = if found.is_none() { own.get_item(name)? } else { found };
        Ok(found.filter(|found| !found.is_none()))
    }
}

fn wrong_kind(module: &dyn Module) -> netcl::Error {
    netcl::Error::wrong_type("Layer", format!("a {} cannot do this", module.kind()))
}

/// Where a layer is made that takes its tensors from elsewhere.
fn hollow<'a>() -> Build<'a> {
    Build::on(&manager().cpu().queue).hollow()
}

fn dict<'py>(py: Python<'py>, settings: Vec<(&'static str, Value)>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in settings {
        dict.set_item(name, to_py(py, &value)?)?;
    }
    Ok(dict)
}

/// The tensor of a parameter or buffer.
pub(crate) fn held(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Arc<netcl::Tensor>> {
    match object.cast::<Tensor>() {
        Ok(tensor) => Ok(tensor.get().inner()),
        Err(_) => Err(PyTypeError::new_err(format!("{name} is a tensor, not {}", object.get_type()))),
    }
}

/// A parameter or buffer as Python sees it.
pub(crate) fn object(py: Python<'_>, tensor: netcl::Tensor) -> PyResult<Bound<'_, PyAny>> {
    Ok(Made::new(tensor).into_pyobject(py)?.into_any())
}

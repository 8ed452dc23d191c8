//! `netcl.core.kernels.primitives`: kernels of one's own.

use netcl::core::backend::Queue;
use netcl::core::backend::opencl::Context;
use netcl::core::device as core_device;
use netcl::core::kernels::primitives as core;
use netcl::core::kernels::primitives::{KernelArg, ScalarType};
use netcl::core::kernels::work_group::GroupLimits;
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyTuple};

use crate::cpu_buffer::CpuBuffer;
use crate::device::{queue_from_py, resolve_queue};
use crate::error::IntoPyResult;
use crate::list::List;
use crate::opencl::{Event, Owner, buffer_from_py, context_from_py};
use crate::tensor::{Tensor, parse_dtype};

/// Adds this file's names to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PRIMITIVE_PREAMBLE", core::PRIMITIVE_PREAMBLE)?;
    module.add_class::<KernelSpec>()?;
    module.add_class::<KernelProgram>()?;
    module.add_class::<KernelFunction>()?;
    module.add_class::<LocalMemory>()?;
    module.add_class::<WorkGroupTuner>()?;
    module.add_class::<PrimitiveBuilder>()?;
    module.add_function(wrap_pyfunction!(build_elementwise_kernel, module)?)
}

/// A kernel's source: ``KernelSpec(name, params, preamble, body)`` or ``KernelSpec(name, src=...)``.
///
/// ``fast_math=True`` adds ``-cl-fast-relaxed-math``. ``bounds_checked=True`` says that surplus work-items do nothing, so that the
/// global size may be rounded up.
#[pyclass(module = "netcl.core.kernels.primitives", frozen)]
pub(crate) struct KernelSpec(core::KernelSpec);

#[pymethods]
impl KernelSpec {
    #[new]
    #[pyo3(signature = (name, params=None, preamble="", body=None, src=None, *, options="", fast_math=false, bounds_checked=false))]
    #[expect(clippy::too_many_arguments, reason = "the documented signature and its options")]
    fn new(
        name: &str,
        params: Option<List<String>>,
        preamble: &str,
        body: Option<&str>,
        src: Option<&str>,
        options: &str,
        fast_math: bool,
        bounds_checked: bool,
    ) -> PyResult<Self> {
        let spec = match (src, params, body) {
            (Some(src), None, None) => core::KernelSpec::from_source(name, src).py()?,
            (None, params, Some(body)) => {
                core::KernelSpec::new(name, params.map_or_else(Vec::new, |list| list.0), body).py()?
            }
            (Some(_), _, _) => {
                return Err(PyTypeError::new_err(
                    "KernelSpec: src= is a complete kernel, so params= and body= must be left out",
                ));
            }
            (None, _, None) => {
                return Err(PyTypeError::new_err("KernelSpec: give params= and body=, or src= with a complete kernel"));
            }
        };
        Ok(KernelSpec(spec.preamble(preamble).options(options).fast_math(fast_math).bounds_checked(bounds_checked)))
    }

    /// The kernel's name.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The parameters, or ``None`` for a spec made from a complete source.
    #[getter]
    fn params(&self) -> Option<Vec<String>> {
        self.0.params().map(<[String]>::to_vec)
    }

    /// The body, or ``None`` for a spec made from a complete source.
    #[getter]
    fn body(&self) -> Option<&str> {
        self.0.body()
    }

    /// The text in front of the kernel.
    #[getter]
    fn preamble(&self) -> &str {
        self.0.preamble_text()
    }

    /// The compiler options.
    #[getter]
    fn build_options(&self) -> String {
        self.0.build_options()
    }

    /// A complete ``__kernel`` definition with the preamble spliced in.
    fn to_source(&self) -> String {
        self.0.to_source()
    }

    /// Compiles for a queue's device, or for every device of a context; for the active or default device without an argument.
    ///
    /// For the native CPU an OpenCL driver for CPUs compiles and runs it, on the tensors' own memory.
    #[pyo3(signature = (queue_or_context=None))]
    fn build(&self, py: Python<'_>, queue_or_context: Option<&Bound<'_, PyAny>>) -> PyResult<KernelProgram> {
        let place = Place::from_py(queue_or_context)?;
        py.detach(|| place.build(&self.0)).py().map(KernelProgram)
    }

    fn __repr__(&self) -> String {
        format!("<KernelSpec {:?}>", self.0.name())
    }
}

/// A spec compiled for a device. Its kernels are attributes.
#[pyclass(module = "netcl.core.kernels.primitives", frozen)]
pub(crate) struct KernelProgram(core::KernelProgram);

#[pymethods]
impl KernelProgram {
    /// Runs the kernel that the spec is named after: ``run(queue, global_size, local_size, *args)``.
    ///
    /// With ``local_size=None`` the size that won earlier is used, else the tuner's choice. On a queue that profiles its commands
    /// (``NETCL_PROFILE_EVENTS=1``) the launch's ``Event`` comes back, else ``None``.
    #[pyo3(signature = (queue, global_size, local_size=None, *args))]
    fn run(
        &self,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        global_size: &Bound<'_, PyAny>,
        local_size: Option<&Bound<'_, PyAny>>,
        args: &Bound<'_, PyTuple>,
    ) -> PyResult<Option<Event>> {
        KernelFunction(self.0.main().py()?).run(py, queue, global_size, local_size, args)
    }

    /// Times a few work-group sizes of the kernel that the spec is named after; see ``KernelFunction.tune``.
    #[pyo3(signature = (queue, global_size, *args))]
    fn tune<'py>(
        &self,
        py: Python<'py>,
        queue: Option<&Bound<'py, PyAny>>,
        global_size: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        KernelFunction(self.0.main().py()?).tune(py, queue, global_size, args)
    }

    /// The names of its kernels, sorted.
    #[getter]
    fn kernel_names(&self) -> Vec<&str> {
        self.0.kernel_names()
    }

    /// One of its kernels.
    fn kernel(&self, name: &str) -> PyResult<KernelFunction> {
        self.0.kernel(name).py().map(KernelFunction)
    }

    fn __getattr__(&self, name: &str) -> PyResult<KernelFunction> {
        self.0.kernel(name).map(KernelFunction).map_err(|error| PyAttributeError::new_err(error.to_string()))
    }

    fn __dir__(&self) -> Vec<&str> {
        ["kernel", "kernel_names", "run", "tune"].into_iter().chain(self.0.kernel_names()).collect()
    }

    fn __repr__(&self) -> String {
        format!("<KernelProgram with {}>", self.0.kernel_names().join(", "))
    }
}

/// A kernel of a program: ``kernel(queue, global_size, local_size, *args)`` runs it.
#[pyclass(module = "netcl.core.kernels.primitives", frozen)]
pub(crate) struct KernelFunction(core::KernelFunction);

impl KernelFunction {
    fn run(
        &self,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        global_size: &Bound<'_, PyAny>,
        local_size: Option<&Bound<'_, PyAny>>,
        args: &Bound<'_, PyTuple>,
    ) -> PyResult<Option<Event>> {
        let queue = resolve_queue(py, queue, None)?;
        let global = sizes(global_size, "global_size")?;
        let local = local_size.filter(|size| !size.is_none()).map(|size| sizes(size, "local_size")).transpose()?;
        let args = args.iter().map(|arg| argument(&arg)).collect::<PyResult<Vec<_>>>()?;
        // On the native CPU the kernel has run when this returns.
        let event = py.detach(|| self.0.run_event(&queue, &global, local.as_deref(), &args)).py()?;
        Ok(event.map(Event::new))
    }
}

#[pymethods]
impl KernelFunction {
    #[pyo3(signature = (queue, global_size, local_size=None, *args))]
    fn __call__(
        &self,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        global_size: &Bound<'_, PyAny>,
        local_size: Option<&Bound<'_, PyAny>>,
        args: &Bound<'_, PyTuple>,
    ) -> PyResult<Option<Event>> {
        self.run(py, queue, global_size, local_size, args)
    }

    /// Times a few work-group sizes, remembers the fastest for later runs and returns it (``None``: the driver's own choice).
    ///
    /// The kernel runs many times on the very arguments: give it scratch memory unless running twice does no harm.
    #[pyo3(signature = (queue, global_size, *args))]
    fn tune<'py>(
        &self,
        py: Python<'py>,
        queue: Option<&Bound<'py, PyAny>>,
        global_size: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let queue = resolve_queue(py, queue, None)?;
        let global = sizes(global_size, "global_size")?;
        let args = args.iter().map(|arg| argument(&arg)).collect::<PyResult<Vec<_>>>()?;
        let tuned = py.detach(|| self.0.tune(&queue, &global, &args)).py()?;
        tuned.local_size.map(|local| PyTuple::new(py, local)).transpose()
    }

    /// The work-group size that a run without one would use; ``None`` means the driver's own choice.
    #[pyo3(signature = (queue, global_size))]
    fn local_size<'py>(
        &self,
        py: Python<'py>,
        queue: Option<&Bound<'py, PyAny>>,
        global_size: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let local = self.0.local_size(&resolve_queue(py, queue, None)?, &sizes(global_size, "global_size")?).py()?;
        local.map(|local| PyTuple::new(py, local)).transpose()
    }

    /// Its name.
    #[getter]
    fn function_name(&self) -> &str {
        self.0.name()
    }

    /// How many arguments it takes.
    #[getter]
    fn num_args(&self) -> usize {
        self.0.parameters().len()
    }

    /// Its parameters as declared.
    #[getter]
    fn parameters(&self) -> Vec<&str> {
        self.0.parameters().iter().map(|parameter| parameter.declaration.as_str()).collect()
    }

    /// The ``cl_kernel`` as a number, for ``pyopencl.Kernel.from_int_ptr``.
    #[getter]
    fn int_ptr(&self) -> PyResult<usize> {
        let missing = || PyValueError::new_err("the kernel was built for no device");
        self.0.first().ok_or_else(missing)?.int_ptr().py()
    }

    fn __repr__(&self) -> String {
        format!("<KernelFunction {}({})>", self.0.name(), self.parameters().join(", "))
    }
}

/// So many bytes of local memory, for a ``__local`` pointer.
#[pyclass(module = "netcl.core.kernels.primitives", frozen)]
pub(crate) struct LocalMemory(usize);

#[pymethods]
impl LocalMemory {
    #[new]
    fn new(nbytes: usize) -> PyResult<Self> {
        if nbytes == 0 {
            return Err(PyValueError::new_err("LocalMemory: at least one byte is needed"));
        }
        Ok(LocalMemory(nbytes))
    }

    /// The number of bytes.
    #[getter]
    fn size(&self) -> usize {
        self.0
    }

    fn __repr__(&self) -> String {
        format!("LocalMemory({})", self.0)
    }
}

/// Picks ``local_size`` and rounds ``global_size`` up to a multiple of it, within the device's limits.
#[pyclass(module = "netcl.core.kernels.primitives", frozen, eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct WorkGroupTuner(core::WorkGroupTuner);

#[pymethods]
impl WorkGroupTuner {
    #[new]
    #[pyo3(signature = (max_local=256))]
    fn new(max_local: usize) -> PyResult<Self> {
        core::WorkGroupTuner::new(max_local).py().map(WorkGroupTuner)
    }

    /// The most work-items a chosen group has.
    #[getter]
    fn max_local(&self) -> usize {
        self.0.max_local()
    }

    /// ``(global_size, local_size)`` for a kernel that ignores surplus work-items: the global size is rounded up.
    #[pyo3(signature = (queue, global_size))]
    fn choose<'py>(
        &self,
        py: Python<'py>,
        queue: Option<&Bound<'py, PyAny>>,
        global_size: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyTuple>)> {
        let stream = core::kernel_stream(&resolve_queue(py, queue, None)?).py()?;
        let limits = GroupLimits::of_device(stream.device());
        let global = sizes(global_size, "global_size")?;
        let local = self.0.local_size(&global, &limits);
        Ok((PyTuple::new(py, core::WorkGroupTuner::round_up(&global, &local))?, PyTuple::new(py, local)?))
    }

    fn __repr__(&self) -> String {
        format!("WorkGroupTuner(max_local={})", self.0.max_local())
    }
}

/// Builds elementwise kernels from expressions of ``v0``, ``v1``, ...
#[pyclass(module = "netcl.core.kernels.primitives", frozen)]
pub(crate) struct PrimitiveBuilder(core::PrimitiveBuilder);

#[pymethods]
impl PrimitiveBuilder {
    #[new]
    #[pyo3(signature = (dtype=None, tuner=None, *, fast_math=false),
        text_signature = "(dtype='float32', tuner=None, *, fast_math=False)")]
    fn new(
        dtype: Option<&Bound<'_, PyAny>>,
        tuner: Option<&Bound<'_, WorkGroupTuner>>,
        fast_math: bool,
    ) -> PyResult<Self> {
        let tuner = tuner.map(|tuner| tuner.get().0.clone()).unwrap_or_default();
        let builder = core::PrimitiveBuilder::new(parse_dtype(dtype)?).py()?;
        Ok(PrimitiveBuilder(builder.tuner(tuner).fast_math(fast_math)))
    }

    /// The element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    /// The kernel ``name(in0, ..., out, n)`` that stores the expression of its ``arity`` inputs for the first ``n`` elements.
    fn elementwise_spec(&self, name: &str, arity: usize, expression: &str) -> PyResult<KernelSpec> {
        self.0.elementwise_spec(name, arity, expression).py().map(KernelSpec)
    }
}

/// Builds an elementwise kernel in one call; returns ``(spec, kernel)``.
#[pyfunction]
#[pyo3(signature = (context, name, arity, expression, dtype=None, *, fast_math=false),
    text_signature = "(context, name, arity, expression, dtype='float32', *, fast_math=False)")]
fn build_elementwise_kernel(
    py: Python<'_>,
    context: Option<&Bound<'_, PyAny>>,
    name: &str,
    arity: usize,
    expression: &str,
    dtype: Option<&Bound<'_, PyAny>>,
    fast_math: bool,
) -> PyResult<(KernelSpec, KernelFunction)> {
    let builder = core::PrimitiveBuilder::new(parse_dtype(dtype)?).py()?.fast_math(fast_math);
    let spec = builder.elementwise_spec(name, arity, expression).py()?;
    let place = Place::from_py(context)?;
    let kernel = py.detach(|| place.build(&spec)?.main()).py()?;
    Ok((KernelSpec(spec), KernelFunction(kernel)))
}

/// Where a program is built.
enum Place {
    Queue(Queue),
    Context(Context),
}

impl Place {
    fn from_py(object: Option<&Bound<'_, PyAny>>) -> PyResult<Place> {
        let Some(object) = object.filter(|object| !object.is_none()) else {
            return Ok(Place::Queue(core_device::current_device().py()?.queue));
        };
        match queue_from_py(object)? {
            Some(queue) => Ok(Place::Queue(queue)),
            None => context_from_py(object).map(Place::Context),
        }
    }

    fn build(&self, spec: &core::KernelSpec) -> netcl::core::Result<core::KernelProgram> {
        match self {
            Place::Queue(queue) => spec.build(queue),
            Place::Context(context) => spec.build_for(context),
        }
    }
}

/// A size or a sequence of sizes.
fn sizes(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<usize>> {
    let wrong = || PyTypeError::new_err(format!("{what} is a tuple of one to three whole numbers"));
    match object.try_iter() {
        Ok(items) => items.map(|item| item?.extract::<usize>()).collect::<PyResult<Vec<_>>>().map_err(|_| wrong()),
        Err(_) => object.extract::<usize>().map(|n| vec![n]).map_err(|_| wrong()),
    }
}

/// A Python object as a kernel argument. Whether it fits is the kernel's to say.
fn argument(object: &Bound<'_, PyAny>) -> PyResult<KernelArg> {
    if let Ok(tensor) = object.cast::<Tensor>() {
        return Ok(KernelArg::Tensor(tensor.get().inner().raw().clone()));
    }
    if object.is_none() {
        return Ok(KernelArg::Null);
    }
    // Exact types only: a numpy.float64 is a Python float too, and has a type of its own to be checked.
    if object.is_exact_instance_of::<PyFloat>() {
        return Ok(KernelArg::Float(object.extract()?));
    }
    if object.is_exact_instance_of::<PyInt>() || object.is_exact_instance_of::<PyBool>() {
        return Ok(KernelArg::Integer(object.extract()?));
    }
    if let Ok(local) = object.cast::<LocalMemory>() {
        return Ok(KernelArg::Local(local.get().0));
    }
    if let Ok(native) = object.cast::<CpuBuffer>() {
        return Ok(KernelArg::Storage(native.get().storage()?));
    }
    if object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>() {
        let values = object.try_iter()?.map(|value| argument(&value?)).collect::<PyResult<Vec<_>>>()?;
        return Ok(KernelArg::Vector(values));
    }
    if let Some((buffer, owner)) = buffer_from_py(object)? {
        return Ok(match owner {
            // As the tensor's memory: an upload is waited for, and the version is raised.
            Owner::Storage(storage) => KernelArg::Storage(storage),
            _ => KernelArg::Buffer(buffer),
        });
    }
    if let Some(number) = numpy_number(object)? {
        return Ok(number);
    }
    if object.get_type().name()? == "LocalMemory" {
        return Ok(KernelArg::Local(object.getattr("size")?.extract()?));
    }
    if let Ok(whole) = object.extract::<i128>() {
        return Ok(KernelArg::Integer(whole));
    }
    let kind = object.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "a kernel takes tensors, buffers, numbers, tuples of numbers, LocalMemory and None, not {kind}"
    )))
}

/// A NumPy scalar or array without axes in its own type.
fn numpy_number(object: &Bound<'_, PyAny>) -> PyResult<Option<KernelArg>> {
    let (Ok(dtype), Ok(axes)) = (object.getattr("dtype"), object.getattr("ndim")) else { return Ok(None) };
    let (Ok(name), Ok(bytes)) = (dtype.getattr("name"), object.getattr("tobytes")) else { return Ok(None) };
    let name = name.extract::<String>()?;
    if axes.extract::<usize>()? > 0 {
        let text = format!("an array of {name} lives in host memory; copy it to the device with Tensor.from_host");
        return Err(PyTypeError::new_err(text));
    }
    if name == "bool" {
        return Ok(Some(KernelArg::Integer(i128::from(object.is_truthy()?))));
    }
    let ty = ScalarType::from_numpy(&name)
        .ok_or_else(|| PyTypeError::new_err(format!("no parameter of a kernel can take a NumPy {name}")))?;
    let bytes = bytes.call0()?;
    Ok(Some(KernelArg::Typed(ty, bytes.cast::<PyBytes>()?.as_bytes().into())))
}

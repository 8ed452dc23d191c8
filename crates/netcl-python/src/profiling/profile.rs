//! Profiles and event timers: what `netcl.profiling` makes its classes of.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use netcl::core::observe::{self, Kind};
use netcl::profiling::profile::{EventTimer, Profile as Found, ProfileOptions, Profiler as Running};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::autograd::site;
use crate::error::IntoPyResult;
use crate::opencl::event_from_py;
use crate::selector::queue_of;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    observe::set_site(site::observed);
    module.add_class::<Profiler>()?;
    module.add_class::<Profile>()?;
    module.add_class::<Timer>()?;
    module.add_function(wrap_pyfunction!(event_ms, module)?)?;
    module.add_function(wrap_pyfunction!(call_in_module, module)?)?;
    module.add_function(wrap_pyfunction!(module_path, module)?)
}

/// Calls a function while launches go by the name of a module.
#[pyfunction]
#[pyo3(name = "_call_in_module", signature = (path, function, args, kwargs))]
fn call_in_module<'py>(
    path: &str,
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let _scope = observe::enter(|| path.into());
    function.call(args, Some(kwargs))
}

/// The path of the module whose launches this thread makes; None outside of any.
#[pyfunction]
#[pyo3(name = "_module_path")]
fn module_path() -> Option<String> {
    observe::module().map(|path| path.to_string())
}

/// Waits for an event (ours or PyOpenCL's) and gives the milliseconds that its command took on the device.
#[pyfunction]
#[pyo3(name = "_event_ms")]
fn event_ms(py: Python<'_>, event: &Bound<'_, PyAny>) -> PyResult<f64> {
    let Some(event) = event_from_py(event)? else {
        let what = format!("time_event: an event of netcl or PyOpenCL is needed, not {}", event.get_type().name()?);
        return Err(PyTypeError::new_err(what));
    };
    Ok(py.detach(|| EventTimer::time_event(&event, "")).py()?.duration_ms)
}

/// A scope that is being profiled.
#[pyclass(module = "netcl.profiling", name = "_Profiler", frozen)]
struct Profiler(Mutex<Option<Running>>);

#[pymethods]
impl Profiler {
    #[new]
    #[pyo3(signature = (ceilings=true))]
    fn new(py: Python<'_>, ceilings: bool) -> Profiler {
        Profiler(Mutex::new(Some(py.detach(|| Running::start(ProfileOptions { ceilings })))))
    }

    /// Waits for the devices, ends the scope and gives what it saw.
    fn stop(&self, py: Python<'_>) -> PyResult<Profile> {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let running = running.ok_or_else(|| PyRuntimeError::new_err("profile: the scope has ended already"))?;
        py.detach(|| running.stop()).map(Profile).py()
    }
}

/// What a scope did.
#[pyclass(module = "netcl.profiling", name = "_Profile", frozen)]
struct Profile(Found);

macro_rules! dict {
    ($py:expr, { $($name:ident: $value:expr),* $(,)? }) => {{
        let dict = PyDict::new($py);
        $(dict.set_item(stringify!($name), $value)?;)*
        dict
    }};
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Kernel => "kernel",
        Kind::Upload => "upload",
        Kind::Download => "download",
        Kind::Host => "host",
    }
}

#[pymethods]
impl Profile {
    fn kernels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for row in self.0.kernels() {
            list.append(dict!(py, {
                name: row.name, kind: kind(row.kind), device: &self.0.devices[row.device].name, calls: row.calls,
                total_ms: row.total * 1e3, mean_ms: row.mean * 1e3, flops: row.flops, bytes: row.bytes,
                gflops: row.gflops, gbps: row.gbps, ceiling: row.ceiling, share: row.share, source: row.source.as_deref(),
            }))?;
        }
        Ok(list)
    }

    fn modules<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for row in self.0.modules() {
            list.append(dict!(py, {
                path: row.path, calls: row.calls, forward_ms: row.forward * 1e3, backward_ms: row.backward * 1e3,
                total_ms: row.total * 1e3, own_ms: row.own * 1e3, share: row.share,
            }))?;
        }
        Ok(list)
    }

    fn lines<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for row in self.0.lines() {
            list.append(dict!(py, { line: row.line, calls: row.calls, total_ms: row.total * 1e3, share: row.share }))?;
        }
        Ok(list)
    }

    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for memory in &self.0.memory {
            let holders = PyList::empty(py);
            for holder in &memory.holders {
                holders.append(dict!(py, {
                    label: holder.label, module: &*holder.module, line: holder.line.as_deref(), bytes: holder.bytes,
                    blocks: holder.blocks,
                }))?;
            }
            let points: Vec<(f64, usize)> =
                memory.points.iter().map(|(time, bytes)| (*time as f64 * 1e-6, *bytes)).collect();
            list.append(dict!(py, {
                device: &memory.device, before_bytes: memory.before_bytes, peak_bytes: memory.peak_bytes,
                peak_ms: memory.peak_time as f64 * 1e-6, allocations: memory.allocations, points: points, holders: holders,
            }))?;
        }
        Ok(list)
    }

    fn commands<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let ms = |(start, end): (u64, u64)| (start as f64 * 1e-6, end as f64 * 1e-6);
        let list = PyList::empty(py);
        for command in &self.0.commands {
            list.append(dict!(py, {
                name: &command.name, kind: kind(command.kind), device: &self.0.devices[command.device].name,
                thread: command.thread, module: &*command.module, backward: command.backward,
                line: command.line.as_deref(), flops: command.flops, bytes: command.bytes, host_ms: ms(command.host),
                device_ms: ms(command.device_time), grid: &command.grid,
            }))?;
        }
        Ok(list)
    }

    #[getter]
    fn span_ms(&self) -> f64 {
        self.0.span.as_secs_f64() * 1e3
    }

    #[getter]
    fn device_ms(&self) -> f64 {
        self.0.device_seconds() * 1e3
    }

    /// Writes a trace for Perfetto.
    fn trace(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.trace(path)).map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// Writes the page.
    fn html(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.html(path)).map_err(|error| PyOSError::new_err(error.to_string()))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

/// Names and milliseconds of commands.
type Records = Vec<(String, f64)>;

/// Times the launches and copies of a scope on the device.
#[pyclass(module = "netcl.profiling", name = "_Timer", frozen)]
struct Timer(Mutex<EventTimer>);

#[pymethods]
impl Timer {
    #[new]
    #[pyo3(signature = (queue=None))]
    fn new(py: Python<'_>, queue: Option<&Bound<'_, PyAny>>) -> PyResult<Timer> {
        let queue = queue.map(|queue| queue_of(py, Some(queue))).transpose()?;
        let mut timer = EventTimer::new(queue.as_ref());
        py.detach(|| timer.start());
        Ok(Timer(Mutex::new(timer)))
    }

    /// Elapsed and busy milliseconds, and names and times of the commands.
    fn stop(&self, py: Python<'_>) -> PyResult<(f64, f64, Records)> {
        py.detach(|| {
            let mut timer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            timer.stop()?;
            let records = timer.records.iter().map(|record| (record.name.clone(), record.duration_ms)).collect();
            Ok::<_, netcl::core::Error>((timer.elapsed_ms, timer.busy_ms, records))
        })
        .py()
    }
}

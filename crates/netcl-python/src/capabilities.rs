//! `netcl.core.capabilities` and `netcl.core.device_profile`: what a device can do.

use netcl::core::backend::Queue;
use netcl::core::backend::opencl::Subgroups;
use netcl::core::capabilities as core;
use netcl::core::device_profile as extended;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::device::{CpuDevice, resolve_queue};
use crate::opencl::device_from_py;

/// Adds the classes and functions of this file to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DeviceProfile>()?;
    module.add_class::<ExtendedDeviceProfile>()?;
    module.add_function(wrap_pyfunction!(device_profile, module)?)?;
    module.add_function(wrap_pyfunction!(extended_device_profile, module)?)?;
    module.add_function(wrap_pyfunction!(kernel_strategy, module)?)?;
    Ok(())
}

/// A frozen summary of a device. ``has_...`` repeats what the driver says; ``fp16_storage``, ``fp16_arithmetic``,
/// ``matrix_units``, ``subgroup_width`` and ``static_local_mem_size`` are found out by running a small kernel when first asked for.
#[pyclass(module = "netcl.core.capabilities", frozen, subclass)]
pub(crate) struct DeviceProfile(core::DeviceProfile);

impl DeviceProfile {
    fn subgroups(&self, py: Python<'_>) -> Option<Subgroups> {
        py.detach(|| self.0.subgroups())
    }
}

#[pymethods]
impl DeviceProfile {
    /// The device's name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Who made it.
    #[getter]
    fn vendor(&self) -> &str {
        &self.0.vendor
    }

    /// ``"gpu"``, ``"cpu"``, ``"accel"`` or ``"other"``.
    #[getter]
    fn device_type(&self) -> &'static str {
        self.0.device_type
    }

    /// ``"cl"`` or ``"cpu"``.
    #[getter]
    fn backend(&self) -> &'static str {
        self.0.backend
    }

    /// Some extension mentions fp16.
    #[getter]
    fn has_fp16(&self) -> bool {
        self.0.has_fp16
    }

    /// The same as ``has_fp16``.
    #[getter]
    fn supports_fp16(&self) -> bool {
        self.0.supports_fp16()
    }

    /// Double precision.
    #[getter]
    fn has_fp64(&self) -> bool {
        self.0.has_fp64
    }

    /// Some extension mentions subgroups.
    #[getter]
    fn has_subgroups(&self) -> bool {
        self.0.has_subgroups
    }

    /// 64-bit atomics.
    #[getter]
    fn fast_atomics(&self) -> bool {
        self.0.fast_atomics
    }

    /// Values can be stored in half precision.
    #[getter]
    fn fp16_storage(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.fp16_storage())
    }

    /// Kernels can compute in half precision.
    #[getter]
    fn fp16_arithmetic(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.fp16_arithmetic())
    }

    /// The names of the matrix units that compute right, the best last.
    #[getter]
    fn matrix_units<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let units = py.detach(|| self.0.matrix_units());
        PyTuple::new(py, units.into_iter().map(core::MatrixUnit::as_str))
    }

    /// Work-items per subgroup, where subgroups compute right; else ``None``.
    #[getter]
    fn subgroup_width(&self, py: Python<'_>) -> Option<u32> {
        self.subgroups(py).map(|subgroups| subgroups.width)
    }

    /// Local memory in bytes, as advertised.
    #[getter]
    fn local_mem_size(&self) -> u64 {
        self.0.local_mem_size
    }

    /// Bytes of static local memory that a work-group can really use.
    #[getter]
    fn static_local_mem_size(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.0.static_local_mem_size())
    }

    /// Largest work-group.
    #[getter]
    fn max_work_group_size(&self) -> usize {
        self.0.max_work_group_size
    }

    /// Compute units.
    #[getter]
    fn compute_units(&self) -> u32 {
        self.0.compute_units
    }

    /// Global memory in bytes; 0 when unknown.
    #[getter]
    fn global_mem_size(&self) -> u64 {
        self.0.global_mem_size
    }

    /// Largest single allocation in bytes.
    #[getter]
    fn max_mem_alloc_size(&self) -> u64 {
        self.0.max_mem_alloc_size
    }

    /// Most bytes of kernel arguments.
    #[getter]
    fn max_parameter_size(&self) -> usize {
        self.0.max_parameter_size
    }

    /// Host and device share memory.
    #[getter]
    fn unified_memory(&self) -> bool {
        self.0.unified_memory
    }

    /// The extensions.
    #[getter]
    fn extensions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.extensions)
    }

    fn __eq__(&self, other: &DeviceProfile) -> bool {
        (self.0.backend, self.0.device()) == (other.0.backend, other.0.device())
    }

    fn __hash__(&self) -> usize {
        self.0.device().map_or(1, |device| device.int_ptr())
    }

    fn __repr__(&self) -> String {
        let has = |what: &str, there: bool| format!("{what}={}", if there { "True" } else { "False" });
        format!(
            "DeviceProfile({:?}, device_type={:?}, {}, {}, {}, {}, local_mem_size={})",
            self.0.name,
            self.0.device_type,
            has("has_fp16", self.0.has_fp16),
            has("has_fp64", self.0.has_fp64),
            has("has_subgroups", self.0.has_subgroups),
            has("fast_atomics", self.0.fast_atomics),
            self.0.local_mem_size
        )
    }
}

/// All of ``DeviceProfile``, and the figures that the kernel selector ranks variants with.
#[pyclass(module = "netcl.core.device_profile", extends = DeviceProfile, frozen)]
pub(crate) struct ExtendedDeviceProfile(extended::ExtendedDeviceProfile);

#[pymethods]
impl ExtendedDeviceProfile {
    /// What the device can do, without the figures.
    #[getter]
    fn base(&self) -> DeviceProfile {
        DeviceProfile(self.0.base.clone())
    }

    /// A guess at the family: ``"hopper"``, ``"rdna2"``, ``"xe"``, ``"cpu"``, ... or ``"unknown"``.
    #[getter]
    fn architecture(&self) -> &str {
        &self.0.architecture
    }

    /// NVIDIA's compute capability; else ``None``.
    #[getter]
    fn compute_capability(&self) -> Option<(u32, u32)> {
        self.0.compute_capability
    }

    /// Work-items that run in lockstep.
    #[getter]
    fn warp_size(&self) -> u32 {
        self.0.warp_size
    }

    /// Preferred vector width of ``float``.
    #[getter]
    fn vector_width_float(&self) -> u32 {
        self.0.vector_width_float
    }

    /// Preferred vector width of ``half``; 0 without fp16.
    #[getter]
    fn vector_width_half(&self) -> u32 {
        self.0.vector_width_half
    }

    /// Preferred vector width of ``double``; 0 without fp64.
    #[getter]
    fn vector_width_double(&self) -> u32 {
        self.0.vector_width_double
    }

    /// Highest clock in MHz; 0 when unknown.
    #[getter]
    fn clock_mhz(&self) -> u32 {
        self.0.clock_mhz
    }

    /// Cache in bytes; 0 when unknown.
    #[getter]
    fn cache_bytes(&self) -> u64 {
        self.0.cache_bytes
    }

    /// Length of a cache line in bytes; 0 when unknown.
    #[getter]
    fn cache_line(&self) -> u32 {
        self.0.cache_line
    }

    /// Local memory is hardware of its own.
    #[getter]
    fn local_mem_dedicated(&self) -> bool {
        self.0.local_mem_dedicated
    }

    /// Memory bandwidth in GB/s: good for ranking, not for reports.
    #[getter]
    fn bandwidth_gbps(&self) -> f64 {
        self.0.bandwidth_gbps
    }

    /// What to beware of, one sentence each.
    #[getter]
    fn quirks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.quirks.reasons)
    }

    fn __repr__(&self) -> String {
        let (name, family) = (&self.0.base.name, &self.0.architecture);
        format!("ExtendedDeviceProfile({name:?}, architecture={family:?}, bandwidth_gbps={})", self.0.bandwidth_gbps)
    }
}

/// The OpenCL device that an argument means; `None` for the native CPU.
fn subject(
    py: Python<'_>,
    object: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<netcl::core::backend::opencl::Device>> {
    if let Some(object) = object {
        if object.cast::<CpuDevice>().is_ok() {
            return Ok(None);
        }
        if let Some(device) = device_from_py(object)? {
            return Ok(Some(device));
        }
    }
    match resolve_queue(py, object, None) {
        Ok(Queue::OpenCl(stream)) => Ok(Some(stream.device().clone())),
        Ok(Queue::Cpu(_)) => Ok(None),
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            Err(PyTypeError::new_err("device_profile: a device (queue.device), a queue or a device handle is needed"))
        }
        Err(error) => Err(error),
    }
}

/// The frozen profile of a device (ours, PyOpenCL's, the native CPU's), of a queue's or of a handle's.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn device_profile(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<DeviceProfile> {
    let device = subject(py, device)?;
    Ok(DeviceProfile(device.map_or_else(core::DeviceProfile::cpu, |device| core::device_profile(&device))))
}

/// The profile of a device with the figures that kernels are ranked with; takes what ``device_profile`` takes.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn extended_device_profile(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Py<ExtendedDeviceProfile>> {
    type Core = extended::ExtendedDeviceProfile;
    let profile = subject(py, device)?.map_or_else(Core::cpu, |device| Core::from_opencl(&device));
    let base = DeviceProfile(profile.base.clone());
    Py::new(py, PyClassInitializer::from(base).add_subclass(ExtendedDeviceProfile(profile)))
}

/// ``"portable"`` or ``"optimized"``: which family of kernels suits a device. ``NETCL_KERNEL_STRATEGY`` overrides.
#[pyfunction]
fn kernel_strategy(profile: &Bound<'_, DeviceProfile>) -> &'static str {
    core::kernel_strategy(&profile.get().0)
}

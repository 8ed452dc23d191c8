//! Platforms and devices, with the attribute names of PyOpenCL.

use netcl::core::backend::opencl as cl;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::same_object;
use crate::error::IntoPyResult;

/// One installed OpenCL driver.
#[pyclass(module = "netcl.core.backend.opencl", frozen, eq, hash)]
pub(crate) struct Platform(pub(crate) cl::Platform);
same_object!(Platform, |platform| platform.0.int_ptr());

#[pymethods]
impl Platform {
    /// Wraps a ``cl_platform_id`` made by other code.
    #[classmethod]
    fn from_int_ptr(_cls: &Bound<'_, PyType>, int_ptr: usize) -> PyResult<Self> {
        // SAFETY: that the number is a platform's address is this method's contract, as in PyOpenCL.
        unsafe { cl::Platform::from_int_ptr(int_ptr) }.map(Platform).py()
    }

    /// The ``cl_platform_id`` as a number, for ``pyopencl.Platform.from_int_ptr``.
    #[getter]
    fn int_ptr(&self) -> usize {
        self.pointer()
    }

    /// The platform's name, for example ``"NVIDIA CUDA"``.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Who made it.
    #[getter]
    fn vendor(&self) -> &str {
        self.0.vendor()
    }

    /// ``"OpenCL 3.0 ..."``
    #[getter]
    fn version(&self) -> &str {
        self.0.version()
    }

    /// The extensions that all its devices have, separated by spaces.
    #[getter]
    fn extensions(&self) -> String {
        self.0.extensions().join(" ")
    }

    /// Its devices.
    fn get_devices(&self, py: Python<'_>) -> PyResult<Vec<Device>> {
        Ok(py.detach(|| self.0.devices()).py()?.into_iter().map(Device).collect())
    }

    fn __repr__(&self) -> String {
        format!("<Platform {:?}, {:?}>", self.0.name(), self.0.version())
    }
}

/// One OpenCL device. What it says of itself is cut down by ``NETCL_LIMITS`` and by what is known of its driver.
#[pyclass(module = "netcl.core.backend.opencl", frozen, eq, hash)]
pub(crate) struct Device(pub(crate) cl::Device);
same_object!(Device, |device| device.0.int_ptr());

#[pymethods]
impl Device {
    /// Wraps a ``cl_device_id`` made by other code; a reference is added.
    #[classmethod]
    fn from_int_ptr(_cls: &Bound<'_, PyType>, int_ptr: usize) -> PyResult<Self> {
        // SAFETY: that the number is a device's address is this method's contract, as in PyOpenCL.
        unsafe { cl::Device::from_int_ptr(int_ptr) }.map(Device).py()
    }

    /// The ``cl_device_id`` as a number, for ``pyopencl.Device.from_int_ptr``.
    #[getter]
    fn int_ptr(&self) -> usize {
        self.pointer()
    }

    /// The platform it belongs to.
    #[getter]
    fn platform(&self) -> Platform {
        Platform(self.0.platform().clone())
    }

    /// The device's name.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Who made it.
    #[getter]
    fn vendor(&self) -> &str {
        self.0.vendor()
    }

    /// ``"OpenCL 3.0 ..."``
    #[getter]
    fn version(&self) -> &str {
        &self.0.info().version
    }

    /// ``"OpenCL C 1.2 ..."``
    #[getter]
    fn opencl_c_version(&self) -> &str {
        &self.0.info().c_version
    }

    /// The driver's version.
    #[getter]
    fn driver_version(&self) -> &str {
        &self.0.info().driver_version
    }

    /// OpenCL's bit field, as in PyOpenCL: 2 is a CPU, 4 a GPU, 8 an accelerator.
    #[getter(r#type)]
    fn type_bits(&self) -> u64 {
        self.0.info().type_bits
    }

    /// ``"gpu"``, ``"cpu"``, ``"accel"`` or ``"other"``.
    #[getter]
    fn device_type(&self) -> &'static str {
        self.0.device_type().as_str()
    }

    /// The extensions, separated by spaces.
    #[getter]
    fn extensions(&self) -> String {
        self.0.info().extensions.join(" ")
    }

    /// Compute units.
    #[getter]
    fn max_compute_units(&self) -> u32 {
        self.0.info().compute_units
    }

    /// Highest clock in MHz; 0 when unknown.
    #[getter]
    fn max_clock_frequency(&self) -> u32 {
        self.0.info().clock_mhz
    }

    /// Largest work-group.
    #[getter]
    fn max_work_group_size(&self) -> usize {
        self.0.info().max_work_group_size
    }

    /// Largest work-group in each dimension.
    #[getter]
    fn max_work_item_sizes(&self) -> Vec<usize> {
        self.0.info().max_work_item_sizes.clone()
    }

    /// Local memory in bytes, as advertised.
    #[getter]
    fn local_mem_size(&self) -> u64 {
        self.0.info().local_mem_size
    }

    /// Global memory in bytes.
    #[getter]
    fn global_mem_size(&self) -> u64 {
        self.0.info().global_mem_size
    }

    /// Global cache in bytes.
    #[getter]
    fn global_mem_cache_size(&self) -> u64 {
        self.0.info().global_cache_size
    }

    /// Length of a line of that cache in bytes.
    #[getter]
    fn global_mem_cacheline_size(&self) -> u32 {
        self.0.info().cache_line
    }

    /// Largest single allocation in bytes.
    #[getter]
    fn max_mem_alloc_size(&self) -> u64 {
        self.0.info().max_mem_alloc_size
    }

    /// Alignment of sub-buffers, in bits as OpenCL counts it.
    #[getter]
    fn mem_base_addr_align(&self) -> usize {
        self.0.info().base_addr_align * 8
    }

    /// Host and device share memory.
    #[getter]
    fn host_unified_memory(&self) -> bool {
        self.0.info().host_unified_memory
    }

    /// Most bytes of kernel arguments.
    #[getter]
    fn max_parameter_size(&self) -> usize {
        self.0.info().max_parameter_size
    }

    /// Largest constant buffer in bytes.
    #[getter]
    fn max_constant_buffer_size(&self) -> u64 {
        self.0.info().max_constant_buffer_size
    }

    /// Preferred vector width of ``float``.
    #[getter]
    fn preferred_vector_width_float(&self) -> u32 {
        self.0.info().preferred_vector_widths[4]
    }

    /// Preferred vector width of ``double``; 0 without double precision.
    #[getter]
    fn preferred_vector_width_double(&self) -> u32 {
        self.0.info().preferred_vector_widths[5]
    }

    /// Preferred vector width of ``half``; 0 without half-precision arithmetic.
    #[getter]
    fn preferred_vector_width_half(&self) -> u32 {
        self.0.info().preferred_vector_widths[6]
    }

    /// Resolution of profiling times in nanoseconds.
    #[getter]
    fn profiling_timer_resolution(&self) -> usize {
        self.0.info().timer_resolution
    }

    /// The bits of ``CL_DEVICE_SVM_CAPABILITIES``; 0 for none.
    #[getter]
    fn svm_capabilities(&self) -> u64 {
        self.0.info().svm_capabilities
    }

    fn __repr__(&self) -> String {
        format!("<Device {:?} on {:?}>", self.0.name(), self.0.platform().name())
    }
}

//! `netcl.core.kernel_selector`: which kernel variant runs a problem.

use std::sync::Arc;

use netcl::core::backend::Queue;
use netcl::core::conv::{ConvGeometry, ConvParams, symmetric};
use netcl::core::device as core_device;
use netcl::core::kernel_selector as core;
use netcl::core::kernel_selector::{Extra, KernelConfig};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::device::resolve_queue;
use crate::error::IntoPyResult;
use crate::tensor::parse_dtype;

/// Adds this file's names to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<KernelSelector>()?;
    module.add_function(wrap_pyfunction!(get_kernel_selector, module)?)
}

/// Chooses kernel variants for one device. ``get_kernel_selector()`` hands out one per device.
#[pyclass(module = "netcl.core.kernel_selector", frozen)]
pub(crate) struct KernelSelector(Arc<core::KernelSelector>);

#[pymethods]
impl KernelSelector {
    #[new]
    #[pyo3(signature = (device=None))]
    fn new(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let queue = queue_of(py, device)?;
        Ok(KernelSelector(Arc::new(core::KernelSelector::for_queue(&queue))))
    }

    /// The kernel for an ``M x K`` by ``K x N`` product.
    #[pyo3(name = "select_matmul_kernel", signature = (M, N, K, dtype=None),
        text_signature = "($self, M, N, K, dtype='float32')")]
    #[expect(non_snake_case, reason = "the documented names")]
    fn matmul<'py>(
        &self,
        py: Python<'py>,
        M: usize,
        N: usize,
        K: usize,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        config_to_py(py, &self.0.select_matmul_kernel(M, N, K, parse_dtype(dtype)?))
    }

    /// The kernel for a convolution of ``N x C x H x W`` with ``F`` filters of ``KH x KW``.
    #[pyo3(name = "select_conv2d_kernel", signature = (N, C, H, W, F, KH, KW, stride=None, pad=None, dilation=None, groups=1, dtype=None),
        text_signature = "($self, N, C, H, W, F, KH, KW, stride=None, pad=None, dilation=None, groups=1, dtype='float32')")]
    #[expect(non_snake_case, clippy::too_many_arguments, reason = "the documented names")]
    fn conv2d<'py>(
        &self,
        py: Python<'py>,
        N: usize,
        C: usize,
        H: usize,
        W: usize,
        F: usize,
        KH: usize,
        KW: usize,
        stride: Option<&Bound<'py, PyAny>>,
        pad: Option<&Bound<'py, PyAny>>,
        dilation: Option<&Bound<'py, PyAny>>,
        groups: usize,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let params = ConvParams {
            stride: pair(stride, 1, "stride")?,
            padding: symmetric(pair(pad, 0, "pad")?),
            dilation: pair(dilation, 1, "dilation")?,
            groups,
        };
        let geometry = ConvGeometry::of("select_conv2d_kernel", [N, C, H, W], F, [KH, KW], &params).py()?;
        config_to_py(py, &self.0.select_conv2d_kernel(&geometry, parse_dtype(dtype)?))
    }

    /// The kernel for ``n`` independent elements.
    #[pyo3(name = "select_elementwise_kernel", signature = (n, dtype=None),
        text_signature = "($self, n, dtype='float32')")]
    fn elementwise<'py>(
        &self,
        py: Python<'py>,
        n: usize,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        config_to_py(py, &self.0.select_elementwise_kernel(n, parse_dtype(dtype)?))
    }

    /// The kernel for a reduction of ``n`` elements.
    #[pyo3(name = "select_reduction_kernel", signature = (n, kind="sum"))]
    fn reduction<'py>(&self, py: Python<'py>, n: usize, kind: &str) -> PyResult<Bound<'py, PyAny>> {
        config_to_py(py, &self.0.select_reduction_kernel(n, kind))
    }

    /// The kernel for batch normalisation of ``N x C x H x W``.
    #[pyo3(name = "select_batchnorm_kernel", signature = (N, C, H=1, W=1, fuse_relu=false, training=false, dtype=None),
        text_signature = "($self, N, C, H=1, W=1, fuse_relu=False, training=False, dtype='float32')")]
    #[expect(non_snake_case, clippy::too_many_arguments, reason = "the documented names")]
    fn batchnorm<'py>(
        &self,
        py: Python<'py>,
        N: usize,
        C: usize,
        H: usize,
        W: usize,
        fuse_relu: bool,
        training: bool,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let config = self.0.select_batchnorm_kernel([N, C, H, W], fuse_relu, training, parse_dtype(dtype)?);
        config_to_py(py, &config)
    }

    /// Drops the cached decisions and reads the environment variables again.
    fn clear_cache(&self) {
        self.0.clear_cache();
    }

    /// ``{"hits", "misses", "entries"}`` of the cache.
    fn cache_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.stats();
        let dict = PyDict::new(py);
        dict.set_item("hits", stats.hits)?;
        dict.set_item("misses", stats.misses)?;
        dict.set_item("entries", stats.entries)?;
        Ok(dict)
    }

    /// Adds entries in the format of the shipped table, for example a tuner's results.
    fn extend(&self, toml: &str) -> PyResult<()> {
        self.0.extend_from_toml(toml).py()
    }

    fn __eq__(&self, other: &KernelSelector) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn __hash__(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    fn __repr__(&self) -> String {
        format!("<KernelSelector for {:?}>", self.0.profile().base.name)
    }
}

/// The selector of a device (a queue, a handle or a selector string); of the active or default one for ``None``.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn get_kernel_selector(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<KernelSelector> {
    let queue = queue_of(py, device)?;
    core::get_kernel_selector(Some(&queue)).py().map(KernelSelector)
}

pub(crate) fn queue_of(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Queue> {
    match device.map(|device| device.extract::<String>()) {
        Some(Ok(selector)) => Ok(py.detach(|| core_device::manager().get(&selector)).py()?.queue),
        _ => resolve_queue(py, device, None),
    }
}

/// A number for both axes, or one for each.
pub(crate) fn pair(value: Option<&Bound<'_, PyAny>>, default: usize, name: &str) -> PyResult<[usize; 2]> {
    let Some(value) = value else { return Ok([default; 2]) };
    if let Ok(both) = value.extract::<usize>() {
        return Ok([both; 2]);
    }
    let wrong = |_| PyTypeError::new_err(format!("{name} is a whole number or a pair of them"));
    value.extract::<(usize, usize)>().map(|(y, x)| [y, x]).map_err(wrong)
}

pub(crate) fn config_to_py<'py>(py: Python<'py>, config: &KernelConfig) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("netcl.core.kernel_selector")?;
    let extra = PyDict::new(py);
    for (name, value) in &config.extra {
        match value {
            Extra::Bool(value) => extra.set_item(name, value)?,
            Extra::Int(value) => extra.set_item(name, value)?,
            Extra::Float(value) => extra.set_item(name, value)?,
            Extra::Text(value) => extra.set_item(name, value)?,
        }
    }
    let fields = PyDict::new(py);
    let variant = PyString::new(py, config.variant.name());
    fields.set_item("variant", module.getattr("KernelVariant")?.get_item(variant)?)?;
    fields.set_item("tile_m", config.tile_m)?;
    fields.set_item("tile_n", config.tile_n)?;
    fields.set_item("tile_k", config.tile_k)?;
    fields.set_item("work_per_thread", config.work_per_thread)?;
    fields.set_item("local_size_1d", config.local_size_1d)?;
    fields.set_item("local_size_2d", config.local_size_2d)?;
    fields.set_item("use_local_memory", config.use_local_memory)?;
    fields.set_item("use_vectorization", config.use_vectorization)?;
    fields.set_item("vector_width", config.vector_width)?;
    fields.set_item("extra", extra)?;
    module.getattr("KernelConfig")?.call((), Some(&fields))
}

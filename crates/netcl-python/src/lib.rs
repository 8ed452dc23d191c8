//! The Python extension module: conversion only, no logic. `python/netcl/` gives its names their documented paths.

mod amp;
mod autograd;
mod axis;
mod capabilities;
mod command;
mod compiler;
mod cpu_buffer;
mod data;
mod device;
mod distributed;
mod dlpack;
mod error;
mod index;
mod io;
mod jit;
mod kernels;
mod layer_ops;
mod list;
mod memory;
mod ndarray;
mod nn;
mod onnx;
mod opencl;
mod ops;
mod optim;
mod profiling;
mod random;
mod runtime;
mod selector;
mod shutdown;
mod tensor;
mod trainer;

use pyo3::prelude::*;

#[pymodule]
fn _netcl(module: &Bound<'_, PyModule>) -> PyResult<()> {
    netcl::core::env::check();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::register(module)?;
    module.add_class::<device::CpuDevice>()?;
    module.add_class::<device::CpuPlatform>()?;
    module.add_class::<device::CpuQueue>()?;
    module.add_class::<device::DeviceHandle>()?;
    module.add_class::<device::DeviceManager>()?;
    module.add_class::<device::DeviceScope>()?;
    opencl::register(module)?;
    memory::register(module)?;
    capabilities::register(module)?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<index::IndexTensor>()?;
    module.add_function(wrap_pyfunction!(device::get_active_device, module)?)?;
    module.add_function(wrap_pyfunction!(device::num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(device::set_num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(tensor::reshape, module)?)?;
    module.add_function(wrap_pyfunction!(dlpack::from_dlpack, module)?)?;
    module.add_function(wrap_pyfunction!(random::manual_seed, module)?)?;
    module.add_function(wrap_pyfunction!(command::run_command, module)?)?;
    compiler::register(module)?;
    kernels::register(module)?;
    ops::register(module)?;
    layer_ops::register_forward(module)?;
    autograd::register(module)?;
    nn::register(module)?;
    optim::register(module)?;
    data::register(module)?;
    io::register(module)?;
    onnx::register(module)?;
    amp::register(module)?;
    profiling::register(module)?;
    runtime::register(module)?;
    distributed::register(module)?;
    trainer::register(module)?;
    selector::register(module)?;
    shutdown::register(module)?;
    Ok(())
}

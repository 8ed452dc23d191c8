//! Numbers that both sides compute instead of storing them; `formula.py` is the other side.

use netcl_nn::Module;
use netcl_nn::autograd::{DType, DeviceHandle, HostOptions, Queue, Tensor, manager};
use serde_json::Value;

pub(crate) fn cpu() -> Queue {
    manager().cpu().queue
}

/// The native CPU and every OpenCL device.
pub(crate) fn devices() -> Vec<DeviceHandle> {
    let found = manager().discover().unwrap();
    if found.is_empty() {
        eprintln!("NOT TESTED on OpenCL: there is no device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device: install pocl-opencl-icd");
    }
    let mut handles = vec![manager().cpu()];
    handles.extend(found.iter().map(|device| manager().handle(device).unwrap()));
    handles
}

/// Whether kernels are so slow to build that a sample of them must do.
pub(crate) fn slow_compiler(device: &DeviceHandle) -> bool {
    device.platform_name.contains("Portable")
}

/// Numbers without a pattern in [-1, 1), multiples of 1/1024, the same for the same name.
pub(crate) fn values(name: &str, n: usize) -> Vec<f64> {
    let seed = name.bytes().fold(0x811C_9DC5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let number = |i: usize| {
        let mut x = (i as u32).wrapping_mul(0x9E37_79B9).wrapping_add(seed);
        for (shift, factor) in [(16, 0x85EB_CA6Bu32), (13, 0xC2B2_AE35)] {
            x = (x ^ (x >> shift)).wrapping_mul(factor);
        }
        f64::from((x ^ (x >> 16)) >> 21) / 1024.0 - 1.0
    };
    (0..n).map(number).collect()
}

/// Weights in proportion to 1 / sqrt(fan in), scales around 1, small biases.
fn parameter(name: &str, shape: &[usize]) -> Vec<f64> {
    let mut values = values(name, shape.iter().product());
    let (factor, offset) = match shape {
        [_, rest @ ..] if !rest.is_empty() => {
            let fan: usize = rest.iter().product();
            ((0.5 * (6.0 / fan as f64).log2()).floor().exp2(), 0.0)
        }
        _ => (0.25, if name.ends_with("weight") { 1.0 } else { 0.0 }),
    };
    values.iter_mut().for_each(|v| *v = offset + *v * factor);
    values
}

pub(crate) fn tensor(queue: &Queue, dtype: DType, values: &[f64], shape: &[usize]) -> Tensor {
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    Tensor::from_host_with(queue, values, shape, options).unwrap()
}

/// The input, or whatever else has a name.
pub(crate) fn named(queue: &Queue, dtype: DType, name: &str, shape: &[usize]) -> Tensor {
    tensor(queue, dtype, &values(name, shape.iter().product()), shape)
}

/// Gives every parameter the values of its name.
pub(crate) fn fill(module: &dyn Module) {
    for (name, parameter_) in module.named_parameters() {
        let values = parameter(&name, parameter_.shape());
        parameter_.assign(&tensor(parameter_.queue(), parameter_.dtype(), &values, parameter_.shape())).unwrap();
    }
}

pub(crate) fn host(t: &Tensor) -> Vec<f64> {
    t.to_f64_vec().unwrap()
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

pub(crate) fn lengths(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

/// Equal but for a part of the largest expected value.
pub(crate) fn check(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    let largest = expected.iter().fold(1e-3f64, |most, v| most.max(v.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!(
            (g - e).abs() <= tolerance * largest,
            "{what}: value {i} is {g:e}, expected {e:e} (largest {largest:e})"
        );
    }
}

//! What the tests of optimizers share: devices, tensors, values by a formula that PyTorch's side computes as well.

use netcl_autograd::Tensor;
use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::tensor::HostOptions;
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

/// Whether a device computes in double precision.
pub(crate) fn has_double(queue: &Queue) -> bool {
    queue.check_dtype("test", DType::F64).is_ok()
}

pub(crate) fn tensor(queue: &Queue, values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    Tensor::from_host_with(queue, values, shape, options).unwrap()
}

/// Multiples of 1/64 between -1 and 1 that float32 holds exactly: of tensor `i`, at time `t` (0 is the start).
pub(crate) fn formula(i: usize, t: usize, shape: &[usize]) -> Vec<f64> {
    let size: usize = shape.iter().product();
    (0..size).map(|k| ((k * 37 + i * 101 + t * 59 + k * k * 13) % 129) as f64 / 64.0 - 1.0).collect()
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

pub(crate) fn sizes(value: &Value) -> Vec<usize> {
    numbers(value).into_iter().map(|n| n as usize).collect()
}

/// The largest difference, relative to 1 or the expected value's size.
pub(crate) fn worst(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(g, e)| (g - e).abs() / e.abs().max(1.0)).fold(0.0, f64::max)
}

/// The shapes of ResNet-18's parameters with its channels divided.
pub(crate) fn resnet18_shapes(divide: usize) -> Vec<Vec<usize>> {
    let mut shapes = vec![vec![64 / divide, 3, 7, 7], vec![64 / divide], vec![64 / divide]];
    let mut before = 64 / divide;
    for (stage, channels) in [64, 128, 256, 512].into_iter().enumerate() {
        let channels = channels / divide;
        for block in 0..2 {
            let inputs = if block == 0 { before } else { channels };
            for shape in [vec![channels, inputs, 3, 3], vec![channels, channels, 3, 3]] {
                shapes.extend([shape, vec![channels], vec![channels]]);
            }
            if block == 0 && stage > 0 {
                shapes.extend([vec![channels, inputs, 1, 1], vec![channels], vec![channels]]);
            }
        }
        before = channels;
    }
    shapes.extend([vec![1000 / divide, before], vec![1000 / divide]]);
    shapes
}

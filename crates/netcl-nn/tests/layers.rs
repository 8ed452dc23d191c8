//! Every layer gives PyTorch's results and gradients with the same weights (golden/layers.json).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

#[path = "golden/formula.rs"]
mod formula;

use formula::{check, cpu, devices, fill, lengths, named, numbers, tensor};
use netcl_nn::autograd::Result;
use netcl_nn::autograd::core::backend::Queue;
use netcl_nn::autograd::core::dtype::DType;
use netcl_nn::pool::{Averaging, Window};
use netcl_nn::*;
use serde_json::Value;

/// The layer of a case, as golden/layers.py makes it.
fn layer(name: &str, queue: &Queue, dtype: DType) -> Result<Box<dyn Module>> {
    let norm = BatchNormOptions { dtype, ..Default::default() };
    Ok(match name {
        "linear" => Box::new(Linear::new_with(queue, 3, 4, LinearOptions { dtype, ..Default::default() })?),
        "conv1d" => {
            let options = Conv1dOptions { stride: 2, padding: 2, dilation: 2, groups: 2, dtype, ..Default::default() };
            Box::new(Conv1d::new_with(queue, 4, 6, 3, options)?)
        }
        "conv2d" => {
            let options = Conv2dOptions { padding: [1, 1], dtype, ..Default::default() };
            Box::new(Conv2d::new_with(queue, 2, 4, 3, options)?)
        }
        "conv2d_options" => {
            let (stride, padding, dilation) = ([2, 1], [1, 2], [1, 2]);
            let (generator, bias) = (None, false);
            let options = Conv2dOptions { stride, padding, dilation, groups: 2, bias, dtype, generator };
            Box::new(Conv2d::new_with(queue, 4, 6, [3, 2], options)?)
        }
        "conv_transpose2d" => {
            let (stride, padding, output_padding) = ([2, 1], [1, 0], [1, 0]);
            let options =
                ConvTranspose2dOptions { stride, padding, output_padding, groups: 2, dtype, ..Default::default() };
            Box::new(ConvTranspose2d::new_with(queue, 4, 6, [3, 2], options)?)
        }
        "batch_norm1d" => Box::new(BatchNorm1d::new_with(queue, 3, norm)?),
        "batch_norm1d_average" => {
            Box::new(BatchNorm1d::new_with(queue, 3, BatchNormOptions { eps: 1e-3, momentum: None, ..norm })?)
        }
        "batch_norm2d" => Box::new(BatchNorm2d::new_with(queue, 3, BatchNormOptions { momentum: Some(0.25), ..norm })?),
        "batch_norm2d_plain" => {
            let options = BatchNormOptions { affine: false, track_running_stats: false, ..norm };
            Box::new(BatchNorm2d::new_with(queue, 3, options)?)
        }
        "max_pool1d" => {
            let window = Window { stride: [2], padding: [1], dilation: [2], ..Window::new([3]) };
            Box::new(MaxPool1d { window })
        }
        "max_pool2d" => {
            let window = Window { stride: [2, 2], padding: [1, 1], ceil_mode: true, ..Window::new([3, 3]) };
            Box::new(MaxPool2d { window })
        }
        "avg_pool1d" => Box::new(AvgPool1d::new(2)),
        "avg_pool2d" => {
            let window = Window { stride: [2, 1], padding: [1, 1], ..Window::new([3, 2]) };
            Box::new(AvgPool2d { window, averaging: Averaging { count_include_pad: false, divisor: None } })
        }
        "adaptive_avg_pool2d" => Box::new(AdaptiveAvgPool2d::new([3, 2])),
        "adaptive_max_pool2d" => Box::new(AdaptiveMaxPool2d::new([3, 2])),
        _ => panic!("golden/layers.json has a case {name} that is unknown here"),
    })
}

/// Runs every case and compares all that PyTorch said.
fn compare(queue: &Queue, dtype: DType, tolerance: f64) {
    let cases: Value = serde_json::from_str(include_str!("golden/layers.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let (shape, steps) = (lengths(&case["shape"]), case["steps"].as_u64().unwrap());
        let mut layer = layer(name, queue, dtype).unwrap();
        fill(&*layer);
        let step = |number: u64| {
            layer.zero_grad();
            let x = match case.get("integers") {
                Some(values) => tensor(queue, dtype, &numbers(values), &shape),
                None => named(queue, dtype, &format!("input{number}"), &shape).with_grad(),
            };
            let out = layer.forward(&x).unwrap();
            let upstream = named(queue, dtype, "upstream", out.shape());
            (&out * &upstream).unwrap().sum((), false).unwrap().backward().unwrap();
            (x, out)
        };
        let (x, out) = (0..steps).map(step).last().unwrap();
        let host = |t: &netcl_nn::autograd::Tensor| t.to_f64_vec().unwrap();
        check(&format!("{name}: output"), &host(&out), &numbers(&case["output"]), tolerance);
        if let Some(expected) = case.get("input_grad") {
            check(&format!("{name}: input"), &host(&x.grad().unwrap()), &numbers(expected), tolerance);
        }
        let (parameters, expected) = (layer.named_parameters(), case["grads"].as_object().unwrap());
        assert_eq!(parameters.len(), expected.len(), "{name}: {:?}", expected.keys().collect::<Vec<_>>());
        for (key, parameter) in parameters {
            let expected = expected.get(&key).unwrap_or_else(|| panic!("{name}: PyTorch has no {key}"));
            check(&format!("{name}: {key}"), &host(&parameter.grad().unwrap()), &numbers(expected), tolerance);
        }
        let (buffers, expected) = (layer.named_buffers(), case["buffers"].as_object().unwrap());
        assert_eq!(buffers.len(), expected.len(), "{name}: {:?}", expected.keys().collect::<Vec<_>>());
        for (key, buffer) in buffers {
            check(&format!("{name}: {key}"), &host(&buffer), &numbers(&expected[&key]), tolerance);
        }
        if let Some(expected) = case.get("eval") {
            layer.eval();
            let out = layer.forward(&named(queue, dtype, "input0", &shape)).unwrap();
            check(&format!("{name}: eval"), &host(&out), &numbers(expected), tolerance);
        }
    }
}

#[test]
fn layers_equal_pytorch_in_float64_on_the_cpu() {
    compare(&cpu(), DType::F64, 1e-10);
}

#[test]
fn layers_equal_pytorch_in_float32_on_every_device() {
    for device in devices() {
        eprintln!("{}", device.device_name);
        compare(&device.queue, DType::F32, 2e-5);
    }
}

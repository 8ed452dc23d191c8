//! Training on real images is PyTorch's, step by step: the first hundred losses of a CNN on Fashion-MNIST from the same weights
//! and batches (golden/fashion_losses.py).

use netcl::core::dtype::Element;
use netcl::data::ImageSet;
use netcl::nn::{Build, Conv2d, Conv2dOptions, Flatten, LinearOptions, MaxPool2d};
use netcl::optim::Adam;
use netcl::prelude::*;
use serde_json::Value;

const BATCH: usize = 64;

/// Numbers of [-1, 1) over the square root of the fan-in: the finalizer of MurmurHash3 on position and salt.
fn spread(shape: &[usize], salt: u32) -> Vec<f64> {
    let fan_in = if shape.len() > 1 { shape[1..].iter().product() } else { shape[0] };
    let number = |position: u32| {
        let mut h = position.wrapping_add(salt.wrapping_mul(0x9E37_79B9));
        h = (h ^ (h >> 16)).wrapping_mul(0x85EB_CA6B);
        h = (h ^ (h >> 13)).wrapping_mul(0xC2B2_AE35);
        h ^= h >> 16;
        (f64::from(h >> 8) / f64::from(1 << 23) - 1.0) / (fan_in as f64).sqrt()
    };
    (0..shape.iter().product::<usize>() as u32).map(number).collect()
}

fn model(queue: &Queue, dtype: DType) -> Sequential {
    let conv = |inputs, outputs| {
        let options = Conv2dOptions { padding: 1.into(), ..Conv2dOptions::new(inputs, outputs, 3) };
        Conv2d::new_with(Build::on(queue).dtype(dtype), options).unwrap()
    };
    let linear =
        |inputs, outputs| Linear::new_with(Build::on(queue).dtype(dtype), LinearOptions::new(inputs, outputs)).unwrap();
    let model = sequential![
        conv(1, 16),
        ReLU,
        MaxPool2d::new(2),
        conv(16, 32),
        ReLU,
        MaxPool2d::new(2),
        Flatten::default(),
        linear(32 * 7 * 7, 64),
        ReLU,
        linear(64, 10),
    ];
    for (salt, parameter) in model.parameters().iter().enumerate() {
        let first =
            Tensor::from_host(queue, &spread(parameter.shape(), salt as u32), parameter.shape().clone()).unwrap();
        parameter.assign(&first.raw().cast(dtype).unwrap()).unwrap();
    }
    model
}

/// The loss of every step, with images in the order of the file.
fn losses<T: Element>(
    queue: &Queue,
    data: &ImageSet,
    steps: usize,
    scaled: impl Fn(u8) -> T,
    optimizer: fn(Vec<Tensor>) -> Box<dyn Optimizer>,
) -> Vec<f64> {
    let model = model(queue, T::DTYPE);
    let mut optimizer = optimizer(model.parameters());
    let step = |batch: usize| {
        let (first, last) = (batch * BATCH, (batch + 1) * BATCH);
        let pixels: Vec<T> = data.pixels()[first * 784..last * 784].iter().map(|&pixel| scaled(pixel)).collect();
        let labels: Vec<i64> = data.labels()[first..last].iter().map(|&label| label.into()).collect();
        let images = Tensor::from_host(queue, &pixels, [BATCH, 1, 28, 28]).unwrap();
        let scores = model.forward(&images).unwrap();
        let loss = F::cross_entropy(&scores, &labels[..]).unwrap();
        optimizer.zero_grad();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        loss.item().unwrap()
    };
    (0..steps).map(step).collect()
}

fn compare(what: &str, got: &[f64], golden: &Value, relative: f64) {
    let expected: Vec<f64> = golden.as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    assert_eq!((got.len(), expected.len()), (100, 100));
    assert!(expected[99] < 0.5 * expected[0], "the golden losses do not fall");
    let mut worst = 0.0f64;
    for (step, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (got - expected).abs() / expected;
        assert!(error <= relative, "{what}: step {step}: {got} for {expected}");
        worst = worst.max(error);
    }
    println!("{what}: 100 losses, worst relative difference {worst:.1e} of {relative:.0e}");
}

#[test]
#[ignore = "needs Fashion-MNIST: apt install dataset-fashion-mnist"]
fn a_hundred_losses_on_fashion_mnist_are_pytorchs() {
    let golden: Value = serde_json::from_str(include_str!("golden/fashion_losses.json")).unwrap();
    let data = netcl::data::catalog::load("fashion-mnist", None).unwrap();
    let queue = manager().cpu().queue;
    let sgd = |parameters| -> Box<dyn Optimizer> {
        let options = SgdOptions { lr: 0.005, momentum: 0.9, ..Default::default() };
        Box::new(SGD::new_with(parameters, options).unwrap())
    };
    let adam = |parameters| -> Box<dyn Optimizer> { Box::new(Adam::new(parameters, 1e-3).unwrap()) };
    let got = losses(&queue, &data.train, 100, |pixel| f32::from(pixel) / 255.0, sgd);
    compare("SGD, float32", &got, &golden["sgd_float32"], 1e-4);
    let got = losses(&queue, &data.train, 100, |pixel| f64::from(pixel) / 255.0, adam);
    compare("Adam, float64", &got, &golden["adam_float64"], 1e-8);
}

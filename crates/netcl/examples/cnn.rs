//! A convolutional network, trained by the loop that `netcl train` uses, saved to a file and asked again.
//!
//! `cargo run --release --example cnn`

use netcl::data::transforms::{Border, Transform};
use netcl::data::{ImageSplits, Normalization};
use netcl::io::{load_weights, save_model};
use netcl::nn::{BatchNorm2d, Conv2d, Conv2dOptions, Flatten, MaxPool2d};
use netcl::optim::AdamW;
use netcl::optim::schedule::{OneCycleLR, OneCycleOptions};
use netcl::prelude::*;
use netcl::trainer::{Epoch, FitOptions, Observer, Progress, evaluate, fit};

/// Prints a line after every epoch.
struct Lines;

impl Observer for Lines {
    fn epoch_ends(&mut self, epoch: &Epoch) {
        println!("epoch {}: loss {:.4}, test accuracy {:.1} %", epoch.epoch, epoch.loss, epoch.test_accuracy * 100.0);
    }
}

/// Two convolutions, each followed by pooling: 8x8 pixels become 2x2.
fn network(queue: &Queue) -> netcl::Result<Sequential> {
    let convolution = |inputs, outputs| {
        let options = Conv2dOptions { padding: 1.into(), bias: false, ..Conv2dOptions::new(inputs, outputs, 3) };
        Conv2d::new_with(queue, options)
    };
    Ok(sequential![
        convolution(1, 16)?,
        BatchNorm2d::new(queue, 16)?,
        ReLU,
        MaxPool2d::new(2),
        convolution(16, 32)?,
        BatchNorm2d::new(queue, 32)?,
        ReLU,
        MaxPool2d::new(2),
        Flatten::default(),
        Linear::new(queue, 32 * 2 * 2, 10)?,
    ])
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let queue = manager().cpu().queue;
    let digits = ImageSplits::digits()?;
    let normalization = Normalization::of(&digits.train);
    let mut model = network(&queue)?;
    println!("{model}\n{} parameters", model.num_parameters());

    let options = FitOptions {
        epochs: 4,
        batch_size: 32,
        normalization,
        transforms: vec![Transform::Crop { size: [8, 8], padding: 1, border: Border::Constant(0.0) }],
        ..Default::default()
    };
    let mut opt = AdamW::new(model.parameters(), 1e-3)?;
    let steps = options.epochs * digits.train.len().div_ceil(options.batch_size);
    let mut cycle = OneCycleLR::new(&opt, OneCycleOptions::new(0.01, steps as u64))?;
    fit(&mut model, &queue, &digits, &mut opt, Some(&mut cycle), &options, &mut Progress::default(), &mut Lines)?;

    let folder = std::env::temp_dir().join(format!("netcl-example-{}", std::process::id()));
    save_model(&folder.join("cnn.netcl"), &model, Default::default())?;
    let mut copy = network(&queue)?;
    load_weights(&folder.join("cnn.netcl"), &mut copy)?;
    std::fs::remove_dir_all(&folder)?;
    let result = evaluate(&mut copy, &queue, &digits.test, 10, normalization, 64)?;
    println!("after saving and loading: {:.1} %", result.accuracy() * 100.0);
    if result.accuracy() < 0.93 {
        return Err("the network should have learned more".into());
    }
    Ok(())
}

//! A residual network of eighteen layers takes a few steps.
//!
//! `cargo run --release --example resnet`

use std::time::Instant;

use netcl::data::{Batches, ImageSplits, Normalization};
use netcl::nn::{Depth, ResNet, ResNetOptions};
use netcl::optim::AdamW;
use netcl::prelude::*;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let queue = manager().cpu().queue;
    let digits = ImageSplits::digits()?;
    let pixels = Normalization::of(&digits.train);
    // The stem for small images; one channel, since the digits are grey.
    let mut model = ResNet::new_with(&queue, ResNetOptions { in_channels: 1, ..ResNetOptions::of(Depth::D18) })?;
    println!("ResNet-18: {} parameters", model.num_parameters());

    let mut opt = AdamW::new(model.parameters(), 1e-3)?;
    let mut losses = Vec::new();
    for (step, batch) in Batches::new(&digits.train, 32).normalized(pixels).shuffled(0, 1).take(10).enumerate() {
        let start = Instant::now();
        let images = Tensor::from_host(&queue, &batch.pixels, [batch.len(), 1, 8, 8])?;
        let tape = Tape::new();
        let loss = F::cross_entropy(&model.forward(&images)?, &batch.labels[..], &Default::default())?;
        tape.backward(&loss)?;
        opt.step()?;
        opt.zero_grad();
        losses.push(loss.item()?);
        println!("step {:>2}: loss {:.3}, {:.0} ms", step + 1, losses[step], start.elapsed().as_secs_f64() * 1e3);
    }

    // For inference: running statistics instead of the batch's, and each normalisation folded into its convolution.
    model.eval();
    model.fuse()?;
    let batch = Batches::new(&digits.test, 8).normalized(pixels).next().ok_or("there are no test images")?;
    let _inference = no_grad();
    let images = Tensor::from_host(&queue, &batch.pixels, [batch.len(), 1, 8, 8])?;
    println!("scores: {:?}", model.forward(&images)?.shape());
    if losses.iter().fold(f64::INFINITY, |least, &loss| least.min(loss)) >= losses[0] {
        return Err("the loss should have fallen".into());
    }
    Ok(())
}

//! A residual network of eighteen layers takes a few steps.
//!
//! `cargo run --release --example resnet`

use std::time::Instant;

use netcl::augment::on_device;
use netcl::data::transforms::Compose;
use netcl::data::{DataLoader, ImageSplits, Normalization};
use netcl::nn::{Depth, ResNet, ResNetOptions};
use netcl::optim::AdamW;
use netcl::prelude::*;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let queue = manager().cpu().queue;
    let digits = ImageSplits::digits()?;
    let normalize = Compose::new(vec![Normalization::of(&digits.train).transform(1)])?;
    let loader = DataLoader::of(digits.train).batch_size(32).shuffle(true).transform(normalize.on_field(0)).build()?;
    // The stem for small images; one channel, since the digits are grey.
    let mut model = ResNet::new_with(&queue, ResNetOptions { in_channels: 1, ..ResNetOptions::of(Depth::D18) })?;
    println!("ResNet-18: {} parameters", model.num_parameters());

    let mut opt = AdamW::new(model.parameters(), 1e-3)?;
    let mut losses = Vec::new();
    let mut batches = on_device(loader.epoch(0)?, &queue)?;
    for (step, batch) in batches.by_ref().take(10).enumerate() {
        let start = Instant::now();
        let batch = batch?;
        let (x, y) =
            (Tensor::from(batch.tensor_at(0)?.clone()), IndexTensor::from_tensor(batch.tensor_at(1)?.clone())?);
        let tape = Tape::new();
        let loss = F::cross_entropy(&model.forward(&x)?, &y)?;
        tape.backward(&loss)?;
        opt.step()?;
        opt.zero_grad();
        losses.push(loss.item()?);
        println!("step {:>2}: loss {:.3}, {:.0} ms", step + 1, losses[step], start.elapsed().as_secs_f64() * 1e3);
    }

    // For inference: running statistics instead of the batch's, and each normalisation folded into its convolution.
    model.eval();
    model.fuse()?;
    let batch = batches.next().ok_or("there are no more images")??;
    let _inference = no_grad();
    println!("scores: {:?}", model.forward(&batch.tensor_at(0)?.clone().into())?.shape());
    if losses.iter().fold(f64::INFINITY, |least, &loss| least.min(loss)) >= losses[0] {
        return Err("the loss should have fallen".into());
    }
    Ok(())
}

//! A network of fully connected layers learns handwritten digits.
//!
//! `cargo run --release --example mlp`

use netcl::augment::on_device;
use netcl::data::transforms::Compose;
use netcl::data::{DataLoader, ImageSplits, Normalization};
use netcl::nn::Flatten;
use netcl::optim::{AdamW, AdamWOptions};
use netcl::prelude::*;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let queue = manager().cpu().queue; // or manager().get("auto")?.queue: a GPU or accelerator, else the native CPU
    let digits = ImageSplits::digits()?;
    let (images, normalize) = (digits.train.len(), Normalization::of(&digits.train).transform(1));
    let normalize = Compose::new(vec![normalize])?;
    let train =
        DataLoader::of(digits.train).batch_size(32).shuffle(true).transform(normalize.clone().on_field(0)).build()?;
    let test_images = digits.test.len();
    let test = DataLoader::of(digits.test).batch_size(64).transform(normalize.on_field(0)).build()?;

    let model = sequential![Flatten::default(), Linear::new(&queue, 64, 128)?, ReLU, Linear::new(&queue, 128, 10)?,];
    let mut opt = AdamW::new_with(model.parameters(), AdamWOptions { lr: 3e-3, ..Default::default() })?;

    for epoch in 1..=10 {
        let mut total = 0.0;
        for batch in on_device(train.epoch(epoch)?, &queue)? {
            let batch = batch?;
            let (x, y) =
                (Tensor::from(batch.tensor_at(0)?.clone()), IndexTensor::from_tensor(batch.tensor_at(1)?.clone())?);

            let tape = Tape::new();
            let loss = F::cross_entropy(&model.forward(&x)?, &y)?;
            tape.backward(&loss)?;

            opt.step()?;
            opt.zero_grad();
            total += loss.item()? * x.shape()[0] as f64;
        }
        println!("epoch {epoch:>2}: loss {:.4}", total / images as f64);
    }

    let _inference = no_grad();
    let mut right = 0;
    for batch in on_device(test.epoch(0)?, &queue)? {
        let batch = batch?;
        let guesses = F::argmax(&model.forward(&batch.tensor_at(0)?.clone().into())?, Some(1), false)?.to_host()?;
        let labels = batch.tensor_at(1)?.to_host::<i64>()?;
        right += guesses.iter().zip(&labels).filter(|(guess, label)| guess == label).count();
    }
    let accuracy = right as f64 / test_images as f64;
    println!("test accuracy {:.1} %", accuracy * 100.0);
    if accuracy < 0.9 {
        return Err("the network should have learned more".into());
    }
    Ok(())
}

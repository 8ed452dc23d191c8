//! A network of fully connected layers learns handwritten digits.
//!
//! `cargo run --release --example mlp`

use netcl::data::{Batches, ImageSplits, Normalization};
use netcl::nn::Flatten;
use netcl::optim::{AdamW, AdamWOptions};
use netcl::prelude::*;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let queue = manager().cpu().queue; // or manager().get("auto")?.queue: a GPU or accelerator, else the native CPU
    let digits = ImageSplits::digits()?;
    let pixels = Normalization::of(&digits.train);

    let model = sequential![Flatten::default(), Linear::new(&queue, 64, 128)?, ReLU, Linear::new(&queue, 128, 10)?,];
    let mut opt = AdamW::new_with(model.parameters(), AdamWOptions { lr: 3e-3, ..Default::default() })?;

    for epoch in 1..=10 {
        let mut total = 0.0;
        for batch in Batches::new(&digits.train, 32).normalized(pixels).shuffled(0, epoch) {
            let images = Tensor::from_host(&queue, &batch.pixels, [batch.len(), 1, 8, 8])?;

            let tape = Tape::new();
            let loss = F::cross_entropy(&model.forward(&images)?, &batch.labels[..], &Default::default())?;
            tape.backward(&loss)?;

            opt.step()?;
            opt.zero_grad();
            total += loss.item()? * batch.len() as f64;
        }
        println!("epoch {epoch:>2}: loss {:.4}", total / digits.train.len() as f64);
    }

    let _inference = no_grad();
    let mut right = 0;
    for batch in Batches::new(&digits.test, 64).normalized(pixels) {
        let images = Tensor::from_host(&queue, &batch.pixels, [batch.len(), 1, 8, 8])?;
        let guesses = F::argmax(&model.forward(&images)?, Some(1), false)?.to_host()?;
        right += guesses.iter().zip(&batch.labels).filter(|(guess, label)| guess == label).count();
    }
    let accuracy = right as f64 / digits.test.len() as f64;
    println!("test accuracy {:.1} %", accuracy * 100.0);
    if accuracy < 0.9 {
        return Err("the network should have learned more".into());
    }
    Ok(())
}

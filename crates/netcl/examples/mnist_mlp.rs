//! candle's first MNIST network, two linear layers, on the handwritten digits that come with netcl.
//!
//! `cargo run --release --example mnist_mlp`

use netcl::prelude::*;

#[derive(Module)]
struct Mlp {
    ln1: Linear,
    ln2: Linear,
}

impl Mlp {
    fn new(queue: &Queue) -> netcl::Result<Mlp> {
        Ok(Mlp { ln1: Linear::new(queue, 64, 100)?, ln2: Linear::new(queue, 100, 10)? })
    }

    fn forward(&self, x: &Tensor) -> netcl::Result<Tensor> {
        let x = (x.cast(DType::F32)? / 255)?.flatten(1, -1)?; // images are bytes
        self.ln2.forward(&self.ln1.forward(&x)?.relu()?)
    }
}

/// Trains, and returns the accuracy on images that the network has never seen.
pub(crate) fn train() -> netcl::Result<f64> {
    netcl::manual_seed(0);
    let queue = manager().get("auto")?.queue;
    let digits = ImageSplits::digits()?;
    let images = digits.test.len() as f64;
    let train = DataLoader::of(digits.train).batch_size(64).shuffle(true).build()?;
    let test = DataLoader::of(digits.test).batch_size(64).build()?;

    let model = Mlp::new(&queue)?;
    println!("{model}");
    let mut opt = SGD::new_with(model.parameters(), SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() })?;
    let mut accuracy = 0.0;
    for epoch in 1..=5 {
        let mut loss = Tensor::zeros(&queue, ())?;
        for batch in on_device(train.epoch(epoch)?, &queue)? {
            let (x, y) = batch?.labelled()?;
            loss = F::cross_entropy(&model.forward(&x)?, &y)?;
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
        }

        let _inference = no_grad();
        let mut right = 0;
        for batch in on_device(test.epoch(0)?, &queue)? {
            let (x, y) = batch?.labelled()?;
            let guesses = F::argmax(&model.forward(&x)?, Some(1), false)?.to_host()?;
            right += guesses.iter().zip(y.to_host()?).filter(|(guess, label)| **guess == *label).count();
        }
        accuracy = right as f64 / images;
        println!("epoch {epoch}: loss {:.4}, test accuracy {:.1} %", loss.item()?, 100.0 * accuracy);
    }
    Ok(accuracy)
}

#[cfg_attr(test, allow(dead_code, reason = "the tests call train"))]
fn main() -> netcl::Result<()> {
    train().map(|accuracy| println!("{:.1} % of the digits are right", 100.0 * accuracy))
}

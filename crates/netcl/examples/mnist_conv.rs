//! burn's MNIST network, two convolutions with dropout, on the handwritten digits that come with netcl.
//!
//! `cargo run --release --example mnist_conv`

use netcl::prelude::*;

#[derive(Module)]
struct Net {
    conv1: Conv2d,
    conv2: Conv2d,
    dropout: Dropout,
    linear1: Linear,
    linear2: Linear,
}

impl Net {
    fn new(queue: &Queue) -> netcl::Result<Net> {
        Ok(Net {
            conv1: Conv2d::new(queue, 1, 8, 3)?.padding(1),
            conv2: Conv2d::new(queue, 8, 16, 3)?.stride(2).padding(1),
            dropout: Dropout::new(0.25)?,
            linear1: Linear::new(queue, 16 * 4 * 4, 64)?,
            linear2: Linear::new(queue, 64, 10)?,
        })
    }

    fn forward(&self, images: &Tensor) -> netcl::Result<Tensor> {
        let x = (images.cast(DType::F32)? / 255)?; // images are bytes
        let x = self.conv1.forward(&x)?.relu()?;
        let x = self.conv2.forward(&x)?.relu()?.flatten(1, -1)?;
        let x = self.linear1.forward(&self.dropout.forward(&x)?)?.relu()?;
        self.linear2.forward(&x)
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

    let mut model = Net::new(&queue)?;
    println!("{model}");
    let mut opt = AdamW::new(model.parameters(), 3e-3)?;
    let mut accuracy = 0.0;
    for epoch in 1..=5 {
        model.train();
        for batch in on_device(train.epoch(epoch)?, &queue)? {
            let (x, y) = batch?.labelled()?;
            F::cross_entropy(&model.forward(&x)?, &y)?.backward()?;
            opt.step()?;
            opt.zero_grad();
        }

        model.eval();
        let _inference = no_grad();
        let mut right = 0;
        for batch in on_device(test.epoch(0)?, &queue)? {
            let (x, y) = batch?.labelled()?;
            let guesses = F::argmax(&model.forward(&x)?, Some(1), false)?.to_host()?;
            right += guesses.iter().zip(y.to_host()?).filter(|(guess, label)| **guess == *label).count();
        }
        accuracy = right as f64 / images;
        println!("epoch {epoch}: test accuracy {:.1} %", 100.0 * accuracy);
    }
    Ok(accuracy)
}

#[cfg_attr(test, allow(dead_code, reason = "the tests call train"))]
fn main() -> netcl::Result<()> {
    train().map(|accuracy| println!("{:.1} % of the digits are right", 100.0 * accuracy))
}

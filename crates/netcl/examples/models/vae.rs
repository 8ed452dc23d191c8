//! A variational autoencoder learns small pictures of bars.

use netcl::nn::functional::{BceOptions, Reduction};
use netcl::prelude::*;

const SIDE: usize = 8;
const LATENT: usize = 4;
const BATCH: usize = 64;

#[derive(Module)]
#[module(no_forward)]
struct Vae {
    fc1: Linear,
    fc21: Linear,
    fc22: Linear,
    fc3: Linear,
    fc4: Linear,
}

impl Vae {
    fn new(queue: &Queue, hidden: usize) -> netcl::Result<Vae> {
        Ok(Vae {
            fc1: Linear::new(queue, SIDE * SIDE, hidden)?,
            fc21: Linear::new(queue, hidden, LATENT)?,
            fc22: Linear::new(queue, hidden, LATENT)?,
            fc3: Linear::new(queue, LATENT, hidden)?,
            fc4: Linear::new(queue, hidden, SIDE * SIDE)?,
        })
    }

    /// Mean and logarithm of the variance of what a picture may come from.
    fn encode(&self, x: &Tensor) -> netcl::Result<(Tensor, Tensor)> {
        let hidden = self.fc1.forward(x)?.relu()?;
        Ok((self.fc21.forward(&hidden)?, self.fc22.forward(&hidden)?))
    }

    fn decode(&self, z: &Tensor) -> netcl::Result<Tensor> {
        self.fc4.forward(&self.fc3.forward(z)?.relu()?)?.sigmoid()
    }
}

/// Pictures of a horizontal or a vertical bar, a row of pixels each.
fn pictures(queue: &Queue) -> netcl::Result<Tensor> {
    let choices = Tensor::randint(queue, 0, 2 * SIDE as i64, [BATCH])?.to_f64_vec()?;
    let mut pixels = vec![0.0f32; BATCH * SIDE * SIDE];
    for (picture, choice) in pixels.chunks_mut(SIDE * SIDE).zip(choices) {
        let (place, upright) = (choice as usize / 2, choice as usize % 2 == 1);
        for i in 0..SIDE {
            picture[if upright { i * SIDE + place } else { place * SIDE + i }] = 1.0;
        }
    }
    Tensor::from_host(queue, &pixels, [BATCH, SIDE * SIDE])
}

pub(crate) fn run(queue: &Queue) -> Result<(), Box<dyn std::error::Error>> {
    netcl::manual_seed(0);
    let model = Vae::new(queue, 64)?;
    let mut opt = Adam::new(model.parameters(), 2e-3)?;
    let mut losses = Vec::new();
    for _step in 0..300 {
        let x = pictures(queue)?;
        let (mean, log_variance) = model.encode(&x)?;
        // Drawing outside of the gradient's way: z = mean + deviation * noise.
        let deviation = (&log_variance * 0.5)?.exp()?;
        let z = (&mean + &(&deviation * &mean.randn_like()?)?)?;
        let sum = BceOptions { reduction: Reduction::Sum, ..Default::default() };
        let reconstruction = F::binary_cross_entropy(&model.decode(&z)?, &x, &sum)?;
        let spread = (&(&(&log_variance + 1.0)? - &mean.square()?)? - &log_variance.exp()?)?;
        let loss = (&reconstruction - &(&spread.sum((), false)? * 0.5)?)?;
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        losses.push(loss.item()? / BATCH as f64);
    }
    let last = losses[losses.len() - 1];
    println!("loss of a picture {:.3} -> {last:.3}", losses[0]);
    if last > losses[0] / 2.0 {
        return Err("the network should have learned more".into());
    }
    Ok(())
}

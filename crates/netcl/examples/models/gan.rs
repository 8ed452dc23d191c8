//! A Wasserstein GAN with gradient penalty learns a ring of points.

use netcl::autograd::{BackwardOptions, grad};
use netcl::nn::LeakyReLU;
use netcl::optim::AdamOptions;
use netcl::prelude::*;

const LATENT: usize = 2;
const BATCH: usize = 64;

fn network(queue: &Queue, inputs: usize, outputs: usize) -> netcl::Result<Sequential> {
    Ok(sequential![
        Linear::new(queue, inputs, 64)?,
        LeakyReLU { negative_slope: 0.2 },
        Linear::new(queue, 64, 64)?,
        LeakyReLU { negative_slope: 0.2 },
        Linear::new(queue, 64, outputs)?,
    ])
}

/// How far the critic's slope is from 1 between real and generated points. It is made of a gradient, and differentiated again.
fn gradient_penalty(critic: &Sequential, real: &Tensor, fake: &Tensor) -> netcl::Result<Tensor> {
    let alpha = Tensor::rand(real.queue(), [BATCH, 1])?;
    let mixed = (&(real * &alpha)? + &(fake * &(1.0 - &alpha)?)?)?.detach().with_grad();
    let score = critic.forward(&mixed)?;
    let keep = BackwardOptions { create_graph: true, ..Default::default() };
    let slopes = grad(&[&score], &[&mixed], &[Some(&score.ones_like()?)], keep)?;
    let slopes = slopes.into_iter().flatten().next().ok_or_else(|| netcl::Error::argument("gan", "no slope"))?;
    (slopes.norm(2.0, 1, false)? - 1.0)?.square()?.mean((), false)
}

/// Points around the unit circle.
fn ring(queue: &Queue) -> netcl::Result<Tensor> {
    let angle = (Tensor::rand(queue, [BATCH, 1])? * std::f64::consts::TAU)?;
    F::cat(&[&angle.cos()?, &angle.sin()?], 1)? + (Tensor::randn(queue, [BATCH, 2])? * 0.05)?
}

pub(crate) fn run(queue: &Queue) -> Result<(), Box<dyn std::error::Error>> {
    netcl::manual_seed(0);
    let (generator, critic) = (network(queue, LATENT, 2)?, network(queue, 2, 1)?);
    let options = AdamOptions { lr: 2e-3, betas: (0.0, 0.9), ..Default::default() };
    let mut opt_g = Adam::new_with(generator.parameters(), options)?;
    let mut opt_d = Adam::new_with(critic.parameters(), options)?;
    let noise = || Tensor::randn(queue, [BATCH, LATENT]);
    let radius = |points: Tensor| -> netcl::Result<f64> { Ok(points.norm(2.0, 1, false)?.mean((), false)?.item()?) };
    let before = radius(generator.forward(&noise()?)?)?;
    for step in 0..600 {
        let real = ring(queue)?;
        let fake = generator.forward(&noise()?)?.detach();
        let gap = (&critic.forward(&fake)?.mean((), false)? - &critic.forward(&real)?.mean((), false)?)?;
        let loss_d = (&gap + &(gradient_penalty(&critic, &real, &fake)? * 10.0)?)?;
        opt_d.zero_grad();
        loss_d.backward()?;
        opt_d.step()?;
        if step % 5 == 0 {
            // The critic stays ahead of the generator.
            let loss_g = (-critic.forward(&generator.forward(&noise()?)?)?.mean((), false)?)?;
            opt_g.zero_grad();
            loss_g.backward()?;
            opt_g.step()?;
        }
    }
    let _inference = no_grad();
    let after = radius(generator.forward(&noise()?)?)?;
    println!("mean radius of generated points: {before:.2} -> {after:.2}, of real ones 1.00");
    if !(0.5..2.0).contains(&after) {
        return Err("the generator should have found the ring".into());
    }
    Ok(())
}

//! A network of your own: two blocks that share one layer, trained to tell two spirals apart.
//!
//! `cargo run --release -p netcl --example user_defined_module [device]`

use std::f32::consts::PI;

use netcl::core::random::{Generator, fill_normal_f32};
use netcl::nn::{Build, LinearOptions, Strict};
use netcl::prelude::*;

/// A layer with a way around it. The derive finds the parts: `inner` is a child, `scale` a parameter.
#[derive(Module)]
struct Block {
    inner: Linear,
    scale: Tensor,
    #[module(show)]
    width: usize,
}

impl Block {
    fn new(queue: &Queue, inner: Linear) -> netcl::Result<Block> {
        let width = inner.out_features();
        let scale = Tensor::full(queue, [width], DType::F32, 0.5)?.with_grad();
        Ok(Block { inner, scale, width })
    }

    fn forward(&self, x: &Tensor) -> netcl::Result<Tensor> {
        x + &F::mul(&F::silu(&self.inner.forward(x)?)?, &self.scale)?
    }
}

/// A function of the input that is not a chain: both blocks see the stem, and the head sees both.
#[derive(Module)]
struct Net {
    stem: Linear,
    blocks: [Block; 2],
    head: Linear,
}

impl Net {
    fn new(queue: &Queue, width: usize, generator: &mut Generator) -> netcl::Result<Net> {
        let mut layer = |inputs, outputs| {
            Linear::new_with(Build::on(queue).generator(&mut *generator), LinearOptions::new(inputs, outputs))
        };
        let shared = layer(width, width)?;
        // A clone of a tensor is the same parameter: both blocks train one weight, each with a bias of its own.
        let other = Linear::from_parameters(shared.weight().clone(), layer(width, width)?.bias().cloned())?;
        Ok(Net {
            stem: layer(2, width)?,
            blocks: [Block::new(queue, shared)?, Block::new(queue, other)?],
            head: layer(2 * width, 2)?,
        })
    }

    fn forward(&self, x: &Tensor) -> netcl::Result<Tensor> {
        let stem = F::tanh(&self.stem.forward(x)?)?;
        let [first, second] = &self.blocks;
        let first = first.forward(&stem)?;
        self.head.forward(&F::cat(&[&first, &second.forward(&first)?], -1)?)
    }
}

/// Points on two spirals, and which one each lies on.
fn spirals(count: usize, generator: &mut Generator) -> netcl::Result<(Vec<f32>, Vec<i64>)> {
    let mut noise = vec![0.0; 2 * count];
    fill_normal_f32(&mut noise, &generator.reserve_words(2 * count))?;
    let mut points = Vec::with_capacity(2 * count);
    for (i, noise) in noise.chunks(2).enumerate() {
        let (turn, spiral) = ((i / 2) as f32 / (count / 2) as f32, (i % 2) as f32);
        let (radius, angle) = (0.3 + 1.7 * turn, 2.0 * PI * turn + PI * spiral);
        points.extend([radius * angle.cos() + 0.05 * noise[0], radius * angle.sin() + 0.05 * noise[1]]);
    }
    Ok((points, (0..count as i64).map(|i| i % 2).collect()))
}

fn accuracy(net: &Net, x: &Tensor, labels: &[i64]) -> netcl::Result<f64> {
    let _scope = no_grad();
    let guesses = F::argmax(&net.forward(x)?, Some(1), false)?.to_host()?;
    Ok(guesses.iter().zip(labels).filter(|(a, b)| a == b).count() as f64 / labels.len() as f64)
}

/// Trains on a device and returns the accuracy on the points.
fn train(device: &str) -> netcl::Result<f64> {
    let queue = manager().get(device)?.queue;
    let mut generator = Generator::new(1);
    let (points, labels) = spirals(200, &mut generator)?;
    let x = Tensor::from_host(&queue, &points, [200, 2])?;

    let net = Net::new(&queue, 24, &mut generator)?;
    println!("{}\n", net.summary());
    let options = SgdOptions { lr: 0.2, momentum: 0.9, ..Default::default() };
    let mut optimizer = SGD::new_with(net.parameters(), options)?;
    for step in 1..=300 {
        let loss = F::cross_entropy(&net.forward(&x)?, &labels)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        if step % 50 == 0 {
            println!("step {step}: loss {:.4}, accuracy {:.1} %", loss.item()?, 100.0 * accuracy(&net, &x, &labels)?);
        }
    }

    // What was learned is the state; a new network with it is the same function.
    let copy = Net::new(&queue, 24, &mut generator)?;
    copy.load_state_dict(&net.state_dict(), Strict::Yes)?;
    accuracy(&copy, &x, &labels)
}

fn main() -> netcl::Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".to_owned());
    println!("\na copy of the network: {:.1} %", 100.0 * train(&device)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_network_learns() {
        assert!(super::train("cpu").unwrap() > 0.97);
    }
}

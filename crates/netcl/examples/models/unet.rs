//! A U-Net finds discs in noisy pictures.

use netcl::core::random::{Generator, fill_normal_f32};
use netcl::nn::ConvTranspose2d;
use netcl::prelude::*;

const SIDE: usize = 32;
const BATCH: usize = 8;

/// Two convolutions with normalisation and activation.
fn double_conv(queue: &Queue, inputs: usize, outputs: usize) -> netcl::Result<Sequential> {
    Ok(sequential![
        Conv2d::new(queue, inputs, outputs, 3)?.padding(1),
        BatchNorm2d::new(queue, outputs)?,
        ReLU,
        Conv2d::new(queue, outputs, outputs, 3)?.padding(1),
        BatchNorm2d::new(queue, outputs)?,
        ReLU,
    ])
}

#[derive(Module)]
struct UNet {
    down1: Sequential,
    down2: Sequential,
    bottom: Sequential,
    up2: ConvTranspose2d,
    conv2: Sequential,
    up1: ConvTranspose2d,
    conv1: Sequential,
    out: Conv2d,
    pool: MaxPool2d,
}

impl UNet {
    fn new(queue: &Queue, width: usize) -> netcl::Result<UNet> {
        Ok(UNet {
            down1: double_conv(queue, 1, width)?,
            down2: double_conv(queue, width, 2 * width)?,
            bottom: double_conv(queue, 2 * width, 4 * width)?,
            up2: ConvTranspose2d::new(queue, 4 * width, 2 * width, 2)?.stride(2),
            conv2: double_conv(queue, 4 * width, 2 * width)?,
            up1: ConvTranspose2d::new(queue, 2 * width, width, 2)?.stride(2),
            conv1: double_conv(queue, 2 * width, width)?,
            out: Conv2d::new(queue, width, 1, 1)?,
            pool: MaxPool2d::new(2),
        })
    }

    /// What was seen on the way down joins in on the way up.
    fn forward(&self, x: &Tensor) -> netcl::Result<Tensor> {
        let d1 = self.down1.forward(x)?;
        let d2 = self.down2.forward(&self.pool.forward(&d1)?)?;
        let h = self.bottom.forward(&self.pool.forward(&d2)?)?;
        let h = self.conv2.forward(&F::cat(&[&self.up2.forward(&h)?, &d2], 1)?)?;
        let h = self.conv1.forward(&F::cat(&[&self.up1.forward(&h)?, &d1], 1)?)?;
        self.out.forward(&h)
    }
}

/// Noisy pictures (N, 1, H, W) and where their disc is.
fn discs(queue: &Queue, seed: usize, generator: &mut Generator) -> netcl::Result<(Tensor, Tensor)> {
    let mut mask = vec![0.0f32; BATCH * SIDE * SIDE];
    for (n, picture) in mask.chunks_mut(SIDE * SIDE).enumerate() {
        let number = seed * BATCH + n;
        let (row, column, radius) = (8 + number * 7 % 16, 8 + number * 11 % 16, 3 + number % 4);
        for (at, pixel) in picture.iter_mut().enumerate() {
            let (y, x) = ((at / SIDE).abs_diff(row), (at % SIDE).abs_diff(column));
            *pixel = f32::from(u8::from(y * y + x * x < radius * radius));
        }
    }
    let mut noisy = vec![0.0; mask.len()];
    fill_normal_f32(&mut noisy, &generator.reserve_words(mask.len()))?;
    noisy.iter_mut().zip(&mask).for_each(|(noise, &mask)| *noise = mask + 0.4 * *noise);
    let shape = [BATCH, 1, SIDE, SIDE];
    Ok((Tensor::from_host(queue, &noisy, shape)?, Tensor::from_host(queue, &mask, shape)?))
}

pub(crate) fn run(queue: &Queue) -> Result<(), Box<dyn std::error::Error>> {
    netcl::manual_seed(0);
    let mut model = UNet::new(queue, 8)?;
    let mut opt = Adam::new(model.parameters(), 1e-2)?;
    let mut generator = Generator::new(1);
    let mut losses = Vec::new();
    for step in 0..30 {
        let (x, mask) = discs(queue, step, &mut generator)?;
        let loss = F::binary_cross_entropy_with_logits(&model.forward(&x)?, &mask, &Default::default())?;
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        losses.push(loss.item()?);
    }
    model.eval();
    let _inference = no_grad();
    let (x, mask) = discs(queue, 1000, &mut generator)?;
    let (found, mask) = (model.forward(&x)?.to_host::<f32>()?, mask.to_host::<f32>()?);
    let right = found.iter().zip(&mask).filter(|(found, mask)| (**found > 0.0) == (**mask > 0.5)).count();
    let share = right as f64 / mask.len() as f64;
    println!(
        "loss {:.3} -> {:.3}, {:.1} % of the pixels are right",
        losses[0],
        losses[losses.len() - 1],
        share * 100.0
    );
    if share < 0.95 {
        return Err("the network should have learned more".into());
    }
    Ok(())
}

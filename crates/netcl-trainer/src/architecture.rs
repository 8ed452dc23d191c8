//! The models that can be trained by name.

use netcl_nn::autograd::{Generator, Queue};
use netcl_nn::{
    BatchNorm2d, Build, Conv2d, Conv2dOptions, Depth, Dropout, Flatten, Linear, LinearOptions, MaxPool2d, Module, ReLU,
    ResNet, ResNetOptions, sequential,
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Which network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Two hidden layers of 256 and 128 units.
    Mlp,
    /// Two convolutions with batch normalisation, each followed by pooling, and two fully connected layers.
    Cnn,
    /// ResNet-18 with the stem for small images.
    Resnet18,
}

impl Network {
    /// All networks.
    pub const ALL: [Network; 3] = [Network::Mlp, Network::Cnn, Network::Resnet18];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Network::Mlp => "mlp",
            Network::Cnn => "cnn",
            Network::Resnet18 => "resnet18",
        }
    }
}

/// A network for images of one shape and a number of classes: enough to build it again.
///
/// ```
/// use netcl_nn::autograd::{Generator, Tensor, manager};
/// use netcl_trainer::{Architecture, Network};
///
/// let queue = manager().cpu().queue;
/// let cnn = Architecture { network: Network::Cnn, input: [1, 8, 8], classes: 10 };
/// let model = cnn.build(&queue, &mut Generator::new(0))?;
/// let images = Tensor::from_host(&queue, &[0.0f32; 2 * 64], [2, 1, 8, 8])?;
/// assert_eq!(model.forward(&images)?.shape()[..], [2, 10]);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Architecture {
    /// Which network.
    pub network: Network,
    /// Channels, height and width of an image.
    pub input: [usize; 3],
    /// The number of classes.
    pub classes: usize,
}

impl Architecture {
    /// An error for images and classes of which no network can be made.
    fn check(&self) -> Result<()> {
        let Architecture { network, input: [channels, height, width], classes } = *self;
        let refused = |what: String| Err(Error::setting(what));
        if channels == 0 || height == 0 || width == 0 || classes == 0 {
            return refused(format!("images of shape {:?} in {classes} classes cannot be learned", self.input));
        }
        if network == Network::Cnn && (height < 4 || width < 4) {
            return refused(format!("the cnn halves images twice and needs 4x4 pixels, these have {height}x{width}"));
        }
        // Its number of weights does not depend on the size of the images, so no other check bounds its activations.
        let values = channels.saturating_mul(height).saturating_mul(width);
        if network == Network::Resnet18 && values > RESNET_VALUES {
            return refused(format!(
                "images of shape {:?} have {values} values; the resnet18 takes up to {RESNET_VALUES}",
                self.input
            ));
        }
        Ok(())
    }

    /// The number of parameters, which is known without building the network.
    pub fn parameters(&self) -> u64 {
        let [channels, height, width] = self.input.map(|length| length as u64);
        let linear = |inputs: u64, outputs: u64| inputs.saturating_add(1).saturating_mul(outputs);
        let layers = match self.network {
            Network::Mlp => {
                let pixels = channels.saturating_mul(height).saturating_mul(width);
                [linear(pixels, 256), linear(256, 128), linear(128, self.classes as u64)]
            }
            Network::Cnn => {
                let pixels = (height / 4).saturating_mul(width / 4).saturating_mul(64);
                // Two 3x3 convolutions without a bias, each with scales and shifts.
                let convolutions = channels.saturating_mul(9 * 32).saturating_add(2 * 32 + 32 * 9 * 64 + 2 * 64);
                [convolutions, linear(pixels, 128), linear(128, self.classes as u64)]
            }
            // The stem, the blocks, the classes.
            Network::Resnet18 => [channels.saturating_mul(9 * 64), 11_167_104, linear(512, self.classes as u64)],
        };
        layers.into_iter().fold(0, u64::saturating_add)
    }

    /// The network with random weights from a generator: a seed gives the same weights on every device.
    ///
    /// # Errors
    /// If the images are too small or too large for the network.
    pub fn build(&self, queue: &Queue, generator: &mut Generator) -> Result<Box<dyn Module>> {
        let Architecture { network, input: [channels, height, width], classes } = *self;
        self.check()?;
        Ok(match network {
            Network::Mlp => {
                let mut linear = |inputs, outputs| linear(queue, inputs, outputs, generator);
                Box::new(sequential![
                    Flatten::default(),
                    linear(channels * height * width, 256)?,
                    ReLU,
                    linear(256, 128)?,
                    ReLU,
                    linear(128, classes)?,
                ])
            }
            Network::Cnn => {
                let (small_height, small_width) = (height / 2 / 2, width / 2 / 2);
                Box::new(sequential![
                    convolution(queue, channels, 32, generator)?,
                    BatchNorm2d::new(queue, 32)?,
                    ReLU,
                    MaxPool2d::new(2),
                    convolution(queue, 32, 64, generator)?,
                    BatchNorm2d::new(queue, 64)?,
                    ReLU,
                    MaxPool2d::new(2),
                    Flatten::default(),
                    Dropout::new(0.25)?,
                    linear(queue, 64 * small_height * small_width, 128, generator)?,
                    ReLU,
                    linear(queue, 128, classes, generator)?,
                ])
            }
            Network::Resnet18 => {
                let sizes =
                    ResNetOptions { in_channels: channels, num_classes: classes, ..ResNetOptions::of(Depth::D18) };
                Box::new(ResNet::new_with(Build::on(queue).generator(generator), sizes)?)
            }
        })
    }
}

/// What an image may have for the ResNet: its first activations are 64 times as large.
const RESNET_VALUES: usize = 1 << 20;

fn linear(queue: &Queue, inputs: usize, outputs: usize, generator: &mut Generator) -> Result<Linear> {
    Ok(Linear::new_with(Build::on(queue).generator(generator), LinearOptions::new(inputs, outputs))?)
}

/// 3x3, the size of the image kept; normalisation behind it makes a bias useless.
fn convolution(queue: &Queue, inputs: usize, outputs: usize, generator: &mut Generator) -> Result<Conv2d> {
    let options = Conv2dOptions { padding: 1.into(), bias: false, ..Conv2dOptions::new(inputs, outputs, 3) };
    Ok(Conv2d::new_with(Build::on(queue).generator(generator), options)?)
}

#[cfg(test)]
mod tests {
    use netcl_nn::autograd::manager;

    use super::*;

    #[test]
    fn the_number_of_parameters_is_that_of_the_network() {
        let queue = manager().cpu().queue;
        for network in Network::ALL {
            for (input, classes) in [([1, 8, 8], 10), ([3, 9, 14], 7)] {
                let architecture = Architecture { network, input, classes };
                let built = architecture.build(&queue, &mut Generator::new(0)).unwrap().num_parameters();
                assert_eq!(architecture.parameters(), built as u64, "{architecture:?}");
            }
            let huge = Architecture { network, input: [usize::MAX; 3], classes: usize::MAX };
            assert_eq!(huge.parameters(), u64::MAX);
        }
        let wide = Architecture { network: Network::Resnet18, input: [1, 100_000, 100_000], classes: 10 };
        assert!(wide.build(&queue, &mut Generator::new(0)).err().unwrap().to_string().contains("takes up to"));
    }
}

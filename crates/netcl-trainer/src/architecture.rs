//! The models that can be trained by name.

use netcl_io::nn::autograd::core::backend::Queue;
use netcl_io::nn::autograd::core::random::Generator;
use netcl_io::nn::{
    BatchNorm2d, Conv2d, Conv2dOptions, Depth, Dropout, Flatten, Linear, LinearOptions, MaxPool2d, Module, ReLU,
    ResNet, ResNetOptions, Stem, sequential,
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
/// use netcl_io::nn::autograd::{Tensor, core::{device::manager, random::Generator}};
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
    /// The network with random weights from a generator: a seed gives the same weights on every device.
    ///
    /// # Errors
    /// If the images are too small for the network.
    pub fn build(&self, queue: &Queue, generator: &mut Generator) -> Result<Box<dyn Module>> {
        let Architecture { network, input: [channels, height, width], classes } = *self;
        if channels == 0 || height == 0 || width == 0 || classes == 0 {
            return Err(Error::setting(format!(
                "images of shape {:?} in {classes} classes cannot be learned",
                self.input
            )));
        }
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
                if height < 4 || width < 4 {
                    let what = format!("the cnn halves images twice and needs 4x4 pixels, these have {height}x{width}");
                    return Err(Error::setting(what));
                }
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
                let options = ResNetOptions {
                    stem: Stem::Cifar,
                    in_channels: channels,
                    num_classes: classes,
                    generator: Some(generator),
                    ..Default::default()
                };
                Box::new(ResNet::new_with(queue, Depth::D18, options)?)
            }
        })
    }
}

fn linear(queue: &Queue, inputs: usize, outputs: usize, generator: &mut Generator) -> Result<Linear> {
    let options = LinearOptions { generator: Some(generator), ..Default::default() };
    Ok(Linear::new_with(queue, inputs, outputs, options)?)
}

/// 3x3, the size of the image kept; normalisation behind it makes a bias useless.
fn convolution(queue: &Queue, inputs: usize, outputs: usize, generator: &mut Generator) -> Result<Conv2d> {
    let options = Conv2dOptions { padding: [1, 1], bias: false, generator: Some(generator), ..Default::default() };
    Ok(Conv2d::new_with(queue, inputs, outputs, 3, options)?)
}

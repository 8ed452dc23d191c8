//! The models that can be trained by name or by a configuration.

use netcl_nn::autograd::{Generator, Queue, manager};
use netcl_nn::{
    BatchNorm2d, BatchNormOptions, Build, Configured, Conv2d, Conv2dOptions, Depth, Dropout, Flatten, GPT, GPTOptions,
    LayerConfig, Linear, LinearOptions, MaxPool2d, Module, ReLU, ResNet, ResNetOptions, Sequential, VisionTransformer,
    VisionTransformerOptions, sequential,
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
    /// ResNet-34 with the stem for small images.
    Resnet34,
    /// ResNet-50 with the stem for small images.
    Resnet50,
    /// A vision transformer of six blocks of 128 values over patches of an eighth of the image's side or more.
    Vit,
    /// A language model of the sizes of [`GptSizes`].
    Gpt,
    /// The layers of a configuration file.
    Config,
}

impl Network {
    /// All networks.
    pub const ALL: [Network; 8] = [
        Network::Mlp,
        Network::Cnn,
        Network::Resnet18,
        Network::Resnet34,
        Network::Resnet50,
        Network::Vit,
        Network::Gpt,
        Network::Config,
    ];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Network::Mlp => "mlp",
            Network::Cnn => "cnn",
            Network::Resnet18 => "resnet18",
            Network::Resnet34 => "resnet34",
            Network::Resnet50 => "resnet50",
            Network::Vit => "vit",
            Network::Gpt => "gpt",
            Network::Config => "config",
        }
    }

    /// How deep a residual network is; none for all others.
    fn depth(self) -> Option<Depth> {
        match self {
            Network::Resnet18 => Some(Depth::D18),
            Network::Resnet34 => Some(Depth::D34),
            Network::Resnet50 => Some(Depth::D50),
            _ => None,
        }
    }
}

/// The sizes of a language model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GptSizes {
    /// The number of blocks.
    pub layers: usize,
    /// The heads of each attention.
    pub heads: usize,
    /// The width of a token's vector; the heads must divide it.
    pub width: usize,
    /// The tokens that are seen together.
    pub context: usize,
    /// The probability with which values are dropped in training.
    #[serde(default)]
    pub dropout: f64,
}

impl Default for GptSizes {
    /// 2.7 million parameters: small enough for a CPU, and below 1.5 nats per character of Shakespeare.
    fn default() -> GptSizes {
        GptSizes { layers: 6, heads: 6, width: 192, context: 128, dropout: 0.0 }
    }
}

/// A network for inputs of one shape and a number of outputs: enough to build it again.
///
/// ```
/// use netcl_nn::autograd::{Generator, Tensor, manager};
/// use netcl_trainer::{Architecture, Network};
///
/// let queue = manager().cpu().queue;
/// let cnn = Architecture::new(Network::Cnn, &[1, 8, 8], 10);
/// let model = cnn.build(&queue, &mut Generator::new(0))?;
/// let images = Tensor::from_host(&queue, &[0.0f32; 2 * 64], [2, 1, 8, 8])?;
/// assert_eq!(model.forward(&images)?.shape()[..], [2, 10]);
/// assert_eq!(cnn.parameters()?, model.num_parameters() as u64);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Architecture {
    /// Which network.
    pub network: Network,
    /// The shape of an input: channels, height and width of an image, or the inputs of a table; empty for a text.
    pub input: Vec<usize>,
    /// The number of classes, of values to predict, or of tokens.
    pub classes: usize,
    /// The sizes of a language model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpt: Option<GptSizes>,
    /// The layers of [`Network::Config`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<LayerConfig>>,
}

/// What an input may have: the first activations of the networks for images are up to 64 times as large.
const MOST_VALUES: usize = 1 << 20;

impl Architecture {
    /// A network by name, of the usual sizes.
    pub fn new(network: Network, input: &[usize], classes: usize) -> Architecture {
        let gpt = (network == Network::Gpt).then(GptSizes::default);
        Architecture { network, input: input.to_vec(), classes, gpt, layers: None }
    }

    /// An error for inputs and outputs of which no network can be made.
    fn check(&self) -> Result<()> {
        let Architecture { network, input, classes, .. } = self;
        let (name, refused) = (network.name(), |what: String| Err(Error::setting(what)));
        let values = input.iter().fold(1usize, |values, &length| values.saturating_mul(length));
        if values == 0 || *classes == 0 {
            return refused(format!("inputs of shape {input:?} and {classes} outputs: there is nothing to learn"));
        }
        if values > MOST_VALUES {
            return refused(format!(
                "inputs of shape {input:?} have {values} values; networks take up to {MOST_VALUES}"
            ));
        }
        match (network, &input[..]) {
            (Network::Gpt, []) | (Network::Config, _) => Ok(()),
            (Network::Gpt, _) => {
                refused("gpt learns texts; choose mlp, cnn, resnet18 or vit for these data".to_owned())
            }
            (_, []) => refused(format!("{name} learns images and tables; choose gpt for a text")),
            (Network::Mlp, _) => Ok(()),
            (_, &[_, height, width]) => match network {
                Network::Cnn if height < 4 || width < 4 => {
                    refused(format!("the cnn halves images twice and needs 4x4 pixels, these have {height}x{width}"))
                }
                Network::Vit if height != width => {
                    refused(format!("the vit takes square images, these have {height}x{width}; choose cnn or resnet18"))
                }
                _ => Ok(()),
            },
            _ => refused(format!(
                "{name} takes images, these inputs have shape {input:?}; choose mlp or a configuration"
            )),
        }
    }

    /// The number of parameters, without memory for them.
    ///
    /// # Errors
    /// As [`Architecture::build`].
    pub fn parameters(&self) -> Result<u64> {
        Ok(self.make(&mut Build::on(&manager().cpu().queue).hollow())?.num_parameters() as u64)
    }

    /// The network with random weights from a generator: a seed gives the same weights on every device.
    ///
    /// # Errors
    /// If the network does not take such inputs, or its configuration is wrong.
    pub fn build(&self, queue: &Queue, generator: &mut Generator) -> Result<Box<dyn Module>> {
        self.make(&mut Build::on(queue).generator(generator))
    }

    fn make(&self, build: &mut Build<'_>) -> Result<Box<dyn Module>> {
        self.check()?;
        let (input, classes) = (&self.input, self.classes);
        if let Some(depth) = self.network.depth() {
            let sizes = ResNetOptions { in_channels: input[0], num_classes: classes, ..ResNetOptions::of(depth) };
            return Ok(Box::new(ResNet::build(build, sizes)?));
        }
        Ok(match self.network {
            Network::Cnn => {
                let pixels = 64 * (input[1] / 2 / 2) * (input[2] / 2 / 2);
                Box::new(sequential![
                    convolution(build, input[0], 32)?,
                    BatchNorm2d::build(build, BatchNormOptions::new(32))?,
                    ReLU,
                    MaxPool2d::new(2),
                    convolution(build, 32, 64)?,
                    BatchNorm2d::build(build, BatchNormOptions::new(64))?,
                    ReLU,
                    MaxPool2d::new(2),
                    Flatten::default(),
                    Dropout::new(0.25)?,
                    linear(build, pixels, 128)?,
                    ReLU,
                    linear(build, 128, classes)?,
                ])
            }
            Network::Vit => {
                let patch = patch_size(input[1]);
                let sizes = VisionTransformerOptions {
                    num_classes: classes,
                    in_channels: input[0],
                    dropout: 0.1,
                    ..VisionTransformerOptions::new(input[1], patch, 6, 4, 128, 256)
                };
                Box::new(VisionTransformer::build(build, sizes)?)
            }
            Network::Gpt => {
                let GptSizes { layers, heads, width, context, dropout } = self.gpt.unwrap_or_default();
                let sizes = GPTOptions {
                    n_layer: layers,
                    n_head: heads,
                    n_embd: width,
                    dropout,
                    ..GPTOptions::new(classes, context)
                };
                Box::new(GPT::build(build, sizes)?)
            }
            Network::Config => {
                let layers = self.layers.as_deref().unwrap_or_default();
                let mut made = Vec::with_capacity(layers.len());
                for (at, layer) in layers.iter().enumerate() {
                    made.push(build.layer(&at.to_string(), layer)?);
                }
                match <[Box<dyn Module>; 1]>::try_from(made) {
                    // A language model is found by its type, which a list would hide.
                    Ok([model]) => model,
                    Err(layers) => Box::new(Sequential::new(layers)),
                }
            }
            _ => Box::new(sequential![
                Flatten::default(),
                linear(build, input.iter().product(), 256)?,
                ReLU,
                linear(build, 256, 128)?,
                ReLU,
                linear(build, 128, classes)?,
            ]),
        })
    }
}

/// The side of a patch: the smallest divisor of the image's side, apart from 1, that gives at most eight patches in a row.
fn patch_size(side: usize) -> usize {
    (2..=side).find(|patch| side.is_multiple_of(*patch) && side / patch <= 8).unwrap_or(side)
}

fn linear(build: &mut Build<'_>, inputs: usize, outputs: usize) -> Result<Linear> {
    Ok(Linear::build(build, LinearOptions::new(inputs, outputs))?)
}

/// 3x3, the size of the image kept; normalisation after it makes a bias useless.
fn convolution(build: &mut Build<'_>, inputs: usize, outputs: usize) -> Result<Conv2d> {
    let options = Conv2dOptions { padding: 1.into(), bias: false, ..Conv2dOptions::new(inputs, outputs, 3) };
    Ok(Conv2d::build(build, options)?)
}

#[cfg(test)]
mod tests {
    use netcl_nn::autograd::Tensor;
    use netcl_nn::config::from_json;

    use super::*;

    #[test]
    fn every_network_for_images_has_a_score_per_class() {
        let queue = manager().cpu().queue;
        for network in Network::ALL.into_iter().filter(|n| !matches!(n, Network::Gpt | Network::Config)) {
            for input in [[1, 8, 8], [3, 14, 14]] {
                // The deepest ones take their time.
                if matches!(network, Network::Resnet34 | Network::Resnet50) && input[0] == 3 {
                    continue;
                }
                let architecture = Architecture::new(network, &input, 7);
                let mut model = architecture.build(&queue, &mut Generator::new(0)).unwrap();
                assert_eq!(architecture.parameters().unwrap(), model.num_parameters() as u64, "{architecture:?}");
                model.eval();
                let image =
                    Tensor::full(&queue, [&[1], &input[..]].concat(), netcl_nn::autograd::DType::F32, 0.5).unwrap();
                assert_eq!(model.forward(&image).unwrap().shape()[..], [1, 7], "{architecture:?}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |network, input: &[usize], expected: &str| {
            let text = Architecture::new(network, input, 10).parameters().unwrap_err().to_string();
            assert!(text.contains(expected), "{network:?} {input:?}: {text}");
        };
        refused(Network::Resnet18, &[1, 100_000, 100_000], "networks take up to");
        refused(Network::Mlp, &[usize::MAX; 3], "networks take up to");
        refused(Network::Cnn, &[1, 3, 8], "needs 4x4 pixels");
        refused(Network::Vit, &[1, 8, 10], "square images");
        refused(Network::Gpt, &[1, 8, 8], "gpt learns texts");
        refused(Network::Mlp, &[], "choose gpt");
        refused(Network::Cnn, &[4], "choose mlp");
        refused(Network::Mlp, &[0], "nothing to learn");
        let heads = GptSizes { heads: 5, ..GptSizes::default() };
        let gpt = Architecture { gpt: Some(heads), ..Architecture::new(Network::Gpt, &[], 65) };
        assert!(gpt.parameters().is_err());
    }

    #[test]
    fn a_configuration_is_built_as_it_is() {
        let layers =
            from_json(r#"[{"type": "Flatten"}, {"type": "Linear", "args": {"in_features": 64, "out_features": 10}}]"#);
        let architecture =
            Architecture { layers: Some(layers.unwrap()), ..Architecture::new(Network::Config, &[1, 8, 8], 10) };
        assert_eq!(architecture.parameters().unwrap(), 650);
        let gpt = from_json(r#"[{"type": "GPT", "args": {"vocab_size": 11, "block_size": 8, "n_embd": 16}}]"#).unwrap();
        let gpt = Architecture { layers: Some(gpt), ..Architecture::new(Network::Config, &[], 11) };
        let model = gpt.build(&manager().cpu().queue, &mut Generator::new(0)).unwrap();
        assert!(model.downcast_ref::<GPT>().is_some());
        assert_eq!(patch_size(28), 4);
        assert_eq!([8, 32, 64, 7, 13, 1].map(patch_size), [2, 4, 8, 7, 13, 1]);
    }
}

//! MobileNetV2 (Sandler et al., 2018), with torchvision's names: its weights can be loaded as they are.

use netcl_autograd::ops::elementwise::add;
use netcl_autograd::ops::reduce::mean;
use netcl_autograd::{Result, Tensor};

use crate::activation::ReLU6;
use crate::batch_norm::{BatchNorm2d, BatchNormOptions};
use crate::config::{Build, Configured};
use crate::conv::{Conv2d, Conv2dOptions, Padding};
use crate::dropout::Dropout;
use crate::init::{Fan, Gain, Init};
use crate::linear::{Linear, LinearOptions};
use crate::sequential::Sequential;
use crate::settings::{Settings, probability};
use crate::{Module, sequential};

/// Expansion, channels, blocks, stride of the first.
const STAGES: [(usize, f64, usize, usize); 7] = [
    (1, 16.0, 1, 1),
    (6, 24.0, 2, 2),
    (6, 32.0, 3, 2),
    (6, 64.0, 4, 2),
    (6, 96.0, 3, 1),
    (6, 160.0, 3, 2),
    (6, 320.0, 1, 1),
];

/// How a [`MobileNetV2`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = MobileNetV2Options::check)]
pub struct MobileNetV2Options {
    /// The length of the result.
    #[setting(default = 1000, least = 1)]
    pub num_classes: usize,
    /// Makes all layers wider or narrower.
    #[setting(default = 1.0, least = 0)]
    pub width_mult: f64,
    /// The probability with which a feature is dropped before the classifier, in training.
    #[setting(default = 0.2)]
    pub dropout: f64,
}

impl MobileNetV2Options {
    fn check(&self, layer: &'static str) -> Result<()> {
        probability(layer, "dropout", self.dropout)
    }
}

/// Inverted residual blocks for images `[N, 3, H, W]`; the result has one score per class. Weights start as torchvision's.
#[derive(Module)]
pub struct MobileNetV2 {
    features: Sequential,
    classifier: Sequential,
    #[module(settings)]
    settings: MobileNetV2Options,
}

/// A 1x1 convolution that widens, a 3x3 one for each channel, and a 1x1 one that narrows; bypassed where the shape stays.
#[derive(Module)]
struct InvertedResidual {
    conv: Sequential,
    #[module(skip)]
    bypassed: bool,
}

impl InvertedResidual {
    fn make(build: &mut Build<'_>, inputs: usize, outputs: usize, stride: usize, expansion: usize) -> Result<Self> {
        let wide = inputs.saturating_mul(expansion);
        let mut conv = Sequential::default();
        if expansion != 1 {
            conv.push(convolution(build, inputs, wide, 1, 1, 1)?);
        }
        let narrow = Conv2d::build(build, Conv2dOptions { bias: false, ..Conv2dOptions::new(wide, outputs, 1) })?;
        conv.push(convolution(build, wide, wide, 3, stride, wide)?);
        conv.push(narrow);
        conv.push(BatchNorm2d::build(build, BatchNormOptions::new(outputs))?);
        Ok(InvertedResidual { conv, bypassed: stride == 1 && inputs == outputs })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let result = self.conv.forward(input)?;
            if self.bypassed { add(input, &result) } else { Ok(result) }
        })
    }
}

/// A convolution, its norm and an activation.
fn convolution(
    build: &mut Build<'_>,
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    groups: usize,
) -> Result<Sequential> {
    let options = Conv2dOptions {
        stride: [stride; 2],
        padding: Padding::from(kernel / 2),
        groups,
        bias: false,
        ..Conv2dOptions::new(inputs, outputs, kernel)
    };
    let conv = Conv2d::build(build, options)?;
    Ok(sequential![conv, BatchNorm2d::build(build, BatchNormOptions::new(outputs))?, ReLU6])
}

/// The nearest multiple of 8, but not more than a tenth below.
fn divisible(channels: f64) -> usize {
    let rounded = (((channels + 4.0) as usize) / 8 * 8).max(8);
    if (rounded as f64) < 0.9 * channels { rounded.saturating_add(8) } else { rounded }
}

impl MobileNetV2 {
    fn make(build: &mut Build<'_>, settings: MobileNetV2Options) -> Result<MobileNetV2> {
        let MobileNetV2Options { num_classes, width_mult, dropout } = settings;
        let mut width = divisible(32.0 * width_mult);
        let last = divisible(1280.0 * width_mult.max(1.0));
        let mut features = sequential![convolution(build, 3, width, 3, 2, 1)?];
        for (expansion, channels, count, stride) in STAGES {
            let outputs = divisible(channels * width_mult);
            for i in 0..count {
                let stride = if i == 0 { stride } else { 1 };
                features.push(InvertedResidual::make(build, width, outputs, stride, expansion)?);
                width = outputs;
            }
        }
        features.push(convolution(build, width, last, 1, 1, 1)?);
        let linear = Linear::build(build, LinearOptions::new(last, num_classes))?;
        let classifier = sequential![Dropout::new(dropout)?, linear];
        let model = MobileNetV2 { features, classifier, settings };
        for (_, module) in model.named_modules() {
            if let Some(conv) = module.downcast_ref::<Conv2d>() {
                build.fill(conv.weight(), Init::KaimingNormal { gain: Gain::LeakyRelu(0.0), fan: Fan::Out })?;
            } else if let Some(linear) = module.downcast_ref::<Linear>() {
                build.fill(linear.weight(), Init::Normal { mean: 0.0, std: 0.01 })?;
                linear.bias().map_or(Ok(()), |bias| build.fill(bias, Init::Constant(0.0)))?;
            }
        }
        Ok(model)
    }

    /// The result for images: one score per class.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.classifier.forward(&mean(&self.features.forward(images)?, &[2, 3], false)?))
    }
}

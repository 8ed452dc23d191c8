//! Residual networks (He et al., 2015), with torchvision's names: its weights can be loaded as they are.

use netcl_autograd::ops::elementwise::{add, relu};
use netcl_autograd::ops::layout::flatten;
use netcl_autograd::ops::pool::{Window, adaptive_avg_pool2d, max_pool2d};
use netcl_autograd::{Queue, Result, Tensor};

use crate::batch_norm::{BatchNorm2d, BatchNormOptions};
use crate::config::{Build, Configured};
use crate::conv::{Conv2d, Conv2dOptions, Padding};
use crate::fuse::fuse_conv_bn;
use crate::init::{Fan, Gain, Init};
use crate::linear::{Linear, LinearOptions};
use crate::members;
use crate::settings::Settings;
use crate::{Member, MemberMut, Module};

/// How deep a [`ResNet`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Depth {
    /// 18 layers: two blocks of two convolutions at each of four sizes.
    D18,
    /// 34 layers: three, four, six and three blocks of two convolutions.
    D34,
    /// 50 layers: as many blocks of three convolutions, four times as wide at their ends.
    D50,
    /// 101 layers: 23 blocks at the third size.
    D101,
    /// 152 layers: 8 and 36 blocks at the second and the third size.
    D152,
}

crate::choices! {
    /// What a [`ResNet`] begins with.
    pub enum Stem {
        /// A 3x3 convolution of stride 1: for images of about 32 pixels.
        #[default]
        Cifar = "cifar",
        /// A 7x7 convolution of stride 2 and a 3x3 maximum of stride 2: for images of about 224 pixels.
        ImageNet = "imagenet",
    }
}

crate::choices! {
    /// What a [`ResNet`] is made of.
    pub enum BlockKind {
        /// Two convolutions of 3x3.
        #[default]
        BasicBlock = "BasicBlock",
        /// Convolutions of 1x1, 3x3 and 1x1, four times as wide at the end.
        Bottleneck = "Bottleneck",
    }
}

/// How a [`ResNet`] is made.
#[derive(Clone, Debug, Settings)]
pub struct ResNetOptions {
    /// What it is made of.
    pub block: BlockKind,
    /// The number of blocks at each of four sizes, each half of the one before.
    #[setting(least = 1)]
    pub layers: [usize; 4],
    /// The length of the result.
    #[setting(default = 10, least = 1)]
    pub num_classes: usize,
    /// The channels at the first size; there are twice as many at each further one.
    #[setting(default = 64, least = 1)]
    pub base_channels: usize,
    /// Whether convolutions are followed by batch norms, instead of having biases.
    #[setting(default = true)]
    pub use_batchnorm: bool,
    /// What it begins with.
    #[setting(default)]
    pub stem: Stem,
    /// The channels of the images.
    #[setting(default = 3, least = 1)]
    pub in_channels: usize,
}

impl ResNetOptions {
    /// The blocks of a known network, and the defaults.
    pub fn of(depth: Depth) -> ResNetOptions {
        let (block, layers) = match depth {
            Depth::D18 => (BlockKind::BasicBlock, [2, 2, 2, 2]),
            Depth::D34 => (BlockKind::BasicBlock, [3, 4, 6, 3]),
            Depth::D50 => (BlockKind::Bottleneck, [3, 4, 6, 3]),
            Depth::D101 => (BlockKind::Bottleneck, [3, 4, 23, 3]),
            Depth::D152 => (BlockKind::Bottleneck, [3, 8, 36, 3]),
        };
        ResNetOptions::new(block, layers)
    }
}

/// A residual network for images `[N, C, H, W]`; the result has one score per class.
///
/// Convolutions start normal with the deviation `sqrt(2 / outputs of an input)`, scales at 1, as in torchvision.
///
/// ```
/// use netcl_nn::autograd::{Generator, Tensor, manager};
/// use netcl_nn::{Build, Depth, Module, ResNet, ResNetOptions};
///
/// let queue = manager().cpu().queue;
/// let mut generator = Generator::new(1);
/// let mut model = ResNet::new_with(Build::on(&queue).generator(&mut generator), ResNetOptions::of(Depth::D18))?;
/// assert_eq!(model.num_parameters(), 11_173_962);
///
/// model.eval();
/// let scores = model.forward(&Tensor::from_host(&queue, &[0.5f32; 3 * 256], [1, 3, 16, 16])?)?;
/// assert_eq!(scores.shape()[..], [1, 10]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: Option<BatchNorm2d>,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
    fc: Box<dyn Module>,
    #[module(settings)]
    settings: ResNetOptions,
}

/// The convolutions at one size and what bypasses them: two of 3x3, or 1x1, 3x3 and 1x1.
struct Block {
    conv1: Conv2d,
    bn1: Option<BatchNorm2d>,
    conv2: Conv2d,
    bn2: Option<BatchNorm2d>,
    /// The third convolution of a bottleneck.
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm2d>,
    downsample: Option<Downsample>,
}

/// A 1x1 convolution and its normalisation: the bypass where the size changes. They are called `0` and `1`.
struct Downsample {
    conv: Conv2d,
    norm: Option<BatchNorm2d>,
}

/// What the parts of a network are made with.
struct Parts<'a, 'b> {
    build: &'a mut Build<'b>,
    batchnorm: bool,
    bottleneck: bool,
}

impl Parts<'_, '_> {
    fn conv(&mut self, inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Result<Conv2d> {
        let options = Conv2dOptions {
            stride: [stride; 2],
            padding: Padding::from(kernel / 2),
            // The norm after it has a bias of its own.
            bias: !self.batchnorm,
            ..Conv2dOptions::new(inputs, outputs, kernel)
        };
        Conv2d::build(self.build, options)
    }

    fn norm(&mut self, channels: usize) -> Result<Option<BatchNorm2d>> {
        self.batchnorm.then(|| BatchNorm2d::build(self.build, BatchNormOptions::new(channels))).transpose()
    }

    /// One block, from so many channels to `width` (or four times as many behind a bottleneck).
    fn block(&mut self, inputs: usize, width: usize, stride: usize) -> Result<Block> {
        let outputs = self.outputs(width);
        let downsample = if stride != 1 || inputs != outputs {
            Some(Downsample { conv: self.conv(inputs, outputs, 1, stride)?, norm: self.norm(outputs)? })
        } else {
            None
        };
        let [first, second] = if self.bottleneck { [(1, 1), (3, stride)] } else { [(3, stride), (3, 1)] };
        let (conv1, bn1) = (self.conv(inputs, width, first.0, first.1)?, self.norm(width)?);
        let (conv2, bn2) = (self.conv(width, width, second.0, second.1)?, self.norm(width)?);
        let (conv3, bn3) = match self.bottleneck {
            true => (Some(self.conv(width, outputs, 1, 1)?), self.norm(outputs)?),
            false => (None, None),
        };
        Ok(Block { conv1, bn1, conv2, bn2, conv3, bn3, downsample })
    }

    /// The blocks of one size.
    fn layer(&mut self, inputs: usize, width: usize, blocks: usize, stride: usize) -> Result<Vec<Block>> {
        let outputs = self.outputs(width);
        let shape = |i| if i == 0 { (inputs, stride) } else { (outputs, 1) };
        (0..blocks).map(shape).map(|(inputs, stride)| self.block(inputs, width, stride)).collect()
    }

    fn outputs(&self, width: usize) -> usize {
        if self.bottleneck { width.saturating_mul(4) } else { width }
    }
}

impl ResNet {
    /// torchvision's network of a depth: for 1000 classes of images of ImageNet's size.
    pub fn new(queue: &Queue, depth: Depth) -> Result<ResNet> {
        let options = ResNetOptions { num_classes: 1000, stem: Stem::ImageNet, ..ResNetOptions::of(depth) };
        ResNet::new_with(queue, options)
    }

    fn make(build: &mut Build<'_>, settings: ResNetOptions) -> Result<ResNet> {
        let ResNetOptions { block, layers, num_classes, base_channels: width, use_batchnorm, stem, in_channels } =
            settings;
        let mut parts =
            Parts { build: &mut *build, batchnorm: use_batchnorm, bottleneck: block == BlockKind::Bottleneck };
        let (kernel, stride) = if stem == Stem::ImageNet { (7, 2) } else { (3, 1) };
        let (conv1, bn1) = (parts.conv(in_channels, width, kernel, stride)?, parts.norm(width)?);
        let widths = [1, 2, 4, 8].map(|factor| width.saturating_mul(factor));
        let ends = widths.map(|width| parts.outputs(width));
        let layer1 = parts.layer(width, widths[0], layers[0], 1)?;
        let layer2 = parts.layer(ends[0], widths[1], layers[1], 2)?;
        let layer3 = parts.layer(ends[1], widths[2], layers[2], 2)?;
        let layer4 = parts.layer(ends[2], widths[3], layers[3], 2)?;
        let fc = Box::new(Linear::build(build, LinearOptions::new(ends[3], num_classes))?);
        let model = ResNet { conv1, bn1, layer1, layer2, layer3, layer4, fc, settings };
        for (_, module) in model.named_modules() {
            if let Some(conv) = module.downcast_ref::<Conv2d>() {
                build.fill(conv.weight(), Init::KaimingNormal { gain: Gain::Relu, fan: Fan::Out })?;
            }
        }
        Ok(model)
    }

    /// The result for images: one score per class.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.fc.forward(&self.features(images)?))
    }

    /// The last features, one row per image: what the classifier sees.
    pub fn features(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = relu(&convolved(&self.conv1, self.bn1.as_ref(), images)?)?;
        if self.settings.stem == Stem::ImageNet {
            x = max_pool2d(&x, &Window { stride: [2, 2], padding: [1, 1], ..Window::new([3, 3]) })?;
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            x = block.forward(&x)?;
        }
        flatten(&adaptive_avg_pool2d(&x, [1, 1])?, 1, -1)
    }

    /// The classifier: a [`Linear`], unless it was quantised.
    pub fn fc(&self) -> &dyn Module {
        &*self.fc
    }

    /// Folds every batch normalisation into the convolution before it ([`fuse_conv_bn`]): the same results with fewer launches,
    /// but nothing to train any more.
    ///
    /// # Errors
    /// In training mode; nothing has changed then.
    pub fn fuse(&mut self) -> Result<()> {
        let layers = [&mut self.layer1, &mut self.layer2, &mut self.layer3, &mut self.layer4];
        let mut pairs = vec![(&mut self.conv1, &mut self.bn1)];
        for block in layers.into_iter().flatten() {
            let Block { conv1, bn1, conv2, bn2, conv3, bn3, downsample } = block;
            pairs.extend([(conv1, bn1), (conv2, bn2)]);
            pairs.extend(conv3.as_mut().map(|conv3| (conv3, bn3)));
            pairs.extend(downsample.as_mut().map(|Downsample { conv, norm }| (conv, norm)));
        }
        let fold = |(conv, norm): &(&mut Conv2d, &mut Option<BatchNorm2d>)| {
            norm.as_ref().map(|norm| fuse_conv_bn(conv, norm)).transpose()
        };
        let folded = pairs.iter().map(fold).collect::<Result<Vec<_>>>()?;
        for ((conv, norm), folded) in pairs.into_iter().zip(folded) {
            if let Some(folded) = folded {
                *conv = folded;
                *norm = None;
            }
        }
        Ok(())
    }
}

/// A convolution and its normalisation, unless that has been folded.
fn convolved(conv: &Conv2d, norm: Option<&BatchNorm2d>, x: &Tensor) -> Result<Tensor> {
    let x = conv.forward(x)?;
    norm.map_or_else(|| Ok(x.clone()), |norm| norm.forward(&x))
}

impl Module for Block {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let mut x = relu(&convolved(&self.conv1, self.bn1.as_ref(), input)?)?;
            x = convolved(&self.conv2, self.bn2.as_ref(), &x)?;
            if let Some(conv3) = &self.conv3 {
                x = convolved(conv3, self.bn3.as_ref(), &relu(&x)?)?;
            }
            match &self.downsample {
                Some(downsample) => relu(&add(&x, &downsample.forward(input)?)?),
                None => relu(&add(&x, input)?),
            }
        })
    }

    fn kind(&self) -> &'static str {
        if self.conv3.is_some() { "Bottleneck" } else { "BasicBlock" }
    }

    members! { children: conv1, bn1, conv2, bn2, conv3, bn3, downsample }
}

impl Module for Downsample {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || convolved(&self.conv, self.norm.as_ref(), input))
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        see("0", Member::Child(&self.conv));
        if let Some(norm) = &self.norm {
            see("1", Member::Child(norm));
        }
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        see("0", MemberMut::Child(&mut self.conv));
        if let Some(norm) = &mut self.norm {
            see("1", MemberMut::Child(norm));
        }
    }

    fn kind(&self) -> &'static str {
        "Sequential"
    }
}

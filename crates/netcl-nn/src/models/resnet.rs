//! Residual networks (He et al., 2015), with torchvision's names: its weights can be loaded as they are.

use netcl_autograd::ops::conv::{Convolution, same};
use netcl_autograd::ops::elementwise::{add, relu};
use netcl_autograd::ops::layout::flatten;
use netcl_autograd::ops::pool::{Window, adaptive_avg_pool2d, max_pool2d};
use netcl_autograd::{DType, Generator, Queue, Result, Tensor};

use crate::batch_norm::{BatchNorm2d, BatchNormOptions};
use crate::config::Build;
use crate::conv::Conv2d;
use crate::fuse::fuse_conv_bn;
use crate::init::{Fan, Gain, Init};
use crate::linear::{Linear, LinearOptions};
use crate::members;
use crate::module::{Member, MemberMut, Module, print_as_module};

/// How deep a [`ResNet`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Depth {
    /// 18 layers: two blocks of two convolutions at each of four sizes.
    D18,
    /// 34 layers: three, four, six and three blocks of two convolutions.
    D34,
    /// 50 layers: as many blocks of three convolutions, four times as wide at their ends.
    D50,
}

/// What a [`ResNet`] begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stem {
    /// A 7x7 convolution of stride 2 and a 3x3 maximum of stride 2: for images of about 224 pixels.
    #[default]
    ImageNet,
    /// A 3x3 convolution of stride 1: for images of about 32 pixels.
    Cifar,
}

/// How a [`ResNet`] is made.
#[derive(Debug)]
pub struct ResNetOptions<'g> {
    /// What it begins with.
    pub stem: Stem,
    /// The channels of the images.
    pub in_channels: usize,
    /// The length of the result.
    pub num_classes: usize,
    /// The parameters' dtype.
    pub dtype: DType,
    /// Where the first weights come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for ResNetOptions<'_> {
    fn default() -> Self {
        let stem = Stem::default();
        ResNetOptions { stem, in_channels: 3, num_classes: 1000, dtype: DType::F32, generator: None }
    }
}

/// A residual network for images `[N, C, H, W]`; the result has one score per class.
///
/// Convolutions start normal with the deviation `sqrt(2 / outputs of an input)`, scales at 1, as in torchvision.
///
/// ```
/// use netcl_nn::autograd::{Generator, Tensor, manager};
/// use netcl_nn::{Depth, Module, ResNet, ResNetOptions, Stem};
///
/// let queue = manager().cpu().queue;
/// let options = ResNetOptions {
///     stem: Stem::Cifar,
///     num_classes: 10,
///     generator: Some(&mut Generator::new(1)),
///     ..Default::default()
/// };
/// let mut model = ResNet::new_with(&queue, Depth::D18, options)?;
/// assert_eq!(model.num_parameters(), 11_173_962);
///
/// model.eval();
/// let scores = model.forward(&Tensor::from_host(&queue, &[0.5f32; 3 * 256], [1, 3, 16, 16])?)?;
/// assert_eq!(scores.shape()[..], [1, 10]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct ResNet {
    conv1: Conv2d,
    bn1: Option<BatchNorm2d>,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
    fc: Linear,
    stem: Stem,
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
struct Parts<'a> {
    queue: &'a Queue,
    dtype: DType,
    generator: Option<&'a mut Generator>,
}

impl Parts<'_> {
    fn conv(&mut self, inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Result<Conv2d> {
        let padding = same([kernel / 2; 2]);
        let how = Convolution { stride: [stride; 2], padding, ..Default::default() };
        let init = Init::KaimingNormal { gain: Gain::Relu, fan: Fan::Out };
        let shape = [outputs, inputs, kernel, kernel];
        Conv2d::with_init(self.queue, shape, how, init, self.dtype, self.generator.as_deref_mut())
    }

    fn norm(&self, channels: usize) -> Result<Option<BatchNorm2d>> {
        let options = BatchNormOptions { dtype: self.dtype, ..Default::default() };
        BatchNorm2d::new_with(self.queue, channels, options).map(Some)
    }

    /// One block, from so many channels to `width` (or four times as many behind a bottleneck).
    fn block(&mut self, inputs: usize, width: usize, stride: usize, bottleneck: bool) -> Result<Block> {
        let outputs = if bottleneck { 4 * width } else { width };
        let [first, second] = if bottleneck { [(1, 1), (3, stride)] } else { [(3, stride), (3, 1)] };
        let conv1 = self.conv(inputs, width, first.0, first.1)?;
        let conv2 = self.conv(width, width, second.0, second.1)?;
        let conv3 = bottleneck.then(|| self.conv(width, outputs, 1, 1)).transpose()?;
        let bypassed = stride != 1 || inputs != outputs;
        let downsample = bypassed
            .then(|| {
                Ok::<_, netcl_autograd::Error>(Downsample {
                    conv: self.conv(inputs, outputs, 1, stride)?,
                    norm: self.norm(outputs)?,
                })
            })
            .transpose()?;
        let bn3 = if bottleneck { self.norm(outputs)? } else { None };
        Ok(Block { conv1, bn1: self.norm(width)?, conv2, bn2: self.norm(width)?, conv3, bn3, downsample })
    }

    /// The blocks of one size, of which the first may halve it.
    fn layer(
        &mut self,
        inputs: usize,
        width: usize,
        blocks: usize,
        stride: usize,
        bottleneck: bool,
    ) -> Result<Vec<Block>> {
        let outputs = if bottleneck { 4 * width } else { width };
        let mut layer = vec![self.block(inputs, width, stride, bottleneck)?];
        for _ in 1..blocks {
            layer.push(self.block(outputs, width, 1, bottleneck)?);
        }
        Ok(layer)
    }
}

impl ResNet {
    /// A float32 network for 1000 classes of ImageNet's size.
    pub fn new(queue: &Queue, depth: Depth) -> Result<ResNet> {
        ResNet::new_with(queue, depth, ResNetOptions::default())
    }

    /// A network with another stem, number of channels or classes, dtype or generator.
    pub fn new_with(queue: &Queue, depth: Depth, options: ResNetOptions<'_>) -> Result<ResNet> {
        let ResNetOptions { stem, in_channels, num_classes, dtype, generator } = options;
        let mut parts = Parts { queue, dtype, generator };
        let (blocks, bottleneck) = match depth {
            Depth::D18 => ([2, 2, 2, 2], false),
            Depth::D34 => ([3, 4, 6, 3], false),
            Depth::D50 => ([3, 4, 6, 3], true),
        };
        let wider = if bottleneck { 4 } else { 1 };
        let conv1 = match stem {
            Stem::ImageNet => parts.conv(in_channels, 64, 7, 2)?,
            Stem::Cifar => parts.conv(in_channels, 64, 3, 1)?,
        };
        let bn1 = parts.norm(64)?;
        let layer1 = parts.layer(64, 64, blocks[0], 1, bottleneck)?;
        let layer2 = parts.layer(64 * wider, 128, blocks[1], 2, bottleneck)?;
        let layer3 = parts.layer(128 * wider, 256, blocks[2], 2, bottleneck)?;
        let layer4 = parts.layer(256 * wider, 512, blocks[3], 2, bottleneck)?;
        let build = Build::on(queue).dtype(dtype).generator(parts.generator);
        let fc = Linear::new_with(build, LinearOptions::new(512 * wider, num_classes))?;
        Ok(ResNet { conv1, bn1, layer1, layer2, layer3, layer4, fc, stem })
    }

    /// The last features, one row per image: what the classifier sees.
    pub fn features(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = relu(&convolved(&self.conv1, self.bn1.as_ref(), images)?)?;
        if self.stem == Stem::ImageNet {
            x = max_pool2d(&x, &Window { stride: [2, 2], padding: [1, 1], ..Window::new([3, 3]) })?;
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            x = block.forward(&x)?;
        }
        flatten(&adaptive_avg_pool2d(&x, [1, 1])?, 1, -1)
    }

    /// The classifier.
    pub fn fc(&self) -> &Linear {
        &self.fc
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

impl Module for ResNet {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.fc.forward(&self.features(input)?)
    }

    members! { children: conv1, bn1, layer1, layer2, layer3, layer4, fc }
}

impl Module for Block {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut x = relu(&convolved(&self.conv1, self.bn1.as_ref(), input)?)?;
        x = convolved(&self.conv2, self.bn2.as_ref(), &x)?;
        if let Some(conv3) = &self.conv3 {
            x = convolved(conv3, self.bn3.as_ref(), &relu(&x)?)?;
        }
        match &self.downsample {
            Some(downsample) => relu(&add(&x, &downsample.forward(input)?)?),
            None => relu(&add(&x, input)?),
        }
    }

    fn kind(&self) -> &'static str {
        if self.conv3.is_some() { "Bottleneck" } else { "BasicBlock" }
    }

    members! { children: conv1, bn1, conv2, bn2, conv3, bn3, downsample }
}

impl Module for Downsample {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        convolved(&self.conv, self.norm.as_ref(), input)
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

print_as_module!(ResNet);

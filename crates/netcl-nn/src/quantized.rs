//! Linear layers with weights of 8 or 4 bits, for inference: half or a quarter of the memory of 16-bit weights, and of the time that
//! reading them takes.

use netcl_autograd::ops::layout::expand;
use netcl_autograd::ops::quantized::{Packing, QuantizedWeight, quantized_linear};
use netcl_autograd::{DType, Error, Result, Tensor};

use crate::Module;
use crate::config::Build;
use crate::init::Init;
use crate::linear::Linear;
use crate::settings::Settings;
use crate::walk::joined;

/// `x @ weight.T + bias` over the last axis, with a weight that was rounded to 8 or 4 bits.
///
/// All tensors are buffers: they are saved, loaded and moved, but not trained; gradients flow to the input. A new layer holds zeros, for a
/// state to be loaded into; [`QuantizedLinear::from_linear`] and [`quantize`] make one of a trained layer.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Linear, Module, QuantizedLinear};
///
/// let queue = manager().cpu().queue;
/// let layer = QuantizedLinear::from_linear(&Linear::new(&queue, 64, 5)?, 4, 32)?;
/// assert_eq!(layer.forward(&Tensor::zeros(&queue, [2, 64])?)?.shape()[..], [2, 5]);
/// assert_eq!(layer.to_string(), "QuantizedLinear(in_features=64, out_features=5, bits=4, group=32, bias=True)");
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct QuantizedLinear {
    #[module(buffer)]
    weight: Tensor,
    #[module(buffer)]
    scale: Tensor,
    #[module(buffer)]
    bias: Option<Tensor>,
    #[module(settings)]
    settings: QuantizedLinearOptions,
}

/// How a [`QuantizedLinear`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = QuantizedLinearOptions::fits)]
pub struct QuantizedLinearOptions {
    /// The length of the input's last axis.
    pub in_features: usize,
    /// The length of the result's last axis.
    pub out_features: usize,
    /// Bits of a weight: 8 with a scale for each output, or 4 with one for each group of inputs.
    #[setting(default = 8)]
    pub bits: usize,
    /// Inputs that share a scale with 4 bits: 32, 64 or 128.
    #[setting(default = 64)]
    pub group: usize,
    /// Whether a bias is added.
    #[setting(default = true)]
    pub bias: bool,
}

impl QuantizedLinearOptions {
    fn fits(&self, layer: &'static str) -> Result<()> {
        self.packing().map(|_| ()).map_err(|error| Error::argument(layer, error.to_string()))
    }

    fn packing(&self) -> Result<Packing> {
        Ok(Packing::new(self.bits, self.group)?)
    }
}

impl QuantizedLinear {
    fn make(build: &mut Build<'_>, settings: QuantizedLinearOptions) -> Result<QuantizedLinear> {
        let QuantizedLinearOptions { in_features, out_features, bias, .. } = settings;
        let (packing, zeros) = (settings.packing()?, Init::Constant(0.0));
        let words = [out_features, packing.words(in_features)];
        let weight = match build.is_hollow() {
            true => expand(&Tensor::full(build.queue(), (), DType::I32, 0.0)?, words)?,
            false => Tensor::full(build.queue(), words, DType::I32, 0.0)?,
        };
        let scale = build.buffer(zeros, [out_features, packing.scales(in_features)])?;
        let bias = bias.then(|| build.buffer(zeros, [out_features])).transpose()?;
        Ok(QuantizedLinear { weight, scale, bias, settings })
    }

    /// The layer with its weight rounded to 8 bits, or to 4 with a scale for each `group` of 32, 64 or 128 inputs.
    ///
    /// # Errors
    /// For other numbers, and for weights that are infinite or NaN.
    pub fn from_linear(linear: &Linear, bits: usize, group: usize) -> Result<QuantizedLinear> {
        QuantizedLinear::from_parameters(linear.weight(), linear.bias(), bits, group)
    }

    /// The same for the weight and bias of a [`Linear`].
    ///
    /// # Errors
    /// As [`QuantizedLinear::from_linear`], and if the weight is no matrix.
    pub fn from_parameters(
        weight: &Tensor,
        bias: Option<&Tensor>,
        bits: usize,
        group: usize,
    ) -> Result<QuantizedLinear> {
        let size = weight.shape().clone();
        let weight = QuantizedWeight::quantize(weight.raw(), Packing::new(bits, group)?)?;
        let bias = bias.map(|bias| Ok::<_, Error>(bias.raw().duplicate()?.into())).transpose()?;
        let size = QuantizedLinearOptions::new(size[1], size[0]);
        let settings = QuantizedLinearOptions { bits, group, bias: bias.is_some(), ..size };
        Ok(QuantizedLinear {
            weight: weight.packed().clone().into(),
            scale: weight.scale().clone().into(),
            bias,
            settings,
        })
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let features = self.settings.in_features;
            if input.shape().last() != Some(&features) {
                let layer = format!("QuantizedLinear(in_features={features})");
                return Err(Error::input(layer, format!("(..., {features})"), input.shape()));
            }
            quantized_linear(input, &self.weight, &self.scale, self.bias.as_ref(), self.settings.packing()?)
        })
    }
}

/// What [`quantize`] does.
#[derive(Clone, Debug)]
pub struct Quantization {
    /// Bits of a weight: 8 or 4.
    pub bits: usize,
    /// Inputs that share a scale with 4 bits: 32, 64 or 128.
    pub group: usize,
    /// Dotted names of layers that stay as they are, or of modules around them.
    pub skip: Vec<String>,
}

/// 8 bits, all layers.
impl Default for Quantization {
    fn default() -> Self {
        Quantization { bits: 8, group: 64, skip: Vec::new() }
    }
}

/// Puts a [`QuantizedLinear`] in the place of every [`Linear`] of a model, for inference, and returns their names.
///
/// Layers of netcl hold theirs in boxes ([`place`](trait.Module.html#method.place)), and so should yours: `Box<dyn Module>`. Weights that
/// are no `Linear`'s stay: convolutions, embeddings, a head tied to one, `in_proj_weight` of `MultiheadAttention`.
///
/// ```
/// use netcl_nn::autograd::manager;
/// use netcl_nn::{Linear, Quantization, ReLU, quantize, sequential};
///
/// let queue = manager().cpu().queue;
/// let mut model = sequential![Linear::new(&queue, 64, 32)?, ReLU, Linear::new(&queue, 32, 2)?];
/// let names = quantize(&mut model, &Quantization { bits: 4, skip: vec!["2".into()], ..Default::default() })?;
/// assert_eq!(names, ["0"]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
///
/// # Errors
/// For a layer in a field of type `Linear`, which nothing else can be put into; for names to skip that there are not; and what
/// [`QuantizedLinear::from_linear`] refuses. The model is as it was then.
pub fn quantize<M: Module + ?Sized>(model: &mut M, options: &Quantization) -> Result<Vec<String>> {
    const OP: &str = "quantize";
    let Quantization { bits, group, skip } = options;
    Packing::new(*bits, *group)?;
    let (mut made, mut names) = (Vec::new(), Vec::new());
    model.apply(&mut |name, module| {
        let Some(linear) = module.downcast_ref::<Linear>() else { return Ok(()) };
        let inside =
            |outer: &String| name.strip_prefix(&**outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        names.push(name.to_owned());
        if skip.iter().any(inside) {
            return Ok(());
        }
        let layer = QuantizedLinear::from_linear(linear, *bits, *group).map_err(|error| named(name, &error))?;
        if module.place().is_none() {
            let what = format!("{name} is a field of type Linear; make it a Box<dyn Module>, or name it in skip");
            return Err(Error::argument(OP, what));
        }
        made.push((name.to_owned(), layer));
        Ok(())
    })?;
    let known = |outer: &&String| !names.iter().any(|name| name == *outer || name.starts_with(&joined(outer, "")));
    if let Some(unknown) = skip.iter().find(known) {
        let what = format!("skip names {unknown:?}, where there is no Linear; there are {}", names.join(", "));
        return Err(Error::argument(OP, what));
    }
    let replaced = made.iter().map(|(name, _)| name.clone()).collect();
    let mut made = made.into_iter().peekable();
    // In the order of the first walk.
    model.apply(&mut |name, module| {
        if let Some((_, layer)) = made.next_if(|(next, _)| next == name)
            && let Some(place) = module.place()
        {
            *place = Box::new(layer);
        }
        Ok(())
    })?;
    Ok(replaced)
}

/// An error of a layer with its name.
fn named(name: &str, error: &Error) -> Error {
    Error::argument("quantize", format!("{name}: {error}"))
}

//! Batch normalisations folded into the convolutions before them, for inference.

use netcl_autograd::ops::elementwise::{add, div, mul, sqrt, sub};
use netcl_autograd::ops::layout::reshape;
use netcl_autograd::{Error, Result, Tensor, no_grad};

use crate::batch_norm::BatchNorm2d;
use crate::config::Configured;
use crate::conv::Conv2d;
use crate::module::Module;

/// The one convolution that a convolution and a batch normalisation in evaluation come down to.
///
/// With the averages m and v, the scale g and the shift b, `(conv(x) - m) / sqrt(v + eps) * g + b` is a convolution whose
/// filters are multiplied by `g / sqrt(v + eps)`. The result has parameters of its own and always a bias.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{BatchNorm2d, Conv2d, Module, fuse_conv_bn};
///
/// let queue = manager().cpu().queue;
/// let (conv, mut norm) = (Conv2d::new(&queue, 1, 2, 1)?, BatchNorm2d::new(&queue, 2)?);
/// norm.eval();
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0], [1, 1, 2, 2])?;
/// let apart = norm.forward(&conv.forward(&x)?)?.to_host::<f32>()?;
/// let folded = fuse_conv_bn(&conv, &norm)?.forward(&x)?.to_host::<f32>()?;
/// assert!(apart.iter().zip(&folded).all(|(a, b)| (a - b).abs() < 1e-5));
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
///
/// # Errors
/// If the normalisation is still training, keeps no averages, or is of another number of channels.
pub fn fuse_conv_bn(conv: &Conv2d, norm: &BatchNorm2d) -> Result<Conv2d> {
    const OP: &str = "fuse_conv_bn";
    if Module::training(norm) {
        return Err(Error::argument(OP, "the normalisation is in training mode; call eval() first"));
    }
    let Some((mean, var)) = norm.running_mean().zip(norm.running_var()) else {
        let what = "the normalisation keeps no averages; make it with track_running_stats";
        return Err(Error::argument(OP, what));
    };
    let settings = conv.options()?;
    let channels = settings.out_channels;
    if norm.num_features() != channels {
        let what = format!("{channels} filters are followed by a normalisation of {} channels", norm.num_features());
        return Err(Error::argument(OP, what));
    }
    let averages = Averages { mean, var, weight: norm.weight(), bias: norm.bias(), eps: norm.eps() };
    let (weight, bias) = fold_batch_norm(conv.weight(), conv.bias(), 0, &averages)?;
    Ok(Conv2d::of(weight, Some(bias), settings))
}

/// What a batch normalisation in evaluation computes with, one element per channel.
#[derive(Clone, Copy, Debug)]
pub struct Averages<'t> {
    /// The mean that is subtracted.
    pub mean: &'t Tensor,
    /// The variance that is divided by the root of.
    pub var: &'t Tensor,
    /// What the normalised values are multiplied by.
    pub weight: Option<&'t Tensor>,
    /// What is added to them afterwards.
    pub bias: Option<&'t Tensor>,
    /// What is added to variances.
    pub eps: f64,
}

/// The weight and bias with which a layer does the work of the batch normalisation after it, too. `axis` is that of the outputs
/// in the weight: 0 for linear layers and convolutions, 1 for transposed ones of one group.
///
/// # Errors
/// If the shapes do not fit.
pub fn fold_batch_norm(
    weight: &Tensor,
    bias: Option<&Tensor>,
    axis: usize,
    norm: &Averages<'_>,
) -> Result<(Tensor, Tensor)> {
    let _scope = no_grad();
    let mut scale = div(1.0, &sqrt(&add(norm.var, norm.eps)?)?)?;
    if let Some(weight) = norm.weight {
        scale = mul(weight, &scale)?;
    }
    let shift = match bias {
        Some(bias) => sub(bias, norm.mean)?,
        None => mul(norm.mean, -1.0)?,
    };
    let mut shift = mul(&shift, &scale)?;
    if let Some(bias) = norm.bias {
        shift = add(&shift, bias)?;
    }
    let channels: Vec<usize> = (0..weight.ndim()).map(|i| if i == axis { scale.size() } else { 1 }).collect();
    Ok((mul(weight, &reshape(&scale, channels)?)?, shift))
}

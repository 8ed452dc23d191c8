//! Pooling over windows of images and lines.

use std::sync::{Arc, LazyLock};

use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::Graph;
use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor as Raw, reshape as raw_reshape};
use netcl_ops as ops;
use netcl_ops::pool::{self as raw, MaxPooled};
pub use netcl_ops::pool::{Averaging, Window};

use super::elementwise::{ExprOp, pow};
use super::linear_map::LinearMap;
use crate::autocast;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::trace::{self, Attr};

/// The settings that a trace notes.
fn noted<const N: usize>(window: &Window<N>, averaging: Averaging) -> [(&'static str, Attr); 7] {
    [
        ("kernel", window.kernel[..].into()),
        ("stride", window.stride[..].into()),
        ("padding", window.padding[..].into()),
        ("dilation", window.dilation[..].into()),
        ("ceil_mode", window.ceil_mode.into()),
        ("count_include_pad", averaging.count_include_pad.into()),
        ("divisor", averaging.divisor.unwrap_or(0).into()),
    ]
}

/// The elements of each image or line that the maximum was found at.
fn chosen(x: &Raw, indices: &IndexTensor, leading: usize) -> netcl_core::Result<Raw> {
    let flat = |raw: &Raw| -> netcl_core::Result<Raw> {
        let (outer, inner) = raw.shape().split_at(leading);
        raw_reshape(raw, Shape::from([outer.iter().product(), inner.iter().product()]))
    };
    let flat_indices = IndexTensor::from_tensor(flat(indices.tensor())?)?;
    raw_reshape(&ops::gather(&flat(x)?, 1, &flat_indices)?, indices.tensor().shape().clone())
}

/// Records a maximum: a linear choice, once it is known where the largest elements were.
#[track_caller]
fn record_max(
    names: [&'static str; 2],
    x: &Tensor,
    pooled: MaxPooled,
    spatial: usize,
    backward: impl Fn(&Raw, &IndexTensor) -> netcl_core::Result<Raw> + Send + Sync + 'static,
) -> Result<Tensor> {
    let leading = x.ndim() - spatial;
    let (at, again) = (pooled.indices.clone(), pooled.indices);
    let map = LinearMap::new(names, move |raw| chosen(raw, &at, leading), move |grad| backward(grad, &again));
    map.record(x, pooled.output)
}

/// The largest element of each window of `[N, C, H, W]` (or `[C, H, W]`).
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::pool::{Window, max_pool2d}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 4.0, 3.0], [1, 1, 2, 2])?.with_grad();
/// max_pool2d(&x, &Window::new([2, 2]))?.sum((), false)?.backward()?;
/// assert_eq!(x.grad().unwrap().to_host::<f32>()?, [0.0, 0.0, 1.0, 0.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn max_pool2d(x: &Tensor, window: &Window<2>) -> Result<Tensor> {
    let pooled = raw::max_pool2d(x.raw(), window)?;
    let (shape, window) = (x.shape().clone(), *window);
    trace::settings("max_pool2d", || noted(&window, Averaging::default()));
    record_max(["max_pool2d", "max_pool2d_backward"], x, pooled, 2, move |grad, indices| {
        raw::max_pool2d_backward(grad, &shape, indices, &window)
    })
}

/// The largest element of each window of `[N, C, L]` (or `[C, L]`).
#[track_caller]
pub fn max_pool1d(x: &Tensor, window: &Window<1>) -> Result<Tensor> {
    let pooled = raw::max_pool1d(x.raw(), window)?;
    let (shape, window) = (x.shape().clone(), *window);
    trace::settings("max_pool1d", || noted(&window, Averaging::default()));
    record_max(["max_pool1d", "max_pool1d_backward"], x, pooled, 1, move |grad, indices| {
        raw::max_pool1d_backward(grad, &shape, indices, &window)
    })
}

/// The largest element of windows chosen so that the output has the given height and width.
#[track_caller]
pub fn adaptive_max_pool2d(x: &Tensor, output: [usize; 2]) -> Result<Tensor> {
    let pooled = raw::adaptive_max_pool2d(x.raw(), output)?;
    let shape = x.shape().clone();
    record_max(["adaptive_max_pool2d", "adaptive_max_pool2d_backward"], x, pooled, 2, move |grad, indices| {
        raw::adaptive_max_pool2d_backward(grad, &shape, indices)
    })
}

/// The largest element of windows chosen so that the output has the given length.
#[track_caller]
pub fn adaptive_max_pool1d(x: &Tensor, output: usize) -> Result<Tensor> {
    let pooled = raw::adaptive_max_pool1d(x.raw(), output)?;
    let shape = x.shape().clone();
    record_max(["adaptive_max_pool1d", "adaptive_max_pool1d_backward"], x, pooled, 1, move |grad, indices| {
        raw::adaptive_max_pool1d_backward(grad, &shape, indices)
    })
}

/// The mean of each window of `[N, C, H, W]` (or `[C, H, W]`).
#[track_caller]
pub fn avg_pool2d(x: &Tensor, window: &Window<2>, averaging: Averaging) -> Result<Tensor> {
    let (shape, window) = (x.shape().clone(), *window);
    trace::settings("avg_pool2d", || noted(&window, averaging));
    LinearMap::new(
        ["avg_pool2d", "avg_pool2d_backward"],
        move |x| raw::avg_pool2d(x, &window, averaging),
        move |grad| raw::avg_pool2d_backward(grad, &shape, &window, averaging),
    )
    .apply(x)
}

/// The mean of each window of `[N, C, L]` (or `[C, L]`).
#[track_caller]
pub fn avg_pool1d(x: &Tensor, window: &Window<1>, averaging: Averaging) -> Result<Tensor> {
    let (shape, window) = (x.shape().clone(), *window);
    trace::settings("avg_pool1d", || noted(&window, averaging));
    LinearMap::new(
        ["avg_pool1d", "avg_pool1d_backward"],
        move |x| raw::avg_pool1d(x, &window, averaging),
        move |grad| raw::avg_pool1d_backward(grad, &shape, &window, averaging),
    )
    .apply(x)
}

/// The mean of windows chosen so that the output has the given height and width.
#[track_caller]
pub fn adaptive_avg_pool2d(x: &Tensor, output: [usize; 2]) -> Result<Tensor> {
    let shape = x.shape().clone();
    LinearMap::new(
        ["adaptive_avg_pool2d", "adaptive_avg_pool2d_backward"],
        move |x| raw::adaptive_avg_pool2d(x, output),
        move |grad| raw::adaptive_avg_pool2d_backward(grad, &shape),
    )
    .apply(x)
}

/// The mean of windows chosen so that the output has the given length.
#[track_caller]
pub fn adaptive_avg_pool1d(x: &Tensor, output: usize) -> Result<Tensor> {
    let shape = x.shape().clone();
    LinearMap::new(
        ["adaptive_avg_pool1d", "adaptive_avg_pool1d_backward"],
        move |x| raw::adaptive_avg_pool1d(x, output),
        move |grad| raw::adaptive_avg_pool1d_backward(grad, &shape),
    )
    .apply(x)
}

/// The p-norm of each window of `[N, C, H, W]` (or `[C, H, W]`): `(sum of x^p)^(1/p)`, without magnitudes, as in PyTorch. Where a
/// sum is zero, so is its gradient.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::pool::{Window, lp_pool2d}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32, 4.0], [1, 1, 2])?;
/// assert_eq!(lp_pool2d(&x, 2.0, &Window::new([1, 2]))?.to_host::<f32>()?, [5.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn lp_pool2d(x: &Tensor, p: f64, window: &Window<2>) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("lp_pool2d", [x]) {
        return lp_pool2d(&casts.of(x)?, p, window);
    }
    check_norm("lp_pool2d", p)?;
    root(&avg_pool2d(&pow(x, p)?, window, Averaging::default())?, p, window.kernel.iter().product())
}

/// The p-norm of each window of `[N, C, L]` (or `[C, L]`); see [`lp_pool2d`].
#[track_caller]
pub fn lp_pool1d(x: &Tensor, p: f64, window: &Window<1>) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("lp_pool1d", [x]) {
        return lp_pool1d(&casts.of(x)?, p, window);
    }
    check_norm("lp_pool1d", p)?;
    root(&avg_pool1d(&pow(x, p)?, window, Averaging::default())?, p, window.kernel[0])
}

fn check_norm(op: &'static str, p: f64) -> Result<()> {
    if p.is_finite() && p != 0.0 {
        return Ok(());
    }
    Err(Error::argument(
        op,
        format!("the norm is {p}, but must be a finite number other than 0; max_pool2d is that of infinity"),
    ))
}

/// `(mean * count)^(1/p)`. The slope at 0 would be infinite, and is 0.
#[track_caller]
fn root(means: &Tensor, p: f64, count: usize) -> Result<Tensor> {
    /// Scalars: the count, 1 / p.
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let sum = g.input(0) * g.scalar(0);
        ExprOp::new("lp_pool_root", g.finish(&[sum.eq(0.0).select(0.0, sum.pow(g.scalar(1)))]))
    });
    OP.apply(&[means], &[(count as f64).into(), (1.0 / p).into()])
}

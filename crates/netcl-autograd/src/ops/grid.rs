//! Images sampled at the points of a grid, and grids of affine maps. Everything is made of recordable ops, so that images and grids
//! have gradients of any order; gradients of pixels are summed in a fixed order.

use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::shape::Shape;
use netcl_ops as ops;

use super::elementwise::{abs, add, cast, clamp, floor, indicator, mul, round, sub, where_};
use super::indexing::gather;
use super::layout::{cat, expand, reshape, select, transpose};
use super::matmul::matmul;
use crate::autocast;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// What a point between pixels takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridMode {
    /// A mean of the four pixels around it.
    #[default]
    Bilinear,
    /// The nearest pixel; the grid has no gradient.
    Nearest,
    /// A cubic of the sixteen pixels around it.
    Bicubic,
}

/// What lies outside of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    #[default]
    Zeros,
    /// The nearest pixel of the border.
    Border,
    /// The image, mirrored at its border again and again.
    Reflection,
}

/// Points `[N, H, W, 2]` (x, then y; from -1 to 1) of an image of the given height and width under the affine maps `theta`
/// `[N, 2, 3]`: what [`grid_sample`] takes.
///
/// With `align_corners` -1 and 1 are the centres of the pixels at the corners, else the corners themselves.
#[track_caller]
pub fn affine_grid(theta: &Tensor, size: [usize; 2], align_corners: bool) -> Result<Tensor> {
    let op = "affine_grid";
    if let Some(casts) = autocast::enter(op, [theta]) {
        return affine_grid(&casts.of(theta)?, size, align_corners);
    }
    let &[images, 2, 3] = &theta.shape()[..] else {
        return Err(Error::shape(op, theta.shape(), "theta has shape [N, 2, 3]"));
    };
    let [height, width] = size;
    let line = |n: usize| -> Result<Tensor> {
        let steps = ops::arange(theta.queue(), 0.0, n as f64, 1.0, theta.dtype().accumulator())?;
        let (scale, first) = match n {
            0 | 1 => (0.0, 0.0),
            _ if align_corners => (2.0 / (n - 1) as f64, -1.0),
            _ => (2.0 / n as f64, 1.0 / n as f64 - 1.0),
        };
        Ok(ops::add(&ops::mul(&steps, scale)?, first)?.into())
    };
    let plane = [height, width, 1];
    let x = expand(&reshape(&line(width)?, [1, width, 1])?, plane)?;
    let y = expand(&reshape(&line(height)?, [height, 1, 1])?, plane)?;
    let one = Tensor::full(theta.queue(), plane, x.dtype(), 1.0)?;
    let points = cast(&reshape(&cat(&[&x, &y, &one], -1)?, [height * width, 3])?, theta.dtype())?;
    reshape(&matmul(&points, &transpose(theta, 1, 2)?)?, [images, height, width, 2])
}

/// The values of images `[N, C, H, W]` at the points `[N, rows, columns, 2]` of a grid (x, then y; from -1 to 1), as
/// `[N, C, rows, columns]`.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::grid::{GridMode, GridPadding, grid_sample}};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0], [1, 1, 2, 2])?;
/// let centre = Tensor::from_host(&queue, &[0.0f32, 0.0], [1, 1, 1, 2])?;
/// let out = grid_sample(&x, &centre, GridMode::Bilinear, GridPadding::Zeros, false)?;
/// assert_eq!(out.item()?, 2.5);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn grid_sample(
    x: &Tensor,
    grid: &Tensor,
    mode: GridMode,
    padding: GridPadding,
    align_corners: bool,
) -> Result<Tensor> {
    let op = "grid_sample";
    if let Some(casts) = autocast::enter(op, [x, grid]) {
        return grid_sample(&casts.of(x)?, &casts.of(grid)?, mode, padding, align_corners);
    }
    let (&[images, channels, height, width], &[samples, rows, columns, 2]) = (&x.shape()[..], &grid.shape()[..]) else {
        let why = format!("it takes images [N, C, H, W] and a grid [N, rows, columns, 2], not {}", grid.shape());
        return Err(Error::shape(op, x.shape(), why));
    };
    x.queue().check_same_device(op, grid.queue())?;
    if x.dtype() != grid.dtype() {
        return Err(netcl_core::Error::DtypeMismatch { op, lhs: x.dtype(), rhs: grid.dtype() }.into());
    }
    let pixels = height.saturating_mul(width);
    let wide = x.dtype().accumulator();
    // Places are computed with floats, which hold whole numbers exactly up to here.
    let most = if wide == DType::F64 { 1 << 31 } else { 1 << 24 };
    if images != samples || pixels == 0 || pixels > most {
        let why = format!(
            "a grid of shape {} needs as many images, of 1 to {most} pixels each (2147483648 in float64)",
            grid.shape()
        );
        return Err(Error::shape(op, x.shape(), why));
    }
    let points = rows * columns;
    let place = |i: isize, length: usize| -> Result<Tensor> {
        let at = cast(&reshape(&select(grid, -1, i)?, [images, 1, points])?, wide)?;
        let n = length as f64;
        let half = if align_corners { (n - 1.0) / 2.0 } else { n / 2.0 };
        add(&mul(&at, half)?, (n - 1.0) / 2.0)
    };
    let (across, down) = (place(0, width)?, place(1, height)?);
    let flat = reshape(&cast(x, wide)?, [images, channels, pixels])?;
    let sampler = Sampler { flat, size: [height, width], padding, align_corners };
    let inside = |at: &Tensor, n: usize| sampler.inside(at, n);
    let out = match mode {
        GridMode::Nearest => sampler.pixels(&round(&inside(&down, height)?)?, &round(&inside(&across, width)?)?)?,
        GridMode::Bilinear => {
            let (down, across) = (inside(&down, height)?, inside(&across, width)?);
            let linear = |t: &Tensor, first: &Tensor| -> Result<[Tensor; 2]> {
                let share = sub(t, first)?;
                Ok([sub(1.0, &share)?, share])
            };
            let (top, left) = (floor(&down)?.detach(), floor(&across)?.detach());
            sampler.blend([&top, &left], &linear(&down, &top)?, &linear(&across, &left)?)?
        }
        // The pixels, not the points, are kept inside.
        GridMode::Bicubic => {
            let (top, left) = (floor(&down)?.detach(), floor(&across)?.detach());
            let weights = [cubic(&sub(&down, &top)?)?, cubic(&sub(&across, &left)?)?];
            sampler.blend([&sub(&top, 1.0)?, &sub(&left, 1.0)?], &weights[0], &weights[1])?
        }
    };
    cast(&reshape(&out, [images, channels, rows, columns])?, x.dtype())
}

/// The weights of four neighbours for a point that lies so far after the second.
fn cubic(share: &Tensor) -> Result<[Tensor; 4]> {
    let a = -0.75;
    let near = |d: &Tensor| -> Result<Tensor> { add(&mul(&mul(&sub(&mul(d, a + 2.0)?, a + 3.0)?, d)?, d)?, 1.0) };
    let far = |d: &Tensor| -> Result<Tensor> {
        sub(&mul(&add(&mul(&sub(&mul(d, a)?, 5.0 * a)?, d)?, 8.0 * a)?, d)?, 4.0 * a)
    };
    let rest = sub(1.0, share)?;
    Ok([far(&add(share, 1.0)?)?, near(share)?, near(&rest)?, far(&add(&rest, 1.0)?)?])
}

/// Images with their pixels in one axis.
struct Sampler {
    flat: Tensor,
    size: [usize; 2],
    padding: GridPadding,
    align_corners: bool,
}

impl Sampler {
    /// Points, or whole places, along an axis of so many pixels, moved inside if that is what lies outside.
    fn inside(&self, at: &Tensor, length: usize) -> Result<Tensor> {
        let last = length as f64 - 1.0;
        match self.padding {
            GridPadding::Zeros => Ok(at.clone()),
            GridPadding::Border => clamp(at, 0.0, last),
            GridPadding::Reflection => {
                // From the first to the last centre, or between the outer edges.
                let (low, span) = if self.align_corners { (0.0, last) } else { (-0.5, length as f64) };
                if span == 0.0 {
                    return clamp(at, 0.0, 0.0);
                }
                let distance = abs(&sub(at, low)?)?;
                // A triangle wave: |d - 2 span * round(d / (2 span))|
                let turns = round(&mul(&distance, 0.5 / span)?)?.detach();
                let mirrored = abs(&sub(&distance, &mul(&turns, 2.0 * span)?)?)?;
                clamp(&add(&mirrored, low)?, 0.0, last)
            }
        }
    }

    /// The pixels at whole places; zero outside.
    fn pixels(&self, row: &Tensor, column: &Tensor) -> Result<Tensor> {
        let [height, width] = self.size;
        let within = |at: &Tensor, n: usize| mul(&indicator("ge", at, 0.0)?, &indicator("le", at, n as f64 - 1.0)?);
        // What is no number is outside as well.
        let valid = mul(&within(row, height)?, &within(column, width)?)?.detach();
        let place = where_(&valid, &add(&mul(row, width as f64)?, column)?, 0.0)?.detach();
        let shape: Shape = [self.flat.shape()[0], self.flat.shape()[1], place.shape()[2]].into();
        let index = IndexTensor::from_tensor(place.raw().cast(DType::I32)?.expand(shape)?)?;
        let mut found = gather(&self.flat, 2, &index)?;
        if row.requires_grad() {
            // The nearest pixel: the gradient of the grid is zero, rather than none.
            found = mul(&found, &add(&sub(&mul(row, column)?, &mul(row, column)?.detach())?, 1.0)?)?;
        }
        where_(&valid, &found, 0.0)
    }

    /// Neighbouring pixels from a first one on, weighted by row and column.
    fn blend(&self, [top, left]: [&Tensor; 2], rows: &[Tensor], columns: &[Tensor]) -> Result<Tensor> {
        let mut total: Option<Tensor> = None;
        for (i, by_row) in rows.iter().enumerate() {
            for (j, by_column) in columns.iter().enumerate() {
                let (row, column) = (add(top, i as f64)?, add(left, j as f64)?);
                let (row, column) = match rows.len() {
                    4 => (self.inside(&row, self.size[0])?, self.inside(&column, self.size[1])?),
                    _ => (row, column),
                };
                let part = mul(&self.pixels(&row, &column)?, &mul(by_row, by_column)?)?;
                total = Some(total.map_or(Ok(part.clone()), |total| add(&total, &part))?);
            }
        }
        total.ok_or_else(|| Error::argument("grid_sample", "no neighbours"))
    }
}

//! Rotary position embedding: pairs of elements are rotated by an angle that grows with their position.

use std::sync::{Arc, LazyLock};

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::host;
use netcl_core::kernels::elementwise::{Elementwise, Number};
use netcl_core::kernels::expr::Graph;
use netcl_core::shape::Slice;
use netcl_core::tensor::{HostOptions, Tensor};
use netcl_core::{Error, Result};

/// Which elements of a row form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RotaryForm {
    /// Neighbours: 0 with 1, 2 with 3, as in the original paper.
    Interleaved,
    /// The first half with the second: 0 with width / 2, as in GPT-NeoX and Llama.
    HalfSplit,
}

/// Cosines and sines for some positions, each `[length, width / 2]`.
///
/// They are kept in float32 or float64 whatever the dtype of what is rotated: an angle of a far position needs the digits.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    cos: Tensor,
    sin: Tensor,
}

impl RotaryTables {
    /// Tables for the positions `start`, `start + 1`, ...: pair i turns by `position / base^(2 i / width)`.
    ///
    /// The dtype is that of the tensors to be rotated. `base` is 10000 in most models.
    pub fn new(queue: &Queue, start: usize, length: usize, width: usize, base: f64, dtype: DType) -> Result<Self> {
        const OP: &str = "rotary";
        if !width.is_multiple_of(2) {
            return Err(Error::argument(OP, format!("the width {width} is odd; pairs need an even one")));
        }
        if !(base.is_finite() && base > 0.0) {
            return Err(Error::argument(OP, format!("the base {base} must be finite and positive")));
        }
        let half = width / 2;
        let angle = |at: usize| {
            let (row, pair) = (at / half, at % half);
            (start as f64 + row as f64) * base.powf(-2.0 * pair as f64 / width as f64)
        };
        let angles = host::collect(OP, (0..length.saturating_mul(half)).map(angle))?;
        let options = HostOptions { dtype: Some(dtype.accumulator()), ..Default::default() };
        let table = |f: fn(f64) -> f64| {
            let values = host::collect(OP, angles.iter().map(|&a| f(a)))?;
            Tensor::from_host_with(queue, &values, [length, half], options)
        };
        Ok(RotaryTables { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    /// Tables of one's own (scaled or learned frequencies): cosines and sines of one shape, `[length, width / 2]`.
    pub fn from_parts(cos: Tensor, sin: Tensor) -> Result<Self> {
        const OP: &str = "rotary";
        cos.check_float(OP)?;
        cos.queue().check_same_device(OP, sin.queue())?;
        if cos.ndim() != 2 || cos.shape() != sin.shape() {
            let why = format!("cosines and sines must both be [length, width / 2]; the cosines are {}", cos.shape());
            return Err(Error::Shape { op: OP, shape: sin.shape().clone(), why });
        }
        if cos.dtype() != sin.dtype() {
            return Err(Error::DtypeMismatch { op: OP, lhs: cos.dtype(), rhs: sin.dtype() });
        }
        Ok(RotaryTables { cos, sin })
    }

    /// The cosines.
    pub fn cos(&self) -> &Tensor {
        &self.cos
    }

    /// The sines.
    pub fn sin(&self) -> &Tensor {
        &self.sin
    }
}

/// Rotates the pairs of every row of a `[..., length, width]` tensor by the angles of its position.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_ops::attention::{RotaryForm, RotaryTables, rotary, rotary_backward};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 0.0, 1.0, 0.0], [2, 2])?;
/// let tables = RotaryTables::new(&queue, 0, 2, 2, 10000.0, DType::F32)?;
/// let y = rotary(&x, &tables, RotaryForm::Interleaved)?.to_host::<f32>()?;
/// assert_eq!(y, [1.0, 0.0, 1f32.cos(), 1f32.sin()]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn rotary(x: &Tensor, tables: &RotaryTables, form: RotaryForm) -> Result<Tensor> {
    rotate("rotary", x, tables, form, 1.0)
}

/// The gradient of [`rotary`]: the rotation back.
pub fn rotary_backward(grad: &Tensor, tables: &RotaryTables, form: RotaryForm) -> Result<Tensor> {
    rotate("rotary_backward", grad, tables, form, -1.0)
}

/// `own * cos + other * (sign * sin)`
static TURN: LazyLock<Arc<Elementwise>> = LazyLock::new(|| {
    let g = Graph::new();
    let [own, other, cos, sin] = [0, 1, 2, 3].map(|i| g.input(i));
    let value = own * cos + other * (g.scalar(0) * sin);
    Elementwise::new("rotary", g.finish(&[value]))
});

fn rotate(op: &'static str, x: &Tensor, tables: &RotaryTables, form: RotaryForm, sign: f64) -> Result<Tensor> {
    x.check_float(op)?;
    x.queue().check_same_device(op, tables.cos.queue())?;
    let (length, half) = (tables.cos.shape()[0], tables.cos.shape()[1]);
    match x.shape()[..] {
        [.., rows, width] if rows == length && width == 2 * half => {}
        _ => {
            let why = format!("its last two axes must be {length} positions and width {}, as in the tables", 2 * half);
            return Err(Error::Shape { op, shape: x.shape().clone(), why });
        }
    }
    let out = Tensor::uninit(x.queue(), x.shape().clone(), x.dtype())?;
    if out.size() == 0 {
        return Ok(out);
    }
    let parts = |t: &Tensor| -> Result<[Tensor; 2]> {
        let slice = |start: usize| match form {
            RotaryForm::Interleaved => Slice::new(Some(start as isize), None, 2),
            RotaryForm::HalfSplit => Slice::new(Some((start * half) as isize), Some(((start + 1) * half) as isize), 1),
        };
        Ok([t.slice(-1, slice(0))?, t.slice(-1, slice(1))?])
    };
    let ([first, second], [to_first, to_second]) = (parts(x)?, parts(&out)?);
    let (cos, sin) = (tables.cos.expand(first.shape())?, tables.sin.expand(first.shape())?);
    // The result's halves share memory, which one launch may not write twice.
    TURN.run(&[&first, &second, &cos, &sin], &[Number::Value(-sign)], &[&to_first])?;
    TURN.run(&[&second, &first, &cos, &sin], &[Number::Value(sign)], &[&to_second])?;
    Ok(out)
}

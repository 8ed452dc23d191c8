//! Shapes, broadcasting and layouts (shape + strides + offset): pure arithmetic, no memory.

mod layout;

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

pub use layout::{Layout, Slice, Strides};

use crate::dtype::DType;
use crate::error::{Error, Result};

/// The lengths of a tensor's axes.
///
/// ```
/// use netcl_core::shape::Shape;
///
/// let shape = Shape::from([4, 1, 3]);
/// assert_eq!(shape.size(), 12);
/// assert_eq!(shape.to_string(), "(4, 1, 3)");
/// assert_eq!(shape.broadcast("add", &Shape::from([5, 1]))?, Shape::from([4, 5, 3]));
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[usize; 6]>);

// By hand: a copy of the memory, where the derived one goes through the elements one by one.
impl Clone for Shape {
    fn clone(&self) -> Self {
        Shape(SmallVec::from_slice(&self.0))
    }
}

impl Shape {
    /// The shape `()` of a scalar.
    pub fn scalar() -> Self {
        Shape::default()
    }

    /// The number of axes.
    pub fn ndim(&self) -> usize {
        self.0.len()
    }

    /// The number of elements. Shapes of existing tensors never overflow; [`Shape::nbytes`] checks new ones, whose count ends at
    /// the largest number until then.
    pub fn size(&self) -> usize {
        if self.0.contains(&0) { 0 } else { self.0.iter().copied().fold(1, usize::saturating_mul) }
    }

    /// The number of bytes of a dense tensor of this shape, or an error where it does not fit the address space.
    pub fn nbytes(&self, op: &'static str, dtype: DType) -> Result<usize> {
        // A zero anywhere makes the tensor empty, however large the other lengths are; they still must not overflow
        // strides, so the product of the non-zero lengths is what is checked.
        let mut bytes = dtype.size();
        for &n in self.0.iter().filter(|&&n| n != 0) {
            bytes = bytes.checked_mul(n).filter(|&b| b <= isize::MAX as usize).ok_or_else(|| Error::TooLarge {
                op,
                dims: self.0.to_vec(),
                dtype,
            })?;
        }
        Ok(if self.0.contains(&0) { 0 } else { bytes })
    }

    /// The strides, in elements, of a dense row-major tensor.
    pub fn contiguous_strides(&self) -> SmallVec<[isize; 6]> {
        let mut strides: SmallVec<[isize; 6]> = SmallVec::from_elem(0, self.ndim());
        let mut stride = 1isize;
        for (s, &n) in strides.iter_mut().zip(&self.0).rev() {
            *s = stride;
            stride = stride.wrapping_mul(n.max(1) as isize);
        }
        strides
    }

    /// The axis an index names, counting from the end when negative.
    pub fn axis(&self, op: &'static str, axis: isize) -> Result<usize> {
        let n = self.ndim() as isize;
        let at = if axis < 0 { axis + n } else { axis };
        if (0..n).contains(&at) { Ok(at as usize) } else { Err(Error::Axis { op, axis, shape: self.clone() }) }
    }

    /// The common shape of two operands by NumPy's rule.
    pub fn broadcast(&self, op: &'static str, other: &Shape) -> Result<Shape> {
        let n = self.ndim().max(other.ndim());
        let mut out: SmallVec<[usize; 6]> = SmallVec::from_elem(1, n);
        for from_end in 1..=n {
            let left = self.length_from_end(from_end);
            let right = other.length_from_end(from_end);
            out[n - from_end] = match (left, right) {
                (l, r) if l == r => l,
                (1, r) => r,
                (l, 1) => l,
                _ => {
                    return Err(Error::Broadcast {
                        op,
                        lhs: self.clone(),
                        rhs: other.clone(),
                        axis: from_end,
                        left,
                        right,
                    });
                }
            };
        }
        Ok(Shape(out))
    }

    /// The length of an axis counted from the end (1 is the last); missing axes have length 1.
    fn length_from_end(&self, from_end: usize) -> usize {
        if from_end <= self.ndim() { self.0[self.ndim() - from_end] } else { 1 }
    }

    /// The shape with an axis removed, or of length 1 with `keepdims`.
    pub fn without_axis(&self, axis: usize, keepdims: bool) -> Shape {
        let mut dims = self.0.clone();
        if keepdims {
            dims[axis] = 1;
        } else {
            dims.remove(axis);
        }
        Shape(dims)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [n] => write!(f, "({n},)"),
            dims => {
                f.write_str("(")?;
                for (i, n) in dims.iter().enumerate() {
                    write!(f, "{}{n}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
        }
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(SmallVec::from_slice(&dims))
    }
}

/// One axis.
impl From<usize> for Shape {
    fn from(length: usize) -> Self {
        Shape::from([length])
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(SmallVec::from_vec(dims))
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl From<()> for Shape {
    fn from((): ()) -> Self {
        Shape::scalar()
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Self {
        Shape(iter.into_iter().collect())
    }
}

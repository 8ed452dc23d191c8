//! Operators and method forms of the recordable ops: `(&a * &b)?.relu()?.mean(1, false)?`.
//!
//! Operators take tensors, owned or borrowed, and numbers on either side:
//!
//! ```
//! use netcl_autograd::Tensor;
//!
//! let x = Tensor::new("cpu", [1.0, 2.0])?;
//! let y = (&x * &x - &x)?; // the product is an operand before its question mark
//! assert_eq!((2.0 - (y / 2)? - &x)?.to_host::<f32>()?, [1.0, -1.0]);
//! # Ok::<(), netcl_autograd::Error>(())
//! ```
//!
//! The methods hide those of the same name of the raw tensor, which would cut the result off from its gradient.

use std::ops::{Add, Div, Mul, Neg, Sub};

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::shape::{Shape, Slice};
use netcl_ops::Axes;

use crate::error::Result;
use crate::ops::elementwise::{self, Operand};
use crate::ops::{layout, matmul, products, rearrange, reduce, scan, select, softmax, statistics};
use crate::tensor::Tensor;

macro_rules! operator {
    ($trait:ident $method:ident, $a:ident: $left:ty, $b:ident: $right:ty, $x:expr, $y:expr) => {
        impl $trait<$right> for $left {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, $b: $right) -> Result<Tensor> {
                let $a = self;
                elementwise::$method($x, $y)
            }
        }
    };
}

macro_rules! operators {
    ($(($a:ident: $left:ty, $b:ident: $right:ty) $x:expr, $y:expr;)*) => {$(
        operator!(Add add, $a: $left, $b: $right, $x, $y);
        operator!(Sub sub, $a: $left, $b: $right, $x, $y);
        operator!(Mul mul, $a: $left, $b: $right, $x, $y);
        operator!(Div div, $a: $left, $b: $right, $x, $y);
    )*};
}

// One float and one integer type: with f32 beside f64 the compiler no longer knows what the literal of `(&x * 2.0)?` is.
operators! {
    (a: &Tensor, b: &Tensor) a, b;
    (a: &Tensor, b: Tensor) a, &b;
    (a: Tensor, b: &Tensor) &a, b;
    (a: Tensor, b: Tensor) &a, &b;
    (a: &Tensor, b: f64) a, b;
    (a: Tensor, b: f64) &a, b;
    (a: f64, b: &Tensor) a, b;
    (a: f64, b: Tensor) a, &b;
    (a: &Tensor, b: i64) a, b;
    (a: Tensor, b: i64) &a, b;
    (a: i64, b: &Tensor) a, b;
    (a: i64, b: Tensor) a, &b;
    // `&x + &y * &z` and `&x * &y + &z` with one question mark. Rust lets nobody add a number to a `Result`.
    (a: &Tensor, b: Result<Tensor>) a, &b?;
    (a: Tensor, b: Result<Tensor>) &a, &b?;
    (a: Result<Tensor>, b: &Tensor) &a?, b;
    (a: Result<Tensor>, b: Tensor) &a?, &b;
}

impl Neg for &Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        elementwise::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        elementwise::neg(&self)
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident $(= $table:literal)? $(, $param:ident)*;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self $(, $param: f64)*) -> Result<Tensor> {
                elementwise::$name(self $(, $param)*)
            }
        )*}
    };
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name<'t>(&'t self, y: impl Into<Operand<'t>>) -> Result<Tensor> {
                elementwise::$name(self, y)
            }
        )*}
    };
}

netcl_ops::elementwise_functions!(unary_methods binary_methods);

impl Tensor {
    /// The elements held between two bounds; `None` is no bound. Where the bounds cross, the upper one wins.
    ///
    /// # Errors
    /// If both bounds are `None`.
    #[track_caller]
    pub fn clamp(&self, min: impl Into<Option<f64>>, max: impl Into<Option<f64>>) -> Result<Tensor> {
        elementwise::clamp(self, min, max)
    }
}

/// Ops whose first argument is the tensor.
macro_rules! methods {
    ($($module:ident: $(
        $(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $out:ty;
    )*)*) => {
        impl Tensor {$($(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self $(, $argument: $type)*) -> Result<$out> {
                $module::$name(self $(, $argument)*)
            }
        )*)*}
    };
}

methods! {
    layout:
        /// The axes in another order, as a view.
        fn permute(axes: &[isize]) -> Tensor;
        /// Two axes exchanged, as a view.
        fn transpose(first: isize, second: isize) -> Tensor;
        /// The elements repeated along new or length-1 axes, as a view.
        fn expand(shape: impl Into<Shape>) -> Tensor;
        /// A part of one axis, as a view.
        fn slice(axis: isize, part: Slice) -> Tensor;
        /// One index of an axis, which disappears.
        fn select(axis: isize, index: isize) -> Tensor;
        /// Without axes of length 1: the given ones, or all of them where none is given.
        fn squeeze(axes: &[isize]) -> Tensor;
        /// With a new axis of length 1.
        fn unsqueeze(axis: isize) -> Tensor;
        /// All axes from `start` to `end`, both included, as one.
        fn flatten(start: isize, end: isize) -> Tensor;
        /// The elements in reverse order along some axes, as a view.
        fn flip(axes: &[isize]) -> Tensor;
        /// The tensor itself if its elements lie densely in row-major order, else a copy in which they do.
        fn contiguous() -> Tensor;
        /// A dense copy with storage of its own.
        fn duplicate() -> Tensor;
        /// The values on another device; the gradient comes back to this one.
        fn to(queue: &Queue) -> Tensor;
    elementwise:
        /// The values in another dtype; the gradient comes back in the tensor's own.
        fn cast(dtype: DType) -> Tensor;
    matmul:
        /// The matrix product by NumPy's rules.
        fn matmul(other: &Tensor) -> Tensor;
    softmax:
        /// `exp(x) / sum(exp(x))` along an axis, stable.
        fn softmax(axis: isize) -> Tensor;
        /// `log(softmax(x))` along an axis, stable.
        fn log_softmax(axis: isize) -> Tensor;
    reduce:
        /// The running sum along an axis.
        fn cumsum(axis: isize) -> Tensor;
    scan:
        /// The running product along an axis.
        fn cumprod(axis: isize) -> Tensor;
        /// The largest element so far along an axis, and where it is.
        fn cummax(axis: isize) -> (Tensor, IndexTensor);
        /// The smallest element so far along an axis, and where it is.
        fn cummin(axis: isize) -> (Tensor, IndexTensor);
        /// The running `log(sum(exp(x)))` along an axis, stable.
        fn logcumsumexp(axis: isize) -> Tensor;
        /// The differences of neighbours along an axis, `n` times.
        fn diff(n: usize, axis: isize) -> Tensor;
    rearrange:
        /// Every index of an axis by itself, which disappears.
        fn unbind(axis: isize) -> Vec<Tensor>;
        /// `length` elements of an axis from `start` on, as a view.
        fn narrow(axis: isize, start: isize, length: usize) -> Tensor;
        /// Some axes at other places, as a view.
        fn movedim(from: &[isize], to: &[isize]) -> Tensor;
        /// The tensor repeated along each of its last axes so many times.
        fn tile(times: &[usize]) -> Tensor;
        /// The elements moved along some axes, those that leave at the end coming in at the start.
        fn roll(shifts: &[isize], axes: &[isize]) -> Tensor;
        /// Every element `times` times in a row along an axis.
        fn repeat_interleave(times: usize, axis: Option<isize>) -> Tensor;
        /// The diagonal of the matrices of two axes, as the last axis.
        fn diagonal(offset: isize, first: isize, second: isize) -> Tensor;
        /// The diagonal of a matrix, or the matrix of a diagonal.
        fn diag(offset: isize) -> Tensor;
        /// The sum of a matrix' diagonal.
        fn trace() -> Tensor;
        /// One axis as several.
        fn unflatten(axis: isize, lengths: &[isize]) -> Tensor;
    products:
        /// The product of two matrices.
        fn mm(other: &Tensor) -> Tensor;
        /// The products of the matrices of two batches.
        fn bmm(other: &Tensor) -> Tensor;
        /// The product of a matrix and a vector.
        fn mv(vector: &Tensor) -> Tensor;
        /// The sum of the products of two vectors' elements.
        fn dot(other: &Tensor) -> Tensor;
        /// All products of an element of one vector with one of the other.
        fn outer(other: &Tensor) -> Tensor;
    statistics:
        /// The largest element along an axis and where it is.
        fn max_along(axis: isize, keepdims: bool) -> (Tensor, IndexTensor);
        /// The smallest element along an axis and where it is.
        fn min_along(axis: isize, keepdims: bool) -> (Tensor, IndexTensor);
        /// The middle element along an axis, the lower of two, and where it is.
        fn median(axis: isize, keepdims: bool) -> (Tensor, IndexTensor);
        /// The element that has `k - 1` smaller ones along an axis, and where it is.
        fn kthvalue(k: usize, axis: isize, keepdims: bool) -> (Tensor, IndexTensor);
    select:
        /// The elements where a mask is not 0, as a vector.
        fn masked_select(mask: &Tensor) -> Tensor;
        /// The indices of the elements that are not 0, a row for each.
        fn nonzero() -> IndexTensor;
        /// `x` with a value at indices of an axis.
        fn index_fill(axis: isize, indices: &IndexTensor, value: f64) -> Tensor;
        /// `x` with the slices of `source` at indices of an axis.
        fn index_copy(axis: isize, indices: &IndexTensor, source: &Tensor) -> Tensor;
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name<'a>(&self, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
                reduce::$name(self, axes, keepdims)
            }
        )*}
    };
}

reductions! {
    /// The sum over some axes, or over all of them.
    sum;
    /// The mean over some axes, or over all of them.
    mean;
    /// The product over some axes, or over all of them.
    prod;
    /// The largest value over some axes, or over all of them.
    max;
    /// The smallest value over some axes, or over all of them.
    min;
    /// `log(sum(exp(x)))` over some axes, stable.
    logsumexp;
}

impl Tensor {
    /// The variance over some axes; `correction` is subtracted from the count.
    #[track_caller]
    pub fn var<'a>(&self, axes: impl Into<Axes<'a>>, correction: f64, keepdims: bool) -> Result<Tensor> {
        reduce::var(self, axes, correction, keepdims)
    }

    /// The standard deviation over some axes; `correction` is subtracted from the count.
    #[track_caller]
    pub fn std<'a>(&self, axes: impl Into<Axes<'a>>, correction: f64, keepdims: bool) -> Result<Tensor> {
        reduce::std(self, axes, correction, keepdims)
    }

    /// The p-norm over some axes.
    #[track_caller]
    pub fn norm<'a>(&self, p: f64, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
        reduce::norm(self, p, axes, keepdims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_take_every_kind_of_operand() {
        let x = Tensor::new("cpu", [1.0, -2.0]).unwrap().with_grad();
        let y = || Tensor::new("cpu", [4.0, 8.0]).unwrap();
        let check = |result: Result<Tensor>, expected: [f64; 2]| {
            assert_eq!(result.unwrap().to_f64_vec().unwrap(), expected);
        };
        check(&x + &y(), [5.0, 6.0]);
        check(&x - y(), [-3.0, -10.0]);
        check(y() * &x, [4.0, -16.0]);
        check(y() / y(), [1.0, 1.0]);
        check(2.0 - &x, [1.0, 4.0]);
        check(8 / y(), [2.0, 1.0]);
        check(y() / 2, [2.0, 4.0]);
        check(y() * 0.5, [2.0, 4.0]);
        check(-y(), [-4.0, -8.0]);
        check(&x + &x * &y(), [5.0, -18.0]);
        check(&x * &x - y(), [-3.0, -4.0]);
        // They record.
        ((2.0 * &x).unwrap() * -&x).unwrap().sum((), false).unwrap().backward().unwrap();
        check(Ok(x.grad().unwrap()), [-4.0, 8.0]);
        let wrong = Tensor::new("cpu", [1.0, 2.0, 3.0]).unwrap();
        assert!((&x + &x * &wrong).is_err());
    }
}

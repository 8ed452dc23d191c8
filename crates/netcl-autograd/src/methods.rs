//! Operators and method forms of the recordable ops: `(&a * &b)?.relu()?.mean(1, false)?`.
//!
//! The methods hide those of the same name of the raw tensor, which would cut the result off from its gradient.

use std::ops::{Add, Div, Mul, Neg, Sub};

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::shape::{Shape, Slice};
use netcl_ops::Axes;

use crate::error::Result;
use crate::ops::elementwise::{self, Operand};
use crate::ops::{layout, matmul, reduce, softmax};
use crate::tensor::Tensor;

macro_rules! operators {
    ($($trait:ident $method:ident;)*) => {$(
        impl $trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                elementwise::$method(self, other)
            }
        }
        impl $trait<f64> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: f64) -> Result<Tensor> {
                elementwise::$method(self, other)
            }
        }
        impl $trait<&Tensor> for f64 {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                elementwise::$method(self, other)
            }
        }
    )*};
}

operators! { Add add; Sub sub; Mul mul; Div div; }

impl Neg for &Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        elementwise::neg(self)
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

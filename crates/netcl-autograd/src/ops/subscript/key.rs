//! What a subscript is made of, and the Rust types that stand for it.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use netcl_core::index::IndexTensor;
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::Tensor as Raw;

use crate::tensor::Tensor;

/// One part of a subscript.
#[derive(Clone, Debug)]
pub enum Index {
    /// One index of an axis, which disappears; below 0 it counts from the end.
    At(isize),
    /// A part of an axis.
    Slice(Slice),
    /// As many whole axes as the other parts leave over.
    Ellipsis,
    /// A new axis of length 1.
    NewAxis,
    /// A mask without axes: everything along a new axis of length 1, or nothing along one of length 0.
    Bool(bool),
    /// Indices of one axis (int32 or int64), or a mask (bytes that are not 0) of as many axes as it has.
    Tensor(Box<Raw>),
    /// Indices of one axis from the host, in this shape.
    List(Box<(Vec<i64>, Shape)>),
    /// A mask from the host, in this shape.
    Mask(Box<(Vec<bool>, Shape)>),
}

/// `None` in Python's subscripts: a new axis of length 1.
#[derive(Clone, Copy, Debug)]
pub struct NewAxis;

/// `...` in Python's subscripts: as many whole axes as the other parts leave over.
#[derive(Clone, Copy, Debug)]
pub struct Ellipsis;

/// A subscript: one part, or a tuple of them.
pub trait Key {
    /// The parts.
    fn indices(self) -> Vec<Index>;
}

impl<T: Into<Index>> Key for T {
    fn indices(self) -> Vec<Index> {
        vec![self.into()]
    }
}

macro_rules! tuples {
    ($(($($part:ident)+))*) => {$(
        impl<$($part: Into<Index>),+> Key for ($($part,)+) {
            fn indices(self) -> Vec<Index> {
                #[allow(non_snake_case, reason = "a part is named as its type")]
                let ($($part,)+) = self;
                vec![$($part.into()),+]
            }
        }
    )*};
}

tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }

/// A type of whole numbers that subscripts are written with.
pub trait Whole: Copy {
    /// The number; one that does not fit is as far outside of any axis as can be.
    fn whole(self) -> isize;
}

macro_rules! whole {
    ($($ty:ty)*) => {$(
        impl Whole for $ty {
            fn whole(self) -> isize {
                isize::try_from(self).unwrap_or(isize::MAX)
            }
        }
        impl From<$ty> for Index {
            fn from(at: $ty) -> Index {
                Index::At(at.whole())
            }
        }
        impl From<&[$ty]> for Index {
            fn from(list: &[$ty]) -> Index {
                Index::List(Box::new((list.iter().map(|at| at.whole() as i64).collect(), Shape::from([list.len()]))))
            }
        }
        impl From<&Vec<$ty>> for Index {
            fn from(list: &Vec<$ty>) -> Index {
                list.as_slice().into()
            }
        }
        impl From<Vec<$ty>> for Index {
            fn from(list: Vec<$ty>) -> Index {
                list.as_slice().into()
            }
        }
        impl<const N: usize> From<[$ty; N]> for Index {
            fn from(list: [$ty; N]) -> Index {
                list.as_slice().into()
            }
        }
    )*};
}

whole! { i32 i64 isize usize }

fn slice(start: Option<isize>, stop: Option<isize>) -> Index {
    Index::Slice(Slice::new(start, stop, 1))
}

/// Past an index that still belongs to a slice; past the last of all there is nothing.
fn past(last: isize) -> Option<isize> {
    last.checked_add(1).filter(|&stop| stop != 0)
}

impl<T: Whole> From<Range<T>> for Index {
    fn from(range: Range<T>) -> Index {
        slice(Some(range.start.whole()), Some(range.end.whole()))
    }
}

impl<T: Whole> From<RangeInclusive<T>> for Index {
    fn from(range: RangeInclusive<T>) -> Index {
        slice(Some(range.start().whole()), past(range.end().whole()))
    }
}

impl<T: Whole> From<RangeFrom<T>> for Index {
    fn from(range: RangeFrom<T>) -> Index {
        slice(Some(range.start.whole()), None)
    }
}

impl<T: Whole> From<RangeTo<T>> for Index {
    fn from(range: RangeTo<T>) -> Index {
        slice(None, Some(range.end.whole()))
    }
}

impl<T: Whole> From<RangeToInclusive<T>> for Index {
    fn from(range: RangeToInclusive<T>) -> Index {
        slice(None, past(range.end.whole()))
    }
}

macro_rules! from {
    ($($ty:ty, $value:ident => $index:expr;)*) => {$(
        impl From<$ty> for Index {
            fn from($value: $ty) -> Index {
                $index
            }
        }
    )*};
}

from! {
    RangeFull, _all => slice(None, None);
    Slice, part => Index::Slice(part);
    Ellipsis, _rest => Index::Ellipsis;
    NewAxis, _axis => Index::NewAxis;
    bool, all => Index::Bool(all);
    &Tensor, tensor => Index::Tensor(Box::new(tensor.raw().clone()));
    &Raw, tensor => Index::Tensor(Box::new(tensor.clone()));
    &IndexTensor, tensor => Index::Tensor(Box::new(tensor.tensor().clone()));
    &[bool], mask => Index::Mask(Box::new((mask.to_vec(), Shape::from([mask.len()]))));
}

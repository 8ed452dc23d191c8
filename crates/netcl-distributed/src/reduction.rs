//! Elements of several ranks or devices become one, always in the same order.

use bytemuck::{AnyBitPattern, NoUninit};
use half::{bf16, f16};
use netcl_nn::autograd::DType;

use crate::error::{Error, Result};

/// How elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their sum divided by their number; floats only.
    Mean,
    /// The largest; NaN if one of them is NaN.
    Max,
    /// The smallest; NaN if one of them is NaN.
    Min,
}

impl Reduce {
    /// The names, as users write them.
    pub const NAMES: [&'static str; 4] = ["sum", "mean", "max", "min"];

    /// Reads one of [`Reduce::NAMES`].
    ///
    /// # Errors
    /// For any other word.
    pub fn parse(call: &'static str, name: &str) -> Result<Reduce> {
        match name.to_ascii_lowercase().as_str() {
            "sum" => Ok(Reduce::Sum),
            "mean" => Ok(Reduce::Mean),
            "max" => Ok(Reduce::Max),
            "min" => Ok(Reduce::Min),
            _ => Err(Error::argument(call, format!("op {name:?} is unknown: use one of {}", Reduce::NAMES.join(", ")))),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Reduce::NAMES[self as usize]
    }
}

/// Elements that are being reduced: given in any pieces, but each place in the order of ranks.
///
/// Halves are summed in single precision and rounded once, at the end.
pub(crate) enum Accumulator {
    F32(Folding<f32>),
    F64(Folding<f64>),
    F16(Folding<f32>),
    BF16(Folding<f32>),
    U8(Folding<u8>),
    I32(Folding<i32>),
    I64(Folding<i64>),
}

pub(crate) struct Folding<T> {
    op: Reduce,
    values: Vec<T>,
}

pub(crate) trait Number: Copy + Default {
    fn fold(op: Reduce, a: Self, b: Self) -> Self;
}

macro_rules! float {
    ($($ty:ty),*) => { $(impl Number for $ty {
        #[inline]
        fn fold(op: Reduce, a: Self, b: Self) -> Self {
            match op {
                Reduce::Sum | Reduce::Mean => a + b,
                // A NaN on either side stays: it fails both comparisons and is not equal to itself.
                Reduce::Max => if a > b || a != a { a } else { b },
                Reduce::Min => if a < b || a != a { a } else { b },
            }
        }
    })* };
}

macro_rules! integer {
    ($($ty:ty),*) => { $(impl Number for $ty {
        #[inline]
        fn fold(op: Reduce, a: Self, b: Self) -> Self {
            match op {
                Reduce::Sum | Reduce::Mean => a.wrapping_add(b),
                Reduce::Max => a.max(b),
                Reduce::Min => a.min(b),
            }
        }
    })* };
}

float!(f32, f64);
integer!(u8, i32, i64);

impl<T: Number> Folding<T> {
    fn new(op: Reduce, count: usize) -> Folding<T> {
        Folding { op, values: vec![T::default(); count] }
    }

    fn add<S: AnyBitPattern>(&mut self, first: bool, at: usize, bytes: &[u8], widen: impl Fn(S) -> T) {
        let places = self.values[at..].iter_mut();
        let given = bytes.chunks_exact(size_of::<S>()).map(|bytes| widen(bytemuck::pod_read_unaligned(bytes)));
        let op = self.op;
        for (place, value) in places.zip(given) {
            *place = if first { value } else { T::fold(op, *place, value) };
        }
    }

    fn write<S: NoUninit>(&self, out: &mut [u8], narrow: impl Fn(T) -> S) {
        for (place, value) in out.chunks_exact_mut(size_of::<S>()).zip(&self.values) {
            place.copy_from_slice(bytemuck::bytes_of(&narrow(*value)));
        }
    }
}

impl Accumulator {
    /// Room for so many elements.
    ///
    /// # Errors
    /// For the mean of integers, which has no dtype to be in.
    pub(crate) fn new(call: &'static str, op: Reduce, dtype: DType, count: usize) -> Result<Accumulator> {
        if op == Reduce::Mean && !DType::FLOATS.contains(&dtype) {
            return Err(Error::argument(
                call,
                format!("the mean of {dtype} is not a {dtype}: use op=\"sum\" and divide"),
            ));
        }
        Ok(match dtype {
            DType::F32 => Accumulator::F32(Folding::new(op, count)),
            DType::F64 => Accumulator::F64(Folding::new(op, count)),
            DType::F16 => Accumulator::F16(Folding::new(op, count)),
            DType::BF16 => Accumulator::BF16(Folding::new(op, count)),
            DType::U8 => Accumulator::U8(Folding::new(op, count)),
            DType::I32 => Accumulator::I32(Folding::new(op, count)),
            DType::I64 => Accumulator::I64(Folding::new(op, count)),
        })
    }

    /// Folds in the elements of the next rank that begin at byte `offset`; `first` for the first rank's.
    pub(crate) fn add(&mut self, first: bool, offset: usize, bytes: &[u8]) {
        match self {
            Accumulator::F32(sum) => sum.add(first, offset / 4, bytes, |value: f32| value),
            Accumulator::F64(sum) => sum.add(first, offset / 8, bytes, |value: f64| value),
            Accumulator::F16(sum) => sum.add(first, offset / 2, bytes, f16::to_f32),
            Accumulator::BF16(sum) => sum.add(first, offset / 2, bytes, bf16::to_f32),
            Accumulator::U8(sum) => sum.add(first, offset, bytes, |value: u8| value),
            Accumulator::I32(sum) => sum.add(first, offset / 4, bytes, |value: i32| value),
            Accumulator::I64(sum) => sum.add(first, offset / 8, bytes, |value: i64| value),
        }
    }

    /// Writes the result of so many ranks.
    pub(crate) fn write(&self, ranks: usize, out: &mut [u8]) {
        macro_rules! scaled {
            ($sum:expr, $narrow:expr) => {{
                let divisor = if $sum.op == Reduce::Mean { ranks as _ } else { 1.0 };
                let narrow = $narrow;
                $sum.write(out, |value| narrow(value / divisor));
            }};
        }
        match self {
            Accumulator::F32(sum) => scaled!(sum, |value: f32| value),
            Accumulator::F64(sum) => scaled!(sum, |value: f64| value),
            Accumulator::F16(sum) => scaled!(sum, f16::from_f32),
            Accumulator::BF16(sum) => scaled!(sum, bf16::from_f32),
            Accumulator::U8(sum) => sum.write(out, |value| value),
            Accumulator::I32(sum) => sum.write(out, |value| value),
            Accumulator::I64(sum) => sum.write(out, |value| value),
        }
    }
}

//! Elements of several ranks or devices become one, always in the same order.

use bytemuck::{Pod, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use netcl_core::backend::cpu::threads::parallel_chunks_mut;
use netcl_nn::autograd::DType;

use crate::error::{Error, Result};

/// Elements that go through memory on the stack at once: small enough for the first cache.
const BLOCK: usize = 1024;
/// Elements per thread and turn: below it another thread costs more than it helps.
const GRAIN: usize = 1 << 15;

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

    /// An error for the mean of integers, which has no dtype to be in.
    pub(crate) fn check(self, call: &'static str, dtype: DType) -> Result<()> {
        if self == Reduce::Mean && !DType::FLOATS.contains(&dtype) {
            let what = format!("the mean of {dtype} is not a {dtype}: use op=\"sum\" and divide");
            return Err(Error::argument(call, what));
        }
        Ok(())
    }
}

/// Elements that are being reduced: given in any pieces, but each place in the order of ranks.
///
/// Halves are summed in single precision and rounded once, at the end.
pub(crate) enum Accumulator {
    F32(Folding<f32>),
    F64(Folding<f64>),
    F16(Folding<f16>),
    BF16(Folding<bf16>),
    U8(Folding<u8>),
    I32(Folding<i32>),
    I64(Folding<i64>),
}

pub(crate) struct Folding<S: Element> {
    op: Reduce,
    values: Vec<S::Sum>,
}

/// An element as it is stored, and the type it is summed in.
pub(crate) trait Element: Pod + Send + Sync {
    type Sum: Number;

    /// The values to be summed, in `room` where they are not themselves those.
    fn widened<'a>(values: &'a [Self], room: &'a mut [Self::Sum]) -> &'a [Self::Sum];

    /// The values to be stored, in `room` where they are not themselves those.
    fn narrowed<'a>(values: &'a [Self::Sum], room: &'a mut [Self]) -> &'a [Self];
}

/// A type that elements are summed in.
pub(crate) trait Number: Pod + Send + Sync {
    fn add(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn divided(self, count: usize) -> Self;
}

macro_rules! number {
    ($($ty:ty: $add:expr, $larger:expr, $smaller:expr, $divided:expr);* $(;)?) => { $(
        impl Number for $ty {
            #[inline(always)]
            fn add(self, other: Self) -> Self { $add(self, other) }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { $larger(self, other) }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { $smaller(self, other) }
            #[inline(always)]
            fn divided(self, count: usize) -> Self { $divided(self, count as Self) }
        }
        impl Element for $ty {
            type Sum = $ty;
            fn widened<'a>(values: &'a [Self], _: &'a mut [Self]) -> &'a [Self] { values }
            fn narrowed<'a>(values: &'a [Self], _: &'a mut [Self]) -> &'a [Self] { values }
        }
    )* };
}

number! {
    // A NaN on either side stays: it fails the comparison as `b`, and is not equal to itself as `a`.
    f32: |a, b| a + b, |a: f32, b| if a > b || a.is_nan() { a } else { b }, |a: f32, b| if a < b || a.is_nan() { a } else { b },
         |a, n| a / n;
    f64: |a, b| a + b, |a: f64, b| if a > b || a.is_nan() { a } else { b }, |a: f64, b| if a < b || a.is_nan() { a } else { b },
         |a, n| a / n;
    u8: u8::wrapping_add, u8::max, u8::min, |a, _| a;
    i32: i32::wrapping_add, i32::max, i32::min, |a, _| a;
    i64: i64::wrapping_add, i64::max, i64::min, |a, _| a;
}

macro_rules! halves {
    ($($ty:ty),*) => { $(impl Element for $ty {
        type Sum = f32;

        fn widened<'a>(values: &'a [Self], room: &'a mut [f32]) -> &'a [f32] {
            let room = &mut room[..values.len()];
            values.convert_to_f32_slice(room);
            room
        }

        fn narrowed<'a>(values: &'a [f32], room: &'a mut [Self]) -> &'a [Self] {
            let room = &mut room[..values.len()];
            room.convert_from_f32_slice(values);
            room
        }
    })* };
}

halves!(f16, bf16);

netcl_core::simd! {
    fn fold<T: Number>(op: Reduce, places: &mut [T], given: &[T]) {
        let pairs = places.iter_mut().zip(given);
        match op {
            Reduce::Sum | Reduce::Mean => pairs.for_each(|(place, value)| *place = place.add(*value)),
            Reduce::Max => pairs.for_each(|(place, value)| *place = place.larger(*value)),
            Reduce::Min => pairs.for_each(|(place, value)| *place = place.smaller(*value)),
        }
    }

    fn divide<T: Number>(values: &[T], count: usize, out: &mut [T]) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = value.divided(count);
        }
    }
}

/// The elements in bytes that may lie anywhere.
fn aligned<'a, S: Pod>(bytes: &'a [u8], room: &'a mut [S]) -> &'a [S] {
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) => elements,
        Err(_) => {
            let room = &mut room[..bytes.len() / size_of::<S>()];
            bytemuck::cast_slice_mut(room).copy_from_slice(bytes);
            room
        }
    }
}

/// Runs `body` over parts of a slice on several threads; a panic in it goes on here.
fn on_threads<T: Send>(data: &mut [T], grain: usize, body: impl Fn(usize, &mut [T]) + Sync) {
    let done = parallel_chunks_mut("reduce", data, grain, body);
    assert!(done.is_ok(), "{done:?}");
}

impl<S: Element> Folding<S> {
    fn new(op: Reduce, count: usize) -> Folding<S> {
        Folding { op, values: vec![S::Sum::zeroed(); count] }
    }

    fn add(&mut self, first: bool, offset: usize, bytes: &[u8]) {
        let (op, size) = (self.op, size_of::<S>());
        let places = &mut self.values[offset / size..][..bytes.len() / size];
        on_threads(places, GRAIN, |start, part| {
            let bytes = &bytes[start * size..];
            let (mut given_room, mut wide_room) = ([S::zeroed(); BLOCK], [S::Sum::zeroed(); BLOCK]);
            for (part, bytes) in part.chunks_mut(BLOCK).zip(bytes.chunks(BLOCK * size)) {
                let given = aligned(&bytes[..part.len() * size], &mut given_room);
                let given = S::widened(given, &mut wide_room);
                if first { part.copy_from_slice(given) } else { fold(op, part, given) }
            }
        });
    }

    fn write(&self, ranks: usize, out: &mut [u8]) {
        let size = size_of::<S>();
        let values = &self.values[..out.len() / size];
        on_threads(out, GRAIN * size, |start, out| {
            let (mut narrow_room, mut wide_room) = ([S::zeroed(); BLOCK], [S::Sum::zeroed(); BLOCK]);
            for (out, values) in out.chunks_mut(BLOCK * size).zip(values[start / size..].chunks(BLOCK)) {
                let mut values = &values[..out.len() / size];
                if self.op == Reduce::Mean {
                    divide(values, ranks, &mut wide_room);
                    values = &wide_room[..values.len()];
                }
                out.copy_from_slice(bytemuck::cast_slice(S::narrowed(values, &mut narrow_room)));
            }
        });
    }
}

/// Does the same for every dtype.
macro_rules! each {
    ($accumulator:expr, $sum:ident => $body:expr) => {
        match $accumulator {
            Accumulator::F32($sum) => $body,
            Accumulator::F64($sum) => $body,
            Accumulator::F16($sum) => $body,
            Accumulator::BF16($sum) => $body,
            Accumulator::U8($sum) => $body,
            Accumulator::I32($sum) => $body,
            Accumulator::I64($sum) => $body,
        }
    };
}

impl Accumulator {
    /// Room for so many elements.
    ///
    /// # Errors
    /// For the mean of integers, which has no dtype to be in.
    pub(crate) fn new(call: &'static str, op: Reduce, dtype: DType, count: usize) -> Result<Accumulator> {
        op.check(call, dtype)?;
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
        each!(self, sum => sum.add(first, offset, bytes));
    }

    /// Writes the results of so many ranks, as many as `out` has room for.
    pub(crate) fn write(&self, ranks: usize, out: &mut [u8]) {
        each!(self, sum => sum.write(ranks, out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ranks give: small halves of whole numbers, exact in every dtype, with NaN where `nan` says so.
    fn given(rank: usize, count: usize, integer: bool, nan: bool) -> Vec<f64> {
        let value = |i: usize| match (i * 7 + rank * 5) % 23 {
            3 if nan => f64::NAN,
            k if integer => k as f64,
            k => (k as f64 - 11.0) / 2.0,
        };
        (0..count).map(value).collect()
    }

    fn bytes_of(dtype: DType, values: &[f64]) -> Vec<u8> {
        let each = |value: &f64| match dtype {
            DType::F32 => (*value as f32).to_ne_bytes().to_vec(),
            DType::F64 => value.to_ne_bytes().to_vec(),
            DType::F16 => f16::from_f64(*value).to_ne_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(*value).to_ne_bytes().to_vec(),
            DType::U8 => vec![*value as u8],
            DType::I32 => (*value as i32).to_ne_bytes().to_vec(),
            DType::I64 => (*value as i64).to_ne_bytes().to_vec(),
        };
        values.iter().flat_map(each).collect()
    }

    fn reference(op: Reduce, values: impl Iterator<Item = f64>, ranks: usize) -> f64 {
        let folded = values.reduce(|a, b| match op {
            Reduce::Sum | Reduce::Mean => a + b,
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Reduce::Max => a.max(b),
            Reduce::Min => a.min(b),
        });
        folded.unwrap_or_default() / if op == Reduce::Mean { ranks as f64 } else { 1.0 }
    }

    #[test]
    fn every_dtype_and_op_agrees_with_f64_in_any_pieces() {
        const RANKS: usize = 4;
        let all = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::I32, DType::I64];
        for dtype in all {
            let (size, float) = (dtype.size(), DType::FLOATS.contains(&dtype));
            for op in [Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Min] {
                if op == Reduce::Mean && !float {
                    let error = Accumulator::new("all_reduce", op, dtype, 1).err().unwrap().to_string();
                    assert!(error.starts_with("all_reduce: the mean of"), "{error}");
                    continue;
                }
                for count in [0, 1, 63, 1025, GRAIN + 7, 3 * GRAIN + 1] {
                    let ranks: Vec<_> = (0..RANKS).map(|rank| given(rank, count, !float, float)).collect();
                    let expected: Vec<f64> =
                        (0..count).map(|i| reference(op, ranks.iter().map(|rank| rank[i]), RANKS)).collect();
                    let mut sums = Accumulator::new("all_reduce", op, dtype, count).unwrap();
                    // Two pieces, the second at an odd address.
                    let cut = count / 3 * size;
                    for (rank, values) in ranks.iter().enumerate() {
                        let bytes = bytes_of(dtype, values);
                        let odd = [&[0u8][..], &bytes[cut..]].concat();
                        sums.add(rank == 0, 0, &bytes[..cut]);
                        sums.add(rank == 0, cut, &odd[1..]);
                    }
                    let mut out = vec![0; count * size + 1];
                    sums.write(RANKS, &mut out[1..]);
                    let same = |(a, b): (&[u8], &[u8])| a == b || [a, b].iter().all(|x| is_nan(dtype, x));
                    let expected = bytes_of(dtype, &expected);
                    assert!(
                        out[1..].chunks(size).zip(expected.chunks(size)).all(same),
                        "{dtype} {} of {count}",
                        op.name()
                    );
                }
            }
        }
    }

    fn is_nan(dtype: DType, bytes: &[u8]) -> bool {
        match dtype {
            DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
            DType::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
            DType::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
            DType::BF16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
            _ => false,
        }
    }

    #[test]
    fn halves_are_rounded_once_and_integers_wrap() {
        // 2048 + 1 + 1 is 2050, but 2048 + 1 rounds to 2048 in half precision.
        let mut sums = Accumulator::new("sum", Reduce::Sum, DType::F16, 1).unwrap();
        for (rank, value) in [2048.0, 1.0, 1.0].iter().enumerate() {
            sums.add(rank == 0, 0, &bytes_of(DType::F16, &[*value]));
        }
        let mut out = [0; 2];
        sums.write(3, &mut out);
        assert_eq!(f16::from_ne_bytes(out), f16::from_f32(2050.0));

        let mut sums = Accumulator::new("sum", Reduce::Sum, DType::U8, 1).unwrap();
        sums.add(true, 0, &[200]);
        sums.add(false, 0, &[100]);
        let mut out = [0];
        sums.write(2, &mut out);
        assert_eq!(out, [44]);
    }
}

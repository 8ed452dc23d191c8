//! Arrays on the host: shapes and their arithmetic, constants, and element types that devices do not compute with.
//!
//! Whole numbers are computed exactly and wrapped to their type, fractions in float64 and rounded to theirs. What happens here
//! is over before anything is launched, so that it disappears from what `jit` and captures record.

use std::cell::Cell;

use netcl_nn::autograd::{DType, Error, Queue, Result, Tensor};

use crate::kind::{Kind, Overflow};

/// The elements, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Whole numbers and truth values; `uint64` wraps into `i64`.
    Ints(Vec<i64>),
    /// Fractions.
    Floats(Vec<f64>),
    /// Strings.
    Texts(Vec<String>),
}

/// An array on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The type of its elements.
    pub kind: Kind,
    /// The lengths of its axes.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: Data,
}

/// More elements than this are not made on the host by an operation whose inputs are small.
const MOST: usize = 1 << 28;
/// Axes of an array; what looks at every pair of them has an end.
pub(crate) const MOST_AXES: usize = 64;

thread_local! {
    static LIMIT: Cell<usize> = const { Cell::new(MOST) };
}

/// Runs `f` with a lower limit to the elements that an operation makes on the host.
pub(crate) fn with_limit<T>(limit: usize, f: impl FnOnce() -> T) -> T {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restore = Restore(LIMIT.replace(limit));
    f()
}

pub(crate) fn bad(what: impl Into<String>) -> Error {
    Error::argument("onnx", what)
}

/// The number of elements: 0 if any length is 0, and the largest number where it does not fit.
pub(crate) fn product(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |all, &n| all.saturating_mul(n)) }
}

/// The number of elements of a shape that is not trusted, where nothing of that size is made.
pub(crate) fn size(shape: &[usize]) -> Result<usize> {
    // Zeros count as ones: strides and places are computed from the other lengths.
    let all = shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n.max(1)));
    match all.filter(|&all| all <= isize::MAX as usize && shape.len() <= MOST_AXES) {
        Some(_) => Ok(product(shape)),
        None => Err(too_large(shape)),
    }
}

/// The number of elements of a shape that is not trusted, if that many may be made.
pub(crate) fn count(shape: &[usize]) -> Result<usize> {
    let all = size(shape)?;
    if all <= LIMIT.get() { Ok(all) } else { Err(too_large(shape)) }
}

/// As [`count`], for results on a device: one may be large where what it is made of is.
pub(crate) fn count_of(shape: &[usize], made_of: usize) -> Result<usize> {
    let all = size(shape)?;
    if all / 256 <= made_of { Ok(all) } else { count(shape) }
}

fn too_large(shape: &[usize]) -> Error {
    bad(format!("a result of shape {shape:?} is too large"))
}

/// The sum of lengths that are not trusted.
pub(crate) fn sum(lengths: impl IntoIterator<Item = usize>) -> Result<usize> {
    let all = lengths.into_iter().try_fold(0usize, usize::checked_add);
    all.filter(|&all| all <= isize::MAX as usize).ok_or_else(|| bad("the lengths add up to too much"))
}

/// The axis that a possibly negative number means.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let at = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(at)
        .ok()
        .filter(|&at| at < rank)
        .ok_or_else(|| bad(format!("axis {axis} does not exist in {rank} dimensions")))
}

/// The axes that possibly negative numbers mean, each once.
pub(crate) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>> {
    if rank > MOST_AXES {
        return Err(bad(format!("{rank} axes, at most {MOST_AXES} are supported")));
    }
    let axes = list.iter().map(|&at| axis(at, rank)).collect::<Result<Vec<_>>>()?;
    let mut seen = vec![false; rank];
    match axes.iter().find(|&&at| std::mem::replace(&mut seen[at], true)) {
        Some(twice) => Err(bad(format!("axis {twice} is named twice in {list:?}"))),
        None => Ok(axes),
    }
}

/// The shape that two shapes broadcast to.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(bad(format!("shapes {a:?} and {b:?} cannot be broadcast"))),
        })
        .collect()
}

/// The steps in memory of a dense array.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for i in (1..shape.len()).rev() {
        // Only a shape without elements has strides that do not fit.
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
    }
    strides
}

/// The places `offset + sum(index * steps)` for all indices of a shape, in row-major order.
pub(crate) fn places(shape: &[usize], steps: &[isize], offset: usize) -> Result<Vec<usize>> {
    let all = count(shape)?;
    let mut places = Vec::with_capacity(all);
    let mut index = vec![0usize; shape.len()];
    let mut at = offset as isize;
    for _ in 0..all {
        places.push(at as usize);
        for i in (0..shape.len()).rev() {
            index[i] += 1;
            at += steps[i];
            if index[i] < shape[i] {
                break;
            }
            at -= steps[i] * shape[i] as isize;
            index[i] = 0;
        }
    }
    Ok(places)
}

impl Array {
    /// An array of whole numbers.
    pub fn ints(kind: Kind, shape: Vec<usize>, data: Vec<i64>) -> Array {
        Array { kind, shape, data: Data::Ints(data) }
    }

    /// An array of fractions.
    pub fn floats(kind: Kind, shape: Vec<usize>, data: Vec<f64>) -> Array {
        Array { kind, shape, data: Data::Floats(data) }
    }

    /// One axis of int64.
    pub fn list(data: Vec<i64>) -> Array {
        Array::ints(Kind::I64, vec![data.len()], data)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        product(&self.shape)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An array of one value.
    pub fn full(kind: Kind, shape: Vec<usize>, value: f64) -> Result<Array> {
        let n = count(&shape)?;
        Ok(if kind.is_float() {
            Array::floats(kind, shape, vec![value; n])
        } else if kind == Kind::Text {
            Array { kind, shape, data: Data::Texts(vec![String::new(); n]) }
        } else {
            Array::ints(kind, shape, vec![value as i64; n])
        })
    }

    /// Reads a device's tensor.
    pub fn of_tensor(tensor: &Tensor) -> Result<Array> {
        let (kind, shape) = (Kind::of_dtype(tensor.dtype()), tensor.shape().to_vec());
        Ok(match tensor.dtype() {
            DType::I64 => Array::ints(kind, shape, tensor.to_host::<i64>()?),
            DType::I32 => Array::ints(kind, shape, tensor.to_host::<i32>()?.into_iter().map(i64::from).collect()),
            DType::U8 => Array::ints(kind, shape, tensor.to_host::<u8>()?.into_iter().map(i64::from).collect()),
            _ => Array::floats(kind, shape, tensor.to_f64_vec()?),
        })
    }

    /// Copies it to a device.
    pub fn to_tensor(&self, queue: &Queue) -> Result<Tensor> {
        let Some(dtype) = self.kind.dtype() else {
            return Err(bad(format!("tensors of {} are computed with on the host only", self.kind.name())));
        };
        let shape = &self.shape[..];
        match &self.data {
            Data::Ints(data) => match dtype {
                DType::I64 => Tensor::from_host(queue, data, shape),
                DType::I32 => Tensor::from_host(queue, &data.iter().map(|&v| v as i32).collect::<Vec<_>>(), shape),
                _ => Tensor::from_host(queue, &data.iter().map(|&v| v as u8).collect::<Vec<_>>(), shape),
            },
            Data::Floats(data) if dtype == DType::F64 => Tensor::from_host(queue, data, shape),
            // Rounded to its type before, so that going through float32 is exact.
            Data::Floats(data) => {
                Tensor::from_host(queue, &data.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape)?.cast(dtype)
            }
            Data::Texts(_) => Err(bad("strings have no place on a device")),
        }
    }

    /// Its whole numbers; fractions are cut.
    pub fn to_ints(&self) -> Result<Vec<i64>> {
        match &self.data {
            Data::Ints(data) => Ok(data.clone()),
            Data::Floats(data) => Ok(data.iter().map(|&v| v as i64).collect()),
            Data::Texts(_) => Err(bad("expected numbers, got strings")),
        }
    }

    /// Its numbers as fractions.
    pub fn to_floats(&self) -> Result<Vec<f64>> {
        match &self.data {
            Data::Ints(data) => Ok(data.iter().map(|&v| self.kind.widen(v) as f64).collect()),
            Data::Floats(data) => Ok(data.clone()),
            Data::Texts(_) => Err(bad("expected numbers, got strings")),
        }
    }

    /// Its strings.
    pub fn to_texts(&self) -> Result<&[String]> {
        match &self.data {
            Data::Texts(texts) => Ok(texts),
            _ => Err(bad(format!("expected strings, got {}", self.kind.name()))),
        }
    }

    /// The elements at the given places, in another shape.
    pub(crate) fn take(&self, places: &[usize], shape: Vec<usize>) -> Result<Array> {
        fn pick<T: Clone>(data: &[T], places: &[usize]) -> Result<Vec<T>> {
            places.iter().map(|&at| data.get(at).cloned()).collect::<Option<_>>().ok_or_else(outside)
        }
        if count(&shape)? != places.len() {
            return Err(bad(format!("{} elements do not fit shape {shape:?}", places.len())));
        }
        let data = match &self.data {
            Data::Ints(data) => Data::Ints(pick(data, places)?),
            Data::Floats(data) => Data::Floats(pick(data, places)?),
            Data::Texts(data) => {
                // One text is as large as it likes: its copies count as the numbers that would take as much.
                let bytes = places.iter().map(|&at| data.get(at).map_or(0, String::len) + size_of::<String>());
                count(&[sum(bytes)? / size_of::<f64>()])?;
                Data::Texts(pick(data, places)?)
            }
        };
        Ok(Array { kind: self.kind, shape, data })
    }

    /// Puts elements of another array of the same kind to places, one after the other.
    pub(crate) fn put(&mut self, places: &[usize], from: &Array) -> Result<()> {
        fn fill<T: Clone>(data: &mut [T], places: &[usize], from: &[T]) -> Result<()> {
            for (&at, value) in places.iter().zip(from) {
                data.get_mut(at).ok_or_else(outside)?.clone_from(value);
            }
            Ok(())
        }
        match (&mut self.data, &from.data) {
            (Data::Ints(data), Data::Ints(from)) => fill(data, places, from),
            (Data::Floats(data), Data::Floats(from)) => fill(data, places, from),
            (Data::Texts(data), Data::Texts(from)) => fill(data, places, from),
            _ => Err(bad(format!("{} and {} cannot be mixed", self.kind.name(), from.kind.name()))),
        }
    }

    /// The same elements in another shape.
    pub(crate) fn reshaped(mut self, shape: Vec<usize>) -> Result<Array> {
        if size(&shape)? != self.len() {
            return Err(bad(format!("shape {:?} cannot become {shape:?}", self.shape)));
        }
        self.shape = shape;
        Ok(self)
    }

    /// Repeated along axes of length 1, as broadcasting does.
    pub(crate) fn expanded(&self, shape: &[usize]) -> Result<Array> {
        if self.shape == shape {
            return Ok(self.clone());
        }
        if broadcast(&self.shape, shape)? != shape {
            return Err(bad(format!("shape {:?} cannot be expanded to {shape:?}", self.shape)));
        }
        let skipped = shape.len() - self.shape.len();
        let own = strides(&self.shape);
        let steps: Vec<isize> = (0..shape.len())
            .map(|i| i.checked_sub(skipped).filter(|&i| self.shape[i] != 1).map_or(0, |i| own[i] as isize))
            .collect();
        self.take(&places(shape, &steps, 0)?, shape.to_vec())
    }

    /// With its axes in another order.
    pub(crate) fn permuted(&self, order: &[usize]) -> Result<Array> {
        let own = strides(&self.shape);
        let shape: Vec<usize> = order.iter().map(|&i| self.shape[i]).collect();
        let steps: Vec<isize> = order.iter().map(|&i| own[i] as isize).collect();
        self.take(&places(&shape, &steps, 0)?, shape)
    }

    /// Elements `start, start + step, ...` of an axis.
    pub(crate) fn sliced(&self, axis: usize, start: usize, step: isize, length: usize) -> Result<Array> {
        let own = strides(&self.shape);
        let mut shape = self.shape.clone();
        shape[axis] = length;
        let mut steps: Vec<isize> = own.iter().map(|&s| s as isize).collect();
        // One element has no next one, however far that would be.
        steps[axis] = if length > 1 { steps[axis].saturating_mul(step) } else { 0 };
        self.take(&places(&shape, &steps, start.saturating_mul(own[axis]))?, shape)
    }

    /// Arrays behind each other along an axis.
    pub(crate) fn joined(parts: &[Array], axis: usize) -> Result<Array> {
        let Some(first) = parts.first() else { return Err(bad("nothing to concatenate")) };
        let mut shape = first.shape.clone();
        shape[axis] = sum(parts.iter().map(|part| part.shape.get(axis).copied().unwrap_or(0)))?;
        let mut out = Array::full(first.kind, shape.clone(), 0.0)?;
        let steps = strides(&shape);
        let signed: Vec<isize> = steps.iter().map(|&s| s as isize).collect();
        let mut at = 0usize;
        for part in parts {
            let fits = part.shape.len() == shape.len()
                && part.shape.iter().zip(&shape).enumerate().all(|(i, (a, b))| i == axis || a == b);
            if !fits {
                return Err(bad(format!("shapes {:?} and {:?} cannot be concatenated", first.shape, part.shape)));
            }
            out.put(&places(&part.shape, &signed, at.saturating_mul(steps[axis]))?, part)?;
            at += part.shape[axis];
        }
        Ok(out)
    }

    /// Repeated along each axis.
    pub(crate) fn tiled(&self, times: &[usize]) -> Result<Array> {
        let mut out = self.clone();
        for (i, &times) in times.iter().enumerate().filter(|(_, times)| **times != 1) {
            let mut to = out.shape.clone();
            to[i] = to[i].saturating_mul(times);
            let (before, after) = (product(&out.shape[..i]), product(&out.shape[i..]));
            out = out.reshaped(vec![before, 1, after])?.expanded(&[before, times, after])?.reshaped(to)?;
        }
        Ok(out)
    }

    /// As another type, as ONNX's Cast does it.
    pub(crate) fn cast(&self, kind: Kind, overflow: Overflow) -> Result<Array> {
        let data = match &self.data {
            Data::Ints(ints) if kind == Kind::Text => {
                Data::Texts(ints.iter().map(|&v| self.kind.widen(v).to_string()).collect())
            }
            Data::Ints(ints) if kind.is_float() => {
                Data::Floats(ints.iter().map(|&v| kind.round(self.kind.widen(v) as f64, overflow)).collect())
            }
            Data::Ints(ints) => Data::Ints(ints.iter().map(|&v| kind.wrap(self.kind.widen(v))).collect()),
            Data::Floats(floats) if kind == Kind::Text => {
                Data::Texts(floats.iter().map(|&v| text_of(v, self.kind)).collect())
            }
            Data::Floats(floats) if kind.is_float() => {
                Data::Floats(floats.iter().map(|&v| kind.round(v, overflow)).collect())
            }
            Data::Floats(floats) if kind == Kind::Bool => {
                Data::Ints(floats.iter().map(|&v| i64::from(v != 0.0)).collect())
            }
            Data::Floats(floats) => Data::Ints(floats.iter().map(|&v| kind.wrap(v.trunc() as i128)).collect()),
            Data::Texts(texts) if kind == Kind::Text => Data::Texts(texts.clone()),
            Data::Texts(texts) => {
                let number =
                    |text: &String| text.trim().parse::<f64>().map_err(|_| bad(format!("{text:?} is not a number")));
                let numbers = texts.iter().map(number).collect::<Result<Vec<f64>>>()?;
                return Array::floats(Kind::F64, self.shape.clone(), numbers).cast(kind, overflow);
            }
        };
        Ok(Array { kind, shape: self.shape.clone(), data })
    }

    /// A function of each fraction, rounded to the type.
    pub(crate) fn map_floats(&self, f: impl Fn(f64) -> f64) -> Result<Array> {
        let kind = self.kind;
        let data = self.to_floats()?.into_iter().map(|v| kind.round(f(v), Overflow::Infinite)).collect();
        Ok(Array::floats(kind, self.shape.clone(), data))
    }
}

fn outside() -> Error {
    bad("a place is outside of the array")
}

/// A fraction as the text that NumPy writes.
fn text_of(value: f64, kind: Kind) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "INF".to_owned() } else { "-INF".to_owned() }
    } else if kind == Kind::F32 {
        format!("{}", value as f32)
    } else {
        format!("{value}")
    }
}

//! Tensors out of nothing or out of the host's numbers: `Tensor::zeros("gpu", [2, 3])`.
//!
//! The first argument is where the tensor is made, [`AsDevice`]: a queue, a handle, a selector, or `()` for the active device; with a
//! dtype beside it, as in `(&queue, DType::F64)`, that is the tensor's, else float32.

use netcl_core::device::AsDevice;
use netcl_core::dtype::{DType, Element};
use netcl_core::half::{bf16, f16};
use netcl_core::host;
use netcl_core::shape::{Layout, Shape};
use netcl_core::tensor::{self as raw, HostOptions};
use netcl_ops::{self as ops, random};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Numbers in nested arrays, slices or vectors: what [`Tensor::new`] takes.
pub trait Nested {
    /// The type of the numbers.
    type Number: Element;

    /// Appends the numbers, and the lengths of the axes from `depth` on where they are not known yet; false where they differ from the
    /// known ones.
    fn collect(&self, depth: usize, lengths: &mut Vec<usize>, numbers: &mut Vec<Self::Number>) -> bool;
}

macro_rules! numbers {
    ($($type:ty as $number:ty),*) => {$(
        impl Nested for $type {
            type Number = $number;
            fn collect(&self, depth: usize, lengths: &mut Vec<usize>, numbers: &mut Vec<$number>) -> bool {
                numbers.push((*self).into());
                depth == lengths.len()
            }
        }
    )*};
}

numbers! { f32 as f32, f64 as f64, f16 as f16, bf16 as bf16, u8 as u8, i32 as i32, i64 as i64, bool as u8 }

impl<T: Nested> Nested for [T] {
    type Number = T::Number;
    fn collect(&self, depth: usize, lengths: &mut Vec<usize>, numbers: &mut Vec<T::Number>) -> bool {
        if depth == lengths.len() {
            lengths.push(self.len());
        }
        lengths[depth] == self.len() && self.iter().all(|part| part.collect(depth + 1, lengths, numbers))
    }
}

impl<T: Nested, const N: usize> Nested for [T; N] {
    type Number = T::Number;
    fn collect(&self, depth: usize, lengths: &mut Vec<usize>, numbers: &mut Vec<T::Number>) -> bool {
        self.as_slice().collect(depth, lengths, numbers)
    }
}

impl<T: Nested> Nested for Vec<T> {
    type Number = T::Number;
    fn collect(&self, depth: usize, lengths: &mut Vec<usize>, numbers: &mut Vec<T::Number>) -> bool {
        self.as_slice().collect(depth, lengths, numbers)
    }
}

impl<T: Nested + ?Sized> Nested for &T {
    type Number = T::Number;
    fn collect(&self, depth: usize, lengths: &mut Vec<usize>, numbers: &mut Vec<T::Number>) -> bool {
        (**self).collect(depth, lengths, numbers)
    }
}

/// The dtype of a tensor made of literals: a plain `1.0` is an f64 in Rust, but means float32 to everybody else here.
fn of_literals<T: Element>(device: &impl AsDevice) -> DType {
    device.dtype().unwrap_or(if T::DTYPE == DType::F64 { DType::F32 } else { T::DTYPE })
}

fn float(device: &impl AsDevice) -> DType {
    device.dtype().unwrap_or(DType::F32)
}

impl Tensor {
    /// A tensor of the numbers of nested arrays or vectors. Plain literals (f64) become float32, as Python's floats do; name the dtype
    /// for others.
    ///
    /// ```
    /// use netcl_autograd::{DType, Tensor};
    ///
    /// let x = Tensor::new("cpu", [[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!((x.shape().to_string().as_str(), x.dtype()), ("(2, 2)", DType::F32));
    /// assert_eq!(Tensor::new(("cpu", DType::F64), vec![0.1])?.to_host::<f64>()?, [0.1]);
    /// assert!(Tensor::new("cpu", vec![vec![1, 2], vec![3]]).is_err());
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    ///
    /// # Errors
    /// If parts of one axis have different lengths, and for what [`Tensor::from_host`] refuses.
    pub fn new<N: Nested>(device: impl AsDevice, values: N) -> Result<Tensor> {
        let (mut lengths, mut numbers) = (Vec::new(), Vec::new());
        if !values.collect(0, &mut lengths, &mut numbers) {
            return Err(Error::argument(
                "Tensor::new",
                "the rows have different lengths; all must be as long as the first",
            ));
        }
        let dtype = of_literals::<N::Number>(&device);
        let options = HostOptions { dtype: Some(dtype), ..HostOptions::default() };
        Tensor::from_host_with(device, &numbers, lengths, options)
    }

    /// A tensor of a vector's numbers, with their dtype unless another one is named.
    pub fn from_vec<T: Element>(device: impl AsDevice, values: Vec<T>, shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::from_host(device, &values, shape)
    }

    /// A tensor of zeros.
    ///
    /// ```
    /// use netcl_autograd::{DType, Tensor};
    ///
    /// assert_eq!(Tensor::zeros("cpu", [2])?.to_host::<f32>()?, [0.0; 2]);
    /// assert_eq!(Tensor::zeros(("cpu", DType::I64), 2)?.to_host::<i64>()?, [0; 2]);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    pub fn zeros(device: impl AsDevice, shape: impl Into<Shape>) -> Result<Tensor> {
        let dtype = float(&device);
        Tensor::full(device, shape, dtype, 0.0)
    }

    /// A tensor of ones.
    pub fn ones(device: impl AsDevice, shape: impl Into<Shape>) -> Result<Tensor> {
        let dtype = float(&device);
        Tensor::full(device, shape, dtype, 1.0)
    }

    /// A tensor whose values are whatever the memory holds, to be overwritten.
    pub fn empty(device: impl AsDevice, shape: impl Into<Shape>) -> Result<Tensor> {
        Ok(raw::Tensor::uninit(&device.queue()?, shape, float(&device))?.into())
    }

    /// The numbers from `start` up to but not including `stop`, 1 apart.
    ///
    /// ```
    /// use netcl_autograd::Tensor;
    ///
    /// assert_eq!(Tensor::arange("cpu", 0, 4)?.to_host::<i32>()?, [0, 1, 2, 3]);
    /// assert_eq!(Tensor::arange_step("cpu", 1.0, 0.0, -0.5)?.to_host::<f32>()?, [1.0, 0.5]);
    /// assert_eq!(Tensor::linspace("cpu", 0.0, 1.0, 3)?.to_host::<f32>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    pub fn arange<T: Element>(device: impl AsDevice, start: T, stop: T) -> Result<Tensor> {
        Tensor::arange_step(device, start, stop, T::from_f64(1.0))
    }

    /// [`Tensor::arange`] with another step, which may be negative.
    pub fn arange_step<T: Element>(device: impl AsDevice, start: T, stop: T, step: T) -> Result<Tensor> {
        let dtype = of_literals::<T>(&device);
        Ok(ops::arange(&device.queue()?, start.to_f64(), stop.to_f64(), step.to_f64(), dtype)?.into())
    }

    /// `steps` numbers from `start` to `stop`, both included, evenly apart.
    pub fn linspace(device: impl AsDevice, start: f64, stop: f64, steps: usize) -> Result<Tensor> {
        let gaps = steps.saturating_sub(1).max(1) as f64;
        // From the nearer end, so that both ends are exact.
        let at = |i: usize| match 2 * i < steps {
            true => start + (stop - start) * (i as f64 / gaps),
            false if steps == 1 => start,
            false => stop - (stop - start) * ((steps - 1 - i) as f64 / gaps),
        };
        let values = host::collect("linspace", (0..steps).map(at))?;
        let options = HostOptions { dtype: Some(float(&device)), ..HostOptions::default() };
        Tensor::from_host_with(device, &values, [steps], options)
    }

    /// The identity matrix of `n` rows.
    pub fn eye(device: impl AsDevice, n: usize) -> Result<Tensor> {
        let (queue, dtype) = (device.queue()?, float(&device));
        let eye = raw::Tensor::full(&queue, [n, n], dtype, 0.0)?;
        // Every (n + 1)th element of the rows one after the other.
        eye.with_layout(Layout::strided([n].into(), &[n as isize + 1], 0)?)?.fill(1.0)?;
        Ok(eye.into())
    }

    /// Uniform numbers in [0, 1) of the process-wide generator ([`manual_seed`](crate::manual_seed)).
    pub fn rand(device: impl AsDevice, shape: impl Into<Shape>) -> Result<Tensor> {
        Ok(random::uniform(&device.queue()?, shape, float(&device), 0.0, 1.0, None)?.into())
    }

    /// Normal numbers of mean 0 and standard deviation 1 of the process-wide generator.
    pub fn randn(device: impl AsDevice, shape: impl Into<Shape>) -> Result<Tensor> {
        Ok(random::normal(&device.queue()?, shape, float(&device), 0.0, 1.0, None)?.into())
    }

    /// Whole numbers in [low, high) of the process-wide generator, int64 unless another dtype is named.
    pub fn randint(device: impl AsDevice, low: i64, high: i64, shape: impl Into<Shape>) -> Result<Tensor> {
        let drawn = random::integers(&device.queue()?, shape, low, high, None)?;
        Ok(drawn.cast(device.dtype().unwrap_or(DType::I64))?.into())
    }
}

/// Tensors of the shape, dtype and device of this one; see the functions of the same names.
impl Tensor {
    /// Zeros.
    pub fn zeros_like(&self) -> Result<Tensor> {
        self.full_like(0.0)
    }

    /// Ones.
    pub fn ones_like(&self) -> Result<Tensor> {
        self.full_like(1.0)
    }

    /// One value everywhere.
    pub fn full_like(&self, value: f64) -> Result<Tensor> {
        Tensor::full(self.queue(), self.shape(), self.dtype(), value)
    }

    /// Whatever the memory holds.
    pub fn empty_like(&self) -> Result<Tensor> {
        Tensor::empty((self.queue(), self.dtype()), self.shape())
    }

    /// Uniform numbers in [0, 1).
    pub fn rand_like(&self) -> Result<Tensor> {
        Tensor::rand((self.queue(), self.dtype()), self.shape())
    }

    /// Normal numbers.
    pub fn randn_like(&self) -> Result<Tensor> {
        Tensor::randn((self.queue(), self.dtype()), self.shape())
    }

    /// Whole numbers in [low, high).
    pub fn randint_like(&self, low: i64, high: i64) -> Result<Tensor> {
        Tensor::randint((self.queue(), self.dtype()), low, high, self.shape())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_core::device::manager;

    #[test]
    fn every_factory_on_every_kind_of_place() {
        let handle = manager().cpu();
        let queue = handle.queue.clone();
        let places: [&dyn AsDevice; 5] = [&queue, &handle, &"cpu", &"cpu".to_owned(), &(&queue, DType::F32)];
        for place in places {
            assert_eq!(Tensor::ones(place, [1, 2]).unwrap().to_host::<f32>().unwrap(), [1.0; 2]);
        }
        let scope = netcl_core::device::device("cpu").unwrap();
        assert_eq!(Tensor::eye((), 2).unwrap().to_host::<f32>().unwrap(), [1.0, 0.0, 0.0, 1.0]);
        drop(scope);
        assert!(Tensor::zeros("no such device", 1).unwrap_err().to_string().contains("available: "));

        for dtype in DType::FLOATS {
            let line = Tensor::linspace((&queue, dtype), -1.0, 1.0, 5).unwrap();
            assert_eq!((line.dtype(), line.to_f64_vec().unwrap()), (dtype, vec![-1.0, -0.5, 0.0, 0.5, 1.0]));
            let drawn = [line.rand_like(), line.randn_like(), line.randint_like(3, 5), line.empty_like()];
            for x in drawn {
                let x = x.unwrap();
                assert_eq!((x.dtype(), x.shape()), (dtype, line.shape()));
            }
            assert_eq!(line.full_like(0.25).unwrap().to_f64_vec().unwrap(), [0.25; 5]);
            assert_eq!(Tensor::eye((&queue, dtype), 3).unwrap().to_f64_vec().unwrap().iter().sum::<f64>(), 3.0);
        }
        assert_eq!(Tensor::linspace(&queue, 3.0, 9.0, 1).unwrap().to_f64_vec().unwrap(), [3.0]);
        assert_eq!(Tensor::linspace(&queue, 3.0, 9.0, 0).unwrap().size() + Tensor::eye(&queue, 0).unwrap().size(), 0);

        let dice = Tensor::randint(&queue, -2, 4, [1000]).unwrap().to_host::<i64>().unwrap();
        assert_eq!((-2..4).map(|face| usize::from(dice.contains(&face))).sum::<usize>(), 6);
        assert!(dice.iter().all(|face| (-2..4).contains(face)));
        assert!(
            Tensor::randint(&queue, i64::MIN, i64::MAX, [4]).is_err() && Tensor::randint(&queue, 1, 1, [4]).is_err()
        );
        assert!(Tensor::rand((&queue, DType::I64), [2]).is_err());
        assert!(
            Tensor::zeros(&queue, [usize::MAX, 2]).is_err() && Tensor::linspace(&queue, 0.0, 1.0, 1 << 60).is_err()
        );

        let nested = Tensor::new(&queue, [[[1i64, 2, 3]], [[4, 5, 6]]]).unwrap();
        assert_eq!((nested.shape()[..].to_vec(), nested.dtype()), (vec![2, 1, 3], DType::I64));
        assert_eq!(Tensor::new(&queue, 2.5).unwrap().item().unwrap(), 2.5);
        assert_eq!(Tensor::new(&queue, [true, false]).unwrap().to_host::<u8>().unwrap(), [1, 0]);
        // As many numbers as the first row's length would give, in rows of other lengths.
        assert!(Tensor::new(&queue, vec![vec![1.0, 2.0], vec![3.0], vec![4.0, 5.0, 6.0]]).is_err());
    }
}

//! Operands of products in every form, and products in f64.

pub(crate) mod kinds;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::Tensor;

use crate::support::{random, tensor};

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Dense,
    Transposed,
    /// Every second row backwards, every third column.
    Strided,
}

/// A matrix (or batch of them) of a shape, whose last two axes lie in memory in some form.
pub(crate) fn operand(queue: &Queue, shape: &[usize], form: Form, seed: u64, dtype: DType) -> Tensor {
    let n = shape.len();
    let mut stored = shape.to_vec();
    match form {
        Form::Dense => {}
        Form::Transposed => stored.swap(n - 1, n - 2),
        Form::Strided => {
            stored[n - 2] = shape[n - 2] * 2 + 1;
            stored[n - 1] = shape[n - 1] * 3;
        }
    }
    let values = random(stored.iter().product(), seed, (-1.0, 1.0));
    let (t, _) = tensor(queue, &values, stored.as_slice(), dtype);
    match form {
        Form::Dense => t,
        Form::Transposed => {
            let axes: Vec<isize> = (0..n as isize - 2).chain([n as isize - 1, n as isize - 2]).collect();
            t.permute(&axes).unwrap()
        }
        Form::Strided => {
            let (row, col) = (n as isize - 2, n as isize - 1);
            let stop = Some(0).filter(|_| shape[n - 2] > 0);
            t.slice(row, Slice::new(None, stop, -2)).unwrap().slice(col, Slice::new(Some(1), None, 3)).unwrap()
        }
    }
}

/// The product in f64, and for each element the sum of the terms' magnitudes.
pub(crate) fn reference(a: &Tensor, b: &Tensor) -> (Vec<f64>, Vec<f64>, Shape) {
    let (m, k) = (a.shape()[a.ndim() - 2], a.shape()[a.ndim() - 1]);
    let n = b.shape()[b.ndim() - 1];
    let batch_a = Shape::from(&a.shape()[..a.ndim() - 2]);
    let batch = batch_a.broadcast("test", &Shape::from(&b.shape()[..b.ndim() - 2])).unwrap();
    let full = |tail: [usize; 2]| batch.iter().copied().chain(tail).collect::<Shape>();
    let (va, vb) =
        (a.expand(full([m, k])).unwrap().to_f64_vec().unwrap(), b.expand(full([k, n])).unwrap().to_f64_vec().unwrap());
    let mut sums = vec![0.0; batch.size() * m * n];
    let mut sizes = sums.clone();
    for (line, (sums, sizes)) in sums.chunks_mut(n.max(1)).zip(sizes.chunks_mut(n.max(1))).enumerate() {
        let matrix = line / m;
        for i in 0..k {
            let factor = va[line * k + i];
            let terms = &vb[(matrix * k + i) * n..][..n];
            for ((sum, size), x) in sums.iter_mut().zip(sizes.iter_mut()).zip(terms) {
                *sum += factor * x;
                *size += (factor * x).abs();
            }
        }
    }
    (sums, sizes, full([m, n]))
}

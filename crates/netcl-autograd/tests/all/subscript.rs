//! Subscripts of Rust; `python/tests/test_indexing.py` holds the rules against NumPy's.

use netcl_autograd::gradcheck::{Tolerance, gradcheck};
use netcl_autograd::ops::subscript::{Ellipsis, NewAxis};
use netcl_autograd::{DType, IndexTensor, Slice, Tensor, no_grad};
use netcl_core::backend::Queue;

use crate::support::{cpu, devices, leaf};

fn numbers(queue: &Queue, shape: &[usize]) -> Tensor {
    let values: Vec<i32> = (0..shape.iter().product::<usize>() as i32).collect();
    Tensor::from_host(queue, &values, shape).unwrap()
}

fn values(x: &Tensor) -> (Vec<usize>, Vec<i32>) {
    (x.shape().to_vec(), x.to_host::<i32>().unwrap())
}

#[test]
fn keys_of_every_type() {
    for device in devices() {
        let queue = &device.queue;
        let x = numbers(queue, &[2, 3, 4]);
        let index = IndexTensor::from_host(queue, &[-1i64, 0], [2]).unwrap();
        let mask = Tensor::from_host(queue, &[1u8, 0, 0, 1, 0, 1], [2, 3]).unwrap();
        let backwards = Slice::new(None, None, -1);
        assert_eq!(values(&x.i((1, 2usize, -1i64)).unwrap()), (vec![], vec![23]));
        assert_eq!(values(&x.i((.., 1..2, ..=0)).unwrap()), (vec![2, 1, 1], vec![4, 16]));
        assert_eq!(values(&x.i((-1, 1.., 2..)).unwrap()), (vec![2, 2], vec![18, 19, 22, 23]));
        assert_eq!(values(&x.i((Ellipsis, NewAxis, ..1usize)).unwrap()).0, [2, 3, 1, 1]);
        assert_eq!(values(&x.i((0, backwards, 0)).unwrap()).1, [8, 4, 0]);
        assert_eq!(values(&x.i((0, 0, &index)).unwrap()).1, [3, 0]);
        assert_eq!(values(&x.i((&index, .., [1, 2])).unwrap()), (vec![2, 3], vec![13, 17, 21, 2, 6, 10]));
        assert_eq!(values(&x.i((&mask, 0)).unwrap()).1, [0, 12, 20]);
        assert_eq!(
            values(&x.i((.., &[true, false, true][..], vec![0usize, 1])).unwrap()),
            (vec![2, 2], vec![0, 9, 12, 21])
        );
        assert_eq!(values(&x.i((false, 0, 0)).unwrap()).0, [0, 4]);
        for (key, words) in
            [(vec![0i64, 2], "index 2 is out of range for axis 0 of shape (2, 3, 4)"), (vec![-3], "index -3")]
        {
            let error = x.i(&key).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let error = x.i(&Tensor::from_shape(queue, [3, 3], DType::U8).unwrap()).unwrap_err().to_string();
        assert!(error.contains("a mask of shape (3, 3)"), "{error}");
    }
}

#[test]
fn whole_numbers_and_bytes_are_written() {
    for device in devices() {
        let mut x = numbers(&device.queue, &[2, 3]);
        let source = Tensor::from_host(&device.queue, &[7i32, 8, 9], [3]).unwrap();
        x.index_put_((0, [2, 0, 2]), &source, false).unwrap();
        assert_eq!(values(&x).1, [8, 1, 9, 3, 4, 5]);
        x.index_put_((.., [1, 1, 0]), &source, true).unwrap();
        assert_eq!(values(&x).1, [17, 16, 9, 12, 19, 5]);
        let mut bytes = Tensor::from_shape(&device.queue, [4], DType::U8).unwrap();
        bytes.index_put_([3, 1], 1.0, false).unwrap();
        assert_eq!(bytes.to_host::<u8>().unwrap(), [0, 1, 0, 1]);
        let chosen = numbers(&device.queue, &[4]).i(&bytes).unwrap();
        assert_eq!(values(&chosen).1, [1, 3]);
    }
}

#[test]
fn gradients_of_writes() {
    let queue = cpu();
    let (x, y) = (leaf(&queue, DType::F64, &[3, 4], 1, (0.5, 2.0)), leaf(&queue, DType::F64, &[3, 2], 2, (0.5, 2.0)));
    let written = |inputs: &[&Tensor]| {
        let mut z = (inputs[0] * inputs[0])?;
        z.index_put_(([2, 0, 2], 1..3), inputs[1], false)?;
        z.index_put_((.., 0), &inputs[0].i((.., 3))?, true)?;
        &z * &z
    };
    gradcheck(written, &[&x, &y], Tolerance::default()).unwrap();
    let mut held = x.clone();
    assert!(held.index_put_([0], 0.0, false).unwrap_err().to_string().contains("leaf that requires grad"));
    let _scope = no_grad();
    held.index_put_([0], 0.0, false).unwrap();
    assert_eq!(x.i(0).unwrap().to_host::<f64>().unwrap(), [0.0; 4]);
}

//! Layout operations on every device, held against plain index arithmetic.

use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::tensor::Tensor;
use netcl_ops::layout::*;

use crate::support::{devices, supports};

fn counting(queue: &netcl_core::backend::Queue, shape: &[usize], dtype: DType) -> Tensor {
    let n = shape.iter().product::<usize>() as f64;
    reshape(&arange(queue, 0.0, n, 1.0, dtype).unwrap(), shape).unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_f64_vec().unwrap()
}

#[test]
fn joining_and_parting() {
    for device in devices() {
        for dtype in DType::FLOATS.into_iter().filter(|&d| supports(&device, d)) {
            let x = counting(&device.queue, &[2, 3], dtype);
            let y = counting(&device.queue, &[2, 1], dtype);
            assert_eq!(
                values(&cat(&[&x, &y, &x], 1).unwrap()),
                [0., 1., 2., 0., 0., 1., 2., 3., 4., 5., 1., 3., 4., 5.]
            );
            assert_eq!(values(&cat(&[&x, &x], -2).unwrap())[6..], values(&x)[..]);
            let stacked = stack(&[&x, &x], 1).unwrap();
            assert_eq!(
                (stacked.shape().to_vec(), &values(&stacked)[..6]),
                (vec![2, 2, 3], &[0., 1., 2., 0., 1., 2.][..])
            );
            let parts = split(&x, &[1, 0, 2], 1).unwrap();
            assert_eq!(parts.iter().map(values).collect::<Vec<_>>(), [vec![0., 3.], vec![], vec![1., 2., 4., 5.]]);
            assert!(parts[2].shares_storage(&x));
            let chunks = chunk(&counting(&device.queue, &[7], dtype), 3, 0).unwrap();
            assert_eq!(chunks.iter().map(Tensor::size).collect::<Vec<_>>(), [3, 3, 1]);
            assert_eq!(
                values(&repeat(&counting(&device.queue, &[2], dtype), &[2, 3]).unwrap()),
                [0., 1., 0., 1., 0., 1., 0., 1., 0., 1., 0., 1.]
            );
            assert_eq!(values(&repeat(&y, &[1, 2]).unwrap()), [0., 0., 1., 1.]);
        }
    }
}

#[test]
fn views_and_triangles() {
    for device in devices() {
        let x = counting(&device.queue, &[2, 3, 4], DType::F32);
        assert_eq!(transpose(&x, 0, -1).unwrap().shape().to_vec(), [4, 3, 2]);
        assert_eq!(values(&flip(&x, &[0, 2]).unwrap())[..4], [15., 14., 13., 12.]);
        assert_eq!(squeeze(&unsqueeze(&x, 1).unwrap(), &[]).unwrap().shape(), x.shape());
        assert!(squeeze(&x, &[0]).unwrap_err().to_string().contains("length 2"));
        assert_eq!(values(&slice(&x, 2, Some(-1), None, -2).unwrap())[..2], [3., 1.]);
        let square = counting(&device.queue, &[3, 3], DType::F32);
        assert_eq!(values(&tril(&square, 0).unwrap()), [0., 0., 0., 3., 4., 0., 6., 7., 8.]);
        assert_eq!(values(&triu(&square, 1).unwrap()), [0., 1., 2., 0., 0., 5., 0., 0., 0.]);
        assert_eq!(values(&tril(&x, 1).unwrap())[..8], [0., 1., 0., 0., 4., 5., 6., 0.]);
        if supports(&device, DType::F64) {
            assert_eq!(values(&full(&device.queue, [2], 2.5, DType::F64).unwrap()), [2.5, 2.5]);
        }
        assert_eq!(values(&arange(&device.queue, 1.0, -1.0, -0.5, DType::F32).unwrap()), [1.0, 0.5, 0.0, -0.5]);
    }
}

#[test]
fn bad_requests_are_explained() {
    let q = manager().cpu().queue;
    let x = counting(&q, &[2, 3], DType::F32);
    let text = |r: netcl_core::Result<Tensor>| r.unwrap_err().to_string();
    assert!(text(cat(&[], 0)).contains("nothing to join"));
    assert!(text(cat(&[&x, &counting(&q, &[3, 3], DType::F32)], 1)).contains("only axis 1 may differ"));
    assert!(text(cat(&[&x, &counting(&q, &[2, 3], DType::F64)], 1)).contains("mixes float32 and float64"));
    assert!(text(stack(&[&x, &counting(&q, &[3, 2], DType::F32)], 0)).contains("all must be equal"));
    assert!(split(&x, &[1, 1], 1).unwrap_err().to_string().contains("do not add up"));
    assert!(chunk(&x, 0, 0).is_err() && repeat(&x, &[2]).is_err() && tril(&counting(&q, &[3], DType::F32), 0).is_err());
    assert!(text(arange(&q, 0.0, 1.0, 0.0, DType::F32)).contains("not zero"));
    assert!(text(transpose(&x, 0, 5)).contains("axis 5 is out of range"));
}

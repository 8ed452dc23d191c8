//! The gradients of a fully connected layer's weight and bias from one launch, against sums in float64.

use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_core::tensor::{HostOptions, Tensor};
use netcl_ops::{linear_gradients, linear_gradients_pay};

use crate::support::devices;

fn values(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 97) as f64 / 48.0 - 1.0).collect()
}

fn matrix(queue: &Queue, shape: [usize; 2], seed: usize, dtype: DType) -> Tensor {
    // Of the type from the start: the device may have no float64.
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    Tensor::from_host_with(queue, &values(shape[0] * shape[1], seed), shape, options).unwrap()
}

#[test]
fn one_launch_gives_both_gradients() {
    for device in devices() {
        let queue = &device.queue;
        for dtype in [DType::F32, DType::F64] {
            if queue.check_dtype("test", dtype).is_err() {
                continue;
            }
            for (rows, outputs, features, turned) in
                [(32, 10, 128, false), (1, 1, 1, false), (33, 17, 65, true), (200, 70, 3, false), (5, 33, 129, true)]
            {
                // Turned: the operands are views whose columns lie far apart.
                let (grad, x) = if turned {
                    let turn = |t: Tensor| t.permute(&[1, 0]).unwrap();
                    (turn(matrix(queue, [outputs, rows], 1, dtype)), turn(matrix(queue, [features, rows], 2, dtype)))
                } else {
                    (matrix(queue, [rows, outputs], 1, dtype), matrix(queue, [rows, features], 2, dtype))
                };
                let counter = Rc::new(Counter::default());
                let (weight, bias) = with_sink(counter.clone(), || linear_gradients(&grad, &x)).unwrap();
                let expected = if matches!(queue, Queue::Cpu(_)) { 2 } else { 1 };
                assert_eq!(counter.launches(), expected, "{}: {:?}", device.device_name, counter.names());
                let (g, x) = (grad.to_f64_vec().unwrap(), x.to_f64_vec().unwrap());
                let (weight, bias) = (weight.to_f64_vec().unwrap(), bias.to_f64_vec().unwrap());
                let bound = if dtype == DType::F32 { 1e-5 * rows as f64 } else { 1e-13 * rows as f64 };
                for o in 0..outputs {
                    let sum: f64 = (0..rows).map(|r| g[r * outputs + o]).sum();
                    assert!((bias[o] - sum).abs() <= bound, "{} {dtype}: bias {o}", device.device_name);
                    for i in 0..features {
                        let sum: f64 = (0..rows).map(|r| g[r * outputs + o] * x[r * features + i]).sum();
                        let got = weight[o * features + i];
                        assert!((got - sum).abs() <= bound, "{} {dtype}: {got} for {sum}", device.device_name);
                    }
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let queue = &devices()[0].queue;
    let matrix = |shape: [usize; 2]| Tensor::from_shape(queue, shape, DType::F32).unwrap();
    let message = |grad: &Tensor, x: &Tensor| linear_gradients(grad, x).unwrap_err().to_string();
    assert!(message(&matrix([3, 2]), &matrix([4, 2])).contains("4 rows, the gradient has 3"));
    let vector = Tensor::from_shape(queue, [3], DType::F32).unwrap();
    assert!(message(&vector, &matrix([3, 2])).contains("a matrix"));
    let half = matrix([3, 2]).cast(DType::F16).unwrap();
    assert!(message(&half, &half).contains("float32 or float64"));
    assert!(!linear_gradients_pay(&matrix([3, 2]), &matrix([3, 2])), "the native CPU has no launches to save");
    // No rows: zeros.
    let (weight, bias) = linear_gradients(&matrix([0, 2]), &matrix([0, 3])).unwrap();
    assert_eq!((weight.to_host::<f32>().unwrap(), bias.to_host::<f32>().unwrap()), (vec![0.0; 6], vec![0.0; 2]));
}

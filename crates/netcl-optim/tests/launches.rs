//! How many launches steps and clipping take, and that memory does not grow.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod support;

use std::rc::Rc;

use netcl_optim::autograd::Tensor;
use netcl_optim::autograd::core::backend::Queue;
use netcl_optim::autograd::core::dtype::DType;
use netcl_optim::autograd::core::kernels::launch::{Counter, with_sink};
use netcl_optim::{Adam, Optimizer};
use support::{devices, formula, resnet18_shapes, tensor};

/// ResNet-18's 62 parameters with its channels divided by four, which changes lengths but not their number.
fn parameters(queue: &Queue, dtype: DType) -> Vec<Tensor> {
    let shapes = resnet18_shapes(4);
    assert_eq!(shapes.len(), 62);
    shapes.iter().enumerate().map(|(i, shape)| tensor(queue, &formula(i, 0, shape), shape, dtype).with_grad()).collect()
}

fn set_gradients(params: &[Tensor], step: usize) {
    for (i, parameter) in params.iter().enumerate() {
        let values = formula(i, step + 1, parameter.shape());
        parameter.set_grad(Some(tensor(parameter.queue(), &values, parameter.shape(), parameter.dtype())));
    }
}

#[test]
fn an_adam_step_of_resnet18_is_one_launch_per_dtype() {
    for device in devices() {
        let params = parameters(&device.queue, DType::F32);
        let mut opt = Adam::new(params.clone(), 1e-3).unwrap();
        for step in 0..3 {
            set_gradients(&params, step);
            let counter = Rc::new(Counter::default());
            with_sink(counter.clone(), || opt.step()).unwrap();
            assert_eq!(counter.names(), [("adam".to_owned(), 1)], "{}", device.device_name);
        }
    }
}

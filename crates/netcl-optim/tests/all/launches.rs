//! How many launches steps and clipping take, and that memory does not grow.

use std::rc::Rc;
use std::sync::{PoisonError, RwLock};

use netcl_autograd::Tensor;
use netcl_autograd::ops::norm::layer_norm;
use netcl_core::backend::Queue;
use netcl_core::backend::cpu::buffer;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_optim::{Adam, Ema, EmaOptions, Optimizer, StepOptions, clip_grad_norm_device, clip_grad_value};

use crate::support::{cpu, devices, formula, resnet18_shapes, tensor};

/// The native CPU's memory is counted for the whole process: the test that compares it runs while no other does.
static MEMORY: RwLock<()> = RwLock::new(());

/// ResNet-18's 62 parameters with its channels divided by sixteen, which changes their lengths but not their number.
fn parameters(queue: &Queue, dtype: DType) -> Vec<Tensor> {
    let shapes = resnet18_shapes(16);
    assert_eq!(shapes.len(), 62);
    shapes.iter().enumerate().map(|(i, shape)| tensor(queue, &formula(i, 0, shape), shape, dtype).with_grad()).collect()
}

fn set_gradients(params: &[Tensor], step: usize) {
    for (i, parameter) in params.iter().enumerate() {
        let values = formula(i, step + 1, parameter.shape());
        parameter.set_grad(Some(tensor(parameter.queue(), &values, parameter.shape(), parameter.dtype())));
    }
}

/// The launches of a call, with their counts.
fn launches<R>(call: impl FnOnce() -> netcl_autograd::Result<R>) -> Vec<(String, usize)> {
    let counter = Rc::new(Counter::default());
    with_sink(counter.clone(), call).unwrap();
    counter.names()
}

fn named(names: &[(&str, usize)]) -> Vec<(String, usize)> {
    names.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn an_adam_step_of_resnet18_is_one_launch() {
    let _shared = MEMORY.read().unwrap_or_else(PoisonError::into_inner);
    for device in devices() {
        let params = parameters(&device.queue, DType::F32);
        let mut opt = Adam::new(params.clone(), 1e-3).unwrap();
        opt.groups()[0].set_weight_decay(0.1);
        for step in 0..3 {
            set_gradients(&params, step);
            assert_eq!(launches(|| opt.step()), named(&[("adam", 1)]), "{}", device.device_name);
        }
        assert!(launches(|| clip_grad_norm_device(&params, 1.0)).iter().map(|(_, n)| n).sum::<usize>() <= 3);
        assert_eq!(launches(|| clip_grad_value(&params, 1.0)), named(&[("clip_grad_value", 1)]));
        // Clipping on the way costs two small launches, and leaves the gradients alone.
        let options = StepOptions { max_norm: Some(1.0), skip_non_finite: true, ..Default::default() };
        let expected = named(&[("adam", 1), ("sum_of_squares", 1), ("verdict", 1)]);
        assert_eq!(launches(|| opt.step_with(&options)), expected, "{}", device.device_name);
        // A process that ends while a driver still works may fall over that driver's own clean-up.
        device.queue.finish().unwrap();
    }
}

#[test]
fn every_dtype_has_a_launch_of_its_own() {
    let _shared = MEMORY.read().unwrap_or_else(PoisonError::into_inner);
    let queue = cpu();
    let mut params = Vec::new();
    for (i, dtype) in [DType::F32, DType::F64, DType::F16, DType::F32, DType::BF16].into_iter().enumerate() {
        params.push(tensor(&queue, &formula(i, 0, &[5]), &[5], dtype).with_grad());
    }
    set_gradients(&params, 0);
    let mut opt = Adam::new(params.clone(), 0.5).unwrap();
    opt.add_group(vec![tensor(&queue, &[1.0], &[], DType::F32).with_grad()], 0.25, 0.5).unwrap();
    assert_eq!(launches(|| opt.step()), named(&[("adam", 4)]));
    // What is kept for 16-bit parameters has the precision of the computation.
    let state = opt.state();
    assert_eq!(state.tensors["2.exp_avg_sq"].dtype(), DType::F32);
    assert_eq!(state.tensors["1.exp_avg_sq"].dtype(), DType::F64);
    // The first step of Adam is the learning rate, whatever the gradient.
    for (i, (parameter, tolerance)) in params.iter().zip([1e-6, 1e-7, 1e-3, 1e-6, 1e-2]).enumerate() {
        for ((got, start), grad) in
            parameter.to_f64_vec().unwrap().into_iter().zip(formula(i, 0, &[5])).zip(formula(i, 1, &[5]))
        {
            let expected = if grad == 0.0 { start } else { start - 0.5 * grad.signum() };
            assert!((got - expected).abs() < tolerance, "parameter {i}: {got} {expected}");
        }
    }
}

#[test]
fn groups_share_the_launch() {
    let _shared = MEMORY.read().unwrap_or_else(PoisonError::into_inner);
    for device in devices() {
        let params = parameters(&device.queue, DType::F32);
        let mut opt = Adam::new(params[..30].to_vec(), 1e-3).unwrap();
        opt.add_group(params[30..40].to_vec(), 1e-2, 0.0).unwrap();
        set_gradients(&params[..40], 0);
        assert_eq!(launches(|| opt.step()), named(&[("adam", 1)]), "{}", device.device_name);
        device.queue.finish().unwrap();
    }
}

/// The bytes of tensors that live now.
fn live_bytes(queue: &Queue) -> usize {
    match queue {
        Queue::Cpu(_) => buffer::stats().live_bytes,
        Queue::OpenCl(stream) => stream.pool().stats().bytes_in_use,
    }
}

#[test]
fn two_hundred_steps_need_no_more_memory_than_three() {
    let _alone = MEMORY.write().unwrap_or_else(PoisonError::into_inner);
    for device in devices() {
        let queue = &device.queue;
        let params: Vec<Tensor> =
            (1..6).map(|n| tensor(queue, &formula(n, 0, &[100 * n]), &[100 * n], DType::F32).with_grad()).collect();
        let mut opt = Adam::new(params.clone(), 1e-3).unwrap();
        let mut ema = Ema::new(params.clone(), EmaOptions::default()).unwrap();
        let options = StepOptions { max_norm: Some(1.0), skip_non_finite: true, ..Default::default() };
        let mut after = Vec::new();
        for step in 0..200 {
            set_gradients(&params, step % 7);
            if step % 2 == 0 {
                opt.step_with(&options).unwrap();
            } else {
                clip_grad_norm_device(&params, 1.0).unwrap();
                opt.step().unwrap();
            }
            ema.update().unwrap();
            opt.zero_grad();
            queue.finish().unwrap();
            after.push(live_bytes(queue));
        }
        assert_eq!(after[3], after[199], "{}", device.device_name);
    }
}

/// Layer norm makes the gradients of its two parameters in one piece of memory on OpenCL devices: clipping in place and updates take
/// such parts as they take whole tensors.
#[test]
fn gradients_in_one_piece_of_memory_are_clipped_and_stepped() {
    let _shared = MEMORY.read().unwrap_or_else(PoisonError::into_inner);
    let trained = |queue: &Queue, n: usize| {
        let make = |seed, shape: &[usize]| tensor(queue, &formula(seed, 0, shape), shape, DType::F32);
        let (x, upstream) = (make(1, &[66, n]), make(2, &[66, n]));
        let (weight, bias) = (make(3, &[n]).with_grad(), make(4, &[n]).with_grad());
        let mut opt = Adam::new(vec![weight.clone(), bias.clone()], 1e-2).unwrap();
        for _ in 0..3 {
            let y = layer_norm(&x, 1, Some(&weight), Some(&bias), 1e-5).unwrap();
            y.backward_with(Some(&upstream), Default::default()).unwrap();
            let together = weight.grad().unwrap().raw().shares_storage(bias.grad().unwrap().raw());
            assert_eq!(together, !matches!(queue, Queue::Cpu(_)));
            clip_grad_norm_device(&[weight.clone(), bias.clone()], 0.5).unwrap();
            opt.step().unwrap();
            opt.zero_grad();
        }
        [weight, bias].map(|parameter| parameter.to_f64_vec().unwrap()).concat()
    };
    // The second part begins on a boundary of vectors, and not.
    for (device, n) in devices().into_iter().flat_map(|device| [(device.clone(), 40), (device, 33)]) {
        let (apart, together) = (trained(&cpu(), n), trained(&device.queue, n));
        let close = apart.iter().zip(&together).all(|(x, y)| (x - y).abs() < 1e-5);
        assert!(close, "on {}: {apart:?} and {together:?}", device.device_name);
        device.queue.finish().unwrap();
    }
}

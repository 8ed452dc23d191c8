//! SGD: PyTorch's values (golden/sgd.json), what a step leaves alone, its launches, its state and its errors.

use std::rc::Rc;

use netcl_autograd::{Tape, Tensor};
use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Counter, Recorder, with_sink};
use netcl_optim::{Optimizer, SGD, SgdOptions};
use serde_json::Value;

use crate::support::{cpu, devices, numbers, tensor};

fn shapes(golden: &Value) -> Vec<Vec<usize>> {
    let shape = |value: &Value| numbers(value).into_iter().map(|n| n as usize).collect();
    golden["shapes"].as_array().unwrap().iter().map(shape).collect()
}

fn options(case: &Value) -> SgdOptions {
    let (number, flag) = (|key: &str| case[key].as_f64().unwrap(), |key: &str| case[key].as_bool().unwrap());
    SgdOptions {
        lr: number("lr"),
        momentum: number("momentum"),
        dampening: number("dampening"),
        weight_decay: number("weight_decay"),
        nesterov: flag("nesterov"),
        maximize: flag("maximize"),
    }
}

/// Runs a case of the golden file and returns the largest error, relative to 1 or the value's size.
fn worst_error(golden: &Value, case: &Value, queue: &Queue, dtype: DType) -> f64 {
    let shapes = shapes(golden);
    let params: Vec<Tensor> = (0..shapes.len())
        .map(|i| tensor(queue, &numbers(&golden["start"][i]), &shapes[i], dtype).with_grad())
        .collect();
    let mut opt = SGD::new_with(params.clone(), options(&case["options"])).unwrap();
    let mut worst = 0f64;
    for (step, after) in case["after"].as_array().unwrap().iter().enumerate() {
        if step == 2 {
            opt.set_learning_rate(0.05);
        }
        for (i, parameter) in params.iter().enumerate() {
            let grad = &golden["grads"][step][i];
            parameter.set_grad((!grad.is_null()).then(|| tensor(queue, &numbers(grad), &shapes[i], dtype)));
        }
        opt.step().unwrap();
        for (parameter, expected) in params.iter().zip(after.as_array().unwrap()) {
            for (got, expected) in parameter.to_f64_vec().unwrap().into_iter().zip(numbers(expected)) {
                worst = worst.max((got - expected).abs() / expected.abs().max(1.0));
            }
        }
    }
    worst
}

#[test]
fn five_steps_are_pytorchs_in_every_combination() {
    let golden: Value = serde_json::from_str(include_str!("golden/sgd.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 20);
    for (i, device) in devices().iter().enumerate() {
        // A kernel takes long to build: the native CPU has all combinations, the devices a few.
        for case in cases.iter().step_by(if i == 0 { 1 } else { 7 }) {
            let error = worst_error(&golden, case, &device.queue, DType::F32);
            assert!(error < 1e-6, "{} {}: {error:e}", device.device_name, case["options"]);
        }
    }
    for case in cases {
        let error = worst_error(&golden, case, &cpu(), DType::F64);
        assert!(error < 1e-14, "{}: {error:e}", case["options"]);
    }
}

fn with_momentum(parameter: &Tensor) -> SGD {
    let options = SgdOptions { lr: 0.5, momentum: 0.5, weight_decay: 0.25, ..Default::default() };
    SGD::new_with([parameter.clone()], options).unwrap()
}

#[test]
fn a_step_is_one_launch_and_allocates_nothing() {
    let queue = cpu();
    let params: Vec<Tensor> = (1..4).map(|n| tensor(&queue, &vec![1.0; n], &[n], DType::F32).with_grad()).collect();
    let mut opt = SGD::new_with(params.clone(), SgdOptions { momentum: 0.9, ..Default::default() }).unwrap();
    for parameter in &params[..2] {
        parameter.set_grad(Some(tensor(&queue, &vec![1.0; parameter.size()], parameter.shape(), DType::F32)));
    }
    opt.step().unwrap();
    let versions: Vec<u64> = params.iter().map(|p| p.version()).collect();
    let counter = Rc::new(Counter::default());
    with_sink(counter.clone(), || opt.step()).unwrap();
    assert_eq!((counter.launches(), counter.of("sgd"), counter.allocations().0), (1, 1, 0));
    // In place: the values' version goes up, for those with a gradient alone.
    let raised: Vec<bool> = params.iter().zip(versions).map(|(p, before)| p.version() > before).collect();
    assert_eq!(raised, [true, true, false]);
    assert!(params.iter().all(|p| p.is_leaf() && p.requires_grad()));
    assert_eq!(params[2].to_host::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn a_step_between_forward_and_backward_is_refused_by_name() {
    let p = tensor(&cpu(), &[2.0], &[1], DType::F32).with_grad();
    p.set_grad(Some(tensor(&cpu(), &[1.0], &[1], DType::F32)));
    let mut opt = SGD::new([p.clone()], 0.1).unwrap();
    let tape = Tape::new();
    let loss = (&p * &p).unwrap();
    let recorded = tape.recorded();
    opt.step().unwrap();
    assert_eq!(tape.recorded(), recorded, "a step is never recorded");
    let error = tape.backward(&loss).unwrap_err().to_string();
    assert!(error.contains("overwritten in place"), "{error}");
}

#[test]
fn a_recorded_step_sees_the_learning_rate_of_the_moment() {
    let queue = cpu();
    let p = tensor(&queue, &[1.0], &[1], DType::F32).with_grad();
    p.set_grad(Some(tensor(&queue, &[1.0], &[1], DType::F32)));
    let mut opt = SGD::new([p.clone()], 0.5).unwrap();
    let recorder = Rc::new(Recorder::default());
    with_sink(recorder.clone(), || opt.step()).unwrap();
    for (lr, expected) in [(0.5, 0.5), (0.25, 0.25), (2.0, -1.75)] {
        opt.set_learning_rate(lr);
        recorder.replay().unwrap();
        assert_eq!(p.to_host::<f32>().unwrap(), [expected]);
    }
}

#[test]
fn views_groups_and_16_bit_parameters_are_updated() {
    let queue = cpu();
    let table = tensor(&queue, &[0.0; 6], &[2, 3], DType::F16);
    // A column of a table is a parameter, and the gradient of a sum repeats one element.
    let column = table.select(1, 1).unwrap().with_grad();
    let other = tensor(&queue, &[1.0], &[1], DType::F32).with_grad();
    let mut opt = SGD::new([column.clone()], 1.0).unwrap();
    opt.add_group(vec![other.clone()], 0.5, 1.0).unwrap();
    column.sum((), false).unwrap().backward().unwrap();
    other.set_grad(Some(tensor(&queue, &[1.0], &[1], DType::F32)));
    opt.step().unwrap();
    assert_eq!(table.to_f64_vec().unwrap(), [0.0, -1.0, 0.0, 0.0, -1.0, 0.0]);
    assert_eq!(other.to_host::<f32>().unwrap(), [0.0]);
    opt.fill_grad_with_zeros().unwrap();
    assert_eq!(column.grad().unwrap().to_f64_vec().unwrap(), [0.0; 2]);
    opt.zero_grad();
    assert!(column.grad().is_none() && other.grad().is_none());
    assert_eq!(opt.groups()[1].learning_rate(), 0.5);
    opt.set_learning_rate(0.125);
    assert_eq!((opt.learning_rate(), opt.groups()[1].learning_rate()), (0.125, 0.125));
}

#[test]
fn gradients_of_channels_last_images_are_filled_with_zeros_where_they_lie() {
    let queue = cpu();
    let images = tensor(&queue, &(0..24).map(f64::from).collect::<Vec<_>>(), &[1, 2, 3, 4], DType::F32);
    let images = images.permute(&[0, 3, 1, 2]).unwrap();
    let p = tensor(&queue, &[0.5; 24], &[1, 4, 2, 3], DType::F32).with_grad();
    let opt = SGD::new([p.clone()], 1.0).unwrap();
    for _ in 0..2 {
        p.mul(&images).unwrap().sum((), false).unwrap().backward().unwrap();
    }
    let held = p.grad().unwrap();
    assert_eq!(held.to_f64_vec().unwrap()[23], 46.0);
    opt.fill_grad_with_zeros().unwrap();
    assert_eq!(held.to_f64_vec().unwrap(), [0.0; 24]);
}

#[test]
fn a_run_goes_on_from_a_stored_state() {
    let grad = |queue: &Queue, step: i32| tensor(queue, &[f64::from(step), -0.5], &[2], DType::F32);
    let run = |from: &Tensor, opt: &mut SGD, steps: std::ops::Range<i32>| {
        for step in steps {
            from.set_grad(Some(grad(from.queue(), step)));
            opt.step().unwrap();
        }
        from.to_host::<f32>().unwrap()
    };
    let whole = tensor(&cpu(), &[1.0, 2.0], &[2], DType::F32).with_grad();
    let expected = run(&whole, &mut with_momentum(&whole), 0..6);

    let first = tensor(&cpu(), &[1.0, 2.0], &[2], DType::F32).with_grad();
    let mut opt = with_momentum(&first);
    run(&first, &mut opt, 0..3);
    let state = opt.state();
    let second = Tensor::from(first.duplicate().unwrap().raw().clone()).with_grad();
    let mut resumed = SGD::new_with([second.clone()], SgdOptions { momentum: 0.5, ..Default::default() }).unwrap();
    resumed.load_state(&state).unwrap();
    // The resumed run has a copy: the first one may go on meanwhile.
    assert_eq!(run(&first, &mut opt, 3..6), expected);
    assert_eq!(run(&second, &mut resumed, 3..6), expected);

    let mut wrong = state.clone();
    wrong.tensors.insert("1.momentum_buffer".to_owned(), first.clone());
    let error = resumed.load_state(&wrong).unwrap_err().to_string();
    assert!(error.contains("unknown tensor \"1.momentum_buffer\""), "{error}");
    let mut wrong = state.clone();
    wrong.tensors.insert("0.momentum_buffer".to_owned(), tensor(&cpu(), &[1.0], &[1], DType::F32));
    let error = resumed.load_state(&wrong).unwrap_err().to_string();
    assert!(error.contains("has shape (1,), its parameter has shape (2,)"), "{error}");
    let mut wrong = state.clone();
    wrong.numbers.remove("groups.0.lr");
    let error = resumed.load_state(&wrong).unwrap_err().to_string();
    assert!(error.contains("has no number \"groups.0.lr\""), "{error}");
}

#[test]
fn wrong_settings_are_named() {
    let p = tensor(&cpu(), &[1.0], &[1], DType::F32).with_grad();
    let message = |options: SgdOptions| SGD::new_with([p.clone()], options).unwrap_err().to_string();
    assert!(message(SgdOptions { lr: -1.0, ..Default::default() }).contains("learning rate is -1"));
    assert!(message(SgdOptions { momentum: f64::NAN, ..Default::default() }).contains("momentum is NaN"));
    assert!(message(SgdOptions { weight_decay: -1.0, ..Default::default() }).contains("weight decay"));
    assert!(message(SgdOptions { dampening: f64::INFINITY, ..Default::default() }).contains("dampening"));
    assert!(message(SgdOptions { nesterov: true, ..Default::default() }).contains("nesterov needs a momentum"));
    assert!(SGD::new([], 0.1).unwrap_err().to_string().contains("no parameters"));
    assert!(SGD::new([p.clone(), p.clone()], 0.1).unwrap_err().to_string().contains("given before"));
    let result = (&p * 2.0).unwrap();
    assert!(SGD::new([result], 0.1).unwrap_err().to_string().contains("only leaves"));
    let mut opt = SGD::new([p.clone()], 0.1).unwrap();
    assert!(opt.add_group(vec![p.clone()], 0.1, 0.0).unwrap_err().to_string().contains("given before"));
    p.set_grad(Some(tensor(&cpu(), &[1.0, 2.0], &[2], DType::F32)));
    assert!(opt.step().is_err(), "a gradient of another shape");
}

//! The guard: one step made by the function and by a replay, compared bit by bit.

use std::sync::Arc;

use netcl::core::kernels::elementwise::{Elementwise, Number};
use netcl::core::kernels::expr::Graph;
use netcl::core::kernels::launch::{self, Slot};
use netcl::core::random::manual_seed;
use netcl::core::tensor::Tensor as Raw;
use netcl::nn::Dropout;
use netcl::optim::schedule::WarmupCosine;
use netcl::optim::{AdamW, AdamWOptions, GradScale, Schedule, StepOptions};
use netcl::prelude::*;
use netcl::runtime::capture::capture;

use crate::capture_support::{alone, batch, devices, mlp, weights};

#[test]
fn the_guard_compares_a_step_with_eager_bit_by_bit() {
    let _alone = alone();
    for handle in devices() {
        let queue = &handle.queue;
        manual_seed(3);
        let (model, step) = mlp(queue, 1, [8, 16, 3]);
        let mut step = capture(step);
        let (eager_model, mut eager) = mlp(queue, 1, [8, 16, 3]);
        for i in 0..4 {
            let batch = batch(queue, 4, 8, 3, i);
            // The guard makes exactly one step.
            if i % 2 == 0 {
                step.verify(&batch).unwrap()
            } else {
                step.call(&batch).unwrap()
            };
            eager(&batch).unwrap();
        }
        assert_eq!(weights(&model), weights(&eager_model), "{}", handle.device_name);
    }
}

/// `x` times a number.
fn scaled(scale: &Elementwise, x: &Raw, by: Number) -> netcl::core::Result<Raw> {
    let out = Raw::uninit(x.queue(), x.shape().clone(), x.dtype())?;
    scale.run(&[x], &[by], &[&out])?;
    Ok(out)
}

#[test]
fn the_guard_finds_the_changing_numbers_of_joined_launches() {
    let _alone = alone();
    let scale = {
        let g = Graph::new();
        let outputs = [g.input(0) * g.scalar(0)];
        Elementwise::new("scale", g.finish(&outputs))
    };
    for handle in devices() {
        let queue = &handle.queue;
        let a = Tensor::from_host(queue, &[1.0f32, -2.0, 3.0, 4.0], [2, 2]).unwrap();
        let b = Tensor::from_host(queue, &[1.0f32, 1.0, -1.0, 0.5], [2, 2]).unwrap();
        let slot = Slot::float(0.0);
        let moving = slot.clone();
        let mut step = capture(|a: &Tensor| {
            let slot = moving.clone();
            launch::each_run(move || {
                slot.set_float(slot.get_float() + 1.0);
                Ok(())
            })?;
            // The same launch as the one that follows, but for the slot: the numbers must not be taken from it. The last two are one.
            let fixed = scaled(&scale, a, Number::Value(7.0))?;
            let joined = scaled(&scale, &netcl::raw_ops::matmul(a, &b)?, Number::Slot(moving.clone()))?;
            let alone = scaled(&scale, &fixed, Number::Slot(moving.clone()))?;
            Ok::<_, netcl::Error>((Tensor::from(joined), Tensor::from(alone)))
        });
        for i in 1..5 {
            let (joined, alone) = if i % 2 == 0 { step.call(&a).unwrap() } else { step.verify(&a).unwrap() };
            let times = |values: [f32; 4]| values.map(|v| v * i as f32);
            assert_eq!(joined.to_host::<f32>().unwrap(), times([3.0, 0.0, -1.0, 5.0]), "{}", handle.device_name);
            assert_eq!(alone.to_host::<f32>().unwrap(), times([7.0, -14.0, 21.0, 28.0]), "{}", handle.device_name);
        }
        assert_eq!(slot.get_float(), 4.0);
        let names = &step.stats().unwrap().names;
        assert!(names.iter().any(|name| name.ends_with("_scale")), "{names:?}");
        assert_eq!((step.recordings(), names.len()), (1, 2), "{names:?}");
    }
}

#[test]
fn the_guard_passes_steps_with_dropout_a_scaled_loss_clipping_and_a_schedule() {
    let _alone = alone();
    for handle in devices() {
        let queue = &handle.queue;
        let make = || {
            manual_seed(8);
            let model = Arc::new(sequential![
                Linear::new(queue, 8, 16).unwrap(),
                ReLU,
                Dropout::new(0.25).unwrap(),
                Linear::new(queue, 16, 16).unwrap(),
                Dropout::new(0.25).unwrap(),
                Linear::new(queue, 16, 3).unwrap(),
            ]);
            let options = AdamWOptions { lr: 0.02, weight_decay: 0.05, ..Default::default() };
            let mut optimizer = AdamW::new_with(model.parameters(), options).unwrap();
            let mut schedule = WarmupCosine::new(&optimizer, 20, 3, 1e-4).unwrap();
            let network = model.clone();
            let step = move |(x, labels): &(Tensor, IndexTensor)| {
                let loss = F::cross_entropy(&network.forward(x)?, labels)?;
                let scale = Tensor::full(x.queue(), (), DType::F32, 64.0)?;
                (&loss * &scale)?.backward()?;
                let unscale = StepOptions {
                    max_norm: Some(0.5),
                    skip_non_finite: true,
                    grad_scale: Some(GradScale::Device(scale)),
                    ..Default::default()
                };
                optimizer.step_with(&unscale)?;
                optimizer.zero_grad();
                schedule.step()?;
                Ok::<_, netcl::Error>(loss)
            };
            (model, step)
        };
        let (eager_model, mut eager) = make();
        let expected: Vec<f64> = (0..6).map(|i| eager(&batch(queue, 4, 8, 3, i)).unwrap().item().unwrap()).collect();
        let (model, step) = make();
        let mut step = capture(step);
        let verified: Vec<f64> =
            (0..6).map(|i| step.verify(&batch(queue, 4, 8, 3, i)).unwrap().item().unwrap()).collect();
        assert_eq!(verified, expected, "{}", handle.device_name);
        assert_eq!(weights(&model), weights(&eager_model), "{}", handle.device_name);
        assert_eq!(step.recordings(), 1);
        let names = &step.stats().unwrap().names;
        assert!(names.iter().any(|name| name.ends_with("_relu")), "{names:?}");
    }
}

#[test]
fn the_guard_names_what_differs() {
    let _alone = alone();
    for handle in devices() {
        let x = Tensor::from_host(&handle.queue, &[1.0f32, 2.0], [2]).unwrap();
        let mut calls = 0;
        let mut branches = capture(|x: &Tensor| {
            calls += 1;
            if calls > 1 { &(x * x)? * x } else { &(x * x)? + x }
        });
        let error = branches.verify(&x).unwrap_err().to_string();
        assert!(error.contains("launch 1 of the function is mul now and was add"), "{error}");
        let mut calls = 0;
        let mut more = capture(|x: &Tensor| {
            calls += 1;
            (1..calls).try_fold((x * x)?, |product, _| &product * x)
        });
        let error = more.verify(&x).unwrap_err().to_string();
        assert!(error.contains("launch 1 of the function is mul now and was nothing"), "{error}");
    }
}

#[test]
fn numbers_that_the_host_changes_are_read_where_they_stand() {
    let _alone = alone();
    let scale = {
        let g = Graph::new();
        let outputs = [g.input(0) * g.scalar(0)];
        Elementwise::new("scale", g.finish(&outputs))
    };
    for handle in devices() {
        let a = Tensor::from_host(&handle.queue, &[1.0f32, -2.0, 3.0], [3]).unwrap();
        let slot = Slot::float(1.0);
        let moving = slot.clone();
        let mut step = capture(|a: &Tensor| {
            let before = scaled(&scale, a, Number::Slot(moving.clone()))?;
            let slot = moving.clone();
            launch::each_run(move || {
                slot.set_float(slot.get_float() + 1.0);
                Ok(())
            })?;
            Ok::<_, netcl::Error>(Tensor::from(scaled(&scale, &before, Number::Slot(moving.clone()))?))
        });
        for i in 1..4 {
            let (i, found) = (i as f32, step.call(&a).unwrap().to_host::<f32>().unwrap());
            assert_eq!(found, [1.0, -2.0, 3.0].map(|v| v * i * (i + 1.0)), "{}", handle.device_name);
        }
        assert_eq!(step.stats().unwrap().names.len(), 2, "{}", handle.device_name);
    }
}

//! Models over several devices, synchronised batch norm, replicas: equal to one device with the whole batch.

use std::cell::RefCell;

use netcl_distributed::Group;
use netcl_distributed::data_parallel::{
    DataParallel, broadcast_params, convert_sync_batchnorm, replicate_params, shard_lengths, sync_grads,
};
use netcl_nn::autograd::{DType, Queue, Result, Slice, Tensor, manager, ops};
use netcl_nn::{
    BatchNorm1d, BatchNorm2d, Conv2d, Flatten, Linear, Module, ReLU, Sequential, functional as F, sequential,
};
use netcl_optim::{Optimizer, SGD};
use netcl_runtime::capture::capture;

use crate::support::{bits, difference, numbers, on_ranks};

/// The native CPU twice, and every OpenCL device.
fn devices() -> Vec<Queue> {
    let cpu = manager().cpu().queue;
    let others = (0..8).map_while(|at| manager().get(&at.to_string()).ok()).map(|handle| handle.queue);
    [cpu.clone(), cpu].into_iter().chain(others).collect()
}

fn network(queue: &Queue, norm: bool) -> Result<Sequential> {
    netcl_nn::autograd::manual_seed(3);
    let mut model = sequential![Conv2d::new(queue, 2, 4, 3)?, ReLU];
    if norm {
        model.push(BatchNorm2d::new(queue, 4)?);
    }
    model.push(Flatten::default());
    model.push(Linear::new(queue, 4 * 3 * 3, 6)?);
    if norm {
        model.push(BatchNorm1d::new(queue, 6)?);
    }
    model.push(Linear::new(queue, 6, 3)?);
    model.cast(DType::F64)?;
    Ok(model)
}

fn batch(step: u64) -> (Tensor, Tensor) {
    (numbers(&[9, 2, 5, 5], step), numbers(&[9, 3], 50 + step))
}

/// Everything that a model holds after some steps of training.
fn trained(model: &dyn Module, share: std::ops::Range<usize>, sync: &dyn Fn(&[Tensor])) -> Vec<Tensor> {
    let parameters = model.parameters();
    let mut optimizer = SGD::new(parameters.clone(), 0.1).unwrap();
    let rows = |x: &Tensor| {
        let part = Slice::new(Some(share.start as isize), Some(share.end as isize), 1);
        ops::layout::slice(x, 0, part).unwrap()
    };
    for step in 0..3 {
        let (x, y) = batch(step);
        optimizer.zero_grad();
        F::mse_loss(&model.forward(&rows(&x)).unwrap(), &rows(&y), Default::default()).unwrap().backward().unwrap();
        sync(&parameters);
        optimizer.step().unwrap();
    }
    let buffers = model.named_buffers().into_iter().map(|(_, buffer)| buffer);
    parameters.into_iter().chain(buffers).collect()
}

#[test]
fn devices_train_as_one_does() {
    let devices = devices();
    println!("{} devices", devices.len());
    let alone = trained(&network(&devices[0], false).unwrap(), 0..9, &|_| ());
    let run = |weights: Option<Vec<f64>>| {
        let mut model = DataParallel::new(&devices, |queue| network(queue, false)).unwrap();
        model.set_weights(weights).unwrap();
        trained(&model, 0..9, &|_| ())
    };
    let uneven = (0..devices.len()).map(|k| (k % 3) as f64 + 0.5).collect();
    for weights in [None, Some(uneven)] {
        let all = run(weights.clone());
        assert!(difference(&all, &alone) < 1e-12, "{weights:?}: {}", difference(&all, &alone));
        assert_eq!(bits(&all), bits(&run(weights)), "from run to run");
    }
}

#[test]
fn a_wrapped_model_is_the_model() {
    let queue = manager().cpu().queue;
    let mut model = DataParallel::new(&[queue.clone(), queue.clone()], |queue| network(queue, true)).unwrap();
    let plain = network(&queue, true).unwrap();
    let names = |module: &dyn Module| module.state_dict().iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&model), names(&plain));
    model.load_state_dict(&plain.state_dict(), netcl_nn::Strict::Yes).unwrap();
    // In inference every sample stands for itself, on whatever device.
    model.eval();
    let mut plain = plain;
    plain.eval();
    let (x, _) = batch(1);
    let (a, b) = (model.forward(&x).unwrap(), plain.forward(&x).unwrap());
    assert!(difference(&[a], &[b]) < 1e-14);
    model.train();
    // Frozen parameters get no gradient, the others do.
    model.freeze_named("0").unwrap();
    ops::reduce::sum(&model.forward(&x).unwrap(), (), false).unwrap().backward().unwrap();
    let with: Vec<bool> = model.parameters().iter().map(|parameter| parameter.grad().is_some()).collect();
    assert_eq!(with[..2], [false, false]);
    assert!(with[2..].iter().all(|with| *with));
    model.measure_weights(&x).unwrap();
    assert_eq!(model.weights().map(<[f64]>::len), Some(2));
    assert!(model.set_weights(Some(vec![1.0])).unwrap_err().to_string().contains("2 shards"));
    // Fewer samples than devices.
    model.eval();
    let one = ops::layout::slice(&x, 0, Slice::new(Some(0), Some(1), 1)).unwrap();
    assert_eq!(model.forward(&one).unwrap().shape().to_vec(), [1, 3]);
}

#[test]
fn synchronised_norm_is_that_of_the_whole_batch() {
    let queue = manager().cpu().queue;
    let alone = trained(&network(&queue, true).unwrap(), 0..9, &|_| ());
    for ends in [vec![4, 9], vec![2, 3, 9]] {
        let models: Vec<_> = ends.iter().map(|_| std::sync::Mutex::new(Some(network(&queue, true).unwrap()))).collect();
        let run = |group: Group| {
            let mut model = models[group.rank()].lock().unwrap().take().unwrap();
            convert_sync_batchnorm(&mut model, &group).unwrap();
            let start = group.rank().checked_sub(1).map_or(0, |before| ends[before]);
            let part = start..ends[group.rank()];
            let share = part.len() as f64 / 9.0;
            trained(&model, part, &|parameters| group.sync_grads(parameters, share).unwrap())
        };
        let ranks = on_ranks(ends.len(), run);
        for rank in &ranks {
            assert!(difference(rank, &alone) < 1e-12, "{ends:?}: {}", difference(rank, &alone));
            assert_eq!(bits(rank), bits(&ranks[0]));
        }
    }
}

#[test]
fn norm_over_devices_is_that_of_the_whole_batch() {
    let devices = devices();
    let alone = trained(&network(&devices[0], true).unwrap(), 0..9, &|_| ());
    let run = |weights: Option<Vec<f64>>| {
        let model = DataParallel::new(&devices, |queue| network(queue, true)).unwrap();
        let mut model = model.sync_batch_norm().unwrap();
        model.set_weights(weights).unwrap();
        trained(&model, 0..9, &|_| ())
    };
    // The second device has nothing to do.
    let uneven = (0..devices.len()).map(|k| if k == 1 { 0.0 } else { k as f64 + 0.5 }).collect();
    for weights in [None, Some(uneven)] {
        let all = run(weights.clone());
        assert!(difference(&all, &alone) < 1e-12, "{weights:?}: {}", difference(&all, &alone));
        assert_eq!(bits(&all), bits(&run(weights)), "from run to run");
    }
}

#[test]
fn a_part_that_fails_ends_the_others() {
    let queue = manager().cpu().queue;
    let devices = [queue.clone(), queue.clone(), queue.clone()];
    let model = DataParallel::new(&devices, |queue| network(queue, true)).unwrap().sync_batch_norm().unwrap();
    let error = model.forward(&numbers(&[9, 3, 5, 5], 1)).unwrap_err().to_string();
    assert!(error.contains("0 (Conv2d): expected input (N, 2, H, W)"), "{error}");
    assert_eq!(model.forward(&batch(0).0).unwrap().shape().to_vec(), [9, 3]);
    let mut step = capture(|x: &Tensor| model.forward(x));
    let error = step.call(&batch(0).0).unwrap_err().to_string();
    assert!(error.contains("in a thread for each"), "{error}");
}

#[test]
fn synchronised_norm_may_be_captured() {
    let queue = manager().cpu().queue;
    let run = |model: &mut Sequential, group: &Group, captured: bool| {
        convert_sync_batchnorm(model, group).unwrap();
        let part = if group.rank() == 0 { 0..4 } else { 4..9 };
        let rows = |x: &Tensor| {
            let part = Slice::new(Some(part.start as isize), Some(part.end as isize), 1);
            ops::layout::slice(x, 0, part).unwrap().detach()
        };
        let (parameters, share) = (model.parameters(), part.len() as f64 / 9.0);
        let mut optimizer = SGD::new(parameters.clone(), 0.1).unwrap();
        let model = &*model;
        let mut losses = Vec::new();
        let mut update = |(x, y): &(Tensor, Tensor)| {
            optimizer.zero_grad();
            let loss = F::mse_loss(&model.forward(x)?, y, Default::default())?;
            loss.backward()?;
            group.sync_grads(&parameters, share)?;
            optimizer.step()?;
            Ok::<_, netcl_distributed::Error>(loss.detach())
        };
        losses.push(update(&(rows(&batch(0).0), rows(&batch(0).1))).unwrap().item().unwrap());
        let inputs = (1..4).map(|at| (rows(&batch(at).0), rows(&batch(at).1)));
        if captured {
            let mut step = capture(&mut update);
            losses.extend(inputs.map(|inputs| step.call(&inputs).unwrap().item().unwrap()));
        } else {
            losses.extend(inputs.map(|inputs| update(&inputs).unwrap().item().unwrap()));
        }
        let buffers = model.named_buffers().into_iter().map(|(_, buffer)| buffer);
        (losses, bits(&model.parameters().into_iter().chain(buffers).collect::<Vec<_>>()))
    };
    let all = |captured: bool| {
        let models: Vec<_> = (0..2).map(|_| std::sync::Mutex::new(network(&queue, true).unwrap())).collect();
        on_ranks(2, |group| run(&mut models[group.rank()].lock().unwrap(), &group, captured))
    };
    assert_eq!(all(true), all(false));
}

/// Losses and state of eager updates (two), captured ones (three), an eager one between replays, and a replay again.
fn updated(devices: &[Queue], captured: bool) -> (Vec<u64>, Vec<Vec<u64>>) {
    let model = DataParallel::new(devices, |queue| network(queue, true)).unwrap();
    let optimizer = RefCell::new(SGD::new(model.parameters(), 0.1).unwrap());
    let update = |optimizer: &mut SGD, (x, y): &(Tensor, Tensor)| {
        optimizer.zero_grad();
        let loss = F::mse_loss(&model.forward(x)?, y, Default::default())?;
        loss.backward()?;
        optimizer.step()?;
        Ok::<_, netcl_nn::autograd::Error>(loss.detach())
    };
    let home = |step: u64| {
        let (x, y) = batch(step);
        (ops::layout::to(&x, &devices[0]).unwrap(), ops::layout::to(&y, &devices[0]).unwrap())
    };
    let mut step = capture(|inputs: &(Tensor, Tensor)| update(&mut optimizer.borrow_mut(), inputs));
    let mut losses = Vec::new();
    for (at, replays) in [false, false, true, true, true, false, true].into_iter().enumerate() {
        let inputs = home(at as u64);
        let loss = match replays && captured {
            true => step.call(&inputs),
            false => update(&mut optimizer.borrow_mut(), &inputs),
        };
        losses.push(loss.unwrap().item().unwrap().to_bits());
    }
    assert_eq!(step.recordings(), usize::from(captured));
    let buffers = model.named_buffers().into_iter().map(|(_, buffer)| buffer);
    (losses, bits(&model.parameters().into_iter().chain(buffers).collect::<Vec<_>>()))
}

#[test]
fn a_step_over_devices_may_be_captured() {
    let devices = devices();
    let turned: Vec<Queue> = devices.iter().skip(1).rev().cloned().collect();
    for devices in [&devices[..2], &devices, &turned] {
        assert_eq!(updated(devices, true), updated(devices, false), "{devices:?}");
    }
}

#[test]
fn replicas_get_the_mean_of_their_gradients() {
    let devices = devices();
    let source: Vec<Tensor> = (1..4).map(|at| numbers(&[at, 3], at as u64).with_grad()).collect();
    let replicas = replicate_params(&source, &devices).unwrap();
    for (k, replica) in replicas.iter().enumerate() {
        assert_eq!(bits(replica), bits(&source));
        // The last one has no gradient anywhere, the middle one on the first replica only.
        for parameter in &replica[..if k == 0 { 2 } else { 1 }] {
            let gradient = Tensor::full(parameter.queue(), parameter.shape().clone(), DType::F64, 1.0 + k as f64);
            parameter.set_grad(Some(gradient.unwrap()));
        }
    }
    sync_grads(&replicas).unwrap();
    let count = devices.len() as f64;
    for replica in &replicas {
        assert_eq!(replica[0].grad().unwrap().to_f64_vec().unwrap(), [(1.0 + count) / 2.0; 3]);
        assert!((replica[1].grad().unwrap().to_f64_vec().unwrap()[0] - 1.0 / count).abs() < 1e-15);
        assert!(replica[2].grad().is_none());
    }
    source[0].fill(7.0).unwrap();
    broadcast_params(&source, &replicas).unwrap();
    assert!(replicas.iter().all(|replica| replica[0].to_f64_vec().unwrap() == [7.0; 3]));
    assert!(broadcast_params(&source[1..], &replicas).unwrap_err().to_string().contains("group 0 has 3"));
    assert!(sync_grads(&[source.clone(), source[1..].to_vec()]).is_err());
}

#[test]
fn shards_are_fair() {
    assert_eq!(shard_lengths(7, 3, None).unwrap(), [3, 2, 2]);
    assert_eq!(shard_lengths(2, 3, None).unwrap(), [1, 1, 0]);
    assert_eq!(shard_lengths(10, 2, Some(&[3.0, 1.0])).unwrap(), [8, 2]);
    assert_eq!(shard_lengths(0, 2, Some(&[3.0, 1.0])).unwrap(), [0, 0]);
    for weights in [&[1.0][..], &[0.0, 0.0], &[f64::NAN, 1.0], &[-1.0, 2.0], &[f64::INFINITY, 1.0]] {
        assert!(shard_lengths(10, 2, Some(weights)).unwrap_err().to_string().contains("one number from 0"));
    }
    assert!(shard_lengths(10, 0, None).is_err());
}

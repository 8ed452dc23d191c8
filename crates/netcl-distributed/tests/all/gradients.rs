//! Gradients summed over ranks, at the end and during backward.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netcl_distributed::data_parallel::OverlappedSync;
use netcl_distributed::{Error, Group, Threads};
use netcl_nn::autograd::{DType, Tensor, manager, ops};
use netcl_nn::{Linear, Module, Sequential, Tanh, functional as F, sequential};
use netcl_optim::{Optimizer, SGD};

use crate::support::{bits, difference, numbers, on_ranks};

fn model() -> Sequential {
    let queue = manager().cpu().queue;
    netcl_nn::autograd::manual_seed(7);
    let mut model = sequential![
        Linear::new(&queue, 6, 17).unwrap(),
        Tanh,
        Linear::new(&queue, 17, 17).unwrap(),
        Tanh,
        Linear::new(&queue, 17, 3).unwrap()
    ];
    model.cast(DType::F64).unwrap();
    model
}

/// The same model on every rank: initial values come from one generator per process.
fn twins(ranks: usize) -> Vec<Sequential> {
    (0..ranks).map(|_| model()).collect()
}

fn loss(model: &Sequential, x: &Tensor, y: &Tensor) -> Tensor {
    F::mse_loss(&model.forward(x).unwrap(), y, Default::default()).unwrap()
}

fn rows(x: &Tensor, start: usize, end: usize) -> Tensor {
    let part = netcl_nn::autograd::Slice::new(Some(start as isize), Some(end as isize), 1);
    ops::layout::slice(x, 0, part).unwrap()
}

/// How the gradients of a step are summed.
#[derive(Clone, Copy, PartialEq)]
enum How {
    AtTheEnd,
    /// During backward, in buckets of so many bytes.
    Overlapped(usize),
}

/// Parameters after some steps on ranks with shares of 10 samples that end at `ends`.
fn trained(ends: &[usize], how: How) -> Vec<Vec<Tensor>> {
    let models: Vec<Mutex<Option<Sequential>>> = twins(ends.len()).into_iter().map(|m| Mutex::new(Some(m))).collect();
    on_ranks(ends.len(), |group| {
        let model = models[group.rank()].lock().unwrap().take().unwrap();
        let parameters = model.parameters();
        let mut optimizer = SGD::new(parameters.clone(), 0.3).unwrap();
        let end = ends[group.rank()];
        let start = group.rank().checked_sub(1).map_or(0, |before| ends[before]);
        let share = (end - start) as f64 / 10.0;
        let sync = match how {
            How::AtTheEnd => None,
            How::Overlapped(bytes) => Some(OverlappedSync::with_buckets(&group, &parameters, share, bytes).unwrap()),
        };
        for step in 0..4 {
            let (x, y) = (numbers(&[10, 6], step), numbers(&[10, 3], 100 + step));
            optimizer.zero_grad();
            loss(&model, &rows(&x, start, end), &rows(&y, start, end)).backward().unwrap();
            match &sync {
                None => group.sync_grads(&parameters, share).unwrap(),
                Some(sync) => sync.sync_grads().unwrap(),
            }
            optimizer.step().unwrap();
        }
        parameters
    })
}

#[test]
fn ranks_train_as_one_device_does() {
    let alone = trained(&[10], How::AtTheEnd).remove(0);
    for ends in [&[5, 10][..], &[3, 4, 10], &[1, 2, 3, 10]] {
        let ranks = trained(ends, How::AtTheEnd);
        for rank in &ranks {
            assert!(difference(rank, &alone) < 1e-12, "{ends:?}: {}", difference(rank, &alone));
            assert_eq!(bits(rank), bits(&ranks[0]), "{ends:?}");
        }
        assert_eq!(bits(&trained(ends, How::AtTheEnd)[0]), bits(&ranks[0]), "from run to run");
    }
}

#[test]
fn overlap_changes_no_bit() {
    let plain = trained(&[3, 10], How::AtTheEnd);
    for bytes in [1, 400, 3000, 1 << 20] {
        let overlapped = trained(&[3, 10], How::Overlapped(bytes));
        assert_eq!(bits(&overlapped[0]), bits(&plain[0]), "buckets of {bytes} bytes");
        assert_eq!(bits(&overlapped[1]), bits(&plain[1]), "buckets of {bytes} bytes");
    }
}

#[test]
fn parameters_without_gradients_count_as_zeros() {
    for overlapped in [false, true] {
        let seen = on_ranks(3, |group| {
            let tensors: Vec<Tensor> = (0..4).map(|i| numbers(&[2, i + 1], 1).with_grad()).collect();
            let sync = overlapped.then(|| OverlappedSync::new(&group, &tensors, 1.0).unwrap());
            // Parameter 0 is used by all, 1 by rank 1, 2 by none, 3 by ranks 0 and 2.
            let used: &[usize] = if group.rank() == 1 { &[0, 1] } else { &[0, 3] };
            for &at in used {
                ops::reduce::sum(&tensors[at], (), false).unwrap().backward().unwrap();
            }
            match sync {
                Some(sync) => sync.sync_grads().unwrap(),
                None => group.sync_grads(&tensors, 1.0).unwrap(),
            }
            tensors.iter().map(|tensor| tensor.grad().map(|g| g.to_f64_vec().unwrap()[0])).collect::<Vec<_>>()
        });
        for rank in seen {
            assert_eq!(rank, [Some(3.0), Some(1.0), None, Some(2.0)], "overlapped: {overlapped}");
        }
    }
}

#[test]
fn every_dtype_of_a_model_is_summed_in_its_own() {
    let seen = on_ranks(2, |group| {
        let queue = manager().cpu().queue;
        let tensors: Vec<Tensor> = [DType::F32, DType::F64, DType::F16, DType::F32, DType::BF16]
            .iter()
            .map(|&dtype| {
                let tensor = Tensor::from_shape(&queue, [3], dtype).unwrap().with_grad();
                tensor.set_grad(Some(Tensor::full(&queue, [3], dtype, 1.0 + group.rank() as f64).unwrap()));
                tensor
            })
            .collect();
        group.sync_grads(&tensors, 0.5).unwrap();
        tensors.iter().map(|t| (t.grad().unwrap().dtype(), t.grad().unwrap().to_f64_vec().unwrap())).collect::<Vec<_>>()
    });
    for (dtype, values) in &seen[1] {
        assert_eq!(values, &[1.5; 3], "{dtype}");
    }
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn accumulated_gradients_are_exchanged_once() {
    let seen = on_ranks(2, |group| {
        let weight = numbers(&[3], 5).with_grad();
        let sync = OverlappedSync::new(&group, std::slice::from_ref(&weight), 1.0).unwrap();
        let backward = || ops::reduce::sum(&weight, (), false).unwrap().backward().unwrap();
        sync.set_paused(true);
        backward();
        sync.set_paused(false);
        backward();
        sync.sync_grads().unwrap();
        let accumulated = weight.grad().unwrap().to_f64_vec().unwrap();
        weight.set_grad(None);
        backward();
        backward();
        (accumulated, sync.sync_grads().unwrap_err().to_string())
    });
    for (accumulated, error) in seen {
        assert_eq!(accumulated, [4.0; 3]);
        assert!(error.contains("second backward pass") && error.contains("no_sync"), "{error}");
    }
}

#[test]
fn other_parameters_and_shares_are_refused() {
    let errors = on_ranks(2, |group| {
        let tensor = numbers(&[2 + group.rank()], 1).with_grad();
        group.sync_grads(&[tensor], 1.0).unwrap_err()
    });
    for error in errors {
        assert!(matches!(&error, Error::Disagree { .. }), "{error}");
        assert!(error.to_string().contains("float64 (3)") || error.to_string().contains("(3,)"), "{error}");
    }
    let group = Group::new(Threads::new(1).remove(0));
    assert!(group.sync_grads(&[], f64::NAN).unwrap_err().to_string().contains("share NaN"));
}

#[test]
fn exchange_and_backward_overlap() {
    let group = Group::new(Threads::new(1).remove(0));
    let model = model();
    let parameters = model.parameters();
    let sync = Arc::new(OverlappedSync::with_buckets(&group, &parameters, 1.0, 1).unwrap());
    // The first layer's gradient is the last one: backward waits there until the last layer's has been exchanged.
    let (seen, watched) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&sync));
    let during = seen.clone();
    parameters[0]
        .register_hook(move |_| {
            let end = Instant::now() + Duration::from_secs(20);
            let mut during = during.lock().unwrap();
            while during.len() < 2 && Instant::now() < end {
                during.extend(watched.upgrade().unwrap().take_times());
                std::thread::yield_now();
            }
            Ok(None)
        })
        .unwrap();
    let start = Instant::now();
    loss(&model, &numbers(&[10, 6], 1), &numbers(&[10, 3], 2)).backward().unwrap();
    let backward_ended = Instant::now();
    sync.sync_grads().unwrap();
    let during = seen.lock().unwrap();
    assert!(during.len() >= 2, "no bucket was exchanged before backward came to the first layer");
    for (begin, end) in during.iter() {
        println!("exchanged from {:?} to {:?} of {:?}", *begin - start, *end - start, backward_ended - start);
        assert!(*end < backward_ended);
    }
    assert_eq!(during.len() + sync.take_times().len(), parameters.len());
}

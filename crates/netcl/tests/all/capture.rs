//! Captured steps: the bits of eager training, on every device.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use netcl::amp::autocast;
use netcl::core::kernels::launch::{Allocation, Counter, Sink, with_sink};
use netcl::core::random::{Generator, manual_seed};
use netcl::core::storage::Storage;
use netcl::nn::{BatchNorm1d, BatchNorm2d, BatchNormOptions, Conv2d, Dropout, Flatten, MaxPool2d, Strict};
use netcl::optim::schedule::{LambdaLR, WarmupCosine};
use netcl::optim::{Adam, AdamW, AdamWOptions, Ema, EmaOptions, Schedule, StepOptions, clip_grad_norm_device};
use netcl::prelude::*;
use netcl::raw_ops::random::normal;
use netcl::runtime::capture::capture;

use crate::capture_support::{Step, alone, batch, devices, live_bytes, mlp, weights};

fn cnn(queue: &Queue) -> Sequential {
    sequential![
        Conv2d::new(queue, 1, 4, 3).unwrap(),
        BatchNorm2d::new(queue, 4).unwrap(),
        ReLU,
        MaxPool2d::new(2),
        Flatten::default(),
        Dropout::new(0.25).unwrap(),
        Linear::new(queue, 100, 3).unwrap(),
    ]
}

#[test]
fn replays_count_batches_and_average_them_alike() {
    for handle in devices() {
        let queue = &handle.queue;
        for momentum in [Some(0.25), None] {
            let layer =
                || BatchNorm1d::new_with(queue, BatchNormOptions { momentum, ..BatchNormOptions::new(2) }).unwrap();
            let [plain, captured, compiled] = [layer(), layer(), layer()].map(Arc::new);
            let [inside, traced] = [captured.clone(), compiled.clone()];
            let mut step = capture(move |x: &Tensor| inside.forward(x));
            let traced = netcl::autograd::jit::jit(move |x: &[&Tensor]| traced.forward(x[0]));
            for i in 0..4 {
                let values: Vec<f32> = (0..6).map(|n| (n * n + i * n) as f32).collect();
                let x = Tensor::from_host(queue, &values, [3, 2]).unwrap();
                let y = plain.forward(&x).unwrap().to_host::<f32>().unwrap();
                assert_eq!(step.call(&x).unwrap().to_host::<f32>().unwrap(), y);
                traced.call(&[&x]).unwrap();
                for other in [&captured, &compiled] {
                    for ((name, ours), (_, theirs)) in other.named_buffers().iter().zip(plain.named_buffers()) {
                        let (ours, theirs) = (ours.to_f64_vec().unwrap(), theirs.to_f64_vec().unwrap());
                        assert_eq!(
                            ours, theirs,
                            "{name} after batch {i}, momentum {momentum:?}, {}",
                            handle.device_name
                        );
                    }
                }
                assert_eq!(captured.num_batches_tracked().unwrap().item().unwrap(), f64::from(i + 1));
            }
        }
    }
}

/// A sink that notes how many bytes are in use at most.
struct Meter {
    queue: Queue,
    before: usize,
    peak: Cell<usize>,
}

impl Sink for Meter {
    fn allocate(&self, request: &Allocation) -> netcl::core::Result<Arc<Storage>> {
        let storage = request.queue.allocate_now(request.nbytes, request.label)?;
        self.peak.set(self.peak.get().max(live_bytes(&self.queue).0 - self.before));
        Ok(storage)
    }
}

/// Weights, running averages and losses after some steps; launches and bytes of a step.
fn train(handle: &DeviceHandle, steps: usize, captured: bool) -> (Vec<Vec<f32>>, usize, usize) {
    let queue = &handle.queue;
    manual_seed(5);
    let model = Rc::new(cnn(queue));
    let options = AdamWOptions { lr: 0.02, weight_decay: 0.05, ..Default::default() };
    let mut optimizer = AdamW::new_with(model.parameters(), options).unwrap();
    let mut schedule = WarmupCosine::new(&optimizer, steps as u64, 20, 1e-4).unwrap();
    let network = model.clone();
    let mut step = move |(x, labels): &(Tensor, IndexTensor)| {
        let loss = F::cross_entropy(&network.forward(x)?, labels)?;
        loss.backward()?;
        let clip = StepOptions { max_norm: Some(0.5), skip_non_finite: true, ..Default::default() };
        let norm = optimizer.step_with(&clip)?;
        optimizer.zero_grad();
        schedule.step()?;
        Ok::<_, netcl::Error>((loss, norm))
    };
    let mut losses = Vec::new();
    let mut generator = Generator::new(9);
    let mut batch = |i: usize| {
        let x = normal(queue, [16, 1, 12, 12], DType::F32, 0.0, 1.0, Some(&mut generator)).unwrap();
        if i == 50 {
            x.fill(f64::INFINITY).unwrap();
        }
        let labels: Vec<i64> = (0..16).map(|n| ((n + i) % 3) as i64).collect();
        (Tensor::from(x), IndexTensor::from_host(queue, &labels, [16]).unwrap())
    };
    let (launches, bytes) = if captured {
        let mut step = capture(step);
        for i in 0..steps {
            let (loss, _) = step.call(&batch(i)).unwrap();
            losses.push(loss.item().unwrap() as f32);
        }
        assert_eq!(step.recordings(), 1);
        let stats = step.stats().unwrap();
        println!(
            "{}: {} launches and {} actions of the host a step, {} bytes in {} blocks; eagerly {} bytes at once, {} in all",
            handle.device_name,
            stats.launches,
            stats.host_actions,
            stats.planned_bytes,
            stats.blocks,
            stats.eager_bytes,
            stats.requested_bytes
        );
        assert!(stats.planned_bytes < stats.eager_bytes && stats.eager_bytes < stats.requested_bytes);
        // Dropout's place, the optimizer's step, the schedule's; batches are counted on the device.
        assert_eq!((stats.blocks, stats.host_actions), (1, 3));
        (stats.launches, stats.planned_bytes)
    } else {
        let counter = Rc::new(Counter::default());
        let mut meter = None;
        for i in 0..steps {
            let batch = batch(i);
            let (loss, _) = if i == 1 {
                let peak = Meter { queue: queue.clone(), before: live_bytes(queue).0, peak: Cell::new(0) };
                with_sink(meter.insert(Rc::new(peak)).clone(), || step(&batch)).unwrap()
            } else {
                with_sink(counter.clone(), || step(&batch)).unwrap()
            };
            losses.push(loss.item().unwrap() as f32);
        }
        (counter.launches() / (steps - 1), meter.unwrap().peak.get())
    };
    let mut all: Vec<Vec<f32>> = model.named_parameters().iter().map(|(_, p)| p.to_host::<f32>().unwrap()).collect();
    all.extend(
        model.named_buffers().iter().map(|(_, b)| b.to_f64_vec().unwrap().into_iter().map(|v| v as f32).collect()),
    );
    all.push(losses);
    (all, launches, bytes)
}

#[test]
fn two_hundred_steps_of_a_cnn_are_those_of_eager_training_bit_by_bit() {
    let _alone = alone();
    for handle in devices() {
        let (eager, launches, eager_bytes) = train(&handle, 200, false);
        let (replayed, replayed_launches, planned_bytes) = train(&handle, 200, true);
        println!("{}: {launches} launches eagerly, with up to {eager_bytes} bytes in use", handle.device_name);
        assert!(planned_bytes < eager_bytes, "{}: {planned_bytes} of {eager_bytes}", handle.device_name);
        // The seed of the walk is filled once, and what follows an elementwise operation may be a part of it.
        assert!((launches - 8..launches).contains(&replayed_launches), "{}: {replayed_launches}", handle.device_name);
        let bits = |all: &[Vec<f32>]| -> Vec<Vec<u32>> {
            all.iter().map(|values| values.iter().map(|v| v.to_bits()).collect()).collect()
        };
        assert!(eager.last().unwrap()[50].is_nan() || eager.last().unwrap()[50].is_infinite());
        assert!(eager.last().unwrap()[199].is_finite());
        assert_eq!(bits(&eager), bits(&replayed), "{}", handle.device_name);
    }
}

/// Weights and losses after some steps under autocast, with values loaded in between; the launches of the first and of the last step
/// that cast.
fn train_in_16_bits(handle: &DeviceHandle, dtype: DType, captured: bool) -> (Vec<Vec<u32>>, [usize; 2]) {
    let queue = &handle.queue;
    manual_seed(4);
    let other = cnn(queue).state_dict();
    manual_seed(5);
    let model = Rc::new(cnn(queue));
    let mut optimizer = Adam::new(model.parameters(), 0.02).unwrap();
    let network = model.clone();
    let mut step = move |(x, labels): &(Tensor, IndexTensor)| {
        let loss = {
            let _scope = autocast(dtype)?;
            F::cross_entropy(&network.forward(x)?, labels)?
        };
        loss.backward()?;
        optimizer.step_with(&StepOptions { skip_non_finite: true, ..Default::default() })?;
        optimizer.zero_grad();
        Ok::<_, netcl::Error>(loss.detach())
    };
    let mut generator = Generator::new(9);
    let mut losses = Vec::new();
    let mut run = |step: &mut dyn FnMut(&(Tensor, IndexTensor)) -> netcl::Result<Tensor>| {
        for i in 0..8 {
            let x = normal(queue, [16, 1, 12, 12], DType::F32, 0.0, 1.0, Some(&mut generator)).unwrap();
            // A step that the device skips, values that are loaded, one parameter that somebody writes to.
            match i {
                2 => x.fill(f64::INFINITY).unwrap(),
                4 => drop(model.load_state_dict(&other, Strict::Yes).unwrap()),
                5 => model.parameters()[0].raw().fill(0.125).unwrap(),
                _ => {}
            }
            let labels: Vec<i64> = (0..16).map(|n| ((n + i) % 3) as i64).collect();
            let batch = (Tensor::from(x), IndexTensor::from_host(queue, &labels, [16]).unwrap());
            losses.push(step(&batch).unwrap().item().unwrap() as f32);
        }
    };
    let casts = if captured {
        let mut step = capture(step);
        run(&mut |batch| step.call(batch));
        [step.stats().unwrap().names.iter().filter(|name| &name[..] == "cast").count(); 2]
    } else {
        let mut counts = Vec::new();
        run(&mut |batch| {
            let counter = Rc::new(Counter::default());
            let loss = with_sink(counter.clone(), || step(batch));
            counts.push(counter.of("cast"));
            loss
        });
        [counts[0], counts[7]]
    };
    let mut all: Vec<Vec<f32>> = model.parameters().iter().map(|p| p.to_host::<f32>().unwrap()).collect();
    all.push(losses);
    (all.iter().map(|values| values.iter().map(|v| v.to_bits()).collect()).collect(), casts)
}

#[test]
fn parameters_are_cast_in_one_launch_whoever_writes_to_them() {
    let _alone = alone();
    for handle in devices() {
        for dtype in [DType::F16, DType::BF16] {
            let (eager, [first, last]) = train_in_16_bits(&handle, dtype, false);
            let (replayed, [casts, _]) = train_in_16_bits(&handle, dtype, true);
            assert_eq!(eager, replayed, "{dtype} on {}", handle.device_name);
            assert_eq!(first - last, 3, "the weights and biases of two layers");
            assert!(casts <= last, "{casts}, {last} eagerly");
        }
    }
}

#[test]
fn activations_and_their_gradients_become_parts_of_products() {
    let _alone = alone();
    for handle in devices() {
        let queue = &handle.queue;
        // As wide as it takes for a product's terms to be split on some device.
        let (model, step) = mlp(queue, 3, [784, 128, 10]);
        let mut step = capture(step);
        let (eager_model, mut eager) = mlp(queue, 3, [784, 128, 10]);
        let counter = Rc::new(Counter::default());
        for i in 0..20 {
            let batch = batch(queue, 32, 784, 10, i);
            let expected = with_sink(counter.clone(), || eager(&batch)).unwrap().item().unwrap();
            assert_eq!(step.call(&batch).unwrap().item().unwrap().to_bits(), expected.to_bits());
        }
        assert_eq!(weights(&model), weights(&eager_model), "{}", handle.device_name);
        let stats = step.stats().unwrap();
        println!("{}: {} launches, {:?}", handle.device_name, stats.launches, stats.names);
        // One for the activation, one for its gradient, and the seed of the walk.
        assert_eq!(stats.launches + 3, counter.launches() / 20, "{}", handle.device_name);
        for name in ["relu", "relu_backward"] {
            let fused = stats.names.iter().filter(|n| n.starts_with("matmul") && n.ends_with(&format!("_{name}")));
            assert_eq!(fused.count(), 1, "{}: {:?}", handle.device_name, stats.names);
            assert!(!stats.names.iter().any(|n| n == name));
        }
    }
}

#[test]
fn what_somebody_sees_or_changes_is_computed_for_itself() {
    let _alone = alone();
    for handle in devices() {
        let queue = &handle.queue;
        let a = Tensor::from_host(queue, &[1.0f32, -2.0, 3.0, 4.0], [2, 2]).unwrap();
        let b = Tensor::from_host(queue, &[1.0f32, 1.0, -1.0, 0.5], [2, 2]).unwrap();
        let product = |a: &Tensor| netcl::raw_ops::matmul(a, &b);
        let relu = |x: &netcl::core::tensor::Tensor| netcl::raw_ops::relu(x).map(Tensor::from);

        // Nobody sees the sums.
        let mut hidden = capture(|a: &Tensor| Ok::<_, netcl::Error>(relu(&product(a)?)?));
        let y = hidden.call(&a).unwrap().to_host::<f32>().unwrap();
        assert_eq!(y, [3.0, 0.0, 0.0, 5.0]);
        assert_eq!(hidden.stats().unwrap().launches, 1, "{:?}", hidden.stats().unwrap().names);

        // The caller does.
        let mut seen = capture(|a: &Tensor| {
            let sums = product(a)?;
            Ok::<_, netcl::Error>((relu(&sums)?, Tensor::from(sums)))
        });
        let (y, sums) = seen.call(&a).unwrap();
        assert_eq!(y.to_host::<f32>().unwrap(), [3.0, 0.0, 0.0, 5.0]);
        assert_eq!(sums.to_host::<f32>().unwrap(), [3.0, 0.0, -1.0, 5.0]);
        assert_eq!(seen.stats().unwrap().launches, 2);

        // An operand is overwritten before the result is looked at.
        let mut changed = capture(|a: &Tensor| {
            let own = a.duplicate()?;
            let sums = product(&own)?;
            own.assign(&b)?;
            Ok::<_, netcl::Error>((relu(&sums)?, own))
        });
        let (y, _) = changed.call(&a).unwrap();
        assert_eq!(y.to_host::<f32>().unwrap(), [3.0, 0.0, 0.0, 5.0]);
        assert_eq!(changed.stats().unwrap().launches, 4);

        // A constant is filled once, also when what it meets is written in its place everywhere else; the two operations are one launch.
        let mut constant = capture(|a: &Tensor| {
            let two = Tensor::full(a.queue(), [2, 2], DType::F32, 2.0)?;
            &(&two * a)? + &two
        });
        for _ in 0..3 {
            assert_eq!(constant.call(&a).unwrap().to_host::<f32>().unwrap(), [4.0, -2.0, 8.0, 10.0]);
        }
        assert_eq!(constant.stats().unwrap().names, ["mul_add"]);
    }
}

#[test]
fn replays_do_not_grow() {
    let _alone = alone();
    // Ten thousand where they take a second; a driver takes longer.
    grow(|queue| if matches!(queue, Queue::Cpu(_)) { 10_000 } else { 1_000 });
}

#[test]
#[ignore = "slow"]
fn ten_thousand_replays_do_not_grow_on_any_device() {
    let _alone = alone();
    grow(|_| 10_000);
}

fn grow(steps: impl Fn(&Queue) -> usize) {
    for handle in devices() {
        let queue = &handle.queue;
        let steps = steps(queue);
        let (_, step) = mlp(queue, 1, [8, 16, 3]);
        let mut step = capture(step);
        let batches: Vec<_> = (0..4).map(|i| batch(queue, 4, 8, 3, i)).collect();
        let mut early = None;
        for i in 0..steps {
            let loss = step.call(&batches[i % 4]).unwrap();
            // A driver holds what it has not done yet.
            if i % 50 == 0 {
                assert!(loss.item().unwrap().is_finite());
            }
            if i == 100 {
                early = Some((live_bytes(queue), resident_pages()));
            }
        }
        queue.finish().unwrap();
        let (memory, pages) = early.unwrap();
        assert_eq!(live_bytes(queue), memory, "{}", handle.device_name);
        assert_eq!(step.recordings(), 1);
        // The driver's own memory: room for noise, not for a leak.
        let grown = resident_pages().saturating_sub(pages) * 4096;
        assert!(grown < 16 << 20, "{}: the process grew by {grown} bytes in {steps} replays", handle.device_name);
    }
}

fn resident_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

#[test]
fn two_captured_steps_take_turns() {
    let _alone = alone();
    for handle in devices() {
        let queue = &handle.queue;
        let run = |captured: bool| {
            let (first, mut one) = mlp(queue, 1, [8, 16, 3]);
            let (second, mut two) = mlp(queue, 2, [8, 12, 3]);
            if captured {
                let (mut one, mut two) = (capture(one), capture(two));
                for i in 0..10 {
                    one.call(&batch(queue, 4, 8, 3, i)).unwrap();
                    two.call(&batch(queue, 4, 8, 3, i + 50)).unwrap();
                    if i % 3 == 0 {
                        two.replay().unwrap();
                    }
                }
            } else {
                for i in 0..10 {
                    one(&batch(queue, 4, 8, 3, i)).unwrap();
                    two(&batch(queue, 4, 8, 3, i + 50)).unwrap();
                    if i % 3 == 0 {
                        two(&batch(queue, 4, 8, 3, i + 50)).unwrap();
                    }
                }
            }
            [weights(&first), weights(&second)]
        };
        assert_eq!(run(false), run(true), "{}", handle.device_name);
    }
}

#[test]
fn two_threads_capture_at_the_same_time() {
    let _alone = alone();
    for handle in devices() {
        let queue = &handle.queue;
        let expected: Vec<_> = (0..2)
            .map(|t| {
                let (model, mut step) = mlp(queue, 10 + t, [8, 16, 3]);
                (0..20).for_each(|i| drop(step(&batch(queue, 4, 8, 3, i)).unwrap()));
                weights(&model)
            })
            .collect();
        let made: Vec<_> = (0..2).map(|t| mlp(queue, 10 + t, [8, 16, 3])).collect();
        let replayed: Vec<_> = std::thread::scope(|scope| {
            let run = |(model, step): (Arc<Sequential>, Step)| {
                scope.spawn(move || {
                    let mut step = capture(step);
                    (0..20).for_each(|i| drop(step.call(&batch(queue, 4, 8, 3, i)).unwrap()));
                    weights(&model)
                })
            };
            let threads: Vec<_> = made.into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(expected, replayed, "{}", handle.device_name);
    }
}

#[test]
fn other_inputs_record_anew_and_old_ones_are_remembered() {
    let _alone = alone();
    for handle in devices() {
        let queue = &handle.queue;
        let (model, step) = mlp(queue, 1, [8, 16, 3]);
        let mut step = capture(step);
        let (eager_model, mut eager) = mlp(queue, 1, [8, 16, 3]);
        for (i, rows) in [4, 6, 4, 6, 2, 4].into_iter().enumerate() {
            let batch = batch(queue, rows, 8, 3, i);
            let (got, expected) = (step.call(&batch).unwrap(), eager(&batch).unwrap());
            assert_eq!(got.item().unwrap().to_bits(), expected.item().unwrap().to_bits());
        }
        assert_eq!(step.recordings(), 3);
        assert_eq!(weights(&model), weights(&eager_model));
        // Another dtype records as well, and fails as the function itself does: the weights are float32.
        let (x, labels) = batch(queue, 4, 8, 3, 0);
        let wide = x.cast(DType::F64).unwrap();
        assert!(step.call(&(wide, labels.clone())).unwrap_err().to_string().contains("float64"));
        // Another device: the weights are not there.
        if !matches!(handle.queue, Queue::Cpu(_)) {
            let error = step.call(&batch_on_cpu()).unwrap_err().to_string();
            assert!(error.contains(&handle.device_name) || error.contains("device"), "{error}");
        }
        // Views are taken as what they hold.
        let rows = Tensor::from(x.raw().slice(0, netcl::core::shape::Slice::new(Some(1), Some(3), 1)).unwrap());
        let some = IndexTensor::from_host(queue, &[0i64, 1], [2]).unwrap();
        let dense = rows.duplicate().unwrap();
        let expected = eager(&(dense, some.clone())).unwrap();
        let got = step.call(&(rows, some)).unwrap();
        assert_eq!(got.item().unwrap().to_bits(), expected.item().unwrap().to_bits());
        assert_eq!(step.recordings(), 3);
        step.clear();
        step.call(&batch(queue, 4, 8, 3, 0)).unwrap();
        assert_eq!(step.recordings(), 4);
    }
}

fn batch_on_cpu() -> (Tensor, IndexTensor) {
    batch(&manager().cpu().queue, 4, 8, 3, 0)
}

#[test]
fn other_dtypes_and_devices_record_programs_of_their_own() {
    let _alone = alone();
    let handles = devices();
    let mut square = capture(|(x, y): &(Tensor, Tensor)| &(x * y)? + y);
    for round in 0..3 {
        for (d, handle) in handles.iter().enumerate() {
            for (t, dtype) in [DType::F32, DType::F64, DType::F16].into_iter().enumerate() {
                let value = 1.0 + d as f64 + 4.0 * t as f64 + round as f64;
                let x = Tensor::full(&handle.queue, [3], dtype, value).unwrap();
                let result = square.call(&(x.clone(), x)).unwrap();
                assert_eq!((result.dtype(), result.queue()), (dtype, &handle.queue));
                let expected = value * value + value;
                assert_eq!(result.to_f64_vec().unwrap(), [expected; 3], "{} on {}", dtype, handle.device_name);
            }
        }
        // Eight programs are kept; with more kinds of inputs in turn, each call finds its own gone.
        let kinds = 3 * handles.len();
        let recorded = if kinds <= 8 { kinds } else { kinds * (round + 1) };
        assert_eq!(square.recordings(), recorded);
    }
    let on = |handle: &DeviceHandle, dtype| Tensor::full(&handle.queue, [3], dtype, 1.0).unwrap();
    for handle in &handles[1..] {
        // Two devices in one step: an error that names both and says what to do, not a recording.
        let recorded = square.recordings();
        let error = square.call(&(on(&handles[0], DType::F32), on(handle, DType::F32))).unwrap_err().to_string();
        assert!(error.contains(&handle.device_name) && error.contains("to("), "{error}");
        assert_eq!(square.recordings(), recorded);
    }
    // Two dtypes in one step: the function's own error.
    let mixed = (on(&handles[0], DType::F32), on(&handles[0], DType::F64));
    let plain = (&mixed.0 * &mixed.1).map(|_| ()).map_err(|error| error.to_string());
    assert_eq!(square.call(&mixed).map(|_| ()).map_err(|error| error.to_string()), plain);
}

#[test]
fn what_cannot_be_captured_says_so() {
    let _alone = alone();
    let queue = &manager().cpu().queue;
    let x = Tensor::from_host(queue, &[1.0f32, 2.0], [2]).unwrap();
    let message = |error: netcl::Error| error.to_string();

    let mut reads = capture(|x: &Tensor| {
        let squares = (x * x)?;
        println!("{:?}", squares.to_host::<f32>()?);
        Ok::<_, netcl::Error>(squares)
    });
    let error = message(reads.call(&x).unwrap_err());
    assert!(error.contains("to_host") && error.contains("after the call"), "{error}");

    let mut nothing = capture(|x: &Tensor| Ok::<_, netcl::Error>(x.clone()));
    assert!(message(nothing.call(&x).unwrap_err()).contains("launched nothing"));
    assert!(message(nothing.replay().unwrap_err()).contains("nothing has been recorded"));

    let mut inner = capture(|x: &Tensor| x * x);
    let mut outer = capture(|x: &Tensor| inner.call(x));
    assert!(message(outer.call(&x).unwrap_err()).contains("while another one is being recorded"));

    let mut generator = Generator::new(1);
    let mut own = capture(|x: &Tensor| netcl::autograd::ops::dropout::dropout(x, 0.5, Some(&mut generator)));
    assert!(message(own.call(&x).unwrap_err()).contains("manual_seed"));

    let p = Tensor::from_host(queue, &[1.0f32, 2.0], [2]).unwrap().with_grad();
    let optimizer = Adam::new([p], 0.1).unwrap();
    let mut schedule = LambdaLR::new(&optimizer, |_| 0.5).unwrap();
    let mut stepped = capture(|x: &Tensor| {
        schedule.step()?;
        x * x
    });
    assert!(message(stepped.call(&x).unwrap_err()).contains("after each call"));
    // After a failure the thread records nothing any more.
    assert_eq!((&x * &x).unwrap().to_host::<f32>().unwrap(), [1.0, 4.0]);
}

#[test]
fn results_feed_the_next_step_and_gradients_stay_readable() {
    let _alone = alone();
    for handle in devices() {
        let queue = &handle.queue;
        // The state goes in and comes out: what is read must not be what is being written.
        let mut grow = capture(|(h, x): &(Tensor, Tensor)| (&(h * x)? + x).map(|h| (h, x.clone())));
        let x = Tensor::from_host(queue, &[2.0f32, 3.0], [2]).unwrap();
        let mut h = Tensor::from_host(queue, &[1.0f32, 1.0], [2]).unwrap();
        for _ in 0..4 {
            h = grow.call(&(h, x.clone())).unwrap().0;
        }
        assert_eq!(h.to_host::<f32>().unwrap(), [46.0, 201.0]);

        let p = Tensor::from_host(queue, &[1.0f32, 2.0], [2]).unwrap().with_grad();
        let weight = p.clone();
        let mut gradients = capture(move |x: &Tensor| {
            weight.set_grad(None);
            let loss = netcl::autograd::ops::reduce::sum(&(&weight * x)?, (), false)?;
            loss.backward()?;
            let norm = clip_grad_norm_device([&weight], 1e9)?;
            Ok::<_, netcl::Error>((loss, norm))
        });
        for i in 1..4 {
            let x = Tensor::from_host(queue, &[3.0 * i as f32, 4.0 * i as f32], [2]).unwrap();
            let (loss, norm) = gradients.call(&x).unwrap();
            assert_eq!(loss.item().unwrap(), 11.0 * f64::from(i));
            assert_eq!(norm.unwrap().item().unwrap(), 5.0 * f64::from(i));
            assert_eq!(p.grad().unwrap().to_host::<f32>().unwrap(), x.to_host::<f32>().unwrap());
        }
        assert_eq!(gradients.recordings(), 1);
    }
}

#[test]
fn averages_of_weights_and_random_numbers_move_on() {
    let _alone = alone();
    let queue = &manager().cpu().queue;
    let run = |captured: bool| {
        manual_seed(21);
        let p = Tensor::from_host(queue, &[0.0f32; 4], [4]).unwrap().with_grad();
        let mut ema = Ema::new([p.clone()], EmaOptions::default()).unwrap();
        let mut step = |x: &Tensor| {
            let noise = netcl::autograd::ops::random::uniform(queue, [4], DType::F32, 0.0, 1.0, None)?;
            p.assign((&noise + x)?.raw())?;
            ema.update()?;
            Ok::<_, netcl::Error>(noise)
        };
        let x = Tensor::from_host(queue, &[1.0f32, 2.0, 3.0, 4.0], [4]).unwrap();
        let noise: Vec<f32> = if captured {
            let mut step = capture(step);
            (0..5).flat_map(|_| step.call(&x).unwrap().to_host::<f32>().unwrap()).collect()
        } else {
            (0..5).flat_map(|_| step(&x).unwrap().to_host::<f32>().unwrap()).collect()
        };
        assert_eq!(ema.updates(), 5);
        (noise, ema.averages().unwrap()[0].to_host::<f32>().unwrap())
    };
    assert_eq!(run(false), run(true));
}

//! Tests of loss scaling, by itself, with autocast, and in captured steps.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

use netcl_amp::{DType, GradScaler, GradScalerOptions, autocast};
use netcl_autograd::ops::loss::{Reduction, mse_loss};
use netcl_autograd::ops::matmul::linear;
use netcl_autograd::ops::norm::layer_norm;
use netcl_autograd::{Error, Queue, Result, Tensor, manager};
use netcl_core::random::{Generator, fill_uniform_f64};
use netcl_core::tensor::HostOptions;
use netcl_optim::{Adam, Optimizer, SGD, StepOptions, clip_grad_norm};
use netcl_runtime::capture::capture;

/// The native CPU and every OpenCL device.
fn queues() -> Vec<Queue> {
    let found = manager().discover().unwrap();
    if found.is_empty() {
        eprintln!("NOT TESTED on OpenCL: there is no device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device: install pocl-opencl-icd");
    }
    let handles = found.iter().map(|device| manager().handle(device).unwrap());
    [manager().cpu()].into_iter().chain(handles).map(|handle| handle.queue).collect()
}

fn random(queue: &Queue, shape: &[usize], seed: u64) -> Tensor {
    let mut values = vec![0.0; shape.iter().product()];
    fill_uniform_f64(&mut values, &Generator::new(seed)).unwrap();
    values.iter_mut().for_each(|value| *value -= 0.5);
    let options = HostOptions { dtype: Some(DType::F32), ..Default::default() };
    Tensor::from_host_with(queue, &values, shape, options).unwrap()
}

/// A scaler whose scale grows quickly.
fn quick() -> GradScaler {
    GradScaler::new(&GradScalerOptions { init_scale: 1024.0, growth_interval: 3, ..Default::default() }).unwrap()
}

/// Two layers with a normalisation between them.
struct Network {
    first: Tensor,
    scale: Tensor,
    second: Tensor,
}

impl Network {
    fn new(queue: &Queue) -> Network {
        let scale = Tensor::full(queue, [8], DType::F32, 1.0).unwrap().with_grad();
        Network { first: random(queue, &[8, 5], 1).with_grad(), scale, second: random(queue, &[3, 8], 2).with_grad() }
    }

    fn parameters(&self) -> [Tensor; 3] {
        [self.first.clone(), self.scale.clone(), self.second.clone()]
    }

    fn loss(&self, x: &Tensor, target: &Tensor, dtype: DType) -> Result<Tensor> {
        let _scope = autocast(dtype)?;
        let hidden = layer_norm(&linear(x, &self.first, None)?, 1, Some(&self.scale), None, 1e-5)?.relu()?;
        mse_loss(&linear(&hidden, &self.second, None)?, target, Reduction::Mean)
    }

    fn values(&self) -> Vec<Vec<f64>> {
        self.parameters().iter().map(|parameter| parameter.to_f64_vec().unwrap()).collect()
    }
}

/// Batches, of which the third has a target that no float16 gradient survives.
fn batches(queue: &Queue, count: usize) -> Vec<(Tensor, Tensor)> {
    let batch = |i: usize| {
        let target = random(queue, &[4, 3], 90 + i as u64);
        if i == 2 {
            target.raw().fill(f64::INFINITY).unwrap();
        }
        (random(queue, &[4, 5], 50 + i as u64), target)
    };
    (0..count).map(batch).collect()
}

fn train_step(
    network: &Network,
    optimizer: &mut Adam,
    scaler: &mut GradScaler,
    (x, target): (&Tensor, &Tensor),
    dtype: DType,
) -> Result<Tensor> {
    let loss = network.loss(x, target, dtype)?;
    scaler.scale(&loss)?.backward()?;
    scaler.step_with(optimizer, clipped(1.0))?;
    scaler.update()?;
    optimizer.zero_grad();
    Ok(loss.detach())
}

#[test]
fn an_overflow_skips_one_step_and_halves_the_scale() {
    for queue in queues() {
        for dtype in [DType::F16, DType::BF16] {
            let (with, without) = (Network::new(&queue), Network::new(&queue));
            let mut scalers = [quick(), quick()];
            let mut optimizers = [&with, &without].map(|n| Adam::new(n.parameters(), 0.01).unwrap());
            for (i, (x, target)) in batches(&queue, 4).iter().enumerate() {
                let before = with.values();
                train_step(&with, &mut optimizers[0], &mut scalers[0], (x, target), dtype).unwrap();
                assert_eq!(with.values() == before, i == 2, "only the third step is skipped");
                assert_eq!(scalers[0].get_scale().unwrap(), if i < 2 { 1024.0 } else { 512.0 });
                if i != 2 {
                    train_step(&without, &mut optimizers[1], &mut scalers[1], (x, target), dtype).unwrap();
                }
            }
            // The same as if the third batch had never been: Adam has not counted it. A power of two more or less changes nothing.
            assert_eq!(optimizers[0].state().numbers["0.step"], 3.0);
            for (a, b) in with.values().iter().flatten().zip(without.values().iter().flatten()) {
                assert!((a - b).abs() < 1e-4, "{a} {b}");
            }
        }
    }
}

#[test]
fn gradients_are_those_of_a_loss_without_scale() {
    for queue in queues() {
        let p = random(&queue, &[7], 3).with_grad();
        let mut optimizer = SGD::new([p.clone()], 1.0).unwrap();
        let mut scaler = GradScaler::default();
        let before = p.to_f64_vec().unwrap();
        scaler.scale(&p.square().unwrap().sum((), false).unwrap()).unwrap().backward().unwrap();
        assert_eq!(p.grad().unwrap().to_f64_vec().unwrap()[0], before[0] * 2.0 * 65536.0);
        scaler.step(&mut optimizer).unwrap();
        let after: Vec<f64> = before.iter().map(|value| -value).collect();
        assert_eq!(p.to_f64_vec().unwrap(), after);
    }
}

#[test]
fn the_scale_grows_after_an_interval() {
    for queue in queues() {
        let p = random(&queue, &[7], 3).with_grad();
        let mut optimizer = SGD::new([p.clone()], 0.0).unwrap();
        let mut scaler = quick();
        let mut step = |factor: f64, scaler: &mut GradScaler| {
            scaler.scale(&(&p * factor).unwrap().sum((), false).unwrap()).unwrap().backward().unwrap();
            scaler.step(&mut optimizer).unwrap();
            scaler.update().unwrap();
            optimizer.zero_grad();
            scaler.get_scale().unwrap()
        };
        let scales: Vec<f64> = (0..6).map(|_| step(1.0, &mut scaler)).collect();
        assert_eq!(scales, [1024.0, 1024.0, 2048.0, 2048.0, 2048.0, 4096.0]);
        // An overflow begins the count anew.
        let scales: Vec<f64> = [1.0, f64::NAN, 1.0, 1.0, 1.0].map(|factor| step(factor, &mut scaler)).to_vec();
        assert_eq!(scales, [4096.0, 2048.0, 2048.0, 2048.0, 4096.0]);
        scaler.set_growth(Some(4.0), None, Some(1)).unwrap();
        assert_eq!(step(1.0, &mut scaler), 16384.0);
        // The largest scale of all stays what it is.
        scaler.set_scale(f64::from(f32::MAX)).unwrap();
        assert_eq!(step(1e-30, &mut scaler), f64::from(f32::MAX));
    }
}

#[test]
fn unscaled_gradients_can_be_clipped() {
    for queue in queues() {
        let [a, b] = [(); 2].map(|()| Tensor::full(&queue, [4], DType::F32, 1.0).unwrap().with_grad());
        let mut optimizers = [&a, &b].map(|p| SGD::new([p.clone()], 1.0).unwrap());
        let mut scaler = GradScaler::default();
        for p in [&a, &b] {
            scaler.scale(&(p * 3.0).unwrap().sum((), false).unwrap()).unwrap().backward().unwrap();
        }
        scaler.unscale(&optimizers[0]).unwrap();
        assert_eq!(clip_grad_norm([&a], 2.0).unwrap(), 6.0);
        scaler.step(&mut optimizers[0]).unwrap();
        let norm = scaler.step_with(&mut optimizers[1], clipped(2.0)).unwrap().unwrap();
        assert_eq!(norm.item().unwrap(), 6.0);
        scaler.update().unwrap();
        for p in [&a, &b] {
            assert!(p.to_f64_vec().unwrap().iter().all(|value| value.abs() < 1e-5), "1 - 1");
        }
    }
}

#[test]
fn several_optimizers_share_a_scale() {
    for queue in queues() {
        let [a, b] = [(); 2].map(|()| Tensor::full(&queue, [4], DType::F32, 1.0).unwrap().with_grad());
        let [mut good, mut bad] = [&a, &b].map(|p| SGD::new([p.clone()], 0.5).unwrap());
        let mut scaler = GradScaler::default();
        let loss = (&a.sum((), false).unwrap() + &(&b * f64::INFINITY).unwrap().sum((), false).unwrap()).unwrap();
        scaler.scale(&loss).unwrap().backward().unwrap();
        scaler.unscale(&bad).unwrap();
        scaler.step(&mut good).unwrap();
        scaler.step(&mut bad).unwrap();
        scaler.update().unwrap();
        assert_eq!((a.to_f64_vec().unwrap(), b.to_f64_vec().unwrap()), (vec![0.5; 4], vec![1.0; 4]));
        assert_eq!(scaler.get_scale().unwrap(), 32768.0);
    }
}

#[test]
fn a_captured_step_is_the_eager_one() {
    for queue in queues() {
        for dtype in [DType::F16, DType::BF16] {
            let eager = Network::new(&queue);
            let mut optimizer = Adam::new(eager.parameters(), 0.01).unwrap();
            let mut scaler = quick();
            let recorded = Network::new(&queue);
            let mut own = Adam::new(recorded.parameters(), 0.01).unwrap();
            let captured = std::sync::Arc::new(std::sync::Mutex::new(quick()));
            let (shared, parameters) = (captured.clone(), recorded.parameters());
            let mut step = capture(move |batch: &(Tensor, Tensor)| {
                let mut scaler = shared.lock().unwrap();
                train_step(&recorded, &mut own, &mut scaler, (&batch.0, &batch.1), dtype)
            });
            for (i, batch) in batches(&queue, 8).into_iter().enumerate() {
                // Values that are loaded between two steps.
                for parameter in parameters.iter().chain(&eager.parameters()).filter(|_| i == 5) {
                    parameter.raw().assign(&parameter.raw().cast(DType::BF16).unwrap()).unwrap();
                }
                let expected = train_step(&eager, &mut optimizer, &mut scaler, (&batch.0, &batch.1), dtype).unwrap();
                let found = step.call(&batch).unwrap();
                assert_eq!(found.item().unwrap(), expected.item().unwrap());
                let values: Vec<Vec<f64>> = parameters.iter().map(|p| p.to_f64_vec().unwrap()).collect();
                assert_eq!(values, eager.values(), "replays change weights as eager steps do");
                let now = captured.lock().unwrap().state().unwrap().numbers;
                assert_eq!(now, scaler.state().unwrap().numbers);
            }
            assert_eq!(step.recordings(), 1);
            let names = &step.stats().unwrap().names;
            assert_eq!(names.iter().filter(|name| &name[..] == "cast").count(), 2, "the batch; all weights: {names:?}");
            assert_eq!(scaler.get_scale().unwrap(), 1024.0, "two good steps, one bad, five good of which three count");
        }
    }
}

#[test]
fn state_goes_on_where_it_was() {
    let queue = manager().cpu().queue;
    let network = Network::new(&queue);
    let mut optimizer = Adam::new(network.parameters(), 0.01).unwrap();
    let mut scaler = quick();
    let batches = batches(&queue, 2);
    for (x, target) in &batches {
        train_step(&network, &mut optimizer, &mut scaler, (x, target), DType::F16).unwrap();
    }
    let state = scaler.state().unwrap();
    assert_eq!(state.numbers["_growth_tracker"], 2.0);
    let (mut other, (x, target)) = (GradScaler::default(), &batches[0]);
    other.load_state(&state).unwrap();
    train_step(&network, &mut optimizer, &mut other, (x, target), DType::F16).unwrap();
    assert_eq!(other.get_scale().unwrap(), 2048.0, "the third good step");
    // Into a scaler that is on a device already.
    other.load_state(&state).unwrap();
    assert_eq!(other.state().unwrap().numbers, state.numbers);
    let mut wrong = state.clone();
    wrong.numbers.remove("scale");
    wrong.numbers.insert("step".to_owned(), 1.0);
    let error = other.load_state(&wrong).unwrap_err().to_string();
    assert!(error.contains("no number \"scale\"") && error.contains("unknown entry \"step\""), "{error}");
}

#[test]
fn a_scaler_that_is_off_does_nothing() {
    let p = Tensor::full(&manager().cpu().queue, [1], DType::F32, 1.0).unwrap().with_grad();
    let mut optimizer = SGD::new([p.clone()], 0.5).unwrap();
    let mut scaler = GradScaler::new(&GradScalerOptions { enabled: false, ..Default::default() }).unwrap();
    scaler.scale(&p.sum((), false).unwrap()).unwrap().backward().unwrap();
    scaler.unscale(&optimizer).unwrap();
    scaler.step(&mut optimizer).unwrap();
    scaler.update().unwrap();
    assert_eq!((p.item().unwrap(), scaler.get_scale().unwrap()), (0.5, 1.0));
    assert!(scaler.state().unwrap().numbers.is_empty() && !scaler.is_enabled());
}

#[test]
fn the_order_of_a_step_is_checked() {
    let p = Tensor::full(&manager().cpu().queue, [1], DType::F32, 1.0).unwrap().with_grad();
    let mut optimizer = SGD::new([p.clone()], 0.5).unwrap();
    let mut scaler = GradScaler::default();
    let text = |result: Result<(), Error>| result.unwrap_err().to_string();
    assert!(text(scaler.step(&mut optimizer)).contains("no loss was scaled yet"));
    assert!(text(scaler.update()).contains("no optimizer has stepped"));
    scaler.scale(&p.sum((), false).unwrap()).unwrap().backward().unwrap();
    scaler.unscale(&optimizer).unwrap();
    assert!(text(scaler.unscale(&optimizer)).contains("unscaled already"));
    scaler.step(&mut optimizer).unwrap();
    scaler.update().unwrap();
    let bad = GradScalerOptions { growth_factor: 1.0, ..Default::default() };
    assert!(GradScaler::new(&bad).unwrap_err().to_string().contains("growth_factor is 1"));
}

#[test]
fn a_step_makes_up_for_an_update_that_nobody_called() {
    let p = Tensor::full(&manager().cpu().queue, [1], DType::F32, 1.0).unwrap().with_grad();
    let mut optimizer = SGD::new([p.clone()], 0.125).unwrap();
    let mut scaler = GradScaler::new(&GradScalerOptions { growth_interval: 2, ..Default::default() }).unwrap();
    // Overflows in the second step; each gradient was made with the scale before the movement that the step makes up for.
    for factor in [1.0, f64::INFINITY, 1.0, 1.0, 1.0] {
        let loss = (&p * factor).unwrap().sum((), false).unwrap();
        scaler.scale(&loss).unwrap().backward().unwrap();
        scaler.step(&mut optimizer).unwrap();
        optimizer.zero_grad();
    }
    assert_eq!(p.item().unwrap(), 0.5);
    assert_eq!(scaler.get_scale().unwrap(), 65536.0); // halved, and doubled after two good steps
}

fn clipped(max_norm: f64) -> StepOptions {
    StepOptions { max_norm: Some(max_norm), ..StepOptions::default() }
}

//! The trainer against loops written by hand.

use std::cell::Cell;
use std::path::Path;

use netcl_amp::DType;
use netcl_nn::autograd::{IndexTensor, Queue, Tensor, manager, manual_seed};
use netcl_nn::{Dropout, Linear, Module, ReLU, Sequential, functional as F, sequential};
use netcl_optim::schedule::CosineAnnealingLR;
use netcl_optim::{Adam, EmaOptions, Optimizer};

use super::*;
use crate::error::{Error, Result};

mod ranks;

type Pair = (Tensor, IndexTensor);

fn model(queue: &Queue, dropout: f64) -> Sequential {
    manual_seed(3);
    sequential![
        Linear::new(queue, 4, 16).unwrap(),
        ReLU,
        Dropout::new(dropout).unwrap(),
        Linear::new(queue, 16, 3).unwrap(),
    ]
}

/// Batches of 8, the last one of 5.
fn batches(queue: &Queue, count: usize) -> Vec<Pair> {
    let make = |i: usize| {
        let n = if i + 1 == count { 5 } else { 8 };
        let x: Vec<f32> = (0..n * 4).map(|j| (((i * 31 + j * 17) % 23) as f32 / 11.5 - 1.0) * 1.5).collect();
        let y: Vec<i64> = (0..n).map(|j| ((i + j * j) % 3) as i64).collect();
        (Tensor::from_host(queue, &x, [n, 4]).unwrap(), IndexTensor::from_host(queue, &y, [n]).unwrap())
    };
    (0..count).map(make).collect()
}

fn task(model: &Sequential, (x, y): &Pair) -> Result<Output> {
    let logits = model.forward(x)?;
    let loss = F::cross_entropy(&logits, y)?;
    Ok(Output { loss, predictions: Some((logits, Truth::Index(y.clone()))) })
}

fn trainer(queue: &Queue, dropout: f64, options: TrainerOptions) -> Trainer<Sequential, Pair> {
    let model = model(queue, dropout);
    let opt = Adam::new(model.parameters(), 0.01).unwrap();
    let schedule = CosineAnnealingLR::new(&opt, 40, 0.0).unwrap();
    Trainer::new(model, opt, options, task).unwrap().schedule(schedule)
}

fn weights(trainer: &Trainer<Sequential, Pair>) -> Vec<Vec<f64>> {
    trainer.with_model(|model| model.parameters().iter().map(|p| p.to_f64_vec().unwrap()).collect())
}

#[test]
fn a_captured_run_has_the_bits_of_a_loop_by_hand() {
    let queue = manager().cpu().queue;
    let data = batches(&queue, 6);
    let net = model(&queue, 0.2);
    let mut opt = Adam::new(net.parameters(), 0.01).unwrap();
    let mut schedule: Box<dyn netcl_optim::Schedule> = Box::new(CosineAnnealingLR::new(&opt, 40, 0.0).unwrap());
    let mut losses = Vec::new();
    for _ in 0..3 {
        for batch in &data {
            let loss = task(&net, batch).unwrap().loss;
            loss.backward().unwrap();
            opt.step().unwrap();
            opt.zero_grad();
            schedule.step().unwrap();
            losses.push(loss.item().unwrap());
        }
    }
    let mut trainer = trainer(&queue, 0.2, TrainerOptions::default());
    let outcome = trainer.fit(&mut Batches::new(data), None, 3).unwrap();
    assert_eq!(outcome, Outcome::Finished);
    let found: Vec<f64> = trainer.history().steps.iter().map(|step| step.loss).collect();
    assert_eq!(found, losses);
    let by_hand: Vec<Vec<f64>> = net.parameters().iter().map(|p| p.to_f64_vec().unwrap()).collect();
    assert_eq!(weights(&trainer), by_hand);
    assert_eq!(trainer.history().epochs[2].samples, 5 * 8 + 5);
}

#[test]
fn a_run_that_is_stopped_anywhere_ends_with_the_same_bits() {
    let queue = manager().cpu().queue;
    let options = |folder: &Path| TrainerOptions {
        mixed_precision: Some(DType::F16),
        grad_clip: Some(0.5),
        accumulation_steps: 2,
        ema: Some(EmaOptions::default()),
        folder: Some(folder.to_owned()),
        ..TrainerOptions::default()
    };
    let data = batches(&queue, 7);
    let place = tempfile::tempdir().unwrap();
    let whole = place.path().join("whole");
    let mut uninterrupted = trainer(&queue, 0.2, options(&whole));
    let mut valid = Batches::new(data[..2].to_vec());
    uninterrupted.fit(&mut Batches::new(data.clone()), Some(&mut valid), 4).unwrap();
    for stop_after in [1, 3, 4, 9] {
        let folder = place.path().join(format!("after-{stop_after}"));
        let mut first = trainer(&queue, 0.2, options(&folder));
        let asked = Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > stop_after
        };
        let outcome = first.fit_until(&mut Batches::new(data.clone()), Some(&mut valid), 4, &stop).unwrap();
        assert_eq!(outcome, Outcome::Stopped(Some(folder.join(fit::LAST))));
        let mut second = trainer(&queue, 0.2, options(&folder));
        second.resume(&folder).unwrap();
        assert_eq!(second.fit(&mut Batches::new(data.clone()), Some(&mut valid), 4).unwrap(), Outcome::Finished);
        assert_eq!(weights(&second), weights(&uninterrupted), "stopped after {stop_after}");
        assert_eq!(second.history().steps, uninterrupted.history().steps);
        let curve = |trainer: &Trainer<Sequential, Pair>| trainer.history().curve("val_loss");
        assert_eq!(curve(&second), curve(&uninterrupted));
    }
}

#[test]
fn accumulated_batches_give_the_update_of_one_large_batch() {
    let queue = manager().cpu().queue;
    let data = batches(&queue, 3);
    let x: Vec<f32> = data.iter().flat_map(|(x, _)| x.to_host::<f32>().unwrap()).collect();
    let y: Vec<i64> = data.iter().flat_map(|(_, y)| y.to_host().unwrap()).collect();
    let large = (Tensor::from_host(&queue, &x, [21, 4]).unwrap(), IndexTensor::from_host(&queue, &y, [21]).unwrap());
    let options = TrainerOptions { accumulation_steps: 3, ..Default::default() };
    let mut parts = trainer(&queue, 0.0, options);
    parts.fit(&mut Batches::new(data), None, 4).unwrap();
    let mut whole = trainer(&queue, 0.0, TrainerOptions::default());
    whole.fit(&mut Batches::new(vec![large]), None, 4).unwrap();
    for (a, b) in weights(&parts).iter().flatten().zip(weights(&whole).iter().flatten()) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    assert_eq!(parts.history().steps.len(), 4);
    assert!((parts.history().steps[3].loss - whole.history().steps[3].loss).abs() < 1e-6);
}

#[test]
fn a_loss_that_is_not_finite_names_batch_and_operation_and_leaves_the_weights() {
    let queue = manager().cpu().queue;
    let mut data = batches(&queue, 8);
    let mut good = trainer(&queue, 0.0, TrainerOptions::default());
    good.fit(&mut Batches::new(data[..4].to_vec()), None, 1).unwrap();
    data[4].0 = Tensor::from_host(&queue, &[f32::INFINITY; 32], [8, 4]).unwrap();
    let mut bad = trainer(&queue, 0.0, TrainerOptions::default());
    let error = bad.fit(&mut Batches::new(data), None, 1).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("batch 5") && text.contains("step 5") && text.contains("linear"), "{text}");
    assert_eq!(weights(&bad), weights(&good), "the update was skipped on the device");
}

#[test]
fn a_step_that_reads_values_runs_uncaptured_and_says_so() {
    struct Phases(std::rc::Rc<std::cell::RefCell<Vec<String>>>);
    impl Callback for Phases {
        fn name(&self) -> String {
            "phases".to_owned()
        }
        fn phase(&mut self, _run: &mut Context<'_>, name: &str) -> Result<()> {
            self.0.borrow_mut().push(name.to_owned());
            Ok(())
        }
    }
    let queue = manager().cpu().queue;
    let net = model(&queue, 0.0);
    let opt = Adam::new(net.parameters(), 0.01).unwrap();
    let said = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let reading = |model: &Sequential, batch: &Pair| {
        let output = task(model, batch)?;
        output.loss.item()?;
        Ok(output)
    };
    let mut trainer =
        Trainer::new(net, opt, TrainerOptions::default(), reading).unwrap().callback(Phases(said.clone()));
    trainer.fit(&mut Batches::new(batches(&queue, 5)), None, 2).unwrap();
    assert_eq!(trainer.history().steps.len(), 10);
    let said = said.borrow();
    assert_eq!(said.iter().filter(|phase| phase.contains("not captured")).count(), 1, "{said:?}");
}

#[test]
fn callbacks_end_runs_and_errors_name_them() {
    struct After(usize, bool);
    impl Callback for After {
        fn name(&self) -> String {
            "After".to_owned()
        }
        fn step(&mut self, run: &mut Context<'_>, step: &Step) -> Result<()> {
            if step.step == self.0 {
                if self.1 {
                    return Err(Error::setting("no more"));
                }
                run.stop = Some("enough".to_owned());
            }
            Ok(())
        }
    }
    let queue = manager().cpu().queue;
    let run = |callback| {
        let mut trainer = trainer(&queue, 0.0, TrainerOptions::default()).callback(callback);
        trainer.fit(&mut Batches::new(batches(&queue, 3)), None, 4)
    };
    assert_eq!(run(After(4, false)).unwrap(), Outcome::Ended("enough".to_owned()));
    assert_eq!(run(After(4, true)).unwrap_err().to_string(), "callback After: no more");
}

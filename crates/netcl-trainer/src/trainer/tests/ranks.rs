//! Runs of several ranks against those of one.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use netcl_distributed::data_parallel::shard_optimizer;
use netcl_distributed::{Group, Threads};
use netcl_optim::SGD;

use super::*;
use crate::callbacks::{EarlyStopping, Event, Function, Mode};
use crate::metric::{Accuracy, Auroc};

/// Calls a function on each of several ranks, and gives what each returned.
fn over<T: Send>(size: usize, f: impl Fn(Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = Threads::new(size).into_iter().map(|rank| scope.spawn(|| f(Group::new(rank)))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn with(group: &Group, accumulation_steps: usize, folder: Option<&Path>) -> TrainerOptions {
    let folder = folder.map(Path::to_owned);
    TrainerOptions { group: Some(group.clone()), accumulation_steps, folder, ..TrainerOptions::default() }
}

/// A trainer whose first weights are those of its rank alone: what holds is what rank 0 has.
fn of_rank(group: &Group, options: TrainerOptions) -> Trainer<Sequential, Pair> {
    let model = model_of(group);
    let opt = SGD::new(model.parameters(), 0.1).unwrap();
    let trainer = Trainer::new(model, opt, options, task).unwrap();
    trainer.metric(Accuracy::default(), Accuracy::default()).metric(Auroc::default(), Auroc::default())
}

fn model_of(group: &Group) -> Sequential {
    let queue = manager().cpu().queue;
    let model = sequential![Linear::new(&queue, 4, 16).unwrap(), ReLU, Linear::new(&queue, 16, 3).unwrap()];
    for parameter in model.parameters() {
        let weight = |i: usize| (((i * 37 + group.rank() * 11) % 19) as f32 - 9.0) / 30.0;
        let values: Vec<f32> = (0..parameter.size()).map(weight).collect();
        let values = Tensor::from_host(&queue, &values, parameter.shape().clone()).unwrap();
        parameter.assign(values.raw()).unwrap();
    }
    model
}

fn losses(trainer: &Trainer<Sequential, Pair>) -> Vec<f64> {
    trainer.history().steps.iter().map(|step| step.loss).collect()
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1e-2), "{found} {expected}");
    }
}

/// Losses of all updates, and the figures of the last epoch.
fn figures(trainer: &Trainer<Sequential, Pair>) -> (Vec<f64>, Vec<f64>) {
    let last = trainer.history().epochs.last().unwrap();
    let names = ["loss", "accuracy", "auroc", "val_loss", "val_accuracy", "val_auroc"];
    (losses(trainer), names.iter().map(|name| last.values[*name]).collect())
}

#[test]
fn ranks_that_take_turns_train_as_one_with_the_batches_of_all() {
    let run = |group: Group| {
        let data = batches(&manager().cpu().queue, 7);
        let mut trainer = of_rank(&group, with(&group, 4 / group.size(), None));
        let mut valid = Batches::new(data[4..].to_vec());
        trainer.fit(&mut Batches::new(data), Some(&mut valid), 3).unwrap();
        let (losses, values) = figures(&trainer);
        (losses, values, weights(&trainer).concat(), trainer.history().epochs[2].samples)
    };
    let alone = run(Group::alone());
    assert_eq!((alone.0.len(), alone.3), (6, 6 * 8 + 5));
    // Of 7 batches the last update has 3: with 4 ranks one has none.
    for size in [2, 4] {
        let ranks = over(size, run);
        for rank in &ranks {
            assert_eq!(rank, &ranks[0], "all ranks know the same");
            close(&rank.0, &alone.0);
            close(&rank.1, &alone.1);
            close(&rank.2, &alone.2);
            assert_eq!(rank.3, alone.3);
        }
    }
}

#[test]
fn ranks_capture_where_the_shapes_of_all_repeat() {
    let run = |group: Group, capture: bool| {
        let model = model_of(&group);
        let (mut opt, calls) = (Adam::new(model.parameters(), 0.01).unwrap(), Rc::new(Cell::new(0)));
        shard_optimizer(&mut opt, &group).unwrap();
        let options = TrainerOptions { capture, grad_clip: Some(0.5), ..with(&group, 1, None) };
        let counted = calls.clone();
        let trainer = Trainer::new(model, opt, options, move |model, batch| {
            counted.set(counted.get() + 1);
            task(model, batch)
        });
        let mut trainer = trainer.unwrap().metric(Accuracy::default(), Accuracy::default());
        // What rank 0's callback asks for holds for all.
        let looks = Function::new("looks", |context: &mut Context<'_>, event: Event<'_>| {
            if let Event::EpochBegins(3) = event {
                context.recapture = true;
            }
            Ok(())
        });
        trainer.add_callback(Box::new(looks));
        let data = batches(&manager().cpu().queue, 12);
        trainer.fit(&mut Batches::new(data), None, 4).unwrap();
        (losses(&trainer), weights(&trainer).concat(), trainer.history().curve("accuracy"), calls.get())
    };
    let eager = over(3, |group| run(group, false));
    let captured = over(3, |group| run(group, true));
    for (eager, captured) in eager.iter().zip(&captured) {
        assert_eq!((&eager.0, &eager.1, &eager.2), (&captured.0, &captured.1, &captured.2));
        // The last batch of each epoch is shorter, on rank 2: that update is not captured on any. Of the others the first is run, the second
        // recorded, in epoch 1 and again in epoch 3.
        assert_eq!((eager.3, captured.3), (16, 4 + 2 + 2));
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let place = tempfile::tempdir().unwrap();
    let data = || batches(&manager().cpu().queue, 12);
    let whole = {
        let group = Group::alone();
        let mut trainer = of_rank(&group, with(&group, 6, None));
        trainer.fit(&mut Batches::new(data()), None, 3).unwrap();
        figures_of_training(&trainer)
    };
    for (before, after) in [(1, 3), (2, 3), (3, 1), (3, 2)] {
        let folder = place.path().join(format!("{before}-{after}"));
        let stopped = over(before, |group| {
            let mut trainer = of_rank(&group, with(&group, 6 / before, Some(&folder)));
            let asked = Cell::new(0);
            // The last rank alone is asked to stop; all do, in the middle of the second epoch.
            let stop = || group.rank() + 1 == before && asked.replace(asked.get() + 1) >= 2;
            let outcome = trainer.fit_until(&mut Batches::new(data()), None, 3, &stop).unwrap();
            assert!(matches!(outcome, Outcome::Stopped(Some(_))), "{outcome:?}");
            losses(&trainer)
        });
        assert!(stopped.iter().all(|losses| losses == &stopped[0] && losses.len() == 3 - usize::from(before == 1)));
        let resumed = over(after, |group| {
            let mut trainer = of_rank(&group, with(&group, 6 / after, Some(&folder)));
            trainer.resume(&folder).unwrap();
            assert_eq!(trainer.fit(&mut Batches::new(data()), None, 3).unwrap(), Outcome::Finished);
            figures_of_training(&trainer)
        });
        for (losses, accuracy) in resumed {
            close(&losses, &whole.0);
            close(&accuracy, &whole.1);
        }
    }
}

/// Losses, and the accuracy of each epoch.
fn figures_of_training(trainer: &Trainer<Sequential, Pair>) -> (Vec<f64>, Vec<f64>) {
    (losses(trainer), trainer.history().curve("accuracy").into_iter().flatten().collect())
}

#[test]
fn a_loss_that_is_not_finite_stops_all_ranks_alike() {
    let ends = over(3, |group| {
        let queue = manager().cpu().queue;
        let mut data = batches(&queue, 9);
        // The fifth batch: rank 1 has it in its second update.
        let bad = Tensor::full(&queue, [8, 4], DType::F32, f64::NAN).unwrap();
        data[4].0 = bad;
        let mut trainer = of_rank(&group, with(&group, 1, None));
        let error = trainer.fit(&mut Batches::new(data), None, 2).unwrap_err();
        assert!(matches!(error, Error::NotFinite { step: 2, .. }), "{error}");
        assert!(weights(&trainer).concat().iter().all(|weight| weight.is_finite()));
        error.to_string()
    });
    assert!(ends[0].contains("on rank 1 "), "{}", ends[0]);
    assert!(ends.iter().all(|end| end == &ends[0]), "{ends:?}");
}

#[test]
fn a_rank_that_fails_ends_the_others_and_is_named() {
    let ends = over(3, |group| {
        let data = batches(&manager().cpu().queue, 9);
        let steps = AtomicUsize::new(0);
        let model = sequential![Linear::new(&manager().cpu().queue, 4, 3).unwrap()];
        let opt = SGD::new(model.parameters(), 0.1).unwrap();
        let rank = group.rank();
        let mut trainer = Trainer::new(model, opt, with(&group, 1, None), move |model, batch| {
            match steps.fetch_add(1, Ordering::Relaxed) {
                2 if rank == 1 => Err(Error::setting("the disk is on fire")),
                _ => task(model, batch),
            }
        })
        .unwrap();
        trainer.fit(&mut Batches::new(data), None, 2).unwrap_err().to_string()
    });
    assert_eq!(ends[1], "the disk is on fire");
    for end in [&ends[0], &ends[2]] {
        assert!(end.contains("rank 1 gave up: the disk is on fire"), "{end}");
    }
}

#[test]
fn callbacks_are_those_of_rank_0_and_hold_for_all() {
    let ends = over(2, |group| {
        let data = batches(&manager().cpu().queue, 4);
        let rank = group.rank();
        let rates = Function::new("rates", move |context: &mut Context<'_>, event: Event<'_>| {
            assert_eq!(rank, 0);
            if let Event::EpochBegins(_) = event {
                context.groups[0].set_learning_rate(0.05);
            }
            Ok(())
        });
        let mut trainer = of_rank(&group, with(&group, 1, None)).callback(rates);
        trainer.add_callback(Box::new(EarlyStopping::new("accuracy", 1, 2.0, Mode::Max).unwrap()));
        let outcome = trainer.fit(&mut Batches::new(data), None, 9).unwrap();
        (format!("{outcome:?}"), losses(&trainer), trainer.history().steps.last().unwrap().lr)
    });
    assert!(ends[0].0.starts_with("Ended("), "{}", ends[0].0);
    assert_eq!(ends[0], ends[1]);
    assert_eq!(ends[0].2, 0.05);
}

#[test]
fn ranks_that_begin_elsewhere_are_told() {
    let place = tempfile::tempdir().unwrap();
    let ends = over(2, |group| {
        let data = batches(&manager().cpu().queue, 4);
        let mut trainer = of_rank(&group, with(&group, 1, Some(place.path())));
        trainer.fit(&mut Batches::new(data.clone()), None, 1).unwrap();
        let mut other = of_rank(&group, with(&group, 1, None));
        if group.rank() == 1 {
            group.barrier().unwrap();
            other.resume(place.path()).unwrap();
        } else {
            group.barrier().unwrap();
        }
        other.fit(&mut Batches::new(data), None, 2).unwrap_err().to_string()
    });
    assert!(ends[1].contains("rank 1 after update 2 (epoch 2, batch 0): resume all ranks"), "{}", ends[1]);
    assert!(ends[0].contains("rank 1 gave up"), "{}", ends[0]);
}

//! Runs in this process: stopped before every single step and continued, watched, and refused where they do not fit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

use std::cell::Cell;
use std::path::Path;

use netcl_trainer::io::nn::autograd::core::backend::Queue;
use netcl_trainer::io::nn::autograd::core::device::manager;
use netcl_trainer::io::{Archive, Checkpoint};
use netcl_trainer::{Classifier, Epoch, Network, Observer, Outcome, Run, Settings, Step};

fn queue() -> Queue {
    manager().cpu().queue
}

/// Three steps in each of two epochs, with dropout, batch normalisation and changes of the images.
fn settings() -> Settings {
    let limit = Some(80);
    Settings { epochs: 2, batch_size: 32, limit, seed: 5, ..Settings::recommended("digits", Network::Cnn) }
}

fn start(folder: &Path) -> Run {
    Run::start(settings(), None, &queue(), folder).unwrap()
}

/// Trains until `steps` more steps are done, or to the end.
fn train(run: &mut Run, steps: usize) -> Outcome {
    let asked = Cell::new(0);
    let stop = || asked.replace(asked.get() + 1) >= steps;
    run.train(&stop, &mut ()).unwrap()
}

fn finished(run: &mut Run) -> Vec<u8> {
    std::fs::read(run.finish("a test").unwrap().model).unwrap()
}

#[test]
fn a_run_may_be_stopped_before_any_step() {
    let place = tempfile::tempdir().unwrap();
    let mut whole = start(&place.path().join("whole"));
    assert_eq!(train(&mut whole, 99), Outcome::Finished);
    let expected = finished(&mut whole);
    assert_eq!(whole.progress().history.steps.len(), 6);
    for steps in 0..6 {
        let folder = place.path().join(steps.to_string());
        let mut run = start(&folder);
        assert_eq!(train(&mut run, steps), Outcome::Stopped);
        assert_eq!(run.progress().history.steps.len(), steps);
        let text = Run::start(settings(), None, &queue(), &folder).err().unwrap().to_string();
        assert!(text.contains("holds a run that was stopped"), "{text}");
        drop(run);
        // What other runs draw meanwhile must not matter.
        netcl_trainer::io::nn::autograd::core::random::manual_seed(steps as u64);
        let mut run = Run::resume(&folder, None, &queue()).unwrap();
        assert_eq!(run.progress().history.steps.len(), steps);
        assert_eq!(train(&mut run, 99), Outcome::Finished);
        assert!(finished(&mut run) == expected, "stopped before step {}", steps + 1);
        let bits = |run: &Run| run.progress().history.steps.iter().map(|s| s.loss.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&run), bits(&whole));
    }
}

#[test]
fn a_stopped_run_can_be_started_over_and_its_checkpoint_is_a_model() {
    let place = tempfile::tempdir().unwrap();
    let mut run = start(place.path());
    train(&mut run, 4);
    let checkpoint = place.path().join("checkpoint.netcl");
    let classifier = Classifier::load(&checkpoint, &queue()).unwrap();
    let probabilities = classifier.probabilities(run.data().test.image(0)).unwrap();
    assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    assert!(classifier.probabilities(&[0; 63]).unwrap_err().to_string().contains("[1, 8, 8]"));

    let mut run = Run::start_over(settings(), None, &queue(), place.path()).unwrap();
    assert!(!checkpoint.exists());
    assert_eq!(train(&mut run, 99), Outcome::Finished);
    finished(&mut run);
    assert!(!checkpoint.exists());
}

#[derive(Default)]
struct Log(Vec<String>);

impl Observer for Log {
    fn epoch_begins(&mut self, epoch: usize, steps: usize, images: usize) {
        self.0.push(format!("begin {epoch} {steps} {images}"));
    }
    fn step(&mut self, step: &Step) {
        assert!(step.loss > 0.0 && step.lr > 0.0 && (0.0..=1.0).contains(&step.accuracy));
        self.0.push(format!("step {} of {} images", step.step, step.images));
    }
    fn epoch_ends(&mut self, epoch: &Epoch) {
        assert!(epoch.seconds > 0.0 && epoch.test_loss > 0.0);
        self.0.push(format!("end {}", epoch.epoch));
    }
}

#[test]
fn observers_see_every_step_in_order() {
    let place = tempfile::tempdir().unwrap();
    let mut run = start(place.path());
    let mut log = Log::default();
    run.train(&|| false, &mut log).unwrap();
    let expected = [
        "begin 1 3 80",
        "step 1 of 32 images",
        "step 2 of 32 images",
        "step 3 of 16 images",
        "end 1",
        "begin 2 3 80",
        "step 4 of 32 images",
        "step 5 of 32 images",
        "step 6 of 16 images",
        "end 2",
    ];
    assert_eq!(log.0, expected);
}

#[test]
fn checkpoints_of_other_programs_and_other_data_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let mut run = start(place.path());
    train(&mut run, 1);
    let path = place.path().join("checkpoint.netcl");
    let refused = || Run::resume(place.path(), None, &queue()).err().unwrap().to_string();
    let original = Archive::read(&path).unwrap();
    let changed = |key: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let mut archive = original.clone();
        change(&mut archive.metadata[key]);
        archive.write(&path).unwrap();
    };
    changed("classifier", &|value| value["mean"] = 0.25.into());
    assert!(refused().contains("was written with other data"), "{}", refused());
    changed("settings", &|value| value["network"] = "rnn".into());
    assert!(refused().contains("says something unknown under \"settings\""), "{}", refused());
    changed("progress", &|value| *value = "far".into());
    assert!(refused().contains("progress cannot be read"), "{}", refused());
    let mut archive = original.clone();
    archive.metadata.remove("settings");
    archive.write(&path).unwrap();
    assert!(refused().contains("was not written by `netcl train`"), "{}", refused());
    original.write(&path).unwrap();
    assert!(Checkpoint::read(&path).is_ok() && Run::resume(place.path(), None, &queue()).is_ok());
}

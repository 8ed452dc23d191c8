//! Runs in this process: stopped before every single step and continued, watched, and refused where they do not fit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod readers;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use netcl_io::{Archive, Checkpoint};
use netcl_nn::Sampling;
use netcl_nn::autograd::{DType, Queue, manager};
use netcl_trainer::language::Prompt;
use netcl_trainer::trainer::{Callback, Context, Epoch, Outcome, Step};
use netcl_trainer::{Classifier, Data, GptSizes, LanguageModel, Network, Precision, Run, Settings};

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
fn train(run: &mut Run, steps: usize) -> Ended {
    let asked = Cell::new(0);
    let stop = || asked.replace(asked.get() + 1) >= steps;
    match run.train(&stop).unwrap() {
        Outcome::Finished => Ended::Finished,
        Outcome::Stopped(Some(checkpoint)) => {
            assert!(checkpoint.is_file());
            Ended::Stopped
        }
        other => panic!("{other:?}"),
    }
}

#[derive(Debug, PartialEq)]
enum Ended {
    Finished,
    Stopped,
}

/// A test image.
fn image(run: &Run) -> &[u8] {
    let Data::Images(images) = run.data() else { panic!("no images") };
    images.test.image(0)
}

fn finished(run: &mut Run) -> Vec<u8> {
    std::fs::read(run.finish("a test").unwrap().model).unwrap()
}

#[test]
fn a_run_may_be_stopped_before_any_step() {
    let place = tempfile::tempdir().unwrap();
    let mut whole = start(&place.path().join("whole"));
    assert_eq!(train(&mut whole, 99), Ended::Finished);
    let expected = finished(&mut whole);
    assert_eq!(whole.progress().history.steps.len(), 6);
    for steps in 0..6 {
        let folder = place.path().join(steps.to_string());
        let mut run = start(&folder);
        assert_eq!(train(&mut run, steps), Ended::Stopped);
        assert_eq!(run.progress().history.steps.len(), steps);
        let text = Run::start(settings(), None, &queue(), &folder).err().unwrap().to_string();
        assert!(text.contains("holds a run that was stopped"), "{text}");
        drop(run);
        // What other runs draw meanwhile must not matter.
        netcl_nn::autograd::manual_seed(steps as u64);
        let mut run = Run::resume(&folder, None, &queue()).unwrap();
        assert_eq!(run.progress().history.steps.len(), steps);
        assert_eq!(train(&mut run, 99), Ended::Finished);
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
    let checkpoint = place.path().join("last.netcl");
    let classifier = Classifier::load(&checkpoint, &queue()).unwrap();
    let probabilities = classifier.probabilities(image(&run)).unwrap();
    assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    assert!(classifier.probabilities(&[0; 63]).unwrap_err().to_string().contains("[1, 8, 8]"));

    let wrong = Settings { epochs: 0, ..settings() };
    assert!(Run::start_over(wrong, None, &queue(), place.path()).is_err() && checkpoint.exists(), "nothing began");
    let mut run = Run::start_over(settings(), None, &queue(), place.path()).unwrap();
    assert!(!checkpoint.exists());
    assert_eq!(train(&mut run, 99), Ended::Finished);
    finished(&mut run);
    let _run = Run::start_over(settings(), None, &queue(), place.path()).unwrap();
    assert_eq!(files(place.path()), [".lock"], "nothing of the finished run is left to be mixed with the new one");
}

/// The names of all files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The message of a run that must not begin in a folder, which is as it was afterwards.
fn refused(folder: &Path) -> String {
    let content = || {
        let names = files(folder);
        names.into_iter().map(|name| (std::fs::read(folder.join(&name)).unwrap(), name)).collect::<Vec<_>>()
    };
    let before = content();
    let text = Run::start(settings(), None, &queue(), folder).err().expect("a refusal").to_string();
    assert!(content() == before, "{text}");
    text
}

#[test]
fn a_finished_run_is_not_overwritten_and_goes_on_to_more_epochs() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let mut run = start(&folder);
    train(&mut run, 99);
    finished(&mut run);
    let rates = |run: &Run| run.progress().history.steps.iter().map(|step| step.lr).collect::<Vec<_>>();
    let first = rates(&run);
    drop(run);
    assert_eq!(files(&folder), ["last.netcl", "metrics.jsonl", "model.netcl", "report.html"]);
    let text = refused(&folder);
    for expected in ["holds a finished run of 2 epochs", "--epochs N", "--overwrite", "another --out"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let numbered = || netcl_trainer::run::numbered(&folder);
    assert_eq!(numbered(), place.path().join("run-2"));

    let resumed = |epochs| Run::resume_to(&folder, epochs, None, &queue());
    let text = |epochs| resumed(epochs).err().expect("a refusal").to_string();
    assert!(text(None).contains("a finished run of 2 epochs; go on with --epochs N"), "{}", text(None));
    assert!(text(Some(1)).contains("--epochs 1 must be more") && text(Some(2)).contains("must be more"));

    // Stopped in the middle, a model of fewer epochs beside the checkpoint: not finished any more.
    let mut run = resumed(Some(4)).unwrap();
    assert_eq!(train(&mut run, 4), Ended::Stopped);
    assert!(refused(&folder).contains("holds a run that was stopped after 3 epochs"), "{}", refused(&folder));
    assert_eq!(numbered(), folder, "a stopped run is not left behind");
    let mut run = resumed(None).unwrap();
    assert_eq!(train(&mut run, 99), Ended::Finished);
    // All epochs are done, but the model and the report are still those of two.
    drop(run);
    assert!(refused(&folder).contains("stopped after 4 epochs"), "{}", refused(&folder));
    let mut run = resumed(None).unwrap();
    assert_eq!(train(&mut run, 99), Ended::Finished);
    let expected = finished(&mut run);
    assert!(refused(&folder).contains("a finished run of 4 epochs"), "{}", refused(&folder));
    assert_eq!(run.progress().history.epochs.len(), 4);
    // The first epochs are as they were; the others are on the second half of a cycle of four.
    let all = rates(&run);
    assert_eq!(all[..6], first);
    let whole = Run::start(Settings { epochs: 4, ..settings() }, None, &queue(), &place.path().join("whole"));
    let mut whole = whole.unwrap();
    train(&mut whole, 99);
    assert_eq!(all[6..], rates(&whole)[6..]);

    // The same in one go.
    let other = place.path().join("other");
    let mut run = start(&other);
    train(&mut run, 99);
    finished(&mut run);
    let mut run = Run::resume_to(&other, Some(4), None, &queue()).unwrap();
    train(&mut run, 99);
    assert!(finished(&mut run) == expected);
}

#[test]
fn a_folder_belongs_to_one_run_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let mut run = start(place.path());
    let text = refused(place.path());
    assert!(text.contains("is in use by another run") && text.contains("another --out"), "{text}");
    train(&mut run, 1);
    // A stopped run has given its folder back, and takes it again to go on.
    let other = Run::resume(place.path(), None, &queue()).unwrap();
    let text = run.train(&|| false).err().unwrap().to_string();
    assert!(text.contains("is in use by another run"), "{text}");
    let resumed = Run::resume(place.path(), None, &queue()).err().unwrap().to_string();
    assert!(resumed.contains("is in use by another run"), "{resumed}");
    drop(other);
    assert_eq!(train(&mut run, 99), Ended::Finished);
    finished(&mut run);
    assert!(!files(place.path()).contains(&".lock".to_owned()));
}

#[test]
fn a_checkpoint_that_cannot_be_read_is_not_overwritten() {
    let place = tempfile::tempdir().unwrap();
    let mut run = start(place.path());
    train(&mut run, 1);
    let path = place.path().join("last.netcl");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let text = refused(place.path());
    assert!(text.contains("a checkpoint that cannot be used") && text.contains("no NPZ archive"), "{text}");
    std::fs::write(&path, &whole).unwrap();
    let mut archive = Archive::read(&path).unwrap();
    archive.metadata.insert("progress".to_owned(), "far".into());
    archive.write(&path).unwrap();
    assert!(refused(place.path()).contains("its progress cannot be read"), "{}", refused(place.path()));
    std::fs::write(&path, readers::of_version(&whole, 99)).unwrap();
    assert!(refused(place.path()).contains("has version 99 of the format"), "{}", refused(place.path()));
    std::fs::write(&path, whole).unwrap();
    assert!(refused(place.path()).contains("stopped after 0 epochs"), "{}", refused(place.path()));
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    let place = tempfile::tempdir().unwrap();
    let mut run = start(place.path());
    train(&mut run, 1);
    let left = place.path().join(".last.netcl.4711-0.tmp");
    for resume in [false, true] {
        std::fs::write(&left, b"half").unwrap();
        let begun = if resume {
            Run::resume(place.path(), None, &queue())
        } else {
            Run::start_over(settings(), None, &queue(), place.path())
        };
        train(&mut begun.unwrap(), 1);
        assert_eq!(files(place.path()), ["last.netcl", "metrics.jsonl"]);
    }
}

#[test]
fn models_whose_parts_do_not_fit_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let mut run = start(place.path());
    train(&mut run, 99);
    let path = run.finish("a test").unwrap().model;
    let original = Archive::read(&path).unwrap();
    let answer = |change: &dyn Fn(&mut Archive)| {
        let mut archive = original.clone();
        change(&mut archive);
        archive.write(&path).unwrap();
        let image = [0; 64];
        Classifier::load(&path, &queue())
            .and_then(|model| model.probabilities(&image))
            .map_err(|error| error.to_string())
    };
    assert!(answer(&|_| {}).is_ok());
    let described = |key: &str, value: serde_json::Value| {
        answer(&|archive| archive.metadata["classifier"][key] = value.clone()).unwrap_err()
    };
    assert!(described("classes", ["only", "two"][..].into()).contains("names 2 classes, but its network has 10"));
    assert!(described("deviation", 0.into()).contains("deviation 0"));
    for shape in [[1, 100_000, 100_000], [usize::MAX; 3]] {
        let text = described("architecture", serde_json::json!({ "network": "cnn", "input": shape, "classes": 10 }));
        assert!(text.contains("networks take up to"), "{text}");
    }
    let text =
        described("architecture", serde_json::json!({ "network": "cnn", "input": [1, 800, 800], "classes": 10 }));
    assert!(text.contains("its arrays have only"), "{text}");
    let mut spoilt = 0;
    for (name, array) in original.arrays().filter(|(_, array)| array.dtype == DType::F32) {
        for value in [f32::NAN, f32::INFINITY] {
            let mut array = array.clone();
            array.bytes[..4].copy_from_slice(&value.to_le_bytes());
            let text = answer(&|archive| archive.insert(name, array.clone())).unwrap_err();
            assert!(text.contains("no finite numbers") && text.contains(name), "{text}");
            spoilt += 1;
        }
    }
    assert!(spoilt >= 16);
    // Finite weights whose products are not.
    let text = answer(&|archive| {
        for name in original.names() {
            let mut array = original.get(name).unwrap().clone();
            array.bytes.chunks_exact_mut(4).for_each(|element| element.copy_from_slice(&3e38f32.to_le_bytes()));
            archive.insert(name, array);
        }
    });
    assert!(text.unwrap_err().contains("the network's answer is no number"));
}

#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Callback for Log {
    fn name(&self) -> String {
        "test".to_owned()
    }
    fn epoch_begins(&mut self, run: &mut Context<'_>, epoch: usize) -> netcl_trainer::Result<()> {
        self.0.borrow_mut().push(format!("begin {epoch} {:?}", run.steps_per_epoch));
        Ok(())
    }
    fn step(&mut self, _run: &mut Context<'_>, step: &Step) -> netcl_trainer::Result<()> {
        assert!(step.loss > 0.0 && step.lr > 0.0);
        self.0.borrow_mut().push(format!("step {} of {} images", step.step, step.samples));
        Ok(())
    }
    fn epoch_ends(&mut self, _run: &mut Context<'_>, epoch: &Epoch) -> netcl_trainer::Result<()> {
        assert!(epoch.seconds > 0.0 && epoch.values["val_loss"] > 0.0 && epoch.values["accuracy"] <= 1.0);
        self.0.borrow_mut().push(format!("end {}", epoch.epoch));
        Ok(())
    }
}

#[test]
fn callbacks_see_every_step_in_order() {
    let place = tempfile::tempdir().unwrap();
    let mut run = start(place.path());
    let log = Log::default();
    run.watch(log.clone());
    run.train(&|| false).unwrap();
    let expected = [
        "begin 1 Some(3)",
        "step 1 of 32 images",
        "step 2 of 32 images",
        "step 3 of 16 images",
        "end 1",
        "begin 2 Some(3)",
        "step 4 of 32 images",
        "step 5 of 32 images",
        "step 6 of 16 images",
        "end 2",
    ];
    assert_eq!(*log.0.borrow(), expected);
}

/// A text of 4000 characters that is easy to learn.
fn text(folder: &Path) -> String {
    let path = folder.join("text.txt");
    std::fs::write(&path, "abcdefgh ".repeat(450)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A language model of a moment on a text.
fn language(data: &str) -> Settings {
    let gpt = GptSizes { layers: 1, heads: 2, width: 16, context: 16, dropout: 0.1 };
    let limit = Some(48);
    Settings { epochs: 2, batch_size: 16, gpt: Some(gpt), lr: 0.02, limit, ..Settings::recommended(data, Network::Gpt) }
}

#[test]
fn a_language_model_learns_writes_and_resumes_with_everything_switched_on() {
    let place = tempfile::tempdir().unwrap();
    let data = text(place.path());
    let settings =
        Settings { accumulate: 2, ema: Some(0.5), amp: Some(Precision::Bfloat16), epochs: 4, ..language(&data) };
    let run = |name: &str| Run::start(settings.clone(), None, &queue(), &place.path().join(name)).unwrap();
    let mut whole = run("whole");
    assert_eq!(whole.samples().unwrap(), (48, 25));
    assert_eq!(train(&mut whole, 99), Ended::Finished);
    assert_eq!(whole.progress().history.steps.len(), 8, "three batches in an epoch make two steps");
    let summary = whole.finish("a test").unwrap();
    let value = |name: &str| summary.evaluation.values[name];
    assert!(summary.evaluation.loss < 2.0, "{:?}", summary.evaluation);
    assert!((value("perplexity").ln() - summary.evaluation.loss).abs() < 1e-9);
    assert_eq!(value("nats_per_character"), summary.evaluation.loss);
    assert_eq!(summary.sample.as_ref().map(|text| text.chars().count()), Some(400));

    let mut parts = run("parts");
    assert_eq!(train(&mut parts, 3), Ended::Stopped);
    drop(parts);
    let mut parts = Run::resume(&place.path().join("parts"), None, &queue()).unwrap();
    assert_eq!(train(&mut parts, 99), Ended::Finished);
    assert!(finished(&mut parts) == std::fs::read(&summary.model).unwrap(), "the same bits");

    let model = LanguageModel::load(&summary.model, &queue()).unwrap();
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let mut written = Vec::new();
    let prompt = Prompt { text: "abc", tokens: 20 };
    model
        .generate(prompt, sampling, &mut |part| {
            written.push(part.to_owned());
            written.len() < 5
        })
        .unwrap();
    assert_eq!(written.len(), 5, "until it is told to stop");
    let refused = model.generate(Prompt { text: "aXb", tokens: 1 }, sampling, &mut |_| true).unwrap_err().to_string();
    assert!(refused.contains("'X'") && refused.contains("\" abcdefgh\""), "{refused}");
    let text = Classifier::load(&summary.model, &queue()).err().unwrap().to_string();
    assert!(text.contains("netcl generate"), "{text}");
}

#[test]
fn a_table_is_learned_by_class_and_by_number() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("t.csv");
    let row = |i: u32| {
        let (x, y) = (f64::from(i % 17) / 17.0, f64::from(i % 13) / 13.0);
        format!("{x:.3},{y:.3},{:.3},{}\n", 100.0 + 20.0 * x - 10.0 * y, if x > y { "more" } else { "less" })
    };
    std::fs::write(&path, "x,y,sum,side\n".to_owned() + &(0..300).map(row).collect::<String>()).unwrap();
    let name = path.to_str().unwrap();
    let learned = |target: Option<&str>, out: &str| {
        let target = target.map(str::to_owned);
        let settings = Settings { target, epochs: 15, ..Settings::recommended(name, Network::Mlp) };
        let mut run = Run::start(settings, None, &queue(), &place.path().join(out)).unwrap();
        assert_eq!(train(&mut run, 9999), Ended::Finished);
        run.finish("a test").unwrap().evaluation
    };
    let classes = learned(None, "classes");
    assert!(classes.accuracy() > 0.9 && classes.confusion.len() == 2 && classes.samples == 60, "{classes:?}");
    let numbers = learned(Some("sum"), "numbers");
    assert!(numbers.values["mae"] < 2.0 && numbers.confusion.is_empty(), "in its own unit: {:?}", numbers.values);
}

#[test]
fn checkpoints_of_other_programs_and_other_data_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let mut run = start(place.path());
    train(&mut run, 1);
    let path = place.path().join("last.netcl");
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
    for (key, value) in [("epochs", 1u64 << 60), ("batches", 1 << 60), ("batches", 2)] {
        changed("progress", &|progress| progress[key] = value.into());
        assert!(refused().contains("does not fit its"), "{}", refused());
    }
    changed("settings", &|value| value["epochs"] = u64::MAX.into());
    assert!(refused().contains("too many to count"), "{}", refused());
    let mut archive = original.clone();
    archive.metadata.remove("settings");
    archive.write(&path).unwrap();
    assert!(refused().contains("was not written by `netcl train`"), "{}", refused());
    original.write(&path).unwrap();
    assert!(Checkpoint::read(&path).is_ok() && Run::resume(place.path(), None, &queue()).is_ok());
}

//! Callbacks over runs of made-up steps and epochs.

use std::collections::BTreeMap;
use std::path::Path;

use netcl_nn::autograd::{Queue, Tensor, manager};
use netcl_nn::{Linear, Module};
use netcl_optim::{Optimizer, SGD};

use super::*;
use crate::trainer::{Callback, Context, Epoch, History, Step};

/// A model and a history whose callbacks are called by hand.
struct Bench {
    queue: Queue,
    model: Linear,
    optimizer: SGD,
    history: History,
}

impl Bench {
    fn new() -> Result<Bench> {
        let queue = manager().cpu().queue;
        let model = Linear::new(&queue, 3, 2)?;
        let optimizer = SGD::new(model.parameters(), 0.1)?;
        Ok(Bench { queue, model, optimizer, history: History::default() })
    }

    /// Calls a callback with what is there, and gives what it asked for: to stop, and the checkpoints.
    fn call(&mut self, call: impl FnOnce(&mut Context<'_>) -> Result<()>) -> Result<(Option<String>, Vec<String>)> {
        let history = self.history.clone();
        let mut run = Context {
            model: &mut self.model,
            groups: self.optimizer.groups(),
            queue: &self.queue,
            history: &history,
            epochs: 9,
            steps_per_epoch: Some(2),
            stop: None,
            keep: Vec::new(),
            recapture: false,
        };
        call(&mut run)?;
        Ok((run.stop, run.keep))
    }

    /// An epoch of two updates with these figures.
    fn epoch(&mut self, callback: &mut dyn Callback, values: &[(&str, f64)]) -> Result<(Option<String>, Vec<String>)> {
        let number = self.history.epochs.len() + 1;
        for step in [2 * number - 1, 2 * number] {
            let step = Step { step, epoch: number, loss: 1.0 / step as f64, lr: 0.1 / number as f64, samples: 4 };
            self.history.steps.push(step);
            self.call(|run| callback.step(run, &step))?;
        }
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let epoch = Epoch { epoch: number, steps: 2 * number, samples: 8, seconds: 0.5, values };
        self.history.epochs.push(epoch.clone());
        self.call(|run| callback.epoch_ends(run, &epoch))
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn early_stopping_waits_and_survives_a_resume() -> Result<()> {
    let mut bench = Bench::new()?;
    let mut stopping = EarlyStopping::new("val_loss", 2, 0.1, Mode::Auto)?;
    let mut stops = Vec::new();
    for loss in [1.0, 0.5, 0.45] {
        stops.push(bench.epoch(&mut stopping, &[("val_loss", loss)])?.0);
    }
    assert_eq!(stops, [None, None, None]);
    // 0.45 was no improvement by 0.1: one epoch was waited, and a resumed run knows it.
    let state = stopping.state();
    let mut resumed = EarlyStopping::new("val_loss", 2, 0.1, Mode::Auto)?;
    resumed.load_state(&serde_json::from_str(&state.to_string()).unwrap_or_default())?;
    assert_eq!(resumed.monitor().best(), Some((2, 0.5)));
    let stop = bench.epoch(&mut resumed, &[("val_loss", f64::NAN)])?.0;
    assert_eq!(stop.as_deref(), Some("val_loss is no better than 0.500000 of epoch 2, for 2 epochs"));
    assert_eq!(resumed.stopped(), Some(4));
    let error = bench.epoch(&mut resumed, &[("loss", 1.0), ("f1", 0.5)]).unwrap_err().in_callback(resumed.name());
    assert!(error.to_string().starts_with("callback EarlyStopping: epoch 5 has no \"val_loss\"; it has f1, loss."));
    assert!(resumed.load_state(&serde_json::json!([1])).is_err());
    Ok(())
}

#[test]
fn checkpoints_are_the_best_the_last_and_every_nth() -> Result<()> {
    let mut bench = Bench::new()?;
    let mut checkpoint = Checkpoint::new("accuracy", Mode::Auto)?.with_every(2);
    let mut kept = Vec::new();
    for accuracy in [0.5, 0.4, 0.6] {
        kept.push(bench.epoch(&mut checkpoint, &[("accuracy", accuracy)])?.1.join(" "));
    }
    assert_eq!(kept, ["best last", "epoch-0002 last", "best last"]);
    let state = checkpoint.state();
    let mut resumed = Checkpoint::new("accuracy", Mode::Auto)?.with_last(false);
    resumed.load_state(&state)?;
    assert!(bench.epoch(&mut resumed, &[("accuracy", 0.55)])?.1.is_empty(), "0.6 was better");
    Ok(())
}

#[test]
fn logs_hold_the_past_of_a_resumed_run() -> Result<()> {
    let folder = tempfile::tempdir().map_err(|error| Error::setting(error.to_string()))?;
    let [csv, lines, rates] = ["log/epochs.csv", "log/metrics.jsonl", "lr.csv"].map(|name| folder.path().join(name));
    let mut bench = Bench::new()?;
    let make = || -> Vec<Box<dyn Callback>> {
        let rates = LearningRateLog::new(Some(rates.clone()));
        vec![Box::new(CsvLog::new(&csv)), Box::new(JsonLines::new(&lines)), Box::new(rates)]
    };
    let mut first = make();
    let all = |bench: &mut Bench, callbacks: &mut [Box<dyn Callback>], values: &[(&str, f64)]| -> Result<()> {
        let history = bench.history.clone();
        for callback in callbacks {
            bench.history = history.clone();
            bench.call(|run| callback.fit_begins(run))?;
            bench.epoch(&mut **callback, values)?;
            bench.call(|run| callback.fit_ends(run))?;
        }
        Ok(())
    };
    all(&mut bench, &mut first, &[("loss", 0.75)])?;
    all(&mut bench, &mut make(), &[("loss", 0.5), ("val_loss", 0.25)])?;
    assert_eq!(read(&csv), "epoch,steps,samples,seconds,loss,val_loss\n1,2,8,0.5,0.75,\n2,4,8,0.5,0.5,0.25\n");
    let kinds: Vec<String> = read(&lines)
        .lines()
        .map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            format!("{} {}", value["kind"].as_str().unwrap_or("none"), value["step"].as_u64().unwrap_or(0))
        })
        .collect();
    assert_eq!(kinds, ["step 1", "step 2", "epoch 0", "step 3", "step 4", "epoch 0"]);
    assert_eq!(read(&rates), "step,epoch,lr\n1,1,0.1\n3,2,0.05\n");
    // A folder that cannot be made is an error with the path.
    let error = bench.call(|run| JsonLines::new(csv.join("x")).fit_begins(run)).unwrap_err().to_string();
    assert!(error.contains("epochs.csv"), "{error}");
    Ok(())
}

#[test]
fn a_closure_sees_every_event() -> Result<()> {
    let mut bench = Bench::new()?;
    let mut seen = Vec::new();
    let mut function = Function::new("goal", |run: &mut Context<'_>, event: Event<'_>| {
        match event {
            Event::FitBegins => seen.push("begin".to_owned()),
            Event::Step(step) => seen.push(format!("step {}", step.step)),
            Event::EpochEnds(epoch) => {
                run.stop = Some(format!("after epoch {}", epoch.epoch));
                run.groups.iter().for_each(|group| group.set_learning_rate(0.5));
            }
            Event::EpochBegins(_) | Event::FitEnds => return Err(Error::setting("not now")),
        }
        Ok(())
    });
    bench.call(|run| function.fit_begins(run))?;
    assert_eq!(bench.epoch(&mut function, &[])?.0.as_deref(), Some("after epoch 1"));
    let error = bench.call(|run| function.fit_ends(run)).unwrap_err().in_callback(function.name()).to_string();
    assert_eq!(error, "callback goal: not now");
    drop(function);
    assert_eq!(seen, ["begin", "step 1", "step 2"]);
    assert_eq!(bench.optimizer.learning_rate(), 0.5);
    Ok(())
}

/// The fields of a protobuf message: number, and the bytes of the value.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().expect("a varint ends");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                found.push((key >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            kind => panic!("there is no kind {kind}"),
        };
        let (value, rest) = bytes.split_at(length);
        found.push((key >> 3, value.to_vec()));
        bytes = rest;
    }
    found
}

fn field(message: &[u8], number: u64) -> Option<Vec<u8>> {
    fields(message).into_iter().find(|(found, _)| *found == number).map(|(_, value)| value)
}

fn int(message: &[u8], number: u64) -> i64 {
    field(message, number).map_or(0, |value| i64::from_le_bytes(value.try_into().expect("8 bytes")))
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|eight| f64::from_le_bytes(eight.try_into().expect("8 bytes"))).collect()
}

/// The records of all event files of a folder in the order of their names, after checking their checksums.
fn events(folder: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    let mut events = Vec::new();
    for path in paths {
        let mut bytes = &std::fs::read(path).expect("a file")[..];
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(12);
            let length = u64::from_le_bytes(head[..8].try_into().expect("8 bytes")) as usize;
            let (content, rest) = rest.split_at(length);
            let (check, rest) = rest.split_at(4);
            for (data, stored) in [(&head[..8], &head[8..]), (content, check)] {
                // CRC-32C by its definition, bit by bit.
                let crc = !data.iter().fold(!0u32, |crc, byte| {
                    (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                        (crc >> 1) ^ (0x82f6_3b78 & (!(crc & 1)).wrapping_add(1))
                    })
                });
                let masked = crc.rotate_right(15).wrapping_add(0xa282_ead8);
                assert_eq!(masked.to_le_bytes(), *stored);
            }
            events.push(content.to_vec());
            bytes = rest;
        }
    }
    events
}

/// The values of summaries by tag and step.
fn values(events: &[Vec<u8>]) -> BTreeMap<(String, i64), Vec<u8>> {
    let mut found = BTreeMap::new();
    for event in events {
        let summary = field(event, 5).unwrap_or_default();
        for (_, value) in fields(&summary) {
            let tag = String::from_utf8(field(&value, 1).expect("a tag")).expect("a text");
            found.insert((tag, int(event, 2)), value);
        }
    }
    found
}

#[test]
fn tensorboard_gets_curves_histograms_and_texts() -> Result<()> {
    let folder = tempfile::tempdir().map_err(|error| Error::setting(error.to_string()))?;
    let mut bench = Bench::new()?;
    let mut board = TensorBoard::new(folder.path()).with_weights(2).with_gradients(3);
    assert_eq!(board.wants_gradients(), 3);
    bench.call(|run| board.fit_begins(run))?;
    bench.epoch(&mut board, &[("loss", 0.75)])?;
    let gradient = Tensor::from_host(&bench.queue, &[0.0f32, 1.0, 2.0, 4.0, f32::NAN], [5])?;
    bench.call(|run| board.gradients(run, 3, &[("weight".to_owned(), gradient)]))?;
    // What was written is there before anything is closed.
    let found = values(&events(folder.path()));
    let scalar = |tag: &str, step| {
        let value = found.get(&(tag.to_owned(), step)).and_then(|value| field(value, 2));
        value.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    };
    assert_eq!([scalar("step/loss", 1), scalar("step/loss", 2)], [Some(1.0), Some(0.5)]);
    assert_eq!([scalar("step/lr", 2), scalar("epoch/loss", 2)], [Some(0.1), Some(0.75)]);
    let histogram = field(&found[&("gradients/weight".to_owned(), 3)], 5).expect("a histogram");
    let of = |number| doubles(&field(&histogram, number).expect("a field"));
    assert_eq!([of(1), of(2), of(3), of(4), of(5)].concat(), [0.0, 4.0, 4.0, 7.0, 21.0]);
    let (limits, counts) = (of(6), of(7));
    assert_eq!((limits[0], limits[64], counts[0], counts.iter().sum::<f64>()), (0.0, 4.0, 0.0, 4.0));
    assert_eq!((counts[1], counts[64]), (1.0, 1.0));
    let text = field(&field(&found[&("model".to_owned(), 0)], 8).expect("a tensor"), 8).expect("a text");
    assert!(String::from_utf8_lossy(&text).contains("Linear"));
    assert!(!found.contains_key(&("weights/weight".to_owned(), 2)), "every second epoch");
    bench.epoch(&mut board, &[])?;
    bench.call(|run| board.fit_ends(run))?;
    assert!(values(&events(folder.path())).contains_key(&("weights/weight".to_owned(), 4)));

    // A resumed run says from where on it repeats.
    bench.history.steps.pop();
    let mut resumed = TensorBoard::new(folder.path());
    bench.call(|run| resumed.fit_begins(run))?;
    let restart = events(folder.path()).pop().expect("an event");
    assert_eq!((int(&restart, 2), field(&restart, 7)), (4, Some(vec![8, 1])));
    Ok(())
}

#[test]
fn images_are_png() -> Result<()> {
    let folder = tempfile::tempdir().map_err(|error| Error::setting(error.to_string()))?;
    let mut file = EventFile::create(folder.path())?;
    let image = Image { height: 2, width: 1, channels: 3, pixels: &[1, 2, 3, 4, 5, 6] };
    file.image("picture", -1, image)?;
    for wrong in [Image { channels: 2, ..image }, Image { height: 3, ..image }, Image { height: usize::MAX, ..image }] {
        assert!(file.image("picture", 0, wrong).is_err_and(|error| error.to_string().contains("\"picture\"")));
    }
    file.histogram("constant", 7, &[2.0, 2.0])?;
    file.histogram("empty", 7, &[])?;
    let events = events(folder.path());
    assert_eq!(field(&events[0], 3).as_deref(), Some(&b"brain.Event:2"[..]));
    let found = values(&events);
    let image = field(&found[&("picture".to_owned(), -1)], 4).expect("an image");
    assert_eq!([int(&image, 1), int(&image, 2), int(&image, 3)], [2, 1, 3]);
    let mut reader =
        png::Decoder::new(std::io::Cursor::new(field(&image, 4).expect("a file"))).read_info().expect("a PNG");
    let mut pixels = [0; 6];
    reader.next_frame(&mut pixels).expect("pixels");
    assert_eq!(pixels, [1, 2, 3, 4, 5, 6]);
    let constant = field(&found[&("constant".to_owned(), 7)], 5).expect("a histogram");
    assert_eq!(doubles(&field(&constant, 7).expect("counts")), [0.0, 2.0]);
    Ok(())
}

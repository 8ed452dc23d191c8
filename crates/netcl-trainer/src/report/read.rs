//! What the folder of a run holds, for the report: also of one that is under way, was killed, or has damaged files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use netcl_io::{Tensors, open};
use serde::Deserialize;
use serde_json::Value;

use super::{DATA_TAG, RunContent};
use crate::error::{Error, Result};
use crate::folder::{CHECKPOINT, METRICS, MODEL, REPORT};
use crate::trainer::{Epoch, History, Step};

/// A larger report or line of metrics was not written by netcl.
const MOST_BYTES: u64 = 256 << 20;
const LONGEST_LINE: u64 = 1 << 20;

/// What there is to show of the run in a folder. The history is that of `metrics.jsonl`; the rest (tests, pictures, layers) that of
/// `report.html`, which a finished run has; else the settings are those of the checkpoint. What cannot be read is said in
/// [`RunContent::notes`].
///
/// # Errors
/// If the folder holds no run.
pub fn read(folder: &Path) -> Result<RunContent> {
    let refused = |what: &str| Err(Error::File { path: folder.to_owned(), what: what.to_owned() });
    let exists = |name: &str| folder.join(name).is_file();
    if !folder.is_dir() {
        return refused(if folder.exists() {
            "is no folder; name the folder of a run"
        } else {
            "does not exist; name the folder of a run"
        });
    }
    let files = [METRICS, CHECKPOINT, MODEL, REPORT];
    if !files.into_iter().any(exists) {
        return refused(&format!("holds no run: it has none of {}", files.join(", ")));
    }
    let mut notes = Vec::new();
    let mut run = RunContent::default();
    if exists(REPORT) {
        match reported(&folder.join(REPORT)) {
            Ok(content) => run = content,
            Err(what) => notes.push(format!("report.html cannot be used: {what}.")),
        }
    }
    let planned = settings(folder, &mut run, &mut notes);
    if exists(METRICS) {
        let history = metrics(&folder.join(METRICS), &mut notes);
        if !history.steps.is_empty() || !history.epochs.is_empty() {
            run.history = history;
        }
    }
    if run.history.steps.is_empty() && run.history.epochs.is_empty() {
        notes.push("No step has been recorded yet.".to_owned());
    }
    let done = run.history.epochs.len();
    if planned.is_some_and(|planned| done < planned) || !exists(MODEL) {
        let of = planned.map(|planned| format!(" of {planned}")).unwrap_or_default();
        // The lock's file goes with the run, unless that is killed.
        let why = if exists(".lock") { "it is still going on, or was killed" } else { "it was stopped" };
        notes.push(format!("Not finished: {done}{of} epochs are done; {why}."));
    }
    run.title = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
    run.notes = notes;
    Ok(run)
}

/// The first run of a report, or what is wrong with it.
fn reported(path: &Path) -> std::result::Result<RunContent, String> {
    #[derive(Deserialize)]
    struct Data {
        runs: Vec<RunContent>,
    }
    let mut page = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(MOST_BYTES).read_to_string(&mut page).map_err(|error| error.to_string())?;
    let block = page.split_once(DATA_TAG).and_then(|(_, rest)| rest.split_once("</script>"));
    let (block, _) = block.ok_or("it was written by an older netcl, or by another program")?;
    let data: Data = serde_json::from_str(block).map_err(|error| format!("its data is damaged: {error}"))?;
    data.runs.into_iter().next().ok_or_else(|| "it is about no run".to_owned())
}

/// Fills in the settings of the checkpoint or the model where there was no report, and says how many epochs the run shall have.
fn settings(folder: &Path, run: &mut RunContent, notes: &mut Vec<String>) -> Option<usize> {
    for name in [CHECKPOINT, MODEL] {
        let path = folder.join(name);
        if !path.is_file() {
            continue;
        }
        let file = match open(&path) {
            Ok(file) => file,
            Err(error) => {
                notes.push(format!("{name} cannot be read: {error}."));
                continue;
            }
        };
        let Some(Value::Object(found)) = file.metadata().get("settings") else { continue };
        if run.settings.is_empty() {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            run.settings = found.iter().map(|(name, value)| (name.replace('_', " "), text(value))).collect();
        }
        return found.get("epochs").and_then(Value::as_u64).and_then(|epochs| usize::try_from(epochs).ok());
    }
    None
}

/// The records of a file of metrics; damaged lines are counted and left out.
fn metrics(path: &Path, notes: &mut Vec<String>) -> History {
    let mut history = History::default();
    let mut damaged: Vec<usize> = Vec::new();
    let mut file = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) => {
            notes.push(format!("metrics.jsonl cannot be read: {error}."));
            return history;
        }
    };
    for number in 1.. {
        let mut line = Vec::new();
        match file.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                notes.push(format!("metrics.jsonl cannot be read after line {number}: {error}."));
                break;
            }
        }
        // The last line of a run under way may be half written.
        let is_half = !line.ends_with(b"\n");
        let record = serde_json::from_slice::<Value>(&line).ok().and_then(|value| Record::of(&value));
        match record {
            Some(Record::Step(step)) => history.steps.push(step),
            Some(Record::Epoch(epoch)) => history.epochs.push(epoch),
            None if is_half || line.trim_ascii().is_empty() => {}
            None => damaged.push(number),
        }
    }
    let mut samples: BTreeMap<usize, usize> = BTreeMap::new();
    for step in &history.steps {
        *samples.entry(step.epoch).or_default() += step.samples;
    }
    for epoch in history.epochs.iter_mut().filter(|epoch| epoch.samples == 0) {
        epoch.samples = samples.get(&epoch.epoch).copied().unwrap_or(0);
    }
    if let Some(first) = damaged.first() {
        let lines = if damaged.len() == 1 { "1 line is" } else { &format!("{} lines are", damaged.len()) };
        notes.push(format!("metrics.jsonl: {lines} damaged and left out, the first is line {first}."));
    }
    history
}

enum Record {
    Step(Step),
    Epoch(Epoch),
}

impl Record {
    /// A line of metrics: of a step, if it has a `step`, else of an epoch. Values of an epoch may be inside `values` or beside it.
    fn of(line: &Value) -> Option<Record> {
        let fields = line.as_object()?;
        let count = |name: &str| fields.get(name).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
        // What is not finite is written as null.
        let number = |value: &Value| if value.is_null() { Some(f64::NAN) } else { value.as_f64() };
        let epoch = count("epoch")?;
        if let Some(step) = count("step") {
            let of = |name: &str| fields.get(name).and_then(number);
            let samples = count("samples").or(count("images")).unwrap_or(0);
            return Some(Record::Step(Step {
                step,
                epoch,
                loss: of("loss")?,
                lr: of("lr").unwrap_or(f64::NAN),
                samples,
            }));
        }
        let beside =
            fields.iter().filter(|(name, _)| !["epoch", "steps", "samples", "seconds"].contains(&name.as_str()));
        let inside = fields.get("values").and_then(Value::as_object).into_iter().flatten();
        let values: BTreeMap<String, f64> = beside
            .chain(inside)
            .filter_map(|(name, value)| {
                let name = name.strip_prefix("test_").map_or_else(|| name.clone(), |name| format!("val_{name}"));
                number(value).map(|value| (name, value))
            })
            .collect();
        let seconds = fields.get("seconds").and_then(Value::as_f64).unwrap_or(f64::NAN);
        let (steps, samples) = (count("steps").unwrap_or(0), count("samples").unwrap_or(0));
        Some(Record::Epoch(Epoch { epoch, steps, samples, seconds, values }))
    }
}

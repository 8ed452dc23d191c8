//! `netcl evaluate`: how good a trained network is on data that it has not seen.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use netcl::trainer::task::Loaded;
use netcl::trainer::{Evaluation, Settings, Task, load_model};
use serde_json::{Value, json};

use crate::Verdict;
use crate::model_file::model_file;
use crate::output::{name, positive, print, print_json, print_table, table};
use crate::train::device;

#[derive(Args)]
pub(crate) struct Arguments {
    /// A run's folder or model.netcl file of `netcl train`, or its checkpoint
    model: PathBuf,
    /// Other data of the same kind than what it was trained on, as for train
    #[arg(long, value_name = "NAME|PATH")]
    data: Option<String>,
    /// Where to look for the data set's files
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// Use at most this many images, rows or windows of a text
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    limit: Option<usize>,
    /// As for train
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A table of more classes than this is too wide to look at.
const MOST_CLASSES: usize = 20;
/// The most characters of a class's name that are shown.
const NAME: usize = 16;

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let queue = device(arguments.device.as_deref())?.queue;
    let file = model_file(&arguments.model)?;
    let Loaded { task, mut model, metadata } = load_model(&file, &queue)?;
    let kept = |key: &str| metadata.get(key).cloned().unwrap_or(Value::Null);
    let settings: Settings = serde_json::from_value(kept("settings"))
        .with_context(|| format!("{} does not say how it was trained", file.display()))?;
    let data_dir: Option<PathBuf> = serde_json::from_value(kept("data_folder")).unwrap_or_default();
    // A folder that was named for the run's data says nothing about others.
    let data_dir = arguments.data_dir.clone().or(if arguments.data.is_none() { data_dir } else { None });
    let name = arguments.data.clone().unwrap_or_else(|| task.data().to_owned());
    let settings = Settings { data: name, ..settings };
    let data = task.open(&settings, data_dir.as_deref())?;
    let found = netcl::trainer::evaluate(&mut *model, &task, &data, arguments.limit, &queue)?;
    if arguments.json {
        let mut result = as_json(&found);
        result["model"] = json!(file);
        result["data"] = json!(settings.data);
        result["classes"] = json!(task.classes());
        print_json(&result)?;
        return Ok(Verdict::Good);
    }
    print(&format!("{} on {}: {}", file.display(), data.name(), sentence(&found, &task)))?;
    if (2..=MOST_CLASSES).contains(&task.classes().len()) {
        print(&format!("{}\nrows are classes, columns what they were taken for:", hardest(&found, &task).trim_end()))?;
        confusion(&found, task.classes())?;
    }
    Ok(Verdict::Good)
}

/// What was measured, in words.
pub(crate) fn sentence(found: &Evaluation, task: &Task) -> String {
    let value = |name: &str| found.values.get(name).copied().unwrap_or(f64::NAN);
    let (samples, loss, unit) = (found.samples, found.loss, task.unit().0);
    match task {
        Task::Text(_) => format!(
            "{:.4} nats per character ({:.3} bits), perplexity {:.3}, accuracy {:.2} %, over {samples} {unit}",
            value("nats_per_character"),
            value("bits_per_character"),
            value("perplexity"),
            value("accuracy") * 100.0
        ),
        Task::Table(table) if table.classes.is_empty() => {
            format!(
                "mean absolute error {:.4}, root mean square {:.4}, loss {loss:.4}, over {samples} rows",
                value("mae"),
                value("rmse")
            )
        }
        _ => {
            let right = samples - found.mistakes.len();
            format!("test accuracy {:.2} % ({right} of {samples}), loss {loss:.4}", found.accuracy() * 100.0)
        }
    }
}

/// The classes with most mistakes, as a line; empty where there are none.
pub(crate) fn hardest(found: &Evaluation, task: &Task) -> String {
    let classes = task.classes();
    let worst: Vec<String> = found
        .worst(3)
        .into_iter()
        .map(|(class, share, other)| {
            let (class, other) = (name(&classes[class], NAME), name(&classes[other], NAME));
            format!("{class} ({:.1} % right, else mostly taken for {other})", share * 100.0)
        })
        .collect();
    if worst.is_empty() { String::new() } else { format!("hardest: {}\n", worst.join("; ")) }
}

/// Everything but the single mistakes.
pub(crate) fn as_json(found: &Evaluation) -> Value {
    let mut result = json!({ "test_loss": found.loss, "samples": found.samples });
    for (name, value) in &found.values {
        result[format!("test_{name}")] = json!(value);
    }
    if !found.confusion.is_empty() {
        result["confusion"] = json!(found.confusion);
    }
    result
}

fn confusion(found: &Evaluation, classes: &[String]) -> Result<()> {
    let names: Vec<String> = classes.iter().map(|class| name(class, NAME)).collect();
    let mut rows = table(&[&[String::new()], &names[..]].concat());
    for (class, row) in names.iter().zip(&found.confusion) {
        let counts = row.iter().map(|count| if *count == 0 { ".".to_owned() } else { count.to_string() });
        rows.add_row([class.clone()].into_iter().chain(counts).collect::<Vec<_>>());
    }
    print_table(&rows)
}

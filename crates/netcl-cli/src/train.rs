//! `netcl train`: a network learns images.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use netcl::core::backend::cpu::set_num_threads;
use netcl::core::backend::opencl::shutdown;
use netcl::core::device::{DeviceHandle, manager};
use netcl::trainer::run::numbered;
use netcl::trainer::{Network, Outcome, Run, Settings, Summary};
use serde_json::json;

use crate::Verdict;
use crate::output::{name, print, print_json};
use crate::progress;

/// What stands below the options.
pub(crate) const AFTER_HELP: &str = "\
Ctrl+C stops a run in order and keeps a checkpoint; --resume goes on, to the same result. --resume with --epochs N goes on to N \
epochs, also with a run that is finished.

A run is never overwritten unless --overwrite says so: a folder named by --out that holds one is refused, and without --out a \
finished run makes the next one go to runs/<data>-<model>-2.

The digits that come with netcl: Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak (1998), UCI Machine \
Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// digits (come with netcl), fashion-mnist, mnist, cifar-10, cifar-100, or a folder with their files
    #[arg(long, value_name = "NAME", default_value = "digits")]
    data: String,
    /// The network
    #[arg(long, value_enum, default_value = "cnn")]
    model: Model,
    /// How often to go over the training images [default: suits data and model, with --resume those of the run]
    #[arg(long)]
    epochs: Option<usize>,
    /// How many images make one step [default: suits data and model]
    #[arg(long)]
    batch_size: Option<usize>,
    /// The largest learning rate of the run [default: suits data and model]
    #[arg(long)]
    lr: Option<f64>,
    /// How much the weights shrink by themselves [default: 0.01]
    #[arg(long)]
    weight_decay: Option<f64>,
    /// The part of each target that is spread over all classes [default: 0]
    #[arg(long)]
    label_smoothing: Option<f64>,
    /// Whether to shift, turn or mirror training images at random [default: suits data and model]
    #[arg(long, value_name = "true|false")]
    augment: Option<bool>,
    /// What decides everything random; the same seed gives the same weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// cpu (native), gpu, opencl, an index of `netcl devices`, or part of a name [default: a GPU if there is one, else cpu]
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// Threads of the native CPU [default: as many as there are cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Where results go [default: runs/<data>-<model>, numbered where a finished run is]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Where to look for the data set's files
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// Use at most this many images to train and to test
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Start over where the folder holds a run, which is lost
    #[arg(long)]
    overwrite: bool,
    /// Go on with the run in a folder (or in that of --out); its settings hold, apart from --epochs
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, conflicts_with_all = ["data", "model", "batch_size", "lr",
        "weight_decay", "label_smoothing", "augment", "seed", "limit", "overwrite"])]
    resume: Option<Option<PathBuf>>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Model {
    /// Two hidden layers
    Mlp,
    /// Two convolutions
    Cnn,
    /// Eighteen layers with shortcuts
    Resnet18,
}

impl From<Model> for Network {
    fn from(model: Model) -> Network {
        match model {
            Model::Mlp => Network::Mlp,
            Model::Cnn => Network::Cnn,
            Model::Resnet18 => Network::Resnet18,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    if let Some(threads) = arguments.threads {
        if threads == 0 {
            bail!("train: --threads 0 leaves nobody to work; use 1 or more");
        }
        set_num_threads(threads);
    }
    let device = device(arguments.device.as_deref())?;
    let mut run = match &arguments.resume {
        Some(place) => {
            let place = match (place, &arguments.out) {
                (Some(place), None) | (None, Some(place)) => place,
                _ => {
                    bail!("train: --resume needs the folder of the run, once: --resume FOLDER or --resume --out FOLDER")
                }
            };
            Run::resume_to(place, arguments.epochs, arguments.data_dir.as_deref(), &device.queue)?
        }
        None => start(arguments, &device)?,
    };
    let on = format!("{} ({})", device.device_name, device.platform_name);
    if !arguments.json {
        print(&headline(&run, &on))?;
    }
    let outcome = {
        let mut observer: Box<dyn netcl::trainer::Observer> =
            if arguments.json { Box::new(()) } else { progress::observer(run.settings().epochs) };
        run.train(&shutdown::interrupted, &mut *observer).with_context(|| format!("training on {on}"))?
    };
    if outcome == Outcome::Stopped {
        let (epoch, folder) = (run.progress().epochs + 1, run.folder().display());
        // Not on standard output: whoever reads JSON there gets none.
        eprintln!("Stopped in epoch {epoch}; to go on: netcl train --resume {folder}");
        return Ok(Verdict::Good);
    }
    let summary = run.finish(&on)?;
    if arguments.json {
        print_json(&as_json(&run, &summary, &on))?;
    } else {
        print(&closing(&run, &summary))?;
    }
    Ok(Verdict::Good)
}

fn start(arguments: &Arguments, device: &DeviceHandle) -> Result<Run> {
    let network = Network::from(arguments.model);
    let recommended = Settings::recommended(&arguments.data, network);
    let settings = Settings {
        epochs: arguments.epochs.unwrap_or(recommended.epochs),
        batch_size: arguments.batch_size.unwrap_or(recommended.batch_size),
        lr: arguments.lr.unwrap_or(recommended.lr),
        weight_decay: arguments.weight_decay.unwrap_or(recommended.weight_decay),
        label_smoothing: arguments.label_smoothing.unwrap_or(recommended.label_smoothing),
        augment: arguments.augment.unwrap_or(recommended.augment),
        seed: arguments.seed,
        limit: arguments.limit,
        ..recommended
    };
    let folder = match &arguments.out {
        Some(folder) => folder.clone(),
        None => {
            // A folder's path is no name for a folder: its last part is.
            let data = Path::new(&arguments.data).file_name().map_or("data".into(), |name| name.to_string_lossy());
            let folder = Path::new("runs").join(format!("{data}-{}", network.name()));
            if arguments.overwrite { folder } else { numbered(&folder) }
        }
    };
    let begin = if arguments.overwrite { Run::start_over } else { Run::start };
    Ok(begin(settings, arguments.data_dir.as_deref(), &device.queue, &folder)?)
}

/// The named device; else what NETCL_DEVICE says; else a GPU; else the native CPU, which trains faster than a CPU through
/// OpenCL and compiles nothing.
pub(crate) fn device(selector: Option<&str>) -> Result<DeviceHandle> {
    match selector {
        Some(selector) => Ok(manager().get(selector)?),
        None if netcl::core::env::DEVICE.text().is_some() => Ok(manager().get("auto")?),
        None => Ok(manager().default("gpu").ok().flatten().unwrap_or_else(|| manager().cpu())),
    }
}

fn headline(run: &Run, device: &str) -> String {
    let (data, settings) = (run.data(), run.settings());
    let (train, test, parameters) = (data.train.len(), data.test.len(), run.model().num_parameters());
    let resumed = match run.progress().history.steps.len() {
        0 => String::new(),
        steps => format!("\nresumed after step {steps}, in epoch {}", run.progress().epochs + 1),
    };
    format!(
        "{} on {}: {train} images to train with, {test} to test with, {parameters} parameters, seed {}\ndevice: {device}{resumed}",
        settings.network.name(),
        name(&data.name, 60),
        settings.seed,
    )
}

fn closing(run: &Run, summary: &Summary) -> String {
    let evaluation = &summary.evaluation;
    let (images, classes) = (evaluation.images(), &run.data().classes);
    let right = images - evaluation.mistakes.len();
    let mut text = format!(
        "\ntest accuracy {:.2} % ({right} of {images}), loss {:.4}, after {:.1} s\n",
        evaluation.accuracy() * 100.0,
        evaluation.loss,
        run.progress().history.seconds()
    );
    let worst: Vec<String> = evaluation
        .worst(3)
        .into_iter()
        .map(|(class, share, other)| {
            format!("{} ({:.1} % right, else mostly taken for {})", classes[class], share * 100.0, classes[other])
        })
        .collect();
    if !worst.is_empty() {
        text.push_str(&format!("hardest: {}\n", worst.join("; ")));
    }
    let (model, report) = (summary.model.display(), summary.report.display());
    text.push_str(&format!("weights: {model}\nreport:  {report}\ntry:     netcl predict {model} idx:0"));
    text
}

fn as_json(run: &Run, summary: &Summary, device: &str) -> serde_json::Value {
    json!({
        "settings": run.settings(),
        "device": device,
        "epochs": run.progress().history.epochs,
        "seconds": run.progress().history.seconds(),
        "test_accuracy": summary.evaluation.accuracy(),
        "test_loss": summary.evaluation.loss,
        "confusion": summary.evaluation.confusion,
        "model": summary.model,
        "report": summary.report,
    })
}

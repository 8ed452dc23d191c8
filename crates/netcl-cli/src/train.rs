//! `netcl train`: a network learns images, a text or a table.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use netcl::core::backend::cpu::set_num_threads;
use netcl::core::backend::opencl::shutdown;
use netcl::core::device::{DeviceHandle, manager};
use netcl::core::env;
use netcl::nn::LayerConfig;
use netcl::nn::config::from_json;
use netcl::trainer::callbacks::{Profiled, Progress};
use netcl::trainer::run::{CHECKPOINT, numbered};
use netcl::trainer::trainer::Outcome;
use netcl::trainer::{GptSizes, Network, Precision, Run, Settings, Summary, Task};
use serde_json::json;

use crate::Verdict;
use crate::evaluate;
use crate::output::{name, positive, print, print_json};
use crate::tui::Screen;

/// What stands below the options.
pub(crate) const AFTER_HELP: &str = "\
Ctrl+C stops a run in order and keeps a checkpoint; --resume goes on, to the same result. --resume with --epochs N goes on to N \
epochs, also with a run that is finished.

Under `netcl launch -n N` or `mpirun -n N` all processes train together: each has its part of every batch, --batch-size is that of all \
of them together, and the losses are those of one process to rounding, unless the model has dropout, for which each process draws numbers \
of its own, or batch normalisation counts over its own samples (--no-sync-norm). Rank 0 prints and writes.

A run is never overwritten unless --overwrite says so: a folder named by --out that holds one is refused, and without --out a \
finished run makes the next one go to runs/<data>-<model>-2.

The digits that come with netcl: Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak (1998), UCI Machine \
Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// digits (come with netcl), fashion-mnist, mnist, cifar-10, cifar-100, shakespeare; a folder with their files, with a folder of
    /// pictures for each class, or with .txt files; a text, .csv or .npz file
    #[arg(long, value_name = "NAME|PATH", default_value = "digits")]
    data: String,
    /// The network [default: cnn; gpt for texts, mlp for tables]
    #[arg(long, value_enum, conflicts_with = "config")]
    model: Option<Model>,
    /// A network of one's own: a JSON list of layers, as `build_sequential` takes it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How often to go over the training data [default: suits data and model, with --resume those of the run]
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    epochs: Option<usize>,
    /// How many images, rows or windows of a text make one batch, of all ranks together [default: suits data and model]
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    batch_size: Option<usize>,
    /// Batches whose gradients make one step [default: 1]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    accumulate: Option<usize>,
    /// The largest learning rate of the run [default: suits data and model]
    #[arg(long, allow_negative_numbers = true)]
    lr: Option<f64>,
    /// How much the weights shrink by themselves [default: 0.01, for vit and gpt 0.05]
    #[arg(long, allow_negative_numbers = true)]
    weight_decay: Option<f64>,
    /// The largest norm of all gradients together [default: none, for vit and gpt 1]
    #[arg(long, value_name = "NORM", allow_negative_numbers = true)]
    clip: Option<f64>,
    /// Test and keep an average of the weights that keeps this part of itself in each step, such as 0.999
    #[arg(long, value_name = "DECAY", allow_negative_numbers = true)]
    ema: Option<f64>,
    /// Let batch norm of each rank count over its own samples alone, instead of over those of all ranks
    #[arg(long)]
    no_sync_norm: bool,
    /// Products in 16 bits
    #[arg(long, value_enum, value_name = "TYPE", num_args = 0..=1, default_missing_value = "float16")]
    amp: Option<Amp>,
    /// The part of each target that is spread over all classes [default: 0]
    #[arg(long, allow_negative_numbers = true)]
    label_smoothing: Option<f64>,
    /// Whether to shift, turn or mirror training images at random [default: suits data and model]
    #[arg(long, value_name = "true|false")]
    augment: Option<bool>,
    /// The height and width that the pictures of an image folder are cut to [default: 64]
    #[arg(long, value_name = "PIXELS")]
    side: Option<usize>,
    /// The column of a .csv file to predict [default: the last]
    #[arg(long, value_name = "COLUMN")]
    target: Option<String>,
    /// Tokens of a text
    #[arg(long, value_enum, default_value = "chars")]
    tokens: Tokens,
    /// Blocks of the gpt [default: 6]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    layers: Option<usize>,
    /// Heads of each attention of the gpt [default: 6]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    heads: Option<usize>,
    /// Width of a token's vector in the gpt; the heads must divide it [default: 192]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    width: Option<usize>,
    /// Tokens that the gpt sees together [default: 128]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    context: Option<usize>,
    /// Part of the values that the gpt drops in training [default: 0]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    dropout: Option<f64>,
    /// What decides everything random; the same seed gives the same weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// cpu (native), gpu, opencl, an index of `netcl devices`, or part of a name [default: a GPU if there is one, else cpu]
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// Threads of the native CPU [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Where results go [default: runs/<data>-<model>, numbered where a finished run is]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Where to look for the data set's files
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// Use at most this many images, rows or windows of a text to train and to test
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    limit: Option<usize>,
    /// Start over where the folder holds a run, which is lost
    #[arg(long)]
    overwrite: bool,
    /// Go on with the run in a folder (or in that of --out); its settings hold, apart from --epochs
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, conflicts_with_all = ["data", "model", "config", "batch_size",
        "accumulate", "lr", "weight_decay", "clip", "ema", "no_sync_norm", "amp", "label_smoothing", "augment", "side", "target", "tokens",
        "layers", "heads", "width", "context", "dropout", "seed", "limit", "overwrite"])]
    resume: Option<Option<PathBuf>>,
    /// Show curves, memory and a log on the whole terminal; q stops and keeps a checkpoint
    #[arg(long, conflicts_with = "json")]
    tui: bool,
    /// Profile about twenty updates: profile.html and a trace for Perfetto, profile.json, in the run's folder
    #[arg(long)]
    profile: bool,
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
    /// Thirty-four layers with shortcuts
    Resnet34,
    /// Fifty layers with shortcuts
    Resnet50,
    /// A small vision transformer
    Vit,
    /// A language model
    Gpt,
}

impl From<Model> for Network {
    fn from(model: Model) -> Network {
        match model {
            Model::Mlp => Network::Mlp,
            Model::Cnn => Network::Cnn,
            Model::Resnet18 => Network::Resnet18,
            Model::Resnet34 => Network::Resnet34,
            Model::Resnet50 => Network::Resnet50,
            Model::Vit => Network::Vit,
            Model::Gpt => Network::Gpt,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Amp {
    /// Half precision, with a scaled loss
    Float16,
    /// The range of float32 with 8 bits of mantissa
    Bfloat16,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Tokens {
    /// A token for each character of the text's alphabet
    Chars,
    /// A token for each byte
    Bytes,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    if let Some(threads) = arguments.threads {
        set_num_threads(threads);
    }
    let device = device(arguments.device.as_deref())?;
    let mut run = match &arguments.resume {
        None if let Some(folder) = restarted() => restart(arguments, &device, &folder)?,
        Some(place) => {
            let place = match (place, &arguments.out) {
                (Some(place), None) | (None, Some(place)) => place,
                _ => {
                    bail!("train: --resume needs the folder of the run, once: --resume FOLDER or --resume --out FOLDER")
                }
            };
            Run::resume_to(place, arguments.epochs, arguments.data_dir.as_deref(), &device.queue)?
        }
        None => begin(arguments, &device, None)?,
    };
    note_folder(run.folder())?;
    // Other ranks train, rank 0 also speaks and writes.
    let first = run.group().rank() == 0;
    let on = format!("{} ({})", device.device_name, device.platform_name);
    let headline = headline(&run, &on)?;
    if !arguments.json && first {
        print(&headline)?;
    }
    let quit = Arc::new(AtomicBool::new(false));
    if arguments.tui && first {
        let title = headline.lines().next().unwrap_or_default();
        let screen = Screen::open(title, quit.clone());
        run.watch(screen.context("train: --tui needs a terminal; leave it out where the output goes to a file")?);
    } else if !arguments.json && first {
        let (unit, of_sample) = run.task().unit();
        run.watch(Progress::default().unit(unit, of_sample));
    }
    if arguments.profile {
        let page = run.folder().join("profile.html");
        run.watch(Profiled::new(page));
    }
    let stop = || shutdown::interrupted() || quit.load(Ordering::Relaxed);
    let outcome = run.train(&stop).with_context(|| format!("training on {on}"))?;
    if !first {
        return Ok(Verdict::Good);
    }
    if let Outcome::Stopped(_) = outcome {
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

/// Where `netcl launch` keeps the folder of the run, for the case that it starts all ranks again.
fn note() -> Option<PathBuf> {
    env::RESTART.whole()?;
    Some(Path::new(&env::RENDEZVOUS.text()?).parent()?.join("train"))
}

/// Notes the folder of a run that has begun.
fn note_folder(folder: &Path) -> Result<()> {
    if let Some(note) = note().filter(|_| env::RANK.whole() == Some(0)) {
        let folder = std::path::absolute(folder)?;
        std::fs::write(&note, folder.as_os_str().as_encoded_bytes()).context("train: cannot note the run's folder")?;
    }
    Ok(())
}

/// The folder of the run that `netcl launch` starts again: of this very job, never of an earlier one.
fn restarted() -> Option<PathBuf> {
    if env::RESTART.whole()? == 0 {
        return None;
    }
    std::fs::read_to_string(note()?).ok().map(PathBuf::from)
}

/// Goes on with a run whose ranks were started again, or begins it again where it had no checkpoint yet.
fn restart(arguments: &Arguments, device: &DeviceHandle, folder: &Path) -> Result<Run> {
    if folder.join(CHECKPOINT).exists() {
        return Ok(Run::resume_to(folder, None, arguments.data_dir.as_deref(), &device.queue)?);
    }
    begin(arguments, device, Some(folder))
}

/// Begins a run, in a folder that holds what is left of it, if one is given.
fn begin(arguments: &Arguments, device: &DeviceHandle, again: Option<&Path>) -> Result<Run> {
    let layers = match &arguments.config {
        Some(path) => Some(configuration(path)?),
        None => None,
    };
    let network = match arguments.model {
        _ if layers.is_some() => Network::Config,
        Some(model) => model.into(),
        None => suited(&arguments.data),
    };
    let recommended = Settings::recommended(&arguments.data, network);
    let usual = GptSizes::default();
    let gpt = GptSizes {
        layers: arguments.layers.unwrap_or(usual.layers),
        heads: arguments.heads.unwrap_or(usual.heads),
        width: arguments.width.unwrap_or(usual.width),
        context: arguments.context.unwrap_or(usual.context),
        dropout: arguments.dropout.unwrap_or(usual.dropout),
    };
    if network != Network::Gpt && gpt != usual {
        bail!(
            "train: --layers, --heads, --width, --context and --dropout are sizes of --model gpt, not of {}",
            network.name()
        );
    }
    if network == Network::Gpt && !gpt.width.is_multiple_of(gpt.heads) {
        bail!("train: --heads {} must divide --width {}", gpt.heads, gpt.width);
    }
    let amp = arguments.amp.map(|amp| match amp {
        Amp::Float16 => Precision::Float16,
        Amp::Bfloat16 => Precision::Bfloat16,
    });
    let settings = Settings {
        epochs: arguments.epochs.unwrap_or(recommended.epochs),
        batch_size: arguments.batch_size.unwrap_or(recommended.batch_size),
        accumulate: arguments.accumulate.unwrap_or(recommended.accumulate),
        lr: arguments.lr.unwrap_or(recommended.lr),
        weight_decay: arguments.weight_decay.unwrap_or(recommended.weight_decay),
        clip: arguments.clip.or(recommended.clip),
        ema: arguments.ema,
        sync_norm: !arguments.no_sync_norm,
        amp,
        label_smoothing: arguments.label_smoothing.unwrap_or(recommended.label_smoothing),
        augment: arguments.augment.unwrap_or(recommended.augment),
        side: arguments.side,
        target: arguments.target.clone(),
        bytes: arguments.tokens == Tokens::Bytes,
        gpt: recommended.gpt.map(|_| gpt),
        layers,
        seed: arguments.seed,
        limit: arguments.limit,
        ..recommended
    };
    let folder = match again.or(arguments.out.as_deref()) {
        Some(folder) => folder.to_owned(),
        None => {
            // A folder's path is no name for a folder: its last part is.
            let data = Path::new(&arguments.data).file_stem().map_or("data".into(), |name| name.to_string_lossy());
            let folder = Path::new("runs").join(format!("{data}-{}", network.name()));
            if arguments.overwrite { folder } else { numbered(&folder) }
        }
    };
    let begin = if arguments.overwrite || again.is_some() { Run::start_over } else { Run::start };
    Ok(begin(settings, arguments.data_dir.as_deref(), &device.queue, &folder)?)
}

/// The network that suits data that are known by their name alone.
fn suited(data: &str) -> Network {
    let (path, ending) = (Path::new(data), Path::new(data).extension().and_then(|ending| ending.to_str()));
    let has_texts = || {
        let mut entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.any(|entry| entry.path().extension().is_some_and(|ending| ending == "txt"))
    };
    match ending {
        _ if data == "shakespeare" || path.is_dir() && has_texts() => Network::Gpt,
        _ if path.is_dir() => Network::Cnn,
        Some("csv" | "tsv") => Network::Mlp,
        Some("npz") => Network::Cnn,
        _ if path.is_file() => Network::Gpt,
        _ => Network::Cnn,
    }
}

/// The layers of a configuration file.
fn configuration(path: &Path) -> Result<Vec<LayerConfig>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    from_json(&text).with_context(|| path.display().to_string())
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

fn headline(run: &Run, device: &str) -> Result<String> {
    let (settings, parameters) = (run.settings(), run.parameters());
    let ((train, test), (unit, of_sample)) = (run.samples()?, run.task().unit());
    let (train, test) = (train * of_sample, test * of_sample);
    let resumed = match run.progress().history.steps.len() {
        0 => String::new(),
        steps => format!("\nresumed after step {steps}, in epoch {}", run.progress().epochs + 1),
    };
    Ok(format!(
        "{} on {}: {train} {unit} to train with, {test} to test with, {parameters} parameters, seed {}\ndevice: {device}{resumed}",
        settings.network.name(),
        name(run.data().name(), 60),
        settings.seed,
    ))
}

fn closing(run: &Run, summary: &Summary) -> String {
    let (evaluation, task) = (&summary.evaluation, run.task());
    let mut text =
        format!("\n{}, after {:.1} s\n", evaluate::sentence(evaluation, task), run.progress().history.seconds());
    text.push_str(&evaluate::hardest(evaluation, task));
    if let Some(sample) = &summary.sample {
        text.push_str(&format!("\n{}\n\n", sample.trim()));
    }
    let (model, report) = (summary.model.display(), summary.report.display());
    text.push_str(&format!("weights: {model}\nreport:  {report}\n"));
    text.push_str(&match task {
        Task::Images(_) => format!("try:     netcl predict {model} idx:0"),
        Task::Text(_) => format!("try:     netcl generate {model} --prompt \"...\""),
        Task::Table(_) => format!("try:     netcl evaluate {model}"),
    });
    text
}

fn as_json(run: &Run, summary: &Summary, device: &str) -> serde_json::Value {
    let mut result = evaluate::as_json(&summary.evaluation);
    let more = json!({
        "settings": run.settings(),
        "device": device,
        "epochs": run.progress().history.epochs,
        "seconds": run.progress().history.seconds(),
        "sample": summary.sample,
        "model": summary.model,
        "report": summary.report,
    });
    if let (Some(fields), Some(more)) = (result.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
    result
}

//! The report of a finished run.

use netcl_data::decode::Pixels;
use netcl_data::transforms::Transform;
use netcl_data::{ImageSplits, digits};

use super::{Classification, PicturedMistake, RunContent, TextSample, data_uri};
use crate::error::Result;
use crate::evaluate::{Evaluation, Mistake};
use crate::settings::Settings;
use crate::task::{Data, Task};
use crate::trainer::History;

/// What the report of a run is made from.
pub(crate) struct Finished<'c> {
    pub(crate) settings: &'c Settings,
    pub(crate) data: &'c Data,
    pub(crate) task: &'c Task,
    /// The numbers of samples to train and to test with.
    pub(crate) samples: (usize, usize),
    pub(crate) device: &'c str,
    pub(crate) history: &'c History,
    pub(crate) evaluation: &'c Evaluation,
    /// What a language model writes.
    pub(crate) sample: Option<&'c str>,
}

/// As many wrong guesses are shown, the surest first.
const SHOWN: usize = 24;

/// All of the report but the layers.
pub(crate) fn content(run: &Finished<'_>) -> Result<RunContent> {
    let classes = run.task.classes();
    let classification = Classification {
        classes: classes.to_vec(),
        confusion: run.evaluation.confusion.clone(),
        mistakes: match run.data {
            Data::Images(images) => mistakes(images, run.evaluation)?,
            _ => Vec::new(),
        },
    };
    let sample = run.sample.map(|text| TextSample { prompt: String::new(), text: text.to_owned() });
    let name = run.data.name();
    Ok(RunContent {
        title: format!("{} on {name}", run.settings.network.name()),
        device: run.device.to_owned(),
        settings: settings(run),
        history: run.history.clone(),
        classification: (!classes.is_empty()).then_some(classification),
        samples: sample.into_iter().collect(),
        attribution: if name == "digits" { digits::ATTRIBUTION.to_owned() } else { String::new() },
        ..RunContent::default()
    })
}

/// One of the changes that [`Settings::changes`] names, in words.
fn described(change: &Transform, width: usize) -> String {
    match change {
        Transform::Crop { padding, .. } => format!("shifts of up to {padding} pixels"),
        Transform::HorizontalFlip { .. } => "mirroring".to_owned(),
        Transform::Affine { degrees, translate, scale, .. } => format!(
            "shifts of up to {:.0} pixels, turns of up to {degrees} degrees, scaling by up to {:.0} %",
            translate[0] * width as f64,
            (scale.1 - 1.0) * 100.0
        ),
        other => format!("{other:?}"),
    }
}

fn settings(run: &Finished<'_>) -> Vec<(String, String)> {
    let Settings { epochs: _, batch_size, accumulate, lr, weight_decay, label_smoothing, seed, .. } = run.settings;
    let (unit, of_sample) = run.task.unit();
    let count = |samples: usize| (samples * of_sample).to_string();
    let mut rows = vec![
        ("data".to_owned(), run.data.name().to_owned()),
        (format!("training {unit}"), count(run.samples.0)),
        (format!("test {unit}"), count(run.samples.1)),
    ];
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    match run.task {
        Task::Images(task) => {
            let shape: Vec<String> = task.architecture.input.iter().map(usize::to_string).collect();
            row("image", shape.join(" x "));
        }
        Task::Text(task) => {
            row("context", format!("{} {unit}", task.context));
            row("tokens", task.architecture.classes.to_string());
        }
        Task::Table(task) => row("inputs", task.scales.len().to_string()),
    }
    row("network", run.settings.network.name().to_owned());
    if let Some(gpt) = run.settings.gpt {
        row("size", format!("{} layers of {} heads and width {}", gpt.layers, gpt.heads, gpt.width));
    }
    row("epochs", run.history.epochs.len().to_string());
    row("batch size", batch_size.to_string());
    if *accumulate > 1 {
        row("batches per step", accumulate.to_string());
    }
    row("optimizer", format!("AdamW, weight decay {weight_decay}"));
    row("learning rate", format!("one cycle up to {lr}"));
    if let Some(clip) = run.settings.clip {
        row("gradients clipped to", clip.to_string());
    }
    if let Some(decay) = run.settings.ema {
        row("average of the weights", format!("decay {decay}"));
    }
    if let Some(amp) = run.settings.amp {
        row("products in", amp.dtype().name().to_owned());
    }
    if let Data::Images(images) = run.data {
        let shape = images.train.shape();
        let changes: Vec<String> =
            run.settings.changes(shape).iter().map(|change| described(change, shape[2])).collect();
        row("label smoothing", label_smoothing.to_string());
        row("random changes of images", if changes.is_empty() { "none".to_owned() } else { changes.join(", ") });
    }
    row("seed", seed.to_string());
    rows
}

fn mistakes(data: &ImageSplits, evaluation: &Evaluation) -> Result<Vec<PicturedMistake>> {
    let mut surest = evaluation.mistakes.clone();
    surest.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    let [channels, height, width] = data.test.shape();
    // A picture has one channel or three: of others, the first.
    let channels = if channels == 3 { 3 } else { 1 };
    let pictured = |mistake: &Mistake| {
        let planes = &data.test.image(mistake.index)[..channels * height * width];
        let png = Pixels::from_planes(planes, [channels, height, width])?.to_png()?;
        Ok(PicturedMistake {
            name: format!("test image {}", mistake.index),
            label: mistake.label,
            guess: mistake.guess,
            probability: f64::from(mistake.probability),
            image: data_uri(&png),
        })
    };
    surest.iter().take(SHOWN).map(pictured).collect()
}

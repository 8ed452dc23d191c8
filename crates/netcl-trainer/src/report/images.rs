//! The report of a run that classifies images.

use netcl_data::decode::Pixels;
use netcl_data::transforms::Transform;
use netcl_data::{ImageSplits, digits};

use super::{Classification, PicturedMistake, RunContent, converted, data_uri};
use crate::error::Result;
use crate::evaluate::Evaluation;
use crate::history::History;
use crate::settings::Settings;

/// What the report of a run of images is made from.
pub(crate) struct ImageRun<'c> {
    pub(crate) settings: &'c Settings,
    pub(crate) data: &'c ImageSplits,
    pub(crate) device: &'c str,
    pub(crate) history: &'c History,
    pub(crate) evaluation: &'c Evaluation,
}

/// As many wrong guesses are shown, the surest first.
const SHOWN: usize = 24;

/// All of the report but the layers.
pub(crate) fn image_run(run: &ImageRun<'_>) -> Result<RunContent> {
    let (data, history) = (run.data, run.history);
    Ok(RunContent {
        title: format!("{} on {}", run.settings.network.name(), data.name),
        device: run.device.to_owned(),
        settings: settings(run),
        history: converted(history),
        classification: Some(Classification {
            classes: data.classes.clone(),
            confusion: run.evaluation.confusion.clone(),
            mistakes: mistakes(data, run.evaluation)?,
        }),
        attribution: if data.name == "digits" { digits::ATTRIBUTION.to_owned() } else { String::new() },
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

fn settings(run: &ImageRun<'_>) -> Vec<(String, String)> {
    let ImageRun { settings, data, history, .. } = run;
    let [channels, height, width] = data.train.shape();
    let changes: Vec<String> =
        settings.changes(data.train.shape()).iter().map(|change| described(change, width)).collect();
    let changes = if changes.is_empty() { "none".to_owned() } else { changes.join(", ") };
    [
        ("data", data.name.clone()),
        ("training images", data.train.len().to_string()),
        ("test images", data.test.len().to_string()),
        ("image", format!("{channels} x {height} x {width}")),
        ("network", settings.network.name().to_owned()),
        ("epochs", history.epochs.len().to_string()),
        ("batch size", settings.batch_size.to_string()),
        ("optimizer", format!("AdamW, weight decay {}", settings.weight_decay)),
        ("learning rate", format!("one cycle up to {}", settings.lr)),
        ("label smoothing", settings.label_smoothing.to_string()),
        ("random changes of images", changes),
        ("seed", settings.seed.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn mistakes(data: &ImageSplits, evaluation: &Evaluation) -> Result<Vec<PicturedMistake>> {
    let mut surest = evaluation.mistakes.clone();
    surest.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    let [channels, height, width] = data.test.shape();
    // A picture has one channel or three: of others, the first.
    let channels = if channels == 3 { 3 } else { 1 };
    let pictured = |mistake: &crate::evaluate::Mistake| {
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

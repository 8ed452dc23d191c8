//! `netcl predict`: what a trained network sees in a picture.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use netcl::data::picture::MAX_PIXELS;
use netcl::data::{Picture, catalog};
use netcl::trainer::Classifier;
use serde_json::{Value, json};

use crate::Verdict;
use crate::model_file::model_file;
use crate::output::{name, print, print_json};
use crate::train::device;

#[derive(Args)]
pub(crate) struct Arguments {
    /// A run's folder or model.netcl file of `netcl train`
    model: PathBuf,
    /// A PNG or JPEG file, or idx:N for a test image of the data set that the model was trained on
    image: String,
    /// Refuse pictures of more pixels
    #[arg(long, value_name = "N", default_value_t = MAX_PIXELS)]
    max_pixels: u64,
    /// Where to look for the data set's files
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// As for train
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The bar of a certain answer.
const WIDTH: f32 = 40.0;
/// The most characters of a class's name that are shown.
const NAME: usize = 40;

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let classifier = Classifier::load(model_file(&arguments.model)?, &device(arguments.device.as_deref())?.queue)?;
    let (pixels, label) = match arguments.image.strip_prefix("idx:") {
        Some(number) => test_image(&classifier, number, arguments.data_dir.as_deref())?,
        None => {
            let picture = Picture::read_up_to(Path::new(&arguments.image), arguments.max_pixels)?;
            (classifier.input_of(&picture)?, None)
        }
    };
    let probabilities = classifier.probabilities(&pixels)?;
    let classes = &classifier.description().classes;
    let mut ranked: Vec<(&String, f32)> = classes.iter().zip(probabilities).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let Some(&(best, certainty)) = ranked.first() else { bail!("the model has no classes") };
    if arguments.json {
        let shares: Vec<Value> =
            ranked.iter().map(|(class, share)| json!({ "class": class, "probability": share })).collect();
        print_json(&json!({
            "image": arguments.image,
            "class": best,
            "probability": certainty,
            "label": label,
            "classes": shares,
        }))?;
        return Ok(Verdict::Good);
    }
    let mut text = format!("{} ({:.1} %)", name(best, NAME), certainty * 100.0);
    if let Some(label) = &label {
        let right = label == best;
        text.push_str(&if right {
            ", which is right".to_owned()
        } else {
            format!(", but it is {}", name(label, NAME))
        });
    }
    let brick = if std::io::stdout().is_terminal() { "█" } else { "#" };
    let shown: Vec<(String, f32)> = ranked.iter().take(10).map(|(class, share)| (name(class, NAME), *share)).collect();
    let width = shown.iter().map(|(class, _)| class.chars().count()).max().unwrap_or(0);
    for (class, share) in &shown {
        let bar = brick.repeat((share * WIDTH).round() as usize);
        let line = format!("\n  {class:<width$}  {:>5.1} %  {bar}", share * 100.0);
        text.push_str(line.trim_end());
    }
    print(&text)?;
    Ok(Verdict::Good)
}

/// A test image by its number, and what it shows.
fn test_image(classifier: &Classifier, number: &str, folder: Option<&Path>) -> Result<(Vec<u8>, Option<String>)> {
    let index: usize = number.parse().with_context(|| format!("idx:{number}: {number:?} is no number of an image"))?;
    let data = catalog::load(&classifier.description().data, folder)?;
    let Some(&label) = data.test.labels().get(index) else {
        bail!("idx:{index}: {} has {} test images, the first is idx:0", data.name, data.test.len());
    };
    let class = data.classes.get(usize::from(label)).cloned();
    Ok((data.test.image(index).to_vec(), class))
}

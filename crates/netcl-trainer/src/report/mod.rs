//! The report of runs: one HTML file that needs nothing else.
//!
//! A [`RunContent`] says what there is to show of a run; parts that are empty are left out, so that the report of a language model
//! has samples of text and that of a classifier its confusion matrix. [`write()`] lays several runs over each other.
//!
//! ```
//! use netcl_trainer::report::{self, RunContent};
//! use netcl_trainer::trainer::{Epoch, History};
//!
//! let epoch = |epoch: usize, loss: f64| Epoch { epoch, values: [("loss".to_owned(), loss)].into(), ..Epoch::default() };
//! let run = RunContent {
//!     title: "first try".to_owned(),
//!     settings: vec![("lr".to_owned(), "0.1".to_owned())],
//!     history: History { steps: vec![], epochs: vec![epoch(1, 2.3), epoch(2, 0.7)] },
//!     ..RunContent::default()
//! };
//! let path = std::env::temp_dir().join(format!("netcl-report-{}.html", std::process::id()));
//! report::write(&path, &[run])?;
//! # std::fs::remove_file(&path).map_err(|reason| netcl_io::Error::Write { path, reason })?;
//! # Ok::<(), netcl_trainer::Error>(())
//! ```
//!
//! The page is `page.html` with `page.css`, `report.css`, `report.js` and, as a block of JSON, the runs. Names that users gave to
//! classes and files reach the page only through that block and `textContent`, so they cannot become HTML. [`read()`] takes the
//! block out of a report again.

mod content;
mod history;
pub mod layers;
pub mod read;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::{Error, Result};
use crate::trainer::History;

pub(crate) use content::{Finished, content};
pub use layers::Layer;
pub use read::read;

/// What there is to show of a run. What is empty is left out of the page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunContent {
    /// What legends call it.
    pub title: String,
    /// What it was trained on.
    pub device: String,
    /// What the reader should know first: that the run was stopped, or that a part of its files could not be read.
    pub notes: Vec<String>,
    /// Settings and their values, in the order in which they are shown.
    pub settings: Vec<(String, String)>,
    /// Updates and epochs. Of an epoch's values, those that [`Epoch::note_device`](crate::trainer::Epoch::note_device)
    /// notes become the curves of throughput and memory; of every other `x`, the chart has `x` and `val_x`.
    #[serde(with = "history::columns")]
    pub history: History,
    /// What a test of the final weights found, where samples have classes.
    pub classification: Option<Classification>,
    /// Text that a language model wrote.
    pub samples: Vec<TextSample>,
    /// The model's layers, each before those inside it: [`layers::measure`].
    pub layers: Vec<Layer>,
    /// Samples in the batch of the layers' figures.
    pub layer_batch: usize,
    /// Where the data comes from, if that must be said.
    pub attribution: String,
}

/// How a test of a classifier ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Classification {
    /// The names of the classes.
    pub classes: Vec<String>,
    /// How often samples of a class (first index) are taken for a class (second index).
    pub confusion: Vec<Vec<usize>>,
    /// The wrong answers to show, the surest first.
    pub mistakes: Vec<PicturedMistake>,
}

/// A sample that was classified wrong, to look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PicturedMistake {
    /// What it is called: `test image 17`.
    pub name: String,
    /// The class that it has.
    pub label: usize,
    /// The class that it was taken for.
    pub guess: usize,
    /// How sure the model was, from 0 to 1.
    pub probability: f64,
    /// [`data_uri`] of its picture; empty where there is none.
    pub image: String,
}

/// Text that a language model wrote.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TextSample {
    /// What the model was given.
    pub prompt: String,
    /// What it wrote.
    pub text: String,
}

/// The style that all our pages share.
pub const STYLE: &str = include_str!("page.css");

/// The tag before the block of JSON; its end is `</script>`.
const DATA_TAG: &str = "<script type=\"application/json\" id=\"data\">";

/// Writes a report: of one run, or of several beside each other.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, runs: &[RunContent]) -> Result<()> {
    let page = html(runs)?;
    Ok(netcl_io::write_atomically(path, |out| std::io::Write::write_all(out, page.as_bytes()))?)
}

/// The page that [`write()`] writes.
///
/// # Errors
/// None that a caller could cause; the data is turned into JSON.
pub fn html(runs: &[RunContent]) -> Result<String> {
    let runs: Vec<RunContent> = runs.iter().map(checked).collect();
    let title = match &runs[..] {
        [run] => run.title.clone(),
        _ => format!("{} runs", runs.len()),
    };
    let data = serde_json::to_string(&json!({ "version": env!("CARGO_PKG_VERSION"), "runs": runs }))
        .map_err(|error| Error::setting(format!("report: the runs cannot be written as JSON: {error}")))?;
    // JSON has `<` only inside strings: escaped there, nothing in the block can end it.
    let block = format!("{DATA_TAG}{}</script>", data.replace('<', "\\u003c"));
    let parts = [
        ("title", escaped(&title).as_str()),
        ("style", STYLE),
        ("report-style", include_str!("report.css")),
        ("data", &block),
        ("script", include_str!("report.js")),
    ]
    .map(|(name, part)| (format!("<!--{name}-->"), part.to_owned()));
    // One pass from the left, so that a part's own text is not searched for places again.
    let mut page = String::new();
    let mut rest = include_str!("page.html");
    for (place, part) in &parts {
        let (before, after) = rest.split_once(place.as_str()).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    Ok(page + rest)
}

/// The run without what a page cannot show: a confusion matrix of another size than the classes, pictures that are none.
fn checked(run: &RunContent) -> RunContent {
    let mut run = run.clone();
    if let Some(found) = &mut run.classification {
        let count = found.classes.len();
        let is_square = found.confusion.len() == count && found.confusion.iter().all(|row| row.len() == count);
        found.mistakes.retain(|mistake| mistake.label < count && mistake.guess < count);
        for mistake in found.mistakes.iter_mut().filter(|mistake| !is_png(&mistake.image)) {
            mistake.image.clear();
        }
        if !is_square {
            let rows = found.confusion.len();
            run.notes.push(format!("The confusion matrix has {rows} rows for {count} classes and is not shown."));
            run.classification = None;
        }
    }
    if !run.samples.is_empty() {
        history::add_perplexity(&mut run.history);
    }
    run
}

/// Whether a text is what [`data_uri`] makes: an address of another kind would be loaded from elsewhere.
fn is_png(uri: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    uri.strip_prefix(PNG).is_some_and(|content| !content.is_empty() && content.chars().all(letter))
}

/// Text for HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const PNG: &str = "data:image/png;base64,";

/// A PNG file's content as the source of an `<img>`, so that a page needs no other file.
pub fn data_uri(png: &[u8]) -> String {
    format!("{PNG}{}", base64(png))
}

/// RFC 4648, padded.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = (0..3).fold(0u32, |group, i| group << 8 | u32::from(chunk.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests;

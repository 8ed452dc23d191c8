//! What can go wrong with data.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong when data is looked for and read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("{} cannot be read: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// A file that is not what it should be.
    #[error("{} is no {expected}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
        /// What is wrong.
        what: String,
    },
    /// Images and labels that do not belong together.
    #[error("{place}: {what}")]
    Mismatch {
        /// Where they come from.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// A data set that is not on this machine.
    #[error("the data set {name:?} was not found in {}; {advice}", list(searched))]
    NotFound {
        /// Its name.
        name: String,
        /// Where it was looked for.
        searched: Vec<PathBuf>,
        /// How to get it.
        advice: String,
    },
    /// Neither a known name nor a file or folder.
    #[error("{}", unknown(name, known))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: &'static str,
    },
    /// A number of a sample that is out of range.
    #[error("there is no sample {index}: the data set has {len}")]
    Index {
        /// What was asked for.
        index: usize,
        /// How many there are.
        len: usize,
    },
    /// A sample that could not be read, changed or joined with others.
    #[error("sample {index}: {reason}")]
    Sample {
        /// Its number in the data set.
        index: usize,
        /// Why.
        reason: Box<Error>,
    },
    /// Samples that could not be joined to a batch.
    #[error("{reason} (the batch's samples are {})", some(indices))]
    Batch {
        /// Their numbers in the data set.
        indices: Vec<usize>,
        /// Why.
        reason: Box<Error>,
    },
    /// A panic in a worker thread: a mistake in a data set, transform or collate function.
    #[error("a worker panicked: {what}")]
    Panic {
        /// The panic's message.
        what: String,
    },
    /// A batch that did not come in time.
    #[error(
        "DataLoader: batch {batch} did not arrive within {seconds} s; allow more with `timeout`, use more workers, or look \
         for what the data set waits for"
    )]
    Timeout {
        /// The batch's number in its epoch.
        batch: usize,
        /// How long was waited.
        seconds: f64,
    },
    /// An error of someone else's data set, transform or collate function.
    #[error(transparent)]
    Custom(Box<dyn std::error::Error + Send + Sync>),
    /// A setting out of range.
    #[error("{what}")]
    Argument {
        /// What is wrong and what to do.
        what: String,
    },
}

impl Error {
    /// The error with the number of the sample that it is about, which it keeps if it has one.
    pub fn at(self, index: usize) -> Error {
        match self {
            Error::Sample { .. } => self,
            reason => Error::Sample { index, reason: Box::new(reason) },
        }
    }

    /// Which samples it is about: `sample 7`, or the first ones of a batch.
    pub fn samples(&self) -> Option<String> {
        match self {
            Error::Sample { index, .. } => Some(format!("sample {index}")),
            Error::Batch { indices, .. } => Some(format!("the batch of samples {}", some(indices))),
            _ => None,
        }
    }
}

/// An [`Error::Argument`].
pub(crate) fn argument<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Argument { what: what.into() })
}

/// The first numbers of a list.
fn some(indices: &[usize]) -> String {
    let first: Vec<String> = indices.iter().take(8).map(usize::to_string).collect();
    first.join(", ") + if indices.len() > 8 { ", ..." } else { "" }
}

/// What is wrong with a name that is neither in `known` nor a file or folder.
fn unknown(name: &str, known: &str) -> String {
    if name.contains(['.', std::path::MAIN_SEPARATOR, '/']) {
        return format!("there is no file or folder {name}");
    }
    let wanted = name.to_ascii_lowercase();
    let near = known.split(", ").map(|known| (distance(&wanted, known), known)).min();
    match near.filter(|(distance, _)| *distance <= 2 && *distance < wanted.len()) {
        Some((_, near)) => format!("there is no data set {name:?}; did you mean {near}?"),
        None => format!("there is no data set {name:?}: it is neither one of {known} nor a file or folder"),
    }
}

/// How many bytes must be inserted, removed or replaced to get from one name to the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

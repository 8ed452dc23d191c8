//! What a model is trained for: images, texts or tables, what its file says of them, and the loss of a batch.

use std::path::Path;
use std::sync::Arc;

use netcl_data::{CharTokenizer, ImageSplits, Normalization, Source, TableSet, TableSplits, TextSplits, Tokenizer};
use netcl_io::{Tensors, open};
use netcl_nn::autograd::{Generator, IndexTensor, Queue, Tensor};
use netcl_nn::{GPT, Module, functional as F};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::architecture::{Architecture, Network};
use crate::batches::Batches;
use crate::classifier::Description;
use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::trainer::{Output, Truth};

/// What a model file says besides the weights: how to build the model and what to feed it.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// The classes of images.
    Images(Description),
    /// The next token of a text.
    Text(TextDescription),
    /// A class or numbers from the rows of a table.
    Table(TableDescription),
}

/// What a language model's file says besides the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextDescription {
    /// The model.
    pub architecture: Architecture,
    /// The text it was trained on.
    pub data: String,
    /// The characters, in the order of their tokens; none where the tokens are bytes.
    pub alphabet: Option<String>,
    /// The tokens that are seen together.
    pub context: usize,
}

impl TextDescription {
    /// How texts become tokens.
    pub fn tokenizer(&self) -> Tokenizer {
        self.alphabet.as_ref().map_or(Tokenizer::Bytes, |alphabet| Tokenizer::Chars(CharTokenizer::of(alphabet)))
    }
}

/// What the file of a model of tables says besides the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableDescription {
    /// The model.
    pub architecture: Architecture,
    /// The data it was trained on.
    pub data: String,
    /// The column that is predicted, where one was named.
    pub target: Option<String>,
    /// The names of the inputs.
    pub inputs: Vec<String>,
    /// The names of the classes; none where numbers are predicted.
    pub classes: Vec<String>,
    /// What is taken from each input, and what it is divided by then.
    pub scales: Vec<[f32; 2]>,
    /// The same for the numbers to predict; none for classes.
    pub target_scales: Vec<[f32; 2]>,
}

impl Task {
    const KEYS: [&str; 3] = ["classifier", "language_model", "table"];

    /// The model.
    pub fn architecture(&self) -> &Architecture {
        match self {
            Task::Images(task) => &task.architecture,
            Task::Text(task) => &task.architecture,
            Task::Table(task) => &task.architecture,
        }
    }

    /// The data it was trained on.
    pub fn data(&self) -> &str {
        match self {
            Task::Images(task) => &task.data,
            Task::Text(task) => &task.data,
            Task::Table(task) => &task.data,
        }
    }

    /// What samples are called, and how many of that are in one.
    pub fn unit(&self) -> (&'static str, usize) {
        match self {
            Task::Images(_) => ("images", 1),
            Task::Text(task) => (if task.alphabet.is_some() { "characters" } else { "bytes" }, task.context),
            Task::Table(_) => ("rows", 1),
        }
    }

    /// The names of the classes; empty where there are none.
    pub fn classes(&self) -> &[String] {
        match self {
            Task::Images(task) => &task.classes,
            Task::Text(_) => &[],
            Task::Table(task) => &task.classes,
        }
    }

    /// As metadata of a file.
    pub(crate) fn to_metadata(&self) -> Map<String, Value> {
        let (key, value) = match self {
            Task::Images(task) => (Task::KEYS[0], json!(task)),
            Task::Text(task) => (Task::KEYS[1], json!(task)),
            Task::Table(task) => (Task::KEYS[2], json!(task)),
        };
        Map::from_iter([(key.to_owned(), value)])
    }

    /// From the metadata of a file.
    pub(crate) fn from_metadata(path: &Path, metadata: &Map<String, Value>) -> Result<Task> {
        let task = match Task::KEYS.into_iter().find(|key| metadata.contains_key(*key)) {
            Some("language_model") => Task::Text(entry(path, metadata, "language_model")?),
            Some("table") => Task::Table(entry(path, metadata, "table")?),
            _ => Task::Images(entry(path, metadata, "classifier")?),
        };
        task.check()
            .map_err(|what| Error::File { path: path.to_owned(), what: format!("{what}: the file is damaged") })?;
        Ok(task)
    }

    /// What is wrong where the parts do not fit each other.
    fn check(&self) -> Result<(), String> {
        let outputs = self.architecture().classes;
        let is_scale = |[mean, deviation]: &[f32; 2]| mean.is_finite() && deviation.is_finite() && *deviation != 0.0;
        let named = |names: usize| match names == outputs {
            true => Ok(()),
            false => Err(format!("names {names} classes, but its network has {outputs}")),
        };
        match self {
            Task::Images(task) => {
                named(task.classes.len())?;
                if !is_scale(&[task.mean, task.deviation]) || task.architecture.input.len() != 3 {
                    return Err(format!("has pixels of mean {} and deviation {}", task.mean, task.deviation));
                }
            }
            Task::Text(task) => {
                let tokens = task.tokenizer().len();
                if tokens != outputs || task.context == 0 {
                    return Err(format!("has {tokens} characters, but its network {outputs} tokens"));
                }
            }
            Task::Table(task) => {
                let values: usize = task.architecture.input.iter().product();
                if !task.scales.iter().chain(&task.target_scales).all(is_scale) || task.scales.len() != values {
                    return Err("has scales that do not fit its inputs".to_owned());
                }
                named(if task.classes.is_empty() { task.target_scales.len() } else { task.classes.len() })?;
            }
        }
        Ok(())
    }

    /// The loss of a batch.
    pub(crate) fn goal(&self, label_smoothing: f64) -> Goal {
        match self {
            Task::Text(_) => Goal::Tokens,
            Task::Table(task) if task.classes.is_empty() => Goal::Values,
            _ => Goal::Classes { label_smoothing },
        }
    }

    /// Opens the data that the model was trained on, or other data of the same kind.
    ///
    /// # Errors
    /// For data that is not there or of another kind: other shapes, classes or columns, or unknown characters.
    pub fn open(&self, settings: &Settings, folder: Option<&Path>) -> Result<Data> {
        let (source, name) = (settings.open(folder)?, &settings.data);
        let refused =
            |what: String| Err(Error::setting(format!("{name} is not what the model was trained on: {what}")));
        match (self, source) {
            (Task::Images(task), Source::Images(images)) => {
                if images.train.shape() != task.architecture.input[..] || images.classes.len() != task.classes.len() {
                    return refused(format!(
                        "its images have shape {:?} and {} classes, the model's {:?} and {}",
                        images.train.shape(),
                        images.classes.len(),
                        task.architecture.input,
                        task.classes.len()
                    ));
                }
                Ok(Data::Images(images))
            }
            (Task::Text(task), Source::Text(text)) => {
                Ok(Data::Text(TokenSplits::new(&text, task.tokenizer(), task.context)?))
            }
            (Task::Table(task), Source::Table(table)) => {
                let outputs = task.target_scales.len();
                let given = table.test.targets.shape().get(1).copied().unwrap_or(0);
                if *table.train.shape() != task.architecture.input[..]
                    || table.classes != task.classes
                    || outputs != given
                    || table.inputs != task.inputs
                {
                    return refused("its columns or classes differ".to_owned());
                }
                Ok(Data::Table(Box::new(task.scaled(table)?)))
            }
            (task, _) => refused(format!("the model takes {}", task.unit().0)),
        }
    }
}

impl TableDescription {
    /// The table with inputs and targets of mean 0 and deviation 1; what is missing becomes the mean.
    fn scaled(&self, table: TableSplits) -> Result<TableSplits> {
        let scaled = |array: netcl_data::Array, scales: &[[f32; 2]]| -> Result<netcl_data::Array> {
            if scales.is_empty() {
                return Ok(array);
            }
            let shape = array.shape().to_vec();
            let mut values = array.to_f32();
            for row in values.chunks_exact_mut(scales.len()) {
                for (value, [mean, deviation]) in row.iter_mut().zip(scales) {
                    *value = if value.is_finite() { (*value - mean) / deviation } else { 0.0 };
                }
            }
            Ok(netcl_data::Array::new(values, &shape)?)
        };
        let both = |set: TableSet| -> Result<TableSet> {
            let targets = scaled(set.targets, &self.target_scales)?;
            Ok(TableSet { inputs: scaled(set.inputs, &self.scales)?, targets })
        };
        Ok(TableSplits { train: both(table.train)?, test: both(table.test)?, ..table })
    }
}

/// The mean and the deviation of each column of rows; values that are missing do not count.
fn scales(rows: &[f32], columns: usize) -> Vec<[f32; 2]> {
    let scale = |column: usize| {
        let values =
            || rows.iter().skip(column).step_by(columns).filter(|value| value.is_finite()).map(|&v| f64::from(v));
        let count = values().count().max(1) as f64;
        let mean = values().sum::<f64>() / count;
        let deviation = (values().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt() as f32;
        // All alike: nothing to stretch.
        [mean as f32, if deviation > 0.0 && deviation.is_finite() { deviation } else { 1.0 }]
    };
    (0..columns).map(scale).collect()
}

/// Reads one entry of a file's metadata.
pub(crate) fn entry<T: DeserializeOwned>(path: &Path, metadata: &Map<String, Value>, key: &str) -> Result<T> {
    let file = |what: String| Error::File { path: path.to_owned(), what };
    let value = metadata
        .get(key)
        .ok_or_else(|| file(format!("was not written by `netcl train`: its metadata has no entry {key:?}")))?;
    T::deserialize(value).map_err(|error| file(format!("says something unknown under {key:?}: {error}")))
}

/// The data of a task, as its model takes it.
#[derive(Clone, Debug)]
pub enum Data {
    /// Images; their pixels are normalised on the device.
    Images(ImageSplits),
    /// Tokens of a text.
    Text(TokenSplits),
    /// Rows of mean 0 and deviation 1.
    Table(Box<TableSplits>),
}

/// The tokens of a text in two parts.
#[derive(Clone, Debug)]
pub struct TokenSplits {
    /// The name by which the text was asked for.
    pub name: String,
    /// The tokens to train with.
    pub train: Arc<Vec<u32>>,
    /// The tokens to test with.
    pub test: Arc<Vec<u32>>,
    /// The characters to test with: fewer than tokens where those are bytes.
    pub test_characters: usize,
    /// The tokens of a window.
    pub context: usize,
}

impl TokenSplits {
    fn new(text: &TextSplits, tokenizer: Tokenizer, context: usize) -> Result<TokenSplits> {
        let (train, test) = (tokenizer.encode(&text.train)?, tokenizer.encode(&text.test)?);
        if test.len() <= context || train.len() <= 2 * context {
            return Err(Error::setting(format!(
                "{} has {} tokens to train with and {} to test with, too few for windows of {context}; take a longer text or \
                 a smaller --context",
                text.name,
                train.len(),
                test.len()
            )));
        }
        let test_characters = text.test.chars().count();
        let (train, test) = (Arc::new(train), Arc::new(test));
        Ok(TokenSplits { name: text.name.clone(), train, test, test_characters, context })
    }
}

impl Data {
    /// Opens the data of a run, and says what its model's file will say.
    ///
    /// # Errors
    /// For data that is not there, and a network that does not take such data.
    pub fn open(settings: &Settings, folder: Option<&Path>) -> Result<(Data, Task)> {
        let of = |input: &[usize], classes| Architecture {
            gpt: settings.gpt.filter(|_| settings.network == Network::Gpt),
            layers: settings.layers.clone(),
            ..Architecture::new(settings.network, input, classes)
        };
        let name = settings.data.clone();
        let (data, task) = match settings.open(folder)? {
            Source::Images(images) => {
                let images = match settings.limit {
                    Some(limit) => images.truncated(limit, limit),
                    None => images,
                };
                let Normalization { mean, deviation } = Normalization::of(&images.train);
                let architecture = of(&images.train.shape(), images.classes.len());
                let classes = images.classes.clone();
                let task = Description { architecture, data: name, classes, mean, deviation };
                (Data::Images(images), Task::Images(task))
            }
            Source::Text(text) => {
                let whole = || text.train.clone() + &text.test;
                let tokenizer =
                    if settings.bytes { Tokenizer::Bytes } else { Tokenizer::Chars(CharTokenizer::of(&whole())) };
                let alphabet = match &tokenizer {
                    Tokenizer::Chars(tokenizer) => Some(tokenizer.alphabet().iter().collect()),
                    Tokenizer::Bytes => None,
                };
                let context = settings.context();
                let architecture = of(&[], tokenizer.len());
                let task = TextDescription { architecture, data: name, alphabet, context };
                (Data::Text(TokenSplits::new(&text, tokenizer, context)?), Task::Text(task))
            }
            Source::Table(table) => {
                let columns = table.train.shape().iter().product();
                let targets = &table.train.targets;
                let outputs = targets.shape().get(1).copied().unwrap_or(0);
                let task = TableDescription {
                    architecture: of(table.train.shape(), if outputs > 0 { outputs } else { table.classes.len() }),
                    data: name,
                    target: settings.target.clone(),
                    inputs: table.inputs.clone(),
                    classes: table.classes.clone(),
                    scales: scales(&table.train.inputs.to_f32(), columns),
                    target_scales: if outputs > 0 { scales(&targets.to_f32(), outputs) } else { Vec::new() },
                };
                (Data::Table(Box::new(task.scaled(table)?)), Task::Table(task))
            }
        };
        Ok((data, task))
    }

    /// The name by which it was asked for.
    pub fn name(&self) -> &str {
        match self {
            Data::Images(images) => &images.name,
            Data::Text(text) => &text.name,
            Data::Table(table) => &table.name,
        }
    }

    /// The batches to train with: in another order in each epoch, images changed as the settings say.
    pub(crate) fn training(&self, task: &Task, settings: &Settings, queue: &Queue) -> Result<Batches> {
        let seed = Some(settings.seed);
        let batches = match (self, task) {
            (Data::Images(images), Task::Images(task)) => {
                let normalize = task.normalization().transform(images.train.shape()[0]);
                let transforms = settings.changes(images.train.shape()).into_iter().chain([normalize]).collect();
                Batches::of_images(&images.train, queue, transforms, seed)?
            }
            (Data::Text(text), _) => Batches::of_tokens(&text.train, text.context, queue, seed),
            (Data::Table(table), _) => Batches::of_rows(&table.train, queue, seed),
            (Data::Images(_), _) => return Err(Error::setting("images need a model of images")),
        };
        Ok(batches.limited(settings.limit).batch_size(settings.batch_size))
    }

    /// The batches to test with, in the order of the data.
    pub(crate) fn testing(&self, task: &Task, limit: Option<usize>, queue: &Queue) -> Result<Batches> {
        let batches = match (self, task) {
            (Data::Images(images), Task::Images(task)) => {
                let normalize = task.normalization().transform(images.test.shape()[0]);
                Batches::of_images(&images.test, queue, vec![normalize], None)?.batch_size(TEST_BATCH)
            }
            (Data::Text(text), _) => Batches::of_tokens(&text.test, text.context, queue, None)
                .batch_size((TEST_TOKENS / text.context).max(1)),
            (Data::Table(table), _) => Batches::of_rows(&table.test, queue, None).batch_size(TEST_BATCH),
            (Data::Images(_), _) => return Err(Error::setting("images need a model of images")),
        };
        Ok(batches.limited(limit))
    }
}

/// Without gradients to keep, larger batches use a device better.
const TEST_BATCH: usize = 256;
/// Tokens of a batch to test with.
const TEST_TOKENS: usize = 8192;

impl Settings {
    /// The tokens that a language model sees together.
    pub(crate) fn context(&self) -> usize {
        let of_layer = |layers: &Vec<netcl_nn::LayerConfig>| layers.first()?.settings.get("block_size")?.as_u64();
        let configured = self.layers.as_ref().and_then(of_layer).map(|context| context as usize);
        configured.unwrap_or(self.gpt.unwrap_or_default().context).max(1)
    }
}

/// What a batch's loss is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// The class of each sample.
    Classes { label_smoothing: f64 },
    /// The next token after each token.
    Tokens,
    /// Numbers of each sample.
    Values,
}

impl Goal {
    /// The loss, and what metrics look at.
    pub(crate) fn output(self, model: &dyn Module, (input, target): &(Tensor, Tensor)) -> Result<Output> {
        let (predictions, label_smoothing) = match self {
            Goal::Values => {
                let predictions = model.forward(input)?;
                let loss = F::mse_loss(&predictions, target, F::Reduction::Mean)?;
                return Ok(Output { loss, predictions: Some((predictions, Truth::Values(target.clone()))) });
            }
            Goal::Classes { label_smoothing } => (model.forward(input)?, label_smoothing),
            Goal::Tokens => (token_logits(model, input)?, 0.0),
        };
        let labels = IndexTensor::from_tensor(F::reshape(target, [target.size()])?.raw().clone())?;
        let options = F::CrossEntropyOptions { label_smoothing, ..Default::default() };
        let loss = F::cross_entropy_with(&predictions, &labels, &options)?;
        Ok(Output { loss, predictions: Some((predictions, Truth::Index(labels))) })
    }
}

/// Scores of the next token after each of the tokens `[batch, length]`: `[batch * length, tokens]`.
fn token_logits(model: &dyn Module, tokens: &Tensor) -> Result<Tensor> {
    let logits = match model.downcast_ref::<GPT>() {
        Some(gpt) => gpt.logits(&IndexTensor::from_tensor(tokens.raw().clone())?, None)?,
        None => model.forward(&tokens.cast(netcl_nn::autograd::DType::F32)?)?,
    };
    let outputs = logits.shape().last().copied().unwrap_or(1);
    Ok(F::reshape(&logits, [logits.size() / outputs.max(1), outputs])?)
}

/// A model from a file.
pub struct Loaded {
    /// What it was trained for.
    pub task: Task,
    /// The model, ready to be asked.
    pub model: Box<dyn Module>,
    /// Everything else that the file says.
    pub metadata: Map<String, Value>,
}

/// Builds the model of a file that `netcl train` wrote, on a device.
///
/// # Errors
/// If the file cannot be read, is another program's, or its weights do not fit or are no numbers.
pub fn load_model(path: impl AsRef<Path>, queue: &Queue) -> Result<Loaded> {
    let path = path.as_ref();
    let refused = |what: String| Err(Error::File { path: path.to_owned(), what });
    let file = open(path)?;
    let task = Task::from_metadata(path, file.metadata())?;
    // What the file holds bounds the network that is built, and the network what is read of the file.
    let numbers = task.architecture().parameters()?;
    if file.size() < numbers {
        let size = file.size();
        return refused(format!("describes a network of {numbers} numbers, but its arrays have only {size} bytes"));
    }
    // Eight bytes for each number and each of up to three states of an optimizer, and room for other models.
    if file.size() > numbers.saturating_mul(32).saturating_add(16 << 20) {
        let size = file.size();
        return refused(format!("has arrays of {size} bytes, far more than its network of {numbers} numbers needs"));
    }
    let metadata = file.metadata().clone();
    let archive = file.read_all()?;
    if let Some((name, _)) = archive.arrays().find(|(_, array)| !array.is_finite()) {
        return refused(format!("has weights that are no finite numbers, in {name:?}: it cannot be asked anything"));
    }
    let mut model = task.architecture().build(queue, &mut Generator::new(0))?;
    archive.restore(&mut *model)?;
    model.eval();
    Ok(Loaded { task, model, metadata })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_get_mean_zero_and_deviation_one() {
        let found = scales(&[1.0, 5.0, 3.0, 5.0, f32::NAN, 5.0], 2);
        assert_eq!(found, [[2.0, 1.0], [5.0, 1.0]]);
    }

    #[test]
    fn a_text_that_is_too_short_is_refused() {
        let text = TextSplits::new("short", "ab".repeat(20));
        let tokenizer = || Tokenizer::Chars(CharTokenizer::of("ab"));
        assert_eq!(TokenSplits::new(&text, tokenizer(), 3).unwrap().test.len(), 4);
        let message = TokenSplits::new(&text, tokenizer(), 4).unwrap_err().to_string();
        assert!(message.contains("smaller --context"), "{message}");
    }
}

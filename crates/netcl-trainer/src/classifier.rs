//! A trained model, ready to be asked.

use std::path::Path;

use netcl_data::{Normalization, Picture};
use netcl_io::{Tensors, open};
use netcl_nn::autograd::{Generator, Queue, Tensor, no_grad};
use netcl_nn::{Module, functional as F};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::architecture::Architecture;
use crate::error::{Error, Result};

/// What a model file says besides the weights: how to build the model and what to feed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// The model.
    pub architecture: Architecture,
    /// The data set it was trained on.
    pub data: String,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// The mean that is taken from pixels of 0 to 1.
    pub mean: f32,
    /// What they are divided by then.
    pub deviation: f32,
}

impl Description {
    /// How pixels become inputs.
    pub fn normalization(&self) -> Normalization {
        Normalization { mean: self.mean, deviation: self.deviation }
    }

    /// As metadata of a file.
    pub(crate) fn to_metadata(&self) -> Map<String, Value> {
        Map::from_iter([("classifier".to_owned(), json!(self))])
    }

    /// An error where the parts do not fit each other.
    fn check(&self, path: &Path) -> Result<()> {
        let refused = |what: String| Err(Error::File { path: path.to_owned(), what });
        let (names, classes) = (self.classes.len(), self.architecture.classes);
        if names != classes {
            return refused(format!("names {names} classes, but its network has {classes}: the file is damaged"));
        }
        if !(self.mean.is_finite() && self.deviation.is_finite() && self.deviation != 0.0) {
            let (mean, deviation) = (self.mean, self.deviation);
            return refused(format!("has pixels of mean {mean} and deviation {deviation}: the file is damaged"));
        }
        Ok(())
    }

    /// From the metadata of a file.
    pub(crate) fn from_metadata(path: &Path, metadata: &Map<String, Value>) -> Result<Description> {
        entry(path, metadata, "classifier")
    }
}

/// Reads one entry of a file's metadata.
pub(crate) fn entry<T: DeserializeOwned>(path: &Path, metadata: &Map<String, Value>, key: &str) -> Result<T> {
    let file = |what: String| Error::File { path: path.to_owned(), what };
    let value = metadata
        .get(key)
        .ok_or_else(|| file(format!("was not written by `netcl train`: its metadata has no entry {key:?}")))?;
    T::deserialize(value).map_err(|error| file(format!("says something unknown under {key:?}: {error}")))
}

/// A trained model that tells the classes of images.
pub struct Classifier {
    model: Box<dyn Module>,
    queue: Queue,
    description: Description,
}

impl Classifier {
    /// Builds the model of a file that `netcl train` wrote, on a device.
    ///
    /// # Errors
    /// If the file cannot be read, is another program's, or its weights do not fit or are no numbers.
    pub fn load(path: &Path, queue: &Queue) -> Result<Classifier> {
        let refused = |what: String| Err(Error::File { path: path.to_owned(), what });
        let file = open(path)?;
        let description = Description::from_metadata(path, file.metadata())?;
        description.check(path)?;
        // What the file holds bounds the network that is built, and the network what is read of the file.
        let numbers = description.architecture.parameters();
        if file.size() < numbers {
            let size = file.size();
            return refused(format!("describes a network of {numbers} numbers, but its arrays have only {size} bytes"));
        }
        // Eight bytes for each number and each of up to three states of an optimizer, and room for other models.
        if file.size() > numbers.saturating_mul(32).saturating_add(16 << 20) {
            let size = file.size();
            return refused(format!(
                "has arrays of {size} bytes, far more than its network of {numbers} numbers needs"
            ));
        }
        let archive = file.read_all()?;
        if let Some((name, _)) = archive.arrays().find(|(_, array)| !array.is_finite()) {
            return refused(format!(
                "has weights that are no finite numbers, in {name:?}: it cannot be asked anything"
            ));
        }
        let mut model = description.architecture.build(queue, &mut Generator::new(0))?;
        archive.restore(&mut *model)?;
        model.eval();
        Ok(Classifier { model, queue: queue.clone(), description })
    }

    /// What the file says of the model.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The probability of each class for an image of the model's size: one byte per pixel, ink bright.
    ///
    /// # Errors
    /// If there are more or fewer pixels, or the network's answer is no number.
    pub fn probabilities(&self, pixels: &[u8]) -> Result<Vec<f32>> {
        let [channels, height, width] = self.description.architecture.input;
        if pixels.len() != channels * height * width {
            let expected = self.description.architecture.input;
            return Err(Error::setting(format!(
                "the model takes images of shape {expected:?}, not {} pixels",
                pixels.len()
            )));
        }
        let _scope = no_grad();
        let normalization = self.description.normalization();
        let inputs: Vec<f32> = pixels.iter().map(|&pixel| normalization.apply(pixel)).collect();
        let image = Tensor::from_host(&self.queue, &inputs, [1, channels, height, width])?;
        let probabilities = F::softmax(&self.model.forward(&image)?, 1)?.to_host::<f32>()?;
        if probabilities.iter().any(|probability| !probability.is_finite()) {
            return Err(Error::setting("the network's answer is no number: its weights are too large"));
        }
        Ok(probabilities)
    }

    /// The pixels that stand for a picture from a file.
    ///
    /// # Errors
    /// If the model takes colours: pictures are read as grey.
    pub fn input_of(&self, picture: &Picture) -> Result<Vec<u8>> {
        let [channels, height, width] = self.description.architecture.input;
        if channels != 1 {
            return Err(Error::setting(format!(
                "the model takes images of {channels} channels, pictures are read as grey"
            )));
        }
        Ok(picture.to_input(height, width))
    }
}

//! A trained model, ready to be asked.

use std::path::Path;

use netcl_data::{Normalization, Picture};
use netcl_nn::autograd::{Queue, Tensor, no_grad};
use netcl_nn::{Module, functional as F};
use serde::{Deserialize, Serialize};

use crate::architecture::Architecture;
use crate::error::{Error, Result};
use crate::task::{Loaded, Task, load_model};

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
    pub fn load(path: impl AsRef<Path>, queue: &Queue) -> Result<Classifier> {
        let path = path.as_ref();
        let Loaded { task, model, .. } = load_model(path, queue)?;
        match task {
            Task::Images(description) => Ok(Classifier { model, queue: queue.clone(), description }),
            Task::Text(_) => {
                let what = "is a language model; `netcl generate` and `netcl evaluate` take it".to_owned();
                Err(Error::File { path: path.to_owned(), what })
            }
            Task::Table(_) => {
                let what = "is a model of tables; `netcl evaluate` takes it".to_owned();
                Err(Error::File { path: path.to_owned(), what })
            }
        }
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
        let expected = &self.description.architecture.input;
        if pixels.len() != expected.iter().product::<usize>() {
            return Err(Error::setting(format!(
                "the model takes images of shape {expected:?}, not {} pixels",
                pixels.len()
            )));
        }
        let _scope = no_grad();
        let normalization = self.description.normalization();
        let inputs: Vec<f32> = pixels.iter().map(|&pixel| normalization.apply(pixel)).collect();
        let image = Tensor::from_host(&self.queue, &inputs, [&[1], &expected[..]].concat())?;
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
        let &[1, height, width] = &self.description.architecture.input[..] else {
            return Err(Error::setting(format!(
                "the model takes images of {} channels, pictures are read as grey",
                self.description.architecture.input[0]
            )));
        };
        Ok(picture.to_input(height, width))
    }
}

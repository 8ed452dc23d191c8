//! Models in files.

use std::path::Path;

use netcl_nn::Module;
use netcl_nn::autograd::Tensor;
use serde_json::{Map, Value};

use crate::archive::Archive;
use crate::error::{Error, Result};
use crate::npy::Array;

/// Writes a model's parameters and buffers under their dotted names, with metadata that says how to build the model again.
pub fn save_model(path: &Path, model: &dyn Module, metadata: Map<String, Value>) -> Result<()> {
    let mut archive = Archive::new(metadata);
    insert_model(&mut archive, model)?;
    archive.write(path)
}

/// Copies the weights of a file into a model that is already built, and returns the file's metadata.
///
/// # Errors
/// As [`Archive::restore`], and if the file cannot be read.
pub fn load_weights(path: &Path, model: &mut dyn Module) -> Result<Map<String, Value>> {
    let archive = Archive::read(path)?;
    archive.restore(model)?;
    Ok(archive.metadata)
}

/// The tensors of a model that are saved.
fn tensors(model: &dyn Module) -> Vec<(String, Tensor)> {
    let mut tensors = model.named_parameters();
    tensors.extend(model.named_buffers());
    tensors
}

/// Adds a model's tensors to an archive.
pub(crate) fn insert_model(archive: &mut Archive, model: &dyn Module) -> Result<()> {
    for (name, tensor) in tensors(model) {
        archive.insert(name, Array::from_tensor(&tensor)?);
    }
    Ok(())
}

/// Arrays under these prefixes belong to an optimizer or a schedule, not to a model.
const OTHERS: [&str; 2] = ["optimizer/", "schedule/"];

impl Archive {
    /// Copies the arrays into the parameters and buffers of a model that is already built.
    ///
    /// # Errors
    /// Lists every array that is missing, unexpected or of another shape; the model has not changed then. Other dtypes are
    /// converted.
    pub fn restore(&self, model: &mut dyn Module) -> Result<()> {
        let wanted = tensors(model);
        let mut problems = Vec::new();
        for (name, tensor) in &wanted {
            match self.get(name) {
                None => problems.push(format!("{name:?} is missing")),
                Some(array) if array.shape[..] != tensor.shape()[..] => {
                    let (got, expected) = (&array.shape, &tensor.shape()[..]);
                    problems.push(format!("{name:?} has shape {got:?} instead of {expected:?}"));
                }
                Some(_) => {}
            }
        }
        let unexpected = self.names().filter(|name| !OTHERS.iter().any(|other| name.starts_with(other)));
        for name in unexpected.filter(|name| !wanted.iter().any(|(known, _)| known == name)) {
            problems.push(format!("{name:?} is unexpected"));
        }
        if !problems.is_empty() {
            return Err(Error::Weights { path: self.path().to_owned(), problems });
        }
        for (name, tensor) in &wanted {
            if let Some(array) = self.get(name) {
                let values = array.to_tensor(tensor.queue())?.raw().cast(tensor.dtype())?;
                tensor.assign(&values)?;
            }
        }
        Ok(())
    }
}

//! Models in files.

use std::collections::HashSet;
use std::path::Path;

use netcl_nn::autograd::manager;
use netcl_nn::{Misshapen, Module, StateDict, StateMismatch, Strict};
use serde_json::{Map, Value};

use crate::archive::Archive;
use crate::checkpoint::{parts, prefixed};
use crate::error::{Error, Result};
use crate::npy::Array;
use crate::reader::Reader;

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
    let numbers = model.state_dict().iter().map(|(_, tensor)| tensor.size()).sum();
    let archive = Reader::open(path)?.read_for(numbers)?;
    archive.restore(model)?;
    Ok(archive.metadata)
}

/// Adds a model's tensors to an archive.
pub(crate) fn insert_model(archive: &mut Archive, model: &dyn Module) -> Result<()> {
    for (name, tensor) in model.state_dict() {
        archive.insert(name, Array::from_tensor(&tensor)?);
    }
    Ok(())
}

/// As many arrays are named that a model does not know.
const MOST_UNKNOWN: usize = 20;

impl Archive {
    /// Copies the arrays into the parameters and buffers of a model that is already built.
    ///
    /// # Errors
    /// Lists every array that is missing, unexpected or of another shape; the model has not changed then. Other dtypes are
    /// converted.
    pub fn restore(&self, model: &mut dyn Module) -> Result<()> {
        let host = manager().cpu().queue;
        let expected: HashSet<String> = model.state_dict().iter().map(|(name, _)| name.to_string()).collect();
        let parts = parts(self);
        let arrays = self.arrays().filter(|(name, _)| !parts.iter().any(|part| prefixed(name, part).is_some()));
        // Some are enough to see what is wrong: a file may have any number of arrays that the model does not know.
        let mut unknown = 0;
        let arrays = arrays.filter(|(name, _)| {
            unknown += usize::from(!expected.contains(*name));
            expected.contains(*name) || unknown <= MOST_UNKNOWN
        });
        let state = arrays.map(|(name, array)| Ok((name.to_owned(), array.to_tensor(&host)?)));
        let state: StateDict = state.collect::<Result<_>>()?;
        let more = unknown.saturating_sub(MOST_UNKNOWN);
        model.load_state_dict(&state, Strict::Yes).map(drop).map_err(|error| self.misfit(error, more))
    }

    /// A mismatch of names and shapes, told of the file with `more` unexpected arrays; other errors as they are.
    fn misfit(&self, error: netcl_nn::autograd::Error, more: usize) -> Error {
        let netcl_nn::autograd::Error::Custom(custom) = &error else { return error.into() };
        let Some(mismatch) = custom.downcast_ref::<StateMismatch>() else { return error.into() };
        let shapes = mismatch.misshapen.iter().map(|Misshapen { name, expected, got }| {
            format!("{name:?} has shape {:?} instead of {:?}", &got[..], &expected[..])
        });
        let missing = mismatch.missing.iter().map(|name| format!("{name:?} is missing"));
        let unexpected = mismatch.unexpected.iter().map(|name| format!("{name:?} is unexpected"));
        let more = (more > 0).then(|| format!("{more} more are unexpected"));
        let problems = shapes.chain(missing).chain(unexpected).chain(more).collect();
        Error::Weights { path: self.path().to_owned(), problems }
    }
}

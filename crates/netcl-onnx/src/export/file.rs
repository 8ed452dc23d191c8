//! The file, and large weights beside it.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::proto;

/// Weights begin at multiples of this, so that they can be mapped.
const ALIGN: usize = 4096;
/// Smaller tensors stay in the model: shapes and settings, which readers want at hand.
const LEAST_OUTSIDE: usize = 1024;

/// Writes a model; with `external` its weights go to a file of the same name and `.data`.
pub(super) fn write(path: &Path, model: &mut proto::Model, external: bool) -> Result<()> {
    if external {
        let data = data_path(path);
        let failed = |reason| Error::Write { path: data.clone(), reason };
        let name = data.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut out = BufWriter::new(std::fs::File::create(&data).map_err(failed)?);
        let mut at = 0;
        for tensor in model.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
            if tensor.raw_data.0.len() < LEAST_OUTSIDE {
                continue;
            }
            let start = usize::next_multiple_of(at, ALIGN);
            let bytes = std::mem::take(&mut tensor.raw_data.0);
            out.write_all(&vec![0; start - at]).and_then(|()| out.write_all(&bytes)).map_err(failed)?;
            at = start + bytes.len();
            let entry = |key: &str, value: String| proto::Entry { key: key.to_owned(), value };
            tensor.data_location = 1;
            tensor.external_data = vec![
                entry("location", name.clone()),
                entry("offset", start.to_string()),
                entry("length", bytes.len().to_string()),
            ];
        }
        out.flush().map_err(failed)?;
    }
    std::fs::write(path, model.to_bytes()).map_err(|reason| Error::Write { path: path.to_owned(), reason })
}

fn data_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".data");
    name.into()
}

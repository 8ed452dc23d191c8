//! Writes named tensors as any kind of file, one tensor in memory at a time.

use std::io::Write;
use std::path::{Path, PathBuf};

use netcl_nn::autograd::DType;

use crate::atomic::{Failure, Pending};
use crate::error::{Error, Result};
use crate::tensor_file::Kind;
use crate::tensors::{Info, Tensors};
use crate::{archive, safetensors, shards, torch};

/// How [`write()`] writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// The kind of file.
    pub kind: Kind,
    /// The bytes of the largest shard, for [`Kind::SafeTensorsIndex`]; a tensor that is larger has a shard of its own.
    pub max_shard_size: u64,
}

impl WriteOptions {
    /// A file of a kind, in shards of at most 5 GB.
    pub fn new(kind: Kind) -> WriteOptions {
        WriteOptions { kind, max_shard_size: shards::MAX_SHARD_SIZE }
    }
}

/// Writes a file, as a whole or not at all, and gives the paths of what was written: one file, or shards and their index. Missing
/// folders are made.
///
/// Metadata is kept by `.netcl`, by safetensors and, if there is any, by `.npz`; a PyTorch file has none.
///
/// ```
/// use netcl_io::{Archive, Array, Kind, WriteOptions, write};
///
/// let folder = std::env::temp_dir().join(format!("netcl-write-{}", std::process::id()));
/// let path = folder.join("model.safetensors");
/// let mut archive = Archive::default();
/// archive.insert("rate", Array::scalar(0.1));
/// write(&path, &archive, &WriteOptions::new(Kind::SafeTensors))?;
/// assert_eq!(Archive::read(&path)?.get("rate"), Some(&Array::scalar(0.1)));
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), netcl_io::Error>(())
/// ```
///
/// # Errors
/// If a file cannot be written, or a tensor cannot be read.
pub fn write(path: impl AsRef<Path>, tensors: &dyn Tensors, options: &WriteOptions) -> Result<Vec<PathBuf>> {
    let path = path.as_ref();
    let all: Vec<usize> = (0..tensors.infos().len()).collect();
    let pending = match options.kind {
        Kind::SafeTensorsIndex => return shards::write(path, tensors, options.max_shard_size),
        Kind::SafeTensors => Pending::write(path, |out| safetensors::write(out, tensors, &all))?,
        Kind::Netcl | Kind::Npz => Pending::write(path, |out| archive::pack(out, tensors, options.kind))?,
        Kind::Torch => Pending::write(path, |out| torch::write(out, tensors))?,
    };
    Ok(vec![pending.commit()?])
}

impl Info {
    /// The dtype, or that there is none.
    pub(crate) fn readable(&self, path: &Path) -> Result<DType> {
        self.dtype().ok_or_else(|| {
            let (name, element) = (&self.name, self.element.name());
            let what =
                format!("its tensor {name:?} has elements of type {element}, whose values no dtype of netcl holds");
            Error::Malformed { path: path.to_owned(), what }
        })
    }
}

/// Writes the elements of a tensor whose dtype and shape were promised before.
pub(crate) fn put(out: &mut impl Write, tensors: &dyn Tensors, index: usize, dtype: DType) -> Result<(), Failure> {
    let (array, info) = (tensors.read(index)?, &tensors.infos()[index]);
    if array.dtype != dtype || array.shape != info.shape {
        let what = format!("the tensor {:?} is not what its directory says", info.name);
        return Err(std::io::Error::other(what).into());
    }
    Ok(out.write_all(&array.bytes)?)
}

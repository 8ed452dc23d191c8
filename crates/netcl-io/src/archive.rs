//! `.netcl` files: named arrays and metadata in an NPZ archive.

use std::collections::HashMap;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use netcl_nn::autograd::DType;
use serde_json::{Map, Value, json};

use crate::array::Array;
use crate::atomic::Failure;
use crate::element::Element;
use crate::error::Result;
use crate::members::Members;
use crate::npy::{header, text_to_npy};
use crate::tensor_file::{Kind, open};
use crate::tensors::{Info, Tensors};
use crate::writer::{WriteOptions, put, write};

/// The entry that holds JSON instead of numbers.
pub const METADATA: &str = "__netcl_meta__";
/// The first of what the metadata says: that this is one of our files.
pub const FORMAT: &str = "netcl.single-file";
/// The version of the format that is written; 2 is that of the Python package netcl 0.4, which is read as well.
pub const VERSION: u64 = 3;

/// What follows the name of an array.
pub(crate) const NPY: &str = ".npy";

/// Named arrays and metadata in memory, or in a mapped file that they were read from: the content of a file of tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Archive {
    /// Where it was read; empty for one that was made.
    pub(crate) path: PathBuf,
    infos: Vec<Info>,
    arrays: Vec<Array>,
    /// Where the array of a name stands.
    places: HashMap<String, usize>,
    /// What the file says of itself, apart from the format's own entries.
    pub metadata: Map<String, Value>,
}

impl Archive {
    /// An archive without arrays.
    pub fn new(metadata: Map<String, Value>) -> Archive {
        Archive { metadata, ..Archive::default() }
    }

    /// Adds an array, or replaces that of the same name.
    pub fn insert(&mut self, name: impl Into<String>, array: Array) {
        let name = name.into();
        // Truth values of a tensor are bytes of 0 and 1; they are written as truth values, other bytes as numbers.
        let is_truth = array.dtype == DType::U8 && array.bytes.iter().all(|&byte| byte < 2);
        let element = if is_truth { Element::Bool } else { Element::Same(array.dtype) };
        let info = Info { name: name.clone(), element, shape: array.shape.clone() };
        match self.places.get(&name) {
            Some(&place) => (self.infos[place], self.arrays[place]) = (info, array),
            None => {
                self.places.insert(name, self.arrays.len());
                self.infos.push(info);
                self.arrays.push(array);
            }
        }
    }

    /// The names of the arrays, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.infos.iter().map(|info| info.name.as_str())
    }

    /// The arrays with their names, in the order of the file.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &Array)> {
        self.names().zip(&self.arrays)
    }

    /// The array of a name.
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.places.get(name).map(|&place| &self.arrays[place])
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a `.netcl` file, as a whole or not at all; [`write()`] writes other kinds.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        write(path, self, &WriteOptions::new(Kind::Netcl)).map(drop)
    }

    /// Reads a file of any [`Kind`].
    ///
    /// # Errors
    /// As [`open`], and if an array of it is damaged or of a type that no dtype holds.
    pub fn read(path: impl AsRef<Path>) -> Result<Archive> {
        let path = path.as_ref();
        open(path)?.read_all()
    }
}

impl Tensors for Archive {
    fn path(&self) -> &Path {
        &self.path
    }

    fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    fn infos(&self) -> &[Info] {
        &self.infos
    }

    fn read(&self, index: usize) -> Result<Array> {
        Ok(self.arrays[index].clone())
    }
}

/// What the metadata call the elements that are written.
fn name_of(info: &Info, dtype: DType) -> &'static str {
    if dtype == DType::U8 { info.element.name() } else { dtype.name() }
}

/// Writes an NPZ archive. A plain one has metadata only if there is something to say: that of the tensors, or that some 16-bit
/// numbers are bfloat16.
pub(crate) fn pack<W: Write + Seek>(out: &mut W, tensors: &dyn Tensors, kind: Kind) -> Result<(), Failure> {
    let infos = tensors.infos().iter().map(|info| Ok((info, info.readable(tensors.path())?)));
    let infos = infos.collect::<Result<Vec<(&Info, DType)>>>()?;
    let mut zip = Members::new(out);
    for (index, &(info, dtype)) in infos.iter().enumerate() {
        let header = header(dtype, info.element == Element::Bool, &info.shape);
        zip.start(&format!("{}{NPY}", info.name), header.len() + info.count() * dtype.size())?;
        zip.write_all(&header)?;
        put(&mut zip, tensors, index, dtype)?;
    }
    let is_telling = !tensors.metadata().is_empty() || infos.iter().any(|&(_, dtype)| dtype == DType::BF16);
    if kind == Kind::Netcl || is_telling {
        let dtypes: Map<String, Value> =
            infos.iter().map(|&(info, dtype)| (info.name.clone(), name_of(info, dtype).into())).collect();
        let mut metadata = tensors.metadata().clone();
        for (key, value) in [
            ("format", FORMAT.into()),
            ("version", VERSION.into()),
            ("netcl", env!("CARGO_PKG_VERSION").into()),
            ("dtypes", json!(dtypes)),
        ] {
            metadata.insert(key.to_owned(), value);
        }
        let text = text_to_npy(&Value::from(metadata).to_string());
        zip.start(&format!("{METADATA}{NPY}"), text.len())?;
        zip.write_all(&text)?;
    }
    Ok(zip.finish()?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::*;

    fn example() -> Archive {
        let metadata = Map::from_iter([("kind".to_owned(), "test".into())]);
        let mut archive = Archive::new(metadata);
        let array = |dtype, bytes: &[u8]| Array {
            dtype,
            shape: vec![bytes.len() / DType::size(dtype)],
            bytes: bytes.to_vec().into(),
        };
        archive.insert("z.weight", array(DType::F32, &[0, 0, 128, 63, 0, 0, 0, 64]));
        archive.insert("a", array(DType::BF16, &[128, 63]));
        archive
    }

    #[test]
    fn archives_come_back_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new folder/a.netcl");
        example().write(&path).unwrap();
        let back = Archive::read(&path).unwrap();
        assert_eq!(back.path(), path);
        assert_eq!(back.names().collect::<Vec<_>>(), ["z.weight", "a"]);
        assert_eq!((&back.arrays, &back.metadata), (&example().arrays, &example().metadata));
        let bytes = std::fs::read(&path).unwrap();
        example().write(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "the same archive is the same file");
    }

    #[test]
    fn files_of_the_published_package_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.netcl");
        let array = Array { dtype: DType::F32, shape: vec![1], bytes: vec![0; 4].into() };
        let meta = r#"{"type": "Sequential", "config": [], "version": 2, "format": "netcl.single-file"}"#;
        pack(&path, &[("0:weight.npy", array.to_npy()), ("__netcl_meta__.npy", text_to_npy(meta))]);
        let archive = Archive::read(&path).unwrap();
        assert_eq!(archive.get("0.weight"), Some(&array));
        assert_eq!(archive.metadata["type"], "Sequential");
    }

    fn pack(path: &Path, entries: &[(&str, Vec<u8>)]) {
        let mut zip = ZipWriter::new(File::create(path).unwrap());
        for (name, content) in entries {
            zip.start_file(*name, SimpleFileOptions::default().compression_method(CompressionMethod::Deflated))
                .unwrap();
            zip.write_all(content).unwrap();
        }
        zip.finish().unwrap();
    }

    #[test]
    fn every_kind_of_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.netcl");
        let text = || Archive::read(&path).unwrap_err().to_string();
        assert!(text().contains("cannot be read"), "{}", text());
        std::fs::write(&path, b"hello").unwrap();
        assert!(text().contains("cannot be used: it is of no known kind"), "{}", text());
        example().write(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(text().contains("it is no NPZ archive or PyTorch file (it has no directory at its end)"), "{}", text());
        let mut flipped = whole.clone();
        // Inside the first array's elements: only the checksum can notice.
        let at = whole.windows(4).position(|window| window == [0, 0, 128, 63]).unwrap();
        flipped[at] ^= 1;
        std::fs::write(&path, flipped).unwrap();
        assert!(text().contains("\"z.weight\" cannot be read: its checksum is wrong"), "{}", text());

        let meta = |json: &str| ("__netcl_meta__.npy", text_to_npy(json));
        let cases = [
            (vec![("a.txt", vec![])], "entry \"a.txt\" is no array"),
            (vec![("__netcl_meta__.npy", Array::scalar(1.0).to_npy())], "metadata is no text"),
            (vec![meta("[")], "no JSON"),
            (vec![meta("[]")], "no object"),
            (vec![meta(r#"{"version": 99}"#)], "version 99"),
            (vec![meta("{}"), ("w.npy", b"junk".to_vec())], "array \"w\" cannot be used: it does not start"),
        ];
        for (entries, expected) in cases {
            pack(&path, &entries);
            assert!(text().contains(expected), "{} for {expected}", text());
        }
    }
}

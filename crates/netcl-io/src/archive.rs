//! `.netcl` files: named arrays and metadata in an NPZ archive.

use std::collections::HashMap;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::atomic::write_atomically;
use crate::error::Result;
use crate::npy::{Array, text_to_npy};
use crate::reader::Reader;

/// The entry that holds JSON instead of numbers.
pub const METADATA: &str = "__netcl_meta__";
/// The first of what the metadata says: that this is one of our files.
pub const FORMAT: &str = "netcl.single-file";
/// The version of the format that is written; 2 is that of the Python package netcl 0.4, which is read as well.
pub const VERSION: u64 = 3;

/// What follows the name of an array.
pub(crate) const NPY: &str = ".npy";

/// The content of a `.netcl` file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Archive {
    /// Where it was read; empty for one that was made.
    pub(crate) path: PathBuf,
    arrays: Vec<(String, Array)>,
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
        match self.places.get(&name) {
            Some(&place) => self.arrays[place].1 = array,
            None => {
                self.places.insert(name.clone(), self.arrays.len());
                self.arrays.push((name, array));
            }
        }
    }

    /// The names of the arrays, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.iter().map(|(name, _)| name.as_str())
    }

    /// The arrays with their names, in the order of the file.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &Array)> {
        self.arrays.iter().map(|(name, array)| (name.as_str(), array))
    }

    /// The array of a name.
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.places.get(name).map(|&place| &self.arrays[place].1)
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file, as a whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_atomically(path, |out| {
            let mut out = FirstError { out, position: 0, end: 0, error: None };
            let packed = self.pack(&mut out);
            out.error.map_or(packed.map_err(std::io::Error::from), Err)
        })
    }

    fn pack<W: Write + Seek>(&self, out: &mut FirstError<W>) -> zip::result::ZipResult<()> {
        let mut zip = ZipWriter::new(out);
        let mut put = |name: &str, content: &[u8]| {
            // Not compressed, as np.savez does: trained weights are noise to a compressor. Without a time in it, so that
            // equal weights are equal files.
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .large_file(u32::try_from(content.len()).is_err());
            zip.start_file(format!("{name}{NPY}"), options)?;
            zip.write_all(content).map_err(zip::result::ZipError::from)
        };
        for (name, array) in &self.arrays {
            put(name, &array.to_npy())?;
        }
        put(METADATA, &text_to_npy(&Value::from(self.full_metadata()).to_string()))?;
        zip.finish()?;
        Ok(())
    }

    /// The metadata with the entries of the format.
    fn full_metadata(&self) -> Map<String, Value> {
        let dtypes: Map<String, Value> =
            self.arrays().map(|(name, array)| (name.to_owned(), array.dtype.name().into())).collect();
        let mut metadata = self.metadata.clone();
        for (key, value) in [
            ("format", FORMAT.into()),
            ("version", VERSION.into()),
            ("netcl", env!("CARGO_PKG_VERSION").into()),
            ("dtypes", json!(dtypes)),
        ] {
            metadata.insert(key.to_owned(), value);
        }
        metadata
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`Reader::open`], and if an array of it is damaged.
    pub fn read(path: &Path) -> Result<Archive> {
        Reader::open(path)?.read()
    }
}

/// Keeps the first error of a writer to itself and swallows all that follows: a `ZipWriter` that meets an error prints it to
/// standard error when it is dropped.
struct FirstError<W> {
    out: W,
    position: u64,
    end: u64,
    error: Option<std::io::Error>,
}

impl<W> FirstError<W> {
    /// The answer to the zip writer: that of the writer below, or the one that a writer without errors would give.
    fn answer<T>(&mut self, act: impl FnOnce(&mut W) -> std::io::Result<T>, otherwise: T) -> std::io::Result<T> {
        if self.error.is_some() {
            return Ok(otherwise);
        }
        match act(&mut self.out) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                self.error = Some(error);
                Ok(otherwise)
            }
            done => done,
        }
    }
}

impl<W: Write> Write for FirstError<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.answer(|out| out.write(bytes), bytes.len())?;
        self.position += written as u64;
        self.end = self.end.max(self.position);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.answer(W::flush, ())
    }
}

impl<W: Seek> Seek for FirstError<W> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
        };
        let place = place.ok_or(std::io::ErrorKind::InvalidInput)?;
        self.position = self.answer(|out| out.seek(SeekFrom::Start(place)), place)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use netcl_nn::autograd::DType;

    use super::*;

    fn example() -> Archive {
        let metadata = Map::from_iter([("kind".to_owned(), "test".into())]);
        let mut archive = Archive::new(metadata);
        let array =
            |dtype, bytes: &[u8]| Array { dtype, shape: vec![bytes.len() / DType::size(dtype)], bytes: bytes.to_vec() };
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
        let array = Array { dtype: DType::F32, shape: vec![1], bytes: vec![0; 4] };
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
        assert!(text().contains("is no netcl file: it is no NPZ archive"), "{}", text());
        example().write(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(text().contains("it is no NPZ archive"), "{}", text());
        let mut flipped = whole.clone();
        // Inside the first array's elements: only the checksum can notice.
        let at = whole.windows(4).position(|window| window == [0, 0, 128, 63]).unwrap();
        flipped[at] ^= 1;
        std::fs::write(&path, flipped).unwrap();
        assert!(text().contains("\"z.weight\" is damaged"), "{}", text());

        let meta = |json: &str| ("__netcl_meta__.npy", text_to_npy(json));
        let cases = [
            (vec![("a.npy", Array::scalar(1.0).to_npy())], "no entry \"__netcl_meta__\""),
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

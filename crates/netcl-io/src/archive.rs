//! `.netcl` files: named arrays and metadata in an NPZ archive.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use netcl_nn::autograd::core::dtype::DType;
use serde_json::{Map, Value, json};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::atomic::write_atomically;
use crate::error::{Error, Result};
use crate::npy::{Array, Content, parse, text_to_npy};

/// The entry that holds JSON instead of numbers.
pub const METADATA: &str = "__netcl_meta__";
/// The first of what the metadata says: that this is one of our files.
pub const FORMAT: &str = "netcl.single-file";
/// The version of the format that is written; 2 is that of the Python package netcl 0.4, which is read as well.
pub const VERSION: u64 = 3;

const NPY: &str = ".npy";

/// The content of a `.netcl` file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Archive {
    /// Where it was read; empty for one that was made.
    path: PathBuf,
    arrays: Vec<(String, Array)>,
    /// What the file says of itself, apart from the format's own entries.
    pub metadata: Map<String, Value>,
}

impl Archive {
    /// An archive without arrays.
    pub fn new(metadata: Map<String, Value>) -> Archive {
        Archive { path: PathBuf::new(), arrays: Vec::new(), metadata }
    }

    /// Adds an array, or replaces that of the same name.
    pub fn insert(&mut self, name: impl Into<String>, array: Array) {
        let name = name.into();
        match self.arrays.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = array,
            None => self.arrays.push((name, array)),
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
        self.arrays().find(|(known, _)| *known == name).map(|(_, array)| array)
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file, as a whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_atomically(path, |out| self.pack(out).map_err(std::io::Error::from))
    }

    fn pack(&self, out: impl Write + Seek) -> zip::result::ZipResult<()> {
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
    /// If it cannot be read, is no NPZ archive, has no metadata, is of a newer format, or an array of it is damaged.
    pub fn read(path: &Path) -> Result<Archive> {
        let malformed = |what: String| Error::Malformed { path: path.to_owned(), what };
        let file = File::open(path).map_err(|reason| Error::Read { path: path.to_owned(), reason })?;
        let mut zip = ZipArchive::new(file).map_err(|error| malformed(format!("it is no NPZ archive ({error})")))?;
        let mut contents: Vec<(String, Vec<u8>)> = Vec::with_capacity(zip.len());
        for index in 0..zip.len() {
            let mut entry =
                zip.by_index(index).map_err(|error| malformed(format!("its entry {index} is damaged ({error})")))?;
            let name = entry.name().map(Cow::into_owned);
            let name = name.map_err(|error| malformed(format!("its entry {index} is damaged ({error})")))?;
            let Some(name) = name.strip_suffix(NPY) else {
                return Err(malformed(format!("its entry {name:?} is no array")));
            };
            let mut content = Vec::new();
            entry
                .read_to_end(&mut content)
                .map_err(|error| malformed(format!("its entry {name:?} is damaged ({error})")))?;
            contents.push((name.to_owned(), content));
        }
        let metadata = contents.iter().find(|(name, _)| name == METADATA).map(|(_, content)| content);
        let metadata = metadata.ok_or_else(|| malformed(format!("it has no entry {METADATA:?}")))?;
        let mut metadata = read_metadata(metadata).map_err(malformed)?;
        let dtypes = take_dtypes(&mut metadata);
        let mut archive = Archive { path: path.to_owned(), arrays: Vec::new(), metadata };
        for (name, content) in contents.into_iter().filter(|(name, _)| name != METADATA) {
            let content = parse(&content, dtypes.get(&name).copied())
                .map_err(|what| malformed(format!("its array {name:?} cannot be used: {what}")))?;
            if let Content::Array(array) = content {
                // netcl 0.4 writes "0:weight" for what is called "0.weight" here.
                archive.insert(name.replace(':', "."), array);
            }
        }
        Ok(archive)
    }
}

fn read_metadata(content: &[u8]) -> Result<Map<String, Value>, String> {
    let Content::Text(text) = parse(content, None).map_err(|what| format!("its metadata cannot be read: {what}"))?
    else {
        return Err("its metadata is no text".to_owned());
    };
    let mut metadata = match serde_json::from_str(&text) {
        Ok(Value::Object(metadata)) => metadata,
        Ok(_) => return Err("its metadata is JSON, but no object".to_owned()),
        Err(error) => return Err(format!("its metadata is no JSON ({error})")),
    };
    for key in ["format", "netcl"] {
        metadata.remove(key);
    }
    match metadata.remove("version").as_ref().and_then(Value::as_u64) {
        Some(version) if version > VERSION => Err(format!(
            "it has version {version} of the format, this program reads versions up to {VERSION}; use a newer netcl"
        )),
        _ => Ok(metadata),
    }
}

/// The dtypes by array; those of unknown names are left to the arrays themselves.
fn take_dtypes(metadata: &mut Map<String, Value>) -> BTreeMap<String, DType> {
    let Some(Value::Object(dtypes)) = metadata.remove("dtypes") else { return BTreeMap::new() };
    dtypes.iter().filter_map(|(name, dtype)| Some((name.clone(), DType::parse(dtype.as_str()?).ok()?))).collect()
}

#[cfg(test)]
mod tests {
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

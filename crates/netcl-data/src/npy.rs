//! `.npy` and `.npz`: NumPy's files, mapped into memory.
//!
//! An array is not read when its file is opened: rows are copied out of the mapped file when they are asked for. Members of an
//! `.npz` that `numpy.savez_compressed` wrote are unpacked into memory instead.

use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use zip::{CompressionMethod, ZipArchive};

use crate::array::{Array, DType, count};
use crate::dataset::{Dataset, Rows, TensorDataset};
use crate::error::{Error, Result};
use crate::file;
use crate::idx::largest_unpacked;
use crate::sample::Sample;

/// An array in a file, mapped into memory; as a data set its samples are its rows.
///
/// ```
/// use netcl_data::{Dataset, NpyArray, Sample};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("x.npy");
/// # let header = format!("{:117}\n", "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }");
/// # let data = [7i64, 8, 9].map(i64::to_le_bytes).concat();
/// # std::fs::write(&path, [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &data].concat()).unwrap();
///
/// // numpy.save("x.npy", numpy.array([7, 8, 9]))
/// let array = NpyArray::open(&path)?;
/// assert_eq!((array.len(), array.get(2)?), (3, Sample::from(9i64)));
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone)]
pub struct NpyArray {
    /// A mapped file or unpacked memory.
    content: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// Where the elements start.
    start: usize,
    dtype: DType,
    shape: Vec<usize>,
}

impl std::fmt::Debug for NpyArray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NpyArray({:?}, {:?})", self.dtype, self.shape)
    }
}

impl NpyArray {
    /// Maps a `.npy` file.
    ///
    /// # Errors
    /// If it cannot be read, is no such file, or holds what arrays cannot: objects, text, complex numbers, the other order of
    /// bytes, Fortran's order of axes.
    pub fn open(path: impl AsRef<Path>) -> Result<NpyArray> {
        let path = path.as_ref();
        let content = file::map(path)?;
        let length = content.len();
        NpyArray::parse(Arc::new(content), 0, length).map_err(|what| malformed(path, ".npy file", what))
    }

    /// The array whose file lies at these bytes of `content`.
    fn parse(content: Arc<dyn AsRef<[u8]> + Send + Sync>, from: usize, to: usize) -> Result<NpyArray, String> {
        let bytes = (*content).as_ref().get(from..to).ok_or("it ends before its data")?;
        let header = Header::parse(bytes)?;
        let expected = count(&header.shape).and_then(|count| count.checked_mul(header.dtype.size()));
        let found = bytes.len() - header.length;
        if expected != Some(found) {
            let (dtype, shape) = (header.dtype, header.shape);
            return Err(format!("its header announces {dtype:?} elements of shape {shape:?}, {found} bytes follow"));
        }
        let (start, dtype, shape) = (from + header.length, header.dtype, header.shape);
        Ok(NpyArray { content, start, dtype, shape })
    }

    /// The length of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// All of it, copied into memory.
    ///
    /// # Errors
    /// Never for an array that was opened.
    pub fn read(&self) -> Result<Array> {
        Array::from_bytes(self.dtype, &self.shape, &(*self.content).as_ref()[self.start..][..self.bytes(&self.shape)])
    }

    fn bytes(&self, shape: &[usize]) -> usize {
        shape.iter().product::<usize>() * self.dtype.size()
    }
}

impl Rows for NpyArray {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn row(&self, index: usize) -> Result<Array> {
        let Some((&rows, shape)) = self.shape.split_first() else {
            return crate::error::argument("NpyArray: a single number has no rows");
        };
        if index >= rows {
            return Err(Error::Index { index, len: rows });
        }
        let size = self.bytes(shape);
        Array::from_bytes(self.dtype, shape, &(*self.content).as_ref()[self.start + index * size..][..size])
    }
}

impl Dataset for NpyArray {
    type Item = Sample;

    fn len(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    fn get(&self, index: usize) -> Result<Sample> {
        self.row(index).map(Sample::Array)
    }
}

/// An `.npz` file: arrays by name.
///
/// ```no_run
/// use netcl_data::{Dataset, NpzFile};
///
/// let set = NpzFile::open("train.npz")?.dataset()?; // numpy.savez("train.npz", image=images, label=labels)
/// let image = set.get(0)?.field("image").cloned();
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NpzFile {
    arrays: Vec<(String, NpyArray)>,
}

impl NpzFile {
    /// Opens all arrays of a file.
    ///
    /// # Errors
    /// As [`NpyArray::open`]; the message names the member.
    pub fn open(path: impl AsRef<Path>) -> Result<NpzFile> {
        let path = path.as_ref();
        let content = Arc::new(file::map(path)?);
        NpzFile::members(&content).map(|arrays| NpzFile { arrays }).map_err(|what| malformed(path, ".npz file", what))
    }

    fn members(content: &Arc<Mmap>) -> Result<Vec<(String, NpyArray)>, String> {
        let mut archive = ZipArchive::new(Cursor::new(&content[..])).map_err(|error| error.to_string())?;
        let mut arrays = Vec::with_capacity(archive.len().min(1024));
        // All members together: an archive can have many that unpack from the same few bytes.
        let (largest, mut unpacked_size) = (largest_unpacked(content.len() as u64), 0u64);
        for index in 0..archive.len() {
            let mut member = archive.by_index(index).map_err(|error| error.to_string())?;
            let name = member.name().map_err(|error| error.to_string())?.trim_end_matches(".npy").to_owned();
            let wrong = |what: String| format!("its array {name:?}: {what}");
            let size = member.size();
            let array = if member.compression() == CompressionMethod::Stored {
                let from = member.data_start().and_then(|start| usize::try_from(start).ok());
                let to = from.and_then(|from| from.checked_add(usize::try_from(size).ok()?));
                let (Some(from), Some(to)) = (from, to) else { return Err(wrong("it has no place".to_owned())) };
                NpyArray::parse(content.clone(), from, to)
            } else if unpacked_size.saturating_add(size) > largest {
                Err(format!(
                    "the arrays up to it unpack to more than {largest} bytes, many times the file; save it with numpy.savez, \
                     which does not pack"
                ))
            } else {
                unpacked_size += size;
                let mut unpacked = Vec::new();
                let mut content = Read::by_ref(&mut member).take(size);
                content.read_to_end(&mut unpacked).map_err(|error| wrong(error.to_string()))?;
                let length = unpacked.len();
                NpyArray::parse(Arc::new(unpacked), 0, length)
            };
            let array = array.map_err(wrong)?;
            arrays.push((name, array));
        }
        Ok(arrays)
    }

    /// The arrays with their names.
    pub fn arrays(&self) -> &[(String, NpyArray)] {
        &self.arrays
    }

    /// The array of a name.
    pub fn array(&self, name: &str) -> Option<&NpyArray> {
        self.arrays.iter().find(|(array, _)| array == name).map(|(_, array)| array)
    }

    /// Samples with one field for each array: the row of the sample's number.
    ///
    /// # Errors
    /// If the arrays' first axes differ.
    pub fn dataset(self) -> Result<TensorDataset<NpyArray>> {
        TensorDataset::named(self.arrays)
    }
}

fn malformed(path: &Path, expected: &'static str, what: String) -> Error {
    Error::Malformed { path: path.to_owned(), expected, what }
}

/// What the header of a `.npy` file says.
#[derive(Debug, PartialEq)]
struct Header {
    dtype: DType,
    shape: Vec<usize>,
    /// Where the elements start.
    length: usize,
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Header, String> {
        let short = "it ends within its header";
        let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or("it does not start with \\x93NUMPY")?;
        // Version 1 has a length of 2 bytes, versions 2 and 3 of 4.
        let (size, text) = match rest {
            [1, _, a, b, ..] => (2, usize::from(u16::from_le_bytes([*a, *b]))),
            [2 | 3, _, a, b, c, d, ..] => (4, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
            [version, ..] => return Err(format!("its version {version} is not known; 1 to 3 are read")),
            [] => return Err(short.to_owned()),
        };
        let start: usize = 8 + size;
        let text = bytes.get(start..start.saturating_add(text)).ok_or(short)?;
        let length = start + text.len();
        let text = std::str::from_utf8(text).map_err(|_| "its header is no text")?;
        let value = |key: &str| -> Result<&str, String> {
            let after = text.split_once(&format!("'{key}':")).map(|(_, after)| after.trim_start());
            after.ok_or_else(|| format!("its header has no {key:?}: {:.200}", text.trim_end()))
        };
        let name = value("descr")?.strip_prefix('\'').and_then(|name| name.split_once('\'')).map(|(name, _)| name);
        let Some(dtype) = name.and_then(DType::from_numpy) else {
            return Err(format!(
                "its elements are {:.40}; only booleans, whole numbers and floats of 16 to 64 bits in the order of this \
                 machine are read: convert it with array.astype",
                name.unwrap_or("records")
            ));
        };
        let inner = value("shape")?.strip_prefix('(').and_then(|shape| shape.split_once(')'));
        let lengths = inner.map(|(inner, _)| inner.split(',').map(str::trim).filter(|part| !part.is_empty()));
        let shape: Option<Vec<usize>> = lengths.and_then(|parts| parts.map(|part| part.parse().ok()).collect());
        let shape = shape.ok_or_else(|| format!("its shape cannot be read: {:.200}", text.trim_end()))?;
        if value("fortran_order")?.starts_with("True") && shape.len() > 1 {
            return Err("it has Fortran's order of axes; save it with numpy.ascontiguousarray".to_owned());
        }
        Ok(Header { dtype, shape, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use zip::write::SimpleFileOptions;

    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let header = format!("{header}\n");
        let length = (header.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
    }

    fn open(content: &[u8]) -> Result<NpyArray, String> {
        NpyArray::parse(Arc::new(content.to_vec()), 0, content.len())
    }

    const PAIR: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }";

    #[test]
    fn rows_come_from_the_file() {
        let data = [1.5f32, -2.0].map(f32::to_le_bytes).concat();
        let array = open(&npy(PAIR, &data)).unwrap();
        assert_eq!((array.dtype(), array.shape(), array.len()), (DType::F32, &[2, 1][..], 2));
        assert_eq!(array.row(1).unwrap(), Array::line(vec![-2f32]));
        assert_eq!(array.read().unwrap(), Array::new(vec![1.5f32, -2.0], &[2, 1]).unwrap());
        assert!(array.row(2).is_err());
        let scalar = open(&npy("{'descr': '|u1', 'fortran_order': False, 'shape': (), }", &[7])).unwrap();
        assert_eq!((scalar.read().unwrap(), scalar.len()), (Array::scalar(7u8), 0));
        assert!(scalar.row(0).is_err());
        let empty = open(&npy("{'descr': '<f8', 'fortran_order': True, 'shape': (0,), }", &[])).unwrap();
        assert!(empty.is_empty() && empty.read().unwrap().is_empty());
    }

    #[test]
    fn every_kind_of_damage_is_named() {
        let header = |descr: &str, order: &str, shape: &str| {
            npy(&format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"), &[0; 8])
        };
        let cases = [
            (b"".to_vec(), "does not start with"),
            (b"\x93NUMPY".to_vec(), "ends within its header"),
            (b"\x93NUMPY\x09\x00\x00\x00".to_vec(), "version 9"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), "ends within its header"),
            (header("'>f4'", "False", "(2,)"), "its elements are >f4"),
            (header("'|O'", "False", "(2,)"), "its elements are |O"),
            (header("[('a', '<f4')]", "False", "(2,)"), "its elements are records"),
            (header("'<f4'", "True", "(2, 1)"), "numpy.ascontiguousarray"),
            (header("'<f4'", "False", "(3,)"), "F32 elements of shape [3], 8 bytes follow"),
            (header("'<f4'", "False", "(4294967296, 4294967296)"), "8 bytes follow"),
            (header("'<f4'", "False", "(-1,)"), "shape cannot be read"),
            (npy("{'descr': '<f4'}", &[]), "no \"shape\""),
        ];
        for (content, expected) in cases {
            let text = open(&content).unwrap_err();
            assert!(text.contains(expected), "{text:?} should contain {expected:?}");
        }
    }

    #[test]
    fn files_of_arrays_are_data_sets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let labels = npy(
            "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }",
            &[[3u8, 0, 0, 0, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0, 0, 0]].concat(),
        );
        let write = |zeros: &str, data: &[u8]| {
            let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
            let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
            archive.start_file("y.npy", stored).unwrap();
            archive.write_all(&labels).unwrap();
            archive.start_file("x.npy", SimpleFileOptions::default()).unwrap();
            archive.write_all(&npy(zeros, data)).unwrap();
            archive.finish().unwrap();
        };
        write(PAIR, &[0; 8]);
        let file = NpzFile::open(&path).unwrap();
        assert_eq!(file.array("x").unwrap().shape(), [2, 1]);
        assert_eq!(file.arrays().len(), 2);
        let sample = file.dataset().unwrap().get(1).unwrap();
        assert_eq!(sample.field("y"), Some(&Sample::from(4i64)));
        assert_eq!(sample.field("x"), Some(&Array::line(vec![0f32]).into()));

        write("{'descr': '|u1', 'fortran_order': False, 'shape': (5000000,), }", &[0; 5_000_000]);
        assert!(NpzFile::open(&path).unwrap().dataset().unwrap_err().to_string().contains("first axes"));
        write("{'descr': '|u1', 'fortran_order': False, 'shape': (100000000,), }", &vec![0; 100_000_000]);
        let text = NpzFile::open(&path).unwrap_err().to_string();
        assert!(text.contains(r#"its array "x""#) && text.contains("numpy.savez"), "{text}");
        std::fs::write(&path, b"hello").unwrap();
        assert!(NpzFile::open(&path).unwrap_err().to_string().contains("is no .npz file"));
        std::fs::write(&path, b"").unwrap();
        assert!(NpzFile::open(&path).is_err() && NpyArray::open(&path).is_err());
        assert!(NpyArray::open(folder.path()).unwrap_err().to_string().contains("is no regular file"));
    }

    /// A small archive with a packed and a stored member.
    fn archive() -> Vec<u8> {
        let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default();
        for (name, method) in [("a.npy", CompressionMethod::Stored), ("b.npy", CompressionMethod::Deflated)] {
            archive.start_file(name, options.compression_method(method)).unwrap();
            archive.write_all(&npy(PAIR, &[0; 8])).unwrap();
        }
        archive.finish().unwrap().into_inner()
    }

    proptest! {
        #[test]
        fn no_archive_is_too_wild(at in 0usize..1000, byte in any::<u8>(), length in 0usize..1000) {
            let mut content = archive();
            let at = at % content.len();
            content[at] = byte;
            content.truncate(length.max(content.len() / 2));
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.npz");
            std::fs::write(&path, content).unwrap();
            if let Ok(file) = NpzFile::open(&path) {
                prop_assert!(file.arrays().iter().all(|(_, array)| array.read().is_ok()));
            }
        }

        #[test]
        fn no_content_is_too_wild(tail in proptest::collection::vec(any::<u8>(), 0..80), at in 0usize..80, byte in any::<u8>()) {
            let mut content = npy(PAIR, &tail);
            let at = at % content.len();
            content[at] = byte;
            if let Ok(array) = open(&content) {
                prop_assert!(array.read().is_ok());
                prop_assert!((0..array.len().min(4)).all(|i| array.row(i).is_ok()));
            }
        }
    }
}

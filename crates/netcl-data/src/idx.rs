//! idx files: the format of MNIST and its relatives, plain or compressed by gzip.
//!
//! Four bytes (0, 0, the element type, the number of axes), the length of each axis as a big-endian 32-bit number, the
//! elements. Only bytes occur as elements in the data sets that are read here.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::array::{Array, Elements};
use crate::error::{Error, Result};
use crate::images::ImageSet;

const UNSIGNED_BYTES: u8 = 8;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What compressed data of some length may unpack to: far more than images do, far less than deflate can.
pub(crate) fn largest_unpacked(length: u64) -> u64 {
    length.saturating_mul(64).saturating_add(64 << 20)
}

/// Reads a file to an array of bytes.
///
/// # Errors
/// If it cannot be read or is no idx file of bytes.
pub fn read(path: impl AsRef<Path>) -> Result<Array> {
    let path = path.as_ref();
    let unreadable = |reason| Error::Read { path: path.to_owned(), reason };
    let file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    unpack(path, BufReader::new(file), length)
}

/// Reads the content of a file; the path is for messages.
///
/// ```
/// use netcl_data::{Array, idx};
/// use std::path::Path;
///
/// let array = idx::parse(Path::new("labels"), &[0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1])?;
/// assert_eq!(array, Array::line(vec![7u8, 2, 1]));
/// # Ok::<(), netcl_data::Error>(())
/// ```
///
/// # Errors
/// If it is no idx file of bytes.
pub fn parse(path: &Path, content: &[u8]) -> Result<Array> {
    unpack(path, content, content.len() as u64)
}

/// Reads `length` bytes, compressed or not.
fn unpack(path: &Path, mut content: impl BufRead, length: u64) -> Result<Array> {
    let start = content.fill_buf().map_err(|reason| Error::Read { path: path.to_owned(), reason })?;
    let array = if start.starts_with(&GZIP) {
        parse_plain(MultiGzDecoder::new(content), largest_unpacked(length), "its gzip data is damaged")
    } else {
        parse_plain(content, u64::MAX, "it cannot be read to its end")
    };
    array.map_err(|what| Error::Malformed { path: path.to_owned(), expected: "idx file", what })
}

/// Reads a header and no more elements than it announces. Memory is taken as they arrive, not as the header claims.
fn parse_plain(mut content: impl Read, largest: u64, damage: &str) -> Result<Array, String> {
    let mut read = |count: u64| {
        let mut bytes = Vec::new();
        let problem = Read::by_ref(&mut content).take(count).read_to_end(&mut bytes).err();
        problem.map_or(Ok(bytes), |error| Err(format!("{damage} ({error})")))
    };
    let start = read(4)?;
    let &[a, b, kind, axes] = &start[..] else {
        return Err(format!("it has {} bytes, fewer than a header", start.len()));
    };
    if (a, b) != (0, 0) || !(1..=4).contains(&axes) {
        return Err(format!(
            "it starts with {a:02x} {b:02x} {kind:02x} {axes:02x} instead of 00 00 08 01 to 00 00 08 04"
        ));
    }
    if kind != UNSIGNED_BYTES {
        return Err(format!("its elements are of type {kind:#04x}; only bytes (0x08) are read"));
    }
    let lengths = read(4 * u64::from(axes))?;
    if lengths.len() != 4 * usize::from(axes) {
        return Err(format!("it ends within the lengths of its {axes} axes"));
    }
    let shape: Vec<usize> = lengths
        .chunks_exact(4)
        .map(|bytes| bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)))
        .collect();
    let expected = shape.iter().try_fold(1usize, |size, &length| size.checked_mul(length));
    let Some(expected) = expected.filter(|&size| size < isize::MAX as usize) else {
        return Err(format!("its header announces {shape:?} elements, more than fit into memory"));
    };
    if expected as u64 > largest {
        return Err(format!("its header announces {shape:?} elements, too many for gzip data of its length"));
    }
    let bytes = read(expected as u64 + 1)?;
    if bytes.len() < expected {
        return Err(format!("it is truncated: its header announces {shape:?} elements, {} follow", bytes.len()));
    }
    if bytes.len() > expected {
        return Err(format!("it goes on past its end: its header announces {shape:?} elements, more follow"));
    }
    Array::new(bytes, &shape).map_err(|error| error.to_string())
}

/// The files of one part of a data set in a folder: `train-images-idx3-ubyte`, `train-images.idx3-ubyte`, or either with
/// `.gz`.
pub(crate) fn find(folder: &Path, part: &str, what: &str, axes: u32) -> Option<PathBuf> {
    let names = ['-', '.'].map(|dot| format!("{part}-{what}{dot}idx{axes}-ubyte"));
    names.iter().flat_map(|name| [folder.join(name), folder.join(format!("{name}.gz"))]).find(|path| path.is_file())
}

/// Reads the images and labels of one part (`"train"` or `"t10k"`).
pub(crate) fn read_part(folder: &Path, part: &str) -> Result<ImageSet> {
    let path = |what: &str, axes: u32| {
        find(folder, part, what, axes).ok_or_else(|| Error::Read {
            path: folder.join(format!("{part}-{what}-idx{axes}-ubyte")),
            reason: std::io::Error::new(std::io::ErrorKind::NotFound, "no such file, neither plain nor with .gz"),
        })
    };
    let (images_path, labels_path) = (path("images", 3)?, path("labels", 1)?);
    let (images, labels) = (read(&images_path)?, read(&labels_path)?);
    let &[count, height, width] = images.shape() else {
        let what = format!("it has {} axes instead of 3", images.shape().len());
        return Err(Error::Malformed { path: images_path, expected: "idx file of images", what });
    };
    if labels.shape().len() != 1 {
        let what = format!("it has {} axes instead of 1", labels.shape().len());
        return Err(Error::Malformed { path: labels_path, expected: "idx file of labels", what });
    }
    if count != labels.len() {
        let place = format!("{} and {}", images_path.display(), labels_path.display());
        let what = format!("there are {count} images but {} labels", labels.len());
        return Err(Error::Mismatch { place, what });
    }
    ImageSet::new(&images_path.display().to_string(), bytes(images), bytes(labels), [1, height, width])
}

/// The elements of an array that [`read`] made.
pub(crate) fn bytes(array: Array) -> Vec<u8> {
    if let Elements::U8(bytes) = array.into_elements() { bytes } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn parse(content: &[u8]) -> Result<Array, String> {
        super::parse(Path::new("file"), content).map_err(|error| error.to_string())
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    const LABELS: [u8; 11] = [0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1];

    #[test]
    fn plain_and_compressed_files_are_the_same() {
        let plain = parse(&LABELS).unwrap();
        assert_eq!(plain, Array::line(vec![7u8, 2, 1]));
        assert_eq!(parse(&gzip(&LABELS)).unwrap(), plain);
    }

    #[test]
    fn every_kind_of_damage_is_named() {
        let cases: [(&[u8], &str); 8] = [
            (b"", "it has 0 bytes, fewer than a header"),
            (b"\x89PNG", "starts with 89 50 4e 47"),
            (&[0, 0, 8, 0], "starts with 00 00 08 00"),
            (&[0, 0, 13, 1, 0, 0, 0, 1], "type 0x0d; only bytes"),
            (&[0, 0, 8, 3, 0, 0, 0, 1], "ends within the lengths of its 3 axes"),
            (&LABELS[..10], "is truncated: its header announces [3] elements, 2 follow"),
            (&[0, 0, 8, 1, 0, 0, 0, 0, 9], "goes on past its end"),
            (&[0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255], "more than fit"),
        ];
        for (content, expected) in cases {
            let text = parse(content).unwrap_err();
            assert!(text.starts_with("file is no idx file: ") && text.contains(expected), "{text}");
        }
        let whole = gzip(&LABELS);
        assert!(parse(&gzip(&[&LABELS[..], &[0; 1 << 20]].concat())).unwrap_err().contains("goes on past its end"));
        assert!(parse(&gzip(&[0, 0, 8, 2, 0, 16, 0, 0, 0, 0, 16, 0])).unwrap_err().contains("too many for gzip data"));
        assert!(parse(&whole[..whole.len() - 3]).unwrap_err().contains("gzip data is damaged"));
    }

    proptest! {
        #[test]
        fn no_content_is_too_wild(mut content in proptest::collection::vec(any::<u8>(), 0..64), header in any::<bool>()) {
            if header && content.len() >= 4 {
                content[..4].copy_from_slice(&[0, 0, 8, 2]);
            }
            if let Ok(array) = parse(&content) {
                prop_assert_eq!(array.shape().iter().product::<usize>(), array.bytes().len());
            }
        }
    }
}

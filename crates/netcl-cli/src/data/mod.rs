//! `netcl data`: which data sets there are, what one looks like, how fast it loads.

mod bench;
mod show;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, Subcommand};
use netcl::data::transforms::{Border, Transform};
use netcl::data::{Dataset, ImageFolder, ImageSet, Resize, Sample, catalog};
use serde_json::json;

use crate::Verdict;
use crate::output::{print, print_json, print_table, table};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// The data sets that are known by name: whether they are here, and which package has them
    List {
        /// Where to look for their files
        #[arg(long, value_name = "FOLDER")]
        data_dir: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write an HTML page with samples, class counts, mean and deviation, and samples before and after augmentation
    Show(show::Arguments),
    /// Measure how many samples per second a loader gives, by number of workers
    Bench(bench::Arguments),
}

/// What `show` and `bench` are about.
#[derive(Args)]
struct Choice {
    /// digits (come with netcl), fashion-mnist, mnist, cifar-10, cifar-100, a folder with their files, or a folder of PNG and JPEG
    /// files with a folder for each class
    dataset: String,
    /// Where to look for the data set's files
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

pub(crate) fn run(action: &Action) -> Result<Verdict> {
    match action {
        Action::List { data_dir, json } => list(data_dir.as_deref(), *json),
        Action::Show(arguments) => show::run(arguments),
        Action::Bench(arguments) => bench::run(arguments),
    }
}

fn list(folder: Option<&Path>, json: bool) -> Result<Verdict> {
    let entries = catalog::entries(folder);
    if json {
        let entry = |entry: &catalog::Entry| {
            json!({
                "name": entry.name, "classes": entry.classes, "found": entry.found, "searched": entry.searched,
                "advice": entry.advice,
            })
        };
        print_json(&entries.iter().map(entry).collect())?;
        return Ok(Verdict::Good);
    }
    let mut rows = table(&["data set", "classes", "where"].map(str::to_owned));
    for entry in &entries {
        let place = match &entry.found {
            Some(place) if place.as_os_str().is_empty() => "comes with netcl".to_owned(),
            Some(place) => place.display().to_string(),
            None => "not here".to_owned(),
        };
        let classes = if entry.classes == 0 { "text".to_owned() } else { entry.classes.to_string() };
        rows.add_row([entry.name.to_owned(), classes, place]);
    }
    print_table(&rows)?;
    for entry in entries.iter().filter(|entry| entry.found.is_none()) {
        let searched: Vec<String> = entry.searched.iter().map(|place| place.display().to_string()).collect();
        print(&format!("\n{}: {}\n  looked for in {}", entry.name, entry.advice, searched.join(", ")))?;
    }
    Ok(Verdict::Good)
}

/// Images with their labels, in memory or in files that are decoded when they are asked for.
struct Opened {
    name: String,
    classes: Vec<String>,
    /// Samples are lists of the image and its label.
    train: Arc<dyn Dataset<Item = Sample>>,
    labels: Vec<usize>,
    /// The labels of the images to test with, where there are any.
    test: Vec<usize>,
    /// Whether samples are files that must be decoded.
    in_files: bool,
}

impl Opened {
    /// Opens a data set; the pictures of an image folder are cut to squares of `side` pixels.
    fn new(choice: &Choice, side: usize) -> Result<Opened> {
        let place = Path::new(&choice.dataset);
        let has_folders =
            || Ok::<_, std::io::Error>(std::fs::read_dir(place)?.flatten().any(|entry| entry.path().is_dir()));
        // A folder with folders in it and no files of a known form is one of pictures.
        match catalog::load(&choice.dataset, choice.data_dir.as_deref()) {
            Ok(splits) => {
                let labels = |set: &ImageSet| set.labels().iter().map(|&label| usize::from(label)).collect();
                let (labels, test) = (labels(&splits.train), labels(&splits.test));
                let (name, classes) = (splits.name, splits.classes);
                return Ok(Opened { name, classes, train: Arc::new(splits.train), labels, test, in_files: false });
            }
            Err(_) if place.is_dir() && has_folders()? => {}
            Err(error) => return Err(error.into()),
        }
        let (set, test) = ImageFolder::open_split(place)?;
        let set = set.resized(Resize::Cover([side, side]));
        let labels = |set: &ImageFolder| set.files().iter().map(|(_, label)| *label).collect::<Vec<_>>();
        let name =
            place.canonicalize()?.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Opened {
            name,
            classes: set.classes().to_vec(),
            labels: labels(&set),
            test: test.as_ref().map(labels).unwrap_or_default(),
            train: Arc::new(set),
            in_files: true,
        })
    }

    /// The shape of its images.
    fn shape(&self) -> Result<[usize; 3]> {
        let sample = self.train.get(0)?;
        let shape = sample.get(0).and_then(Sample::array).map_or(&[][..], |image| image.shape());
        shape
            .try_into()
            .map_err(|_| anyhow::anyhow!("data: images of shape {shape:?} are not [channels, height, width]"))
    }

    fn class(&self, label: usize) -> String {
        self.classes.get(label).cloned().unwrap_or_else(|| label.to_string())
    }
}

/// The usual changes of images to train with: grey ones are moved and turned a little, colour ones also mirrored and tinted.
fn augmentation([channels, height, width]: [usize; 3]) -> Vec<Transform> {
    let crop = |border| Transform::Crop { size: [height, width], padding: height.min(width) / 8, border };
    if channels == 1 {
        let border = Border::Constant(0.0);
        return vec![crop(border), Transform::Rotation { degrees: 10.0, border }];
    }
    let mut changes = vec![crop(Border::Reflect), Transform::HorizontalFlip { probability: 0.5 }];
    if channels == 3 {
        changes.push(Transform::ColorJitter { brightness: 0.2, contrast: 0.2, saturation: 0.2, hue: 0.02 });
    }
    changes
}

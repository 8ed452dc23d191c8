//! `netcl data show`: a data set on one HTML page that needs nothing else.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use netcl::core::backend::opencl::shutdown::interrupted;
use netcl::data::decode::Pixels;
use netcl::data::transforms::{Compose, Image};
use netcl::data::{DataLoader, Random, Sample, Subset, digits};
use netcl::trainer::report::{STYLE, data_uri, escaped};

use super::{Choice, Opened, augmentation};
use crate::Verdict;
use crate::output::{name, print};
use crate::steps::Steps;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// Where the page goes [default: <DATASET>.html]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Decides which samples are shown and how they are changed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The side of the pictures of an image folder on the page
    #[arg(long, value_name = "PIXELS", default_value_t = 96, value_parser = clap::value_parser!(u16).range(8..=1024))]
    side: u16,
}

/// Pictures on the page, a few of each class.
const PICTURES: usize = 120;
/// More classes are not drawn.
const MOST_CLASSES: usize = 200;
/// Samples before and after augmentation, and how often each is changed.
const EXAMPLES: usize = 8;
const CHANGES: u64 = 6;
/// Mean and deviation of files that must be decoded are those of so many.
const MEASURED: usize = 5000;

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let mut steps = Steps::new(3, "show");
    steps.begin("opening the data set");
    let data = Opened::new(&arguments.choice, usize::from(arguments.side))?;
    if data.labels.is_empty() {
        bail!("data show: {} has no samples", data.name);
    }
    steps.begin("mean and deviation");
    let Some(pixels) = Statistics::of(&data, arguments.seed, &mut steps)? else { return Ok(Verdict::Good) };
    steps.begin("pictures");
    let page = page(&data, &pixels, arguments.seed)?;
    steps.finish();
    let default = || PathBuf::from(format!("{}.html", data.name.replace(['/', '\\'], "-")));
    let out = arguments.out.clone().unwrap_or_else(default);
    std::fs::write(&out, page).with_context(|| format!("cannot write {}", out.display()))?;
    let (count, classes) = (data.labels.len(), data.classes.len());
    print(&format!("{}: {count} samples of {classes} classes", name(&data.name, 60)))?;
    print(&format!("mean {:?}, deviation {:?}", pixels.rounded(&pixels.mean), pixels.rounded(&pixels.deviation)))?;
    print(&format!("wrote {}: open it in a browser", out.display()))?;
    Ok(Verdict::Good)
}

/// The pixels of each channel, from 0 to 1.
struct Statistics {
    mean: Vec<f64>,
    deviation: Vec<f64>,
    samples: usize,
}

impl Statistics {
    /// None after Ctrl+C.
    fn of(data: &Opened, seed: u64, steps: &mut Steps) -> Result<Option<Statistics>> {
        let samples = if data.in_files { data.labels.len().min(MEASURED) } else { data.labels.len() };
        let mut chosen = Random::new(seed).permutation(data.labels.len());
        chosen.truncate(samples);
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let loader =
            DataLoader::of(Subset::new(data.train.clone(), chosen)?).batch_size(64).workers(workers).build()?;
        let mut histograms: Vec<[u64; 256]> = Vec::new();
        let mut done = 0;
        for batch in loader.epoch(0)? {
            let batch = batch?;
            let images = batch.get(0).and_then(Sample::array).context("data show: the samples have no images")?;
            let (&[count, channels, height, width], Some(bytes)) = (images.shape(), images.slice::<u8>()) else {
                bail!(
                    "data show: images of bytes were expected, found {:?} of shape {:?}",
                    images.dtype(),
                    images.shape()
                );
            };
            histograms.resize(channels, [0; 256]);
            for (at, plane) in bytes.chunks_exact(height * width).enumerate() {
                let histogram = &mut histograms[at % channels];
                plane.iter().for_each(|&byte| histogram[usize::from(byte)] += 1);
            }
            done += count;
            steps.detail(&format!("{done} of {samples} samples"));
            if interrupted() {
                return Ok(None);
            }
        }
        let moment = |histogram: &[u64; 256], of: &dyn Fn(f64) -> f64| {
            let sum: f64 =
                histogram.iter().zip(0u32..).map(|(&count, byte)| count as f64 * of(f64::from(byte) / 255.0)).sum();
            sum / histogram.iter().sum::<u64>().max(1) as f64
        };
        let mean: Vec<f64> = histograms.iter().map(|histogram| moment(histogram, &|x| x)).collect();
        let spread = |(histogram, mean): (&[u64; 256], &f64)| moment(histogram, &|x| (x - mean).powi(2)).sqrt();
        let deviation = histograms.iter().zip(&mean).map(spread).collect();
        Ok(Some(Statistics { mean, deviation, samples }))
    }

    /// As one writes them into a program.
    fn rounded(&self, numbers: &[f64]) -> Vec<f64> {
        numbers.iter().map(|number| (number * 1e4).round() / 1e4).collect()
    }
}

fn page(data: &Opened, pixels: &Statistics, seed: u64) -> Result<String> {
    let [channels, height, width] = data.shape()?;
    let title = escaped(&data.name);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>\n{STYLE}\
         .bar {{ height: 12px; border-radius: 3px; background: var(--first); min-width: 1px; }}\n\
         table.rows td.wide {{ width: 60%; }} table.rows td.end {{ text-align: right; }}\n\
         .wrong.changes {{ grid-template-columns: repeat({}, 1fr); }}\n\
         </style></head>\n<body><main><h1>{title}</h1>\n<p class=\"lead\">{} samples to train with, {} to test with, {} classes, \
         {channels} x {height} x {width} pixels.</p>\n",
        CHANGES + 1,
        data.labels.len(),
        data.test.len(),
        data.classes.len(),
    );
    page.push_str(&counts(data));
    page.push_str(&channel_table(pixels, data.labels.len()));
    page.push_str("<h2>Samples</h2>\n<div class=\"wrong\">\n");
    for index in chosen(data, seed) {
        let sample = data.train.get(index)?;
        let image = Image::from_array(sample.get(0).and_then(Sample::array).context("a sample without an image")?)?;
        let class = escaped(&data.class(data.labels[index]));
        let _ = writeln!(page, "<div>{}{class}</div>", picture(&image, &format!("sample {index}"))?);
    }
    page.push_str("</div>\n<h2>Before and after augmentation</h2>\n");
    let transforms = augmentation([channels, height, width]);
    let names: Vec<String> = transforms.iter().map(|transform| escaped(&format!("{transform:?}"))).collect();
    let _ =
        writeln!(page, "<div class=\"card\"><pre>{}</pre></div><br>\n<div class=\"wrong changes\">", names.join("\n"));
    let augment = Compose::new(transforms)?;
    for index in Random::keyed(seed, &[1]).permutation(data.labels.len()).into_iter().take(EXAMPLES) {
        let sample = data.train.get(index)?;
        let image = Image::from_array(sample.get(0).and_then(Sample::array).context("a sample without an image")?)?;
        let class = escaped(&data.class(data.labels[index]));
        let _ = writeln!(page, "<div>{}<b>{class}</b></div>", picture(&image, &format!("sample {index}"))?);
        for change in 0..CHANGES {
            let changed = augment.apply(image.clone(), &mut Random::keyed(seed, &[2, index as u64, change]))?;
            let _ = writeln!(page, "<div>{}</div>", picture(&changed, &format!("sample {index}, changed"))?);
        }
    }
    page.push_str("</div>\n");
    if data.name == "digits" {
        let _ = writeln!(page, "<footer>Data: {}.</footer>", escaped(digits::ATTRIBUTION));
    }
    page.push_str("</main></body></html>\n");
    Ok(page)
}

/// Some samples of each class, the classes in order.
fn chosen(data: &Opened, seed: u64) -> Vec<usize> {
    let each = (PICTURES / data.classes.len().max(1)).max(1);
    let mut of_class = vec![Vec::new(); data.classes.len().min(MOST_CLASSES)];
    for index in Random::new(seed).permutation(data.labels.len()) {
        if let Some(samples) = of_class.get_mut(data.labels[index]).filter(|samples| samples.len() < each) {
            samples.push(index);
        }
    }
    of_class.concat()
}

/// How many samples each class has, as bars.
fn counts(data: &Opened) -> String {
    let count = |labels: &[usize]| {
        let mut counts = vec![0usize; data.classes.len()];
        for &label in labels {
            counts[label] += 1;
        }
        counts
    };
    let (train, test) = (count(&data.labels), count(&data.test));
    let most = train.iter().max().copied().unwrap_or(0).max(1);
    let mut table = "<h2>Classes</h2>\n<div class=\"card\"><table class=\"rows\">\n".to_owned();
    for (label, class) in data.classes.iter().enumerate().take(MOST_CLASSES) {
        let share = train[label] as f64 / most as f64 * 100.0;
        let _ = writeln!(
            table,
            "<tr><th>{}</th><td class=\"wide\"><div class=\"bar\" style=\"width: {share:.1}%\"></div></td><td class=\"end\">{}\
             </td><td class=\"end\">{}</td></tr>",
            escaped(class),
            train[label],
            test[label]
        );
    }
    table.push_str("</table></div>\n");
    if data.classes.len() > MOST_CLASSES {
        let _ = writeln!(table, "<p class=\"lead\">and {} more</p>", data.classes.len() - MOST_CLASSES);
    }
    table
}

fn channel_table(pixels: &Statistics, samples: usize) -> String {
    let mut table = "<h2>Pixels, from 0 to 1</h2>\n<div class=\"card\"><table class=\"rows\">\n\
                     <tr><th>channel</th><td>mean</td><td>deviation</td></tr>\n"
        .to_owned();
    for (channel, (mean, deviation)) in pixels.mean.iter().zip(&pixels.deviation).enumerate() {
        let _ = writeln!(table, "<tr><th>{channel}</th><td>{mean:.4}</td><td>{deviation:.4}</td></tr>");
    }
    table.push_str("</table></div>\n");
    if pixels.samples < samples {
        let _ = writeln!(table, "<p class=\"lead\">Of {} samples chosen at random.</p>", pixels.samples);
    }
    table
}

fn picture(image: &Image, title: &str) -> Result<String> {
    let bytes: Vec<u8> = image.pixels().iter().map(|pixel| (pixel * 255.0).round().clamp(0.0, 255.0) as u8).collect();
    let png = Pixels::from_planes(&bytes, image.shape())?.to_png()?;
    Ok(format!("<img src=\"{}\" alt=\"{title}\" title=\"{title}\">", data_uri(&png)))
}

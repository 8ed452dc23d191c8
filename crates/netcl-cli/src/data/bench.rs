//! `netcl data bench`: samples per second by number of workers.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use netcl::core::backend::opencl::shutdown::interrupted;
use netcl::data::transforms::Compose;
use netcl::data::{DataLoader, Sample};
use serde_json::json;

use super::{Choice, Opened, augmentation};
use crate::Verdict;
use crate::output::{name, positive, print, print_json, print_table, table};
use crate::steps::Steps;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// Samples per batch
    #[arg(long, default_value_t = 64, value_parser = positive, allow_negative_numbers = true)]
    batch_size: usize,
    /// Numbers of worker threads [default: 0, 1, 2, 4 and so on up to the cores of the machine]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    workers: Vec<usize>,
    /// Whether to change images at random, which makes float32 of them
    #[arg(long, value_name = "true|false", default_value = "true", action = clap::ArgAction::Set)]
    augment: bool,
    /// How long to measure each number of workers
    #[arg(long, value_name = "S", default_value_t = 1.0, allow_negative_numbers = true)]
    seconds: f64,
    /// The side of the pictures of an image folder
    #[arg(long, value_name = "PIXELS", default_value_t = 224, value_parser = clap::value_parser!(u16).range(8..=1024))]
    side: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was measured with a number of workers.
struct Row {
    workers: usize,
    samples: f64,
    bytes: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let Ok(time) = Duration::try_from_secs_f64(arguments.seconds) else {
        bail!("data bench: --seconds {} is no time to measure; use 0.1 or more", arguments.seconds);
    };
    let data = Opened::new(&arguments.choice, usize::from(arguments.side))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut workers = arguments.workers.clone();
    if workers.is_empty() {
        let doubled = std::iter::successors(Some(1), |workers| Some(workers * 2));
        workers = [0].into_iter().chain(doubled.take_while(|&workers| workers < cores)).chain([cores]).collect();
    }
    let shape = data.shape()?;
    let mut steps = Steps::new(workers.len(), "bench");
    let mut rows = Vec::new();
    for workers in workers {
        steps.begin(&format!("{workers} workers"));
        let mut loader =
            DataLoader::of(data.train.clone()).batch_size(arguments.batch_size).shuffle(true).workers(workers);
        if arguments.augment {
            loader = loader.transform(Compose::new(augmentation(shape))?.on_field(0));
        }
        rows.push(measured(&loader.build()?, workers, time)?);
        if interrupted() {
            return Ok(Verdict::Good);
        }
    }
    steps.finish();
    let first = rows[0].samples;
    if arguments.json {
        let row = |row: &Row| json!({"workers": row.workers, "samples_per_second": row.samples, "bytes_per_second": row.bytes});
        let rows: Vec<_> = rows.iter().map(row).collect();
        let json = json!({"data": data.name, "shape": shape, "batch_size": arguments.batch_size, "rows": rows});
        print_json(&json)?;
        return Ok(Verdict::Good);
    }
    let changed = if arguments.augment { ", changed at random" } else { "" };
    let [channels, height, width] = shape;
    print(&format!(
        "{}: {channels} x {height} x {width}{changed}, batches of {}, {cores} cores",
        name(&data.name, 60),
        arguments.batch_size
    ))?;
    let mut lines = table(&["workers", "samples/s", "MB/s", "times"].map(str::to_owned));
    for row in &rows {
        let [samples, megabytes] = [row.samples, row.bytes / 1e6].map(|number| format!("{number:.0}"));
        lines.add_row([row.workers.to_string(), samples, megabytes, format!("{:.2}", row.samples / first)]);
    }
    print_table(&lines)?;
    Ok(Verdict::Good)
}

/// Loads epoch after epoch for a while.
fn measured(loader: &DataLoader, workers: usize, time: Duration) -> Result<Row> {
    // The first batch fills caches and starts threads.
    loader.epoch(0)?.next().transpose()?;
    let (mut samples, mut bytes) = (0, 0);
    let start = Instant::now();
    'measure: for epoch in 0.. {
        for batch in loader.epoch(epoch)? {
            let batch = batch?;
            if let Some(images) = batch.get(0).and_then(Sample::array) {
                samples += images.shape().first().copied().unwrap_or(0);
                bytes += images.bytes().len();
            }
            if start.elapsed() >= time || interrupted() {
                break 'measure;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Row { workers, samples: samples as f64 / seconds, bytes: bytes as f64 / seconds })
}

//! `netcl bench`: products and memory-bound work beside what the device can do at most.

mod bars;
mod plot;
mod record;
mod roofline;
mod rows;
mod steps;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use netcl::core::backend::Queue;
use netcl::core::backend::opencl::shutdown::interrupted;
use netcl::core::device::{DeviceHandle, manager};
use netcl::profiling::ceilings::{Ceilings, measure_ceilings};
use netcl::profiling::timing::{Effort, Timing, time};

use crate::Verdict;
use crate::output::{print, print_table, table};
use crate::steps::Steps;
use crate::workload::Model;
use record::{Peer, PeerRow};
use rows::{Check, GOAL_DEVICE, ROWS, Row};
use steps::TimedStep;

pub(crate) const AFTER_HELP: &str = "\
Every result is compared with one in float64 at samples; a wrong one makes the exit code 1. Times are medians of samples after a \
warm-up. Peers' figures come from benches/bench_peers.py.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The device: cpu, gpu, an index of the list, <platform>:<device>, or part of a name
    #[arg(long, value_name = "SELECTOR", default_value = "auto")]
    device: String,
    /// Only these rows, by their names or the beginnings of them (matmul, softmax, ...)
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    rows: Vec<String>,
    /// The sizes of large devices, on whatever device
    #[arg(long)]
    full_size: bool,
    /// The sizes of small devices, on whatever device
    #[arg(long, conflicts_with = "full_size")]
    small: bool,
    /// About how long the samples of a row may take
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5, allow_negative_numbers = true)]
    time: f64,
    /// Write the results to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write roofline.svg and bars.svg into a folder
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Show the figures of this file beside ours; may be given several times
    #[arg(long, value_name = "FILE")]
    peers: Vec<PathBuf>,
}

/// What was found out about a row.
pub(crate) struct Measured {
    pub(crate) row: &'static Row,
    pub(crate) size: &'static [usize],
    pub(crate) outcome: std::result::Result<(Timing, Check), String>,
}

/// A finished run.
pub(crate) struct Run {
    pub(crate) device: DeviceHandle,
    pub(crate) driver: String,
    pub(crate) ceilings: Ceilings,
    pub(crate) results: Vec<Measured>,
    pub(crate) training: Vec<TimedStep>,
    pub(crate) peers: Vec<Peer>,
}

impl Run {
    /// The goal of a row, where it is for this device and size.
    pub(crate) fn goal(&self, result: &Measured) -> Option<f64> {
        let here = self.device.device_name.contains(GOAL_DEVICE) && result.size == result.row.full;
        result.row.goal.filter(|_| here)
    }

    /// A peer's figure for the same work.
    pub(crate) fn peer_row<'p>(&self, peer: &'p Peer, result: &Measured) -> Option<&'p PeerRow> {
        peer.rows.iter().find(|row| row.id == result.row.id && row.size == result.size)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let (chosen, models) = choose(&arguments.rows)?;
    if !(arguments.time.is_finite() && arguments.time > 0.0) {
        bail!("--time: {} is no number of seconds above 0", arguments.time);
    }
    let peers = arguments.peers.iter().map(|path| record::read_peer(path)).collect::<Result<Vec<_>>>()?;
    let device = manager().get(&arguments.device).context("--device")?;
    let queue = device.queue.clone();
    let full = arguments.full_size || (!arguments.small && is_large(&queue));
    let effort = Effort { budget: Duration::from_secs_f64(arguments.time.min(3600.0)), ..Effort::THOROUGH };

    let mut bar = Steps::new(chosen.len() + models.len() + 1, "bench");
    bar.begin("what the device can do at most");
    let elements = if full { 64 << 20 } else { 4 << 20 };
    let quick = Effort { budget: effort.budget / 3, ..effort };
    let ceilings = measure_ceilings(&queue, elements, quick, |part| {
        bar.detail(part);
        !interrupted()
    })?;
    let mut results = Vec::new();
    for row in chosen {
        if interrupted() {
            break;
        }
        bar.begin(row.name);
        let size = if full { row.full } else { row.small };
        let outcome = measure(row, &queue, size, effort).map_err(|error| format!("{error:#}"));
        results.push(Measured { row, size, outcome });
    }
    let mut training = Vec::new();
    for model in models {
        if interrupted() {
            break;
        }
        bar.begin(model.name());
        training.push(steps::measure(model, &queue, full, effort));
    }
    bar.finish();
    let driver = match &queue {
        Queue::Cpu(_) => env!("CARGO_PKG_VERSION").to_owned(),
        Queue::OpenCl(stream) => stream.device().info().driver_version.clone(),
    };
    let run = Run { device, driver, ceilings, results, training, peers };
    print_run(&run)?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&record::to_json(&run))? + "\n";
        std::fs::write(path, text).with_context(|| format!("--json: {} cannot be written", path.display()))?;
    }
    if let Some(folder) = &arguments.plots {
        std::fs::create_dir_all(folder).with_context(|| format!("--plots: {} cannot be made", folder.display()))?;
        for (name, text) in [("roofline.svg", roofline::draw(&run)), ("bars.svg", bars::draw(&run))] {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("--plots: {} cannot be written", path.display()))?;
        }
    }
    let good = run.results.iter().all(|result| matches!(&result.outcome, Ok((_, check)) if check.passed()));
    let stepped = run.training.iter().all(|step| step.outcome.is_ok());
    Ok(if good && stepped { Verdict::Good } else { Verdict::Bad })
}

/// The rows and training steps whose names begin with one of the words; all without words.
fn choose(words: &[String]) -> Result<(Vec<&'static Row>, Vec<Model>)> {
    for word in words {
        let names: Vec<String> = ROWS.iter().map(|row| row.id.to_owned()).chain(Model::ALL.map(steps::id)).collect();
        if !names.iter().any(|name| name.starts_with(word.as_str())) {
            let names = names.join(", ");
            bail!("--rows: there is no row {word:?}; there are {names}");
        }
    }
    let wanted = |id: &str| words.is_empty() || words.iter().any(|word| id.starts_with(word.as_str()));
    let models = Model::ALL.into_iter().filter(|&model| wanted(&steps::id(model))).collect();
    Ok((ROWS.iter().filter(|row| wanted(row.id)).collect(), models))
}

/// Whether a device finishes the large sizes in a moment and has room for them.
fn is_large(queue: &Queue) -> bool {
    let profile = queue.profile();
    profile.device_type == "gpu" && profile.compute_units >= 16 && profile.global_mem_size >= 6 << 30
}

fn measure(row: &Row, queue: &Queue, size: &[usize], effort: Effort) -> Result<(Timing, Check)> {
    let mut ready = row.prepare(queue, size)?;
    let timing = time(queue, effort, &mut ready.call)?;
    let check = (ready.check)()?;
    Ok((timing, check))
}

fn print_run(run: &Run) -> Result<()> {
    print(&format!(
        "{} ({}), driver {}, netcl {}, {}",
        run.device.device_name,
        run.device.platform_name,
        run.driver,
        env!("CARGO_PKG_VERSION"),
        record::today(),
    ))?;
    let mut limits = vec![
        format!("copies {}", bytes_rate(run.ceilings.bytes_per_second)),
        format!("multiply-adds {}", flops_rate(run.ceilings.fma_flops)),
    ];
    limits.extend(run.ceilings.matrix_flops.iter().map(|(kind, rate)| format!("{kind} units {}", flops_rate(*rate))));
    print(&format!("At most: {}\n", limits.join(", ")))?;

    let mut header = ["work", "size", "median", "best", "rate", "of the limit", "goal"].map(str::to_owned).to_vec();
    header.extend(run.peers.iter().map(|peer| peer.tool.clone()));
    header.push("error".to_owned());
    let mut rows = table(&header);
    for result in &run.results {
        let mut cells = vec![result.row.name.to_owned(), size_text(result.size)];
        match &result.outcome {
            Err(problem) => cells.push(format!("FAILED: {problem}")),
            Ok((timing, check)) => {
                let bound = result.row.bound(result.size, &run.ceilings);
                let goal = run.goal(result).map(|goal| goal_text(goal, timing.median * 1e3));
                cells.extend([
                    milliseconds(timing.median),
                    milliseconds(timing.best),
                    rate(result, timing),
                    format!("{:.0} %", 100.0 * bound / timing.median),
                    goal.unwrap_or_default(),
                ]);
                cells.extend(run.peers.iter().map(|peer| match run.peer_row(peer, result) {
                    Some(row) => {
                        format!("{} ({:.2}x)", milliseconds(row.median_ms / 1e3), row.median_ms / 1e3 / timing.median)
                    }
                    None => String::new(),
                }));
                let word = if check.passed() { "" } else { " WRONG" };
                cells.push(format!("{:.0e}{word}", check.error));
            }
        }
        rows.add_row(cells);
    }
    if !run.results.is_empty() {
        print_table(&rows)?;
    }
    steps::print_steps(&run.training)
}

fn goal_text(goal: f64, got: f64) -> String {
    format!("{goal} ms {}", if got <= goal { "met" } else { "missed" })
}

/// `1.23 ms`, `45.6 us`.
fn milliseconds(seconds: f64) -> String {
    if seconds < 1e-4 { format!("{:.1} us", seconds * 1e6) } else { format!("{:.3} ms", seconds * 1e3) }
}

/// `4096 x 4096 x 4096`, `64M`.
fn size_text(size: &[usize]) -> String {
    let one =
        |&n: &usize| if n >= 1 << 20 && n.is_multiple_of(1 << 20) { format!("{}M", n >> 20) } else { n.to_string() };
    size.iter().map(one).collect::<Vec<_>>().join(" x ")
}

fn flops_rate(rate: f64) -> String {
    if rate >= 1e12 { format!("{:.1} TFLOP/s", rate / 1e12) } else { format!("{:.1} GFLOP/s", rate / 1e9) }
}

fn bytes_rate(rate: f64) -> String {
    if rate >= 1e12 { format!("{:.2} TB/s", rate / 1e12) } else { format!("{:.1} GB/s", rate / 1e9) }
}

fn rate(result: &Measured, timing: &Timing) -> String {
    match result.row.work {
        rows::Work::Matmul { .. } => flops_rate(result.row.flops(result.size) / timing.median),
        _ => bytes_rate(result.row.bytes(result.size) / timing.median),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_their_beginnings() {
        let chosen = choose(&["matmul".to_owned(), "copy".to_owned()]).unwrap();
        assert_eq!((chosen.0.len(), chosen.1.len()), (6, 0));
        assert_eq!(choose(&[]).unwrap().0.len(), ROWS.len());
        assert_eq!(choose(&["step_m".to_owned()]).unwrap().1, [Model::Mlp]);
        let error = choose(&["conv".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("\"conv\"") && error.contains("softmax"), "{error}");
    }

    /// A run on a device that has everything: matrix units, goals, a peer.
    fn large_run() -> Run {
        let device = DeviceHandle { device_name: "NVIDIA H200".to_owned(), ..manager().cpu() };
        let ceilings = Ceilings {
            bytes_per_second: 4.3e12,
            fma_flops: 6.4e13,
            matrix_flops: vec![("float16", 8.0e14), ("bfloat16", 8.1e14), ("tf32", 4.0e14)],
        };
        let measured = |row: &'static Row| {
            let median = 1.3 * row.bound(row.full, &ceilings);
            let timing = Timing { median, best: 0.95 * median, samples: 9, calls: 4 };
            Measured { row, size: row.full, outcome: Ok((timing, Check { error: 1e-6, tolerance: 1e-5 })) }
        };
        let results = ROWS.iter().map(measured).collect();
        let row = PeerRow { id: "softmax".to_owned(), size: vec![16384, 4096], median_ms: 0.22 };
        let peers = vec![Peer { tool: "PyTorch 2.11".to_owned(), rows: vec![row] }];
        Run { device, driver: "580".to_owned(), ceilings, results, training: Vec::new(), peers }
    }

    #[test]
    fn drawings_name_every_row_ceiling_and_goal() {
        let run = large_run();
        let (roofline, bars) = (roofline::draw(&run), bars::draw(&run));
        for drawing in [&roofline, &bars] {
            assert!(!drawing.contains("NaN") && !drawing.contains("inf"), "{drawing}");
            for row in ROWS.iter().filter(|row| row.id != "copy") {
                assert!(drawing.contains(row.name), "{}", row.name);
            }
        }
        // Two ceilings of almost the same height are one line with one label.
        assert!(roofline.contains("float16 and bfloat16 units, 810.0 TFLOP/s"), "{roofline}");
        assert!(roofline.contains("multiply-adds, 64.0 TFLOP/s") && roofline.contains("copies, 4.30 TB/s"));
        assert!(bars.contains(">goal<") && bars.contains("PyTorch 2.11") && bars.contains("x ours)"), "{bars}");
        let elsewhere = Run { device: manager().cpu(), ..large_run() };
        assert!(!bars::draw(&elsewhere).contains(">goal<"), "the goals are for one device");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(milliseconds(0.0123456), "12.346 ms");
        assert_eq!(milliseconds(0.0000567), "56.7 us");
        assert_eq!(size_text(&[64 << 20]), "64M");
        assert_eq!(size_text(&[16384, 4096]), "16384 x 4096");
        assert_eq!((flops_rate(4.96e13), bytes_rate(4.3e12)), ("49.6 TFLOP/s".into(), "4.30 TB/s".into()));
    }
}

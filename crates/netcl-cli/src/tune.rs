//! `netcl tune`: measures which kernels are the fastest on a device, and keeps the answers.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use netcl::core::backend::opencl::shutdown::interrupted;
use netcl::core::conv::{ConvGeometry, ConvParams, symmetric};
use netcl::core::device::manager;
use netcl::core::dtype::DType;
use netcl::core::tuner::{Limits, Phase, Step, Tuning};
use netcl::profiling::autotuner::{self, Options, Verdict, autotune_conv2d_with, autotune_matmul_with};
use serde_json::{Value, json};

use crate::Verdict as Ending;
use crate::output::{age, print, print_json, print_table, table};
use crate::steps::Steps;

pub(crate) const AFTER_HELP: &str = "\
Without --size a few sizes that networks meet are measured. A size of a product is MxNxK; one of a convolution is \
NxCxHxW,F,KHxKW with an optional ,STRIDE,PAD. Results are used by every later process on the same device with the same driver; \
Ctrl+C keeps those that are complete and what was measured of the current one.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The device: cpu, gpu, an index of the list, <platform>:<device>, or part of a name
    #[arg(long, value_name = "SELECTOR", default_value = "auto")]
    device: String,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Op::Matmul)]
    op: Op,
    /// A size; may be given several times
    #[arg(long, value_name = "SIZE")]
    size: Vec<String>,
    /// The dtype of the operands
    #[arg(long, default_value = "float32")]
    dtype: String,
    /// At most about how long, all sizes together
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, allow_negative_numbers = true)]
    time: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List what was measured so far, on whatever device
    #[arg(long, conflicts_with_all = ["clear", "export", "size"])]
    list: bool,
    /// Forget everything that was measured
    #[arg(long, conflicts_with_all = ["export", "size"])]
    clear: bool,
    /// Print what was measured as entries of kernel_defaults.toml
    #[arg(long, conflicts_with = "size")]
    export: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Op {
    Matmul,
    Conv2d,
}

/// What is measured.
enum Size {
    Matmul([usize; 3]),
    Conv2d(ConvGeometry),
}

/// Products: square ones, a batch of 32 through a layer, a batch of 256 through a small one.
const PRODUCTS: &[[usize; 3]] =
    &[[512, 512, 512], [1024, 1024, 1024], [2048, 2048, 2048], [4096, 4096, 4096], [32, 1024, 1024], [256, 128, 784]];

/// Convolutions of residual networks on small images.
fn convolutions() -> netcl::core::Result<Vec<Size>> {
    let blocks = [(64, 32, 1), (128, 16, 1), (256, 8, 1), (64, 32, 2)].into_iter();
    let geometry = |(channels, side, stride): (usize, usize, usize)| {
        let params = ConvParams { stride: [stride; 2], padding: [1; 4], ..Default::default() };
        ConvGeometry::of("tune", [32, channels, side, side], channels, [3, 3], &params).map(Size::Conv2d)
    };
    blocks.map(geometry).collect()
}

pub(crate) fn run(arguments: &Arguments) -> Result<Ending> {
    if arguments.list {
        return list(arguments.json);
    }
    if arguments.clear {
        let count = autotuner::clear()?;
        match arguments.json {
            true => print_json(&json!({ "removed": count }))?,
            false => print(&format!("Removed {count} results."))?,
        }
        return Ok(Ending::Good);
    }
    if arguments.export {
        print(&autotuner::export()?)?;
        return Ok(Ending::Good);
    }
    measure(arguments)
}

fn list(as_json: bool) -> Result<Ending> {
    let kept = autotuner::list()?;
    if as_json {
        let entries: Vec<Value> = kept
            .iter()
            .map(|one| json!({ "device": one.device, "problem": one.problem, "best": one.outcome, "entry": one.entry }))
            .collect();
        print_json(&Value::Array(entries))?;
    } else if kept.is_empty() {
        print("Nothing was measured yet: `netcl tune` does.")?;
    } else {
        let mut rows = table(&["used", "device", "problem", "best"].map(str::to_owned));
        for one in kept {
            rows.add_row([age(one.age), one.device, one.problem, one.outcome]);
        }
        print_table(&rows)?;
    }
    Ok(Ending::Good)
}

fn measure(arguments: &Arguments) -> Result<Ending> {
    let dtype = DType::parse(&arguments.dtype).context("--dtype")?;
    let sizes = sizes(arguments)?;
    if !(arguments.time.is_finite() && arguments.time > 0.0) {
        bail!("--time: {} is no number of seconds above 0", arguments.time);
    }
    let device = manager().get(&arguments.device).context("--device")?;
    let share = Duration::from_secs_f64(arguments.time.min(86_400.0)) / u32::try_from(sizes.len()).unwrap_or(1).max(1);
    let options = Options { limits: Limits { time: share, ..Limits::default() }, keep: true };
    let mut steps = Steps::new(sizes.len(), "tune");
    let mut found: Vec<Tuning> = Vec::new();
    for size in &sizes {
        if interrupted() {
            break;
        }
        steps.begin(&size.to_string());
        let mut progress = |step: &Step<'_>| {
            steps.detail(&text(step));
            !interrupted()
        };
        let tuning = match *size {
            Size::Matmul([m, n, k]) => autotune_matmul_with(m, n, k, dtype, &device.queue, &options, &mut progress)?,
            Size::Conv2d(geometry) => autotune_conv2d_with(&geometry, dtype, &device.queue, &options, &mut progress)?,
        };
        found.push(tuning);
    }
    steps.finish();
    if arguments.json {
        print_json(&Value::Array(found.iter().map(to_json).collect()))?;
    } else {
        for (size, tuning) in sizes.iter().zip(&found) {
            print_tuning(size, tuning)?;
        }
    }
    let all_have = found.iter().all(|tuning| tuning.best().is_some());
    Ok(if all_have { Ending::Good } else { Ending::Bad })
}

fn text(step: &Step<'_>) -> String {
    let best = step.best.map_or_else(String::new, |time| format!(", best {}", time_text(time)));
    match step.phase {
        Phase::Checking => format!("checking {}/{}{best}", step.done + 1, step.total),
        Phase::Measuring => format!("round {}/{}{best}", step.done + 1, step.total),
    }
}

fn time_text(seconds: f64) -> String {
    if seconds < 1e-3 { format!("{:.1} us", seconds * 1e6) } else { format!("{:.3} ms", seconds * 1e3) }
}

fn print_tuning(size: &Size, tuning: &Tuning) -> Result<()> {
    let whole = if tuning.complete { "" } else { ", not all measured" };
    print(&format!(
        "{size} {} on {} ({:.1} s{whole})",
        tuning.problem.dtype(),
        tuning.device,
        tuning.took.as_secs_f64()
    ))?;
    let mut rows = table(&["median", "rate", "behind", "candidate", "remark"].map(str::to_owned));
    let best = tuning.best().and_then(|trial| trial.median());
    for trial in tuning.ranking() {
        let remark = match &trial.verdict {
            Verdict::Measured => String::new(),
            Verdict::Behind => "too far behind".to_owned(),
            Verdict::Wrong(reason) => format!("WRONG: {reason}"),
            Verdict::Failed(reason) => format!("failed: {}", reason.lines().next().unwrap_or_default()),
            Verdict::Unmeasured => "not measured".to_owned(),
        };
        let time = trial.median().filter(|_| trial.is_sound());
        rows.add_row([
            time.map_or_else(String::new, time_text),
            time.map_or_else(String::new, |time| format!("{:.1} GFLOP/s", tuning.flops / time / 1e9)),
            time.zip(best).map_or_else(String::new, |(time, best)| format!("{:.2}x", time / best)),
            trial.config.to_string(),
            remark,
        ]);
    }
    print_table(&rows)?;
    print("")
}

fn to_json(tuning: &Tuning) -> Value {
    let trials: Vec<Value> = tuning
        .trials
        .iter()
        .map(|trial| {
            let (verdict, reason) = match &trial.verdict {
                Verdict::Measured => ("measured", None),
                Verdict::Behind => ("behind", None),
                Verdict::Wrong(reason) => ("wrong", Some(reason)),
                Verdict::Failed(reason) => ("failed", Some(reason)),
                Verdict::Unmeasured => ("unmeasured", None),
            };
            let milliseconds = trial.median().map(|time| time * 1e3);
            json!({ "config": trial.config.to_string(), "median_ms": milliseconds, "verdict": verdict, "reason": reason })
        })
        .collect();
    json!({
        "problem": tuning.problem.to_string(), "device": tuning.device, "seconds": tuning.took.as_secs_f64(),
        "complete": tuning.complete, "best": tuning.best().map(|best| best.config.to_string()), "candidates": trials,
    })
}

fn sizes(arguments: &Arguments) -> Result<Vec<Size>> {
    if arguments.size.is_empty() {
        return Ok(match arguments.op {
            Op::Matmul => PRODUCTS.iter().copied().map(Size::Matmul).collect(),
            Op::Conv2d => convolutions()?,
        });
    }
    let parse = |text: &String| parse(arguments.op, text).with_context(|| format!("--size {text}"));
    arguments.size.iter().map(parse).collect()
}

fn parse(op: Op, text: &str) -> Result<Size> {
    let lengths = |part: &str| -> Result<Vec<usize>> {
        part.split('x').map(|n| n.trim().parse().with_context(|| format!("{n:?} is no length"))).collect()
    };
    match op {
        Op::Matmul => match lengths(text)?[..] {
            [m, n, k] => Ok(Size::Matmul([m, n, k])),
            [n] => Ok(Size::Matmul([n, n, n])),
            _ => bail!("a product has the lengths MxNxK, or one for all three"),
        },
        Op::Conv2d => {
            let parts = text.split(',').map(lengths).collect::<Result<Vec<_>>>()?;
            let both = |part: Option<&Vec<usize>>, default: usize| match part.map(Vec::as_slice) {
                None => Ok([default; 2]),
                Some(&[one]) => Ok([one; 2]),
                Some(&[y, x]) => Ok([y, x]),
                _ => bail!("a stride or padding has one length or two"),
            };
            match (parts.first().map(Vec::as_slice), parts.get(1).map(Vec::as_slice), parts.get(2)) {
                (Some(&[n, c, h, w]), Some(&[filters]), Some(kernel)) => {
                    let (stride, padding) = (both(parts.get(3), 1)?, symmetric(both(parts.get(4), 0)?));
                    let params = ConvParams { stride, padding, ..Default::default() };
                    let geometry = ConvGeometry::of("tune", [n, c, h, w], filters, both(Some(kernel), 1)?, &params)?;
                    Ok(Size::Conv2d(geometry))
                }
                _ => bail!("a convolution is written NxCxHxW,F,KHxKW, then ,STRIDE,PAD if wanted"),
            }
        }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Size::Matmul([m, n, k]) => write!(f, "matmul {m}x{n}x{k}"),
            Size::Conv2d(g) => {
                let (n, c, [h, w], [kh, kw]) = (g.n, g.channels, g.input, g.kernel);
                let ([sy, sx], [py, px]) = (g.stride, g.before());
                write!(f, "conv2d {n}x{c}x{h}x{w},{},{kh}x{kw},{sy}x{sx},{py}x{px}", g.filters)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_alike() {
        for (op, text, written) in [
            (Op::Matmul, "64x32x16", "matmul 64x32x16"),
            (Op::Matmul, "512", "matmul 512x512x512"),
            (Op::Conv2d, "8x3x32x32,16,3x3", "conv2d 8x3x32x32,16,3x3,1x1,0x0"),
            (Op::Conv2d, "8x3x32x32,16,5,2,1x2", "conv2d 8x3x32x32,16,5x5,2x2,1x2"),
        ] {
            assert_eq!(parse(op, text).unwrap().to_string(), written);
        }
        for (op, text) in
            [(Op::Matmul, "3x4"), (Op::Matmul, "axb"), (Op::Conv2d, "8x3x32,16,3"), (Op::Conv2d, "8x3x32x32")]
        {
            assert!(parse(op, text).is_err(), "{text}");
        }
    }
}

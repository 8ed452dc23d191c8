//! Tables per kernel, module and line, and how they print.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use netcl_core::observe::Kind;

use super::{Device, Profile, Timed};

/// All runs of one kernel, or all copies of one direction, on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelRow {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// Which of [`Profile::devices`] ran it.
    pub device: usize,
    /// How often it ran.
    pub calls: usize,
    /// Seconds on the device.
    pub total: f64,
    /// Seconds of one call.
    pub mean: f64,
    /// Floating-point operations of all calls.
    pub flops: f64,
    /// Bytes moved by all calls.
    pub bytes: f64,
    /// Billions of operations per second.
    pub gflops: f64,
    /// Billions of bytes per second.
    pub gbps: f64,
    /// The share of what the device can do at most with so many operations per byte; `None` where that was not measured or there is
    /// nothing to count.
    pub ceiling: Option<f64>,
    /// The share of all device time of the profile.
    pub share: f64,
    /// The OpenCL source of the variant that ran last; `None` on the native CPU.
    pub source: Option<Arc<str>>,
}

/// What a module and those inside it took.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleRow {
    /// The dotted path; `""` for what no module asked for.
    pub path: String,
    /// Launches and copies, those of inner modules included.
    pub calls: usize,
    /// Seconds of the forward pass, with inner modules.
    pub forward: f64,
    /// Seconds of the backward pass, with inner modules.
    pub backward: f64,
    /// Seconds of both.
    pub total: f64,
    /// Seconds of both without inner modules.
    pub own: f64,
    /// The share of all device time of the profile.
    pub share: f64,
}

/// What one line of the Python program asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct LineRow {
    /// `file:line`.
    pub line: String,
    /// Launches and copies.
    pub calls: usize,
    /// Seconds on the device.
    pub total: f64,
    /// The share of all device time of the profile.
    pub share: f64,
}

/// The share of a device's ceiling that so much work in so many seconds is.
fn ceiling(device: &Device, flops: f64, bytes: f64, seconds: f64) -> Option<f64> {
    let ceilings = device.ceilings.as_ref()?;
    // What is faster than multiply-adds can be ran on matrix units.
    let matrix = ceilings.matrix_flops.iter().map(|(_, rate)| *rate).fold(ceilings.fma_flops, f64::max);
    let peak = if flops > ceilings.fma_flops * seconds { matrix } else { ceilings.fma_flops };
    let least = (flops / peak).max(bytes / ceilings.bytes_per_second);
    (least.is_finite() && least > 0.0 && seconds > 0.0).then(|| least / seconds)
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl Profile {
    /// One row per kernel and device, the one that took longest first. Copies are rows of their own.
    pub fn kernels(&self) -> Vec<KernelRow> {
        let all = self.device_seconds();
        let mut order: Vec<(&str, usize)> = Vec::new();
        let mut groups: HashMap<(&str, usize), Vec<&Timed>> = HashMap::new();
        for command in &self.commands {
            let key = (command.name.as_str(), command.device);
            groups.entry(key).or_insert_with(|| {
                order.push(key);
                Vec::new()
            });
            groups.entry(key).and_modify(|group| group.push(command));
        }
        let row = |key: (&str, usize)| {
            let group = groups.get(&key)?;
            let last = group.last()?;
            let sum = |f: fn(&Timed) -> f64| group.iter().map(|command| f(command)).sum::<f64>();
            let (total, flops, bytes) = (sum(Timed::seconds), sum(|c| c.flops), sum(|c| c.bytes));
            // A copy's ceiling is the bus and not the device's memory.
            let kernel = last.kind == Kind::Kernel;
            Some(KernelRow {
                name: last.name.clone(),
                kind: last.kind,
                device: last.device,
                calls: group.len(),
                total,
                mean: total / group.len() as f64,
                flops,
                bytes,
                gflops: ratio(flops, total) * 1e-9,
                gbps: ratio(bytes, total) * 1e-9,
                ceiling: ceiling(&self.devices[last.device], flops, bytes, total).filter(|_| kernel),
                share: ratio(total, all),
                source: last.source.clone(),
            })
        };
        let mut rows: Vec<KernelRow> = order.into_iter().filter_map(row).collect();
        rows.sort_by(|a, b| b.total.total_cmp(&a.total));
        rows
    }

    /// One row per module, those that hold others included, in the order in which they first ran.
    pub fn modules(&self) -> Vec<ModuleRow> {
        let all = self.device_seconds();
        let mut rows: Vec<ModuleRow> = Vec::new();
        let mut index: HashMap<&str, usize> = HashMap::new();
        for command in &self.commands {
            for path in paths(&command.module) {
                let at = *index.entry(path).or_insert_with(|| {
                    let (calls, zero) = (0, 0.0);
                    let path = path.to_owned();
                    rows.push(ModuleRow {
                        path,
                        calls,
                        forward: zero,
                        backward: zero,
                        total: zero,
                        own: zero,
                        share: zero,
                    });
                    rows.len() - 1
                });
                let (row, seconds) = (&mut rows[at], command.seconds());
                row.calls += 1;
                *if command.backward { &mut row.backward } else { &mut row.forward } += seconds;
                row.total += seconds;
                if *path == *command.module {
                    row.own += seconds;
                }
                row.share = ratio(row.total, all);
            }
        }
        rows
    }

    /// One row per line of the Python program, the one that took longest first; empty in programs of Rust.
    pub fn lines(&self) -> Vec<LineRow> {
        let all = self.device_seconds();
        let mut rows: HashMap<&str, LineRow> = HashMap::new();
        for command in &self.commands {
            let Some(line) = &command.line else { continue };
            let empty = || LineRow { line: line.to_string(), calls: 0, total: 0.0, share: 0.0 };
            let row = rows.entry(line).or_insert_with(empty);
            row.calls += 1;
            row.total += command.seconds();
            row.share = ratio(row.total, all);
        }
        let mut rows: Vec<LineRow> = rows.into_values().collect();
        rows.sort_by(|a, b| b.total.total_cmp(&a.total).then_with(|| a.line.cmp(&b.line)));
        rows
    }
}

/// A dotted path and all it lies in, the outermost first: `a.b.c` is `a`, `a.b`, `a.b.c`.
pub(super) fn paths(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('.').map(|(at, _)| &path[..at]).chain([path])
}

/// Rows of a printed table.
const ROWS: usize = 20;

fn micros(seconds: f64) -> String {
    match seconds * 1e6 {
        us if us >= 1e6 => format!("{:.2} s", us * 1e-6),
        us if us >= 1e3 => format!("{:.2} ms", us * 1e-3),
        us => format!("{us:.1} us"),
    }
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The end of a text that is too long.
fn tail(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        text.to_owned()
    } else {
        format!("…{}", text.chars().skip(count + 1 - width).collect::<String>())
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.devices.iter().map(|device| device.name.as_str()).collect();
        writeln!(
            f,
            "{} commands in {}, {} on {}",
            self.commands.len(),
            micros(self.span.as_secs_f64()),
            micros(self.device_seconds()),
            if names.is_empty() { "no device".to_owned() } else { names.join(", ") }
        )?;
        writeln!(
            f,
            "\n{:<44} {:>6} {:>10} {:>10} {:>9} {:>8} {:>8} {:>7}",
            "kernel", "calls", "total", "mean", "GFLOP/s", "GB/s", "ceiling", "share"
        )?;
        let kernels = self.kernels();
        for row in kernels.iter().take(ROWS) {
            writeln!(
                f,
                "{:<44} {:>6} {:>10} {:>10} {:>9.1} {:>8.1} {:>8} {:>7}",
                tail(&row.name, 44),
                row.calls,
                micros(row.total),
                micros(row.mean),
                row.gflops,
                row.gbps,
                row.ceiling.map_or("-".to_owned(), percent),
                percent(row.share)
            )?;
        }
        more(f, kernels.len())?;
        let modules = self.modules();
        if modules.iter().any(|row| !row.path.is_empty()) {
            writeln!(
                f,
                "\n{:<44} {:>6} {:>10} {:>10} {:>10} {:>7}",
                "module", "calls", "forward", "backward", "total", "share"
            )?;
            for row in modules.iter().take(2 * ROWS) {
                let depth = row.path.matches('.').count();
                let name = if row.path.is_empty() { "(none)" } else { row.path.rsplit('.').next().unwrap_or_default() };
                writeln!(
                    f,
                    "{:<44} {:>6} {:>10} {:>10} {:>10} {:>7}",
                    format!("{}{name}", "  ".repeat(depth)),
                    row.calls,
                    micros(row.forward),
                    micros(row.backward),
                    micros(row.total),
                    percent(row.share)
                )?;
            }
            if modules.len() > 2 * ROWS {
                writeln!(f, "... and {} more", modules.len() - 2 * ROWS)?;
            }
        }
        let lines = self.lines();
        if !lines.is_empty() {
            writeln!(f, "\n{:<62} {:>6} {:>10} {:>7}", "line", "calls", "total", "share")?;
            for row in lines.iter().take(ROWS) {
                writeln!(
                    f,
                    "{:<62} {:>6} {:>10} {:>7}",
                    tail(&row.line, 62),
                    row.calls,
                    micros(row.total),
                    percent(row.share)
                )?;
            }
            more(f, lines.len())?;
        }
        for memory in self.memory.iter().filter(|memory| memory.allocations > 0) {
            writeln!(
                f,
                "\nmemory of {}: peak {} after {}, of which {} were held before; {} allocations",
                memory.device,
                mebibytes(memory.peak_bytes),
                micros(memory.peak_time as f64 * 1e-9),
                mebibytes(memory.before_bytes),
                memory.allocations
            )?;
            for holder in memory.holders.iter().take(ROWS / 2) {
                let module = if holder.module.is_empty() { "(none)" } else { &*holder.module };
                writeln!(
                    f,
                    "{:<44} {:>6} {:>12}  {}",
                    tail(module, 44),
                    holder.blocks,
                    mebibytes(holder.bytes),
                    holder.label
                )?;
            }
        }
        Ok(())
    }
}

fn more(f: &mut fmt::Formatter<'_>, rows: usize) -> fmt::Result {
    if rows > ROWS { writeln!(f, "... and {} more", rows - ROWS) } else { Ok(()) }
}

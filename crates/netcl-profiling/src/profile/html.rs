//! The page of a profile: its data as JSON in a page that draws itself.

use std::collections::HashMap;

use netcl_core::observe::Kind;
use serde_json::{Value, json};

use super::Profile;

/// Commands of the timeline: beyond this the page would be slow, and nobody could tell them apart.
const COMMANDS: usize = 20_000;
/// Points of the memory curve.
const POINTS: usize = 4_000;

pub(super) fn page(profile: &Profile) -> String {
    // A `</script>` inside of the data would end it.
    let data = data(profile).to_string().replace('<', "\\u003c");
    include_str!("page.html")
        .replace("/* page.css */", include_str!("page.css"))
        .replace("/* page.js */", include_str!("page.js"))
        .replace("\"data\"", &data)
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Kernel => "kernel",
        Kind::Upload => "upload",
        Kind::Download => "download",
        Kind::Host => "host",
    }
}

fn data(profile: &Profile) -> Value {
    let rows = profile.kernels();
    let number: HashMap<(&str, usize), usize> =
        rows.iter().enumerate().map(|(i, row)| ((row.name.as_str(), row.device), i)).collect();
    let kernels: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "name": row.name, "kind": kind(row.kind), "device": row.device, "calls": row.calls, "total": row.total,
                "mean": row.mean, "flops": row.flops, "bytes": row.bytes, "gflops": row.gflops, "gbps": row.gbps,
                "ceiling": row.ceiling, "share": row.share, "source": row.source.as_deref(),
            })
        })
        .collect();
    let modules: Vec<Value> = profile
        .modules()
        .into_iter()
        .map(|row| {
            json!({
                "path": row.path, "calls": row.calls, "forward": row.forward, "backward": row.backward, "total": row.total,
                "own": row.own, "share": row.share,
            })
        })
        .collect();
    let lines: Vec<Value> = profile
        .lines()
        .into_iter()
        .map(|row| json!({ "line": row.line, "calls": row.calls, "total": row.total, "share": row.share }))
        .collect();
    // [kernel, host start, host end, device start, device end, module, backward, thread], times in nanoseconds.
    let commands: Vec<Value> = profile
        .commands
        .iter()
        .take(COMMANDS)
        .map(|c| {
            json!([
                number.get(&(c.name.as_str(), c.device)),
                c.host.0,
                c.host.1,
                c.device_time.0,
                c.device_time.1,
                &*c.module,
                u8::from(c.backward),
                c.thread
            ])
        })
        .collect();
    let devices: Vec<Value> = profile
        .devices
        .iter()
        .map(|device| {
            let ceilings = device.ceilings.as_ref().map(|found| {
                json!({ "bytes": found.bytes_per_second, "fma": found.fma_flops, "matrix": found.matrix_flops })
            });
            json!({ "name": device.name, "ceilings": ceilings })
        })
        .collect();
    let memory: Vec<Value> = profile
        .memory
        .iter()
        .map(|memory| {
            let holders: Vec<Value> = memory
                .holders
                .iter()
                .take(50)
                .map(|h| json!({ "label": h.label, "module": &*h.module, "bytes": h.bytes, "blocks": h.blocks }))
                .collect();
            json!({
                "device": memory.device, "before": memory.before_bytes, "peak": memory.peak_bytes,
                "peak_time": memory.peak_time, "points": thinned(&memory.points), "holders": holders,
                "allocations": memory.allocations,
            })
        })
        .collect();
    json!({
        "span": profile.span.as_nanos() as f64, "busy": profile.device_seconds(), "devices": devices, "kernels": kernels,
        "modules": modules, "lines": lines, "commands": commands, "left_out": profile.commands.len().saturating_sub(COMMANDS),
        "memory": memory, "version": env!("CARGO_PKG_VERSION"),
    })
}

/// At most [`POINTS`] points: of each run of points the highest, so that no peak is lost.
fn thinned(points: &[(u64, usize)]) -> Vec<(u64, usize)> {
    let run = points.len().div_ceil(POINTS).max(1);
    points.chunks(run).filter_map(|run| run.iter().copied().max_by_key(|point| point.1)).collect()
}

#[cfg(test)]
mod tests {
    use super::thinned;

    #[test]
    fn a_thinned_curve_keeps_its_peak() {
        let points: Vec<(u64, usize)> = (0..100_000).map(|i| (i, usize::from(i == 54_321))).collect();
        let few = thinned(&points);
        assert!(few.len() <= super::POINTS && few.contains(&(54_321, 1)));
        assert_eq!(thinned(&points[..3]), &points[..3]);
    }
}

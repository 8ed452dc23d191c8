//! The file of a run: what is written, and what is read of a peer's.
//!
//! `benches/bench_peers.py` writes the same form: `tool`, `version`, `device`, and `rows` with `id`, `size`, `median_ms`, `best_ms`.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Run;

/// The form of the file.
const SCHEMA: u64 = 1;

/// Somebody else's figures.
pub(crate) struct Peer {
    pub(crate) tool: String,
    pub(crate) rows: Vec<PeerRow>,
}

pub(crate) struct PeerRow {
    pub(crate) id: String,
    pub(crate) size: Vec<usize>,
    pub(crate) median_ms: f64,
}

/// A run as JSON.
pub(crate) fn to_json(run: &Run) -> Value {
    let rows: Vec<Value> = run
        .results
        .iter()
        .map(|result| {
            let (row, size) = (result.row, result.size);
            let (flops, bytes) = (row.flops(size), row.bytes(size));
            let mut value = json!({
                "id": row.id, "name": row.name, "size": size, "flops": flops, "bytes": bytes,
                "goal_ms": run.goal(result), "bound_ms": row.bound(size, &run.ceilings) * 1e3,
            });
            let found = match &result.outcome {
                Err(problem) => json!({ "problem": problem }),
                Ok((timing, check)) => json!({
                    "median_ms": timing.median * 1e3, "best_ms": timing.best * 1e3,
                    "samples": timing.samples, "calls_per_sample": timing.calls,
                    "gflops": flops / timing.median / 1e9, "gb_per_s": bytes / timing.median / 1e9,
                    "error": check.error, "tolerance": check.tolerance, "right": check.passed(),
                }),
            };
            if let (Value::Object(value), Value::Object(found)) = (&mut value, found) {
                value.extend(found);
            }
            value
        })
        .collect();
    let units: serde_json::Map<String, Value> =
        run.ceilings.matrix_flops.iter().map(|(kind, rate)| ((*kind).to_owned(), json!(rate / 1e9))).collect();
    json!({
        "schema": SCHEMA,
        "tool": "netcl",
        "version": env!("CARGO_PKG_VERSION"),
        "date": today(),
        "device": { "name": run.device.device_name, "platform": run.device.platform_name, "driver": run.driver },
        "ceilings": {
            "copy_gb_per_s": run.ceilings.bytes_per_second / 1e9,
            "fma_gflops": run.ceilings.fma_flops / 1e9,
            "matrix_gflops": units,
        },
        "rows": rows,
        "training_steps": super::steps::to_json(&run.training),
    })
}

/// What a file of this form has at most, in bytes.
const LONGEST: u64 = 16 << 20;

/// Reads a file of this form; rows without a time are left out.
pub(crate) fn read_peer(path: &Path) -> Result<Peer> {
    let shown = path.display();
    let mut text = String::new();
    let file = File::open(path).with_context(|| format!("--peers: {shown} cannot be read"))?;
    file.take(LONGEST + 1).read_to_string(&mut text).with_context(|| format!("--peers: {shown} cannot be read"))?;
    if text.len() as u64 > LONGEST {
        bail!("--peers: {shown} has more than {LONGEST} bytes: it is no file of netcl bench or benches/bench_peers.py");
    }
    let value: Value = serde_json::from_str(&text).with_context(|| format!("--peers: {shown} is no JSON"))?;
    parse_peer(&value).with_context(|| format!("--peers: {shown} is no file of netcl bench or benches/bench_peers.py"))
}

fn parse_peer(value: &Value) -> Result<Peer> {
    if value["schema"].as_u64() != Some(SCHEMA) {
        bail!("its \"schema\" is {}, not {SCHEMA}", value["schema"]);
    }
    let tool = value["tool"].as_str().context("it names no \"tool\"")?;
    let version = value["version"].as_str().unwrap_or_default();
    let rows = value["rows"].as_array().context("it has no list \"rows\"")?;
    let rows = rows.iter().filter_map(|row| {
        Some(PeerRow {
            id: row["id"].as_str()?.to_owned(),
            size: row["size"].as_array()?.iter().map(|n| n.as_u64().map(|n| n as usize)).collect::<Option<_>>()?,
            median_ms: row["median_ms"].as_f64().filter(|&time| time > 0.0)?,
        })
    });
    Ok(Peer { tool: format!("{tool} {version}").trim().to_owned(), rows: rows.collect() })
}

/// The date, `2026-11-15`, by the world's clock.
pub(crate) fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (year, month, day) = civil((seconds / 86_400) as i64);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a number of days since 1970, by Hinnant's formula: years begin in March, so that leap days are last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_772), (2026, 11, 15));
        assert_eq!(civil(20_818), (2026, 12, 31));
    }

    #[test]
    fn a_peer_is_read_and_mistakes_are_named() {
        let good = json!({
            "schema": 1, "tool": "PyTorch", "version": "2.11",
            "rows": [{ "id": "sum", "size": [4], "median_ms": 0.5 }, { "id": "copy", "size": [4], "problem": "none" }],
        });
        let peer = parse_peer(&good).unwrap();
        assert_eq!((peer.tool.as_str(), peer.rows.len()), ("PyTorch 2.11", 1));
        assert_eq!((peer.rows[0].id.as_str(), peer.rows[0].median_ms), ("sum", 0.5));
        let wrong = |value: Value| parse_peer(&value).err().unwrap().to_string();
        assert!(wrong(json!({ "schema": 7 })).contains('7'));
        assert!(wrong(json!({ "schema": 1 })).contains("tool"));
        assert!(wrong(json!({ "schema": 1, "tool": "x" })).contains("rows"));
    }

    #[test]
    #[cfg(unix)]
    fn a_file_without_an_end_is_refused() {
        let text = read_peer(Path::new("/dev/zero")).err().unwrap().to_string();
        assert!(text.contains("has more than 16777216 bytes"), "{text}");
    }
}

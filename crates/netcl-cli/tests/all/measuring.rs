//! `netcl tune` and `netcl bench` by the real binary: what they print, write, keep and refuse.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn netcl(cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netcl"));
    for name in ["NETCL_DEVICE", "NETCL_LIMITS", "NETCL_CACHE", "NETCL_OPENCL_LIB", "NETCL_AUTOTUNE"] {
        command.env_remove(name);
    }
    command.env("NETCL_CACHE_DIR", cache).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{} {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn errors(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_result_is_kept_listed_exported_and_forgotten() {
    let cache = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| netcl(cache.path(), arguments);
    let devices: Value = serde_json::from_str(&text(&run(&["devices", "--json"]))).unwrap();
    let device = if devices["devices"].as_array().unwrap().len() > 1 { "0" } else { "cpu" };

    assert!(text(&run(&["tune", "--list"])).contains("Nothing was measured"));
    let found = run(&["tune", "--device", device, "--size", "48x48x48", "--time", "2", "--json"]);
    let found: Value = serde_json::from_str(&text(&found)).unwrap();
    assert_eq!(found[0]["problem"], "matmul 64x64x64 float32");
    let best = found[0]["best"].as_str().unwrap().to_owned();
    assert!(best.starts_with("MATMUL_"), "{found}");
    let candidates = found[0]["candidates"].as_array().unwrap();
    assert!(candidates.iter().all(|one| one["verdict"] != "wrong" && one["verdict"] != "failed"), "{found}");
    if device == "cpu" {
        eprintln!("NOT TESTED: there is no OpenCL device here, and the native CPU has nothing to keep");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device");
        return;
    }
    assert!(text(&run(&["tune", "--list"])).contains(&best));
    let exported = text(&run(&["tune", "--export"]));
    assert!(exported.contains("[[kernel]]") && exported.contains("shapes = \"64x64x64\""), "{exported}");
    assert!(text(&run(&["tune", "--clear"])).contains("Removed 1"));
    assert!(text(&run(&["tune", "--list"])).contains("Nothing was measured"));
}

#[test]
fn a_table_of_candidates_is_printed_for_eyes() {
    let cache = tempfile::tempdir().unwrap();
    let output = netcl(cache.path(), &["tune", "--device", "cpu", "--op", "conv2d", "--size", "1x2x6x6,3,3x3,1,1"]);
    let text = text(&output);
    assert!(text.contains("conv2d 1x2x6x6,3,3x3,1x1,1x1") && text.contains("CONV2D_IM2COL"), "{text}");
    assert!(text.contains("GFLOP/s") && text.contains("1.00x"), "{text}");
}

#[test]
fn wrong_usage_says_what_is_right() {
    let cache = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str]| errors(&netcl(cache.path(), arguments));
    assert!(refused(&["tune", "--device", "cpu", "--size", "3x4"]).contains("MxNxK"));
    assert!(refused(&["tune", "--device", "cpu", "--dtype", "float7"]).contains("float7"));
    assert!(refused(&["tune", "--device", "cpu", "--time", "-1"]).contains("-1"));
    assert!(refused(&["bench", "--device", "cpu", "--rows", "conv"]).contains("softmax"));
    assert!(refused(&["bench", "--device", "cpu", "--peers", "/nonexistent"]).contains("/nonexistent"));
}

#[test]
fn rows_are_timed_checked_written_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let peer = r#"{"schema": 1, "tool": "Peer", "version": "1", "rows": [
        {"id": "softmax", "size": [2048, 1024], "median_ms": 1.5, "best_ms": 1.0}]}"#;
    std::fs::write(path("peer.json"), peer).unwrap();
    let (json, plots, peers) = (path("run.json"), path("plots"), path("peer.json"));
    let arguments = ["bench", "--device", "cpu", "--rows", "softmax,copy", "--small", "--time", "0.05"];
    let arguments = [&arguments[..], &["--json", &json, "--plots", &plots, "--peers", &peers]].concat();
    let table = text(&netcl(folder.path(), &arguments));
    assert!(table.contains("At most: copies") && table.contains("Peer 1") && table.contains("1.500 ms ("), "{table}");

    let run: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((&run["schema"], &run["tool"]), (&Value::from(1), &Value::from("netcl")));
    assert!(run["ceilings"]["copy_gb_per_s"].as_f64().unwrap() > 0.0);
    let rows = run["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["id"], &rows[1]["id"]), (2, &Value::from("softmax"), &Value::from("copy")));
    for row in rows {
        assert!(row["right"] == true && row["median_ms"].as_f64() >= row["best_ms"].as_f64(), "{row}");
    }
    for name in ["roofline.svg", "bars.svg"] {
        let drawing = std::fs::read_to_string(Path::new(&plots).join(name)).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.contains("softmax"), "{name}");
    }
    // Our own file is one that we can be compared with.
    let again = ["bench", "--device", "cpu", "--rows", "copy", "--small", "--time", "0.05", "--peers", &json];
    assert!(text(&netcl(folder.path(), &again)).contains("x)"));
}

#[test]
fn steps_are_profiled_and_timed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (page, trace, json) = (path("page.html"), path("trace.json"), path("run.json"));
    for mode in ["train", "captured", "infer"] {
        let arguments =
            ["profile", "--model", "mlp", "--device", "cpu", "--steps", "2", "--mode", mode, "--html", &page];
        let table = text(&netcl(folder.path(), &[&arguments[..], &["--trace", &trace]].concat()));
        assert!(table.contains("Sequential") && table.contains("GFLOP/s") && table.contains(&page), "{table}");
        assert_eq!(table.contains("optimizer"), mode != "infer", "{table}");
        assert!(std::fs::read_to_string(&page).unwrap().contains("Sequential.1"));
        let events: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
        assert!(!events["traceEvents"].as_array().unwrap().is_empty());
    }
    let arguments = ["bench", "--device", "cpu", "--rows", "step_mlp", "--small", "--time", "0.05", "--json", &json];
    let table = text(&netcl(folder.path(), &arguments));
    assert!(table.contains("captured") && table.contains("mlp"), "{table}");
    let run: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert!(run["training_steps"][0]["captured_ms"].as_f64().unwrap() > 0.0, "{run}");
    assert!(errors(&netcl(folder.path(), &["profile", "--steps", "0"])).contains("--steps"));
}

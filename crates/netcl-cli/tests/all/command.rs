//! The real binary: exit codes, JSON, a hidden library, an empty machine, a device that fails, Ctrl+C.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// `netcl` with arguments and variables, in an environment without those that would change its answers.
fn command(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netcl"));
    for name in ["NETCL_DEVICE", "NETCL_LIMITS", "NETCL_CACHE", "NETCL_OPENCL_LIB"] {
        command.env_remove(name);
    }
    command.args(arguments).envs(variables.iter().copied());
    command
}

fn netcl(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    command(arguments, variables).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the command, which must succeed and print JSON.
fn json(arguments: &[&str], variables: &[(&str, &str)]) -> Value {
    let output = netcl(arguments, variables);
    assert!(output.status.success(), "{arguments:?}: {} {}", output.status, errors(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
}

const HIDDEN: (&str, &str) = ("NETCL_OPENCL_LIB", "/nonexistent");

fn has_opencl() -> bool {
    let devices = json(&["devices", "--json"], &[]);
    let found = devices["devices"].as_array().unwrap().len() > 1;
    if !found {
        eprintln!("NOT TESTED: there is no OpenCL device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device");
    }
    found
}

#[test]
fn the_bare_command_reports_and_tests_every_device() {
    let output = netcl(&[], &[]);
    assert_eq!(output.status.code(), Some(0), "{} {}", text(&output), errors(&output));
    let text = text(&output);
    assert!(text.contains("[cpu]") && text.contains("Self-test") && text.contains("random bits"), "{text}");
    assert!(!text.contains("FAILED") && !text.contains('│'), "plain text where there is no terminal: {text}");
}

#[test]
fn devices_are_listed_as_json() {
    let list = json(&["devices", "--json"], &[]);
    let devices = list["devices"].as_array().unwrap();
    let (cpu, others) = devices.split_last().unwrap();
    assert_eq!((&cpu["selector"], &cpu["backend"]), (&Value::from("cpu"), &Value::from("cpu")));
    for (index, device) in others.iter().enumerate() {
        assert_eq!(device["selector"], index.to_string());
        for key in ["platform", "name", "type", "driver_version", "opencl_version", "architecture"] {
            assert!(device[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {device}");
        }
        for key in ["memory_bytes", "compute_units", "local_memory_bytes", "static_local_memory_bytes"] {
            assert!(device[key].as_u64().is_some_and(|number| number > 0), "{key}: {device}");
        }
        for key in ["fp16_storage", "fp16_arithmetic", "fp64", "unified_memory"] {
            assert!(device[key].is_boolean(), "{key}: {device}");
        }
        assert!(device["matrix_units"].is_array());
    }
    let plain = text(&netcl(&["devices"], &[]));
    assert!(devices.iter().all(|device| plain.contains(device["name"].as_str().unwrap())), "{plain}");
}

#[test]
fn the_doctor_tests_and_measures() {
    let report = json(&["doctor", "--json"], &[("NETCL_MAX_CACHED_GB", "1")]);
    assert_eq!(report["passed"], true);
    for device in report["devices"].as_array().unwrap() {
        let tests = device["self_test"].as_array().unwrap();
        assert!(tests.len() >= 9 && tests.iter().all(|test| test["outcome"] != "failed"), "{device}");
        let measured = device["measured"].as_array().unwrap();
        assert!(measured.iter().all(|figure| figure["value"].as_f64().is_some_and(|value| value > 0.0)));
        let least = if device["selector"] == "cpu" { 4 } else { 11 };
        assert!(measured.len() >= least, "{device}");
    }
    let variables = report["environment"].as_array().unwrap();
    assert!(variables.iter().any(|one| one["name"] == "NETCL_MAX_CACHED_GB" && one["value"] == "1"), "{variables:?}");
}

#[test]
fn the_doctor_looks_at_one_device() {
    let report = json(&["doctor", "--json", "--device", "cpu"], &[]);
    assert_eq!(report["devices"].as_array().unwrap().len(), 1);
    let output = netcl(&["doctor", "--device", "cpu"], &[]);
    assert!(text(&output).contains("Measured") && !text(&output).contains("[0]"), "{}", text(&output));
    let output = netcl(&["doctor", "--device", "no-such-device"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = errors(&output);
    assert!(text.contains("no device matches \"no-such-device\"; available") && text.contains("cpu ("), "{text}");
    let output = netcl(&["tune"], &[("NETCL_DEVICE", "no-such-device")]);
    let text = errors(&output);
    assert!(text.contains("no device matches \"no-such-device\" (NETCL_DEVICE says so); available"), "{text}");
}

#[test]
fn a_machine_without_opencl_gets_the_cpu_and_advice() {
    let output = netcl(&[], &[HIDDEN]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let plain = text(&output);
    assert!(plain.contains("[cpu]") && !plain.contains("[0]"), "{plain}");
    assert!(plain.contains("NETCL_OPENCL_LIB names a file") && !plain.contains("apt install"), "{plain}");
    let list = json(&["devices", "--json"], &[HIDDEN]);
    assert_eq!(list["devices"].as_array().unwrap().len(), 1);
    assert!(list["failures"][0]["problem"].as_str().unwrap().contains("/nonexistent"), "{list}");
    let report = json(&["doctor", "--json"], &[HIDDEN]);
    assert_eq!(report["passed"], true);
    assert!(report["advice"].to_string().contains("correct or unset it"), "{report}");
    assert_eq!(netcl(&["doctor"], &[HIDDEN]).status.code(), Some(0));
}

#[test]
fn a_loader_without_drivers_is_told_apart() {
    if !has_opencl() {
        return;
    }
    let empty = tempfile::tempdir().unwrap();
    let report = json(&["doctor", "--json", "--device", "cpu"], &[("OCL_ICD_VENDORS", empty.path().to_str().unwrap())]);
    let advice = report["advice"].to_string();
    assert!(advice.contains("finds no driver") && advice.contains("pocl-opencl-icd"), "{advice}");
    assert!(!advice.contains("ocl-icd-libopencl1"), "the loader is there: {advice}");
}

#[test]
fn a_device_that_fails_its_self_test_is_an_exit_code() {
    if !has_opencl() {
        return;
    }
    // Buffers of at most 64 KiB: the uploads of the self-test do not fit.
    let output = netcl(&[], &[("NETCL_LIMITS", "alloc=64k"), ("NETCL_CACHE", "0")]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("FAILED") && text(&output).contains("[0] upload and download:"),
        "{}",
        text(&output)
    );
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for arguments in [&["fly"][..], &["devices", "--yaml"], &["cache"], &["cache", "prune", "--max-size", "lots"]] {
        assert_eq!(netcl(arguments, &[]).status.code(), Some(2), "{arguments:?}");
    }
    assert!(netcl(&["--version"], &[]).status.success());
    let output = netcl(&["cache", "prune"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("--max-size"), "{}", errors(&output));
}

#[test]
fn completions_are_a_script_that_bash_reads() {
    let script = text(&netcl(&["completions", "bash"], &[]));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("netcl.bash");
    std::fs::write(&file, script).unwrap();
    let asked = "source \"$0\"; COMP_WORDS=(netcl tr); COMP_CWORD=1; _netcl netcl tr netcl; echo \"${COMPREPLY[*]}\"";
    let output = Command::new("bash").args(["-c", asked, file.to_str().unwrap()]).output().unwrap();
    assert_eq!(text(&output).trim(), "train", "{}", errors(&output));
    assert_eq!(netcl(&["completions", "no-such-shell"], &[]).status.code(), Some(2));
}

#[test]
fn manual_pages_have_every_command_and_its_options() {
    let page = text(&netcl(&["man"], &[]));
    assert!(page.contains(".TH netcl 1") && page.contains("train") && page.contains("Exit code"), "{page}");
    let page = text(&netcl(&["man", "train"], &[]));
    assert!(page.contains(".TH netcl\\-train 1") || page.contains(".TH netcl-train 1"), "{page}");
    assert!(page.contains("epochs"), "{page}");
    let wrong = netcl(&["man", "fly"], &[]);
    assert!(wrong.status.code() == Some(1) && errors(&wrong).contains("there is no command fly"), "{}", errors(&wrong));
}

#[test]
fn the_cache_is_listed_pruned_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let place = [("NETCL_CACHE_DIR", folder.path().to_str().unwrap())];
    let programs = |list: &Value| {
        let stores = list["stores"].as_array().unwrap();
        stores.iter().find(|store| store["kind"] == "programs").unwrap()["entries"].as_array().unwrap().clone()
    };
    assert!(programs(&json(&["cache", "list", "--json"], &place)).is_empty());
    let off = json(&["cache", "list", "--json"], &[("NETCL_CACHE", "0")]);
    assert_eq!(off["enabled"], false);
    if !has_opencl() {
        return;
    }
    assert!(netcl(&[], &place).status.success());
    let entries = programs(&json(&["cache", "list", "--json"], &place));
    assert!(entries.iter().any(|entry| entry["kernels"].to_string().contains("netcl_doctor_random")), "{entries:?}");
    let plain = text(&netcl(&["cache", "list"], &place));
    assert!(plain.contains("netcl_doctor_random") && plain.contains("programs: "), "{plain}");
    let kept = json(&["cache", "prune", "--json", "--older-than", "1", "--max-size", "1G"], &place);
    assert_eq!(kept["removed"], 0);
    let pruned = json(&["cache", "prune", "--json", "--max-size", "100K"], &place);
    assert!(pruned["removed"].as_u64().unwrap() > 0, "{pruned}");
    let left = programs(&json(&["cache", "list", "--json"], &place));
    let bytes: u64 = left.iter().map(|entry| entry["bytes"].as_u64().unwrap()).sum();
    assert!(!left.is_empty() && bytes <= 100 << 10, "{left:?}");
    assert!(text(&netcl(&["cache", "clear"], &place)).contains("Removed"));
    assert!(programs(&json(&["cache", "list", "--json"], &place)).is_empty());
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = command(&["devices"], &[]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_doctor_in_order_with_130() {
    if !has_opencl() {
        return;
    }
    // Nothing from a cache, so that there is time to interrupt.
    let empty = tempfile::tempdir().unwrap();
    let variables = [("NETCL_CACHE", "0"), ("POCL_CACHE_DIR", empty.path().to_str().unwrap())];
    let mut doctor = command(&["doctor"], &variables);
    let mut child = doctor.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(600));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(30), "the command does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{} {}", output.status, errors(&output));
    assert!(errors(&output).contains("interrupted"), "{}", errors(&output));
}

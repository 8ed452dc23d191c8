use std::path::Path;
use std::process::Command;

use super::*;

#[test]
fn every_kind_of_value_is_read_and_nonsense_is_not() {
    let cases: [(Variable, &[&str], &[&str]); 7] = [
        (JIT, &["0", "1"], &["2", "yes", "-1", "true"]),
        (MATMUL_PRECISION, &["highest", "HIGH", "medium"], &["low", "high,medium", "bogus"]),
        (NUM_THREADS, &["1", "16", "1024"], &["0", "-2", "2.5", "1025", "bogus", "99999999999999999999999"]),
        (MAX_CACHED_GB, &["0", "0.5", "inf", "1e3"], &["-1", "nan", "4GB", "1,5"]),
        (CACHE_MAX, &["1", "512M", "2g"], &["0", "-5", "5T", "1.5G"]),
        (Variable { name: "NETCL_LIMITS", ..LIMITS }, &["wg=64,no_fp64"], &["wg", "wg=many", "no_such"]),
        (DEBUG, &["0", "4"], &["5", "loud"]),
    ];
    for (variable, good, bad) in cases {
        for text in good {
            assert!(variable.allows(text), "{}={text}", variable.name);
        }
        for text in bad {
            assert!(!variable.allows(text), "{}={text}", variable.name);
        }
    }
    // What the table says holds where nothing is set must be something that could be set.
    for variable in TABLE.iter().filter(|v| !matches!(v.values, Text(_) | Values::Limits) && **v != NUM_THREADS) {
        assert!(variable.allows(variable.default), "{variable:?}");
    }
}

#[test]
fn a_misspelt_name_is_told_the_right_one() {
    for (wrong, right) in [
        ("NETCL_NUMTHREADS", "NETCL_NUM_THREADS"),
        ("NETCL_THREADS", "NETCL_NUM_THREADS"),
        ("NETCL_MATMUL_PRECISON", "NETCL_MATMUL_PRECISION"),
        ("NETCL_CACHEDIR", "NETCL_CACHE_DIR"),
        ("NETCL_debug", "NETCL_DEBUG"),
    ] {
        assert_eq!(closest(wrong), right, "{wrong}");
    }
}

#[test]
#[ignore = "run by nonsense_is_named_once_and_the_default_is_used in a process of its own"]
fn child() {
    use crate::backend::cpu::num_threads;
    use crate::precision::{MatmulPrecision, matmul_precision};
    for _ in 0..3 {
        assert_eq!(num_threads(), std::thread::available_parallelism().map_or(1, usize::from));
        assert_eq!(matmul_precision(), MatmulPrecision::Highest);
        assert!(JIT.switch() && !AUTOTUNE.switch() && CACHE_MAX.size().is_none() && SIMD.word().is_none());
        assert_eq!(LIMITS.limits(), Limits::default());
    }
}

#[test]
fn nonsense_is_named_once_and_the_default_is_used() {
    let set = [
        ("NETCL_NUM_THREADS", "bogus"),
        ("NETCL_MATMUL_PRECISION", "bogus"),
        ("NETCL_JIT", "maybe"),
        ("NETCL_AUTOTUNE", "yes"),
        ("NETCL_CACHE_MAX", "much"),
        ("NETCL_SIMD", "sse9"),
        ("NETCL_LIMITS", "wg=many"),
        ("NETCL_DEBUG", "loud"),
    ];
    let mut command = Command::new(std::env::current_exe().unwrap());
    TABLE.iter().for_each(|variable| _ = command.env_remove(variable.name));
    command.args(["--exact", "env::tests::child", "--ignored", "--nocapture"]).envs(set).env("NETCL_NUMTHREADS", "4");
    let output = command.env("NETCL_TEST_ANYTHING", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    for (name, value) in set {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("netcl: {name}: "))).collect();
        let variable = TABLE.iter().find(|variable| variable.name == name).unwrap();
        assert_eq!(lines, [format!("netcl: {}", variable.complaint(value))], "{text}");
    }
    let unknown =
        "netcl: NETCL_NUMTHREADS: there is no such variable and it does nothing; did you mean NETCL_NUM_THREADS?";
    assert_eq!(text.lines().filter(|line| line.contains("NETCL_NUMTHREADS")).collect::<Vec<_>>(), [unknown]);
    assert!(!text.contains("NETCL_TEST_ANYTHING"), "{text}");
}

#[test]
fn the_readme_has_the_table() {
    let readme = include_str!("../../../../README.md");
    let mut table = "| variable | values | default | meaning |\n|---|---|---|---|\n".to_owned();
    for Variable { name, values, default, meaning } in TABLE {
        table += &format!("| `{name}` | {values} | {default} | {meaning} |\n");
    }
    assert!(readme.contains(&table), "the README's table should be:\n{table}");
}

/// The sources below a folder.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn nobody_else_reads_variables_of_ours() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(crates).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut found);
    }
    let reads = |line: &str| line.contains("env::var") && (line.contains("NETCL_") || line.contains("_VARIABLE"));
    let lines: Vec<String> = found
        .iter()
        .filter(|(path, _)| !path.contains("tests"))
        .flat_map(|(path, text)| text.lines().filter(|line| reads(line)).map(move |line| format!("{path}: {line}")))
        .filter(|line| !line.contains("///"))
        .collect();
    // netcl-data depends on no crate of ours.
    assert!(lines.len() == 1 && lines[0].contains("netcl-data"), "{lines:#?}");
}

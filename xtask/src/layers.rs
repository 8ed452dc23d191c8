//! The layers stage: which crate of the workspace may depend on which.
//!
//! Cargo already forbids cycles; this table forbids shortcuts (a layer that reaches past the one below it), which Cargo
//! would accept. A new edge is a decision about the architecture: change this table and `docs/src/architecture.md` together.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::capture;
use crate::report::Outcome;
use crate::workspace::Workspace;

/// Crate, and the crates of the workspace that it may use. Tests (dev-dependencies) may use more.
const ALLOWED: &[(&str, &[&str])] = &[
    ("netcl-derive", &[]),
    ("netcl-data", &[]),
    ("netcl-core", &[]),
    ("netcl-ops", &["netcl-core"]),
    ("netcl-runtime", &["netcl-core"]),
    ("netcl-autograd", &["netcl-core", "netcl-ops", "netcl-runtime"]),
    ("netcl-nn", &["netcl-autograd", "netcl-derive"]),
    ("netcl-optim", &["netcl-autograd", "netcl-ops"]),
    ("netcl-amp", &["netcl-optim"]),
    ("netcl-io", &["netcl-nn", "netcl-optim", "netcl-amp"]),
    ("netcl-distributed", &["netcl-nn", "netcl-optim", "netcl-io"]),
    ("netcl-profiling", &["netcl-ops", "netcl-runtime"]),
    ("netcl-augment", &["netcl-data", "netcl-ops"]),
    ("netcl-trainer", &["netcl-distributed", "netcl-io", "netcl-profiling", "netcl-augment", "netcl-data"]),
    (
        "netcl",
        &[
            "netcl-derive",
            "netcl-data",
            "netcl-core",
            "netcl-ops",
            "netcl-runtime",
            "netcl-autograd",
            "netcl-nn",
            "netcl-optim",
            "netcl-amp",
            "netcl-io",
            "netcl-distributed",
            "netcl-profiling",
            "netcl-augment",
            "netcl-trainer",
        ],
    ),
    ("netcl-cli", &["netcl"]),
    ("netcl-python", &["netcl"]),
    ("xtask", &[]),
];

type Edges = BTreeMap<String, BTreeSet<String>>;

/// Compares the workspace's dependencies with the table.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let complaints = complaints(&edges(&metadata(workspace)?)?);
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n"));
    }
    println!("{} crates, each sees only the layers it may see", ALLOWED.len());
    Ok(Outcome::Passed)
}

/// What cargo knows of the workspace's own crates.
pub(crate) fn metadata(workspace: &Workspace) -> Result<Value> {
    let text = capture(&mut workspace.cargo("metadata --no-deps --format-version 1"))?;
    serde_json::from_str(&text).context("cargo metadata printed something that is not JSON")
}

/// Each crate of the workspace with the crates of the workspace it needs to be built (dev-dependencies left out).
fn edges(metadata: &Value) -> Result<Edges> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let name = |value: &Value| {
        value["name"].as_str().map(str::to_owned).context("cargo metadata has a package without a name")
    };
    let members = packages.iter().map(name).collect::<Result<BTreeSet<_>>>()?;
    let mut edges = Edges::new();
    for package in packages {
        let mut used = BTreeSet::new();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let dependency_name = name(dependency)?;
            if dependency["kind"] != "dev" && members.contains(&dependency_name) {
                used.insert(dependency_name);
            }
        }
        edges.insert(name(package)?, used);
    }
    Ok(edges)
}

/// What the workspace does that the table does not allow.
fn complaints(edges: &Edges) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut complaints = Vec::new();
    for (name, used) in edges {
        let Some(may) = allowed.get(name.as_str()) else {
            complaints.push(format!("{name} has no row in xtask/src/layers.rs: say there which crates it may use"));
            continue;
        };
        for other in used.iter().filter(|other| !may.contains(&other.as_str())) {
            let may = if may.is_empty() { "no crate of the workspace".to_owned() } else { may.join(", ") };
            complaints.push(format!(
                "{name} depends on {other}, but may use {may}: go through these, or change the architecture"
            ));
        }
    }
    for name in allowed.keys().filter(|name| !edges.contains_key(**name)) {
        complaints.push(format!("xtask/src/layers.rs has a row for {name}, which is no crate of the workspace"));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn as_allowed() -> Edges {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        ALLOWED.iter().map(|(name, may)| ((*name).to_owned(), names(may))).collect()
    }

    #[test]
    fn the_table_has_no_cycle_and_reads_from_low_to_high() {
        let mut seen = BTreeSet::new();
        for (name, may) in ALLOWED {
            assert!(may.iter().all(|other| seen.contains(other)), "{name} stands before a crate it may use");
            assert!(seen.insert(*name), "{name} has two rows");
        }
    }

    #[test]
    fn what_the_table_allows_is_fine_and_so_is_less() {
        assert_eq!(complaints(&as_allowed()), Vec::<String>::new());
        let mut fewer = as_allowed();
        fewer.get_mut("netcl-autograd").unwrap().clear();
        assert_eq!(complaints(&fewer), Vec::<String>::new());
    }

    #[test]
    fn a_shortcut_a_new_crate_and_a_lost_crate_are_named() {
        let mut edges = as_allowed();
        edges.get_mut("netcl-nn").unwrap().insert("netcl-ops".to_owned());
        edges.insert("netcl-new".to_owned(), BTreeSet::new());
        edges.remove("netcl-amp");
        let text = complaints(&edges).join("\n");
        assert!(text.contains("netcl-nn depends on netcl-ops"), "{text}");
        assert!(text.contains("netcl-new has no row"), "{text}");
        assert!(text.contains("row for netcl-amp"), "{text}");
    }

    #[test]
    fn dev_dependencies_and_other_people_s_crates_do_not_count() {
        let metadata = json!({ "packages": [
            { "name": "a", "dependencies": [
                { "name": "b", "kind": null },
                { "name": "c", "kind": "dev" },
                { "name": "serde", "kind": null },
            ] },
            { "name": "b", "dependencies": [{ "name": "c", "kind": "build" }] },
            { "name": "c", "dependencies": [] },
        ] });
        let edges = edges(&metadata).unwrap();
        assert_eq!(edges["a"], BTreeSet::from(["b".to_owned()]));
        assert_eq!(edges["b"], BTreeSet::from(["c".to_owned()]));
    }
}

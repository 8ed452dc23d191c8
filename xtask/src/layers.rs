//! The layers stage: which crate of the workspace may depend on which.
//!
//! Cargo already forbids cycles; this table forbids shortcuts (a layer that reaches past the one below it), which Cargo
//! would accept. A new edge is a decision about the architecture: change this table and `docs/src/architecture.md` together.
//!
//! A re-export is an edge that no `Cargo.toml` shows: `pub use netcl_core as core` gives a crate's users all of the core. Types and
//! functions may be re-exported by name; a whole crate or module only where all users of the crate may see its origin as well.
//!
//! Inside of a crate, [`cycles`] keeps files from importing each other in large circles.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cycles;
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
    // Of netcl-data it knows the error, which becomes the one that users meet.
    ("netcl-autograd", &["netcl-core", "netcl-data", "netcl-ops", "netcl-runtime"]),
    ("netcl-nn", &["netcl-autograd", "netcl-derive"]),
    ("netcl-optim", &["netcl-autograd", "netcl-core"]),
    ("netcl-amp", &["netcl-autograd", "netcl-core", "netcl-optim"]),
    ("netcl-io", &["netcl-autograd", "netcl-nn", "netcl-optim", "netcl-amp"]),
    ("netcl-onnx", &["netcl-autograd", "netcl-nn"]),
    ("netcl-distributed", &["netcl-core", "netcl-runtime", "netcl-autograd", "netcl-nn", "netcl-optim", "netcl-io"]),
    ("netcl-profiling", &["netcl-core", "netcl-ops", "netcl-runtime"]),
    ("netcl-augment", &["netcl-data", "netcl-core", "netcl-autograd"]),
    (
        "netcl-trainer",
        &[
            "netcl-core",
            "netcl-runtime",
            "netcl-amp",
            "netcl-autograd",
            "netcl-nn",
            "netcl-optim",
            "netcl-distributed",
            "netcl-io",
            "netcl-profiling",
            "netcl-augment",
            "netcl-data",
        ],
    ),
    (
        FACADE,
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
            "netcl-onnx",
            "netcl-distributed",
            "netcl-profiling",
            "netcl-augment",
            "netcl-trainer",
        ],
    ),
    ("netcl-cli", &["netcl"]),
    ("netcl-c", &["netcl"]),
    // The wheel has the command, which gives its arguments and gets an exit code back.
    ("netcl-python", &["netcl", "netcl-cli"]),
    ("xtask", &[]),
];

/// Shows its users everything: that is what it is for.
const FACADE: &str = "netcl";

/// The files of each crate, by their path in `src`.
type Sources = BTreeMap<String, BTreeMap<String, String>>;

type Edges = BTreeMap<String, BTreeSet<String>>;

/// Compares the workspace's dependencies and re-exports with the table.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let metadata = metadata(workspace)?;
    let mut complaints = complaints(&edges(&metadata)?);
    let sources = sources(&metadata)?;
    complaints.extend(doors(&sources));
    complaints.extend(sources.iter().flat_map(|(name, files)| cycles::complaints(name, files)));
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

fn packages(metadata: &Value) -> Result<&[Value]> {
    metadata["packages"].as_array().map(Vec::as_slice).context("cargo metadata lists no packages")
}

fn name(package: &Value) -> Result<String> {
    package["name"].as_str().map(str::to_owned).context("cargo metadata has a package without a name")
}

/// Each crate of the workspace with the crates of the workspace it needs to be built (dev-dependencies left out).
fn edges(metadata: &Value) -> Result<Edges> {
    let packages = packages(metadata)?;
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

/// The text of all crates of the workspace.
fn sources(metadata: &Value) -> Result<Sources> {
    let mut sources = Sources::new();
    for package in packages(metadata)? {
        let manifest = package["manifest_path"].as_str().context("cargo metadata has a package without a manifest")?;
        let folder = Path::new(manifest).with_file_name("src");
        read(&folder, &folder, sources.entry(name(package)?).or_default())?;
    }
    Ok(sources)
}

fn read(folder: &Path, root: &Path, files: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, root, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            files.insert(path.strip_prefix(root)?.to_string_lossy().replace('\\', "/"), text);
        }
    }
    Ok(())
}

/// Whole crates and modules that are re-exported to a crate which may not see them.
fn doors(sources: &Sources) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, files) in sources.iter().filter(|(name, _)| *name != FACADE) {
        for (file, text) in files {
            for path in re_exports(text).into_iter().filter(|path| is_whole(path, sources)) {
                let origin = crate_of(&path);
                let (may, not) = (name.as_str(), origin.as_str());
                let reaches = ALLOWED.iter().filter(|(_, used)| used.contains(&may) && !used.contains(&not));
                let reaches = reaches.map(|(user, _)| *user).collect::<Vec<_>>().join(", ");
                if !reaches.is_empty() {
                    complaints.push(format!(
                        "{name} re-exports {path} as a whole (src/{file}), past the layers of {reaches}: re-export the types and \
                         functions that are needed, by name"
                    ));
                }
            }
        }
    }
    complaints
}

/// The paths that a file re-exports from other crates of the workspace, one for each name; by its text, so that a macro's
/// re-exports stay unseen.
fn re_exports(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")).collect();
    let mut paths = Vec::new();
    for (i, line) in code.iter().enumerate() {
        let start = line.strip_prefix("pub use ").or_else(|| line.strip_prefix("pub extern crate "));
        let Some(start) = start.map(|start| start.trim_start_matches("::")).filter(|start| start.starts_with("netcl"))
        else {
            continue;
        };
        let statement = [&[start], &code[i + 1..]].concat().join(" ");
        expand("", statement.split(';').next().unwrap_or(""), &mut paths);
    }
    paths
}

/// The paths of a `use` tree: `a` and `a::b` for `a::{self as z, b}`, without the names they get.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, branches)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        if !path.is_empty() {
            paths.push(format!("{prefix}{path}").trim_end_matches("::self").to_owned());
        }
        return;
    };
    let prefix = format!("{prefix}{}", head.trim());
    let (mut depth, mut start) = (0, 0);
    for (i, letter) in branches.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                expand(&prefix, &branches[start..i], paths);
                start = i + 1;
            }
            _ => {}
        }
    }
}

fn crate_of(path: &str) -> String {
    path.split("::").next().unwrap_or(path).replace('_', "-")
}

/// Whether a path names a crate, a module or all of its names, and not one type or function. A name in lower case that is no
/// function of its crate counts as a module.
fn is_whole(path: &str, sources: &Sources) -> bool {
    let Some((_, inside)) = path.split_once("::") else { return true };
    let leaf = inside.rsplit("::").next().unwrap_or(inside);
    if leaf.starts_with(char::is_uppercase) {
        return false;
    }
    let Some(files) = sources.get(&crate_of(path)) else { return true };
    let module = inside.replace("::", "/");
    let function = [format!("fn {leaf}("), format!("fn {leaf}<")];
    [format!("{module}.rs"), format!("{module}/mod.rs")].iter().any(|file| files.contains_key(file))
        // The function itself may come from a layer below, by name.
        || !sources.values().flat_map(BTreeMap::values).any(|text| function.iter().any(|start| text.contains(start)))
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

    fn with(name: &str, text: &str) -> Sources {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let core = [
            file("lib.rs", "pub mod device;\npub mod tensor;"),
            file("device.rs", "pub fn manager() {}\npub fn device<'a>(selector: &'a str) {}"),
            file("tensor/mod.rs", "pub struct Tensor;"),
        ];
        let ours = BTreeMap::from([file("inner/mod.rs", text)]);
        Sources::from([("netcl-core".to_owned(), core.into()), (name.to_owned(), ours)])
    }

    #[test]
    fn types_and_functions_may_be_re_exported() {
        let text = "pub use netcl_core::device::{device, manager};\n\
                    pub use netcl_core::{\n    // Both.\n    Error as CoreError,\n    tensor::{Tensor as Raw, HostOptions},\n};";
        assert_eq!(doors(&with("netcl-autograd", text)), Vec::<String>::new());
        assert_eq!(
            re_exports(text)[2..],
            ["netcl_core::Error", "netcl_core::tensor::Tensor", "netcl_core::tensor::HostOptions"]
        );
    }

    #[test]
    fn whole_crates_and_modules_may_not() {
        for text in [
            "pub use netcl_core;",
            "pub use ::netcl_core as core;",
            "pub extern crate netcl_core;",
            "    pub use netcl_core::*;",
            "pub use netcl_core::tensor;",
            "pub use netcl_core::device;",
            "pub use netcl_core::device::*;",
            "pub use netcl_core::device::{self as devices, manager};",
            "pub use netcl_core::{Error, tensor::{Tensor,\n *}};",
            "pub use netcl_core::inline_module;",
        ] {
            let complaints = doors(&with("netcl-autograd", text));
            assert_eq!(complaints.len(), 1, "{text}: {complaints:?}");
            assert!(
                complaints[0].contains("(src/inner/mod.rs), past the layers of netcl-nn, netcl-io"),
                "{complaints:?}"
            );
        }
    }

    #[test]
    fn private_imports_the_facade_and_what_all_users_may_see_are_fine() {
        for (name, text) in [
            ("netcl-autograd", "pub(crate) use netcl_core::device;\nuse netcl_core as core;\n// pub use netcl_core;"),
            (FACADE, "pub use netcl_core as core;"),
            ("netcl-amp", "pub use netcl_autograd as autograd;\npub use netcl_autograd::ops::*;"),
        ] {
            assert_eq!(doors(&with(name, text)), Vec::<String>::new(), "{text}");
        }
    }
}

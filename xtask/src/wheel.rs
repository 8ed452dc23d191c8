//! `cargo xtask wheel`: the wheels and the source distribution of a release.
//!
//! zig links for any of the platforms, against the glibc of manylinux2014 or musl, whatever this machine has; maturin refuses a wheel
//! that asks for a newer one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::install::python;
use crate::platforms::{WHEELS, has_std};
use crate::process::stream;
use crate::workspace::Workspace;

/// The most bytes of a wheel.
const MOST: u64 = 15 << 20;

/// Builds into `wheels/` of the checkout, for the named targets or for every one whose standard library is here; an error where a wheel
/// is larger than [`MOST`].
pub(crate) fn run(workspace: &Workspace, only: &[String]) -> Result<()> {
    if let Some(gap) = python::gap(workspace) {
        bail!("{}: cargo xtask test --only install", gap.missing);
    }
    stream(&mut workspace.python_module("pip install --quiet --disable-pip-version-check ziglang"))?;
    let folder = workspace.root().join("wheels");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("{} could not be removed", folder.display()))?;
    }
    stream(workspace.python_module("maturin sdist --out").arg(&folder))?;
    for (target, tag) in WHEELS {
        if !only.is_empty() && !only.iter().any(|name| name == target) {
            continue;
        }
        if !has_std(workspace, target) {
            if !only.is_empty() {
                bail!("no standard library for {target}: rustup target add {target}");
            }
            println!("no wheel for {target}: rustup target add {target}");
            continue;
        }
        let line = format!("maturin build --release --zig --compatibility {tag} --target {target} --out");
        // The zig of the virtual environment, which need not be in PATH.
        let mut build = workspace.python_module(&line);
        build.env("CARGO_ZIGBUILD_PYTHON_PATH", workspace.python());
        stream(build.arg(&folder).arg("--interpreter").arg(workspace.python()))?;
    }
    let mut too_large = Vec::new();
    for (file, bytes) in files(&folder)? {
        println!("{:8.2} MiB  {}", bytes as f64 / f64::from(1 << 20), file.display());
        if bytes > MOST {
            too_large.push(file.display().to_string());
        }
    }
    if !too_large.is_empty() {
        bail!("larger than {} MiB: {}", MOST >> 20, too_large.join(", "));
    }
    Ok(())
}

/// What was built, with sizes, by name.
fn files(folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("maturin left no folder {}", folder.display()))? {
        let entry = entry?;
        found.push((entry.path(), entry.metadata()?.len()));
    }
    found.sort();
    Ok(found)
}

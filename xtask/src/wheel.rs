//! `cargo xtask wheel`: the wheels and the source distribution of a release.
//!
//! zig links for any of the platforms, against the glibc of manylinux2014 or musl, whatever this machine has; maturin refuses a wheel
//! that asks for a newer one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::install::python;
use crate::process::{capture, stream};
use crate::workspace::Workspace;

/// Every target that a release is built for, with the tag of its wheel. One whose standard library rustup has not installed is left
/// out, with a line.
const TARGETS: [(&str, &str); 4] = [
    ("x86_64-unknown-linux-gnu", "manylinux2014"),
    ("aarch64-unknown-linux-gnu", "manylinux2014"),
    ("x86_64-unknown-linux-musl", "musllinux_1_2"),
    ("aarch64-unknown-linux-musl", "musllinux_1_2"),
];
/// The most bytes of a wheel.
const MOST: u64 = 15 << 20;

/// Builds into `wheels/` of the checkout; an error where a wheel is larger than [`MOST`].
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    if let Some(gap) = python::gap(workspace) {
        bail!("{}: cargo xtask test --only install", gap.missing);
    }
    stream(&mut workspace.python_module("pip install --quiet --disable-pip-version-check ziglang"))?;
    let folder = workspace.root().join("wheels");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("{} could not be removed", folder.display()))?;
    }
    stream(workspace.python_module("maturin sdist --out").arg(&folder))?;
    let installed = capture(workspace.command("rustup").args(["target", "list", "--installed"]))?;
    for (target, tag) in TARGETS {
        if !installed.lines().any(|line| line.trim() == target) {
            println!("no wheel for {target}: rustup target add {target}");
            continue;
        }
        let line = format!("maturin build --release --zig --compatibility {tag} --target {target} --out");
        stream(workspace.python_module(&line).arg(&folder).arg("--interpreter").arg(workspace.python()))?;
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

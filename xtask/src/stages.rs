//! The stages of `cargo xtask test`, in the order in which they run.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::install::{self, cargo_tools, python};
use crate::process::{capture, stream, succeeds};
use crate::report::{Outcome, Report};
use crate::workspace::Workspace;
use crate::{bench, layers, limits, oclgrind, platforms};

/// One stage. Those after `Python` belong to the full run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Stage {
    Install,
    Fmt,
    Layers,
    Clippy,
    Rust,
    Doctests,
    Docs,
    Wheel,
    Static,
    Python,
    Oclgrind,
    Limits,
    Platforms,
    Benches,
    Book,
    Deny,
}

impl Stage {
    /// The stages of a run: the named ones, or all of the plain or full run.
    pub(crate) fn select(full: bool, only: &[Stage]) -> Vec<Stage> {
        let wanted =
            |stage: &Stage| if only.is_empty() { full || *stage <= Stage::Python } else { only.contains(stage) };
        Self::value_variants().iter().copied().filter(wanted).collect()
    }

    /// The name on the command line and in the closing table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Install => "install",
            Stage::Fmt => "fmt",
            Stage::Layers => "layers",
            Stage::Clippy => "clippy",
            Stage::Rust => "rust",
            Stage::Doctests => "doctests",
            Stage::Docs => "docs",
            Stage::Wheel => "wheel",
            Stage::Static => "static",
            Stage::Python => "python",
            Stage::Oclgrind => "oclgrind",
            Stage::Limits => "limits",
            Stage::Platforms => "platforms",
            Stage::Benches => "benches",
            Stage::Book => "book",
            Stage::Deny => "deny",
        }
    }

    /// What the stage does, in a few words.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Stage::Install => "install what the tests need",
            Stage::Fmt => "formatting",
            Stage::Layers => "each crate sees only the layers it may see",
            Stage::Clippy => "lints, warnings are errors",
            Stage::Rust => "Rust tests",
            Stage::Doctests => "examples in doc comments, README and book",
            Stage::Docs => "API documentation, warnings are errors",
            Stage::Wheel => "build the wheel and install it into .check/venv",
            Stage::Static => "lints, types and stubs of the Python code",
            Stage::Python => "Python tests and listings",
            Stage::Oclgrind => "kernels under a checker of memory accesses and races",
            Stage::Limits => "device tests on devices that pretend to be small",
            Stage::Platforms => "lints for other systems and architectures, warnings are errors",
            Stage::Benches => "every benchmark once",
            Stage::Book => "build the book",
            Stage::Deny => "licences, sources and advisories of the dependencies",
        }
    }

    /// Runs the stage.
    pub(crate) fn run(self, workspace: &Workspace, full: bool, report: &mut Report) -> Result<Outcome> {
        match self {
            Stage::Install => return install::run(workspace, full, report),
            Stage::Layers => return layers::run(workspace),
            Stage::Oclgrind => return oclgrind::run(workspace, report),
            Stage::Limits => return limits::run(workspace),
            Stage::Platforms => return platforms::run(workspace, report),
            Stage::Benches => return bench::run(workspace),
            Stage::Rust => return rust(workspace, full),
            Stage::Wheel => return wheel(workspace),
            Stage::Static => return python_checks(workspace, report),
            Stage::Python => return python_tests(workspace, full, report),
            Stage::Book => return book(workspace),
            Stage::Deny => return deny(workspace, report),
            Stage::Fmt => stream(&mut workspace.cargo("fmt --all --check"))?,
            Stage::Clippy => {
                stream(&mut workspace.cargo("clippy --workspace --all-targets --profile ci -- -D warnings"))?
            }
            // The whole workspace, also where it has no listings: a smaller selection has other features, and compiles anew.
            Stage::Doctests => stream(&mut workspace.cargo("test --doc --workspace --profile ci"))?,
            // Libraries only: the command line tool bears the facade's name, and the pages of the two would collide.
            Stage::Docs => {
                let mut command = workspace.cargo("doc --workspace --lib --no-deps --profile ci");
                stream(command.env("RUSTDOCFLAGS", "-Dwarnings"))?;
            }
        }
        Ok(Outcome::Passed)
    }
}

fn rust(workspace: &Workspace, full: bool) -> Result<Outcome> {
    if let Some(gap) = cargo_tools::gap(workspace, "cargo-nextest") {
        return Ok(Outcome::Skipped(gap));
    }
    let mut command = workspace.cargo("nextest run --workspace --cargo-profile ci");
    if full {
        command.args(["--run-ignored", "all"]).env("NETCL_TEST_FULL", "1");
    }
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        let runner = format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", std::env::consts::ARCH.to_uppercase());
        command.env(runner, workspace.test_runner());
    }
    stream(&mut command)?;
    Ok(Outcome::Passed)
}

/// Calls of the argument fuzzer in a full run (python/tests/test_fuzz.py has the number of a plain one).
const FUZZ_CALLS_FULL: &str = "60000";

/// Builds the wheel with the profile of the tests, so that only the binding itself is left to compile.
fn wheel(workspace: &Workspace) -> Result<Outcome> {
    if let Some(gap) = python::gap(workspace) {
        return Ok(Outcome::Skipped(gap));
    }
    // An old wheel must not be mistaken for the new one.
    let folder = workspace.wheels();
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("{} could not be removed", folder.display()))?;
    }
    for package in compiled_anew(workspace)? {
        println!("{package} has other features than in the tests: crates/netcl-python/Cargo.toml can give it the same");
    }
    // The tag of this machine ("linux"): a wheel that is installed here need not prove that it runs elsewhere.
    let mut build =
        workspace.python_module("maturin build --profile ci --features as-in-tests --compatibility linux --out");
    stream(build.arg(&folder).arg("--interpreter").arg(workspace.python()))?;
    let wheel = std::fs::read_dir(&folder)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("maturin left no wheel in {}", folder.display()))?;
    let mut install =
        workspace.python_module("pip install --quiet --disable-pip-version-check --force-reinstall --no-deps");
    stream(install.arg(wheel))?;
    Ok(Outcome::Passed)
}

/// Dependencies that the wheel would have with other features than the tests, and that are therefore compiled once more, with
/// everything above them.
fn compiled_anew(workspace: &Workspace) -> Result<Vec<String>> {
    let tree = |selection: &str| -> Result<BTreeSet<String>> {
        let line = format!("tree --locked --prefix none --format {{p}}:{{f}} --edges {selection}");
        let text = capture(&mut workspace.cargo(&line))?;
        Ok(text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect())
    };
    let (wheel, tests) = (tree("no-dev --package netcl-python --features as-in-tests")?, tree("all --workspace")?);
    let package = |line: &String| line.split([' ', ':']).next().unwrap_or_default().to_owned();
    Ok(wheel.difference(&tests).map(package).collect())
}

/// Checks the Python code without running it; `pyproject.toml` has the rules. The stubs are compared with the wheel.
fn python_checks(workspace: &Workspace, report: &Report) -> Result<Outcome> {
    if let Some(gap) = python::gap(workspace) {
        return Ok(Outcome::Skipped(gap));
    }
    stream(&mut workspace.python_module("ruff check ."))?;
    stream(&mut workspace.python_module("mypy"))?;
    if report.did_not_pass(Stage::Wheel) {
        bail!("there is no new wheel to compare the stubs with");
    }
    // Without PEP 800's marks: that no class can have two of these for bases matters to nobody.
    let stubtest = "mypy.stubtest netcl._netcl --allowlist python/stubtest.txt --ignore-disjoint-bases";
    stream(&mut workspace.python_module(stubtest))?;
    Ok(Outcome::Passed)
}

fn python_tests(workspace: &Workspace, full: bool, report: &mut Report) -> Result<Outcome> {
    if let Some(gap) = python::gap(workspace) {
        return Ok(Outcome::Skipped(gap));
    }
    if report.did_not_pass(Stage::Wheel) {
        bail!("there is no new wheel to test");
    }
    let pages = workspace.spec_pages();
    if !pages.is_dir() {
        let missing = format!("the specification's pages ({}; SPEC_PAGES names their folder)", pages.display());
        report.note(missing, "that every listing of the specification runs (python/tests/test_pages.py)");
    }
    let mut command = workspace.python_module("pytest python/tests");
    if full {
        command.env("FUZZ_CALLS", FUZZ_CALLS_FULL);
    }
    stream(&mut command)?;
    Ok(Outcome::Passed)
}

fn book(workspace: &Workspace) -> Result<Outcome> {
    if let Some(gap) = cargo_tools::gap(workspace, "mdbook") {
        return Ok(Outcome::Skipped(gap));
    }
    stream(workspace.command("mdbook").args(["build", "docs"]))?;
    Ok(Outcome::Passed)
}

fn deny(workspace: &Workspace, report: &mut Report) -> Result<Outcome> {
    if let Some(gap) = cargo_tools::gap(workspace, "cargo-deny") {
        return Ok(Outcome::Skipped(gap));
    }
    stream(&mut workspace.cargo("deny check --hide-inclusion-graph bans licenses sources"))?;
    // The advisories live in a repository that a machine behind a mirror may not reach: that is a gap, not a finding.
    if succeeds(&mut workspace.cargo("deny fetch db")) {
        stream(&mut workspace.cargo("deny check advisories"))?;
    } else {
        report.gap("the advisory database could not be fetched", "security advisories of the dependencies");
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_run_leaves_out_the_slow_stages_and_a_full_run_has_all() {
        let plain = Stage::select(false, &[]);
        assert_eq!(plain.first(), Some(&Stage::Install));
        assert_eq!(plain.last(), Some(&Stage::Python));
        assert_eq!(Stage::select(true, &[]), Stage::value_variants());
    }

    #[test]
    fn named_stages_run_in_the_usual_order_even_the_slow_ones() {
        assert_eq!(Stage::select(false, &[Stage::Book, Stage::Fmt]), [Stage::Fmt, Stage::Book]);
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for stage in Stage::value_variants() {
            assert_eq!(stage.to_possible_value().unwrap().get_name(), stage.name());
        }
    }
}

//! The virtual environment of the wheel and the Python tests.

use std::path::PathBuf;
use std::process::Command;

use crate::install::opencl;
use crate::process::{capture, find_program, stream, succeeds};
use crate::report::{Gap, Report};
use crate::workspace::Workspace;

/// What the wheel is built, tested and compared with. Lower bounds, so that a fresh machine shows what a release broke; only the
/// checkers are pinned, each release of which finds something else in the same code.
pub(crate) const REQUIREMENTS: [&str; 6] =
    ["maturin>=1.16,<2", "pytest>=8", "numpy>=1.23", "pyopencl>=2024.1", "mypy==2.4.1", "ruff==0.17.5"];

/// The oldest Python that the wheel supports.
const OLDEST: (u32, u32) = (3, 10);
const UNTESTED: &str = "the wheel and everything Python";

/// The gap that a missing virtual environment leaves; `None` when it is there.
pub(crate) fn gap(workspace: &Workspace) -> Option<Gap> {
    let missing = "no virtual environment in .check/venv (the install stage makes it)".to_owned();
    (!workspace.python().exists()).then(|| Gap { missing, untested: UNTESTED.to_owned() })
}

/// Makes the virtual environment and installs packages; `false` when it cannot be used or lacks a package.
pub(crate) fn install(workspace: &Workspace, report: &mut Report) -> bool {
    if !succeeds(Command::new(workspace.python()).args(["-m", "pip", "--version"])) {
        let Some(python) = find_python() else {
            let (major, minor) = OLDEST;
            report.gap(format!("Python {major}.{minor} or newer (set PYTHON to its path)"), UNTESTED);
            return false;
        };
        // `--clear`: what is there may be half an environment, or one whose interpreter is gone.
        if let Err(error) = stream(Command::new(python).args(["-m", "venv", "--clear"]).arg(workspace.venv())) {
            report.gap(format!("a virtual environment ({error:#}; Debian has it in python3-venv)"), UNTESTED);
            return false;
        }
    }
    if let Err(error) = pip_install(workspace, &REQUIREMENTS) {
        report.gap(format!("Python packages {} ({error:#})", REQUIREMENTS.join(", ")), UNTESTED);
        return false;
    }
    if let Err(error) = pip_install(workspace, &opencl::REQUIREMENTS) {
        // Not the end of the environment: the OpenCL check names what is missing.
        eprintln!("warning: {error:#}");
    }
    true
}

fn pip_install(workspace: &Workspace, requirements: &[&str]) -> anyhow::Result<()> {
    let mut command = workspace.python_module("pip install --quiet --disable-pip-version-check");
    stream(command.args(requirements))
}

/// The interpreter named by `PYTHON`, or the first in `PATH` that is new enough.
fn find_python() -> Option<PathBuf> {
    let named = std::env::var_os("PYTHON").map(PathBuf::from);
    let plain = std::iter::once("python3".to_owned());
    let versioned = (OLDEST.1..=OLDEST.1 + 6).rev().map(|minor| format!("python3.{minor}"));
    named.into_iter().chain(plain.chain(versioned).filter_map(|name| find_program(&name, &[]))).find(|python| {
        let script = "import sys; print(*sys.version_info[:2])";
        capture(Command::new(python).args(["-c", script]))
            .ok()
            .and_then(|text| version(&text))
            .is_some_and(|v| v >= OLDEST)
    })
}

/// Reads "3 11".
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(version("3 9\n").unwrap() < OLDEST);
        assert!(version("3 11\n").unwrap() > OLDEST);
        assert_eq!(version("pyenv: no such command"), None);
    }
}

//! The targets of a release and of the platforms stage, and which of them this machine can compile for.

use std::path::Path;

use anyhow::Result;

use crate::process::{capture, stream};
use crate::report::{Outcome, Report};
use crate::workspace::Workspace;

/// Targets that are compiled for a release, with the tag of the wheel.
pub(crate) const WHEELS: [(&str, &str); 4] = [
    ("x86_64-unknown-linux-gnu", "manylinux2014"),
    ("aarch64-unknown-linux-gnu", "manylinux2014"),
    ("x86_64-unknown-linux-musl", "musllinux_1_2"),
    ("aarch64-unknown-linux-musl", "musllinux_1_2"),
];

/// Targets that the platforms stage checks, one for each C library, architecture and system that the code has branches for.
const CHECKED: [&str; 6] = [
    "aarch64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "x86_64-pc-windows-msvc",
    "x86_64-pc-windows-gnu",
    "aarch64-apple-darwin",
    "x86_64-apple-darwin",
];

/// Whether the compiler in use has a target's standard library, whoever installed it: rustup, a distribution or a build of std.
pub(crate) fn has_std(workspace: &Workspace, target: &str) -> bool {
    let folder = capture(workspace.command("rustc").args(["--print", "target-libdir", "--target", target]));
    folder.is_ok_and(|folder| Path::new(folder.trim()).is_dir())
}

/// Lints the workspace for every target whose standard library is here, without linking: no linker of those systems is needed.
pub(crate) fn run(workspace: &Workspace, report: &mut Report) -> Result<Outcome> {
    for target in CHECKED {
        if has_std(workspace, target) {
            stream(&mut workspace.cargo(&format!("clippy --workspace --profile ci --target {target} -- -D warnings")))?;
        } else {
            report.note(
                format!("a standard library for {target} (rustup target add {target})"),
                "that netcl compiles for it",
            );
        }
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_a_standard_library_and_no_system_without_a_compiler_has() {
        let workspace = Workspace::locate().unwrap();
        let host = capture(workspace.command("rustc").args(["--print", "host-tuple"])).unwrap();
        assert!(has_std(&workspace, host.trim()));
        assert!(!has_std(&workspace, "no-such-target"));
    }
}

//! The targets of a release, and which of them this machine can compile for.

use std::path::Path;

use crate::process::capture;
use crate::workspace::Workspace;

/// Targets that are compiled for a release, with the tag of the wheel.
pub(crate) const WHEELS: [(&str, &str); 4] = [
    ("x86_64-unknown-linux-gnu", "manylinux2014"),
    ("aarch64-unknown-linux-gnu", "manylinux2014"),
    ("x86_64-unknown-linux-musl", "musllinux_1_2"),
    ("aarch64-unknown-linux-musl", "musllinux_1_2"),
];

/// Whether the compiler in use has a target's standard library, whoever installed it: rustup, a distribution or a build of std.
pub(crate) fn has_std(workspace: &Workspace, target: &str) -> bool {
    let folder = capture(workspace.command("rustc").args(["--print", "target-libdir", "--target", target]));
    folder.is_ok_and(|folder| Path::new(folder.trim()).is_dir())
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

//! Cargo subcommands, built from source into `.check/tools` when the machine has none of its own.

use std::process::Command;

use crate::process::{find_program, stream, succeeds};
use crate::report::{Gap, Report};
use crate::workspace::Workspace;

struct Tool {
    name: &'static str,
    /// Flags that leave out what a test run has no use for (updating itself, serving pages) and would have to compile.
    features: &'static [&'static str],
    /// Only the full run needs it.
    full: bool,
    /// What is not tested without it.
    untested: &'static str,
}

const TOOLS: [Tool; 3] = [
    Tool { name: "cargo-nextest", features: &["--no-default-features"], full: false, untested: "the Rust tests" },
    Tool {
        name: "mdbook",
        features: &["--no-default-features", "--features", "search"],
        full: true,
        untested: "that the book builds",
    },
    Tool {
        name: "cargo-deny",
        features: &[],
        full: true,
        untested: "licences, duplicates and advisories of the dependencies",
    },
];

fn wanted(full: bool) -> impl Iterator<Item = &'static Tool> {
    TOOLS.iter().filter(move |tool| full || !tool.full)
}

/// The names of the tools a run wants.
pub(crate) fn names(full: bool) -> Vec<&'static str> {
    wanted(full).map(|tool| tool.name).collect()
}

/// Whether a tool is in `.check/tools` or in `PATH`.
fn is_present(workspace: &Workspace, name: &str) -> bool {
    find_program(name, &[workspace.tools().join("bin")]).is_some()
}

/// The gap that a missing tool leaves; `None` when it is there.
pub(crate) fn gap(workspace: &Workspace, name: &str) -> Option<Gap> {
    let tool = TOOLS.iter().find(|tool| tool.name == name && !is_present(workspace, name))?;
    Some(Gap { missing: format!("{name} is not installed"), untested: tool.untested.to_owned() })
}

/// Whether all the tools a run wants are there.
pub(crate) fn all_present(workspace: &Workspace, full: bool) -> bool {
    wanted(full).all(|tool| is_present(workspace, tool.name))
}

/// Installs missing tools; `false` when some are still missing.
pub(crate) fn install(workspace: &Workspace, full: bool, report: &mut Report) -> bool {
    let mut complete = true;
    for tool in wanted(full).filter(|tool| !is_present(workspace, tool.name)) {
        let mut command = workspace.cargo("install --locked --root");
        command.arg(workspace.tools()).args(tool.features).arg(tool.name);
        // The tools need not be fast themselves, but a small machine has to compile them.
        command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        if let Err(error) = stream(&mut command) {
            report.gap(format!("{} ({error:#})", tool.name), tool.untested);
            complete = false;
        }
    }
    complete
}

/// Checks that the toolchain has rustfmt and clippy, adding them where rustup can.
pub(crate) fn components(report: &mut Report) -> bool {
    let mut complete = true;
    for (component, program, untested) in [("rustfmt", "fmt", "formatting"), ("clippy", "clippy", "clippy's lints")] {
        let present = || succeeds(Command::new("cargo").args([program, "--version"]));
        if !present() && (!succeeds(Command::new("rustup").args(["component", "add", component])) || !present()) {
            report.gap(format!("the toolchain's {component} (`rustup component add {component}` failed)"), untested);
            complete = false;
        }
    }
    complete
}

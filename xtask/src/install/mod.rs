//! The install stage: everything the tests need on a fresh Debian machine that has only cargo.
//!
//! Each part reports what it could not install as a gap and lets the rest go on. A stamp of what was wanted and had makes
//! the next run's stage a matter of milliseconds; it is written only after a run without gaps.

pub(crate) mod cargo_tools;
pub(crate) mod debian;
pub(crate) mod opencl;
pub(crate) mod python;

use anyhow::Result;

use crate::report::{Outcome, Report};
use crate::workspace::{Workspace, write_if_changed};

/// Installs what is missing.
pub(crate) fn run(workspace: &Workspace, full: bool, report: &mut Report) -> Result<Outcome> {
    let stamp_file = workspace.check().join("install-stamp");
    let stamp = stamp(full);
    if is_current(workspace, full, &std::fs::read_to_string(&stamp_file).unwrap_or_default()) {
        opencl::write_vendors(workspace)?;
        println!("everything is installed; remove {} to check again", stamp_file.display());
        return Ok(Outcome::Passed);
    }
    let mut complete = debian::install(&debian::PACKAGES, debian::UNTESTED, report);
    if full {
        complete &= debian::install(&debian::DATA, debian::UNTESTED_DATA, report);
    }
    complete &= cargo_tools::components(report);
    complete &= cargo_tools::install(workspace, full, report);
    if python::install(workspace, report) {
        opencl::write_vendors(workspace)?;
        complete &= opencl::check(workspace, report);
    } else {
        complete = false;
    }
    if complete {
        write_if_changed(&stamp_file, &stamp)?;
    }
    Ok(Outcome::Passed)
}

/// What a run wants, as text: when a list below changes, an old stamp no longer matches. Because the text of a full run
/// continues that of a plain one, a full stamp serves a plain run too.
fn stamp(full: bool) -> String {
    let mut lines = vec![
        format!("debian {}", debian::PACKAGES.join(" ")),
        format!("python {}", python::REQUIREMENTS.join(" ")),
        format!("opencl {}", opencl::REQUIREMENTS.join(" ")),
        format!("cargo {}", cargo_tools::names(false).join(" ")),
    ];
    if full {
        lines.push(format!("cargo for the full run {}", cargo_tools::names(true).join(" ")));
        lines.push(format!("data {}", debian::DATA.join(" ")));
    }
    lines.join("\n") + "\n"
}

/// Whether the stamp covers what this run wants and the things it speaks of are still there.
fn is_current(workspace: &Workspace, full: bool, present: &str) -> bool {
    present.starts_with(&stamp(full)) && workspace.python().exists() && cargo_tools::all_present(workspace, full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_stamp_serves_a_plain_run_but_not_the_reverse() {
        assert!(stamp(true).starts_with(&stamp(false)));
        assert!(!stamp(false).starts_with(&stamp(true)));
    }
}

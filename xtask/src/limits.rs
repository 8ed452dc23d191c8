//! The limits stage: the device tests once more on devices that pretend to be small.

use anyhow::Result;

use crate::install::cargo_tools;
use crate::process::stream;
use crate::report::Outcome;
use crate::workspace::Workspace;

/// The smallest device that netcl is meant for: small groups, little local memory, small buffers, no double precision.
const LIMITS: &str = "wg=64,local=16k,alloc=64M,no_fp64";

/// Tests that cannot hold under the limits, each with its reason. Everything else must pass.
const EXCLUDED: [(&str, &str); 0] = [];

/// Runs the tests of the crates that launch kernels.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    if let Some(gap) = cargo_tools::gap(workspace, "cargo-nextest") {
        return Ok(Outcome::Skipped(gap));
    }
    for (test, reason) in EXCLUDED {
        println!("left out: {test} ({reason})");
    }
    // The filter picks packages, and the build stays that of the other stages.
    let mut command = workspace.cargo("nextest run --workspace --cargo-profile ci --filterset");
    command.arg(filter(EXCLUDED.map(|(test, _)| test).as_slice())).env("NETCL_LIMITS", LIMITS);
    stream(&mut command)?;
    Ok(Outcome::Passed)
}

/// The nextest filter: both crates without the excluded tests.
fn filter(excluded: &[&str]) -> String {
    let without: String = excluded.iter().map(|test| format!(" - test(={test})")).collect();
    format!("(package(netcl-core) + package(netcl-ops)){without}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_tests_are_left_out_by_their_whole_name() {
        assert_eq!(filter(&[]), "(package(netcl-core) + package(netcl-ops))");
        assert_eq!(filter(&["a::b"]), "(package(netcl-core) + package(netcl-ops)) - test(=a::b)");
    }
}

//! Debian packages: the OpenCL loader, PoCL, and what Python and linking need.

use std::io::IsTerminal;
use std::process::Command;

use crate::process::{capture, find_program, stream, succeeds};
use crate::report::Report;

/// What the tests need of Debian.
pub(crate) const PACKAGES: [&str; 4] = ["gcc", "ocl-icd-libopencl1", "pocl-opencl-icd", "python3-venv"];
pub(crate) const UNTESTED: &str =
    "what needs these packages (PoCL is one of the OpenCL implementations of the test grid)";

/// Data sets that the full run trains on.
pub(crate) const DATA: [&str; 1] = ["dataset-fashion-mnist"];

/// What is not tested without [`DATA`].
pub(crate) const UNTESTED_DATA: &str = "training on Fashion-MNIST";

/// Installs the missing ones of some packages; `false` when some are still missing. `untested` is what they are wanted for.
pub(crate) fn install(packages: &[&str], untested: &str, report: &mut Report) -> bool {
    if find_program("dpkg-query", &[]).is_none() {
        // Another system may have its own PoCL; whether it is there is for the OpenCL check to say.
        println!("not a Debian system: install {} in its own way", packages.join(", "));
        return true;
    }
    let missing: Vec<&str> = packages.iter().copied().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        println!("Debian packages are there: {}", packages.join(", "));
        return true;
    }
    let Some(prefix) = root_prefix() else {
        report.gap(format!("Debian packages {} (neither root nor sudo)", missing.join(", ")), untested);
        return false;
    };
    // A failing update is not the end: the lists that are there may be good enough.
    if let Err(error) = stream(apt_get(&prefix).arg("update")) {
        eprintln!("warning: {error:#}");
    }
    let mut command = apt_get(&prefix);
    command.args(["install", "--yes", "--no-install-recommends"]).args(&missing);
    match stream(&mut command) {
        Ok(()) => true,
        Err(error) => {
            report.gap(format!("Debian packages {} ({error:#})", missing.join(", ")), untested);
            false
        }
    }
}

fn is_installed(package: &str) -> bool {
    capture(Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]))
        .is_ok_and(|status| status == "installed")
}

/// What to put before `apt-get` to be root: nothing, `sudo`, or `None` when there is no way.
fn root_prefix() -> Option<Vec<&'static str>> {
    if capture(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0") {
        return Some(Vec::new());
    }
    if succeeds(Command::new("sudo").args(["--non-interactive", "true"])) {
        return Some(vec!["sudo", "--non-interactive"]);
    }
    // Someone sits at the terminal and can type a password.
    (find_program("sudo", &[]).is_some() && std::io::stdin().is_terminal()).then(|| vec!["sudo"])
}

fn apt_get(prefix: &[&str]) -> Command {
    let words: Vec<_> = prefix
        .iter()
        .copied()
        .chain(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "Acquire::Retries=3"])
        .collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

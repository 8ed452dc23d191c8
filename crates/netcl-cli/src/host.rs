//! Which program this is: `netcl` itself, or Python's interpreter with the package's extension module.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result};

struct Host {
    command: Vec<OsString>,
    python: OsString,
}

static HOST: OnceLock<Host> = OnceLock::new();

/// The command runs inside a program that `command` starts again, and scripts belong to `python`. The first call counts.
pub(crate) fn set(command: Vec<OsString>, python: OsString) {
    let _ = HOST.set(Host { command, python });
}

/// Starts this very command again, with arguments to come: what `netcl` means in `netcl launch -- netcl train`.
pub(crate) fn again() -> Result<Vec<OsString>> {
    match HOST.get() {
        Some(host) => Ok(host.command.clone()),
        None => Ok(vec![std::env::current_exe().context("cannot tell where netcl lies")?.into()]),
    }
}

/// The interpreter of scripts: the host, else the first of `python` and `python3` that is there.
pub(crate) fn python() -> OsString {
    if let Some(host) = HOST.get() {
        return host.python.clone();
    }
    let has = |name: &OsStr| Command::new(name).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let name = OsString::from("python");
    if has(&name) { name } else { "python3".into() }
}

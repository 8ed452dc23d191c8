//! `netcl explain`: runs a program and draws what the JIT compiler made of its functions.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{Verdict, host};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A Python script, or any program that uses netcl
    program: PathBuf,
    /// Its own arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "explain.html")]
    out: PathBuf,
    /// The interpreter of scripts [default: the one that netcl was installed for, else python]
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let program = &arguments.program;
    if !program.is_file() {
        bail!("there is no file {}; name a Python script or a program", program.display());
    }
    // The program may change its folder, so both paths are whole ones.
    let program = program.canonicalize().with_context(|| format!("cannot find {}", program.display()))?;
    let page = std::path::absolute(&arguments.out)
        .with_context(|| format!("cannot tell where {} lies", arguments.out.display()))?;
    if page.exists() {
        std::fs::remove_file(&page).with_context(|| format!("cannot replace {}", page.display()))?;
    }
    let script = program.extension().is_some_and(|extension| extension == "py");
    let mut command = if script {
        let mut command = Command::new(arguments.python.clone().map_or_else(host::python, Into::into));
        command.arg(&program);
        command
    } else {
        Command::new(&program)
    };
    let status = command
        .args(&arguments.arguments)
        .env("NETCL_EXPLAIN", &page)
        .status()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if page.exists() {
        println!("wrote {}: open it in a browser", page.display());
    } else {
        println!("no function was compiled: wrap one in ag.jit (Python) or netcl::autograd::jit (Rust) and call it");
    }
    Ok(if status.success() { Verdict::Good } else { Verdict::Bad })
}

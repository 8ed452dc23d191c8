//! The contributor command: `cargo xtask test` installs what the tests need, runs every stage and says at the end what
//! passed, how long each stage took, and what could not be tested on this machine.

mod bench;
mod cycles;
mod install;
mod layers;
mod limits;
mod oclgrind;
mod platforms;
mod process;
mod report;
mod stages;
mod wheel;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::report::Report;
use crate::stages::Stage;
use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, tests and checks netcl with one command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the tests need, then run every stage.
    Test(TestArgs),
    /// Build the wheels (manylinux2014, musllinux) and the source distribution of a release into wheels/.
    Wheel(WheelArgs),
}

#[derive(Args)]
struct WheelArgs {
    /// Build for this target only, e.g. aarch64-unknown-linux-gnu (may be repeated).
    #[arg(long, value_parser = platforms::WHEELS.map(|(target, _)| target))]
    target: Vec<String>,
}

#[derive(Args)]
struct TestArgs {
    /// Add the stages that are too slow for every change: ignored tests, kernels under oclgrind and on devices that
    /// pretend to be small, lints for other platforms, benchmarks run once, the book, cargo-deny.
    #[arg(long)]
    full: bool,
    /// Run only these stages, in their usual order (comma separated).
    #[arg(long, value_enum, value_delimiter = ',', value_name = "STAGE")]
    only: Vec<Stage>,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command; `false` when a stage failed or, in CI, when something could not be tested.
fn run(cli: Cli) -> Result<bool> {
    let workspace = Workspace::locate()?;
    let args = match cli.command {
        Command::Test(args) => args,
        Command::Wheel(args) => return wheel::run(&workspace, &args.target).map(|()| true),
    };
    let selected = Stage::select(args.full, &args.only);
    let mut report = Report::new(is_ci(std::env::var("CI").ok().as_deref()));
    for (index, stage) in selected.iter().enumerate() {
        println!("\n==> [{}/{}] {}: {}", index + 1, selected.len(), stage.name(), stage.about());
        report.time(*stage, |report| stage.run(&workspace, args.full, report));
    }
    print!("{}", report.render());
    Ok(report.succeeded())
}

/// Whether the value of `CI` says that this run is a gate, where an untested part is a failure instead of a warning.
fn is_ci(value: Option<&str>) -> bool {
    !matches!(value, None | Some("" | "0" | "false"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_takes_a_comma_separated_list() {
        let cli = Cli::try_parse_from(["xtask", "test", "--only", "install,fmt"]).unwrap();
        let Command::Test(args) = cli.command else { panic!("test is another command") };
        assert_eq!(args.only, [Stage::Install, Stage::Fmt]);
        assert!(Cli::try_parse_from(["xtask", "test", "--only", "nonsense"]).is_err());
    }

    #[test]
    fn ci_is_on_only_when_the_variable_says_so() {
        assert!(is_ci(Some("true")) && is_ci(Some("1")));
        assert!(!is_ci(None) && !is_ci(Some("")) && !is_ci(Some("false")) && !is_ci(Some("0")));
    }
}

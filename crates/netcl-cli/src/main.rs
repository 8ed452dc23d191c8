//! The `netcl` command: trains networks and asks them; shows and converts files of tensors; says what devices are here, what
//! they can do, whether they work, and what lies in the program cache.

mod bench;
mod cache;
mod convert;
mod data;
mod devices;
mod doctor;
mod evaluate;
mod explain;
mod generate;
mod inspect;
mod launch;
mod output;
mod predict;
mod profile;
mod report;
mod steps;
mod train;
mod tui;
mod tune;
mod workload;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use netcl::core::backend::opencl::shutdown;

/// Deep learning on any OpenCL device. Without a command: a report of the devices here and a self-test of each.
#[derive(Parser)]
#[command(
    name = "netcl",
    version,
    after_help = "Exit code: 0 all is well, 1 a device or a command failed, 2 wrong usage, 130 interrupted."
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Train a network on images, a text or a table: a CNN on handwritten digits that come with netcl, unless told otherwise
    #[command(after_help = train::AFTER_HELP)]
    Train(Box<train::Arguments>),
    /// Lay the curves of several runs over each other, on one HTML page
    Report(report::Arguments),
    /// Ask a trained network what a picture shows
    Predict(predict::Arguments),
    /// Let a trained language model go on with a text
    Generate(generate::Arguments),
    /// Test a trained network: loss, accuracy, confusion of classes, perplexity of texts
    Evaluate(evaluate::Arguments),
    /// Show what a file of tensors holds: .netcl, .npz, safetensors or PyTorch
    Inspect(inspect::Arguments),
    /// Turn a file of tensors into one of another kind, dtype or names
    #[command(after_help = convert::AFTER_HELP)]
    Convert(convert::Arguments),
    /// List data sets, look at one on an HTML page, measure how fast it loads
    Data {
        #[command(subcommand)]
        action: data::Action,
    },
    /// List platforms and devices with what they can do
    Devices {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Test every device, measure copies, launches, allocations and builds, and say what to install or fix
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Only this device: cpu, gpu, opencl, an index of the list, <platform>:<device>, or part of a name
        #[arg(long, value_name = "SELECTOR")]
        device: Option<String>,
    },
    /// Profile training steps of a model: tables, and a page with flame graph, timeline, roofline and memory
    #[command(after_help = profile::AFTER_HELP)]
    Profile(profile::Arguments),
    /// Time products and memory-bound work beside what the device can do at most, and whole training steps
    #[command(after_help = bench::AFTER_HELP)]
    Bench(bench::Arguments),
    /// Measure which kernels are the fastest on a device, and keep the answers for all later processes
    #[command(after_help = tune::AFTER_HELP)]
    Tune(tune::Arguments),
    /// Run a script or a program and draw what the JIT compiler made of its functions, as an HTML page
    Explain(explain::Arguments),
    /// Start a program once for each of several ranks that work together, and end all when one fails
    #[command(after_help = launch::AFTER_HELP)]
    Launch(launch::Arguments),
    /// Look at or empty the cache of compiled programs
    Cache {
        #[command(subcommand)]
        action: cache::Action,
    },
}

/// How a command ended.
enum Verdict {
    /// As it should.
    Good,
    /// A device failed its self-test.
    Bad,
    /// With the exit code of another program.
    Code(u8),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The launcher passes signals on: its ranks decide how they end.
    let launches = matches!(arguments.command, Some(Command::Launch(_)));
    // The first Ctrl+C ends the command at its next step, a second or a stuck device ends it at once.
    if !launches {
        shutdown::catch_interrupts();
    }
    netcl::core::env::check();
    let result = run(arguments.command);
    shutdown::finish_at_exit();
    let code = match result {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::FAILURE,
        Ok(Verdict::Code(code)) => ExitCode::from(code),
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        // Also where Ctrl+C came before: a checkpoint that could not be kept must not go unnoticed.
        Err(error) => {
            eprintln!("netcl: {}", output::printable(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    };
    if shutdown::interrupted() {
        eprintln!("netcl: interrupted");
        return ExitCode::from(130);
    }
    code
}

fn run(command: Option<Command>) -> Result<Verdict> {
    match command {
        None => doctor::report(),
        Some(Command::Train(arguments)) => train::run(&arguments),
        Some(Command::Report(arguments)) => report::run(&arguments),
        Some(Command::Predict(arguments)) => predict::run(&arguments),
        Some(Command::Generate(arguments)) => generate::run(&arguments),
        Some(Command::Evaluate(arguments)) => evaluate::run(&arguments),
        Some(Command::Inspect(arguments)) => inspect::run(&arguments),
        Some(Command::Convert(arguments)) => convert::run(&arguments),
        Some(Command::Data { action }) => data::run(&action),
        Some(Command::Devices { json }) => devices::run(json),
        Some(Command::Doctor { json, device }) => doctor::run(json, device.as_deref()),
        Some(Command::Profile(arguments)) => profile::run(&arguments),
        Some(Command::Bench(arguments)) => bench::run(&arguments),
        Some(Command::Tune(arguments)) => tune::run(&arguments),
        Some(Command::Explain(arguments)) => explain::run(&arguments),
        Some(Command::Launch(arguments)) => launch::run(&arguments),
        Some(Command::Cache { action }) => cache::run(&action),
    }
}

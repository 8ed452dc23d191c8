//! The `netcl` command: trains networks and asks them; shows and converts files of tensors; says what devices are here, what
//! they can do, whether they work, and what lies in the program cache.
//!
//! A library, so that the Python package has the command too: [`main`] is the program `netcl`, [`execute_in`] is for a host.

mod bench;
mod cache;
mod convert;
mod convert_onnx;
mod data;
mod devices;
mod doctor;
mod evaluate;
mod explain;
mod generate;
mod host;
mod inspect;
mod launch;
mod model_file;
mod output;
mod predict;
mod profile;
mod report;
mod run_model;
mod steps;
mod train;
mod tui;
mod tune;
mod workload;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
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
    /// Run a model from an ONNX file on arrays from .npy files, and time it
    #[command(after_help = run_model::AFTER_HELP)]
    Run(run_model::Arguments),
    /// Show what a file holds: .netcl, .npz, safetensors or PyTorch, or an ONNX model and which of its operators are missing
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
    /// Print what makes a shell complete commands and options: source <(netcl completions bash)
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page of netcl or of one of its commands: netcl man train | man -l -
    Man {
        /// The command
        command: Option<String>,
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

/// The main function of the program `netcl`.
pub fn main() -> ExitCode {
    netcl::compile_in_processes();
    ExitCode::from(execute(std::env::args_os().skip(1)))
}

/// The command inside another program, such as Python's interpreter: takes the arguments after the command's own name, gives the
/// exit code.
///
/// `command` starts the command again in a new process (`python -m netcl`), and `python` is the interpreter for scripts. Ctrl+C
/// is handled as in the program `netcl` where SIGINT has its default handler.
pub fn execute_in(command: Vec<OsString>, python: OsString, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    host::set(command, python);
    execute(arguments)
}

fn execute(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments = match Arguments::try_parse_from(std::iter::once("netcl".into()).chain(arguments)) {
        Ok(arguments) => arguments,
        // Also --help and --version. A closed pipe is no failure.
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    // The launcher passes signals on: its ranks decide how they end.
    let launches = matches!(arguments.command, Some(Command::Launch(_)));
    // The first Ctrl+C ends the command at its next step, a second or a stuck device ends it at once.
    if !launches {
        shutdown::catch_interrupts();
    }
    netcl::core::env::check();
    let result = run(arguments.command);
    shutdown::finish_at_exit();
    // A host that is not written in Rust does not flush it.
    let _ = std::io::stdout().flush();
    let code = match result {
        Ok(Verdict::Good) => 0,
        Ok(Verdict::Bad) => 1,
        Ok(Verdict::Code(code)) => code,
        Err(error) if output::is_closed_pipe(&error) => 0,
        // Also where Ctrl+C came before: a checkpoint that could not be kept must not go unnoticed.
        Err(error) => {
            eprintln!("netcl: {}", output::printable(&format!("{error:#}")));
            1
        }
    };
    if shutdown::interrupted() {
        eprintln!("netcl: interrupted");
        return 130;
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
        Some(Command::Run(arguments)) => run_model::run(&arguments),
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
        Some(Command::Completions { shell }) => completions(shell),
        Some(Command::Man { command }) => manual(command.as_deref()),
    }
}

fn completions(shell: Shell) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "netcl", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(Verdict::Good)
}

fn manual(name: Option<&str>) -> Result<Verdict> {
    let mut command = Arguments::command();
    command.build();
    let mut title = "netcl".to_owned();
    if let Some(name) = name {
        let Some(found) = command.find_subcommand(name) else {
            let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
            bail!("there is no command {name}; there are {}", names.join(", "));
        };
        // netcl-train: man-db's way to name pages of subcommands.
        title = format!("netcl-{name}");
        command = found.clone();
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).title(title).render(&mut page)?;
    std::io::stdout().write_all(&page)?;
    Ok(Verdict::Good)
}

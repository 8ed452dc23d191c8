//! `netcl launch`: starts a program once for each rank, and looks after the processes until all have ended.

mod job;
mod output;
mod signals;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netcl::core::env::{self, Values};
use tempfile::TempDir;

use crate::{Verdict, host};
use job::{End, Job};

/// What stands below the options.
pub(crate) const AFTER_HELP: &str = "\
netcl launch -n 2 -- netcl train --data digits      trains with both processes; --batch-size is that of all ranks together
netcl launch -n 2 --devices gpu,cpu train.py        a script that calls netcl.distributed.init()

Every line of output has its rank before it. When a rank fails, the others are ended and its exit code is the command's (128 + the \
signal that killed it). Ctrl+C goes to all ranks; a second one does not wait. With --restarts, `netcl train` goes on from its last \
checkpoint by itself; a script does so with fit(..., resume=True).";

/// The most ranks of a host: what the variable may say.
const MOST: usize = match env::RANKS.values {
    Values::Whole(_, most) => most,
    _ => usize::MAX,
};
/// How the folders of jobs begin.
const FOLDER: &str = "netcl-launch-";
/// Locked while a job lives.
const LOCK: &str = "lock";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many processes to start
    #[arg(short = 'n', long, value_name = "N")]
    ranks: usize,
    /// The device of each rank, as `--device` of `netcl train` takes it; from the first again where ranks are more
    #[arg(long, value_name = "SELECTOR,...", value_delimiter = ',')]
    devices: Vec<String>,
    /// Threads of the native CPU in each rank [default: NETCL_NUM_THREADS, else the cores divided among the ranks]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// How often to start all ranks again after one has failed
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarts: usize,
    /// How long a rank waits for another before it gives up, in seconds [default: NETCL_RANK_TIMEOUT, else 60]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    timeout: Option<f64>,
    /// How long ranks that are told to end may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, allow_negative_numbers = true)]
    grace: f64,
    /// The interpreter of scripts [default: the one that netcl was installed for, else python]
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// A program, or a Python script
    program: OsString,
    /// Its own arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    if !(1..=MOST).contains(&arguments.ranks) {
        bail!("launch: -n {} is no number of processes; use 1 to {MOST}", arguments.ranks);
    }
    if arguments.threads == Some(0) {
        bail!("launch: --threads 0 leaves nobody to work; use 1 or more");
    }
    for (name, seconds) in [("--timeout", arguments.timeout.unwrap_or(1.0)), ("--grace", arguments.grace)] {
        if !(0.0..=1e9).contains(&seconds) {
            bail!("launch: {name} {seconds} is no time to wait; use seconds, such as 10");
        }
    }
    signals::catch();
    remove_leftovers();
    let (folder, _lock) = job_folder().context("launch: cannot make the folder in which ranks meet")?;
    let program = Program::of(arguments)?;
    for restart in 0.. {
        let rendezvous = folder.path().join(restart.to_string());
        fs::create_dir(&rendezvous).with_context(|| format!("launch: cannot make {}", rendezvous.display()))?;
        let mut job = Job::new(Duration::from_secs_f64(arguments.grace));
        for rank in 0..arguments.ranks {
            let mut command = program.command();
            surroundings(&mut command, arguments, rank, restart, &rendezvous);
            // Those that run already end with the job.
            job.start(rank, command).with_context(|| format!("launch: cannot start {}", program.shown()))?;
        }
        match job.wait() {
            End::Good => return Ok(Verdict::Good),
            End::Signal(signal) => return Ok(Verdict::Code(code_of_signal(signal))),
            End::Failed { rank, status, last } => {
                let words = words(status);
                let last =
                    if last.is_empty() { "It printed nothing".to_owned() } else { format!("Its last lines:\n{last}") };
                eprintln!("netcl: rank {rank} {words}; all ranks were ended. {last}");
                if restart == arguments.restarts {
                    return Ok(Verdict::Code(code(status)));
                }
                eprintln!("netcl: starting all ranks again (restart {} of {})", restart + 1, arguments.restarts);
            }
        }
    }
    Ok(Verdict::Good)
}

/// What every rank runs.
struct Program<'a> {
    /// The program and its first arguments.
    line: Vec<OsString>,
    arguments: &'a [OsString],
}

impl<'a> Program<'a> {
    fn of(arguments: &'a Arguments) -> Result<Program<'a>> {
        let path = Path::new(&arguments.program);
        let script = path.extension().is_some_and(|extension| extension == "py");
        if script && !path.is_file() {
            bail!("launch: there is no script {}", path.display());
        }
        let program = arguments.program.clone();
        let line = if script {
            let python = arguments.python.clone().map_or_else(host::python, Into::into);
            vec![python, program]
        } else if path == Path::new("netcl") {
            // This very file, wherever it lies.
            host::again().unwrap_or_else(|_| vec![program])
        } else {
            vec![program]
        };
        Ok(Program { line, arguments: &arguments.arguments })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.line[0]);
        command.args(&self.line[1..]).args(self.arguments);
        command
    }

    fn shown(&self) -> String {
        self.line[0].to_string_lossy().into_owned()
    }
}

/// What a rank finds in its environment.
fn surroundings(command: &mut Command, arguments: &Arguments, rank: usize, restart: usize, rendezvous: &Path) {
    let numbers = [(env::RANK.name, rank), (env::RANKS.name, arguments.ranks), (env::RESTART.name, restart)];
    command.envs(numbers.map(|(name, number)| (name, number.to_string()))).env(env::RENDEZVOUS.name, rendezvous);
    // Python keeps what it prints into a pipe for itself until much has come together: too late, or never if it is killed.
    command.env("PYTHONUNBUFFERED", "1");
    let cores = || std::thread::available_parallelism().map_or(1, usize::from).div_euclid(arguments.ranks).max(1);
    let threads = arguments.threads.or_else(|| env::NUM_THREADS.whole().is_none().then(cores));
    if let Some(threads) = threads {
        command.env(env::NUM_THREADS.name, threads.to_string());
    }
    if let Some(seconds) = arguments.timeout {
        command.env(env::RANK_TIMEOUT.name, seconds.to_string());
    }
    if let Some(device) = arguments.devices.get(rank % arguments.devices.len().max(1)) {
        command.env(env::DEVICE.name, device);
    }
}

/// Where files are memory, if there is such a place: ranks exchange what they compute through them.
fn home() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// A folder that goes with the job, and the lock that says that the job lives.
fn job_folder() -> io::Result<(TempDir, File)> {
    let prefix = tempfile::Builder::new().prefix(FOLDER).to_owned();
    let folder = prefix.tempdir_in(home()).or_else(|_| prefix.tempdir())?;
    let lock = File::create(folder.path().join(LOCK))?;
    lock.lock()?;
    Ok((folder, lock))
}

/// Removes the folders of jobs whose launcher was killed: what lies there takes memory.
fn remove_leftovers() {
    for entry in fs::read_dir(home()).into_iter().flatten().flatten() {
        let of_a_job = entry.file_name().to_string_lossy().starts_with(FOLDER);
        // A job that is just being made has no lock yet, and one that lives holds it.
        let dead = || File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if of_a_job && dead() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}

/// As a shell gives it.
fn code(status: ExitStatus) -> u8 {
    match (status.code(), signals::of(status)) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, signal) => signal.map_or(1, code_of_signal),
    }
}

fn words(status: ExitStatus) -> String {
    match (status.code(), signals::of(status)) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}{}", signals::name(signal)),
        (None, None) => "ended".to_owned(),
    }
}

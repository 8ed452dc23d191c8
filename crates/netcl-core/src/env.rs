//! Every environment variable of netcl: one table of names, values, defaults and meanings, and the only place that reads them.
//!
//! A value that a variable cannot have is named on standard error, once per process and variable, together with the values it
//! can have; the default is used instead. So is a `NETCL_...` variable that is not in the table, with the name that was
//! probably meant. Variables are read when they are asked for: a program may set one before the first use.

use std::ffi::OsString;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::backend::opencl::Limits;
use crate::backend::opencl::limits::parse_size;
use crate::debug;

/// What a variable may be set to. An empty value is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Values {
    /// `0` or `1`.
    Switch,
    /// One of these words, in any case.
    Words(&'static [&'static str]),
    /// A whole number between these two, both included.
    Whole(usize, usize),
    /// A number that is not negative, of this unit; `inf` for no limit.
    Amount(&'static str),
    /// Bytes with an optional k, M or G.
    Size,
    /// The list that [`Limits`] reads.
    Limits,
    /// A path or a name: whoever uses it says what is wrong with it.
    Text(&'static str),
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Switch => f.write_str("0 or 1"),
            Values::Words([first @ .., last]) => write!(f, "{} or {last}", first.join(", ")),
            Values::Words([]) => f.write_str("nothing"),
            Values::Whole(from, to) => write!(f, "a whole number from {from} to {to}"),
            Values::Amount(unit) => write!(f, "a number of {unit} such as 0, 0.5 or 4, or inf for no limit"),
            Values::Size => f.write_str("a positive number of bytes such as 512M, with an optional k, M or G"),
            Values::Limits => {
                f.write_str("a list such as wg=64,local=16k,alloc=64M,params=256,no_fp64,no_fp16,no_subgroups")
            }
            Values::Text(what) => f.write_str(what),
        }
    }
}

/// An environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it may be set to.
    pub values: Values,
    /// What holds when it is not set, or to something else.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

macro_rules! variables {
    ($($id:ident: $name:literal, $values:expr, $default:literal, $meaning:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $meaning, ".")]
            pub const $id: Variable =
                Variable { name: $name, values: $values, default: $default, meaning: $meaning };
        )*

        /// All of them, in the order of the README.
        pub const TABLE: &[Variable] = &[$($id),*];
    };
}

use Values::{Amount, Size, Switch, Text, Whole, Words};

variables! {
    DEVICE: "NETCL_DEVICE", Text("cpu, gpu, opencl, an index of the device list, platform:device or part of a name"), "auto",
        "what the selector \"auto\" means";
    OPENCL_LIB: "NETCL_OPENCL_LIB", Text("a file"), "the system's",
        "the OpenCL library to load";
    LIMITS: "NETCL_LIMITS", Values::Limits, "none",
        "OpenCL devices pretend to be smaller, for tests";
    KERNEL_STRATEGY: "NETCL_KERNEL_STRATEGY", Words(&["auto", "portable", "optimized"]), "auto",
        "forces portable or optimized kernels";
    CONV_WINOGRAD: "NETCL_CONV_WINOGRAD", Switch, "1",
        "0 keeps 3x3 convolutions away from Winograd";
    CONV_TILED_LOCAL: "NETCL_CONV_TILED_LOCAL", Switch, "0",
        "1 allows the tiled-local convolution on small outputs";
    MATMUL_PRECISION: "NETCL_MATMUL_PRECISION", Words(&["highest", "high", "medium"]), "highest",
        "how exactly float32 matrices are multiplied where matrix units could do it faster";
    AUTOTUNE: "NETCL_AUTOTUNE", Switch, "0",
        "1 measures kernels at the first use of a new class of shapes and keeps the fastest (see netcl tune)";
    MAX_CACHED_GB: "NETCL_MAX_CACHED_GB", Amount("gigabytes"), "4",
        "how much memory a device's pool keeps for reuse; for the native CPU's, too, where it is set";
    CPU_CACHE_MB: "NETCL_CPU_CACHE_MB", Amount("megabytes"), "1024",
        "how much memory the native CPU keeps for reuse, whatever NETCL_MAX_CACHED_GB says";
    ASYNC_H2D: "NETCL_ASYNC_H2D", Switch, "1",
        "0 makes copies to a device wait until they are done, unless async_copy is given";
    PINNED_H2D: "NETCL_PINNED_H2D", Switch, "1",
        "0 keeps copies to a device away from page-locked memory, unless use_pinned is given";
    NUM_THREADS: "NETCL_NUM_THREADS", Whole(1, 1024), "one for each core",
        "how many threads the native CPU uses";
    SIMD: "NETCL_SIMD", Words(&["auto", "avx2", "baseline"]), "auto",
        "the widest instructions that the native CPU uses";
    CACHE: "NETCL_CACHE", Switch, "1",
        "0 keeps compiled programs and tuning results out of the cache folder";
    CACHE_DIR: "NETCL_CACHE_DIR", Text("a folder"), "netcl in the user's cache folder",
        "where compiled programs and tuning results are kept";
    CACHE_MAX: "NETCL_CACHE_MAX", Size, "1G",
        "how large the folder of compiled programs may grow";
    JIT: "NETCL_JIT", Switch, "1",
        "0 runs compiled functions as they are";
    DEBUG: "NETCL_DEBUG", Whole(0, 4), "0",
        "prints to standard error: 1 programs that are compiled, 2 also every launch with its time and rates, 3 also what was fused \
         and why not more, 4 also sources";
    EXPLAIN: "NETCL_EXPLAIN", Text("a file"), "none",
        "where to write the page of netcl explain, of any program";
    PROFILE_EVENTS: "NETCL_PROFILE_EVENTS", Switch, "0",
        "1 makes OpenCL queues profile every command: events have device times, launches cost more";
    SIGNALS: "NETCL_SIGNALS", Switch, "1",
        "0 leaves signal handlers alone: Ctrl+C cannot end a process whose kernel is stuck";
    DATA_DIR: "NETCL_DATA_DIR", Text("a folder"), "data",
        "where netcl train looks for data sets first";
    RANK: "NETCL_RANK", Whole(0, 63), "0",
        "the number of this process among those that work together; netcl launch sets it";
    RANKS: "NETCL_RANKS", Whole(1, 64), "1",
        "how many processes work together; netcl launch sets it";
    RENDEZVOUS: "NETCL_RENDEZVOUS", Text("a folder"), "none",
        "where the processes of one job meet, and no others; netcl launch sets it";
    RANK_TIMEOUT: "NETCL_RANK_TIMEOUT", Amount("seconds"), "60",
        "how long a rank waits for another before all give up";
    RESTART: "NETCL_RESTART", Whole(0, 1 << 20), "0",
        "how often netcl launch has started all ranks again; netcl launch sets it";
}

impl Variable {
    /// The value of a [`Values::Switch`].
    pub fn switch(&self) -> bool {
        self.parsed(switch).unwrap_or(self.default == "1")
    }

    /// The value of [`Values::Words`], as the table writes it.
    pub fn word(&self) -> Option<&'static str> {
        self.parsed(|text| self.find_word(text))
    }

    /// The value of a [`Values::Whole`].
    pub fn whole(&self) -> Option<usize> {
        self.parsed(|text| self.find_whole(text))
    }

    /// The value of an [`Values::Amount`]: finite or infinite, never negative.
    pub fn amount(&self) -> Option<f64> {
        self.parsed(amount)
    }

    /// The value of a [`Values::Size`], in bytes.
    pub fn size(&self) -> Option<u64> {
        self.parsed(|text| parse_size(text).ok())
    }

    /// The value of a [`Values::Text`], which need not be Unicode.
    pub fn text(&self) -> Option<OsString> {
        check();
        self.given()
    }

    /// The limits that the environment asks for.
    pub(crate) fn limits(&self) -> Limits {
        self.parsed(|text| text.parse().ok()).unwrap_or_default()
    }

    fn given(&self) -> Option<OsString> {
        std::env::var_os(self.name).filter(|value| !value.is_empty())
    }

    fn parsed<T>(&self, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        check();
        let given = self.given()?;
        let parsed = given.to_str().and_then(|text| parse(text.trim()));
        if parsed.is_none() {
            self.complain(&given.to_string_lossy());
        }
        parsed
    }

    fn find_word(&self, text: &str) -> Option<&'static str> {
        let Values::Words(words) = self.values else { return None };
        words.iter().copied().find(|word| word.eq_ignore_ascii_case(text))
    }

    fn find_whole(&self, text: &str) -> Option<usize> {
        let Values::Whole(from, to) = self.values else { return None };
        text.parse().ok().filter(|number| (from..=to).contains(number))
    }

    fn allows(&self, text: &str) -> bool {
        match self.values {
            Values::Switch => switch(text).is_some(),
            Values::Words(_) => self.find_word(text).is_some(),
            Values::Whole(..) => self.find_whole(text).is_some(),
            Values::Amount(_) => amount(text).is_some(),
            Values::Size => parse_size(text).is_ok(),
            Values::Limits => text.parse::<Limits>().is_ok(),
            Values::Text(_) => true,
        }
    }

    /// Says once that a value cannot be used.
    fn complain(&self, value: &str) {
        static TOLD: Mutex<Vec<&str>> = Mutex::new(Vec::new());
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.contains(&self.name) {
            told.push(self.name);
            debug::print(format_args!("{}", self.complaint(value)));
        }
    }

    fn complaint(&self, value: &str) -> String {
        let Variable { name, values, default, .. } = self;
        format!("{name}: {value:?} cannot be used; write {values}. Using the default: {default}")
    }
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn amount(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| *number >= 0.0)
}

/// A process that `mpirun` started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiRank {
    /// Its number.
    pub rank: usize,
    /// How many there are, on all hosts.
    pub size: usize,
    /// How many there are on this host; all where it is not known.
    pub local: usize,
    /// The name of the job, which no other job of this host has.
    pub job: String,
}

/// What the launchers of Open MPI (PMIx) and of MPICH and its relatives (PMI) set; none outside of them.
pub fn mpi_rank() -> Option<MpiRank> {
    let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let number = |name: &str| text(name).and_then(|value| value.trim().parse::<usize>().ok());
    let found = |rank: &str, size: &str, local: &str, job: &str| {
        let (rank, size, job) = (number(rank)?, number(size)?, text(job)?);
        Some(MpiRank { rank, size, local: number(local).unwrap_or(size), job })
    };
    found("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE")
        .or_else(|| found("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_JOBID"))
}

/// Looks at all variables of the process and names those that cannot be used, once. The first question for any variable does
/// it, and so does the start of the command and of the Python package.
pub fn check() {
    // Nobody waits for who was first: a fork in the middle would leave the child waiting for ever.
    static LOOKED: AtomicBool = AtomicBool::new(false);
    if LOOKED.swap(true, Ordering::Relaxed) {
        return;
    }
    for (name, value) in std::env::vars_os() {
        let (Some(name), value) = (name.to_str(), value.to_string_lossy()) else { continue };
        match TABLE.iter().find(|variable| variable.name == name) {
            Some(variable) if !value.is_empty() && !variable.allows(value.trim()) => variable.complain(&value),
            None if name.starts_with("NETCL_") && !name.starts_with("NETCL_TEST_") => {
                let closest = closest(name);
                debug::print(format_args!(
                    "{name}: there is no such variable and it does nothing; did you mean {closest}?"
                ));
            }
            _ => {}
        }
    }
}

/// The name of the table that needs the fewest changes to become this one, in capitals.
fn closest(name: &str) -> &'static str {
    let name = &name.to_ascii_uppercase();
    TABLE.iter().map(|variable| variable.name).min_by_key(|known| distance(known, name)).unwrap_or_default()
}

/// Letters to insert, remove or replace (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, letter) in from.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests;

//! Kernels built before they run, side by side.
//!
//! A network's first step needs some 70 programs. Asked for one after the other, they take ResNet-18 12 s on an H200; while a
//! step is recorded nothing runs, so its kernels are only promised ([`Deferred`]), and [`build_all`] builds them together.
//! NVIDIA's driver compiles one program at a time in a process (72 programs: 10.0 s with one thread, 7.9 with 16), so there
//! processes of their own do it ([`compiler`](super::compiler)) and this one loads what they made.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::io::IsTerminal;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::build::Builder;
use super::compiler::Compiler;
use super::error::ClResult;
use super::kernel::Kernel;
use crate::env;

/// So long this thread builds alone: what comes from the caches is through by then.
const ALONE: Duration = Duration::from_millis(100);
/// Each helper should find so many programs to build; starting a process for it takes about 0.4 s.
const EACH: usize = 6;
/// More processes wait for each other while they start: a driver opens its device for one at a time.
const PROCESSES: usize = 6;
/// Whoever waits longer is told why.
const TELL: Duration = Duration::from_secs(2);

thread_local!(static DEFERRED: Cell<usize> = const { Cell::new(0) });

/// While it lives, the kernels that this thread asks for are promised instead of built.
pub struct Deferred(PhantomData<*const ()>);

impl Deferred {
    /// Begins to promise kernels.
    pub fn begin() -> Deferred {
        DEFERRED.set(DEFERRED.get() + 1);
        Deferred(PhantomData)
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        DEFERRED.set(DEFERRED.get() - 1);
    }
}

/// Whether kernels are to be promised.
pub(super) fn is_deferred() -> bool {
    DEFERRED.get() > 0
}

/// Builds those of the kernels that are only promised.
///
/// # Errors
/// What the compiler says of the first that does not build.
pub fn build_all<'k>(kernels: impl IntoIterator<Item = &'k Kernel>) -> ClResult<()> {
    let mut seen = HashSet::new();
    let new = |kernel: &&Kernel| kernel.promise().is_some() && seen.insert(kernel.identity());
    let mut promised: Vec<&Kernel> = kernels.into_iter().filter(new).collect();
    if promised.is_empty() {
        return Ok(());
    }
    // Helpers begin with what takes longest, so that nobody waits for one large program at the end.
    promised.sort_by_key(|kernel| kernel.promise().map(|recipe| (recipe.source.retarget, recipe.source.text.len())));
    let start = Instant::now();
    let work = Work(Mutex::new(promised.iter().copied().collect()));
    let mut told = false;
    std::thread::scope(|scope| -> ClResult<()> {
        let mut alone = true;
        while let Some(kernel) = work.first() {
            if alone && start.elapsed() > ALONE {
                alone = false;
                for _ in 0..helpers(kernel, work.len()) {
                    scope.spawn(|| help(&work));
                }
            }
            if !told && start.elapsed() > TELL {
                told = true;
                tell(kernel, promised.len());
            }
            // The others need not begin once one has failed.
            kernel.build().inspect_err(|_| work.clear())?;
        }
        Ok(())
    })?;
    // What others compiled is in the cache now, and what they could not build tells its error here.
    promised.iter().try_for_each(|kernel| kernel.build())
}

/// Kernels that nobody has begun to build.
struct Work<'k>(Mutex<VecDeque<&'k Kernel>>);

impl<'k> Work<'k> {
    fn with<R>(&self, act: impl FnOnce(&mut VecDeque<&'k Kernel>) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn first(&self) -> Option<&'k Kernel> {
        self.with(VecDeque::pop_front)
    }

    fn last(&self) -> Option<&'k Kernel> {
        self.with(VecDeque::pop_back)
    }

    fn len(&self) -> usize {
        self.with(|kernels| kernels.len())
    }

    fn clear(&self) {
        self.with(VecDeque::clear);
    }
}

/// How many helpers so many programs of a kernel's device are worth.
fn helpers(kernel: &Kernel, programs: usize) -> usize {
    let quirks = kernel.device().quirks();
    let most = match (quirks.serial_compiler, quirks.shared_compiler_folder) {
        // Their results come through the cache. Ranks that work together all start theirs at once.
        (true, _) if Compiler::is_known() && Builder::global().store().is_some() => {
            PROCESSES / env::RANKS.whole().unwrap_or(1).max(1)
        }
        // One program at a time, whatever we do.
        (true, _) | (_, true) => 0,
        _ => usize::MAX,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    most.min(cores.saturating_sub(1)).min(programs / EACH)
}

/// Builds kernels from the other end of the list, in a process of its own where the driver wants that.
fn help(work: &Work<'_>) {
    let mut compiler = None;
    while let Some(kernel) = work.last() {
        let built = match kernel.promise() {
            Some(recipe) if kernel.device().quirks().serial_compiler => {
                let started = compiler.take().map_or_else(Compiler::start, Ok);
                started.and_then(|mut process| {
                    process.build(kernel.device(), &recipe.source)?;
                    compiler = Some(process);
                    Ok(())
                })
            }
            _ => {
                // What goes wrong shows again when the kernel is needed.
                let _ = kernel.build();
                Ok(())
            }
        };
        if built.is_err() {
            return;
        }
    }
}

/// Says what takes so long, unless somebody else shows it.
fn tell(kernel: &Kernel, programs: usize) {
    if std::io::stderr().is_terminal() && !Builder::global().is_watched() {
        let device = kernel.device().name();
        eprintln!("netcl: compiling {programs} kernels for {device}, which are kept for the next time");
    }
}

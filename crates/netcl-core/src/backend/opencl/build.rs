//! Building programs through the cache.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use super::cache::{Header, Key, Lookup, Store};
use super::compiler_lock::CompilerLock;
use super::context::Context;
use super::device::Device;
use super::error::{BuildError, ClError, ClResult};
use super::program::Program;
use super::ptx;
use crate::debug::{self, Origin};

/// A program to build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// OpenCL C.
    pub text: String,
    /// Compiler options; `-cl-std` is added from the device's version unless it is among them.
    pub options: String,
    /// The source holds marked PTX instructions (see [`ptx`]) that the target `sm_NNa` brings to life.
    pub retarget: bool,
}

impl Source {
    /// Plain OpenCL C.
    pub fn new(text: impl Into<String>, options: impl Into<String>) -> Source {
        Source { text: text.into(), options: options.into(), retarget: false }
    }

    /// With marked PTX instructions.
    #[must_use]
    pub fn retargeted(mut self) -> Source {
        self.retarget = true;
        self
    }
}

/// Exact counts of what a [`Builder`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildStats {
    /// Compiler runs, good and bad.
    pub builds: u64,
    /// Compiler runs that failed.
    pub failures: u64,
    /// Programs loaded from the cache.
    pub hits: u64,
    /// Failures answered from the cache.
    pub negative_hits: u64,
    /// Look-ups that led to a compiler run.
    pub misses: u64,
    /// Damaged entries found and deleted.
    pub corrupt: u64,
    /// Intact entries that the driver refused; deleted as well.
    pub rejected: u64,
    /// Entries that could not be written (full or read-only disk); the program works all the same.
    pub unwritten: u64,
}

#[derive(Debug, Default)]
struct Counters {
    builds: AtomicU64,
    failures: AtomicU64,
    hits: AtomicU64,
    negative_hits: AtomicU64,
    misses: AtomicU64,
    corrupt: AtomicU64,
    rejected: AtomicU64,
    unwritten: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Builds programs, through a cache or without.
#[derive(Debug)]
pub struct Builder {
    store: Option<Store>,
    counters: Counters,
    /// Names of kernels that threads are waiting for.
    awaited: Mutex<Vec<String>>,
    /// Whether somebody shows what is being compiled.
    watched: AtomicBool,
}

/// A kernel is being waited for while this lives.
pub(super) struct Awaited<'b> {
    builder: &'b Builder,
    name: &'b str,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let mut awaited = self.builder.awaited();
        if let Some(at) = awaited.iter().position(|name| name == self.name) {
            awaited.remove(at);
        }
    }
}

impl Builder {
    /// A builder over the given store, or over none.
    pub fn new(store: Option<Store>) -> Builder {
        Builder { store, counters: Counters::default(), awaited: Mutex::default(), watched: AtomicBool::new(false) }
    }

    /// Notes that a kernel is being waited for.
    pub(super) fn await_kernel<'b>(&'b self, name: &'b str) -> Awaited<'b> {
        self.awaited().push(name.to_owned());
        Awaited { builder: self, name }
    }

    fn awaited(&self) -> MutexGuard<'_, Vec<String>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel that is being compiled or loaded at this moment, for progress: of several, the one asked for last.
    pub fn compiling(&self) -> Option<String> {
        self.watched.store(true, Ordering::Relaxed);
        self.awaited().last().cloned()
    }

    /// Whether somebody has asked what is being compiled: progress is shown already.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// The process's builder, over the user's cache as the environment says.
    pub fn global() -> &'static Builder {
        static GLOBAL: OnceLock<Builder> = OnceLock::new();
        GLOBAL.get_or_init(|| Builder::new(Store::programs()))
    }

    /// The store it uses.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// What it did so far.
    pub fn stats(&self) -> BuildStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        BuildStats {
            builds: get(&c.builds),
            failures: get(&c.failures),
            hits: get(&c.hits),
            negative_hits: get(&c.negative_hits),
            misses: get(&c.misses),
            corrupt: get(&c.corrupt),
            rejected: get(&c.rejected),
            unwritten: get(&c.unwritten),
        }
    }

    /// Builds a program for one device, or loads it from the cache. A program that does not compile is
    /// [`ClError::Build`], and the cache remembers that too where the source is to blame.
    pub fn build(&self, context: &Context, device: &Device, source: &Source) -> ClResult<Program> {
        let start = Instant::now();
        let tell = |program: &Program, origin| {
            program.note_source(&source.text);
            debug::built(program.kernel_names(), device.name(), origin, start.elapsed(), &source.options, &source.text);
        };
        let options = full_options(device, &source.options);
        let key = key(device, source, &options);
        // Over loading as well: a driver may unpack a binary into its folder.
        let _lock = CompilerLock::acquire(device);
        if let Some(found) = self.look_up(context, device, source, &options, &key)? {
            tell(&found, Origin::Cached);
            return Ok(found);
        }
        let built = self.compile(context, device, source, &options).or_else(|first| {
            // A full disk, lack of memory, another program in the driver's folder: what passes may be over by now.
            match &first {
                ClError::Build(_) | ClError::Call { .. } => self.compile(context, device, source, &options),
                _ => Err(first),
            }
        });
        match &built {
            Ok(program) => {
                tell(program, Origin::Compiled);
                self.remember(&key, device, &options, program);
            }
            // Nothing else is worth remembering: it may work next time.
            Err(ClError::Build(build)) if build.blames_source() => {
                let header = Header { device: build.device.clone(), options, kernels: Vec::new(), failed: true };
                self.put(&key, &header, build.log.as_bytes());
            }
            Err(_) => {}
        }
        built
    }

    fn compile(&self, context: &Context, device: &Device, source: &Source, options: &str) -> ClResult<Program> {
        count(&self.counters.builds);
        compile(context, device, source, options).inspect_err(|_| count(&self.counters.failures))
    }

    fn look_up(
        &self,
        context: &Context,
        device: &Device,
        source: &Source,
        options: &str,
        key: &Key,
    ) -> ClResult<Option<Program>> {
        let Some(store) = &self.store else { return Ok(None) };
        match store.get(key) {
            Lookup::Hit(entry) if entry.header.failed => {
                count(&self.counters.negative_hits);
                return Err(ClError::Build(Box::new(BuildError {
                    device: entry.header.device,
                    options: entry.header.options,
                    log: String::from_utf8_lossy(&entry.payload).into_owned(),
                    source: source.text.clone(),
                    cached: true,
                })));
            }
            Lookup::Hit(entry) => match Program::from_binary(context, device, &entry.payload, options) {
                Ok(program) if program.kernel_names() == entry.header.kernels => {
                    count(&self.counters.hits);
                    return Ok(Some(program));
                }
                Err(error @ (ClError::Forked { .. } | ClError::Load(_))) => return Err(error),
                // An update of the driver that kept its version, say. The source is at hand, so build it again.
                Ok(_) | Err(_) => {
                    count(&self.counters.rejected);
                    store.remove(key);
                }
            },
            Lookup::Corrupt => count(&self.counters.corrupt),
            Lookup::Miss => {}
        }
        count(&self.counters.misses);
        Ok(None)
    }

    fn remember(&self, key: &Key, device: &Device, options: &str, program: &Program) {
        if self.store.is_none() {
            return;
        }
        // A driver without binaries is no reason to fail: the program runs, it is only not kept.
        let Some(binary) = program.binary().ok().filter(|binary| !binary.is_empty()) else { return };
        let header = Header {
            device: device.name().to_owned(),
            options: options.to_owned(),
            kernels: program.kernel_names().to_vec(),
            failed: false,
        };
        self.put(key, &header, &binary);
    }

    fn put(&self, key: &Key, header: &Header, payload: &[u8]) {
        if let Some(store) = &self.store
            && store.put(key, header, payload).is_err()
        {
            count(&self.counters.unwritten);
        }
    }
}

/// Builds OpenCL C for one device with the process's [`Builder`].
///
/// ```
/// use netcl_core::backend::opencl::{Arg, Buffer, Context, Deps, Grid, MemFlags, Queue, build, discover};
/// let source = "__kernel void twice(__global float* x) { x[get_global_id(0)] *= 2.0f; }";
/// # unsafe { std::env::set_var("NETCL_CACHE", "0") };
/// for device in discover().map(|found| found.devices()).unwrap_or_default() {
///     let context = Context::new(&[device.clone()])?;
///     let queue = Queue::new(&context, &device)?;
///     let twice = build(&context, &device, source, "")?.kernel("twice")?;
///     let x = Buffer::new(&context, MemFlags::READ_WRITE, 8)?;
///     queue.write(&x, 0, &[1.5_f32, 2.5])?;
///     queue.launch(&twice, Grid::new([2]), &[Arg::Buffer(&x)], Deps::NONE)?;
///     let mut back = [0.0_f32; 2];
///     queue.read(&x, 0, &mut back)?;
///     assert_eq!(back, [3.0, 5.0]);
/// }
/// # Ok::<(), netcl_core::backend::opencl::ClError>(())
/// ```
pub fn build(context: &Context, device: &Device, source: &str, options: &str) -> ClResult<Program> {
    Builder::global().build(context, device, &Source::new(source, options))
}

fn compile(context: &Context, device: &Device, source: &Source, options: &str) -> ClResult<Program> {
    let program = Program::from_source(context, device, &source.text, options)?;
    if !source.retarget {
        return Ok(program);
    }
    let binary = program.binary()?;
    let text =
        ptx::retarget(&String::from_utf8_lossy(&binary)).map_err(|e| ClError::usage("retarget", e.to_string()))?;
    Program::from_binary(context, device, text.as_bytes(), options)
}

fn key(device: &Device, source: &Source, options: &str) -> Key {
    let retarget = if source.retarget { "retarget" } else { "plain" };
    Key::new(&[env!("CARGO_PKG_VERSION"), &device.identity(), options, retarget, &source.text])
}

/// The options with `-cl-std` added, and what sources may ask of the device. Its own version decides: asking for more than it has is an
/// error there, and asking for less hides features.
fn full_options(device: &Device, options: &str) -> String {
    let mut options = options.trim().to_owned();
    // Ampere and later round to bfloat16 in one instruction of PTX.
    if device.quirks().ptx && device.raw_info().compute_capability.is_some_and(|capability| capability >= (8, 0)) {
        options = format!("-DNATIVE_BF16 {options}").trim().to_owned();
    }
    if options.contains("-cl-std=") {
        return options;
    }
    match standard(device.info().opencl_c) {
        Some(standard) if options.is_empty() => format!("-cl-std={standard}"),
        Some(standard) => format!("-cl-std={standard} {options}"),
        None => options,
    }
}

fn standard(version: (u32, u32)) -> Option<&'static str> {
    match version {
        (3.., _) => Some("CL3.0"),
        (2, _) => Some("CL2.0"),
        (1, 2..) => Some("CL1.2"),
        (1, 1) => Some("CL1.1"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_can_name_the_kernel_that_is_waited_for() {
        let builder = Builder::new(None);
        assert_eq!(builder.compiling(), None);
        let outer = builder.await_kernel("matmul");
        let inner = builder.await_kernel("softmax");
        assert_eq!(builder.compiling().as_deref(), Some("softmax"));
        drop(outer);
        assert_eq!(builder.compiling().as_deref(), Some("softmax"));
        drop(inner);
        assert_eq!(builder.compiling(), None);
    }

    #[test]
    fn the_standard_follows_the_device() {
        assert_eq!(standard((1, 0)), None);
        assert_eq!(standard((1, 1)), Some("CL1.1"));
        assert_eq!(standard((1, 2)), Some("CL1.2"));
        assert_eq!(standard((2, 1)), Some("CL2.0"));
        assert_eq!(standard((3, 1)), Some("CL3.0"));
    }
}

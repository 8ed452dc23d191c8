//! A built spec: its kernels, launches with checked arguments, and timed work-group sizes.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::argument::KernelArg;
use super::native::{kernel_stream, native_work};
use super::signature::{Parameter, parameters};
use super::spec::KernelSpec;
use crate::backend::Queue;
use crate::backend::opencl::{self, Builder, Context, Device, Event, Grid, Kernel, Stream};
use crate::error::{Error, Result};
use crate::kernels::launch::{self, Arg, Cost, Launch, Work};
use crate::kernels::work_group::{GroupLimits, Sizes, WorkGroupTuner};

/// How long [`KernelFunction::tune`] looks for the best size, apart from the runs it has begun.
const TUNE_BUDGET: Duration = Duration::from_millis(500);
/// Timed runs of each size; the fastest counts.
const TUNE_RUNS: usize = 5;

/// A spec compiled for the devices of a context.
///
/// Running checks the arguments against the kernel's declaration, goes through the launch seam (so profiling, capture and
/// launch counts see it), and raises the version of every tensor behind a non-`const` pointer.
#[derive(Clone)]
pub struct KernelProgram {
    name: String,
    context: Context,
    functions: Vec<KernelFunction>,
}

/// One kernel of a [`KernelProgram`]; clones are the same kernel.
#[derive(Clone)]
pub struct KernelFunction(Arc<Inner>);

struct Inner {
    name: String,
    spec: KernelSpec,
    context: Context,
    /// One compiled form per device.
    kernels: Vec<Compiled>,
    /// The kernel for the native CPU, made when it first runs there, if that is not among these devices.
    native: OnceLock<KernelFunction>,
}

struct Compiled {
    device: Device,
    kernel: Kernel,
    parameters: Vec<Parameter>,
    limits: GroupLimits,
}

/// What [`KernelFunction::tune`] found.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// The work-group size that won; `None` when the driver's own choice did.
    pub local_size: Option<Sizes>,
    /// Its fastest run.
    pub best: Duration,
    /// Every size that was timed, with its fastest run.
    pub tried: Vec<(Option<Sizes>, Duration)>,
}

impl KernelProgram {
    pub(super) fn build(spec: &KernelSpec, context: &Context, devices: &[Device]) -> Result<KernelProgram> {
        let source = spec.source();
        let mut programs = Vec::new();
        for device in devices {
            if let Some(dtype) = spec.dtype {
                check_dtype(device, dtype)?;
            }
            programs.push(Builder::global().build(context, device, &source)?);
        }
        let names = programs.first().map(|program| program.kernel_names().to_vec()).unwrap_or_default();
        if !names.iter().any(|name| name == spec.name()) {
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            // PoCL renames kernels that bear the name of a built-in function.
            let hint =
                if there.contains("_cl_") { "; the name of a built-in function cannot be a kernel's" } else { "" };
            let what = format!("the source has no kernel {:?}; it has: {there}{hint}", spec.name());
            return Err(Error::argument("KernelSpec", what));
        }
        let functions = names
            .iter()
            .map(|name| {
                let kernels = programs
                    .iter()
                    .zip(devices)
                    .map(|(program, device)| {
                        let kernel = program.kernel(name)?;
                        let parameters = parameters(&kernel, &source.text)?;
                        let limits = GroupLimits::of_kernel(&kernel)?;
                        Ok(Compiled { device: device.clone(), kernel, parameters, limits })
                    })
                    .collect::<Result<Vec<_>>>()?;
                let (name, spec, context) = (name.clone(), spec.clone(), context.clone());
                Ok(KernelFunction(Arc::new(Inner { name, spec, context, kernels, native: OnceLock::new() })))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(KernelProgram { name: spec.name().to_owned(), context: context.clone(), functions })
    }

    /// The context it was built in.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The names of its kernels, sorted.
    pub fn kernel_names(&self) -> Vec<&str> {
        self.functions.iter().map(KernelFunction::name).collect()
    }

    /// One of its kernels.
    pub fn kernel(&self, name: &str) -> Result<KernelFunction> {
        self.functions.iter().find(|function| function.name() == name).cloned().ok_or_else(|| {
            let what = format!("the program has no kernel {name:?}; it has: {}", self.kernel_names().join(", "));
            Error::argument("KernelProgram", what)
        })
    }

    /// The kernel that the spec is named after.
    pub fn main(&self) -> Result<KernelFunction> {
        self.kernel(&self.name)
    }

    /// Runs the kernel that the spec is named after; see [`KernelFunction::run`].
    pub fn run(&self, queue: &Queue, global: &[usize], local: Option<&[usize]>, args: &[KernelArg]) -> Result<()> {
        self.main()?.run(queue, global, local, args)
    }
}

fn check_dtype(device: &Device, dtype: crate::dtype::DType) -> Result<()> {
    let has_double = device.has_extension("cl_khr_fp64") || device.has_extension("cl_amd_fp64");
    if dtype != crate::dtype::DType::F64 || has_double {
        return Ok(());
    }
    let why = "it has no cl_khr_fp64, so a kernel on double cannot be built; use float".to_owned();
    Err(Error::Unsupported { op: "KernelSpec", device: device.name().to_owned(), why })
}

impl KernelFunction {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its parameters as declared.
    pub fn parameters(&self) -> &[Parameter] {
        self.0.kernels.first().map_or(&[], |compiled| &compiled.parameters)
    }

    /// The driver's kernel for a device; `None` if it was not built for it.
    pub fn raw(&self, device: &Device) -> Option<&Kernel> {
        self.0.kernels.iter().find(|compiled| compiled.device == *device).map(|compiled| &compiled.kernel)
    }

    /// The driver's kernel for the first device.
    pub fn first(&self) -> Option<&Kernel> {
        self.0.kernels.first().map(|compiled| &compiled.kernel)
    }

    /// Runs the kernel with `global` work-items in one to three dimensions.
    ///
    /// Without a local size the one that won earlier is used (given to an earlier run, or found by [`KernelFunction::tune`]), else
    /// the tuner's choice. The global size stays as given, because a surplus work-item would write outside its buffers: a local
    /// size has to divide it. Only kernels declared [`KernelSpec::bounds_checked`] have it rounded up.
    pub fn run(&self, queue: &Queue, global: &[usize], local: Option<&[usize]>, args: &[KernelArg]) -> Result<()> {
        let compiled = self.compiled(queue)?;
        let args = self.fit(compiled, queue, args)?;
        self.check_global(global)?;
        if global.contains(&0) {
            return Ok(());
        }
        let grid = match local {
            Some(local) => self.grid(compiled, global, local)?,
            None => self.choose(compiled, global),
        };
        launch::submit(self.launch(compiled, queue, grid, args)?)?;
        if let Some(local) = local {
            self.0.spec.sizes.remember(self.name(), &compiled.device, global.len(), Some(local.into()));
        }
        Ok(())
    }

    /// As [`KernelFunction::run`], and returns the launch's event where the queue profiles its commands
    /// (`NETCL_PROFILE_EVENTS=1`) and there was a launch.
    pub fn run_event(
        &self,
        queue: &Queue,
        global: &[usize],
        local: Option<&[usize]>,
        args: &[KernelArg],
    ) -> Result<Option<Event>> {
        match queue {
            Queue::OpenCl(stream) if stream.queue().profiling() => {
                let (result, mut events) = opencl::keep_events(|| self.run(queue, global, local, args));
                result.map(|()| events.pop())
            }
            _ => self.run(queue, global, local, args).map(|()| None),
        }
    }

    /// The work-group size that a run without one would use; `None` means the driver's own choice.
    pub fn local_size(&self, queue: &Queue, global: &[usize]) -> Result<Option<Sizes>> {
        let compiled = self.compiled(queue)?;
        self.check_global(global)?;
        if global.contains(&0) {
            return Ok(None);
        }
        Ok(self.choose(compiled, global).local_size().map(Into::into))
    }

    /// Times a few work-group sizes and remembers the fastest for later runs.
    ///
    /// **The kernel runs many times**, on the very arguments: give it scratch memory unless running twice does no harm. The runs do
    /// not pass through the launch seam, and the search ends after about half a second.
    pub fn tune(&self, queue: &Queue, global: &[usize], args: &[KernelArg]) -> Result<Tuned> {
        launch::check_readable("tune")?;
        let compiled = self.compiled(queue)?;
        let args = self.fit(compiled, queue, args)?;
        self.check_global(global)?;
        if global.contains(&0) {
            return Err(Error::argument("tune", format!("global_size {global:?} holds a zero: nothing to time")));
        }
        let spec = &self.0.spec;
        let mut sizes: Vec<Option<Sizes>> =
            spec.tuner.candidates(global, &compiled.limits, spec.bounds_checked).into_iter().map(Some).collect();
        if compiled.limits.required.is_none() {
            sizes.push(None);
        }
        let mut tried: Vec<(Option<Sizes>, Duration)> = Vec::new();
        let begin = Instant::now();
        for local in sizes {
            if !tried.is_empty() && begin.elapsed() > TUNE_BUDGET {
                break;
            }
            let grid = match &local {
                Some(local) => self.grid(compiled, global, local)?,
                None => grid(global, None),
            };
            let launch = self.launch(compiled, queue, grid, args.clone())?;
            // The first run of a size may cost a compiler run.
            launch.run()?;
            queue.finish()?;
            let mut best = Duration::MAX;
            for _ in 0..TUNE_RUNS {
                let start = Instant::now();
                launch.run()?;
                queue.finish()?;
                best = best.min(start.elapsed());
            }
            tried.push((local, best));
        }
        let Some((local_size, best)) = tried.iter().min_by_key(|(_, time)| *time).cloned() else {
            return Err(Error::argument("tune", format!("no work-group size fits global_size {global:?}")));
        };
        spec.sizes.remember(self.name(), &compiled.device, global.len(), local_size.clone());
        Ok(Tuned { local_size, best, tried })
    }

    fn compiled(&self, queue: &Queue) -> Result<&Compiled> {
        let stream = kernel_stream(queue)?;
        match (self.built_for(&stream), queue) {
            (Some(compiled), _) => Ok(compiled),
            // Native tensors have no context to build for: `build_elementwise_kernel(tensor.context, ...)` was given None.
            (None, Queue::Cpu(_)) => {
                let native = match self.0.native.get() {
                    Some(native) => native,
                    None => {
                        let made = self.0.spec.build(queue)?.kernel(self.name())?;
                        self.0.native.get_or_init(|| made)
                    }
                };
                native.built_for(&stream).ok_or_else(|| Error::argument("run", "the kernel has no native form"))
            }
            (None, Queue::OpenCl(_)) => {
                let what = format!(
                    "kernel {} was built for {:?}, not for this queue on {} (device and context must be the same); call spec.build(queue)",
                    self.name(),
                    self.0.context,
                    queue.device_name()
                );
                Err(Error::argument("run", what))
            }
        }
    }

    fn built_for(&self, stream: &Stream) -> Option<&Compiled> {
        let same = |compiled: &&Compiled| compiled.device == *stream.device();
        self.0.kernels.iter().find(same).filter(|_| *stream.context() == self.0.context)
    }

    fn fit(&self, compiled: &Compiled, queue: &Queue, args: &[KernelArg]) -> Result<smallvec::SmallVec<[Arg; 8]>> {
        let parameters = &compiled.parameters;
        if args.len() != parameters.len() {
            let list: Vec<&str> = parameters.iter().map(|parameter| parameter.declaration.as_str()).collect();
            let what = format!(
                "kernel {} takes {} arguments ({}), {} were given",
                self.name(),
                parameters.len(),
                list.join(", "),
                args.len()
            );
            return Err(Error::argument("run", what));
        }
        let fit = |(index, (arg, parameter)): (usize, (&KernelArg, &Parameter))| {
            arg.fit(self.name(), index, parameter, queue)
        };
        args.iter().zip(parameters).enumerate().map(fit).collect()
    }

    fn check_global(&self, global: &[usize]) -> Result<()> {
        if (1..=3).contains(&global.len()) {
            return Ok(());
        }
        let what = format!(
            "kernel {}: global_size {global:?} has {} dimensions; one to three are possible",
            self.name(),
            global.len()
        );
        Err(Error::argument("run", what))
    }

    /// The grid for a size that somebody named.
    fn grid(&self, compiled: &Compiled, global: &[usize], local: &[usize]) -> Result<Grid> {
        let wrong = |what: String| Err(Error::argument("run", format!("kernel {}: {what}", self.name())));
        if local.len() != global.len() {
            return wrong(format!("local_size {local:?} and global_size {global:?} differ in their dimensions"));
        }
        compiled.limits.check(self.name(), local)?;
        let rounded = WorkGroupTuner::round_up(global, local);
        if rounded[..] == *global || self.0.spec.bounds_checked {
            return Ok(grid(&rounded, Some(local)));
        }
        wrong(format!(
            "local_size {local:?} does not divide global_size {global:?}; round the latter up to {:?} if the kernel checks its bounds",
            &rounded[..]
        ))
    }

    /// The grid for a run without a local size.
    fn choose(&self, compiled: &Compiled, global: &[usize]) -> Grid {
        let spec = &self.0.spec;
        match spec.sizes.recall(self.name(), &compiled.device, global.len()) {
            Some(None) => return grid(global, None),
            Some(Some(local)) => {
                // It was right for another global size; for this one it may not be.
                if let Ok(grid) = self.grid(compiled, global, &local) {
                    return grid;
                }
            }
            None => {}
        }
        if spec.bounds_checked {
            let local = spec.tuner.local_size(global, &compiled.limits);
            return grid(&WorkGroupTuner::round_up(global, &local), Some(&local));
        }
        grid(global, spec.tuner.exact_local_size(global, &compiled.limits).as_deref())
    }

    fn launch(
        &self,
        compiled: &Compiled,
        queue: &Queue,
        grid: Grid,
        args: smallvec::SmallVec<[Arg; 8]>,
    ) -> Result<Launch> {
        let bytes =
            args.iter().map(|arg| if let Arg::Buffer(storage, _) = arg { storage.nbytes() } else { 0 }).sum::<usize>();
        let kernel = compiled.kernel.clone();
        let work = match queue {
            Queue::OpenCl(_) => Work::OpenCl(kernel, grid),
            Queue::Cpu(_) => native_work(kernel_stream(queue)?, kernel, grid),
        };
        // What the kernel computes is unknown; that it touches each of its buffers once is the best guess.
        let cost = Cost { flops: 0.0, bytes: bytes as f64 };
        Ok(Launch { name: self.name().to_owned().into(), queue: queue.clone(), work, args, cost })
    }
}

fn grid(global: &[usize], local: Option<&[usize]>) -> Grid {
    let at = |sizes: &[usize], axis: usize| sizes.get(axis).copied().unwrap_or(1);
    let three = |sizes: &[usize]| [at(sizes, 0), at(sizes, 1), at(sizes, 2)];
    let [x, y, z] = three(global);
    let plain = match global.len() {
        1 => Grid::new([x]),
        2 => Grid::new([x, y]),
        _ => Grid::new([x, y, z]),
    };
    match (local.map(three), global.len()) {
        (None, _) => plain,
        (Some([x, _, _]), 1) => plain.local([x]),
        (Some([x, y, _]), 2) => plain.local([x, y]),
        (Some(local), _) => plain.local(local),
    }
}

impl std::fmt::Debug for KernelProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelProgram({} for {:?})", self.kernel_names().join(", "), self.context)
    }
}

impl std::fmt::Debug for KernelFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list: Vec<&str> = self.parameters().iter().map(|parameter| parameter.declaration.as_str()).collect();
        write!(f, "KernelFunction({}({}))", self.name(), list.join(", "))
    }
}

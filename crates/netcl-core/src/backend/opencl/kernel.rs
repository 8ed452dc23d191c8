//! Kernels and launches.
//!
//! `clSetKernelArg` is the one call that is not thread-safe, so a [`Kernel`] holds a lock over "set all arguments, enqueue".
//! A lock was chosen over one clone per thread: free, it costs about 20 ns against the microseconds of an enqueue, and the
//! common program has one launching thread. A thread that launches one kernel all the time can take [`Kernel::duplicate`].
//!
//! A kernel that a recording asks for is *promised*: its program is built when the driver's object is first needed, so that
//! the programs of a whole step can be built side by side before it runs (see [`ahead`](super::ahead)).

use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytemuck::Pod;
use opencl_sys::*;

use super::api::api;
use super::buffer::Buffer;
use super::build::{Builder, Source};
use super::context::Context;
use super::device::Device;
use super::error::{ClError, ClResult, check};
use super::event::{Deps, Event};
use super::handle::{Handle, KernelObject};
use super::info;
use super::program::Program;
use super::queue::Queue;

/// Bytes that fit into [`Arg::Scalar`]: up to a `double2`, `float4` or `int4`.
const SCALAR_BYTES: usize = 16;

/// A kernel argument.
///
/// ```
/// use netcl_core::backend::opencl::Arg;
/// let args = [Arg::from(3_u32), Arg::from(0.5_f32), Arg::Local(1024), Arg::Null];
/// assert_eq!(args.len(), 4);
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A buffer, for `__global` and `__constant` pointers.
    Buffer(&'a Buffer),
    /// So many bytes of local memory, for `__local` pointers.
    Local(usize),
    /// A value that the argument itself holds: see [`Arg::from`] and [`Arg::scalar`].
    Scalar(Scalar),
    /// Any plain value by its bytes, for structs.
    Bytes(&'a [u8]),
    /// A null pointer.
    Null,
}

/// Up to 16 bytes of a plain value.
#[derive(Clone, Copy, Debug)]
pub struct Scalar {
    bytes: [u8; SCALAR_BYTES],
    len: u8,
}

impl<'a> Arg<'a> {
    /// A plain value of any size, held by reference.
    pub fn bytes<T: Pod>(value: &'a T) -> Self {
        Arg::Bytes(bytemuck::bytes_of(value))
    }

    /// A plain value of at most 16 bytes; the size is checked when compiling.
    pub fn scalar<T: Pod>(value: T) -> Self {
        const { assert!(size_of::<T>() <= SCALAR_BYTES, "use Arg::bytes for larger values") };
        let mut bytes = [0; SCALAR_BYTES];
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        Arg::Scalar(Scalar { bytes, len: size_of::<T>() as u8 })
    }
}

macro_rules! arg_from {
    ($($ty:ty),*) => {
        $(impl From<$ty> for Arg<'_> {
            fn from(value: $ty) -> Self {
                Arg::scalar(value)
            }
        })*
    };
}
arg_from!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, half::f16, half::bf16);

impl<'a> From<&'a Buffer> for Arg<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Arg::Buffer(buffer)
    }
}

/// How many work-items run, and in which groups.
///
/// ```
/// use netcl_core::backend::opencl::Grid;
/// let grid = Grid::new([1024, 64]).local([16, 4]);
/// assert_eq!(grid.to_string(), "[1024, 64] / [16, 4]");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    dims: usize,
    global: [usize; 3],
    local: Option<[usize; 3]>,
    offset: Option<[usize; 3]>,
}

impl Grid {
    /// A grid of one to three dimensions whose groups the driver chooses.
    pub fn new<const N: usize>(global: [usize; N]) -> Grid {
        Grid { dims: N, global: pad(global, 1), local: None, offset: None }
    }

    /// With work-groups of this size.
    #[must_use]
    pub fn local<const N: usize>(mut self, local: [usize; N]) -> Grid {
        self.dims = self.dims.max(N);
        self.local = Some(pad(local, 1));
        self
    }

    /// With ids that begin here.
    #[must_use]
    pub fn offset<const N: usize>(mut self, offset: [usize; N]) -> Grid {
        self.dims = self.dims.max(N);
        self.offset = Some(pad(offset, 0));
        self
    }

    /// The number of work-items in each dimension.
    pub fn global_size(&self) -> &[usize] {
        &self.global[..self.dims]
    }

    /// Whether ids begin at 0 in all dimensions.
    pub(super) fn begins_at_zero(&self) -> bool {
        self.offset.is_none_or(|offset| offset == [0; 3])
    }

    /// The size of a work-group, where it was given.
    pub fn local_size(&self) -> Option<&[usize]> {
        self.local.as_ref().map(|local| &local[..self.dims])
    }
}

fn pad<const N: usize>(sizes: [usize; N], with: usize) -> [usize; 3] {
    const { assert!(N >= 1 && N <= 3, "a launch has one to three dimensions") };
    let mut padded = [with; 3];
    padded[..N].copy_from_slice(&sizes);
    padded
}

impl std::fmt::Display for Grid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.global_size())?;
        if let Some(local) = self.local_size() {
            write!(f, " / {local:?}")?;
        }
        Ok(())
    }
}

/// What the compiler made of a kernel on its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkGroupInfo {
    /// Largest work-group for this kernel.
    pub max_size: usize,
    /// Work-group sizes should be multiples of this.
    pub preferred_multiple: usize,
    /// Local memory it uses, without its `__local` arguments.
    pub local_bytes: u64,
    /// Private memory per work-item, as far as known (spilled registers show here on some drivers).
    pub private_bytes: u64,
    /// The size fixed by `reqd_work_group_size`, if any.
    pub required_size: Option<[usize; 3]>,
}

/// A kernel's parameter as written in its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgInfo {
    /// Its name.
    pub name: String,
    /// Its type, for example `float*`.
    pub type_name: String,
    /// `"global"`, `"local"`, `"constant"` or `"private"`.
    pub address: &'static str,
    /// The pointed-to values are `const`.
    pub is_const: bool,
}

/// One kernel of a program; clones are the same kernel and share its lock.
#[derive(Clone)]
pub struct Kernel(Arc<Inner>);

struct Inner {
    name: String,
    device: Device,
    built: OnceLock<Built>,
    /// What a promised kernel is built from.
    recipe: Option<Recipe>,
    /// Held over a build.
    building: Mutex<()>,
    /// Held over "set all arguments, enqueue".
    launch: Mutex<()>,
    work_group: OnceLock<WorkGroupInfo>,
}

/// The driver's object.
struct Built {
    handle: Handle<KernelObject>,
    program: Program,
    arg_count: usize,
}

/// Where a promised kernel comes from.
pub(super) struct Recipe {
    pub(super) context: Context,
    pub(super) source: Source,
}

/// On NVIDIA's GPUs since Volta a work-item has at most 255 registers and a group 65,536: groups of this size can run
/// whatever a kernel needs, and nobody has to wait for its build to know.
const GROUP_OF_ANY_KERNEL: usize = 256;

impl Kernel {
    /// A kernel that is built when it is first needed; a source that does not compile is an error then.
    pub(super) fn promised(context: &Context, device: &Device, source: Source, name: &str) -> Kernel {
        Kernel(Arc::new(Inner {
            name: name.to_owned(),
            device: device.clone(),
            built: OnceLock::new(),
            recipe: Some(Recipe { context: context.clone(), source }),
            building: Mutex::default(),
            launch: Mutex::default(),
            work_group: OnceLock::new(),
        }))
    }

    pub(super) fn new(program: &Program, name: &str) -> ClResult<Kernel> {
        Kernel::wrap(Kernel::object(program, name)?, program, name)
    }

    fn object(program: &Program, name: &str) -> ClResult<Handle<KernelObject>> {
        const CALL: &str = "clCreateKernel";
        let api = api(CALL)?;
        let text = CString::new(name).map_err(|_| ClError::usage(CALL, "the name holds a zero byte"))?;
        let mut code = 0;
        // SAFETY: the program is alive and the name ends with a zero.
        let raw = unsafe { (api.clCreateKernel)(program.raw(), text.as_ptr(), &mut code) };
        check(CALL, code)
            .map_err(|e| e.about(|| format!("{name}; the program has {}", program.kernel_names().join(", "))))?;
        // SAFETY: the call returned a new reference.
        unsafe { Handle::adopt(CALL, raw) }
    }

    fn wrap(handle: Handle<KernelObject>, program: &Program, name: &str) -> ClResult<Kernel> {
        Ok(Kernel(Arc::new(Inner {
            name: name.to_owned(),
            device: program.device().clone(),
            built: OnceLock::from(Built::new(handle, program)?),
            recipe: None,
            building: Mutex::default(),
            launch: Mutex::default(),
            work_group: OnceLock::new(),
        })))
    }

    /// The driver's object; builds a promised kernel.
    fn built(&self) -> ClResult<&Built> {
        if let Some(built) = self.0.built.get() {
            return Ok(built);
        }
        let _alone = self.0.building.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = self.0.built.get() {
            return Ok(built);
        }
        // A kernel without a recipe was made built.
        let recipe = self.0.recipe.as_ref().ok_or_else(|| ClError::usage("build", "a kernel without its object"))?;
        let _awaited = Builder::global().await_kernel(self.name());
        let program = Builder::global().build(&recipe.context, self.device(), &recipe.source)?;
        let built = Built::new(Kernel::object(&program, self.name())?, &program)?;
        Ok(self.0.built.get_or_init(|| built))
    }

    /// Builds a promised kernel now.
    pub(super) fn build(&self) -> ClResult<()> {
        self.built().map(drop)
    }

    /// What it will be built from, while it is only promised.
    pub(super) fn promise(&self) -> Option<&Recipe> {
        self.0.recipe.as_ref().filter(|_| self.0.built.get().is_none())
    }

    /// Which kernel it is, whether built or promised; clones are the same one.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Wraps a `cl_kernel` made by other code; a reference is added. The other code must not set its arguments meanwhile.
    ///
    /// # Safety
    /// `ptr` is a valid `cl_kernel` of the loaded library, whose program is built.
    pub unsafe fn from_int_ptr(ptr: usize) -> ClResult<Kernel> {
        const CALL: &str = "clGetKernelInfo";
        let api = api(CALL)?;
        // SAFETY: the caller vouches for the pointer.
        let handle = unsafe { Handle::<KernelObject>::share(ptr as *mut c_void)? };
        // SAFETY: the kernel is alive, and `info` passes a matching capacity.
        let query = |what| move |size, to, got| unsafe { (api.clGetKernelInfo)(ptr as cl_kernel, what, size, to, got) };
        let name = info::string(CALL, query(CL_KERNEL_FUNCTION_NAME))?;
        let program = info::pointer(CALL, query(CL_KERNEL_PROGRAM))?;
        // SAFETY: the driver names the kernel's own program.
        let program = unsafe { Program::from_int_ptr(program as usize)? };
        Kernel::wrap(handle, &program, &name)
    }

    /// A kernel object of its own for the same function, with its own lock.
    pub fn duplicate(&self) -> ClResult<Kernel> {
        const CALL: &str = "clCloneKernel";
        let clone = api(CALL)?.clCloneKernel.filter(|_| self.device().info().opencl >= (2, 1));
        let program = self.program()?;
        let Some(clone) = clone else { return Kernel::new(program, self.name()) };
        let mut code = 0;
        let raw = {
            let raw = self.raw()?;
            let _lock = self.0.launch.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the kernel is alive; the lock keeps its arguments still while they are copied.
            unsafe { clone(raw, &mut code) }
        };
        if code != CL_SUCCESS {
            // Some 3.0 drivers export the call and refuse it.
            return Kernel::new(program, self.name());
        }
        // SAFETY: the call returned a new reference.
        Kernel::wrap(unsafe { Handle::adopt(CALL, raw)? }, program, self.name())
    }

    /// The `cl_kernel` as a number.
    ///
    /// # Errors
    /// What the driver says of a kernel that a recording left to be built later; so for all that asks the driver's object.
    pub fn int_ptr(&self) -> ClResult<usize> {
        Ok(self.raw()? as usize)
    }

    fn raw(&self) -> ClResult<cl_kernel> {
        Ok(self.built()?.handle.raw())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its program.
    ///
    /// # Errors
    /// As [`Kernel::int_ptr`].
    pub fn program(&self) -> ClResult<&Program> {
        Ok(&self.built()?.program)
    }

    /// The device that it is for.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// How many arguments it takes.
    ///
    /// # Errors
    /// As [`Kernel::int_ptr`].
    pub fn arg_count(&self) -> ClResult<usize> {
        Ok(self.built()?.arg_count)
    }

    /// Names and types of its parameters; `None` unless the program was built with `-cl-kernel-arg-info` (some drivers always
    /// know, some forget when a program comes from a binary).
    pub fn arg_info(&self) -> ClResult<Option<Vec<ArgInfo>>> {
        const CALL: &str = "clGetKernelArgInfo";
        let api = api(CALL)?;
        let raw = self.raw()?;
        let query = |index: usize, what| {
            // SAFETY: the kernel is alive, and `info` passes a matching capacity.
            move |size, to, got| unsafe { (api.clGetKernelArgInfo)(raw, index as cl_uint, what, size, to, got) }
        };
        let one = |index| -> ClResult<ArgInfo> {
            let address: cl_kernel_arg_address_qualifier =
                info::scalar(CALL, query(index, CL_KERNEL_ARG_ADDRESS_QUALIFIER))?;
            let qualifiers: cl_bitfield = info::scalar(CALL, query(index, CL_KERNEL_ARG_TYPE_QUALIFIER))?;
            Ok(ArgInfo {
                name: info::string(CALL, query(index, CL_KERNEL_ARG_NAME))?,
                type_name: info::string(CALL, query(index, CL_KERNEL_ARG_TYPE_NAME))?,
                address: match address {
                    CL_KERNEL_ARG_ADDRESS_GLOBAL => "global",
                    CL_KERNEL_ARG_ADDRESS_LOCAL => "local",
                    CL_KERNEL_ARG_ADDRESS_CONSTANT => "constant",
                    _ => "private",
                },
                is_const: qualifiers & cl_bitfield::from(CL_KERNEL_ARG_TYPE_CONST) != 0,
            })
        };
        match (0..self.arg_count()?).map(one).collect() {
            Ok(list) => Ok(Some(list)),
            Err(error) if error.code() == Some(CL_KERNEL_ARG_INFO_NOT_AVAILABLE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the compiler made of it, with `NETCL_LIMITS` applied; asked once.
    pub fn work_group_info(&self) -> ClResult<&WorkGroupInfo> {
        if let Some(known) = self.0.work_group.get() {
            return Ok(known);
        }
        const CALL: &str = "clGetKernelWorkGroupInfo";
        let api = api(CALL)?;
        let (raw, device) = (self.raw()?, self.device());
        let query = |what| {
            // SAFETY: kernel and device are alive, and `info` passes a matching capacity.
            move |size, to, got| unsafe { (api.clGetKernelWorkGroupInfo)(raw, device.raw_id(), what, size, to, got) }
        };
        let max_size: usize = info::scalar(CALL, query(CL_KERNEL_WORK_GROUP_SIZE))?;
        let required: [usize; 3] = info::scalar(CALL, query(CL_KERNEL_COMPILE_WORK_GROUP_SIZE))?;
        let found = WorkGroupInfo {
            max_size: max_size.min(device.info().max_work_group_size),
            preferred_multiple: info::scalar(CALL, query(CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE))?,
            local_bytes: info::scalar::<cl_ulong>(CALL, query(CL_KERNEL_LOCAL_MEM_SIZE))?,
            private_bytes: info::scalar::<cl_ulong>(CALL, query(CL_KERNEL_PRIVATE_MEM_SIZE)).unwrap_or(0),
            required_size: (required[0] > 0).then_some(required),
        };
        Ok(self.0.work_group.get_or_init(|| found))
    }

    /// The most work-items of a group that the kernel can run, up to `wanted`: asks the driver only where that is in doubt.
    ///
    /// # Errors
    /// As [`Kernel::work_group_info`], where it is asked.
    pub fn group_up_to(&self, wanted: usize) -> ClResult<usize> {
        let wanted = wanted.min(self.device().info().max_work_group_size);
        let volta = self.device().raw_info().compute_capability.is_some_and(|capability| capability >= (7, 0));
        if wanted <= GROUP_OF_ANY_KERNEL && volta && self.device().quirks().ptx {
            return Ok(wanted);
        }
        Ok(self.work_group_info()?.max_size.min(wanted))
    }

    /// An error unless so many arguments and this grid suit the kernel and the queue's device.
    pub(crate) fn check(&self, queue: &Queue, grid: &Grid, args: usize) -> ClResult<()> {
        const CALL: &str = "clEnqueueNDRangeKernel";
        let takes = self.arg_count()?;
        if args != takes {
            let what = format!("kernel {} takes {takes} arguments, {args} were given", self.name());
            return Err(ClError::usage(CALL, what));
        }
        if let Some(local) = grid.local_size() {
            let most = queue.device().info().max_work_group_size;
            let size = local.iter().try_fold(1_usize, |all, &n| all.checked_mul(n));
            // Checked here as well so that NETCL_LIMITS holds for launches.
            if size.is_none_or(|size| size == 0 || size > most) {
                return Err(self.about(queue, grid, ClError::call(CALL, CL_INVALID_WORK_GROUP_SIZE)));
            }
        }
        Ok(())
    }

    fn about(&self, queue: &Queue, grid: &Grid, error: ClError) -> ClError {
        error.about(|| format!("kernel {}, grid {grid} on {}", self.name(), queue.device().name()))
    }

    /// Sets one argument of a kernel object that nobody else launches: the others stay as they are.
    pub(crate) fn set_arg_locked(&self, index: usize, arg: &Arg<'_>) -> ClResult<()> {
        let _lock = self.0.launch.lock().unwrap_or_else(PoisonError::into_inner);
        self.set_arg(index, arg)
    }

    fn set_arg(&self, index: usize, arg: &Arg<'_>) -> ClResult<()> {
        const CALL: &str = "clSetKernelArg";
        let (api, raw) = (api(CALL)?, self.raw()?);
        let buffer;
        let (size, value) = match arg {
            Arg::Buffer(given) => {
                buffer = given.raw();
                (size_of::<cl_mem>(), (&raw const buffer).cast())
            }
            Arg::Local(bytes) => {
                let most = self.device().info().local_mem_size;
                if *bytes as u64 > most {
                    let what = format!(
                        "argument {index} of {} asks for {bytes} bytes of local memory, the device has {most}",
                        self.name()
                    );
                    return Err(ClError::usage(CALL, what));
                }
                (*bytes, std::ptr::null())
            }
            Arg::Scalar(scalar) => (usize::from(scalar.len), scalar.bytes.as_ptr().cast()),
            Arg::Bytes(bytes) => (bytes.len(), bytes.as_ptr().cast()),
            Arg::Null => (size_of::<cl_mem>(), std::ptr::null()),
        };
        // SAFETY: the kernel is alive, the caller holds its lock, and `value` points to `size` bytes (or is null, which means
        // local memory or a null pointer). The driver copies the value.
        let code = unsafe { (api.clSetKernelArg)(raw, index as cl_uint, size, value) };
        check(CALL, code).map_err(|e| e.about(|| format!("argument {index} of {}: {arg:?}", self.name())))
    }
}

impl Built {
    fn new(handle: Handle<KernelObject>, program: &Program) -> ClResult<Built> {
        const CALL: &str = "clGetKernelInfo";
        let api = api(CALL)?;
        // SAFETY: the kernel is alive, and `info` passes a matching capacity.
        let count: cl_uint = info::scalar(CALL, |size, to, got| unsafe {
            (api.clGetKernelInfo)(handle.raw(), CL_KERNEL_NUM_ARGS, size, to, got)
        })?;
        Ok(Built { handle, program: program.clone(), arg_count: count as usize })
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernel({} for {:?})", self.name(), self.device().name())
    }
}

impl Queue {
    /// Sets all arguments of a kernel and enqueues it. A grid with a size of zero runs nothing and is no error.
    ///
    /// What the kernel does to memory is the kernel author's business: OpenCL does not check bounds.
    pub fn launch(&self, kernel: &Kernel, grid: Grid, args: &[Arg<'_>], deps: Deps<'_>) -> ClResult<Option<Event>> {
        kernel.check(self, &grid, args.len())?;
        if grid.global_size().contains(&0) {
            return self.nothing(false, deps);
        }
        let _lock = kernel.0.launch.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, arg) in args.iter().enumerate() {
            kernel.set_arg(index, arg)?;
        }
        self.enqueue_set(kernel, &grid, deps)
    }

    /// Enqueues a kernel with the arguments it has: all of them must have been set, and the grid checked.
    pub(crate) fn enqueue(&self, kernel: &Kernel, grid: &Grid, deps: Deps<'_>) -> ClResult<Option<Event>> {
        if grid.global_size().contains(&0) {
            return self.nothing(false, deps);
        }
        let _lock = kernel.0.launch.lock().unwrap_or_else(PoisonError::into_inner);
        self.enqueue_set(kernel, grid, deps)
    }

    fn enqueue_set(&self, kernel: &Kernel, grid: &Grid, deps: Deps<'_>) -> ClResult<Option<Event>> {
        const CALL: &str = "clEnqueueNDRangeKernel";
        let (api, raw) = (api(CALL)?, kernel.raw()?);
        let pointer = |sizes: &Option<[usize; 3]>| sizes.as_ref().map_or(std::ptr::null(), |s| s.as_ptr());
        let result = self.enqueue_first(kernel, grid, deps, |deps| {
            // SAFETY: queue and kernel are alive, all arguments were set and the lock keeps others from setting them, and the
            // size lists have three entries, of which the first `dims` are read.
            deps.enqueue(CALL, |count, list, event| unsafe {
                (api.clEnqueueNDRangeKernel)(
                    self.raw(),
                    raw,
                    grid.dims as cl_uint,
                    pointer(&grid.offset),
                    grid.global.as_ptr(),
                    pointer(&grid.local),
                    count,
                    list,
                    event,
                )
            })
        });
        result.map_err(|e| kernel.about(self, grid, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_pad_and_print() {
        let grid = Grid::new([8]).local([4, 1]).offset([2]);
        assert_eq!(grid.global_size(), [8, 1]);
        assert_eq!(grid.local_size(), Some(&[4, 1][..]));
        assert_eq!(grid.offset, Some([2, 0, 0]));
        assert_eq!(Grid::new([3, 4, 5]).to_string(), "[3, 4, 5]");
    }

    #[test]
    fn scalars_hold_the_bytes_of_their_value() {
        let Arg::Scalar(scalar) = Arg::from(0x0102_0304_u32) else { panic!("not a scalar") };
        assert_eq!(&scalar.bytes[..4], &0x0102_0304_u32.to_ne_bytes());
        assert_eq!(scalar.len, 4);
        let Arg::Scalar(half) = Arg::from(half::f16::ONE) else { panic!("not a scalar") };
        assert_eq!(half.len, 2);
    }
}

//! What operations over dense tensors share: typed views of arguments on the CPU, macros and arguments on OpenCL devices.
//!
//! Every tensor becomes two arguments, its buffer and its offset, on both backends. A tensor that is not there is a null
//! pointer.

use std::marker::PhantomData;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::backend::opencl::{Grid, Kernel, Stream};
use netcl_core::dtype::{DType, Element};
use netcl_core::half::slice::HalfFloatSliceExt;
use netcl_core::half::{bf16, f16};
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::group_limit::largest_group;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use crate::elements::{kernel_source, load, rounding, store};
use crate::reduce::Lane;
use crate::row_tile::RowTile;

// ---- checks ----------------------------------------------------------------------------------------------------

/// An error unless a tensor has this shape; `what` names it.
pub(crate) fn check_shape(op: &'static str, what: &str, tensor: &Tensor, shape: &[usize]) -> Result<()> {
    if tensor.shape()[..] == *shape {
        return Ok(());
    }
    let why = format!("{what} must have shape {shape:?}");
    Err(Error::Shape { op, shape: tensor.shape().clone(), why })
}

// ---- layouts ----------------------------------------------------------------------------------------------------

/// A tensor row by row; channels-last images on an OpenCL device stay as they are.
pub(crate) fn as_images(x: &Tensor) -> Result<Tensor> {
    match x.layout().is_channels_last() && matches!(x.queue(), Queue::OpenCl(_)) {
        true => Ok(x.clone()),
        false => x.contiguous(),
    }
}

/// A new tensor whose axes lie in the order of another one's, which [`as_images`] gave.
pub(crate) fn uninit_like(x: &Tensor, shape: Shape, dtype: DType) -> Result<Tensor> {
    match x.layout().is_channels_last() {
        true => Tensor::uninit_channels_last(x.queue(), shape, dtype),
        false => Tensor::uninit(x.queue(), shape, dtype),
    }
}

// ---- arguments -------------------------------------------------------------------------------------------------

/// The arguments of a launch, the tensors first.
#[derive(Default)]
pub(crate) struct Args {
    list: SmallVec<[Arg; 8]>,
    places: SmallVec<[(usize, usize); 8]>,
    span: usize,
}

impl Args {
    fn tensor(mut self, tensor: Option<&Tensor>, access: Access) -> Self {
        let (buffer, offset, size) = match tensor {
            Some(t) if t.size() > 0 => (Arg::Buffer(t.storage().clone(), access), t.layout().offset(), t.size()),
            _ => (Arg::Null, 0, 0),
        };
        self.list.extend([buffer, Arg::Scalar(Scalar::U64(offset as u64))]);
        self.places.push((offset, size));
        self.span = self.span.max(size);
        self
    }

    /// Whether every tensor begins at a multiple of so many elements.
    pub(crate) fn aligned(&self, width: usize) -> bool {
        self.places.iter().all(|(offset, _)| offset.is_multiple_of(width))
    }

    /// Whether one tensor does.
    pub(crate) fn aligned_at(&self, at: usize, width: usize) -> bool {
        self.places[at].0.is_multiple_of(width)
    }

    /// With further arguments, after all tensors.
    pub(crate) fn extend(&mut self, more: impl IntoIterator<Item = Arg>) {
        self.list.extend(more);
    }

    /// The arguments of a launch.
    pub(crate) fn into_list(self) -> SmallVec<[Arg; 8]> {
        self.list
    }

    /// With a dense tensor that is read.
    pub(crate) fn read(self, tensor: &Tensor) -> Self {
        self.tensor(Some(tensor), Access::Read)
    }

    /// With a dense tensor that is written.
    pub(crate) fn write(self, tensor: &Tensor) -> Self {
        self.tensor(Some(tensor), Access::Write)
    }

    /// With a dense tensor that may not be there.
    pub(crate) fn maybe(self, tensor: Option<&Tensor>, access: Access) -> Self {
        self.tensor(tensor, access)
    }
}

/// A launch over dense tensors of one float dtype.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) queue: Queue,
    /// The dtype of the elements; parameters and statistics have its accumulator's.
    pub(crate) dtype: DType,
    pub(crate) cost: Cost,
    pub(crate) args: Args,
}

/// A kernel's file and its own scalars and local memory, which follow the tensors.
pub(crate) struct ClCode<'s> {
    pub(crate) file: &'static str,
    pub(crate) text: &'static str,
    pub(crate) kernel: &'static str,
    pub(crate) scalars: &'s [Number],
    /// Work-items, and how many make a group; `None` leaves that to [`Job`].
    pub(crate) items: usize,
    pub(crate) group: Option<usize>,
    /// Local memory, in elements of the type of the computation.
    pub(crate) local: usize,
    /// For kernels that keep a row in registers.
    pub(crate) wide: Option<RowTile>,
}

/// A scalar whose type follows from the launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    /// An index: `UINT`.
    Count(usize),
    /// A signed index: `INT`.
    Signed(isize),
    /// `COMPUTE`.
    Real(f64),
    /// `uint`
    Flag(usize),
}

impl Job {
    /// Runs native code.
    pub(crate) fn run_cpu(self, body: impl Fn(&Views<'_, '_>) -> Result<()> + Send + Sync + 'static) -> Result<()> {
        let places = self.args.places;
        let work = Work::Cpu(CpuKernel::new(move |args| body(&Views { args, places: &places })));
        let Job { name, queue, cost, .. } = self;
        launch::submit(Launch { name: name.into(), queue, work, args: self.args.list, cost })
    }

    /// Runs a kernel.
    pub(crate) fn run_cl(mut self, stream: &Stream, code: &ClCode<'_>) -> Result<()> {
        let index = IndexWidth::for_span(self.args.span.max(code.items));
        let kernel = kernel(stream, code, self.dtype, index)?;
        let wide = self.dtype == DType::F64;
        self.args.list.extend(code.scalars.iter().map(|&number| match number {
            Number::Count(n) => index.unsigned(n),
            Number::Signed(n) => index.signed(n),
            Number::Real(v) if wide => Arg::Scalar(Scalar::F64(v)),
            Number::Real(v) => Arg::Scalar(Scalar::F32(v as f32)),
            Number::Flag(v) => Arg::Scalar(Scalar::U32(v as u32)),
        }));
        if code.local > 0 {
            self.args.list.push(Arg::Local(code.local * self.dtype.accumulator().size()));
        }
        let group = code.group.unwrap_or_else(|| stream.device().info().max_work_group_size.min(128));
        let grid = Grid::new([code.items.next_multiple_of(group)]).local([group]);
        let work = Work::OpenCl(kernel, grid);
        let Job { name, queue, cost, .. } = self;
        launch::submit(Launch { name: name.into(), queue, work, args: self.args.list, cost })
    }
}

// ---- OpenCL ----------------------------------------------------------------------------------------------------

/// Builds one kernel of a file with `ELEMENT`, `COMPUTE`, `UINT`, `INT`, `LOAD(p, i)` and `STORE(v, p, i)` for a dtype.
fn kernel(stream: &Stream, code: &ClCode<'_>, dtype: DType, index: IndexWidth) -> Result<Kernel> {
    stream.kernel(&(code.file, code.kernel, dtype, index, code.wide), || {
        let (uint, int) = index.names();
        let compute = if dtype == DType::F64 { "double" } else { "float" };
        let bits = rounding(dtype, 1);
        let (load, store) = (load(dtype, "(p_) + (i_)"), store(dtype, "(p_) + (i_)", "(v_)"));
        let defines = format!(
            "{bits}#define ELEMENT {}\n#define COMPUTE {compute}\n#define UINT {uint}\n#define INT {int}\n\
             #define LOAD(p_, i_) ({load})\n#define STORE(v_, p_, i_) {}\n#define KERNEL_{}\n",
            dtype.cl_type(),
            store.trim_end_matches(';'),
            code.kernel,
        );
        let vectors = code.wide.map(|wide| wide.defines(dtype)).unwrap_or_default();
        (kernel_source(&(defines + &vectors), &[code.text]), code.kernel)
    })
}

/// Work-items of a group at most, where each has a slot of local memory.
const MOST: usize = 256;

/// The largest power of two of work-items that a group with a slot of local memory for each may have.
pub(crate) fn group_size(stream: &Stream, dtype: DType) -> usize {
    let by_memory = stream.device().info().local_mem_size as usize / dtype.accumulator().size();
    1 << largest_group(stream.device()).min(MOST).min(by_memory).max(1).ilog2()
}

// ---- the native CPU --------------------------------------------------------------------------------------------

/// The tensors of a launch as typed memory.
pub(crate) struct Views<'v, 'a> {
    args: &'v CpuArgs<'a>,
    places: &'v [(usize, usize)],
}

impl<'v> Views<'v, '_> {
    fn pointer<E: Element>(&self, at: usize) -> Result<(*mut E, usize)> {
        let (offset, size) = self.places[at];
        if size == 0 {
            return Ok((std::ptr::NonNull::dangling().as_ptr(), 0));
        }
        let memory = self.args.checked_memory(2 * at, (offset + size) * size_of::<E>())?;
        Ok((memory.cast::<E>().wrapping_add(offset), size))
    }

    /// Whether a tensor is there.
    pub(crate) fn has(&self, at: usize) -> bool {
        self.places[at].1 > 0
    }

    /// A tensor that the launch reads; empty where it is not there. `E` must be the tensor's element type.
    pub(crate) fn input<E: Element>(&self, at: usize) -> Result<&'v [E]> {
        let (pointer, size) = self.pointer(at)?;
        // SAFETY: the memory reaches that far, storages are aligned for every element type, every bit pattern is a value,
        // and the launch holds the storage's lock: nobody writes it.
        Ok(unsafe { std::slice::from_raw_parts(pointer, size) })
    }

    /// A tensor that the launch writes.
    pub(crate) fn output<E: Element>(&self, at: usize) -> Result<Output<'v, E>> {
        let (pointer, size) = self.pointer(at)?;
        Ok(Output { pointer: SharedPtr::new(pointer), size, _borrow: PhantomData })
    }
}

/// Memory that the tasks of a launch write in parts.
#[derive(Clone, Copy)]
pub(crate) struct Output<'v, E> {
    pointer: SharedPtr<E>,
    size: usize,
    _borrow: PhantomData<&'v mut [E]>,
}

impl<'v, E: Element> Output<'v, E> {
    /// A part, to be written.
    ///
    /// # Safety
    /// No two parts in use at the same time may overlap, and the launch must have declared the tensor as written.
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &'v mut [E] {
        assert!(start + len <= self.size, "part {start}..{} of {} elements", start + len, self.size);
        // SAFETY: inside the tensor; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.get().add(start), len) }
    }
}

/// An element type in memory and the type it is computed in.
pub(crate) trait Stored: Element {
    /// f32, or f64 for itself.
    type Lane: Lane;
    /// The values, in `scratch` unless they can be used where they lie.
    fn widen<'a>(from: &'a [Self], scratch: &'a mut Vec<Self::Lane>) -> &'a [Self::Lane];
    /// The values of rows of `columns` elements that lie `step` apart, and how far apart they lie now.
    fn widen_rows<'a>(
        from: &'a [Self],
        step: usize,
        columns: usize,
        scratch: &'a mut Vec<Self::Lane>,
    ) -> (&'a [Self::Lane], usize);
    /// Lets `fill` write all values, into `scratch` first unless they can be written where they belong.
    fn fill(to: &mut [Self], scratch: &mut Vec<Self::Lane>, fill: impl FnOnce(&mut [Self::Lane]));
}

macro_rules! computed_as_stored {
    ($($ty:ty),*) => {$(
        impl Stored for $ty {
            type Lane = $ty;
            #[inline(always)]
            fn widen<'a>(from: &'a [$ty], _scratch: &'a mut Vec<$ty>) -> &'a [$ty] {
                from
            }
            #[inline(always)]
            fn widen_rows<'a>(
                from: &'a [$ty],
                step: usize,
                _columns: usize,
                _scratch: &'a mut Vec<$ty>,
            ) -> (&'a [$ty], usize) {
                (from, step)
            }
            #[inline(always)]
            fn fill(to: &mut [$ty], _scratch: &mut Vec<$ty>, fill: impl FnOnce(&mut [$ty])) {
                fill(to);
            }
        }
    )*};
}
computed_as_stored!(f32, f64);

macro_rules! computed_in_f32 {
    ($($ty:ty),*) => {$(
        impl Stored for $ty {
            type Lane = f32;
            fn widen<'a>(from: &'a [$ty], scratch: &'a mut Vec<f32>) -> &'a [f32] {
                scratch.resize(from.len(), 0.0);
                from.convert_to_f32_slice(scratch);
                scratch
            }
            fn widen_rows<'a>(
                from: &'a [$ty],
                step: usize,
                columns: usize,
                scratch: &'a mut Vec<f32>,
            ) -> (&'a [f32], usize) {
                scratch.resize(from.len().div_ceil(step) * columns, 0.0);
                for (to, from) in scratch.chunks_exact_mut(columns).zip(from.chunks(step)) {
                    from[..columns].convert_to_f32_slice(to);
                }
                (scratch, columns)
            }
            fn fill(to: &mut [$ty], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
                scratch.resize(to.len(), 0.0);
                fill(scratch);
                to.convert_from_f32_slice(scratch);
            }
        }
    )*};
}
computed_in_f32!(f16, bf16);

/// Runs an expression with a type alias bound to the Rust type of a float dtype that was checked before.
macro_rules! with_stored {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            netcl_core::dtype::DType::F64 => {
                type $T = f64;
                $body
            }
            netcl_core::dtype::DType::F16 => {
                type $T = netcl_core::half::f16;
                $body
            }
            netcl_core::dtype::DType::BF16 => {
                type $T = netcl_core::half::bf16;
                $body
            }
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}
pub(crate) use with_stored;

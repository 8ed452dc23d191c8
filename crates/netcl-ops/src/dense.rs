//! What operations over dense tensors share: typed views of arguments on the CPU, macros and arguments on OpenCL devices.
//!
//! Every tensor becomes two arguments, its buffer and its offset, on both backends. A tensor that is not there is a null
//! pointer.

use std::marker::PhantomData;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::backend::opencl::{Grid, Kernel, Source, Stream};
use netcl_core::device::DeviceType;
use netcl_core::dtype::{DType, Element};
use netcl_core::half::slice::HalfFloatSliceExt;
use netcl_core::half::{bf16, f16};
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::form::{Form, VECTOR_BYTES};
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use crate::reduce::Lane;
use crate::reduce::opencl::{BF16_BITS, load, load_aligned, store};

// ---- checks ----------------------------------------------------------------------------------------------------

/// An error unless a tensor has this shape; `what` names it.
pub(crate) fn check_shape(op: &'static str, what: &str, tensor: &Tensor, shape: &[usize]) -> Result<()> {
    if tensor.shape()[..] == *shape {
        return Ok(());
    }
    let why = format!("{what} must have shape {shape:?}");
    Err(Error::Shape { op, shape: tensor.shape().clone(), why })
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
    pub(crate) wide: Option<Wide>,
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
        self.args.list.extend(code.scalars.iter().map(|&number| {
            Arg::Scalar(match (number, index) {
                (Number::Count(n), IndexWidth::Bits32) => Scalar::U32(n as u32),
                (Number::Count(n), IndexWidth::Bits64) => Scalar::U64(n as u64),
                (Number::Signed(n), IndexWidth::Bits32) => Scalar::I32(n as i32),
                (Number::Signed(n), IndexWidth::Bits64) => Scalar::I64(n as i64),
                (Number::Real(v), _) if wide => Scalar::F64(v),
                (Number::Real(v), _) => Scalar::F32(v as f32),
                (Number::Flag(v), _) => Scalar::U32(v as u32),
            })
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
    let wide = code.wide.map(|wide| wide.key()).unwrap_or_default();
    stream.kernel(&format!("{}:{}:{dtype}:{index:?}{wide}", code.file, code.kernel), || {
        let (uint, int) = match index {
            IndexWidth::Bits32 => ("uint", "int"),
            IndexWidth::Bits64 => ("ulong", "long"),
        };
        let compute = if dtype == DType::F64 { "double" } else { "float" };
        let bits = if dtype == DType::BF16 { BF16_BITS } else { "" };
        let (load, store) = (load(dtype, "(p_) + (i_)"), store(dtype, "(p_) + (i_)", "(v_)"));
        let defines = format!(
            "{bits}#define ELEMENT {}\n#define COMPUTE {compute}\n#define UINT {uint}\n#define INT {int}\n\
             #define LOAD(p_, i_) ({load})\n#define STORE(v_, p_, i_) {}\n#define KERNEL_{}\n",
            dtype.cl_type(),
            store.trim_end_matches(';'),
            code.kernel,
        );
        let vectors = code.wide.map(|wide| wide.defines(dtype)).unwrap_or_default();
        (Source::new(defines + &vectors + code.text, ""), code.kernel)
    })
}

/// How the rows of a tensor are held in the registers of work-items: each has some vectors, side by side with its neighbours'.
///
/// A row is read once and written once, whatever happens to it in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wide {
    /// Elements of a vector; 1 where rows do not begin at multiples of 16 bytes.
    pub(crate) width: usize,
    /// Vectors of a work-item.
    pub(crate) vectors: usize,
    /// Work-items of a row.
    pub(crate) lanes: usize,
    /// Work-items of a group, which may have several rows.
    pub(crate) group: usize,
}

/// Elements that a work-item holds of one tensor: few enough for registers, many enough to keep memory busy.
const HELD: usize = 16;
/// Most work-items of a row; more are slower for meeting at barriers.
const MOST_LANES: usize = 512;
/// Work-items of a group.
const WIDE_GROUP: usize = 256;
/// Rows that so few work-items can hold in short shares get these: their neighbours read what lies side by side.
const SHORT: usize = 32;

impl Wide {
    /// For rows of `n` elements, if the device is one for it and the rows are short enough. `aligned` says whether every row
    /// begins at a multiple of 16 bytes, given that `n` elements are one.
    pub(crate) fn new(stream: &Stream, dtype: DType, n: usize, aligned: impl Fn(usize) -> bool) -> Option<Wide> {
        if Form::of(stream.device()) != Form::Groups || n == 0 {
            return None;
        }
        let vector = VECTOR_BYTES / dtype.size();
        let width = if n.is_multiple_of(vector) && aligned(vector) { vector } else { 1 };
        let short = (4 / width).max(1);
        let lanes = |vectors: usize| n.div_ceil(width * vectors).next_power_of_two();
        let vectors = if lanes(short) <= SHORT { short } else { HELD / width };
        let lanes = lanes(vectors);
        let most = stream.device().info().max_work_group_size;
        let group = 1 << most.clamp(1, WIDE_GROUP.max(lanes)).ilog2();
        (lanes <= group && lanes <= MOST_LANES).then_some(Wide { width, vectors, lanes, group })
    }

    /// For rows of any length, in as many pieces as it takes: a group has one row, of which it holds a piece at a time.
    pub(crate) fn long(stream: &Stream, dtype: DType, n: usize, aligned: impl Fn(usize) -> bool) -> Option<Wide> {
        if Form::of(stream.device()) != Form::Groups || n == 0 {
            return None;
        }
        let vector = VECTOR_BYTES / dtype.size();
        let width = if n.is_multiple_of(vector) && aligned(vector) { vector } else { 1 };
        let lanes = 1 << stream.device().info().max_work_group_size.clamp(1, MOST_LANES).ilog2();
        Some(Wide { width, vectors: HELD / width, lanes, group: lanes })
    }

    /// [`Wide::new`] for the dense tensors of a launch, whose rows or elements of parameters all have `n` elements.
    pub(crate) fn for_rows(stream: &Stream, dtype: DType, n: usize, args: &Args) -> Option<Wide> {
        Wide::new(stream, dtype, n, |width| args.aligned(width))
    }

    /// A kernel that has a slot of local memory for each work-item, over so many rows.
    pub(crate) fn code<'s>(&self, code: ClCode<'s>, rows: usize) -> ClCode<'s> {
        ClCode { items: self.items(rows), group: Some(self.group), local: self.group, wide: Some(*self), ..code }
    }

    /// For whole vectors of the `beside` neighbours that a channel has in dense tensors; a group has one row of any length.
    pub(crate) fn for_planes(stream: &Stream, dtype: DType, beside: usize, args: &Args) -> Option<Wide> {
        let wide = Wide::long(stream, dtype, beside, |width| args.aligned(width)).filter(|wide| wide.width > 1)?;
        let group = wide.group.min(WIDE_GROUP);
        Some(Wide { lanes: group, group, ..wide })
    }

    /// One vector of so many elements for each work-item, which need nobody else.
    pub(crate) fn vectors(width: usize) -> Wide {
        Wide { width, vectors: 1, lanes: 1, group: WIDE_GROUP }
    }

    /// A kernel with a work-item for each vector.
    pub(crate) fn elementwise<'s>(&self, code: ClCode<'s>, size: usize) -> ClCode<'s> {
        ClCode { items: size / self.width, group: Some(self.group), wide: Some(*self), ..code }
    }

    /// The work-items of a launch over so many rows.
    pub(crate) fn items(&self, rows: usize) -> usize {
        rows.div_ceil(self.group / self.lanes) * self.group
    }

    /// What the macros depend on.
    pub(crate) fn key(&self) -> String {
        format!(":{}:{}:{}", self.width, self.vectors, self.group)
    }

    /// `GROUP`, `WIDTH`, `VECTORS`, `VCOMPUTE`, `LOADV(p)`, `STOREV(v, p)`, `ALL(join, v)`; `LOADC(p)` and `STOREC(v, p)` for
    /// parameters and statistics.
    pub(crate) fn defines(&self, dtype: DType) -> String {
        let Wide { width, vectors, group, .. } = *self;
        let compute = if dtype == DType::F64 { "double" } else { "float" };
        let vector = if width == 1 { compute.to_owned() } else { format!("{compute}{width}") };
        let all = match width {
            1 => "(v_)",
            2 => "j_((v_).s0, (v_).s1)",
            4 => "j_(j_((v_).s0, (v_).s1), j_((v_).s2, (v_).s3))",
            _ => "j_(j_(j_((v_).s0, (v_).s1), j_((v_).s2, (v_).s3)), j_(j_((v_).s4, (v_).s5), j_((v_).s6, (v_).s7)))",
        };
        let bits = match (dtype, width) {
            (DType::BF16, 2..) => bf16_vector(width),
            _ => String::new(),
        };
        format!(
            "{bits}#define GROUP {group}\n#define WIDTH {width}\n#define VECTORS {vectors}\n#define VCOMPUTE {vector}\n\
             #define LOADV(p_) ({})\n#define STOREV(v_, p_) {}\n#define ALL(j_, v_) {all}\n\
             #define LOADC(p_) (*(__global const {vector} *)(p_))\n#define STOREC(v_, p_) *(__global {vector} *)(p_) = (v_)\n",
            load_aligned(dtype, "p_", width),
            store_aligned(dtype, width),
        )
    }
}

/// The statement, without a semicolon, that writes vector `v_` to place `p_`, a multiple of its length.
fn store_aligned(dtype: DType, width: usize) -> String {
    match dtype {
        _ if width == 1 => store(dtype, "p_", "(v_)").trim_end_matches(';').to_owned(),
        DType::F16 => format!("vstorea_half{width}_rte(v_, 0, p_)"),
        DType::BF16 => format!("*(__global ushort{width} *)(p_) = bf16_vector(v_)"),
        _ => format!("*(__global {}{width} *)(p_) = (v_)", dtype.cl_type()),
    }
}

/// `bf16_bits` for a vector.
fn bf16_vector(width: usize) -> String {
    format!(
        "ushort{width} bf16_vector(float{width} x) {{
    const uint{width} bits = as_uint{width}(x);
    const uint{width} rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x40u;
    return convert_ushort{width}(x != x ? quiet : rounded);
}}
"
    )
}

/// The largest power of two of work-items that a group with a slot of local memory for each may have.
///
/// A processor's core works through a group alone: few work-items keep its reads close together.
pub(crate) fn group_size(stream: &Stream, dtype: DType) -> usize {
    let info = stream.device().info();
    let most = if is_processor(stream) { 16 } else { 256 };
    let by_memory = info.local_mem_size as usize / dtype.accumulator().size();
    1 << info.max_work_group_size.min(most).min(by_memory).max(1).ilog2()
}

/// Whether the device is a CPU.
pub(crate) fn is_processor(stream: &Stream) -> bool {
    stream.device().device_type() == DeviceType::Cpu
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

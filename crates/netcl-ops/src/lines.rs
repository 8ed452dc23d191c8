//! Operations along one axis whose result has the shape of the input: softmax, running sums.
//!
//! A *line* is the elements along that axis for one index of the others. Lines that lie densely in memory are handled one
//! by one; where neighbouring lines lie closer together than neighbouring elements of a line, a block of lines is handled at
//! once, vectorised across them.

use std::marker::PhantomData;

use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuArgs, CpuKernel, parallel_for};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::expr::cpu::{Nest as CpuNest, Program, Source, Target};
use netcl_core::kernels::launch::{Access, Arg, Work};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::{SmallVec, smallvec};

use crate::reduce::Lane;
use crate::reduce::plan::{Nest, step_cost};

/// Elements that one task should have at least.
const TASK: usize = 1 << 15;
/// Lines that are handled together at most.
pub(crate) const MAX_LINES: usize = 256;

/// Where the lines of an input and of the result lie.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    /// Over the lines. Operands: input, output.
    pub(crate) kept: Nest,
    /// Elements of a line.
    pub(crate) len: usize,
    /// The distance between the elements of a line, in the input and in the output.
    pub(crate) step: [isize; 2],
    /// Neighbouring lines lie closer together than neighbouring elements.
    pub(crate) columns: bool,
}

impl Lines {
    /// The lines of a tensor along an axis; both tensors have one shape, which is not empty.
    pub(crate) fn new(x: &Tensor, out: &Tensor, axis: usize) -> Lines {
        let strides = [x.layout().strides(), out.layout().strides()];
        let mut order: SmallVec<[usize; 6]> = (0..x.ndim()).filter(|&a| a != axis).collect();
        order.sort_by_key(|&a| std::cmp::Reverse(step_cost(strides[0][a])));
        let kept = Nest::collapse(x.shape(), &strides, &order);
        let step = [strides[0][axis], strides[1][axis]];
        let columns = kept.inner() > 1 && step_cost(kept.inner_stride(0)) < step_cost(step[0]);
        Lines { kept, len: x.shape()[axis], step, columns }
    }
}

/// The checks all these operations share: a float tensor and an axis it has. A scalar has none.
pub(crate) fn check(op: &'static str, x: &Tensor, axis: isize) -> Result<usize> {
    x.check_float(op)?;
    if x.ndim() == 0 {
        let why = "a scalar has no axis; reshape it to (1,) first".to_owned();
        return Err(Error::Shape { op, shape: x.shape().clone(), why });
    }
    x.shape().axis(op, axis)
}

/// Rows of a block that only its owner writes.
pub(crate) struct RowsMut<'a, T> {
    first: *mut T,
    step: isize,
    rows: usize,
    len: usize,
    _borrow: PhantomData<&'a mut [T]>,
}

impl<T> RowsMut<'_, T> {
    /// # Safety
    /// `rows` rows of `len` elements, `step` apart, must be valid for reads and writes, must not overlap, and nobody else
    /// may use them while this exists.
    unsafe fn new(first: *mut T, step: isize, rows: usize, len: usize) -> Self {
        RowsMut { first, step, rows, len, _borrow: PhantomData }
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&mut self, i: usize) -> &mut [T] {
        assert!(i < self.rows, "a block has {} rows", self.rows);
        // SAFETY: the row is inside the block that `new` was promised.
        unsafe { std::slice::from_raw_parts_mut(self.first.offset(i as isize * self.step), self.len) }
    }
}

/// What to do with lines on the native CPU.
pub(crate) trait LineKernel: Copy + Send + Sync + 'static {
    /// Elements of a block that should stay in a core's own cache; few where a kernel passes over them several times.
    const BLOCK: usize;
    /// One line.
    fn line<T: Lane>(self, x: &[T], y: &mut [T]);
    /// A block of at most [`MAX_LINES`] lines side by side: row i of `x` starts at `i * step`. `scratch` is for its own use.
    fn block<T: Lane>(self, x: &[T], step: usize, rows: usize, y: &mut RowsMut<'_, T>, scratch: &mut Vec<T>);
}

/// The work of a launch and its arguments.
pub(crate) type Prepared = (Work, SmallVec<[Arg; 8]>);

/// The native work of an operation, with its arguments.
pub(crate) fn cpu_work(
    op: &'static str,
    kernel: impl LineKernel,
    lines: Lines,
    x: &Tensor,
    out: &Tensor,
) -> Result<Prepared> {
    let args =
        smallvec![Arg::Buffer(x.storage().clone(), Access::Read), Arg::Buffer(out.storage().clone(), Access::Write)];
    let compute = Program::compute_type([x.dtype()]);
    let g = Graph::new();
    let same = Program::compile(&g.finish(&[g.input(0)]), compute)?;
    let place = |t: &Tensor| (t.dtype(), t.layout().offset() * t.dtype().size(), t.layout().end() * t.dtype().size());
    let places = [place(x), place(out)];
    let body = CpuKernel::new(move |args| {
        let job = Job { op, lines: &lines, places, same: &same };
        match compute {
            DType::F64 => job.run::<f64, _>(args, kernel),
            _ => job.run::<f32, _>(args, kernel),
        }
    });
    Ok((Work::Cpu(body), args))
}

struct Job<'j> {
    op: &'static str,
    lines: &'j Lines,
    /// Dtype, first byte and end of input and output.
    places: [(DType, usize, usize); 2],
    /// Converts between any dtype and the type of the computation.
    same: &'j Program,
}

impl Job<'_> {
    fn run<T: Lane, K: LineKernel>(&self, args: &CpuArgs<'_>, kernel: K) -> Result<()> {
        let memory = |i: usize| {
            let (_, start, end) = self.places[i];
            Ok::<_, Error>(SharedPtr::new(args.checked_memory(i, end)?.wrapping_add(start)))
        };
        let memory = [memory(0)?, memory(1)?];
        let Lines { kept, len, columns, .. } = self.lines;
        let inner = kept.inner();
        let width = if *columns { inner.min((K::BLOCK / len).clamp(32, MAX_LINES)) } else { 1 };
        let per_row = inner.div_ceil(width);
        let blocks = kept.size() / inner * per_row;
        parallel_for(self.op, blocks, (TASK / (width * len)).max(1), |range| {
            let mut scratch = [Vec::<T>::new(), Vec::new(), Vec::new()];
            for i in range {
                let start = i % per_row * width;
                let first = i / per_row * inner + start;
                self.block(kernel, &memory, first, width.min(inner - start), &mut scratch);
            }
        })
    }

    /// Handles `width` lines from line `first` on.
    fn block<T: Lane>(
        &self,
        kernel: impl LineKernel,
        memory: &[SharedPtr<u8>; 2],
        first: usize,
        width: usize,
        scratch: &mut [Vec<T>; 3],
    ) {
        let Lines { kept, len, step, columns } = self.lines;
        let len = *len;
        let (rows, cols) = if *columns { (len, width) } else { (1, len) };
        let at = |i: usize| memory[i].get().wrapping_offset(kept.place(i, first) * self.places[i].0.size() as isize);
        // Strides between the rows of the block, and inside one.
        let strides = |i: usize| if *columns { [step[i], kept.inner_stride(i)] } else { [0, step[i]] };
        let usable = |i: usize| self.places[i].0 == T::DTYPE && (strides(i)[1] == 1 || cols == 1);
        let shape = [rows, cols];
        let dense = [cols as isize, 1];
        let [from, to, own] = scratch;
        let (x, x_step): (&[T], usize) = if usable(0) && strides(0)[0] >= 0 {
            let step = strides(0)[0] as usize;
            // SAFETY: the block's rows are elements of the input, whose layout lies inside its memory (checked by `run`);
            // nobody writes it while the launch runs; its dtype is T's.
            (unsafe { std::slice::from_raw_parts(at(0).cast::<T>(), (rows - 1) * step + cols) }, step)
        } else {
            from.resize(rows * cols, T::ZERO);
            let source = Source { data: at(0), dtype: self.places[0].0, strides: &strides(0) };
            let target = Target { data: from.as_mut_ptr().cast(), dtype: T::DTYPE, strides: &dense };
            // SAFETY: the block lies inside the input's layout; the vector holds as many elements and is ours alone.
            unsafe { self.same.run_nest(CpuNest { shape: &shape }, &[source], &[target], &[], 0..rows * cols) };
            (from, cols)
        };
        let direct = usable(1);
        let mut y = if direct {
            // SAFETY: blocks are disjoint parts of the output, which is new and does not overlap itself.
            unsafe { RowsMut::new(at(1).cast::<T>(), strides(1)[0], rows, cols) }
        } else {
            to.resize(rows * cols, T::ZERO);
            // SAFETY: the vector is borrowed by nobody else until the block is done.
            unsafe { RowsMut::new(to.as_mut_ptr(), cols as isize, rows, cols) }
        };
        if *columns {
            kernel.block(x, x_step, rows, &mut y, own);
        } else {
            kernel.line(x, y.row(0));
        }
        if !direct {
            let source = Source { data: to.as_ptr().cast(), dtype: T::DTYPE, strides: &dense };
            let target = Target { data: at(1), dtype: self.places[1].0, strides: &strides(1) };
            // SAFETY: the block lies inside the output's layout and is this task's alone; the vector holds its values.
            unsafe { self.same.run_nest(CpuNest { shape: &shape }, &[source], &[target], &[], 0..rows * cols) };
        }
    }
}

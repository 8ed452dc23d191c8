//! Picking on the native CPU.

use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuArgs, CpuKernel, parallel_for};
use netcl_core::dtype::{DType, Element};
use netcl_core::kernels::launch::Work;
use netcl_core::tensor::Tensor;
use netcl_core::{Result, with_element};

use super::Plan;

/// Elements of the result that one task should have at least.
const TASK: usize = 1 << 14;

pub(super) fn work(plan: Plan, source: &Tensor, labels: &Tensor, strides: [isize; 3]) -> Work {
    let place = |t: &Tensor| [t.layout().offset(), t.layout().end()];
    let (from, by, label) = (place(source), place(labels), labels.dtype());
    Work::Cpu(CpuKernel::new(move |args| {
        let job = Job { plan, strides, from, by };
        with_element!(plan.dtype, T => match label {
            DType::I32 => job.run::<T, i32>(args, i64::from),
            _ => job.run::<T, i64>(args, |label| label),
        })
    }))
}

struct Job {
    plan: Plan,
    /// Of the source: over (outer, classes, inner).
    strides: [isize; 3],
    /// First element and end of the source.
    from: [usize; 2],
    /// First element and end of the labels.
    by: [usize; 2],
}

/// What a label says about its line.
enum Choice {
    Ignored,
    Class(usize),
    Outside,
}

impl Plan {
    fn choice(&self, label: i64) -> Choice {
        match usize::try_from(label) {
            _ if self.ignore == Some(label) => Choice::Ignored,
            Ok(class) if class < self.classes => Choice::Class(class),
            _ => Choice::Outside,
        }
    }
}

impl Job {
    fn run<T: Element, L: Element>(&self, args: &CpuArgs<'_>, widen: fn(L) -> i64) -> Result<()> {
        let Plan { op, outer, classes, inner, .. } = self.plan;
        let spread = op == "unpick";
        let lines = outer * inner;
        let n = if spread { lines * classes } else { lines };
        let memory = |at: usize, [start, end]: [usize; 2], size: usize| -> Result<*mut u8> {
            Ok(args.checked_memory(at, end * size)?.wrapping_add(start * size))
        };
        let source = SharedPtr::new(memory(0, self.from, size_of::<T>())?.cast::<T>());
        let out = SharedPtr::new(memory(4, [0, n], size_of::<T>())?.cast::<T>());
        let labels = memory(2, self.by, size_of::<L>())?.cast::<L>().cast_const();
        // SAFETY: the labels are dense, `lines` elements of their dtype that lie inside their storage (checked above), and
        // nobody writes them while the launch runs.
        let labels: &[L] = unsafe { std::slice::from_raw_parts(labels, lines) };
        let nan = T::from_f64(f64::NAN);
        let read = |outer: usize, class: usize, inner: usize| {
            let at = [outer, class, inner].iter().zip(self.strides).map(|(&i, stride)| i as isize * stride).sum();
            // SAFETY: every index is inside its axis, so the element belongs to the source's layout, whose end lies inside
            // the storage (checked above); nobody writes it while the launch runs.
            unsafe { source.get().offset(at).read() }
        };
        if spread {
            // One task owns whole blocks (classes, inner) of the result.
            return parallel_for(op, outer, (TASK / (classes * inner)).max(1), |range| {
                for o in range {
                    // SAFETY: blocks are disjoint parts of the result, `n` elements that were checked above.
                    let block =
                        unsafe { std::slice::from_raw_parts_mut(out.get().add(o * classes * inner), classes * inner) };
                    block.fill(T::default());
                    for (i, &label) in labels[o * inner..(o + 1) * inner].iter().enumerate() {
                        match self.plan.choice(widen(label)) {
                            Choice::Ignored => {}
                            Choice::Class(class) => block[class * inner + i] = read(o, 0, i),
                            Choice::Outside => block.iter_mut().skip(i).step_by(inner).for_each(|v| *v = nan),
                        }
                    }
                }
            });
        }
        parallel_for(op, lines, TASK, |range| {
            // SAFETY: ranges are disjoint parts of the result, `n` elements that were checked above.
            let part = unsafe { std::slice::from_raw_parts_mut(out.get().add(range.start), range.len()) };
            for (line, value) in range.zip(part) {
                *value = match self.plan.choice(widen(labels[line])) {
                    Choice::Ignored => T::default(),
                    Choice::Class(class) => read(line / inner, class, line % inner),
                    Choice::Outside => nan,
                };
            }
        })
    }
}

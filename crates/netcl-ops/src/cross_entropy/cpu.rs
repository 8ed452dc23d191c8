//! Cross-entropy on the native CPU: threads take blocks of rows, and the sums of the blocks are added in their order.

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use netcl_core::Result;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::dtype::{DType, Element};
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::kernels::launch::Work;

use super::Problem;
use crate::reduce::{Lane, Max, plain_row};
use crate::softmax::cpu::powers;

/// Elements of a block: what it holds follows from shapes alone, so that the number of threads does not change the sum.
const BLOCK: usize = 1 << 14;

#[derive(Clone, Copy)]
struct Job {
    /// First elements of logits and labels.
    starts: [usize; 2],
    rows: usize,
    classes: usize,
    ignore: Option<i64>,
}

pub(super) fn work(name: &'static str, problem: &Problem) -> Work {
    let Problem { logits, labels, rows, classes, ignore } = problem;
    let starts = [logits.layout().offset(), labels.layout().offset()];
    let job = Job { starts, rows: *rows, classes: *classes, ignore: *ignore };
    let (double, wide) = (logits.dtype() == DType::F64, labels.dtype() == DType::I64);
    let backward = name != "cross_entropy";
    Work::Cpu(CpuKernel::new(move |args| match (double, wide) {
        (false, false) => job.run::<f32, i32>(args, backward),
        (false, true) => job.run::<f32, i64>(args, backward),
        (true, false) => job.run::<f64, i32>(args, backward),
        (true, true) => job.run::<f64, i64>(args, backward),
    }))
}

/// What a label says about its row.
enum Choice {
    Ignored,
    Class(usize),
    Outside,
}

/// Logits and labels.
struct Input<'a, T, L> {
    x: &'a [T],
    labels: &'a [L],
}

impl Job {
    fn choice(&self, label: i64) -> Choice {
        match usize::try_from(label) {
            _ if self.ignore == Some(label) => Choice::Ignored,
            Ok(class) if class < self.classes => Choice::Class(class),
            _ => Choice::Outside,
        }
    }

    fn run<T: Lane, L: Copy + Into<i64> + Sync>(&self, args: &CpuArgs<'_>, backward: bool) -> Result<()> {
        let n = self.rows * self.classes;
        let [logits_at, labels_at] = self.starts;
        let memory = |at: usize, start: usize, count: usize, size: usize| -> Result<*mut u8> {
            Ok(args.checked_memory(at, (start + count) * size)?.wrapping_add(start * size))
        };
        let real = |at: usize, start: usize, count: usize| {
            memory(at, start, count, size_of::<T>()).map(|memory| memory.cast::<T>())
        };
        let labels = memory(2, labels_at, self.rows, size_of::<L>())?.cast::<L>().cast_const();
        let x = real(0, logits_at, n)?.cast_const();
        // SAFETY: dense logits and labels of so many elements lie inside their storages (checked above), and nobody writes
        // them while the launch runs.
        let input =
            unsafe { Input { x: slice::from_raw_parts(x, n), labels: slice::from_raw_parts(labels, self.rows) } };
        let stats = 2 * self.rows + 1;
        if backward {
            let upstream = real(5, args.integer(6)? as usize, 1)?.cast_const();
            // SAFETY: as above, of the statistics and of one number.
            let (stats, upstream) =
                unsafe { (slice::from_raw_parts(real(4, 0, stats)?.cast_const(), stats), upstream.read()) };
            return self.backward(&input, stats, upstream, SharedPtr::new(real(7, 0, n)?));
        }
        let (loss, stats) = (real(4, 0, 1)?, SharedPtr::new(real(5, 0, stats)?));
        let (mean, counted) = self.forward(&input, stats)?;
        // SAFETY: one number of the loss, and the last of the statistics, both inside storages that the launch declared as
        // written; the threads that wrote the others are done.
        unsafe {
            loss.write(mean);
            stats.get().add(2 * self.rows).write(counted);
        }
        Ok(())
    }

    fn rows_of_a_block(&self) -> usize {
        (BLOCK / self.classes).max(1)
    }

    /// Fills the statistics of all rows; the mean, and how many rows count.
    fn forward<T: Lane, L: Copy + Into<i64> + Sync>(
        &self,
        input: &Input<'_, T, L>,
        stats: SharedPtr<T>,
    ) -> Result<(T, T)> {
        let per = self.rows_of_a_block();
        // A sum and a count for each block.
        let sums: Vec<[AtomicU64; 2]> = (0..self.rows.div_ceil(per)).map(|_| Default::default()).collect();
        parallel_for("cross_entropy", sums.len(), 1, |blocks| {
            let mut scratch = vec![T::ZERO; self.classes];
            for block in blocks {
                let (mut sum, mut counted) = (0.0, 0);
                for row in block * per..((block + 1) * per).min(self.rows) {
                    let x = &input.x[row * self.classes..(row + 1) * self.classes];
                    let largest = <T as Real>::from_f64(plain_row::<T, Max>(x));
                    let rest = <T as Real>::from_f64(powers(x, largest, &mut scratch).ln());
                    // SAFETY: two of the statistics, which belong to this row and so to this thread.
                    unsafe {
                        stats.get().add(row).write(largest);
                        stats.get().add(self.rows + row).write(rest);
                    }
                    match self.choice(input.labels[row].into()) {
                        Choice::Ignored => continue,
                        Choice::Class(class) => sum += Element::to_f64((largest - x[class]) + rest),
                        Choice::Outside => sum = f64::NAN,
                    }
                    counted += 1;
                }
                sums[block][0].store(sum.to_bits(), Ordering::Relaxed);
                sums[block][1].store(counted, Ordering::Relaxed);
            }
        })?;
        let sum: f64 = sums.iter().map(|[sum, _]| f64::from_bits(sum.load(Ordering::Relaxed))).sum();
        let counted = sums.iter().map(|[_, counted]| counted.load(Ordering::Relaxed)).sum::<u64>() as f64;
        Ok((<T as Real>::from_f64(sum / counted), <T as Real>::from_f64(counted)))
    }

    fn backward<T: Lane, L: Copy + Into<i64> + Sync>(
        &self,
        input: &Input<'_, T, L>,
        stats: &[T],
        upstream: T,
        grad: SharedPtr<T>,
    ) -> Result<()> {
        let per = self.rows_of_a_block();
        let scale = Element::to_f64(upstream) / Element::to_f64(stats[2 * self.rows]);
        parallel_for("cross_entropy_backward", self.rows.div_ceil(per), 1, |blocks| {
            for row in blocks.start * per..(blocks.end * per).min(self.rows) {
                let x = &input.x[row * self.classes..(row + 1) * self.classes];
                // SAFETY: the gradient of this row, which only this thread writes, in a storage that the launch declared as
                // written and that is none of the others.
                let grad = unsafe { slice::from_raw_parts_mut(grad.get().add(row * self.classes), self.classes) };
                match self.choice(input.labels[row].into()) {
                    Choice::Ignored => grad.fill(T::ZERO),
                    Choice::Outside => grad.fill(<T as Real>::from_f64(f64::NAN)),
                    Choice::Class(class) => {
                        powers(x, stats[row], grad);
                        let share = <T as Real>::from_f64((-Element::to_f64(stats[self.rows + row])).exp() * scale);
                        grad.iter_mut().for_each(|grad| *grad = *grad * share);
                        grad[class] = grad[class] - <T as Real>::from_f64(scale);
                    }
                }
            }
        })
    }
}

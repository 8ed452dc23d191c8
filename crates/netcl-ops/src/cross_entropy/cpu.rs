//! Cross-entropy on the native CPU: so few elements that one thread is the fastest.

use netcl_core::Result;
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::Work;

use super::Problem;

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

/// What is computed with.
trait Real: Copy + std::ops::Sub<Output = Self> + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> {
    const NAN: Self;
    fn from_count(n: usize) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn max(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
}

macro_rules! real {
    ($($ty:ident),*) => {$(
        impl Real for $ty {
            const NAN: Self = $ty::NAN;
            fn from_count(n: usize) -> Self {
                n as $ty
            }
            fn exp(self) -> Self {
                $ty::exp(self)
            }
            fn ln(self) -> Self {
                $ty::ln(self)
            }
            fn max(self, other: Self) -> Self {
                $ty::max(self, other)
            }
            fn over(self, other: Self) -> Self {
                self / other
            }
        }
    )*};
}

real!(f32, f64);

impl Job {
    fn choice(&self, label: i64) -> Choice {
        match usize::try_from(label) {
            _ if self.ignore == Some(label) => Choice::Ignored,
            Ok(class) if class < self.classes => Choice::Class(class),
            _ => Choice::Outside,
        }
    }

    fn run<T: Real, L: Copy + Into<i64>>(&self, args: &CpuArgs<'_>, backward: bool) -> Result<()> {
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
        let (x, labels) = unsafe { (std::slice::from_raw_parts(x, n), std::slice::from_raw_parts(labels, self.rows)) };
        let rows = x.chunks_exact(self.classes).zip(labels.iter().map(|&label| label.into()));
        if backward {
            let (stats, grad) = (real(4, 0, 2 * self.rows + 1)?.cast_const(), real(7, 0, n)?);
            let upstream = real(5, args.integer(6)? as usize, 1)?.cast_const();
            // SAFETY: as above; the gradient is another storage, which the launch declared as written.
            let (stats, grad, upstream) = unsafe {
                (
                    std::slice::from_raw_parts(stats, 2 * self.rows + 1),
                    std::slice::from_raw_parts_mut(grad, n),
                    upstream.read(),
                )
            };
            let scale = upstream.over(stats[2 * self.rows]);
            let (largest, rest) = stats.split_at(self.rows);
            let parts = largest.iter().zip(rest);
            for ((row, label), (grad, (&largest, &rest))) in rows.zip(grad.chunks_exact_mut(self.classes).zip(parts)) {
                match self.choice(label) {
                    Choice::Ignored => grad.fill(T::from_count(0)),
                    Choice::Outside => grad.fill(T::NAN),
                    Choice::Class(class) => {
                        for (c, (grad, &x)) in grad.iter_mut().zip(row).enumerate() {
                            *grad = (((x - largest) - rest).exp() - T::from_count(usize::from(c == class))) * scale;
                        }
                    }
                }
            }
            return Ok(());
        }
        let (loss, stats) = (real(4, 0, 1)?, real(5, 0, 2 * self.rows + 1)?);
        // SAFETY: as above; loss and statistics are storages of their own, which the launch declared as written.
        let (loss, stats) = unsafe { (&mut *loss, std::slice::from_raw_parts_mut(stats, 2 * self.rows + 1)) };
        let (mut sum, mut counted) = (T::from_count(0), 0);
        let (maxima, rests) = stats.split_at_mut(self.rows);
        for ((row, label), (maximum, rest)) in rows.zip(maxima.iter_mut().zip(rests.iter_mut())) {
            let largest = row[1..].iter().fold(row[0], |largest, &x| largest.max(x));
            let powers = row.iter().fold(T::from_count(0), |sum, &x| sum + (x - largest).exp());
            (*maximum, *rest) = (largest, powers.ln());
            match self.choice(label) {
                Choice::Ignored => continue,
                Choice::Class(class) => sum = sum + ((largest - row[class]) + *rest),
                Choice::Outside => sum = T::NAN,
            }
            counted += 1;
        }
        let counted = T::from_count(counted);
        *loss = sum.over(counted);
        stats[2 * self.rows] = counted;
        Ok(())
    }
}

//! One product on the calling thread, by the kernels of the crates `gemm-f32` and `gemm-f64`.
//!
//! The crate `gemm` above them would add what `gemm` does here, and the kernels of complex numbers and float16, which nothing
//! calls: most of what takes long to build.

use gemm_common::Parallelism;
use netcl_core::dtype::Element;

use super::panels::View;

/// `out = alpha * out + beta * a x b`: m, n, k, then `out` and whether it is read, `a`, `b`, each with the distances between columns and
/// rows, alpha, beta, what is conjugated, threads.
type Kernel<S> = unsafe fn(
    usize,
    usize,
    usize,
    *mut S,
    isize,
    isize,
    bool,
    *const S,
    isize,
    isize,
    *const S,
    isize,
    isize,
    S,
    S,
    bool,
    bool,
    bool,
    Parallelism,
);

/// A type with a kernel for this machine.
pub(crate) trait Multiply: Element {
    /// The best kernel that the machine can run.
    fn kernel() -> Kernel<Self>;
}

impl Multiply for f32 {
    fn kernel() -> Kernel<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Multiply for f64 {
    fn kernel() -> Kernel<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// `out = a x b * scale`, or that added to `out`.
///
/// # Safety
/// The size is (m, n, k). All elements of the m x k, k x n and m x n matrices are valid for reading (`a`, `b`) and writing (`out`); those
/// of `out` are distinct, nobody else touches them, none belongs to an operand, and with `add` they are initialised.
pub(crate) unsafe fn gemm<S: Multiply>(
    size: (usize, usize, usize),
    a: View<S>,
    b: View<S>,
    out: View<S>,
    add: bool,
    scale: S,
) {
    let ((m, n, k), mut a, mut b, mut out) = (size, a, b, out);
    // Kernels write columns; a result in rows is the transposed product of transposed operands.
    let (m, n) = if out.cs.abs() < out.rs.abs() {
        (a, b, out) = (b.transposed(), a.transposed(), out.transposed());
        (n, m)
    } else {
        (m, n)
    };
    // Kernels walk forwards through the result and through the terms.
    if out.rs < 0 {
        (out, a) = (out.upside_down(m), a.upside_down(m));
    }
    if out.cs < 0 {
        (out, b) = (out.transposed().upside_down(n).transposed(), b.transposed().upside_down(n).transposed());
    }
    if a.cs < 0 {
        (a, b) = (a.transposed().upside_down(k).transposed(), b.upside_down(k));
    }
    let (a_data, b_data, one) = (a.data.cast_const(), b.data.cast_const(), S::from_f64(1.0));
    // SAFETY: the caller's promise; kernels touch the elements of the three matrices only, which are the same in another order, and
    // read those of `out` only where they add.
    unsafe {
        S::kernel()(
            m,
            n,
            k,
            out.data,
            out.cs,
            out.rs,
            add,
            a_data,
            a.cs,
            a.rs,
            b_data,
            b.cs,
            b.rs,
            one,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distances between rows and columns of a dense matrix with its rows or columns in memory, forwards or backwards.
    fn view(values: &mut [f64], (rows, cols): (usize, usize), form: usize) -> View<f64> {
        let (rs, cs) = if form & 1 == 0 { (cols as isize, 1) } else { (1, rows as isize) };
        let whole = View { data: values.as_mut_ptr(), rs, cs };
        let whole = if form & 2 == 0 { whole } else { whole.upside_down(rows) };
        if form & 4 == 0 { whole } else { whole.transposed().upside_down(cols).transposed() }
    }

    fn at(view: View<f64>, row: usize, col: usize) -> f64 {
        // SAFETY: the tests ask for elements of their matrices only.
        unsafe { *view.data.wrapping_offset(row as isize * view.rs + col as isize * view.cs) }
    }

    #[test]
    fn operands_and_results_lie_in_any_direction() {
        let (m, n, k) = (5, 7, 3);
        for forms in 0..512 {
            let mut a: Vec<f64> = (0..m * k).map(|i| (i * 7 % 11) as f64 - 5.0).collect();
            let mut b: Vec<f64> = (0..k * n).map(|i| (i * 5 % 13) as f64 - 6.0).collect();
            let mut out: Vec<f64> = (0..m * n).map(|i| i as f64).collect();
            let (a, b) = (view(&mut a, (m, k), forms & 7), view(&mut b, (k, n), forms >> 3 & 7));
            let out = view(&mut out, (m, n), forms >> 6);
            let before: Vec<f64> = (0..m * n).map(|i| at(out, i / n, i % n)).collect();
            // SAFETY: three matrices of their own.
            unsafe { gemm((m, n, k), a, b, out, true, 2.0) };
            for (i, before) in before.into_iter().enumerate() {
                let sum: f64 = (0..k).map(|t| at(a, i / n, t) * at(b, t, i % n)).sum();
                assert_eq!(at(out, i / n, i % n), before + 2.0 * sum, "{forms:o} at {i}");
            }
        }
    }
}

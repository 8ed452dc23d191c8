//! Triangular factors: LU with partial pivoting, and Cholesky.

/// `p a = l u`, l below the diagonal (which is 1) and u from it on, in one matrix.
pub(super) struct Lu {
    n: usize,
    factors: Vec<f64>,
    /// The row of `a` that is row i of `p a`.
    order: Vec<usize>,
    sign: f64,
}

impl Lu {
    pub(super) fn new(a: &[f64], n: usize) -> Lu {
        let (mut factors, mut order, mut sign) = (a.to_vec(), (0..n).collect::<Vec<_>>(), 1.0);
        for k in 0..n {
            let size = |i: usize| factors[i * n + k].abs();
            let pivot = (k + 1..n).fold(k, |best, i| if size(i) > size(best) { i } else { best });
            if pivot != k {
                (0..n).for_each(|j| factors.swap(k * n + j, pivot * n + j));
                order.swap(k, pivot);
                sign = -sign;
            }
            let (above, below) = factors.split_at_mut((k + 1) * n);
            let row = &above[k * n..];
            if row[k] == 0.0 {
                continue;
            }
            for other in below.chunks_exact_mut(n) {
                other[k] /= row[k];
                let factor = other[k];
                other[k + 1..].iter_mut().zip(&row[k + 1..]).for_each(|(to, &from)| *to -= factor * from);
            }
        }
        Lu { n, factors, order, sign }
    }

    fn diagonal(&self) -> impl Iterator<Item = f64> {
        self.factors.iter().step_by(self.n + 1).copied()
    }

    pub(super) fn is_singular(&self) -> bool {
        self.diagonal().any(|pivot| pivot == 0.0)
    }

    pub(super) fn det(&self) -> f64 {
        self.diagonal().fold(self.sign, |product, pivot| product * pivot)
    }

    /// The determinant's sign and the logarithm of its magnitude.
    pub(super) fn slogdet(&self) -> (f64, f64) {
        let start = (self.sign, 0.0);
        self.diagonal().fold(start, |(sign, sum), pivot| match pivot {
            0.0 => (0.0, f64::NEG_INFINITY),
            _ => (sign * pivot.signum(), sum + pivot.abs().ln()),
        })
    }

    /// The solutions for so many right-hand sides (columns).
    pub(super) fn solve(&self, b: &[f64], columns: usize) -> Vec<f64> {
        let n = self.n;
        let mut x: Vec<f64> = self.order.iter().flat_map(|&row| &b[row * columns..][..columns]).copied().collect();
        let subtract = |x: &mut [f64], from: usize, row: usize| {
            let factor = self.factors[row * n + from];
            (0..columns).for_each(|c| x[row * columns + c] -= factor * x[from * columns + c]);
        };
        for row in 0..n {
            (0..row).for_each(|from| subtract(&mut x, from, row));
        }
        for row in (0..n).rev() {
            (row + 1..n).for_each(|from| subtract(&mut x, from, row));
            let pivot = self.factors[row * n + row];
            x[row * columns..][..columns].iter_mut().for_each(|x| *x /= pivot);
        }
        x
    }
}

/// The lower triangular factor, or the row at which the matrix turns out not to be positive definite.
pub(super) fn cholesky(a: &[f64], n: usize) -> Result<Vec<f64>, usize> {
    let mut l = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| l[i * n + k] * l[j * n + k]).sum();
            let rest = a[i * n + j] - dot;
            if i != j {
                l[i * n + j] = rest / l[j * n + j];
            } else if rest > 0.0 {
                l[i * n + i] = rest.sqrt();
            } else {
                return Err(i);
            }
        }
    }
    Ok(l)
}

//! Orthogonal factors: Householder's reflections for QR, Jacobi's rotations for eigenvalues and singular values.

use super::transposed;

/// More sweeps than convergence takes, which is quadratic: about ten.
const SWEEPS: usize = 60;

/// `q` `[m, k]` and `r` `[k, n]`, k being m or the smaller of m and n. Signs are LAPACK's.
pub(super) fn qr(a: &[f64], m: usize, n: usize, k: usize) -> (Vec<f64>, Vec<f64>) {
    let mut r = a.to_vec();
    let mut reflections = Vec::new();
    for j in 0..m.min(n) {
        let below: f64 = (j + 1..m).map(|i| r[i * n + j] * r[i * n + j]).sum();
        if below == 0.0 {
            continue;
        }
        let head = r[j * n + j];
        let norm = -head.signum() * (head * head + below).sqrt();
        let mut v: Vec<f64> = (j..m).map(|i| r[i * n + j]).collect();
        v[0] -= norm;
        reflect(&mut r, n, j, &v);
        (j + 1..m).for_each(|i| r[i * n + j] = 0.0);
        reflections.push((j, v));
    }
    // The reflections of the identity's first columns, the last one first.
    let mut q: Vec<f64> = (0..m * k).map(|i| f64::from(u8::from(i / k.max(1) == i % k.max(1)))).collect();
    for (j, v) in reflections.iter().rev() {
        reflect(&mut q, k, *j, v);
    }
    r.truncate(k * n);
    (q, r)
}

/// Rows from `first` on, minus twice their part along `v`.
fn reflect(a: &mut [f64], columns: usize, first: usize, v: &[f64]) {
    let size: f64 = v.iter().map(|v| v * v).sum();
    let mut along = vec![0.0; columns];
    for (row, v) in a[first * columns..].chunks_exact(columns).zip(v) {
        along.iter_mut().zip(row).for_each(|(sum, x)| *sum += v * x);
    }
    for (row, v) in a[first * columns..].chunks_exact_mut(columns).zip(v) {
        row.iter_mut().zip(&along).for_each(|(x, sum)| *x -= 2.0 * v / size * sum);
    }
}

/// Cosine and sine of the rotation that makes `[[a, b], [b, c]]` diagonal.
fn rotation(a: f64, b: f64, c: f64) -> (f64, f64) {
    let theta = (c - a) / (2.0 * b);
    let t = if theta.is_infinite() { 0.0 } else { theta.signum() / (theta.abs() + theta.hypot(1.0)) };
    let cos = t.hypot(1.0).recip();
    (cos, t * cos)
}

/// Two rows of a matrix turned into each other.
fn rotate(a: &mut [f64], columns: usize, (p, q): (usize, usize), (cos, sin): (f64, f64)) {
    let (above, below) = a.split_at_mut(q * columns);
    for (x, y) in above[p * columns..][..columns].iter_mut().zip(&mut below[..columns]) {
        (*x, *y) = (cos * *x - sin * *y, sin * *x + cos * *y);
    }
}

/// Eigenvectors, as columns, and ascending eigenvalues of a symmetric matrix, whose lower triangle is read.
pub(super) fn eigh(a: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut a: Vec<f64> = (0..n * n).map(|i| a[(i / n).max(i % n) * n + (i / n).min(i % n)]).collect();
    // Rows are the vectors.
    let mut vectors: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i / n == i % n))).collect();
    let total: f64 = a.iter().map(|x| x * x).sum();
    for _ in 0..SWEEPS {
        let off: f64 = (0..n * n).filter(|i| i / n != i % n).map(|i| a[i] * a[i]).sum();
        if off <= total * 1e-34 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                let b = a[p * n + q];
                if b == 0.0 {
                    continue;
                }
                let (cos, sin) = rotation(a[p * n + p], b, a[q * n + q]);
                for row in a.chunks_exact_mut(n) {
                    (row[p], row[q]) = (cos * row[p] - sin * row[q], sin * row[p] + cos * row[q]);
                }
                rotate(&mut a, n, (p, q), (cos, sin));
                (a[p * n + q], a[q * n + p]) = (0.0, 0.0);
                rotate(&mut vectors, n, (p, q), (cos, sin));
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[i * n + i].total_cmp(&a[j * n + j]));
    let sorted: Vec<f64> = order.iter().flat_map(|&i| &vectors[i * n..][..n]).copied().collect();
    (transposed(&sorted, n, n), order.iter().map(|&i| a[i * n + i]).collect())
}

/// `u` `[m, k]` with k of n to m columns, descending singular values, and `v` `[n, n]` of a matrix with at least as many rows as
/// columns: rotations that make its columns orthogonal.
pub(super) fn svd(a: &[f64], m: usize, n: usize, k: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    // Rows are columns of the matrix, and of v.
    let mut columns = transposed(a, m, n);
    let mut v: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i / n == i % n))).collect();
    let dot = |columns: &[f64], p: usize, q: usize| -> f64 {
        columns[p * m..][..m].iter().zip(&columns[q * m..][..m]).map(|(x, y)| x * y).sum()
    };
    for _ in 0..SWEEPS {
        let mut turned = false;
        for p in 0..n {
            for q in p + 1..n {
                let (x, y, both) = (dot(&columns, p, p), dot(&columns, q, q), dot(&columns, p, q));
                if both.abs() <= f64::EPSILON * (x * y).sqrt() || both == 0.0 {
                    continue;
                }
                turned = true;
                let angle = rotation(x, both, y);
                rotate(&mut columns, m, (p, q), angle);
                rotate(&mut v, n, (p, q), angle);
            }
        }
        if !turned {
            break;
        }
    }
    let lengths: Vec<f64> = (0..n).map(|i| dot(&columns, i, i).sqrt()).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| lengths[j].total_cmp(&lengths[i]));
    let values: Vec<f64> = order.iter().map(|&i| lengths[i]).collect();
    let least = values.first().copied().unwrap_or(0.0) * f64::EPSILON * m as f64;
    let rank = values.iter().take_while(|&&value| value > least).count();
    let mut u: Vec<f64> = order[..rank]
        .iter()
        .flat_map(|&i| columns[i * m..][..m].iter().map(move |x| (i, x)))
        .map(|(i, x)| x / lengths[i])
        .collect();
    if rank < k {
        // What is left of an orthonormal basis.
        let (basis, _) = qr(&transposed(&u, rank, m), m, rank, m);
        u.extend(transposed(&basis, m, m)[rank * m..k * m].iter());
    }
    let right: Vec<f64> = order.iter().flat_map(|&i| &v[i * n..][..n]).copied().collect();
    (transposed(&u, k, m), values, transposed(&right, n, n))
}

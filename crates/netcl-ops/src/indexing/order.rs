//! Sources sorted by their destination: whoever owns a destination finds its sources side by side, in the order of the indices.

use super::problem::Rows;

/// Pairs of destination and source, sorted.
pub(super) struct Pairs(pub(super) Vec<(u64, u64)>);

impl Pairs {
    /// Sorts checked indices: destinations are rows along the axis, or single elements where every place has its own indices.
    pub(super) fn new<I: Copy>(rows: &Rows, indices: &[I], value: impl Fn(I) -> u64) -> Pairs {
        let (n, k, inner) = (rows.n as u64, rows.k as u64, rows.inner as u64);
        let mut pairs: Vec<(u64, u64)> = if rows.along {
            let destination = |(at, &index): (usize, &I)| {
                let at = at as u64;
                let (outer, place) = (at / (k * inner), at % inner);
                ((outer * n + value(index)) * inner + place, at)
            };
            indices.iter().enumerate().map(destination).collect()
        } else {
            indices.iter().enumerate().map(|(at, &index)| (value(index), at as u64)).collect()
        };
        // Sources are distinct and sorted after their destination, so this order is the stable one.
        pairs.sort_unstable();
        Pairs(pairs)
    }

    /// The pairs of each destination that has any.
    pub(super) fn segments(&self) -> Vec<&[(u64, u64)]> {
        self.0.chunk_by(|a, b| a.0 == b.0).collect()
    }
}

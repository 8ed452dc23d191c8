//! Products too small to repay packing, in f32 with AVX-512: both operands are read where they lie.
//!
//! ```text
//!   outer: rows of b lie densely              dot: rows of a and columns of b lie densely
//!
//!          b  k x 48  [===|===|===]                   b  16 x 4   | | | |   sixteen terms at a time
//!   a      .  ___________________                     a       .   ________
//!   8 x k [.] |  8 x 3 vectors   |                   4 x 16 [===] |4 x 4  |  a vector of partial sums
//!         [.] |  of the result   |                          [===] |vectors|  for each element
//! ```
//!
//! Intrinsics throughout: loops that the compiler vectorises must not use AVX-512. What an element's terms are added up in
//! depends on the number of terms alone.

#[cfg(target_arch = "x86_64")]
mod kernels;

use super::GRAIN;
#[cfg(target_arch = "x86_64")]
pub(super) use kernels::multiply;

/// The columns of a block of the outer form.
pub(crate) const PANEL: usize = 48;
/// Multiply-adds beyond which packed panels win.
const LARGEST: usize = 1 << 23;
/// Elements of an operand that is read several times over: half of a second-level cache.
const RESIDENT: usize = 1 << 18;
/// Terms that outweigh adding up the lanes of their sums.
const LONG: usize = 256;
/// Multiply-adds below which setting up anything else takes longer than the product.
const TINY: usize = 1 << 17;
/// Tiles that let two to four threads share the work evenly.
const ENOUGH_TILES: usize = 8;

/// How the operands lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rows of the second operand and of the result lie densely.
    Outer,
    /// Rows of the first operand and columns of the second lie densely.
    Dot,
}

/// How a product of f32 with these strides (rows, columns) is done here, if it is one for this file.
pub(super) fn kind(
    (m, n, k): (usize, usize, usize),
    a: (isize, isize),
    b: (isize, isize),
    out: (isize, isize),
) -> Option<Kind> {
    let work = m.saturating_mul(n).saturating_mul(k);
    if !netcl_core::backend::cpu::simd::avx512() || work > LARGEST {
        return None;
    }
    if a.1 == 1 && b.0 == 1 && m * k <= RESIDENT && (k >= LONG || work <= TINY) {
        return Some(Kind::Dot);
    }
    (b.1 == 1 && out.1 == 1 && n * k <= RESIDENT).then_some(Kind::Outer)
}

/// Rows and columns of a tile: of the ways to cut the blocks into enough tiles, the one with the smallest tiles.
pub(super) fn tile(kind: Kind, (m, n, k): (usize, usize, usize), matrices: usize) -> (usize, usize) {
    let unit = match kind {
        Kind::Outer => (8, PANEL),
        Kind::Dot => (4, 4),
    };
    let (high, wide) = (m.div_ceil(unit.0), n.div_ceil(unit.1));
    let parts = (m * n * k / GRAIN).clamp(1, ENOUGH_TILES).div_ceil(matrices.max(1)).next_power_of_two();
    // Powers of two, so that no tile is a remainder of two cuts.
    let cuts = (0..=parts.ilog2()).map(|cuts| (high.div_ceil(1 << cuts), wide.div_ceil(parts >> cuts)));
    let (rows, cols) = cuts.min_by_key(|(rows, cols)| (rows * cols, rows + cols)).unwrap_or((high, wide));
    ((rows * unit.0).clamp(1, m.max(1)), (cols * unit.1).clamp(1, n.max(1)))
}

/// Other processors have no such kernels: [`kind`] never asks for one.
///
/// # Safety
/// Not called.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn multiply(
    _kind: Kind,
    _size: (usize, usize, usize),
    _a: super::panels::View<f32>,
    _b: super::panels::View<f32>,
    _out: super::panels::View<f32>,
) {
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_whole_blocks_and_enough_of_them() {
        assert_eq!(tile(Kind::Outer, (128, 784, 32), 1), (16, 784));
        assert_eq!(tile(Kind::Dot, (32, 128, 784), 1), (32, 16));
        assert_eq!(tile(Kind::Outer, (10, 128, 32), 1), (10, 128), "too small to share");
        assert_eq!(tile(Kind::Dot, (32, 128, 784), 100), (32, 128), "other matrices are shared");
    }
}

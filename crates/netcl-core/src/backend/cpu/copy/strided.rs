//! Copies between any two layouts of one shape.
//!
//! The axes are put into the destination's order, merged where possible, and cut into two-dimensional tiles that fit the
//! first-level cache: along `k`, where the destination's elements are neighbours, and along `j`, where the source's are
//! (if that is another axis: then the copy is a transposition).

use std::ops::Range;

use smallvec::SmallVec;

use super::transpose::transpose;
use super::{GRAIN, copy};
use crate::backend::cpu::threads::{SharedPtr, parallel_for};
use crate::error::{Error, Result};
use crate::shape::{Layout, Slice};

/// Elements per tile at most, for plans that need to know it beforehand.
pub(super) const TILE: usize = SIDE * SIDE;
/// The side of such a plan's transposed tiles.
const SIDE: usize = 64;
/// The side of the transposed tiles of a plain copy, in bytes: long runs of neighbouring lines for the memory, and a tile that
/// stays in the second-level cache.
const SIDE_BYTES: usize = 512;

/// One axis: its length and the distance of neighbours in source and destination, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) n: usize,
    pub(super) src: isize,
    pub(super) dst: isize,
}

/// A part of the copy: where it starts, and its two axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) src: isize,
    pub(super) dst: isize,
    pub(super) j: Axis,
    pub(super) k: Axis,
}

/// How a copy between two layouts is cut into tiles.
#[derive(Debug)]
pub(super) struct Plan {
    outer: SmallVec<[Axis; 6]>,
    j: Axis,
    k: Axis,
    tile_j: usize,
    tile_k: usize,
    src: isize,
    dst: isize,
}

impl Plan {
    /// Tiles of at most [`TILE`] elements; `None` where there is nothing to copy.
    pub(super) fn new(op: &'static str, src: &Layout, dst: &Layout) -> Result<Option<Plan>> {
        Self::with_side(op, src, dst, SIDE)
    }

    /// Tiles of at most `side * side` elements; `None` where there is nothing to copy.
    fn with_side(op: &'static str, src: &Layout, dst: &Layout, side: usize) -> Result<Option<Plan>> {
        if src.shape() != dst.shape() {
            let why = format!("the destination has shape {}", dst.shape());
            return Err(Error::Shape { op, shape: src.shape().clone(), why });
        }
        if src.shape().contains(&0) {
            return Ok(None);
        }
        let mut order: SmallVec<[isize; 6]> = (0..dst.shape().ndim() as isize).collect();
        order.sort_by_key(|&axis| std::cmp::Reverse(dst.strides()[axis as usize].unsigned_abs()));
        let (mut src, mut dst) = (src.permute(op, &order)?, dst.permute(op, &order)?);
        for axis in 0..order.len() {
            if dst.strides()[axis] < 0 {
                // Walking an axis of both backwards visits the same pairs.
                let backwards = Slice::new(None, None, -1);
                (src, dst) = (src.slice(axis, backwards)?, dst.slice(axis, backwards)?);
            }
        }
        let (shape, strides) = Layout::collapse(&[&src, &dst]);
        let mut axes: SmallVec<[Axis; 6]> = shape
            .iter()
            .zip(strides[0].iter().zip(&strides[1]))
            .map(|(&n, (&src, &dst))| Axis { n, src, dst })
            .collect();
        let single = Axis { n: 1, src: 0, dst: 0 };
        let k = axes.pop().unwrap_or(single);
        let nearer = |axis: &Axis| axis.src != 0 && axis.src.unsigned_abs() < k.src.unsigned_abs();
        let transposing = (0..axes.len()).filter(|&i| nearer(&axes[i])).min_by_key(|&i| axes[i].src.unsigned_abs());
        let j = match transposing {
            Some(i) => axes.remove(i),
            None => axes.pop().unwrap_or(single),
        };
        let (tile_j, tile_k) = if transposing.is_some() {
            // A short axis makes room for more of the other.
            let tile_k = if j.n < side { (side * side / j.n).min(k.n) } else { side.min(k.n) };
            (if k.n < side { (side * side / tile_k).min(j.n) } else { side.min(j.n) }, tile_k)
        } else {
            let tile_k = k.n.min(side * side);
            ((side * side / tile_k).min(j.n), tile_k)
        };
        let (src, dst) = (src.offset() as isize, dst.offset() as isize);
        Ok(Some(Plan { outer: axes, j, k, tile_j, tile_k, src, dst }))
    }

    /// Where source and destination start, and how many elements there are, if both are one dense run.
    pub(super) fn dense(&self) -> Option<(usize, usize, usize)> {
        let dense = self.outer.is_empty() && self.j.n == 1 && (self.k.n == 1 || (self.k.src, self.k.dst) == (1, 1));
        dense.then_some((self.src as usize, self.dst as usize, self.k.n))
    }

    fn tiles(&self) -> usize {
        let outer: usize = self.outer.iter().map(|axis| axis.n).product();
        outer * self.j.n.div_ceil(self.tile_j) * self.k.n.div_ceil(self.tile_k)
    }

    fn tile(&self, index: usize) -> Tile {
        let (along_j, along_k) = (self.j.n.div_ceil(self.tile_j), self.k.n.div_ceil(self.tile_k));
        let (rest, k) = (index / along_k, index % along_k * self.tile_k);
        let (mut rest, j) = (rest / along_j, rest % along_j * self.tile_j);
        let mut src = self.src + self.j.src * j as isize + self.k.src * k as isize;
        let mut dst = self.dst + self.j.dst * j as isize + self.k.dst * k as isize;
        for axis in self.outer.iter().rev() {
            let at = (rest % axis.n) as isize;
            rest /= axis.n;
            src += axis.src * at;
            dst += axis.dst * at;
        }
        let part = |axis: Axis, from: usize, most: usize| Axis { n: most.min(axis.n - from), ..axis };
        Tile { src, dst, j: part(self.j, j, self.tile_j), k: part(self.k, k, self.tile_k) }
    }

    /// Runs `body` on all tiles, in parallel; `bytes` is what an element costs to move.
    pub(super) fn for_each(&self, op: &'static str, bytes: usize, body: impl Fn(Tile) + Sync) -> Result<()> {
        let grain = (GRAIN / (self.tile_j * self.tile_k * bytes)).max(1);
        parallel_for(op, self.tiles(), grain, |range: Range<usize>| {
            for index in range {
                body(self.tile(index));
            }
        })
    }
}

/// Copies elements of `elem_size` (1, 2, 4 or 8) bytes from one layout to another of the same shape.
///
/// ```
/// use netcl_core::backend::cpu::copy::copy_strided;
/// use netcl_core::shape::{Layout, Shape};
///
/// let matrix = [1u16, 2, 3, 4, 5, 6];
/// let mut transposed = [0u16; 6];
/// let from = Layout::contiguous(Shape::from([2, 3])).permute("permute", &[1, 0])?;
/// let to = Layout::contiguous(Shape::from([3, 2]));
/// // SAFETY: both arrays hold what the layouts reach, and nobody else uses them.
/// unsafe { copy_strided(matrix.as_ptr().cast(), &from, transposed.as_mut_ptr().cast(), &to, 2)? };
/// assert_eq!(transposed, [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Safety
/// The pointers are the starts of the two storages, aligned to `elem_size`; every position of `src` must be valid for
/// reading and every position of `dst` for writing. `dst` must not overlap itself nor `src`, and nobody may write the
/// former or use the latter meanwhile. Strides may be negative, and zero in `src`.
///
/// # Errors
/// [`Error::Shape`] where the shapes differ, [`Error::Argument`] for another element size.
pub unsafe fn copy_strided(
    src_ptr: *const u8,
    src: &Layout,
    dst_ptr: *mut u8,
    dst: &Layout,
    elem_size: usize,
) -> Result<()> {
    let op = "copy";
    if !matches!(elem_size, 1 | 2 | 4 | 8) {
        return Err(Error::argument(op, format!("elements of {elem_size} bytes cannot be copied; use 1, 2, 4 or 8")));
    }
    let side = (SIDE_BYTES / elem_size).min(256);
    let Some(plan) = Plan::with_side(op, src, dst, side)? else { return Ok(()) };
    if let Some((from, to, n)) = plan.dense() {
        // SAFETY: the caller's promise: the layouts' positions are these two runs.
        return unsafe { copy(src_ptr.add(from * elem_size), dst_ptr.add(to * elem_size), n * elem_size) };
    }
    let (from, to) = (SharedPtr::new(src_ptr.cast_mut()), SharedPtr::new(dst_ptr));
    plan.for_each(op, elem_size, |tile| {
        // SAFETY: tiles are disjoint parts of what the caller vouched for.
        unsafe { copy_tile(from.get(), to.get(), tile, elem_size) };
    })
}

/// Copies one tile.
///
/// # Safety
/// As for [`copy_strided`], for the tile's positions.
pub(super) unsafe fn copy_tile(src: *const u8, dst: *mut u8, tile: Tile, elem_size: usize) {
    // SAFETY: the caller's promise; the pointers are aligned to the element size.
    unsafe {
        match elem_size {
            1 => copy_tile_of::<u8>(src, dst, tile),
            2 => copy_tile_of::<u16>(src.cast(), dst.cast(), tile),
            4 => copy_tile_of::<u32>(src.cast(), dst.cast(), tile),
            _ => copy_tile_of::<u64>(src.cast(), dst.cast(), tile),
        }
    }
}

/// # Safety
/// As for [`copy_tile`].
unsafe fn copy_tile_of<T: Copy>(src: *const T, dst: *mut T, tile: Tile) {
    let Tile { j, k, .. } = tile;
    // SAFETY: every place reached below is `start + a * stride` with `a` below the axis' length: a position of the tile.
    unsafe {
        let (src, dst) = (src.offset(tile.src), dst.offset(tile.dst));
        if k.dst == 1 && j.src == 1 && k.src != 1 && j.n > 1 {
            return transpose(src, k.src, dst, j.dst, j.n, k.n);
        }
        for row in 0..j.n as isize {
            let (src, dst) = (src.offset(row * j.src), dst.offset(row * j.dst));
            match (k.src, k.dst) {
                (1, 1) => std::ptr::copy_nonoverlapping(src, dst, k.n),
                (0, 1) => std::slice::from_raw_parts_mut(dst, k.n).fill(*src),
                (s, 1) => {
                    for i in 0..k.n {
                        *dst.add(i) = *src.offset(i as isize * s);
                    }
                }
                (s, d) => {
                    for i in 0..k.n as isize {
                        *dst.offset(i * d) = *src.offset(i * s);
                    }
                }
            }
        }
    }
}

//! The inner loops: blocks of sums in registers, for each instruction set.
//!
//! ```text
//!   block:  one row of registers per filter, P vectors of pixels              dots:  one register per filter and tap, whose
//!           +--------+--------+--------+                                             lanes are partial sums over pixels
//!      f0   |  sums  |        |        |     per tap: load P vectors of
//!      f1   |        |        |        |     pixels, multiply each by one            each step: load a vector of pixels for
//!      ...  +--------+--------+--------+     value of every filter                   F gradients and T taps, F * T products
//!
//!   tile:   as block, but the vectors are filters of a packed panel, one after the other, and the single values pixels that
//!           lie anywhere: a product with a matrix of windows that need not exist
//! ```
//!
//! AVX-512 is written with intrinsics, which the compiler's trouble with auto-vectorised AVX-512 does not touch. Memory is read
//! through slices and copied arrays rather than with the intrinsics for it: their checks in builds with assertions would
//! cost more than the products.

use netcl_core::dtype::Element;

/// A type of sums.
pub(super) trait Sum: Element + std::ops::Add<Output = Self> {
    const ZERO: Self;
    /// The loops for this processor.
    fn loops() -> &'static Loops<Self>;
}

/// Vectors of pixels in a block, at most.
pub(super) const VECTORS: usize = 3;
/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// Taps in a block of dot products.
pub(super) const TAPS: usize = 3;

/// `out[f][..] = sum over channels and taps of weights[channel][tap][f] * x[channel * stride + tap + ..]`, for a block of `F`
/// filters by `P` vectors of pixels; `out` is dense, and `add` goes on with the sums that are there. The processor must have the
/// instructions.
type Block<S> =
    unsafe fn(x: &[S], stride: usize, channels: usize, taps: &[usize], weights: &[S], out: &mut [S], add: bool);

/// `sums[f][t] += grad[f * stride + ..] * x[t][..]`, lane by lane, over so many vectors, for F gradients and [`TAPS`] taps. The
/// processor must have the instructions.
type Dots<S> = unsafe fn(grad: &[S], stride: usize, x: [&[S]; TAPS], vectors: usize, sums: &mut [S]);

/// `out[r][..] = sum over k of rows[r][steps[k]] * panel[k][..]`, for a block of `R` rows by `P` vectors; rows of `out` lie
/// `pitch` apart, and `add` keeps what is there. Each step asks for a cache line from `ahead` on. The processor must have the
/// instructions, and every row an element at every step.
type Tile<S> =
    unsafe fn(rows: &[*const S], steps: &[usize], panel: &[S], out: &mut [S], pitch: usize, add: bool, ahead: *const S);

/// The loops of an instruction set.
pub(super) struct Loops<S: 'static> {
    /// Elements of a vector.
    pub(super) lanes: usize,
    /// Filters of the largest block.
    pub(super) filters: usize,
    /// By the binary logarithm of the filters, then by vectors less one.
    pub(super) blocks: &'static [[Block<S>; VECTORS]],
    /// By the binary logarithm of the gradients.
    pub(super) dots: &'static [Dots<S>],
    /// By rows less one, then by vectors less one.
    pub(super) tiles: &'static [[Tile<S>; VECTORS]],
}

/// Asks for a line of memory to be brought to the second-level cache. Any address will do.
#[inline(always)]
fn prefetch<S>(at: *const S) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A register. Whoever computes with it makes sure of its instructions.
trait Vector: Copy {
    type Lane: Copy;
    type Array: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn splat(value: Self::Lane) -> Self;
    unsafe fn of(array: Self::Array) -> Self;
    unsafe fn array(self) -> Self::Array;
    /// `a * b + self`.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// A slice in whole vectors.
    fn arrays(from: &[Self::Lane]) -> &[Self::Array];
    fn arrays_mut(from: &mut [Self::Lane]) -> &mut [Self::Array];
}

/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "counted loops unroll into registers, iterators need not")]
unsafe fn block<V: Vector, const F: usize, const P: usize>(
    x: &[V::Lane],
    stride: usize,
    channels: usize,
    taps: &[usize],
    weights: &[V::Lane],
    out: &mut [V::Lane],
    add: bool,
) {
    // SAFETY: the caller's promise; lengths are compared before anything is read, and arrays are aligned as their elements.
    unsafe {
        let mut sums = [[V::zero(); P]; F];
        let out = V::arrays_mut(out);
        if add {
            for f in 0..F {
                for p in 0..P {
                    if let Some(from) = out.get(f * P + p) {
                        sums[f][p] = V::of(*from);
                    }
                }
            }
        }
        // One comparison for all vectors and weights: one for each tap, with its jump, costs a sixth of the speed (93 GFLOP/s on a
        // core where this has 110, with 64 channels of 56 x 56).
        let last = taps.iter().max().map_or(0, |tap| tap + P * V::LANES) + channels.saturating_sub(1) * stride;
        if channels > 0 && (x.len() < last || weights.len() < channels * taps.len() * F) {
            return;
        }
        let (mut x, mut weights) = (x.as_ptr(), weights.as_ptr());
        for _ in 0..channels {
            for &tap in taps {
                let from = &*x.wrapping_add(tap).cast::<[V::Array; P]>();
                let by = &*weights.cast::<[V::Lane; F]>();
                let mut pixels = [V::zero(); P];
                for p in 0..P {
                    pixels[p] = V::of(from[p]);
                }
                for f in 0..F {
                    let weight = V::splat(by[f]);
                    for p in 0..P {
                        sums[f][p] = sums[f][p].fma(weight, pixels[p]);
                    }
                }
                weights = weights.wrapping_add(F);
            }
            x = x.wrapping_add(stride);
        }
        // By index: an iterator over the sums would make memory of the registers.
        for f in 0..F {
            for p in 0..P {
                if let Some(to) = out.get_mut(f * P + p) {
                    *to = sums[f][p].array();
                }
            }
        }
    }
}

/// # Safety
/// The processor has the vector's instructions.
#[inline(always)]
unsafe fn dots<V: Vector, const F: usize, const N: usize>(
    grad: &[V::Lane],
    stride: usize,
    x: [&[V::Lane]; TAPS],
    vectors: usize,
    out: &mut [V::Lane],
) {
    // An array, so that its elements become registers without a question asked.
    let Some(out) = V::arrays_mut(out).first_chunk_mut::<N>() else { return };
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::zero(); TAPS]; F];
        for f in 0..F {
            for t in 0..TAPS {
                sums[f][t] = V::of(out[f * TAPS + t]);
            }
        }
        // All of one length, so that one comparison is enough.
        let pixels = x.map(|x| &V::arrays(x)[..vectors]);
        let mut rows: [&[V::Array]; F] = [&[]; F];
        for f in 0..F {
            rows[f] = &V::arrays(&grad[f * stride..])[..vectors];
        }
        for step in 0..vectors {
            let mut at = [V::zero(); TAPS];
            for t in 0..TAPS {
                at[t] = V::of(pixels[t][step]);
            }
            for f in 0..F {
                let gradient = V::of(rows[f][step]);
                for t in 0..TAPS {
                    sums[f][t] = sums[f][t].fma(gradient, at[t]);
                }
            }
        }
        for f in 0..F {
            for t in 0..TAPS {
                out[f * TAPS + t] = sums[f][t].array();
            }
        }
    }
}

/// # Safety
/// The processor has the vector's instructions, and every row an element at every step.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "counted loops unroll into registers, iterators need not")]
unsafe fn tile<V: Vector, const R: usize, const P: usize>(
    rows: &[*const V::Lane],
    steps: &[usize],
    panel: &[V::Lane],
    out: &mut [V::Lane],
    pitch: usize,
    add: bool,
    ahead: *const V::Lane,
) {
    let Some(rows) = rows.first_chunk::<R>() else { return };
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::zero(); P]; R];
        let mut panel = V::arrays(panel);
        // No iterator: in builds with assertions its calls in between would take the sums out of their registers.
        let mut k = 0;
        while k < steps.len() {
            let Some((vector, rest)) = panel.split_first_chunk::<P>() else { break };
            let step = steps[k];
            panel = rest;
            prefetch(ahead.wrapping_add(k * LINE / size_of::<V::Lane>()));
            k += 1;
            let mut vectors = [V::zero(); P];
            for p in 0..P {
                vectors[p] = V::of(vector[p]);
            }
            for r in 0..R {
                let value = V::splat(*rows[r].wrapping_add(step));
                for p in 0..P {
                    sums[r][p] = sums[r][p].fma(value, vectors[p]);
                }
            }
        }
        for r in 0..R {
            let out = V::arrays_mut(&mut out[r * pitch..]);
            for p in 0..P {
                if let Some(to) = out.get_mut(p) {
                    *to = if add { V::of(*to).add(sums[r][p]) } else { sums[r][p] }.array();
                }
            }
        }
    }
}

/// The loops of an instruction set in a module of their own, and the table of them.
macro_rules! loops {
    ($module:ident, $lane:ty, $vector:ty, [$($size:literal),*], [$($rows:literal),*] $(, #[$feature:meta])?) => {
        mod $module {
            use super::*;

            $(#[$feature])?
            unsafe fn block<const F: usize, const P: usize>(
                x: &[$lane],
                stride: usize,
                channels: usize,
                taps: &[usize],
                weights: &[$lane],
                out: &mut [$lane],
                add: bool,
            ) {
                // SAFETY: the caller's promise, passed on.
                unsafe { super::block::<$vector, F, P>(x, stride, channels, taps, weights, out, add) }
            }

            $(#[$feature])?
            unsafe fn dots<const F: usize, const N: usize>(
                grad: &[$lane],
                stride: usize,
                x: [&[$lane]; TAPS],
                vectors: usize,
                sums: &mut [$lane],
            ) {
                // SAFETY: the caller's promise, passed on.
                unsafe { super::dots::<$vector, F, N>(grad, stride, x, vectors, sums) }
            }

            $(#[$feature])?
            unsafe fn tile<const R: usize, const P: usize>(
                rows: &[*const $lane],
                steps: &[usize],
                panel: &[$lane],
                out: &mut [$lane],
                pitch: usize,
                add: bool,
                ahead: *const $lane,
            ) {
                // SAFETY: the caller's promise, passed on.
                unsafe { super::tile::<$vector, R, P>(rows, steps, panel, out, pitch, add, ahead) }
            }

            pub(super) static LOOPS: Loops<$lane> = Loops {
                lanes: <$vector as Vector>::LANES,
                filters: [$($rows),*].len(),
                blocks: &[$([block::<$size, 1>, block::<$size, 2>, block::<$size, 3>]),*],
                dots: &[$(dots::<$size, { TAPS * $size }>),*],
                tiles: &[$([tile::<$rows, 1>, tile::<$rows, 2>, tile::<$rows, 3>]),*],
            };
        }
    };
}

/// What all registers have in common.
macro_rules! slices {
    ($lane:ty, $lanes:literal) => {
        type Lane = $lane;
        type Array = [$lane; $lanes];
        const LANES: usize = $lanes;

        #[inline(always)]
        fn arrays(from: &[$lane]) -> &[[$lane; $lanes]] {
            from.as_chunks().0
        }

        #[inline(always)]
        fn arrays_mut(from: &mut [$lane]) -> &mut [[$lane; $lanes]] {
            from.as_chunks_mut().0
        }
    };
}

/// A register of intrinsics.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($vector:ident, $lane:ty, $lanes:literal, $zero:ident, $splat:ident, $fma:ident, $add:ident) => {
        impl Vector for $vector {
            slices!($lane, $lanes);

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: whoever uses the type made sure of its instructions.
                unsafe { $zero() }
            }

            #[inline(always)]
            unsafe fn splat(value: $lane) -> Self {
                // SAFETY: as above.
                unsafe { $splat(value) }
            }

            #[inline(always)]
            unsafe fn of(array: [$lane; $lanes]) -> Self {
                // SAFETY: a register is so many lanes, of which any bits are values.
                unsafe { std::mem::transmute::<[$lane; $lanes], $vector>(array) }
            }

            #[inline(always)]
            unsafe fn array(self) -> [$lane; $lanes] {
                // SAFETY: as above.
                unsafe { std::mem::transmute::<$vector, [$lane; $lanes]>(self) }
            }

            #[inline(always)]
            unsafe fn fma(self, a: Self, b: Self) -> Self {
                // SAFETY: whoever uses the type made sure of its instructions.
                unsafe { $fma(a, b, self) }
            }

            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $add(self, other) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use netcl_core::backend::cpu::simd::{Level, avx512, level};

    use super::*;

    intrinsics!(__m512, f32, 16, _mm512_setzero_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps);
    intrinsics!(__m512d, f64, 8, _mm512_setzero_pd, _mm512_set1_pd, _mm512_fmadd_pd, _mm512_add_pd);
    intrinsics!(__m256, f32, 8, _mm256_setzero_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps);
    intrinsics!(__m256d, f64, 4, _mm256_setzero_pd, _mm256_set1_pd, _mm256_fmadd_pd, _mm256_add_pd);

    // 32 registers hold 24 sums, 16 hold 12.
    loops!(avx512_f32, f32, __m512, [1, 2, 4, 8], [1, 2, 3, 4, 5, 6, 7, 8], #[target_feature(enable = "avx512f")]);
    loops!(avx512_f64, f64, __m512d, [1, 2, 4, 8], [1, 2, 3, 4, 5, 6, 7, 8], #[target_feature(enable = "avx512f")]);
    loops!(avx2_f32, f32, __m256, [1, 2, 4], [1, 2, 3, 4], #[target_feature(enable = "avx2,fma")]);
    loops!(avx2_f64, f64, __m256d, [1, 2, 4], [1, 2, 3, 4], #[target_feature(enable = "avx2,fma")]);

    pub(super) fn single() -> Option<&'static Loops<f32>> {
        match level() {
            Level::Avx2 if avx512() => Some(&avx512_f32::LOOPS),
            Level::Avx2 => Some(&avx2_f32::LOOPS),
            Level::Baseline => None,
        }
    }

    pub(super) fn double() -> Option<&'static Loops<f64>> {
        match level() {
            Level::Avx2 if avx512() => Some(&avx512_f64::LOOPS),
            Level::Avx2 => Some(&avx2_f64::LOOPS),
            Level::Baseline => None,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod x86 {
    use super::*;

    pub(super) fn single() -> Option<&'static Loops<f32>> {
        None
    }

    pub(super) fn double() -> Option<&'static Loops<f64>> {
        None
    }
}

/// A register of the architecture's baseline, as an array that the compiler makes one of.
macro_rules! arrays {
    ($lane:ty, $lanes:literal) => {
        impl Vector for [$lane; $lanes] {
            slices!($lane, $lanes);

            #[inline(always)]
            unsafe fn zero() -> Self {
                [0.0; $lanes]
            }

            #[inline(always)]
            unsafe fn splat(value: $lane) -> Self {
                [value; $lanes]
            }

            #[inline(always)]
            unsafe fn of(array: [$lane; $lanes]) -> Self {
                array
            }

            #[inline(always)]
            unsafe fn array(self) -> [$lane; $lanes] {
                self
            }

            #[inline(always)]
            unsafe fn fma(self, a: Self, b: Self) -> Self {
                let mut sum = self;
                for i in 0..$lanes {
                    sum[i] += a[i] * b[i];
                }
                sum
            }

            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                let mut sum = self;
                for i in 0..$lanes {
                    sum[i] += other[i];
                }
                sum
            }
        }
    };
}

arrays!(f32, 4);
arrays!(f64, 2);
loops!(baseline_f32, f32, [f32; 4], [1, 2, 4], [1, 2, 3, 4]);
loops!(baseline_f64, f64, [f64; 2], [1, 2, 4], [1, 2, 3, 4]);

impl Sum for f32 {
    const ZERO: f32 = 0.0;

    fn loops() -> &'static Loops<f32> {
        x86::single().unwrap_or(&baseline_f32::LOOPS)
    }
}

impl Sum for f64 {
    const ZERO: f64 = 0.0;

    fn loops() -> &'static Loops<f64> {
        x86::double().unwrap_or(&baseline_f64::LOOPS)
    }
}

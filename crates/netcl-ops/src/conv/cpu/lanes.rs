//! The inner loops: blocks of sums in registers, for each instruction set.
//!
//! ```text
//!   block:  one row of registers per filter, P vectors of pixels              dots:  one register per filter and tap, whose
//!           +--------+--------+--------+                                             lanes are partial sums over pixels
//!      f0   |  sums  |        |        |     per tap: load P vectors of
//!      f1   |        |        |        |     pixels, multiply each by one            each step: load a vector of pixels for
//!      ...  +--------+--------+--------+     value of every filter                   F gradients and T taps, F * T products
//! ```
//!
//! AVX-512 is written with intrinsics, which the compiler's trouble with auto-vectorised AVX-512 does not touch. Pointers move by
//! `wrapping_add`, because a build with assertions would check every step of `add`.

use std::sync::OnceLock;

use netcl_core::backend::cpu::simd::{Level, level};
use netcl_core::dtype::Element;

/// A type of sums.
pub(super) trait Sum: Element + std::ops::Add<Output = Self> {
    const ZERO: Self;
    /// The loops for this processor.
    fn loops() -> &'static Loops<Self>;
}

/// Vectors of pixels in a block, at most.
pub(super) const VECTORS: usize = 3;
/// Taps in a block of dot products.
pub(super) const TAPS: usize = 3;

/// `out[f][..] = sum over channels and taps of weights[channel][tap][f] * x[channel * stride + tap + ..]`, for a block of `F`
/// filters by `P` vectors of pixels; `out` is dense.
type Block<S> = unsafe fn(x: *const S, stride: usize, channels: usize, taps: &[usize], weights: *const S, out: *mut S);

/// `sums[f][t] += grad[f * stride + ..] * x[t][..]`, lane by lane, over so many vectors, for F gradients and [`TAPS`] taps.
type Dots<S> = unsafe fn(grad: *const S, stride: usize, x: [*const S; TAPS], vectors: usize, sums: *mut S);

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
}

/// A register.
trait Vector: Copy {
    type Lane: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn splat(value: Self::Lane) -> Self;
    unsafe fn load(from: *const Self::Lane) -> Self;
    unsafe fn store(self, to: *mut Self::Lane);
    /// `a * b + self`.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
}

/// # Safety
/// As [`Block`] reads and writes; the processor has the vector's instructions.
#[inline(always)]
unsafe fn block<V: Vector, const F: usize, const P: usize>(
    x: *const V::Lane,
    stride: usize,
    channels: usize,
    taps: &[usize],
    mut weights: *const V::Lane,
    out: *mut V::Lane,
) {
    // SAFETY: the caller's promise: every tap may be read for P vectors of pixels in every channel, there are F weights for each
    // of them, and `out` has room for F * P vectors.
    unsafe {
        let mut sums = [[V::zero(); P]; F];
        for channel in 0..channels {
            let x = x.wrapping_add(channel.wrapping_mul(stride));
            for &tap in taps {
                let x = x.wrapping_add(tap);
                let mut pixels = [V::zero(); P];
                for p in 0..P {
                    pixels[p] = V::load(x.wrapping_add(p * V::LANES));
                }
                for f in 0..F {
                    let weight = V::splat(weights.wrapping_add(f).read_unaligned());
                    for p in 0..P {
                        sums[f][p] = sums[f][p].fma(weight, pixels[p]);
                    }
                }
                weights = weights.wrapping_add(F);
            }
        }
        for f in 0..F {
            for p in 0..P {
                sums[f][p].store(out.add((f * P + p) * V::LANES));
            }
        }
    }
}

/// # Safety
/// As [`Dots`] reads and writes; the processor has the vector's instructions.
#[inline(always)]
unsafe fn dots<V: Vector, const F: usize>(
    grad: *const V::Lane,
    stride: usize,
    x: [*const V::Lane; TAPS],
    vectors: usize,
    out: *mut V::Lane,
) {
    // SAFETY: the caller's promise: so many vectors may be read of F gradients and at each tap, and `out` has F * TAPS vectors.
    unsafe {
        let mut sums = [[V::zero(); TAPS]; F];
        for f in 0..F {
            for t in 0..TAPS {
                sums[f][t] = V::load(out.add((f * TAPS + t) * V::LANES));
            }
        }
        for step in 0..vectors {
            let at = step.wrapping_mul(V::LANES);
            let mut pixels = [V::zero(); TAPS];
            for t in 0..TAPS {
                pixels[t] = V::load(x[t].wrapping_add(at));
            }
            for f in 0..F {
                let gradient = V::load(grad.wrapping_add(f.wrapping_mul(stride).wrapping_add(at)));
                for t in 0..TAPS {
                    sums[f][t] = sums[f][t].fma(gradient, pixels[t]);
                }
            }
        }
        for f in 0..F {
            for t in 0..TAPS {
                sums[f][t].store(out.add((f * TAPS + t) * V::LANES));
            }
        }
    }
}

/// The loops of an instruction set in a module of their own, and the table of them.
macro_rules! loops {
    ($module:ident, $lane:ty, $vector:ty, $filters:expr, [$($size:literal),*] $(, #[$feature:meta])?) => {
        mod $module {
            use super::*;

            $(#[$feature])?
            unsafe fn block<const F: usize, const P: usize>(
                x: *const $lane,
                stride: usize,
                channels: usize,
                taps: &[usize],
                weights: *const $lane,
                out: *mut $lane,
            ) {
                // SAFETY: the caller's promise, passed on.
                unsafe { super::block::<$vector, F, P>(x, stride, channels, taps, weights, out) }
            }

            $(#[$feature])?
            unsafe fn dots<const F: usize>(
                grad: *const $lane,
                stride: usize,
                x: [*const $lane; TAPS],
                vectors: usize,
                sums: *mut $lane,
            ) {
                // SAFETY: the caller's promise, passed on.
                unsafe { super::dots::<$vector, F>(grad, stride, x, vectors, sums) }
            }

            pub(super) static LOOPS: Loops<$lane> = Loops {
                lanes: <$vector as Vector>::LANES,
                filters: $filters,
                blocks: &[$([block::<$size, 1>, block::<$size, 2>, block::<$size, 3>]),*],
                dots: &[$(dots::<$size>),*],
            };
        }
    };
}

/// A register of intrinsics.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($vector:ident, $lane:ty, $lanes:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident) => {
        impl Vector for $vector {
            type Lane = $lane;
            const LANES: usize = $lanes;

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
            unsafe fn load(from: *const $lane) -> Self {
                // SAFETY: as above; the caller may read there.
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $lane) {
                // SAFETY: as above; the caller may write there.
                unsafe { $store(to, self) }
            }

            #[inline(always)]
            unsafe fn fma(self, a: Self, b: Self) -> Self {
                // SAFETY: as above.
                unsafe { $fma(a, b, self) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;

    intrinsics!(__m512, f32, 16, _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps);
    intrinsics!(__m512d, f64, 8, _mm512_setzero_pd, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_fmadd_pd);
    intrinsics!(__m256, f32, 8, _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps);
    intrinsics!(__m256d, f64, 4, _mm256_setzero_pd, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_fmadd_pd);

    // 32 registers hold 24 sums, 16 hold 12.
    loops!(avx512_f32, f32, __m512, 8, [1, 2, 4, 8], #[target_feature(enable = "avx512f")]);
    loops!(avx512_f64, f64, __m512d, 8, [1, 2, 4, 8], #[target_feature(enable = "avx512f")]);
    loops!(avx2_f32, f32, __m256, 4, [1, 2, 4], #[target_feature(enable = "avx2,fma")]);
    loops!(avx2_f64, f64, __m256d, 4, [1, 2, 4], #[target_feature(enable = "avx2,fma")]);

    /// AVX-512, unless the environment asks for less.
    fn has_avx512() -> bool {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let asked = std::env::var("NETCL_SIMD").unwrap_or_default();
            asked.trim() != "avx2" && is_x86_feature_detected!("avx512f")
        })
    }

    pub(super) fn single() -> Option<&'static Loops<f32>> {
        match level() {
            Level::Avx2 if has_avx512() => Some(&avx512_f32::LOOPS),
            Level::Avx2 => Some(&avx2_f32::LOOPS),
            Level::Baseline => None,
        }
    }

    pub(super) fn double() -> Option<&'static Loops<f64>> {
        match level() {
            Level::Avx2 if has_avx512() => Some(&avx512_f64::LOOPS),
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
            type Lane = $lane;
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn zero() -> Self {
                [0.0; $lanes]
            }

            #[inline(always)]
            unsafe fn splat(value: $lane) -> Self {
                [value; $lanes]
            }

            #[inline(always)]
            unsafe fn load(from: *const $lane) -> Self {
                // SAFETY: the caller may read so many elements; an array of them has their alignment.
                unsafe { *from.cast() }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $lane) {
                // SAFETY: the caller may write so many elements.
                unsafe { *to.cast() = self }
            }

            #[inline(always)]
            unsafe fn fma(self, a: Self, b: Self) -> Self {
                let mut sum = self;
                for i in 0..$lanes {
                    sum[i] += a[i] * b[i];
                }
                sum
            }
        }
    };
}

arrays!(f32, 4);
arrays!(f64, 2);
loops!(baseline_f32, f32, [f32; 4], 4, [1, 2, 4]);
loops!(baseline_f64, f64, [f64; 2], 4, [1, 2, 4]);

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

//! Loops compiled for several instruction sets, chosen at run time.
//!
//! [`simd!`](crate::simd) writes a function once and compiles it twice on x86-64: for the baseline (SSE2) and for AVX2 with
//! FMA and F16C. On aarch64 NEON is the baseline. The compiler's auto-vectoriser does the rest, so the body is an ordinary
//! loop over slices.
//!
//! AVX-512 is deliberately missing. rustc 1.95 miscompiles auto-vectorised loops when avx512dq and avx512vl are enabled
//! (rust-lang/rust#158622), also when a single function enables them with `#[target_feature]`. Leave AVX-512 to hand-written
//! kernels such as those of the `gemm` crate, and never build with `-C target-cpu=native`; a test watches over both.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::env;

/// An instruction set that [`simd!`](crate::simd) functions are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every processor of the architecture has: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    /// AVX2, FMA and F16C.
    Avx2,
}

/// The features of [`Level::Avx2`], as `#[target_feature]` spells them.
pub const AVX2_FEATURES: &str = "avx2,fma,f16c";

/// The level in use: the best one the processor has, or a lower one asked for with `NETCL_SIMD=baseline` (or `avx2`). A
/// level that the processor lacks is never chosen.
#[inline]
pub fn level() -> Level {
    match LEVEL.load(Ordering::Relaxed) {
        1 => Level::Baseline,
        2 => Level::Avx2,
        _ => detect(),
    }
}

/// Whether hand-written AVX-512 may run: the processor has it, and the environment does not ask for less (`NETCL_SIMD=avx2`,
/// `NETCL_SIMD=baseline`).
pub fn avx512() -> bool {
    /// 0: not known yet; 1: no; 2: yes.
    static FOUND: AtomicU8 = AtomicU8::new(0);
    match FOUND.load(Ordering::Relaxed) {
        0 => {
            let found = level() == Level::Avx2 && env::SIMD.word() != Some("avx2") && has_avx512();
            FOUND.store(u8::from(found) + 1, Ordering::Relaxed);
            found
        }
        found => found == 2,
    }
}

/// 0: not known yet; otherwise the level + 1.
static LEVEL: AtomicU8 = AtomicU8::new(0);

#[cold]
fn detect() -> Level {
    let level = choose(env::SIMD.word(), has_avx2());
    LEVEL.store(level as u8 + 1, Ordering::Relaxed);
    level
}

fn choose(asked: Option<&str>, has_avx2: bool) -> Level {
    match asked {
        Some("baseline") => Level::Baseline,
        _ if has_avx2 => Level::Avx2,
        _ => Level::Baseline,
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

/// Defines a function that is compiled for every [`Level`](crate::backend::cpu::simd::Level) and picks one when called.
///
/// Generic parameters need a bound each (use `Copy` where none is needed) and arguments are plain names. Helpers
/// that the loop calls must be `#[inline(always)]`, or they are compiled for the baseline only. `mul_add` is a library
/// call on the x86-64 baseline: write `a * b + c` unless the rounding of a fused multiply-add is what you want.
///
/// ```
/// netcl_core::simd! {
///     /// Adds `x`, scaled, to `y`.
///     pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
///         for (y, x) in y.iter_mut().zip(x) {
///             *y += a * x;
///         }
///     }
/// }
///
/// let mut y = vec![1.0; 100];
/// axpy(2.0, &vec![3.0; 100], &mut y);
/// assert_eq!(y[99], 7.0);
/// ```
#[macro_export]
macro_rules! simd {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident $(<$($generic:ident: $bound:path),+>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        $vis fn $name $(<$($generic: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn baseline $(<$($generic: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2 $(<$($generic: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                    baseline($($arg),*)
                }
                if $crate::backend::cpu::simd::level() == $crate::backend::cpu::simd::Level::Avx2 {
                    // SAFETY: this level is only chosen where the processor has these features.
                    return unsafe { avx2($($arg),*) };
                }
            }
            baseline($($arg),*)
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forcing_only_ever_lowers_the_level() {
        assert_eq!(choose(None, true), Level::Avx2);
        assert_eq!(choose(Some("avx2"), true), Level::Avx2);
        assert_eq!(choose(Some("baseline"), true), Level::Baseline);
        assert_eq!(choose(Some("avx2"), false), Level::Baseline);
        assert_eq!(choose(Some("nonsense"), false), Level::Baseline);
    }

    simd! {
        fn dot<T: num_traits::Float>(x: &[T], y: &[T]) -> T {
            x.iter().zip(y).fold(T::zero(), |sum, (&x, &y)| sum + x * y)
        }

        /// Whether the whole crate was compiled for AVX-512.
        fn compiled_with_avx512(_unused: u8) -> bool {
            cfg!(any(target_feature = "avx512f", target_feature = "avx512dq", target_feature = "avx512vl"))
        }
    }

    #[test]
    fn dispatch_computes() {
        let x: Vec<f64> = (0..1001).map(f64::from).collect();
        assert_eq!(dot(&x, &x), 1000.0 * 1001.0 * 2001.0 / 6.0);
    }

    /// The canary for rust#158622: no loop of ours may be compiled with AVX-512 until that is fixed and this test
    /// is changed on purpose. It fails for builds with `-C target-cpu=native` on such CPUs.
    #[test]
    fn auto_vectorised_loops_never_see_avx512() {
        assert!(
            !compiled_with_avx512(0),
            "built with AVX-512 enabled, which rustc miscompiles: drop target-cpu=native"
        );
        let features: Vec<_> = AVX2_FEATURES.split(',').collect();
        assert_eq!(features, ["avx2", "fma", "f16c"]);
        // The attribute in the macro has to be a literal: it must stay the one documented above.
        let macro_text = include_str!("simd.rs");
        let enabled = macro_text.matches(concat!("target_feature(en", "able")).count();
        assert_eq!(enabled, 1, "one place enables features");
        assert!(macro_text.contains(concat!("target_feature(en", "able = \"avx2,fma,f16c\")]")));
    }
}

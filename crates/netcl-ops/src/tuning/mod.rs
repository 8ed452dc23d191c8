//! Measuring products and convolutions: the candidates, what they compute with, and what is right.
//!
//! [`tune_matmul`] and [`tune_conv2d`] measure whatever is asked for and leave keeping the result to the caller;
//! [`netcl_core::tuner`] is the engine. Every candidate's result is compared with the native CPU's; operands are uniform
//! random numbers, the same in every run.
//!
//! ```
//! use netcl_core::{device::manager, dtype::DType, tuner::Limits};
//! use netcl_ops::tuning::tune_matmul;
//!
//! let tuning = tune_matmul(&manager().cpu().queue, [64, 64, 64], DType::F32, &Limits::default(), &mut |_| true)?;
//! assert_eq!(tuning.problem.to_string(), "matmul 64x64x64 float32");
//! assert!(tuning.best().is_some_and(|best| best.median() > Some(0.0)));
//! # Ok::<(), netcl_core::Error>(())
//! ```

mod conv;
mod matmul;

use std::time::Duration;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::conv::ConvGeometry;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::{KernelConfig, KernelVariant, get_kernel_selector};
use netcl_core::kernels::launch;
use netcl_core::tuner::{self, Limits, Step, Tuning};

pub use conv::{conv2d_candidates, tune_conv2d};
pub use matmul::{matmul_candidates, tune_matmul};

/// What `NETCL_AUTOTUNE=1` may take for one class of problems.
const FIRST_USE: Limits = Limits {
    time: Duration::from_secs(8),
    warm_up: Duration::from_millis(50),
    sample: Duration::from_millis(2),
    rounds: 5,
    behind: 1.5,
    enough: None,
};

/// Called at every step; `false` ends the measurement with what is known.
pub type Progress<'p> = &'p mut dyn FnMut(&Step<'_>) -> bool;

/// A tile in local memory with a block of results in registers: rows, columns, depth; results of a work-item down and across.
fn tile([rows, cols, depth, r, c]: [usize; 5], variant: KernelVariant) -> KernelConfig {
    KernelConfig {
        tile_m: rows,
        tile_n: cols,
        tile_k: depth,
        work_per_thread: r * c,
        local_size_2d: (cols / c, rows / r),
        local_size_1d: (cols / c) * (rows / r),
        vector_width: 1,
        use_vectorization: false,
        ..KernelConfig::new(variant)
    }
}

pub(crate) fn first_use_of_matmul(queue: &Queue, size: [usize; 3], dtype: DType) -> Result<()> {
    first_use(queue, |progress| tune_matmul(queue, size, dtype, &FIRST_USE, progress))
}

pub(crate) fn first_use_of_conv2d(queue: &Queue, g: &ConvGeometry, dtype: DType) -> Result<()> {
    first_use(queue, |progress| tune_conv2d(queue, g, dtype, &FIRST_USE, progress))
}

/// Measures and keeps, with a line before and behind: a program that seems to hang is taken for broken.
fn first_use(queue: &Queue, measure: impl FnOnce(Progress<'_>) -> Result<Tuning>) -> Result<()> {
    let mut said = false;
    // The device is busy with what was put on it before.
    queue.finish()?;
    let tuning = launch::at_once(|| {
        measure(&mut |step| {
            if !said {
                eprintln!("netcl: measuring {} kernels for a new class of problems (NETCL_AUTOTUNE=1)", step.total);
                said = true;
            }
            true
        })
    })?;
    let best = tuning.best().map_or_else(|| "nothing that works".to_owned(), |best| best.config.to_string());
    eprintln!("netcl: {} on {}: {best}, found in {:.1} s", tuning.problem, tuning.device, tuning.took.as_secs_f64());
    // A result that cannot be written still serves this process.
    if let Err(error) = tuner::keep(&*get_kernel_selector(Some(queue))?, &tuning) {
        eprintln!("netcl: {error}");
    }
    Ok(())
}

/// Places spread over a length, the first and the last among them.
fn places(length: usize, count: usize) -> Vec<usize> {
    let last = length.saturating_sub(1);
    let mut found: Vec<usize> = (0..count).map(|i| last * i / (count - 1).max(1)).collect();
    found.dedup();
    found
}

/// What is wrong with a result, in units of its natural size; nothing where all of it is within the tolerance.
fn differs(got: &[f64], expected: &[f64], size: f64, tolerance: f64) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("{} values instead of {}", got.len(), expected.len()));
    }
    let too_far = |off: f64| off.is_nan() || off > tolerance * size;
    let at = got.iter().zip(expected).position(|(a, b)| too_far((a - b).abs()))?;
    Some(format!("element {at} is {} instead of {}", got[at], expected[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_found_wherever_it_is() {
        assert_eq!(differs(&[1.0, 2.0], &[1.0, 2.0001], 1.0, 1e-3), None);
        assert!(differs(&[1.0, 2.1], &[1.0, 2.0], 1.0, 1e-3).is_some_and(|text| text.contains("element 1")));
        assert!(differs(&[f64::NAN], &[1.0], 1.0, 1e-3).is_some());
        assert!(differs(&[], &[1.0], 1.0, 1e-3).is_some());
        assert_eq!(places(1, 4), [0]);
        assert_eq!(places(100, 3), [0, 49, 99]);
    }
}

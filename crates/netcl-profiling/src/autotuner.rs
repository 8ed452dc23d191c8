//! `autotune_matmul` and `autotune_conv2d`: the fastest configuration of a kernel, by measuring.
//!
//! ```
//! use netcl_profiling::autotuner::{Options, autotune_matmul_with};
//! use netcl_core::{device::manager, dtype::DType, tuner::Limits};
//!
//! let limits = Limits { time: std::time::Duration::from_millis(200), ..Limits::default() };
//! let options = Options { limits, keep: false };
//! let tuning = autotune_matmul_with(48, 48, 48, DType::F32, &manager().cpu().queue, &options, &mut |_| true)?;
//! for trial in tuning.ranking() {
//!     println!("{}: {:?} ({:?})", trial.config, trial.median(), trial.verdict);
//! }
//! # Ok::<(), netcl_core::Error>(())
//! ```

use netcl_core::backend::Queue;
use netcl_core::conv::ConvGeometry;
use netcl_core::dtype::DType;
use netcl_core::error::Result;
use netcl_core::kernel_selector::get_kernel_selector;
use netcl_core::tuner::{Limits, Tuning, keep};
use netcl_ops::tuning::{Progress, tune_conv2d, tune_matmul};

pub use netcl_core::tuner::{Kept, Trial, Verdict, clear, export, list};

/// How kernels are measured, and what becomes of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// How much is measured.
    pub limits: Limits,
    /// Use the result from now on, in this process and in later ones.
    pub keep: bool,
}

impl Default for Options {
    /// About 20 seconds at most, and the result is kept.
    fn default() -> Options {
        Options { limits: Limits::default(), keep: true }
    }
}

/// Measures the kernels for a product of `m` x `k` by `k` x `n` and keeps the fastest. `Tuning::best` has its configuration,
/// `Tuning::trials` all timings.
pub fn autotune_matmul(m: usize, n: usize, k: usize, dtype: DType, queue: &Queue) -> Result<Tuning> {
    autotune_matmul_with(m, n, k, dtype, queue, &Options::default(), &mut |_| true)
}

/// [`autotune_matmul`] with bounds and progress; a progress that returns `false` ends the measurement with what is known.
pub fn autotune_matmul_with(
    m: usize,
    n: usize,
    k: usize,
    dtype: DType,
    queue: &Queue,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Tuning> {
    finish(queue, options, tune_matmul(queue, [m, n, k], dtype, &options.limits, progress)?)
}

/// Measures the kernels for a convolution and keeps the fastest.
pub fn autotune_conv2d(geometry: &ConvGeometry, dtype: DType, queue: &Queue) -> Result<Tuning> {
    autotune_conv2d_with(geometry, dtype, queue, &Options::default(), &mut |_| true)
}

/// [`autotune_conv2d`] with bounds and progress.
pub fn autotune_conv2d_with(
    geometry: &ConvGeometry,
    dtype: DType,
    queue: &Queue,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Tuning> {
    finish(queue, options, tune_conv2d(queue, geometry, dtype, &options.limits, progress)?)
}

fn finish(queue: &Queue, options: &Options, tuning: Tuning) -> Result<Tuning> {
    if options.keep {
        keep(&*get_kernel_selector(Some(queue))?, &tuning)?;
    }
    Ok(tuning)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netcl_core::conv::ConvParams;

    use super::*;

    /// Small, and with room for a few kernels to be built.
    fn options() -> Options {
        let limits = Limits { time: Duration::from_secs(2), rounds: 2, ..Limits::default() };
        Options { limits, keep: false }
    }

    #[test]
    fn a_product_is_tuned_on_every_device_and_the_result_is_what_runs() {
        for device in crate::doctor::devices() {
            let tuning =
                autotune_matmul_with(96, 96, 96, DType::F32, &device.queue, &options(), &mut |_| true).unwrap();
            let best = tuning.best().unwrap();
            assert!(best.median().unwrap() > 0.0 && tuning.flops == 2.0 * 96_f64.powi(3));
            assert!(tuning.trials.iter().all(|trial| !matches!(trial.verdict, Verdict::Wrong(_) | Verdict::Failed(_))));
            let selector = get_kernel_selector(Some(&device.queue)).unwrap();
            selector.remember(&tuning.problem, best.config.clone());
            assert_eq!(selector.select_matmul_kernel(90, 100, 110, DType::F32), best.config);
            selector.clear_cache();
        }
    }

    #[test]
    fn a_convolution_is_tuned_on_every_device() {
        let params = ConvParams { padding: [1; 4], ..Default::default() };
        let geometry = ConvGeometry::of("conv2d", [2, 8, 12, 12], 16, [3, 3], &params).unwrap();
        for device in crate::doctor::devices() {
            let tuning = autotune_conv2d_with(&geometry, DType::F32, &device.queue, &options(), &mut |_| true).unwrap();
            assert!(tuning.best().is_some(), "{tuning:?}");
            assert!(tuning.trials.iter().all(|trial| !matches!(trial.verdict, Verdict::Wrong(_) | Verdict::Failed(_))));
        }
    }

    #[test]
    fn nonsense_is_an_error_that_says_so() {
        let queue = netcl_core::device::manager().cpu().queue;
        let error = autotune_matmul(0, 4, 4, DType::F32, &queue).unwrap_err().to_string();
        assert!(error.contains("autotune_matmul") && error.contains("0 x 4"), "{error}");
        assert!(ConvGeometry::of("autotune_conv2d", [1, 1, 2, 2], 1, [3, 3], &ConvParams::default()).is_err());
    }
}

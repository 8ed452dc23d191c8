//! The queue and device objects of the native CPU, shaped like OpenCL's so that code can take either.

use super::{simd, threads};
use crate::error::Result;

/// The machine's own processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuDevice;

impl CpuDevice {
    /// The processor's name as the operating system tells it, or the architecture where it does not.
    pub fn name(&self) -> &'static str {
        static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
        NAME.get_or_init(|| {
            let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
            model.map_or_else(|| format!("{} CPU", std::env::consts::ARCH), |(_, name)| name.trim().to_owned())
        })
    }

    /// Always `"cpu"`.
    pub fn device_type(&self) -> &'static str {
        "cpu"
    }

    /// How many threads the backend computes with.
    pub fn compute_units(&self) -> usize {
        threads::num_threads()
    }

    /// The instruction set that loops were dispatched to.
    pub fn simd(&self) -> &'static str {
        match simd::level() {
            simd::Level::Avx2 => "AVX2",
            simd::Level::Baseline if cfg!(target_arch = "aarch64") => "NEON",
            simd::Level::Baseline => "baseline",
        }
    }
}

/// The queue of the native CPU. Work is done when the call that asked for it returns, so there is nothing to wait for.
///
/// ```
/// use netcl_core::backend::cpu::CpuQueue;
///
/// let queue = CpuQueue::default();
/// queue.finish()?;
/// assert_eq!(queue.device().device_type(), "cpu");
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuQueue {}

impl CpuQueue {
    /// The device behind the queue.
    pub fn device(&self) -> CpuDevice {
        CpuDevice
    }

    /// Returns at once.
    pub fn finish(&self) -> Result<()> {
        Ok(())
    }

    /// Returns at once.
    pub fn flush(&self) -> Result<()> {
        Ok(())
    }
}

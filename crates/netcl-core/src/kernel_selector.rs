//! Which kernel variant runs a problem, with which tiles: a thin policy over [`ExtendedDeviceProfile`].
//!
//! The numbers are data (`kernel_defaults.toml`): entries for everything, a vendor, an architecture or a device, of which the more
//! specific wins field by field. The rules here only sort a problem into a class. Whatever the table says, a returned
//! configuration fits the device: its work-group size and its local memory.
//!
//! What the [tuner](crate::tuner) measured on the device goes before the table; entries of the table with `shapes` and `dtype` are
//! such results, measured by others on a device of that name.
//!
//! ```
//! use netcl_core::{device_profile::ExtendedDeviceProfile, dtype::DType};
//! use netcl_core::kernel_selector::{KernelSelector, KernelVariant};
//!
//! let selector = KernelSelector::new(ExtendedDeviceProfile::cpu());
//! let config = selector.select_matmul_kernel(8, 8, 8, DType::F32);
//! assert_eq!(config.variant, KernelVariant::MatmulNaive);
//! selector.select_matmul_kernel(8, 8, 8, DType::F32);
//! assert_eq!((selector.stats().hits, selector.stats().misses), (1, 1));
//! ```

mod config;
mod defaults;
mod fit;
mod problem;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::backend::Queue;
use crate::capabilities::kernel_strategy;
use crate::device::current_device;
use crate::device_profile::ExtendedDeviceProfile;
use crate::dtype::DType;
use crate::env;
use crate::error::{Error, Result};

pub use config::{Extra, KernelConfig, KernelVariant};
pub use defaults::{Class, Entry, TableError, Target};
pub use problem::Problem;

use defaults::Table;

/// `0` keeps 3x3 convolutions away from Winograd.
pub const WINOGRAD_VARIABLE: &str = env::CONV_WINOGRAD.name;
/// `1` allows the tiled-local convolution on small outputs.
pub const TILED_LOCAL_VARIABLE: &str = env::CONV_TILED_LOCAL.name;

/// Products with fewer multiplications than a cube of this edge are tiny.
const TINY_MATMUL_EDGE: u128 = 32;
/// Products with at least as many multiplications as a cube of this edge are large.
const LARGE_MATMUL_EDGE: u128 = 512;
/// Below this many rows or columns a register tile would be mostly empty.
const REGISTER_TILE_EDGE: usize = 64;
/// Up to this many elements scalar loads are as good as any.
const SCALAR_ELEMENTS: usize = 1024;
/// Below this many elements one work-item sums faster than a group can agree.
const SEQUENTIAL_ELEMENTS: usize = 256;
/// From this many elements on one group is not enough.
const WORKGROUP_ELEMENTS: usize = 64 * 1024;
/// Work-items that share one channel's values, at most.
const MAX_CHANNEL_GROUP: usize = 256;
/// An output of at most so many points counts as small.
const SMALL_OUTPUT_POINTS: usize = 32 * 32;

/// A convolution, as far as its kernel depends on it.
///
/// ```
/// use netcl_core::kernel_selector::ConvShape;
/// let shape = ConvShape::new([8, 16, 32, 32], 64, [3, 3]).pad([1, 1]);
/// assert_eq!(shape.output(), (32, 32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// Batch, channels, height and width of the input.
    pub input: [usize; 4],
    /// Filters.
    pub filters: usize,
    /// Height and width of a filter.
    pub kernel: [usize; 2],
    /// Steps of the filter.
    pub stride: [usize; 2],
    /// Zeros around the input.
    pub pad: [usize; 2],
    /// Distance between a filter's taps.
    pub dilation: [usize; 2],
    /// Independent groups of channels.
    pub groups: usize,
}

impl ConvShape {
    /// A convolution with stride 1, no padding, no dilation, one group.
    pub fn new(input: [usize; 4], filters: usize, kernel: [usize; 2]) -> ConvShape {
        ConvShape { input, filters, kernel, stride: [1, 1], pad: [0, 0], dilation: [1, 1], groups: 1 }
    }

    /// With another stride.
    #[must_use]
    pub fn stride(self, stride: [usize; 2]) -> ConvShape {
        ConvShape { stride, ..self }
    }

    /// With padding.
    #[must_use]
    pub fn pad(self, pad: [usize; 2]) -> ConvShape {
        ConvShape { pad, ..self }
    }

    /// With dilation.
    #[must_use]
    pub fn dilation(self, dilation: [usize; 2]) -> ConvShape {
        ConvShape { dilation, ..self }
    }

    /// With groups of channels.
    #[must_use]
    pub fn groups(self, groups: usize) -> ConvShape {
        ConvShape { groups, ..self }
    }

    /// Height and width of the output; 0 where the filter does not fit.
    pub fn output(&self) -> (usize, usize) {
        let one = |axis: usize| {
            let reach = self.dilation[axis].max(1) * self.kernel[axis].saturating_sub(1) + 1;
            let padded = self.input[2 + axis] + 2 * self.pad[axis];
            padded.checked_sub(reach).map_or(0, |left| left / self.stride[axis].max(1) + 1)
        };
        (one(0), one(1))
    }
}

/// Exact counts of a selector's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelectorStats {
    /// Decisions taken from the cache.
    pub hits: u64,
    /// Decisions made.
    pub misses: u64,
    /// Decisions kept.
    pub entries: usize,
}

/// What the environment says, read when a selector is made and when its cache is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    optimized: bool,
    winograd: bool,
    tiled_local: bool,
}

impl Policy {
    fn from_env(profile: &ExtendedDeviceProfile) -> Policy {
        Policy {
            optimized: kernel_strategy(&profile.base) == "optimized",
            winograd: env::CONV_WINOGRAD.switch(),
            tiled_local: env::CONV_TILED_LOCAL.switch(),
        }
    }
}

/// A problem, cut down to what its decision depends on. The device is the selector's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    class: Class,
    dtype: DType,
    /// The vector width, a reduction's kind, and the like.
    flags: String,
}

/// Chooses kernels for one device.
#[derive(Debug)]
pub struct KernelSelector {
    profile: ExtendedDeviceProfile,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    policy: Policy,
    table: Table,
    cache: HashMap<Key, KernelConfig>,
    /// What was measured, where anybody asked; `None` where nothing is known.
    measured: HashMap<Problem, Option<KernelConfig>>,
    hits: u64,
    misses: u64,
}

impl KernelSelector {
    /// A selector for a device, over the shipped table. [`get_kernel_selector`] hands out one per device.
    pub fn new(profile: ExtendedDeviceProfile) -> KernelSelector {
        let policy = Policy::from_env(&profile);
        let state = State {
            policy,
            table: Table::shipped(),
            cache: HashMap::new(),
            measured: HashMap::new(),
            hits: 0,
            misses: 0,
        };
        KernelSelector { profile, state: Mutex::new(state) }
    }

    /// A selector of its own for the device of a queue.
    pub fn for_queue(queue: &Queue) -> KernelSelector {
        KernelSelector::new(match queue {
            Queue::Cpu(_) => ExtendedDeviceProfile::cpu(),
            Queue::OpenCl(stream) => ExtendedDeviceProfile::from_opencl(stream.device()),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the selector knows of its device.
    pub fn profile(&self) -> &ExtendedDeviceProfile {
        &self.profile
    }

    /// The kernel for an `m` x `k` by `k` x `n` product: naive for tiny problems, tiled for small and medium ones,
    /// register-tiled for large ones. Where local memory is no hardware of its own, vectorised rows replace tiles.
    ///
    /// What was measured for products like this one goes before these rules.
    pub fn select_matmul_kernel(&self, m: usize, n: usize, k: usize, dtype: DType) -> KernelConfig {
        self.measured(&Problem::matmul(m, n, k, dtype)).unwrap_or_else(|| self.select_matmul_by_rule(m, n, k, dtype))
    }

    /// [`KernelSelector::select_matmul_kernel`] without what was measured.
    pub fn select_matmul_by_rule(&self, m: usize, n: usize, k: usize, dtype: DType) -> KernelConfig {
        let work = m as u128 * n as u128 * k as u128;
        self.decide(dtype, String::new(), |policy| {
            if work < TINY_MATMUL_EDGE.pow(3) {
                return Class::MatmulNaive;
            }
            let wide = m.min(n) >= REGISTER_TILE_EDGE && work >= LARGE_MATMUL_EDGE.pow(3);
            match (policy.optimized, self.profile.local_mem_dedicated) {
                (true, _) if wide => Class::MatmulRegisterTiled,
                (false, false) if wide => Class::MatmulVectorized,
                _ => Class::MatmulTiled,
            }
        })
    }

    /// What the table says of a class of problems on the device, within its limits.
    pub fn config(&self, class: Class, dtype: DType) -> KernelConfig {
        self.decide(dtype, String::new(), |_| class)
    }

    /// The kernel for a convolution: im2col on CPUs, implicit GEMM for 1x1, Winograd for 3x3 with stride 1, implicit GEMM for the
    /// rest. `NETCL_CONV_WINOGRAD=0` and `NETCL_CONV_TILED_LOCAL=1` change that. What was measured for convolutions like this one
    /// goes before these rules.
    pub fn select_conv2d_kernel(&self, shape: ConvShape, dtype: DType) -> KernelConfig {
        self.measured(&Problem::conv2d(shape, dtype)).unwrap_or_else(|| self.select_conv2d_by_rule(shape, dtype))
    }

    /// [`KernelSelector::select_conv2d_kernel`] without what was measured: for gradients, which measurements do not concern.
    pub fn select_conv2d_by_rule(&self, shape: ConvShape, dtype: DType) -> KernelConfig {
        let (height, width) = shape.output();
        let plain = shape.dilation == [1, 1] && shape.groups == 1;
        self.decide(dtype, String::new(), |policy| {
            if self.profile.base.device_type == "cpu" {
                return Class::Conv2dIm2col;
            }
            if shape.kernel == [1, 1] {
                return Class::Conv2dImplicitGemm;
            }
            if policy.tiled_local && plain && height * width <= SMALL_OUTPUT_POINTS {
                return Class::Conv2dTiledLocal;
            }
            if policy.winograd && plain && shape.kernel == [3, 3] && shape.stride == [1, 1] {
                return Class::Conv2dWinograd;
            }
            Class::Conv2dImplicitGemm
        })
    }

    /// The kernel for `n` independent elements: vectors of 4 or 8 above 1024 elements.
    pub fn select_elementwise_kernel(&self, n: usize, dtype: DType) -> KernelConfig {
        // 16 bytes are one load of a work-item; CPUs compute with whole registers.
        let wide = dtype.size() <= 2 || (dtype.size() == 4 && self.profile.vector_width_float >= 8);
        let width = if wide { 8 } else { 4 };
        let (class, flags) = match n > SCALAR_ELEMENTS {
            true => (Class::ElementwiseVectorized, format!("width={width}")),
            false => (Class::ElementwiseScalar, String::new()),
        };
        self.decide(dtype, flags, |_| class)
    }

    /// The kernel for a reduction of `n` elements (`kind` is `"sum"`, `"max"`, ...): sequential below 256, one group below 64 K,
    /// several stages of groups above.
    pub fn select_reduction_kernel(&self, n: usize, kind: &str) -> KernelConfig {
        let class = match n {
            0..SEQUENTIAL_ELEMENTS => Class::ReductionSequential,
            SEQUENTIAL_ELEMENTS..WORKGROUP_ELEMENTS => Class::ReductionParallel,
            _ => Class::ReductionWorkgroup,
        };
        self.decide(DType::F32, format!("kind={kind}"), |_| class)
    }

    /// The kernel for batch normalisation of `[n, c, h, w]`: fused with ReLU when that is asked for outside training. Channels with
    /// few values get small work-groups.
    pub fn select_batchnorm_kernel(
        &self,
        [n, _, h, w]: [usize; 4],
        fuse_relu: bool,
        training: bool,
        dtype: DType,
    ) -> KernelConfig {
        let class = if fuse_relu && !training { Class::BatchnormFused } else { Class::BatchnormNaive };
        let values = n.saturating_mul(h).saturating_mul(w).clamp(1, MAX_CHANNEL_GROUP).next_power_of_two();
        self.decide(dtype, format!("local={values},fuse_relu={fuse_relu},training={training}"), |_| class)
    }

    /// What was measured for problems of a class: by the tuner on this device, else by others on a device of its name. Looks into
    /// the cache folder once for each class.
    pub fn measured(&self, problem: &Problem) -> Option<KernelConfig> {
        let mut state = self.state();
        if let Some(known) = state.measured.get(problem) {
            return known.clone();
        }
        let found = crate::tuner::find(&self.profile, problem).or_else(|| state.table.measured(problem, &self.profile));
        // Another driver or other limits may allow less than was measured with.
        let found = found.filter(|config| fit::fits(config, problem.dtype(), &self.profile));
        state.measured.insert(*problem, found.clone());
        found
    }

    /// Uses a configuration for problems of a class from now on, in this process.
    pub fn remember(&self, problem: &Problem, config: KernelConfig) {
        self.state().measured.insert(*problem, Some(config));
    }

    /// Whether a configuration is within the device's limits, as it stands.
    pub fn fits(&self, config: &KernelConfig, dtype: DType) -> bool {
        fit::fits(config, dtype, &self.profile)
    }

    fn decide(&self, dtype: DType, flags: String, classify: impl FnOnce(&Policy) -> Class) -> KernelConfig {
        let mut state = self.state();
        let key = Key { class: classify(&state.policy), dtype, flags };
        if let Some(found) = state.cache.get(&key) {
            let found = found.clone();
            state.hits += 1;
            return found;
        }
        let with_flags = |class| {
            let mut config = state.table.config(class, &self.profile);
            for flag in key.flags.split(',').filter_map(|flag| flag.split_once('=')) {
                apply_flag(&mut config, flag);
            }
            config
        };
        let config = fit::fit(with_flags(key.class), dtype, &self.profile)
            // The class to fall back to needs no local memory, so it fits.
            .or_else(|simpler| fit::fit(with_flags(simpler), dtype, &self.profile))
            .unwrap_or_else(with_flags);
        state.misses += 1;
        state.cache.insert(key, config.clone());
        config
    }

    /// Drops the cached decisions, reads the environment again and looks for measurements again. The counters start anew.
    pub fn clear_cache(&self) {
        let mut state = self.state();
        state.policy = Policy::from_env(&self.profile);
        state.cache.clear();
        state.measured.clear();
        (state.hits, state.misses) = (0, 0);
    }

    /// The cache's counters.
    pub fn stats(&self) -> SelectorStats {
        let state = self.state();
        SelectorStats { hits: state.hits, misses: state.misses, entries: state.cache.len() }
    }

    /// Adds entries to the table, for example a tuner's results; among equally specific ones the last added wins. Cached
    /// decisions are dropped.
    pub fn extend(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut state = self.state();
        state.table.extend(entries);
        state.cache.clear();
        state.measured.clear();
    }

    /// [`KernelSelector::extend`] with entries written as in `kernel_defaults.toml`.
    pub fn extend_from_toml(&self, text: &str) -> Result<()> {
        let table = Table::parse(text).map_err(|error| Error::argument("kernel selector", error.to_string()))?;
        self.extend(table.into_entries());
        Ok(())
    }
}

/// A measurement as the text of a table.
pub(crate) fn entry_for_table(problem: &Problem, device: &str, config: &KernelConfig) -> Result<String> {
    Table::write(vec![Entry::measured(problem, device, config)])
        .map_err(|error| Error::argument("tune", error.to_string()))
}

/// What a text of [`entry_for_table`] says of a problem.
pub(crate) fn config_from_table(
    text: &str,
    problem: &Problem,
    profile: &ExtendedDeviceProfile,
) -> Option<KernelConfig> {
    Table::parse(text).ok()?.measured(problem, profile)
}

fn apply_flag(config: &mut KernelConfig, (name, value): (&str, &str)) {
    let truth = |text: &str| Extra::Bool(text == "true");
    match (name, value.parse()) {
        ("width", Ok(width)) => config.vector_width = width,
        ("local", Ok(size)) => config.local_size_1d = config.local_size_1d.min(size),
        ("kind", _) => {
            config.extra.insert(name.to_owned(), Extra::Text(value.to_owned()));
        }
        _ => {
            config.extra.insert(name.to_owned(), truth(value));
        }
    }
}

/// The selector of a device; of the active or default one for `None`. One per device and process.
pub fn get_kernel_selector(queue: Option<&Queue>) -> Result<Arc<KernelSelector>> {
    static SELECTORS: LazyLock<Mutex<HashMap<usize, Arc<KernelSelector>>>> = LazyLock::new(Mutex::default);
    let queue = match queue {
        Some(queue) => queue.clone(),
        None => current_device()?.queue,
    };
    let key = match &queue {
        Queue::Cpu(_) => 0,
        Queue::OpenCl(stream) => stream.device().int_ptr(),
    };
    let mut selectors = SELECTORS.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(selectors.entry(key).or_insert_with(|| Arc::new(KernelSelector::for_queue(&queue))).clone())
}

/// The matmul kernel of the active or default device, for f32.
pub fn select_matmul_config(m: usize, n: usize, k: usize) -> Result<KernelConfig> {
    Ok(get_kernel_selector(None)?.select_matmul_kernel(m, n, k, DType::F32))
}

/// The convolution kernel of the active or default device, for f32.
pub fn select_conv2d_config(shape: ConvShape) -> Result<KernelConfig> {
    Ok(get_kernel_selector(None)?.select_conv2d_kernel(shape, DType::F32))
}

//! Which kernel variant runs a problem, with which tiles: a thin policy over [`ExtendedDeviceProfile`].
//!
//! Operations ask the same selector that users ask. The variant is decided by tables (`rules.rs`), its parameters are data
//! (`kernel_defaults.toml`): entries for everything, a vendor, an architecture or a device, of which the more specific wins field by
//! field. Whatever the data say, a returned configuration fits the device: its work-group size and its local memory.
//!
//! What is [forced](crate::tuner::with_forced) on a thread goes first, then what the [tuner] measured on the device;
//! entries with `shapes` and `dtype` are such results, measured by others on a device of that name.
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

mod active;
mod config;
mod defaults;
mod fit;
mod problem;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::backend::Queue;
use crate::conv::ConvGeometry;
use crate::device_profile::ExtendedDeviceProfile;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::precision::MatmulPrecision;
use crate::tuner;

pub use active::{get_kernel_selector, select_conv2d_config, select_matmul_config};
pub use config::{Extra, KernelConfig, KernelVariant};
pub use defaults::{Entry, TableError, Target};
pub use problem::Problem;
pub use rules::{
    ConvPass, MMA_GROUP, MMA_LOCAL_BYTES, MatmulSpec, SEQUENTIAL_BELOW, STRIP_ROWS, WGMMA_GROUP, WGMMA_TILE_BYTES,
    WORKGROUP_FROM, has_mma, has_wgmma,
};

use defaults::Table;
use rules::{Policy, Rules};

/// In the extras of a measured product: matrix units are faster than what it describes.
pub const MATRIX_UNITS: &str = "matrix_units";
/// Work-items that share one channel's values, at most.
const MAX_CHANNEL_GROUP: usize = 256;

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

/// A decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The kernel and its parameters.
    pub config: KernelConfig,
    /// Whether its tiles were forced or measured. Otherwise they are those of the table, from which a call departs where its
    /// lengths ask for others.
    pub exact: bool,
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
    cache: HashMap<(KernelVariant, DType), KernelConfig>,
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

    /// The selector of a queue's device: one per device and process.
    pub fn of(queue: &Queue) -> Arc<KernelSelector> {
        static SELECTORS: LazyLock<Mutex<HashMap<usize, Arc<KernelSelector>>>> = LazyLock::new(Mutex::default);
        let key = match queue {
            Queue::Cpu(_) => 0,
            Queue::OpenCl(stream) => stream.device().int_ptr(),
        };
        let mut selectors = SELECTORS.lock().unwrap_or_else(PoisonError::into_inner);
        selectors.entry(key).or_insert_with(|| Arc::new(KernelSelector::for_queue(queue))).clone()
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

    fn rules(&self) -> Rules<'_> {
        Rules { profile: &self.profile, policy: self.state().policy }
    }

    /// What is forced on this thread for a problem, if anything is; an error if the device cannot have it.
    fn forced(&self, op: &'static str, problem: &Problem) -> Result<Option<KernelConfig>> {
        let Some(forced) = tuner::forced(|variant| problem.concerns(variant)) else { return Ok(None) };
        match self.fits(&forced, problem.dtype()) {
            true => Ok(Some(forced)),
            false => Err(Error::argument(op, format!("{forced} does not fit into a work-group of this device"))),
        }
    }

    /// The kernel for a product: what is forced on this thread, else what was measured for products like it, else by rule.
    ///
    /// Matrix units go first where they pay: a measurement says with [`MATRIX_UNITS`] that they were faster than the best of the
    /// others, which it describes.
    pub fn choose_matmul(&self, spec: &MatmulSpec) -> Result<Choice> {
        let problem = Problem::matmul(spec.m, spec.n, spec.k, spec.dtype);
        let known = match self.forced("matmul", &problem)? {
            None if spec.is_measured() => self.measured(&problem),
            forced => forced,
        };
        let rules = self.rules();
        let units = rules.matmul_on_units(spec);
        Ok(match (units, known) {
            (Some(units), None) => self.by_rule(units, spec.dtype),
            (Some(units), Some(config)) if config.extra.get(MATRIX_UNITS) == Some(&Extra::Bool(true)) => {
                self.by_rule(units, spec.dtype)
            }
            (_, Some(config)) => Choice { config, exact: true },
            (None, None) => self.by_rule(rules.portable_matmul(spec), spec.dtype),
        })
    }

    /// The kernel for an `m` x `k` by `k` x `n` product of dense operands, as [`KernelSelector::choose_matmul`] decides.
    pub fn select_matmul_kernel(&self, m: usize, n: usize, k: usize, dtype: DType) -> KernelConfig {
        let spec = MatmulSpec::new(m, n, k, dtype);
        // What is forced and does not fit is the operation's error.
        let choice = self.choose_matmul(&spec);
        choice.map_or_else(|_| self.config(self.rules().portable_matmul(&spec), dtype), |choice| choice.config)
    }

    /// The kernel that multiplies operands of a dtype on the device's matrix units, where products large enough for it gain by that.
    pub fn matrix_units(&self, dtype: DType, precision: MatmulPrecision) -> Option<KernelVariant> {
        self.rules().matrix_units(dtype, precision)
    }

    /// What the table says of a kernel on the device, within its limits.
    pub fn config(&self, variant: KernelVariant, dtype: DType) -> KernelConfig {
        let mut state = self.state();
        if let Some(found) = state.cache.get(&(variant, dtype)) {
            let found = found.clone();
            state.hits += 1;
            return found;
        }
        let of = |variant| state.table.config(variant, &self.profile);
        let config = fit::fit(of(variant), dtype, &self.profile)
            // The variant to fall back to needs no local memory, so it fits.
            .or_else(|simpler| fit::fit(of(simpler), dtype, &self.profile))
            .unwrap_or_else(of);
        state.misses += 1;
        state.cache.insert((variant, dtype), config.clone());
        config
    }

    fn by_rule(&self, variant: KernelVariant, dtype: DType) -> Choice {
        Choice { config: self.config(variant, dtype), exact: false }
    }

    /// The kernel for a convolution or one of its gradients. What is forced on this thread and what was measured concern the
    /// convolution itself. `NETCL_CONV_WINOGRAD=0` and `NETCL_CONV_TILED_LOCAL=1` change the rules.
    pub fn choose_conv2d(&self, op: &'static str, g: &ConvGeometry, dtype: DType, pass: ConvPass) -> Result<Choice> {
        let able = |config: &KernelConfig| match config.variant {
            KernelVariant::Conv2dWinograd => g.fits_winograd(dtype),
            KernelVariant::Conv2dDepthwise => g.channels == 1,
            KernelVariant::Conv2dUnits => g.fits_units(dtype) && self.rules().device(has_wgmma),
            _ => true,
        };
        let rule = self.rules().conv2d(g, dtype, pass);
        if pass == ConvPass::Forward {
            let problem = Problem::conv2d(g, dtype);
            match self.forced(op, &problem)? {
                Some(config) if able(&config) => return Ok(Choice { config, exact: true }),
                Some(config) => return Err(Error::argument(op, format!("{config} does not fit this convolution"))),
                // Measurements are of products; depthwise convolutions are bound by memory.
                None if rule == KernelVariant::Conv2dDepthwise => {}
                None => {
                    if let Some(config) = self.measured(&problem).filter(able) {
                        return Ok(Choice { config, exact: true });
                    }
                }
            }
        }
        Ok(self.by_rule(rule, dtype))
    }

    /// The kernel for a convolution, as [`KernelSelector::choose_conv2d`] decides.
    pub fn select_conv2d_kernel(&self, g: &ConvGeometry, dtype: DType) -> KernelConfig {
        let choice = self.choose_conv2d("conv2d", g, dtype, ConvPass::Forward);
        choice.map_or_else(
            |_| self.config(self.rules().conv2d(g, dtype, ConvPass::Forward), dtype),
            |choice| choice.config,
        )
    }

    /// The kernel for `n` independent elements: vectors of 4 or 8 above 1024 elements.
    pub fn select_elementwise_kernel(&self, n: usize, dtype: DType) -> KernelConfig {
        if let Some(forced) = tuner::forced(|variant| variant.op() == "elementwise") {
            return forced;
        }
        let (variant, vector_width) = self.rules().elementwise(n, dtype);
        KernelConfig { vector_width, ..self.config(variant, dtype) }
    }

    /// The kernel for a reduction of `n` elements to one result (`kind` is `"sum"`, `"max"`, ...): sequential below 256, one
    /// group below 64 K, several groups above. Many results fill the device with one group for each.
    pub fn select_reduction_kernel(&self, n: usize, kind: &str) -> KernelConfig {
        let mut config = self.config(rules::reduction(n), DType::F32);
        config.extra.insert("kind".to_owned(), Extra::Text(kind.to_owned()));
        config
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
        let mut config = self.config(rules::batchnorm(fuse_relu, training), dtype);
        let values = n.saturating_mul(h).saturating_mul(w).clamp(1, MAX_CHANNEL_GROUP).next_power_of_two();
        config.local_size_1d = config.local_size_1d.min(values);
        for (name, value) in [("fuse_relu", fuse_relu), ("training", training)] {
            config.extra.insert(name.to_owned(), Extra::Bool(value));
        }
        config
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

//! The table of defaults: what to use where nothing was measured, from the most general entry to the most specific.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::config::{Extra, KernelConfig, KernelVariant};
use super::problem::Problem;
use crate::device_profile::ExtendedDeviceProfile;

/// Which devices an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target<'a> {
    /// All.
    Default,
    /// Those whose vendor's name contains this.
    Vendor(&'a str),
    /// Those of this family.
    Architecture(&'a str),
    /// Those of exactly this name.
    Device(&'a str),
}

/// Parameters of a variant on some devices; a field that is left out falls back to a less specific entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the parameters are those of KernelConfig, described there")]
pub struct Entry {
    /// The variant. Tables of older versions call it `class`.
    #[serde(alias = "class", skip_serializing_if = "Option::is_none")]
    pub variant: Option<KernelVariant>,
    /// A part of the vendor's name, whatever the case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// The family, as in [`ExtendedDeviceProfile::architecture`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// The device's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Only problems of these lengths, as [`Problem::shapes`](super::Problem::shapes) writes them: something that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shapes: Option<String>,
    /// Only this dtype; goes with `shapes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile_m: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile_n: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile_k: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_per_thread: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_size_1d: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_size_2d: Option<(usize, usize)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_local_memory: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_vectorization: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector_width: Option<usize>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Extra>,
}

impl Entry {
    /// What was measured of a problem on a device.
    pub(super) fn measured(problem: &Problem, device: &str, config: &KernelConfig) -> Entry {
        Entry {
            variant: Some(config.variant),
            vendor: None,
            architecture: None,
            device: Some(device.to_owned()),
            shapes: Some(problem.shapes()),
            dtype: Some(problem.dtype().name().to_owned()),
            tile_m: Some(config.tile_m),
            tile_n: Some(config.tile_n),
            tile_k: Some(config.tile_k),
            work_per_thread: Some(config.work_per_thread),
            local_size_1d: Some(config.local_size_1d),
            local_size_2d: Some(config.local_size_2d),
            use_local_memory: Some(config.use_local_memory),
            use_vectorization: Some(config.use_vectorization),
            vector_width: Some(config.vector_width),
            extra: config.extra.clone(),
        }
    }

    /// The configuration of an entry that was measured; fields it leaves out have the documented defaults.
    pub(super) fn config(&self) -> Option<KernelConfig> {
        let mut config = KernelConfig::new(self.variant?);
        self.apply(&mut config);
        Some(config)
    }

    /// Which devices it is for: the most specific of the names it has.
    pub fn target(&self) -> Target<'_> {
        match (&self.device, &self.architecture, &self.vendor) {
            (Some(name), _, _) => Target::Device(name),
            (_, Some(name), _) => Target::Architecture(name),
            (_, _, Some(name)) => Target::Vendor(name),
            _ => Target::Default,
        }
    }

    /// Every name it has must fit.
    fn fits(&self, profile: &ExtendedDeviceProfile) -> bool {
        let vendor = profile.base.vendor.to_ascii_lowercase();
        self.vendor.as_ref().is_none_or(|part| vendor.contains(&part.to_ascii_lowercase()))
            && self.architecture.as_ref().is_none_or(|name| *name == profile.architecture)
            && self.device.as_ref().is_none_or(|name| name.eq_ignore_ascii_case(&profile.base.name))
    }

    fn apply(&self, config: &mut KernelConfig) {
        let set = |to: &mut usize, from: Option<usize>| *to = from.unwrap_or(*to);
        set(&mut config.tile_m, self.tile_m);
        set(&mut config.tile_n, self.tile_n);
        set(&mut config.tile_k, self.tile_k);
        set(&mut config.work_per_thread, self.work_per_thread);
        set(&mut config.local_size_1d, self.local_size_1d);
        set(&mut config.vector_width, self.vector_width);
        config.local_size_2d = self.local_size_2d.unwrap_or(config.local_size_2d);
        config.use_local_memory = self.use_local_memory.unwrap_or(config.use_local_memory);
        config.use_vectorization = self.use_vectorization.unwrap_or(config.use_vectorization);
        config.extra.extend(self.extra.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
}

/// A table of entries that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The text is no such table.
    #[error("the table of kernel defaults cannot be read: {0}")]
    Syntax(String),
    /// An entry without a variant, or with a size of zero.
    #[error("entry {index} of the table of kernel defaults: {why}")]
    Entry {
        /// The entry's place, counted from 0.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    #[serde(default)]
    kernel: Vec<Entry>,
}

impl Table {
    /// The table that is compiled in.
    pub(super) fn shipped() -> Table {
        // A test parses it, so the default is never seen; and it would only mean the documented defaults.
        Table::parse(include_str!("../kernel_defaults.toml")).unwrap_or_default()
    }

    pub(super) fn parse(text: &str) -> Result<Table, TableError> {
        let table: Table = toml::from_str(text).map_err(|error| TableError::Syntax(error.to_string()))?;
        for (index, entry) in table.kernel.iter().enumerate() {
            let wrong = |why| Err(TableError::Entry { index, why });
            if entry.variant.is_none() {
                return wrong("it needs a variant");
            }
            if entry.shapes.is_some() != entry.dtype.is_some() {
                return wrong("shapes and dtype go together");
            }
            let (x, y) = entry.local_size_2d.unwrap_or((1, 1));
            let sizes = [entry.tile_m, entry.tile_n, entry.tile_k, entry.work_per_thread, entry.local_size_1d];
            if sizes.into_iter().chain([entry.vector_width, Some(x), Some(y)]).any(|size| size == Some(0)) {
                return wrong("a size is zero");
            }
        }
        Ok(table)
    }

    /// Entries as the text of a table.
    pub(super) fn write(kernel: Vec<Entry>) -> Result<String, TableError> {
        toml::to_string(&Table { kernel }).map_err(|error| TableError::Syntax(error.to_string()))
    }

    /// What a table says of exactly this problem; the last entry counts.
    pub(super) fn measured(&self, problem: &Problem, profile: &ExtendedDeviceProfile) -> Option<KernelConfig> {
        let shapes = problem.shapes();
        let about = |entry: &&Entry| {
            entry.shapes.as_deref() == Some(shapes.as_str())
                && entry.dtype.as_deref() == Some(problem.dtype().name())
                && entry.variant.is_some_and(|variant| problem.concerns(variant))
                && entry.fits(profile)
        };
        self.kernel.iter().rev().find(about)?.config()
    }

    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.kernel
    }

    pub(super) fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) {
        self.kernel.extend(entries);
    }

    /// The parameters of a variant on a device: all entries that fit, the more specific over the more general, the later over the
    /// earlier.
    pub(super) fn config(&self, variant: KernelVariant, profile: &ExtendedDeviceProfile) -> KernelConfig {
        let general = |entry: &&Entry| entry.shapes.is_none() && entry.variant == Some(variant) && entry.fits(profile);
        let mut entries: Vec<&Entry> = self.kernel.iter().filter(general).collect();
        entries.sort_by_key(|entry| match entry.target() {
            Target::Default => 0,
            Target::Vendor(_) => 1,
            Target::Architecture(_) => 2,
            Target::Device(_) => 3,
        });
        let mut config = KernelConfig::new(variant);
        entries.iter().for_each(|entry| entry.apply(&mut config));
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiled_in_table_parses_and_covers_every_variant() {
        let table = Table::parse(include_str!("../kernel_defaults.toml")).unwrap();
        let variants: Vec<KernelVariant> = table
            .kernel
            .iter()
            .filter(|entry| entry.target() == Target::Default)
            .filter_map(|entry| entry.variant)
            .collect();
        for variant in KernelVariant::ALL {
            assert!(variants.contains(variant), "{variant} has no default entry");
        }
    }

    #[test]
    fn the_more_specific_entry_wins_field_by_field() {
        let text = r#"
            [[kernel]]
            variant = "matmul_tiled"
            device = "RX 6800"
            tile_k = 32
            [[kernel]]
            variant = "matmul_tiled"
            architecture = "rdna2"
            tile_k = 16
            tile_n = 48
            [[kernel]]
            variant = "matmul_tiled"
            vendor = "advanced micro"
            tile_k = 8
            tile_n = 24
            vector_width = 2
            [[kernel]]
            variant = "matmul_tiled"
            tile_k = 4
            tile_n = 12
            vector_width = 1
            tile_m = 6
            [[kernel]]
            variant = "matmul_naive"
            tile_m = 1
        "#;
        let table = Table::parse(text).unwrap();
        let mut profile = ExtendedDeviceProfile::cpu();
        let mut got = |vendor: &str, architecture: &str, name: &str| {
            profile.base.vendor = vendor.to_owned();
            profile.base.name = name.to_owned();
            profile.architecture = architecture.to_owned();
            let config = table.config(KernelVariant::MatmulTiled, &profile);
            (config.tile_k, config.tile_n, config.vector_width, config.tile_m)
        };
        assert_eq!(got("Advanced Micro Devices, Inc.", "rdna2", "rx 6800"), (32, 48, 2, 6));
        assert_eq!(got("Advanced Micro Devices, Inc.", "rdna2", "RX 6700"), (16, 48, 2, 6));
        assert_eq!(got("Advanced Micro Devices, Inc.", "vega", "gfx906"), (8, 24, 2, 6));
        assert_eq!(got("ARM", "mali", "Mali"), (4, 12, 1, 6));
    }

    #[test]
    fn mistakes_are_named() {
        let text = |text| Table::parse(text).unwrap_err().to_string();
        assert!(text("[[kernel]]\nclass = \"matmul_fast\"").contains("matmul_fast"));
        assert!(text("[[kernel]]\ntile_q = 1").contains("tile_q"));
        assert!(text("[[kernel]]\ntile_m = 1").contains("entry 0") && text("[[kernel]]").contains("variant"));
        assert!(text("[[kernel]]\nvariant = \"matmul_tiled\"\nlocal_size_2d = [0, 4]").contains("zero"));
    }
}

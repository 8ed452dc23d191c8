//! `NETCL_LIMITS`: any device pretends to be small, so that code for small devices is tested on large ones.

use std::str::FromStr;
use std::sync::OnceLock;

use crate::env;

/// Caps on what a device reports; they hold for launches and allocations, too.
///
/// ```
/// use netcl_core::backend::opencl::Limits;
/// let limits: Limits = "wg=64,local=16k,alloc=64M,no_fp64".parse()?;
/// assert_eq!(limits.work_group, Some(64));
/// assert_eq!(limits.local, Some(16 * 1024));
/// assert!(limits.no_fp64 && !limits.no_fp16);
/// # Ok::<(), netcl_core::backend::opencl::LimitsError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Largest work-group (`wg=64`).
    pub work_group: Option<usize>,
    /// Local memory in bytes (`local=16k`).
    pub local: Option<u64>,
    /// Largest allocation in bytes (`alloc=64M`).
    pub alloc: Option<u64>,
    /// Bytes of a kernel's parameters (`params=256`).
    pub parameters: Option<u64>,
    /// Hide double precision (`no_fp64`).
    pub no_fp64: bool,
    /// Hide half precision arithmetic (`no_fp16`).
    pub no_fp16: bool,
    /// Hide subgroups (`no_subgroups`).
    pub no_subgroups: bool,
}

/// A part of `NETCL_LIMITS` that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: cannot use {part:?}: {why}; write {}", env::LIMITS.name, env::LIMITS.values)]
pub struct LimitsError {
    /// The part between two commas.
    pub part: String,
    /// What is wrong with it.
    pub why: String,
}

impl FromStr for Limits {
    type Err = LimitsError;

    fn from_str(text: &str) -> Result<Self, LimitsError> {
        let mut limits = Limits::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = |why: String| LimitsError { part: part.to_owned(), why };
            match part.split_once('=').map_or((part, None), |(key, value)| (key.trim(), Some(value.trim()))) {
                ("no_fp64", None) => limits.no_fp64 = true,
                ("no_fp16", None) => limits.no_fp16 = true,
                ("no_subgroups", None) => limits.no_subgroups = true,
                ("wg", Some(value)) => {
                    let size = parse_size(value).map_err(wrong)?;
                    limits.work_group = Some(usize::try_from(size).map_err(|e| wrong(e.to_string()))?);
                }
                ("local", Some(value)) => limits.local = Some(parse_size(value).map_err(wrong)?),
                ("alloc", Some(value)) => limits.alloc = Some(parse_size(value).map_err(wrong)?),
                ("params", Some(value)) => limits.parameters = Some(parse_size(value).map_err(wrong)?),
                ("wg" | "local" | "alloc" | "params", None) => return Err(wrong("it needs a value".into())),
                ("no_fp64" | "no_fp16" | "no_subgroups", Some(_)) => return Err(wrong("it takes no value".into())),
                _ => return Err(wrong("this limit is not known".into())),
            }
        }
        Ok(limits)
    }
}

impl Limits {
    /// The limits of this process, read from the environment once.
    pub fn from_env() -> &'static Limits {
        static LIMITS: OnceLock<Limits> = OnceLock::new();
        LIMITS.get_or_init(|| env::LIMITS.limits())
    }

    /// True when `extension` is hidden by these limits.
    pub(crate) fn hides(&self, extension: &str) -> bool {
        (self.no_fp64 && extension.contains("fp64"))
            || (self.no_fp16 && extension.contains("fp16"))
            || (self.no_subgroups && extension.contains("subgroup"))
    }
}

/// A positive size with an optional binary suffix: `64`, `16k`, `64M`, `2G`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1_u64),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("{text:?} is not a whole number with an optional k, M or G"))?;
    match number.checked_mul(factor) {
        Some(0) => Err("it must be positive".into()),
        Some(size) => Ok(size),
        None => Err(format!("{text:?} is too large")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read() {
        let limits: Limits = " wg=64, local=16k,alloc=2G ,params=256,no_fp64,no_fp16,no_subgroups,".parse().unwrap();
        let expected = Limits {
            work_group: Some(64),
            local: Some(16384),
            alloc: Some(2 << 30),
            parameters: Some(256),
            no_fp64: true,
            no_fp16: true,
            no_subgroups: true,
        };
        assert_eq!(limits, expected);
        assert_eq!("".parse::<Limits>().unwrap(), Limits::default());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part, why) in [
            ("wg=64,wgg=2", "wgg=2", "not known"),
            ("wg", "wg", "needs a value"),
            ("no_fp64=1", "no_fp64=1", "takes no value"),
            ("local=16q", "local=16q", "whole number"),
            ("local=é", "local=é", "whole number"),
            ("alloc=0", "alloc=0", "positive"),
            ("alloc=99999999999G", "alloc=99999999999G", "too large"),
            ("local=-1", "local=-1", "whole number"),
        ] {
            let e = text.parse::<Limits>().unwrap_err();
            assert_eq!(e.part, part);
            assert!(e.to_string().contains(why), "{e}");
        }
    }

    #[test]
    fn extensions_are_hidden_by_kind() {
        let limits: Limits = "no_subgroups,no_fp16".parse().unwrap();
        assert!(limits.hides("cl_khr_fp16") && limits.hides("cl_intel_subgroups"));
        assert!(!limits.hides("cl_khr_fp64"));
    }
}

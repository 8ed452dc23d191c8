//! Whether hand-written AVX-512 may run.

use std::sync::OnceLock;

use netcl_core::backend::cpu::simd::{Level, level};

/// Whether the processor has AVX-512, unless the environment asks for less (`NETCL_SIMD=avx2`, `NETCL_SIMD=baseline`).
pub(crate) fn available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let asked = std::env::var("NETCL_SIMD").unwrap_or_default();
        level() == Level::Avx2 && asked.trim() != "avx2" && is_x86_feature_detected!("avx512f")
    })
}

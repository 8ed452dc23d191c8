//! What probing found out about a device: [`probe`](super::probe) makes them.

use std::sync::OnceLock;

/// The known facts of one device.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) fp16_storage: OnceLock<u64>,
    pub(super) fp16_arithmetic: OnceLock<u64>,
    pub(super) subgroups: OnceLock<u64>,
    pub(super) static_local: OnceLock<u64>,
    pub(super) mma: OnceLock<u64>,
    pub(super) wgmma: OnceLock<u64>,
    pub(super) tensor_copies: OnceLock<u64>,
}

//! Pools, leases and statistics.

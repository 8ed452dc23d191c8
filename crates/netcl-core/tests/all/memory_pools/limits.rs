//! Bucket tables, limits, and the variable that sets them.

use std::process::Command;

use netcl_core::memory::{BucketTable, Limits, PersistentBufferPool, PinnedBufferPool};
use proptest::prelude::*;

use super::fake::Fake;

const GB: usize = 1 << 30;

#[test]
fn tables_rise_from_end_to_end() {
    let ends = [
        (BucketTable::PERSISTENT, 289, 1 << 10, 256 << 20),
        (BucketTable::POWERS_OF_TWO, 55, 1 << 8, 1 << 62),
        (BucketTable::PINNED, 51, 1 << 12, 1 << 62),
    ];
    for (table, len, smallest, largest) in ends {
        let sizes: Vec<usize> = table.sizes().collect();
        assert_eq!((table.len(), sizes.len(), sizes[0], sizes[len - 1]), (len, len, smallest, largest));
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]));
        for (bucket, &size) in sizes.iter().enumerate() {
            assert_eq!(table.size(bucket), Some(size));
            assert_eq!(table.block_size(size), size, "a block serves its own size");
            assert_eq!(Some(table.block_size(size + 1)), table.size(bucket + 1).or(Some(size + 1)));
        }
        assert_eq!((table.size(len), table.block_size(1), table.block_size(usize::MAX)), (None, smallest, usize::MAX));
    }
    assert!(BucketTable::PERSISTENT.sizes().all(|size| size % 64 == 0), "blocks are whole cache lines");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_block_holds_its_request_and_little_more(bytes in (0u32..40).prop_flat_map(|e| 1usize << e..2 << e)) {
        let fine = BucketTable::PERSISTENT.block_size(bytes);
        prop_assert!(fine >= bytes);
        if bytes >= 1024 {
            prop_assert!((fine - bytes) * 16 < bytes, "{bytes} bytes get {fine}");
        }
        prop_assert_eq!(fine == bytes, bytes > 256 << 20 || BucketTable::PERSISTENT.sizes().any(|size| size == bytes));
        prop_assert_eq!(BucketTable::POWERS_OF_TWO.block_size(bytes), bytes.next_power_of_two().max(256));
        prop_assert_eq!(BucketTable::PINNED.block_size(bytes), bytes.next_power_of_two().max(4096));
    }
}

/// Runs itself once per value of the variable, since a process cannot safely change its own.
#[test]
fn the_default_pool_obeys_the_variable() {
    const EXPECTED: &str = "NETCL_TEST_EXPECTED_CAP";
    if let Ok(expected) = std::env::var(EXPECTED) {
        assert_eq!(PersistentBufferPool::new(Fake::new()).limits().max_cached_bytes.to_string(), expected);
        return;
    }
    let (four, no_limit) = ("4294967296", usize::MAX.to_string());
    let cases = [
        (Some("0.25"), "268435456"),
        (Some(" 2 "), "2147483648"),
        (Some("0"), "0"),
        (Some("inf"), &no_limit),
        (Some("much"), four),
        (Some("-1"), four),
        (Some(""), four),
        (None, four),
    ];
    for (value, expected) in cases {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "memory_pools::limits::the_default_pool_obeys_the_variable"]).env(EXPECTED, expected);
        match value {
            Some(value) => child.env("NETCL_MAX_CACHED_GB", value),
            None => child.env_remove("NETCL_MAX_CACHED_GB"),
        };
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{value:?}: {text}");
    }
}

#[test]
fn the_oldest_block_goes_first_but_blocks_above_the_table_before_it() {
    let device = Fake::new();
    let pool = PersistentBufferPool::with_limits(device.clone(), Limits::bytes(GB));
    let sizes = [64 << 20, 300 << 20, 128 << 20, 400 << 20];
    let handles = sizes.map(|size| pool.allocate(size).unwrap());
    handles.into_iter().for_each(drop);
    let cached = |pool: &PersistentBufferPool<Fake>| {
        let (_, buckets) = pool.snapshot();
        buckets.iter().map(|bucket| bucket.size >> 20).collect::<Vec<_>>()
    };
    assert_eq!(cached(&pool), [64, 128, 300, 400]);
    drop(pool.allocate(256 << 20).unwrap());
    assert_eq!(cached(&pool), [64, 128, 256, 300], "1148 MB are too much: the largest goes");
    pool.trim(384 << 20);
    assert_eq!(cached(&pool), [128, 256], "then the other one above the table, then the one released first");
    drop(pool.allocate(2 * GB).unwrap());
    assert_eq!(cached(&pool), [128, 256], "a block that can never fit evicts nobody");
    let stats = pool.get_stats();
    assert_eq!((stats.hits, stats.misses, stats.hit_rate), (0, 6, 0.0));
    assert_eq!((stats.bytes_allocated, stats.bytes_cached, stats.buckets.len()), (384 << 20, 384 << 20, 2));
    assert_eq!(pool.stats().evictions, 4);
}

#[test]
fn a_pool_that_keeps_nothing_has_blocks_of_the_size_asked_for() {
    let pool = PersistentBufferPool::with_limits(Fake::new(), Limits::bytes(0));
    assert_eq!((pool.block_size(1), pool.block_size(3001)), (1, 3001));
    drop(pool.allocate(7).unwrap());
    drop(pool.allocate(7).unwrap());
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.bytes_cached, stats.bytes_in_use), (0, 2, 0, 0));
}

#[test]
fn the_pinned_pool_is_bounded() {
    let device = Fake::new();
    let pool = PinnedBufferPool::new(device.clone());
    let handles: Vec<_> = (0..40).map(|_| pool.allocate(1).unwrap()).collect();
    drop(handles);
    assert_eq!((pool.stats().bytes_cached, pool.stats().evictions), (32 * 4096, 8));
    let handles: Vec<_> = (0..3).map(|_| pool.allocate(256 << 20).unwrap()).collect();
    drop(handles);
    assert!(pool.stats().bytes_cached <= 512 << 20);
}

//! Random sequences of calls, each step compared with a model that is too simple to be wrong.

use std::collections::BTreeMap;

use netcl_core::ErrorKind;
use netcl_core::memory::{
    BufferHandle, BufferPool, Limits, PersistentBufferPool, PinnedBufferPool, Pool, PoolStats, QueueId,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::fake::{Fake, HandOver};

const QUEUES: u64 = 4; // includes QueueId(0), which nobody should use and which must work all the same

#[derive(Clone, Copy, Debug)]
enum Kind {
    Simple,
    Pinned,
    Persistent,
}

impl Kind {
    fn sizes(self) -> Vec<usize> {
        match self {
            Kind::Simple => (8..=40).map(|e| 1 << e).collect(),
            Kind::Pinned => (12..=40).map(|e| 1 << e).collect(),
            Kind::Persistent => (10..28).flat_map(|e| (16..32).map(move |m| m << (e - 4))).chain([256 << 20]).collect(),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { bytes: usize, queue: Option<u64>, label: bool },
    Release(usize),
    Drop(usize),
    Persistent(usize, bool),
    Use(usize, u64),
    Trim(usize),
    Clear,
    Refuse { blocks: usize, hand_overs: usize },
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    kind: Kind,
    limits: Limits,
    largest: usize,
}

#[derive(Clone)]
struct ModelBlock {
    id: u64,
    size: usize,
    users: Vec<QueueId>,
}

struct ModelLease {
    block: ModelBlock,
    now: Vec<QueueId>,
    persistent: bool,
    pooled: bool,
}

/// What should happen.
struct Model {
    setup: Setup,
    sizes: Vec<usize>,
    /// In the order of their release.
    cached: Vec<ModelBlock>,
    leases: BTreeMap<usize, ModelLease>,
    stats: PoolStats,
    blocks: u64,
    refuse_blocks: usize,
    refuse_hand_overs: usize,
    hand_overs: Vec<HandOver>,
    attempts: Vec<usize>,
}

impl Model {
    fn new(setup: Setup) -> Self {
        Model {
            setup,
            sizes: setup.kind.sizes(),
            cached: Vec::new(),
            leases: BTreeMap::new(),
            stats: PoolStats::default(),
            blocks: 0,
            refuse_blocks: 0,
            refuse_hand_overs: 0,
            hand_overs: Vec::new(),
            attempts: Vec::new(),
        }
    }

    fn block_size(&self, bytes: usize) -> usize {
        if self.setup.limits.max_cached_bytes == 0 {
            return bytes;
        }
        let bucket = self.sizes.iter().copied().find(|&size| size >= bytes).unwrap_or(bytes);
        bucket.min(self.setup.largest)
    }

    fn is_exact(&self, size: usize) -> bool {
        self.sizes.last().is_some_and(|&last| size > last)
    }

    fn cached_bytes(&self) -> usize {
        self.cached.iter().map(|block| block.size).sum()
    }

    fn ask_source(&mut self, size: usize) -> bool {
        self.attempts.push(size);
        let refused = self.refuse_blocks > 0;
        self.refuse_blocks = self.refuse_blocks.saturating_sub(1);
        !refused
    }

    fn evict(&mut self, at: usize) {
        self.cached.remove(at);
        self.stats.evictions += 1;
    }

    fn trim(&mut self, keep: usize) {
        while self.cached_bytes() > keep {
            let mut at = 0;
            for (other, block) in self.cached.iter().enumerate() {
                let (best, exact) = (&self.cached[at], self.is_exact(block.size));
                if exact && (!self.is_exact(best.size) || block.size > best.size) {
                    at = other;
                }
            }
            self.evict(at);
        }
    }

    /// Whether a lease is given.
    fn allocate(&mut self, key: usize, bytes: usize) -> bool {
        if bytes == 0 || bytes > self.setup.largest {
            return false;
        }
        let mut size = self.block_size(bytes);
        let mut pooled = true;
        let block = if let Some(at) = self.cached.iter().rposition(|block| block.size == size) {
            self.stats.hits += 1;
            self.cached.remove(at)
        } else {
            let mut given = self.ask_source(size);
            if !given && !self.cached.is_empty() {
                self.trim(0);
                given = self.ask_source(size);
            }
            if !given {
                given = self.ask_source(size);
            }
            if !given && size != bytes {
                (size, pooled) = (bytes, false);
                given = self.ask_source(size);
            }
            if !given {
                return false;
            }
            self.stats.misses += 1;
            self.blocks += 1;
            ModelBlock { id: self.blocks, size, users: Vec::new() }
        };
        self.leases.insert(key, ModelLease { block, now: Vec::new(), persistent: false, pooled });
        true
    }

    /// Whether the queue may use the block.
    fn note_use(&mut self, key: usize, queue: QueueId) -> bool {
        let Some(lease) = self.leases.get_mut(&key) else { return false };
        if lease.now.contains(&queue) {
            return true;
        }
        for &from in lease.block.users.iter().filter(|&&from| from != queue) {
            if self.refuse_hand_overs > 0 {
                self.refuse_hand_overs -= 1;
                return false;
            }
            self.hand_overs.push(HandOver { block: lease.block.id, from, to: queue });
        }
        lease.now.push(queue);
        true
    }

    fn release(&mut self, key: usize) {
        let Some(mut lease) = self.leases.remove(&key) else { return };
        self.stats.releases += 1;
        if lease.persistent || !lease.pooled {
            return;
        }
        if !lease.now.is_empty() {
            lease.block.users = lease.now;
        }
        let size = lease.block.size;
        let limits = self.setup.limits;
        if size > limits.max_cached_bytes {
            self.stats.evictions += 1;
            return;
        }
        self.cached.push(lease.block);
        let same: Vec<usize> = (0..self.cached.len()).filter(|&at| self.cached[at].size == size).collect();
        if same.len() > limits.max_blocks_per_bucket && !self.is_exact(size) {
            self.evict(same[0]);
        }
        self.trim(limits.max_cached_bytes);
    }

    fn live(&self) -> BTreeMap<u64, usize> {
        let leased = self.leases.values().map(|lease| &lease.block);
        leased.chain(&self.cached).map(|block| (block.id, block.size)).collect()
    }

    fn stats(&mut self) -> PoolStats {
        let stats = &mut self.stats;
        stats.bytes_in_use = self.leases.values().map(|lease| lease.block.size).sum();
        stats.bytes_cached = self.cached.iter().map(|block| block.size).sum();
        stats.bytes_allocated = stats.bytes_in_use + stats.bytes_cached;
        stats.peak_bytes_in_use = stats.peak_bytes_in_use.max(stats.bytes_in_use);
        stats.peak_bytes_allocated = stats.peak_bytes_allocated.max(stats.bytes_allocated);
        *stats
    }
}

fn allocate(
    pool: &Pool<Fake>,
    model: &mut Model,
    key: usize,
    bytes: usize,
    label: bool,
) -> Result<Option<BufferHandle<Fake>>, TestCaseError> {
    let got = if label { pool.allocate_labelled(bytes, "named") } else { pool.allocate(bytes) };
    let expected = model.allocate(key, bytes);
    prop_assert_eq!(got.is_ok(), expected, "{} bytes: {:?}", bytes, got);
    match got {
        Ok(handle) => {
            let lease = &model.leases[&key].block;
            let block = handle.block().unwrap();
            block.begin();
            prop_assert_eq!((block.id, handle.size(), handle.nbytes()), (lease.id, lease.size, bytes));
            prop_assert_eq!(handle.label(), if label { "named" } else { "buffer" });
            prop_assert!(handle.pool() == *pool && !handle.is_released() && !handle.is_persistent());
            Ok(Some(handle))
        }
        Err(error) => {
            prop_assert_eq!(error.kind(), if bytes == 0 { ErrorKind::Value } else { ErrorKind::Memory });
            Ok(None)
        }
    }
}

fn note_use(model: &mut Model, key: usize, handle: &BufferHandle<Fake>, queue: u64) -> Result<(), TestCaseError> {
    let queue = QueueId(queue);
    let got = handle.note_use(queue);
    prop_assert_eq!(got.is_ok(), model.note_use(key, queue), "{:?}", got);
    if got.is_ok() {
        handle.block().unwrap().touch(queue);
    }
    Ok(())
}

fn run(setup: Setup, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let device = Fake::with(usize::MAX, setup.largest);
    let pool: Pool<Fake> = match setup.kind {
        Kind::Simple => BufferPool::new(device.clone()).into(),
        Kind::Pinned => PinnedBufferPool::with_limits(device.clone(), setup.limits).into(),
        Kind::Persistent => PersistentBufferPool::with_limits(device.clone(), setup.limits).into(),
    };
    let mut model = Model::new(setup);
    let mut handles: Vec<(usize, BufferHandle<Fake>)> = Vec::new();
    for (key, step) in steps.into_iter().enumerate() {
        let pick = |at: usize| at % handles.len().max(1);
        match step {
            Step::Allocate { bytes, queue, label } => {
                if let Some(handle) = allocate(&pool, &mut model, key, bytes, label)? {
                    if let Some(queue) = queue {
                        note_use(&mut model, key, &handle, queue)?;
                    }
                    handles.push((key, handle));
                }
            }
            Step::Refuse { blocks, hand_overs } => {
                device.refuse(blocks, hand_overs);
                (model.refuse_blocks, model.refuse_hand_overs) = (blocks, hand_overs);
            }
            Step::Trim(keep) => {
                let before = model.cached_bytes();
                model.trim(keep);
                prop_assert_eq!(pool.trim(keep), before - model.cached_bytes());
            }
            Step::Clear => {
                let before = model.cached_bytes();
                model.trim(0);
                prop_assert_eq!(pool.clear(), before);
            }
            // The other steps need a handle.
            _ if handles.is_empty() => {}
            Step::Release(at) => {
                let at = pick(at);
                let (key, handle) = &mut handles[at];
                // A handle that was released already stays in the list, so this is also the double release.
                if let Ok(block) = handle.block() {
                    block.end();
                }
                handle.release();
                model.release(*key);
                prop_assert!(handle.is_released());
                prop_assert!(handle.block().is_err_and(|error| error.kind() == ErrorKind::Runtime));
            }
            Step::Drop(at) => {
                let (key, handle) = handles.swap_remove(pick(at));
                if let Ok(block) = handle.block() {
                    block.end();
                }
                drop(handle);
                model.release(key);
            }
            Step::Persistent(at, on) => {
                let (key, handle) = &handles[pick(at)];
                handle.set_persistent(on);
                prop_assert_eq!(handle.is_persistent(), on);
                if let Some(lease) = model.leases.get_mut(key) {
                    lease.persistent = on;
                }
            }
            Step::Use(at, queue) => {
                let (key, handle) = &handles[pick(at)];
                note_use(&mut model, *key, handle, queue)?;
            }
        }
        prop_assert_eq!(pool.stats(), model.stats());
        prop_assert_eq!(device.live(), model.live());
        prop_assert_eq!(device.take_attempts(), std::mem::take(&mut model.attempts));
        prop_assert_eq!(device.take_hand_overs(), std::mem::take(&mut model.hand_overs));
        prop_assert!(model.stats.bytes_cached <= setup.limits.max_cached_bytes);
        let (_, buckets) = pool.snapshot();
        let mut cached: BTreeMap<usize, usize> = BTreeMap::new();
        model.cached.iter().for_each(|block| *cached.entry(block.size).or_default() += 1);
        let occupied: Vec<(usize, usize)> = buckets.iter().map(|bucket| (bucket.size, bucket.blocks)).collect();
        prop_assert_eq!(occupied, cached.into_iter().collect::<Vec<_>>());
    }
    // Handles outlive the pool; the last one takes the cache with it.
    drop(pool);
    for (key, handle) in handles {
        if let Ok(block) = handle.block() {
            block.end();
            prop_assert!(device.live().contains_key(&model.leases[&key].block.id));
        }
        drop(handle);
    }
    prop_assert_eq!(device.live(), BTreeMap::new());
    Ok(())
}

fn setup() -> impl Strategy<Value = Setup> {
    let kind = prop_oneof![Just(Kind::Simple), Just(Kind::Pinned), Just(Kind::Persistent), Just(Kind::Persistent)];
    let limits = (prop_oneof![Just(usize::MAX), Just(0), 1usize << 10..1 << 13, 1usize << 20..2 << 30], 1usize..5);
    let largest = prop_oneof![4 => Just(usize::MAX), 1 => 3000usize..5000, 1 => Just(300 << 20)];
    (kind, limits, largest).prop_map(|(kind, (max_cached_bytes, max_blocks_per_bucket), largest)| {
        let limits = match kind {
            Kind::Simple => Limits::NONE,
            Kind::Pinned | Kind::Persistent => Limits { max_cached_bytes, max_blocks_per_bucket },
        };
        Setup { kind, limits, largest }
    })
}

fn step() -> impl Strategy<Value = Step> {
    // Few distinct sizes, so that there are hits; around bucket edges, and above the table.
    let bytes = prop_oneof![
        1 => Just(0usize),
        12 => prop::sample::select(vec![1, 1000, 1024, 1025, 1089, 2047, 2048, 4096, 4097, 5000, 1 << 20, 256 << 20]),
        4 => prop::sample::select(vec![(256 << 20) + 1, 300 << 20, 400 << 20, 1 << 30]),
        2 => 1usize..10_000,
    ];
    let allocate = (bytes, prop::option::of(0..QUEUES), any::<bool>());
    prop_oneof![
        10 => allocate.prop_map(|(bytes, queue, label)| Step::Allocate { bytes, queue, label }),
        6 => any::<usize>().prop_map(Step::Release),
        6 => any::<usize>().prop_map(Step::Drop),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(at, on)| Step::Persistent(at, on)),
        6 => (any::<usize>(), 0..QUEUES).prop_map(|(at, queue)| Step::Use(at, queue)),
        1 => (0usize..1 << 20).prop_map(Step::Trim),
        1 => Just(Step::Clear),
        2 => (0usize..5, 0usize..3).prop_map(|(blocks, hand_overs)| Step::Refuse { blocks, hand_overs }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_step_does_what_the_model_does(setup in setup(), steps in vec(step(), 1..150)) {
        run(setup, steps)?;
    }
}

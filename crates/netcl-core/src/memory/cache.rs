//! The free lists: blocks that wait for reuse.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::bucket::{BucketTable, Class, Limits};
use super::queues::QueueSet;
use super::stats::BucketStats;

/// A block that waits for reuse.
pub(super) struct Cached<B> {
    pub(super) block: B,
    pub(super) size: usize,
    /// Whom the next user has to wait for.
    pub(super) users: QueueSet,
    /// When it was released, in releases.
    stamp: u64,
}

/// Blocks that left the cache, to be dropped after the lock is; hardly ever more than one at a time.
pub(super) type Evicted<B> = SmallVec<[Cached<B>; 2]>;

/// The free lists of a pool. Each bucket is a stack (the block released last is the warmest) whose bottom is its oldest.
pub(super) struct Cache<B> {
    buckets: Box<[VecDeque<Cached<B>>]>,
    /// Blocks above the table: few, since each is large.
    exact: Vec<Cached<B>>,
    bytes: usize,
    clock: u64,
}

impl<B> Cache<B> {
    pub(super) fn new(table: &BucketTable) -> Self {
        Cache { buckets: (0..table.len()).map(|_| VecDeque::new()).collect(), exact: Vec::new(), bytes: 0, clock: 0 }
    }

    /// Takes the block of this class and size that was released last.
    #[inline]
    pub(super) fn take(&mut self, class: Class, size: usize) -> Option<Cached<B>> {
        let cached = match class {
            Class::Bucket(bucket) => self.buckets[bucket as usize].pop_back(),
            Class::Exact => {
                let at = self.exact.iter().rposition(|cached| cached.size == size)?;
                Some(self.exact.remove(at))
            }
            Class::Unpooled => None,
        }?;
        self.bytes -= cached.size;
        Some(cached)
    }

    /// Adds a block, then removes what is too much. Blocks of class [`Class::Unpooled`] do not get here.
    #[inline]
    pub(super) fn put(&mut self, class: Class, block: B, size: usize, users: QueueSet, limits: &Limits) -> Evicted<B> {
        self.clock += 1;
        let cached = Cached { block, size, users, stamp: self.clock };
        let mut evicted = Evicted::new();
        if size > limits.max_cached_bytes {
            // It can never fit: making room for it would empty the cache for nothing.
            evicted.push(cached);
            return evicted;
        }
        self.bytes += size;
        match class {
            Class::Bucket(bucket) => {
                let list = &mut self.buckets[bucket as usize];
                list.push_back(cached);
                if list.len() > limits.max_blocks_per_bucket {
                    evicted.extend(list.pop_front().inspect(|oldest| self.bytes -= oldest.size));
                }
            }
            Class::Exact | Class::Unpooled => self.exact.push(cached),
        }
        if self.bytes > limits.max_cached_bytes {
            self.shrink(limits.max_cached_bytes, &mut evicted);
        }
        evicted
    }

    /// Removes blocks until at most `keep` bytes are left.
    #[cold]
    pub(super) fn shrink(&mut self, keep: usize, evicted: &mut Evicted<B>) {
        while self.bytes > keep {
            let Some(next) = self.evict() else { break };
            evicted.push(next);
        }
    }

    /// Removes the block that is missed least: the largest above the table, else the one released longest ago.
    fn evict(&mut self) -> Option<Cached<B>> {
        // `max_by_key` answers with the last of equals; reversed, that is the one released first.
        let largest = self.exact.iter().enumerate().rev().max_by_key(|(_, cached)| cached.size);
        let evicted = if let Some((at, _)) = largest {
            self.exact.remove(at)
        } else {
            let oldest = self.buckets.iter_mut().filter(|list| !list.is_empty());
            oldest.min_by_key(|list| list.front().map(|cached| cached.stamp))?.pop_front()?
        };
        self.bytes -= evicted.size;
        Some(evicted)
    }

    /// What is cached, by size, smallest first.
    pub(super) fn occupied(&self) -> Vec<BucketStats> {
        let mut sizes: Vec<BucketStats> = Vec::new();
        let mut exact: Vec<usize> = self.exact.iter().map(|cached| cached.size).collect();
        exact.sort_unstable();
        let buckets = self.buckets.iter().filter_map(|list| list.front().map(|cached| (cached.size, list.len())));
        for (size, blocks) in buckets.chain(exact.into_iter().map(|size| (size, 1))) {
            match sizes.last_mut() {
                Some(last) if last.size == size => last.blocks += blocks,
                _ => sizes.push(BucketStats { size, blocks }),
            }
        }
        sizes
    }
}

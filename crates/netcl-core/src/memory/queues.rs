//! On which queues a block was used, by this lease and by the one before.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::QueueId;
use super::lock::ProcessMutex;
use crate::error::Result;

/// Queues without repetition; nearly always one (compute) or two (compute and copy).
pub(super) type QueueSet = SmallVec<[QueueId; 2]>;

struct Sets {
    /// Who used the block under earlier leases.
    before: QueueSet,
    /// Who uses it under this lease; each has waited for all of `before`.
    now: QueueSet,
}

/// The queues of one lease.
pub(super) struct Uses {
    /// The queue noted last, so that the common case is one load; 0 for none.
    latest: AtomicU64,
    sets: ProcessMutex<Sets>,
}

impl Uses {
    #[inline]
    pub(super) fn new(owner: u32, before: QueueSet) -> Self {
        let sets = Sets { before, now: QueueSet::new() };
        Uses { latest: AtomicU64::new(0), sets: ProcessMutex::owned_by(owner, sets) }
    }

    /// Notes a use. The first use by a queue calls `hand_over` for every other queue of earlier leases.
    #[inline]
    pub(super) fn note(&self, queue: QueueId, hand_over: impl FnMut(QueueId) -> Result<()>) -> Result<()> {
        // `QueueId(0)` can be written by hand; it takes the slow path every time instead of being mistaken for none.
        if queue.0 != 0 && self.latest.load(Ordering::Acquire) == queue.0 {
            return Ok(());
        }
        self.note_slow(queue, hand_over)
    }

    fn note_slow(&self, queue: QueueId, mut hand_over: impl FnMut(QueueId) -> Result<()>) -> Result<()> {
        let mut sets = self.sets.lock().map_err(|forked| forked.error("note_use"))?;
        if !sets.now.contains(&queue) {
            // Under the lock, so that another thread with the same queue does not run ahead of the wait.
            for &from in sets.before.iter().filter(|&&from| from != queue) {
                hand_over(from)?;
            }
            sets.now.push(queue);
        }
        self.latest.store(queue.0, Ordering::Release);
        Ok(())
    }

    /// Whom the next lease has to wait for. The users of this lease waited for the earlier ones, so they are enough.
    #[inline]
    pub(super) fn finish(&mut self) -> QueueSet {
        let sets = self.sets.get_mut();
        std::mem::take(if sets.now.is_empty() { &mut sets.before } else { &mut sets.now })
    }
}

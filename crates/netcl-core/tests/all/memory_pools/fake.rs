//! A device that only keeps books: which blocks are alive, who waited for whom, and failures on request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use netcl_core::memory::{BlockSource, QueueId};
use netcl_core::{Error, Result};

/// One call of `hand_over`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandOver {
    pub(crate) block: u64,
    pub(crate) from: QueueId,
    pub(crate) to: QueueId,
}

#[derive(Default)]
struct Books {
    next_block: u64,
    live: BTreeMap<u64, usize>,
    attempts: Vec<usize>,
    hand_overs: Vec<HandOver>,
    refuse_blocks: usize,
    refuse_hand_overs: usize,
    /// Bytes of dropped blocks that commands still use, on a device that has such.
    lingering: usize,
}

struct Device {
    name: String,
    largest: usize,
    capacity: usize,
    lingers: bool,
    books: Mutex<Books>,
}

/// The fake device; clones share it.
#[derive(Clone)]
pub(crate) struct Fake(Arc<Device>);

impl Fake {
    /// A device of its own name with room for everything.
    pub(crate) fn new() -> Self {
        Fake::with(usize::MAX, usize::MAX)
    }

    /// A device of its own name with `capacity` bytes, in blocks of at most `largest`.
    pub(crate) fn with(capacity: usize, largest: usize) -> Self {
        Fake::build(capacity, largest, false)
    }

    /// A device of `capacity` bytes on which dropped blocks take up room until `settle`.
    pub(crate) fn lingering(capacity: usize) -> Self {
        Fake::build(capacity, usize::MAX, true)
    }

    fn build(capacity: usize, largest: usize, lingers: bool) -> Self {
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        let name = format!("fake {}", DEVICES.fetch_add(1, Ordering::Relaxed));
        Fake(Arc::new(Device { name, largest, capacity, lingers, books: Mutex::default() }))
    }

    fn books<T>(&self, read: impl FnOnce(&mut Books) -> T) -> T {
        read(&mut self.0.books.lock().unwrap())
    }

    /// The blocks that were allocated and not dropped.
    pub(crate) fn live(&self) -> BTreeMap<u64, usize> {
        self.books(|books| books.live.clone())
    }

    /// The sizes asked for since the last call.
    pub(crate) fn take_attempts(&self) -> Vec<usize> {
        self.books(|books| std::mem::take(&mut books.attempts))
    }

    /// The waits asked for since the last call.
    pub(crate) fn take_hand_overs(&self) -> Vec<HandOver> {
        self.books(|books| std::mem::take(&mut books.hand_overs))
    }

    /// Makes the next `blocks` allocations and `hand_overs` waits fail.
    pub(crate) fn refuse(&self, blocks: usize, hand_overs: usize) {
        self.books(|books| (books.refuse_blocks, books.refuse_hand_overs) = (blocks, hand_overs));
    }
}

impl BlockSource for Fake {
    type Block = FakeBlock;

    fn allocate(&self, bytes: usize) -> Result<FakeBlock> {
        self.books(|books| {
            books.attempts.push(bytes);
            let used = books.live.values().sum::<usize>() + books.lingering;
            if books.refuse_blocks > 0 || bytes > self.0.capacity - used {
                books.refuse_blocks = books.refuse_blocks.saturating_sub(1);
                return Err(Error::OutOfMemory { device: self.device(), bytes, holders: "driver code -4".into() });
            }
            books.next_block += 1;
            books.live.insert(books.next_block, bytes);
            Ok(FakeBlock {
                id: books.next_block,
                device: self.clone(),
                leases: AtomicUsize::new(0),
                uses: Mutex::default(),
            })
        })
    }

    fn device(&self) -> String {
        self.0.name.clone()
    }

    fn largest(&self) -> usize {
        self.0.largest
    }

    fn settle(&self) {
        self.books(|books| books.lingering = 0);
    }

    fn hand_over(&self, block: &FakeBlock, from: QueueId, to: QueueId) -> Result<()> {
        block.uses.lock().unwrap().waits.push((from, to));
        self.books(|books| {
            if books.refuse_hand_overs > 0 {
                books.refuse_hand_overs -= 1;
                return Err(Error::argument("hand_over", "refused"));
            }
            books.hand_overs.push(HandOver { block: block.id, from, to });
            Ok(())
        })
    }
}

#[derive(Default)]
struct BlockUses {
    before: Vec<QueueId>,
    now: Vec<QueueId>,
    waits: Vec<(QueueId, QueueId)>,
}

/// A block that checks its own use.
pub(crate) struct FakeBlock {
    pub(crate) id: u64,
    device: Fake,
    leases: AtomicUsize,
    uses: Mutex<BlockUses>,
}

impl FakeBlock {
    /// A lease begins: there must be no other.
    pub(crate) fn begin(&self) {
        assert_eq!(self.leases.fetch_add(1, Ordering::SeqCst), 0, "block {} is leased twice", self.id);
        let mut uses = self.uses.lock().unwrap();
        if !uses.now.is_empty() {
            uses.before = std::mem::take(&mut uses.now);
        }
        uses.waits.clear();
    }

    /// A command runs on `queue`: it must have waited for every queue of earlier leases.
    pub(crate) fn touch(&self, queue: QueueId) {
        let mut uses = self.uses.lock().unwrap();
        for &from in uses.before.iter().filter(|&&from| from != queue) {
            assert!(uses.waits.contains(&(from, queue)), "{queue:?} did not wait for {from:?}");
        }
        if !uses.now.contains(&queue) {
            uses.now.push(queue);
        }
    }

    /// The lease ends.
    pub(crate) fn end(&self) {
        assert_eq!(self.leases.fetch_sub(1, Ordering::SeqCst), 1);
    }
}

impl Drop for FakeBlock {
    fn drop(&mut self) {
        assert_eq!(self.leases.load(Ordering::SeqCst), 0, "block {} was freed while leased", self.id);
        let known = self.device.books(|books| books.live.remove(&self.id));
        let Some(bytes) = known else { panic!("block {} was freed twice", self.id) };
        if self.device.0.lingers {
            self.device.books(|books| books.lingering += bytes);
        }
    }
}

//! Batches from process to process through a ring of slots in shared memory: arrays are copied once, into the slot, and never pickled.
//!
//! The memory is a memfd: it has no name in `/dev/shm` and goes when the last process that has it open ends, however it ends. Its
//! length is sealed, so no process can take pages away under another one. Pages are used when they are first written: slots much
//! larger than most batches cost address space, not memory.
//!
//! The state of a slot is one atomic word that also names the slot's owner, by process number and start time: a process that dies
//! leaves no slot without an owner, and the next writer that waits takes the slots of dead owners back.
//!
//! A slot holds a header, which is JSON, and at the next multiple of 64 bytes the body, which is the arrays. In the header a list is
//! `[...]`, a text, a number, a truth value and nothing are themselves, and the rest are objects of one field: `{"tuple": [...]}`,
//! `{"dict": [[key, value], ...]}`, `{"array": [dtype, shape, start]}` with NumPy's name of the dtype and the first byte in the body;
//! from Python also `{"number": ...}` (a NumPy number, as an array), `{"bytes": [length, start]}` and `{"named": [class, [...]]}`.
//! Whatever a header says, only bytes of its own slot are read.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::thread::futex;
use serde_json::{Value, json};

use crate::array::{Array, DType, count};
use crate::error::{Error, Result, argument};
use crate::sample::Sample;

/// Where arrays start: at cache lines.
const ALIGN: usize = 64;
const PAGE: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"netclrg1");
const MOST_SLOTS: usize = 65_536;
/// What the addresses of a process have room for.
const MOST_BYTES: usize = 1 << 46;
/// A writer that waits looks for dead owners this often.
const PATROL: Duration = Duration::from_millis(100);

/// The start of the memory.
#[repr(C)]
struct Head {
    magic: AtomicU64,
    slots: AtomicU64,
    slot_bytes: AtomicU64,
    /// Number of the next batch.
    next: AtomicU64,
    /// Raised and rung (a futex) when a batch is published, and when a slot becomes free.
    published: AtomicU32,
    freed: AtomicU32,
}

/// What a slot's owner and its next user read; one cache line each, after the head.
#[repr(C, align(64))]
struct Control {
    /// [`State`], and with it the owner or the batch's number: see [`word`].
    word: AtomicU64,
    header: AtomicU64,
    body: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Writing,
    Ready,
    Reading,
}

/// A state in two bits, and its owner or number in the other 62.
fn word(state: State, rest: u64) -> u64 {
    state as u64 | rest << 2
}

fn state(word: u64) -> State {
    [State::Free, State::Writing, State::Ready, State::Reading][(word & 3) as usize]
}

/// How many slots are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// To be claimed.
    pub free: usize,
    /// Claimed by a writer.
    pub writing: usize,
    /// With a batch that nobody has taken yet.
    pub ready: usize,
    /// With a batch that a reader holds.
    pub reading: usize,
}

/// A ring of slots in memory that processes share: each slot holds one batch at a time.
///
/// ```
/// use std::time::Duration;
/// use netcl_data::shared_batch::SharedBatchRing;
/// use netcl_data::{Array, Sample};
///
/// let ring = SharedBatchRing::new(4, 1 << 20)?;
/// // Another process would do this, with the path that it was told.
/// let same = SharedBatchRing::open(ring.path())?;
/// same.put(&Sample::list([Array::line(vec![1f32, 2.0]).into(), "two numbers".into()]), Duration::ZERO)?;
/// let batch = ring.get(Duration::from_secs(1))?.unwrap();
/// assert_eq!(batch.get(0).and_then(Sample::array).unwrap().slice(), Some(&[1f32, 2.0][..]));
/// assert!(ring.get(Duration::ZERO)?.is_none());
/// # Ok::<(), netcl_data::Error>(())
/// ```
///
/// Any number of processes and threads may write and read; batches are taken in the order in which they were published, each by one
/// reader.
#[derive(Clone)]
pub struct SharedBatchRing {
    shared: Arc<Shared>,
}

struct Shared {
    map: MmapRaw,
    file: File,
    slots: usize,
    slot_bytes: usize,
    /// How much of each slot is known to have memory.
    reserved: Vec<AtomicU64>,
}

impl std::fmt::Debug for SharedBatchRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedBatchRing({} slots of {} bytes)", self.shared.slots, self.shared.slot_bytes)
    }
}

/// Where the first slot's memory begins, and how long all of it is; none where that is too much.
fn extent(slots: usize, slot_bytes: usize) -> Option<(usize, usize)> {
    let start = (ALIGN + slots.checked_mul(size_of::<Control>())?).next_multiple_of(PAGE);
    let length = slots.checked_mul(slot_bytes)?.checked_add(start)?;
    (length <= MOST_BYTES).then_some((start, length))
}

fn failed(what: &str, reason: impl Into<std::io::Error>) -> Error {
    Error::Read { path: PathBuf::from(what), reason: reason.into() }
}

impl SharedBatchRing {
    /// A new ring. Slots are rounded up to whole pages.
    ///
    /// # Errors
    /// If there are no slots, too many, or they are too large; or the system has no memory to share.
    pub fn new(slots: usize, slot_bytes: usize) -> Result<SharedBatchRing> {
        if slots == 0 || slots > MOST_SLOTS || slot_bytes == 0 {
            return argument(format!(
                "SharedBatchRing: {slots} slots of {slot_bytes} bytes; there must be 1 to {MOST_SLOTS}, with at least one byte"
            ));
        }
        let rounded = slot_bytes.checked_next_multiple_of(PAGE);
        let Some((slot_bytes, (_, length))) = rounded.and_then(|bytes| Some((bytes, extent(slots, bytes)?))) else {
            return argument(format!(
                "SharedBatchRing: {slots} slots of {slot_bytes} bytes are more than {MOST_BYTES} bytes together; use fewer or \
                 smaller ones"
            ));
        };
        let file = rustix::fs::memfd_create("netcl-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|reason| failed("shared memory (memfd_create)", reason))?;
        rustix::fs::ftruncate(&file, length as u64).map_err(|reason| failed("shared memory (ftruncate)", reason))?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|reason| failed("shared memory (F_ADD_SEALS)", reason))?;
        let shared = Shared::map(File::from(file), slots, slot_bytes)?;
        let head = shared.head();
        head.slots.store(slots as u64, Ordering::Relaxed);
        head.slot_bytes.store(slot_bytes as u64, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok(SharedBatchRing { shared: Arc::new(shared) })
    }

    /// A ring of another process, by its [`path`](SharedBatchRing::path); or `/proc/self/fd/N` of an inherited descriptor.
    ///
    /// # Errors
    /// If there is nothing at the path, it may not be opened, or it is no ring.
    pub fn open(path: impl AsRef<Path>) -> Result<SharedBatchRing> {
        let path = path.as_ref();
        let unreadable = |reason| Error::Read { path: path.to_owned(), reason };
        let wrong = |what: &str| Error::Malformed {
            path: path.to_owned(),
            expected: "shared batch ring",
            what: what.to_owned(),
        };
        let file = File::options().read(true).write(true).open(path).map_err(unreadable)?;
        // Before anything is mapped: a file that can become shorter would end this process by SIGBUS.
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !sealed {
            return Err(wrong("it is not memory of a fixed length"));
        }
        let length = usize::try_from(file.metadata().map_err(unreadable)?.len()).unwrap_or(0);
        if length < PAGE {
            return Err(wrong("it is too short"));
        }
        let shared = Shared::map(file, 0, 0)?;
        let head = shared.head();
        let (slots, bytes) =
            (head.slots.load(Ordering::Relaxed) as usize, head.slot_bytes.load(Ordering::Relaxed) as usize);
        // What other processes write there later is not looked at again.
        let fits = extent(slots, bytes).is_some_and(|(_, needed)| needed <= length);
        if head.magic.load(Ordering::Acquire) != MAGIC || slots == 0 || !fits || bytes % PAGE != 0 {
            return Err(wrong("its head does not describe its length"));
        }
        let reserved = (0..slots).map(|_| AtomicU64::new(0)).collect();
        Ok(SharedBatchRing { shared: Arc::new(Shared { slots, slot_bytes: bytes, reserved, ..shared }) })
    }

    /// Where another process of the same user finds the ring while this process lives and has it open.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.shared.file.as_raw_fd()))
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.shared.slots
    }

    /// The bytes of a slot, for the header and the arrays of a batch.
    pub fn slot_bytes(&self) -> usize {
        self.shared.slot_bytes
    }

    /// How many slots are in which state at this moment.
    pub fn counts(&self) -> SlotCounts {
        let mut counts = SlotCounts::default();
        for slot in 0..self.shared.slots {
            *match state(self.shared.control(slot).word.load(Ordering::Relaxed)) {
                State::Free => &mut counts.free,
                State::Writing => &mut counts.writing,
                State::Ready => &mut counts.ready,
                State::Reading => &mut counts.reading,
            } += 1;
        }
        counts
    }

    /// A free slot, or none where none became free in time. Slots whose owners died are free.
    pub fn claim(&self, timeout: Duration) -> Option<WriteSlot> {
        let shared = &self.shared;
        let claimed = word(State::Writing, owner());
        let free = || {
            (0..shared.slots).find(|&slot| {
                let word = &shared.control(slot).word;
                word.compare_exchange(0, claimed, Ordering::Acquire, Ordering::Relaxed).is_ok()
            })
        };
        let slot = wait(&shared.head().freed, timeout, free, || shared.reclaim())?;
        Some(WriteSlot { held: Held { shared: shared.clone(), slot, word: claimed } })
    }

    /// The batch that was published first, or none where there was none in time.
    pub fn take(&self, timeout: Duration) -> Option<ReadSlot> {
        let shared = &self.shared;
        let taken = word(State::Reading, owner());
        let oldest = || {
            let words = (0..shared.slots).map(|slot| (shared.control(slot).word.load(Ordering::Relaxed), slot));
            let (first, slot) = words.filter(|&(word, _)| state(word) == State::Ready).min()?;
            // Another reader may have been faster: the number in the word is another one then.
            let word = &shared.control(slot).word;
            word.compare_exchange(first, taken, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| slot)
        };
        let slot = wait(&shared.head().published, timeout, oldest, || false)?;
        Some(ReadSlot { held: Held { shared: shared.clone(), slot, word: taken } })
    }

    /// Copies a batch into a slot and publishes it; false where no slot became free in time.
    ///
    /// # Errors
    /// If it is larger than a slot, or the system has no memory for it.
    pub fn put(&self, batch: &Sample, timeout: Duration) -> Result<bool> {
        let mut arrays = Vec::new();
        let header = encode(batch, &mut arrays, &mut 0).to_string();
        let Some(mut slot) = self.claim(timeout) else { return Ok(false) };
        let parts: Vec<(usize, &[u8])> = arrays.iter().map(|(start, array)| (*start, array.bytes())).collect();
        slot.write(header.as_bytes(), &parts)?;
        slot.publish();
        Ok(true)
    }

    /// A copy of the next batch, or none where there was none in time; tuples are lists of it. [`SharedBatchRing::take`] lends the
    /// slot's own memory instead.
    ///
    /// # Errors
    /// If the slot holds no batch that a [`Sample`] can be.
    pub fn get(&self, timeout: Duration) -> Result<Option<Sample>> {
        let Some(slot) = self.take(timeout) else { return Ok(None) };
        let (header, body) = slot.read()?;
        let header = serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
        decode(&header, &body).map(Some)
    }
}

impl Shared {
    fn map(file: File, slots: usize, slot_bytes: usize) -> Result<Shared> {
        let map = MmapRaw::map_raw(&file).map_err(|reason| failed("shared memory (mmap)", reason))?;
        let reserved = (0..slots).map(|_| AtomicU64::new(0)).collect();
        Ok(Shared { map, file, slots, slot_bytes, reserved })
    }

    fn head(&self) -> &Head {
        // SAFETY: the map is at least a page long, which `new` and `open` made sure of, and page-aligned. It is only read and
        // written through atomics, which other processes may change at any time.
        unsafe { &*self.map.as_ptr().cast::<Head>() }
    }

    fn control(&self, slot: usize) -> &Control {
        assert!(slot < self.slots);
        // SAFETY: as for the head; `extent` has room for a control block of every slot before the first slot's memory.
        unsafe { &*self.map.as_ptr().add(ALIGN + slot * size_of::<Control>()).cast::<Control>() }
    }

    /// The first byte of a slot's memory, from the start of the file.
    fn start(&self, slot: usize) -> usize {
        // `new` and `open` called `extent` with the same numbers.
        let (first, _) = extent(self.slots, self.slot_bytes).unwrap_or((0, 0));
        first + slot * self.slot_bytes
    }

    /// Frees the slots whose owners are gone; whether there were any.
    fn reclaim(&self) -> bool {
        let mut any = false;
        for slot in 0..self.slots {
            let word = self.control(slot).word.load(Ordering::Relaxed);
            let owned = matches!(state(word), State::Writing | State::Reading);
            any |= owned && !is_alive(word >> 2) && self.release(slot, word);
        }
        any
    }

    /// Frees a slot that is in this state still.
    fn release(&self, slot: usize, from: u64) -> bool {
        let word = &self.control(slot).word;
        let freed = word.compare_exchange(from, 0, Ordering::Release, Ordering::Relaxed).is_ok();
        if freed {
            ring(&self.head().freed);
        }
        freed
    }
}

/// Raises a counter and wakes one that waits for it.
fn ring(bell: &AtomicU32) {
    bell.fetch_add(1, Ordering::Release);
    // It fails for wrong addresses only.
    let _ = futex::wake(bell, futex::Flags::empty(), 1);
}

/// Calls `attempt` until it finds something, each time that the bell rings. `patrol` says that another attempt may succeed although
/// nobody rang.
fn wait<T>(
    bell: &AtomicU32,
    timeout: Duration,
    mut attempt: impl FnMut() -> Option<T>,
    mut patrol: impl FnMut() -> bool,
) -> Option<T> {
    let began = Instant::now();
    loop {
        let rung = bell.load(Ordering::Acquire);
        if let Some(found) = attempt() {
            return Some(found);
        }
        let left = timeout.saturating_sub(began.elapsed());
        if left.is_zero() {
            return if patrol() { attempt() } else { None };
        }
        let left = left.min(PATROL);
        let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        if futex::wait(bell, futex::Flags::empty(), rung, Some(&pause)) == Err(Errno::TIMEDOUT) {
            patrol();
        }
    }
}

/// This process in 62 bits: its number in 22, which Linux never exceeds, and its start time in 40.
fn owner() -> u64 {
    static OWNER: AtomicU64 = AtomicU64::new(0);
    let (pid, known) = (std::process::id(), OWNER.load(Ordering::Relaxed));
    // A forked process has another number and finds its parent's word here.
    if known as u32 & 0x3F_FFFF == pid {
        return known;
    }
    let start = start_time(pid).unwrap_or(0);
    let owner = u64::from(pid) | (start << 22 & (u64::MAX >> 2));
    OWNER.store(owner, Ordering::Relaxed);
    owner
}

/// Whether the process that a word names still runs.
fn is_alive(owner: u64) -> bool {
    let (pid, start) = ((owner & 0x3F_FFFF) as u32, owner >> 22);
    match start_time(pid) {
        Ok(now) => start == 0 || now & (u64::MAX >> 24) == start,
        // Only a process that is certainly gone loses its slots.
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// When a process started, in ticks since the machine did; `NotFound` for one that has ended, also if nobody has waited for it.
fn start_time(pid: u32) -> std::io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the command's name in parentheses, which may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or("");
    // A process whose first thread has ended looks the same but for its other threads.
    if matches!(field(3), "Z" | "X") && matches!(field(20), "0" | "1") {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    field(22).parse().map_err(std::io::Error::other)
}

/// A slot that this process owns, given back when dropped.
struct Held {
    shared: Arc<Shared>,
    slot: usize,
    word: u64,
}

impl Held {
    fn control(&self) -> &Control {
        self.shared.control(self.slot)
    }

    fn memory(&self) -> *mut u8 {
        // SAFETY: `extent` has room for every slot, and `open` compared it with the length of the map.
        unsafe { self.shared.map.as_mut_ptr().add(self.shared.start(self.slot)) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A forked process has a copy of this value, but the slot is its parent's.
        if self.word >> 2 == owner() {
            self.shared.release(self.slot, self.word);
        }
    }
}

/// A slot to write a batch into; dropped before [`WriteSlot::publish`], it is free again.
pub struct WriteSlot {
    held: Held,
}

impl WriteSlot {
    /// Writes a header and parts of the body, each with its first byte in it.
    ///
    /// # Errors
    /// If they are larger than the slot, or the system has no memory for them.
    pub fn write(&mut self, header: &[u8], parts: &[(usize, &[u8])]) -> Result<()> {
        let body = parts.iter().map(|(start, bytes)| start.saturating_add(bytes.len())).max().unwrap_or(0);
        let first = header.len().next_multiple_of(ALIGN);
        let (needed, room) = (first.saturating_add(body), self.held.shared.slot_bytes);
        if needed > room {
            return argument(format!(
                "SharedBatchRing: a batch of {needed} bytes does not fit into a slot of {room}; make the ring with \
                 slot_bytes={}, or smaller batches",
                needed.next_multiple_of(PAGE)
            ));
        }
        self.reserve(needed)?;
        let memory = self.held.memory();
        for (start, bytes) in parts.iter().map(|(start, bytes)| (first + start, *bytes)).chain([(0, header)]) {
            // SAFETY: `start + bytes.len() <= needed <= slot_bytes`; the slot is ours alone until it is published, and nobody's
            // references point into shared memory, so the bytes come from elsewhere or are only copied wrongly.
            unsafe { std::ptr::copy(bytes.as_ptr(), memory.add(start), bytes.len()) };
        }
        self.held.control().header.store(header.len() as u64, Ordering::Relaxed);
        self.held.control().body.store(body as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Asks for memory before it is written: later its lack would end the process by SIGBUS.
    fn reserve(&self, bytes: usize) -> Result<()> {
        let (shared, slot) = (&self.held.shared, self.held.slot);
        let reserved = &shared.reserved[slot];
        if reserved.load(Ordering::Relaxed) >= bytes as u64 {
            return Ok(());
        }
        loop {
            match rustix::fs::fallocate(&shared.file, FallocateFlags::empty(), shared.start(slot) as u64, bytes as u64)
            {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(reason) => return Err(failed(&format!("shared memory ({bytes} bytes for a batch)"), reason)),
            }
        }
        reserved.store(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Lets readers have the batch.
    pub fn publish(mut self) {
        // From here on dropping `self` frees nothing: by then another thread of this process may have claimed the slot again.
        self.held.word = 0;
        let head = self.held.shared.head();
        let number = head.next.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> 2);
        self.held.control().word.store(word(State::Ready, number), Ordering::Release);
        ring(&head.published);
    }
}

/// A slot with a batch to read; dropped, it is free again.
pub struct ReadSlot {
    held: Held,
}

impl ReadSlot {
    /// A copy of the header, and where the body lies: its first byte and length. The memory stays the reader's while the slot lives.
    ///
    /// # Errors
    /// If the header or the body end past the slot.
    pub fn parts(&self) -> Result<(Vec<u8>, *mut u8, usize)> {
        let (control, room) = (self.held.control(), self.held.shared.slot_bytes);
        let length = |of: &AtomicU64| usize::try_from(of.load(Ordering::Relaxed)).ok().filter(|&length| length <= room);
        let (Some(header), Some(body)) = (length(&control.header), length(&control.body)) else {
            return Err(damaged("it ends past its slot".to_owned()));
        };
        let first = header.next_multiple_of(ALIGN);
        if first + body > room {
            return Err(damaged("it ends past its slot".to_owned()));
        }
        let memory = self.held.memory();
        // SAFETY: both ranges end before the slot does.
        unsafe { Ok((copy(memory, header), memory.add(first), body)) }
    }

    /// A copy of the header and of the body.
    ///
    /// # Errors
    /// As [`ReadSlot::parts`].
    pub fn read(&self) -> Result<(Vec<u8>, Vec<u8>)> {
        let (header, body, length) = self.parts()?;
        // SAFETY: `parts` checked the range, and `self` keeps it mapped.
        Ok((header, unsafe { copy(body, length) }))
    }
}

/// A copy of memory that a hostile process might change meanwhile: there is never a reference to it.
///
/// # Safety
/// `length` bytes at `from` are mapped.
unsafe fn copy(from: *const u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: as the caller promises; the vector is new.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), length) };
    bytes
}

fn damaged(what: String) -> Error {
    Error::Malformed { path: PathBuf::from("the slot of a ring"), expected: "batch", what }
}

/// The header of a batch; its arrays with their places in the body.
fn encode<'a>(sample: &'a Sample, arrays: &mut Vec<(usize, &'a Array)>, end: &mut usize) -> Value {
    match sample {
        Sample::Text(text) => json!(text),
        Sample::List(fields) => fields.iter().map(|field| encode(field, arrays, end)).collect(),
        Sample::Dict(fields) => {
            let pairs = fields.iter().map(|(name, field)| json!([name, encode(field, arrays, end)]));
            json!({"dict": pairs.collect::<Value>()})
        }
        Sample::Array(array) => {
            let start = end.next_multiple_of(ALIGN);
            *end = start + array.bytes().len();
            arrays.push((start, array));
            json!({"array": [array.dtype().numpy(), array.shape(), start]})
        }
    }
}

/// The batch of a header.
fn decode(header: &Value, body: &[u8]) -> Result<Sample> {
    let wrong = || damaged(format!("{header} is no field of a sample"));
    let fields = |list: &[Value]| list.iter().map(|field| decode(field, body)).collect::<Result<_>>().map(Sample::List);
    Ok(match header {
        Value::String(text) => Sample::Text(text.clone()),
        Value::Bool(value) => Sample::from(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Sample::from(number),
            None => Sample::from(number.as_f64().ok_or_else(wrong)?),
        },
        Value::Array(list) => fields(list)?,
        Value::Null => return Err(wrong()),
        Value::Object(object) => match object.iter().next() {
            Some((kind, Value::Array(list))) if kind == "tuple" => fields(list)?,
            Some((kind, Value::Array(list))) if kind == "named" => {
                fields(list.get(1).and_then(Value::as_array).ok_or_else(wrong)?)?
            }
            Some((kind, Value::Array(pairs))) if kind == "dict" => {
                let pair = |pair: &Value| Ok((pair[0].as_str().ok_or_else(wrong)?.to_owned(), decode(&pair[1], body)?));
                Sample::Dict(pairs.iter().map(pair).collect::<Result<_>>()?)
            }
            Some((kind, array)) if kind == "array" || kind == "number" => {
                let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
                let dtype = array[0].as_str().and_then(DType::from_numpy).ok_or_else(wrong)?;
                let shape = array[1].as_array().and_then(|shape| shape.iter().map(number).collect::<Option<Vec<_>>>());
                let (shape, start) = shape.zip(number(&array[2])).ok_or_else(wrong)?;
                let end = count(&shape).and_then(|count| count.checked_mul(dtype.size())?.checked_add(start));
                let bytes = end.and_then(|end| body.get(start..end)).ok_or_else(wrong)?;
                Sample::Array(Array::from_bytes(dtype, &shape, bytes)?)
            }
            _ => return Err(wrong()),
        },
    })
}

#[cfg(test)]
mod tests;

//! Memory over time, and who holds what at the peak.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use netcl_core::observe::MemoryChange;

use super::Device;
use super::collect::{MemoryEntry, nanoseconds};

/// The memory of one device during a scope.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// The device's name.
    pub device: String,
    /// Bytes that were held before the scope's first allocation.
    pub before_bytes: usize,
    /// The most bytes that were held at once, those before the scope included.
    pub peak_bytes: usize,
    /// When, in nanoseconds since the scope began.
    pub peak_time: u64,
    /// Bytes held after each change, with its time.
    pub points: Vec<(u64, usize)>,
    /// Who held the scope's own memory at the peak, the largest first.
    pub holders: Vec<Holder>,
    /// How many blocks the scope asked for.
    pub allocations: usize,
}

/// Blocks of one purpose of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What they are for.
    pub label: &'static str,
    /// The dotted path of the module; empty outside of any.
    pub module: Arc<str>,
    /// `file:line` of the Python program, where all blocks have the same.
    pub line: Option<Arc<str>>,
    /// Their bytes.
    pub bytes: usize,
    /// How many they are.
    pub blocks: usize,
}

struct Block {
    device: usize,
    nbytes: usize,
    label: &'static str,
    module: Arc<str>,
    line: Option<Arc<str>>,
}

/// The memory of each device.
pub(super) fn of(entries: &[MemoryEntry], began: Instant, devices: &[Device]) -> Vec<Memory> {
    let mut found: Vec<Memory> =
        devices.iter().map(|device| Memory { device: device.name.clone(), ..Memory::default() }).collect();
    let mut held = vec![0usize; devices.len()];
    // Twice over the log: the second time stops at each device's peak, and what is alive then are its holders.
    let mut peak_at = vec![None; devices.len()];
    replay(entries, devices, |index, time, block, born, _| {
        let memory = &mut found[block.device];
        if born && memory.allocations == 0 {
            memory.before_bytes = entries[index].in_use.saturating_sub(block.nbytes);
            memory.points.push((0, memory.before_bytes));
        }
        memory.allocations += usize::from(born);
        let held = &mut held[block.device];
        *held = if born { *held + block.nbytes } else { held.saturating_sub(block.nbytes) };
        let (time, bytes) = (nanoseconds(began, time), memory.before_bytes + *held);
        memory.points.push((time, bytes));
        if bytes > memory.peak_bytes {
            (memory.peak_bytes, memory.peak_time) = (bytes, time);
            peak_at[block.device] = Some(index);
        }
    });
    replay(entries, devices, |index, _, block, _, alive| {
        if peak_at[block.device] == Some(index) {
            found[block.device].holders = holders(alive.values().filter(|other| other.device == block.device));
        }
    });
    found
}

fn holders<'b>(blocks: impl Iterator<Item = &'b Block>) -> Vec<Holder> {
    let mut by_owner: HashMap<(&'static str, Arc<str>), Holder> = HashMap::new();
    for block in blocks {
        let Block { nbytes, label, module, line, .. } = block;
        let empty = || Holder { label, module: module.clone(), line: line.clone(), bytes: 0, blocks: 0 };
        let holder = by_owner.entry((label, module.clone())).or_insert_with(empty);
        holder.bytes += nbytes;
        holder.blocks += 1;
        if holder.line != *line {
            holder.line = None;
        }
    }
    let mut list: Vec<Holder> = by_owner.into_values().collect();
    list.sort_by(|a, b| (b.bytes, &a.module, a.label).cmp(&(a.bytes, &b.module, b.label)));
    list
}

/// Calls `see` for each change of the scope's own blocks: its index, time, block, whether it is born, and what is alive then.
fn replay(
    entries: &[MemoryEntry],
    devices: &[Device],
    mut see: impl FnMut(usize, Instant, &Block, bool, &HashMap<usize, Block>),
) {
    let mut alive: HashMap<usize, Block> = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        match &entry.change {
            MemoryChange::Allocated { id, nbytes, label, queue, place } => {
                let device = devices.iter().position(|device| device.queue.same_device(queue)).unwrap_or(0);
                let place = place.as_deref().cloned().unwrap_or_default();
                let block = Block { device, nbytes: *nbytes, label, module: place.module, line: place.site };
                alive.insert(*id, block);
                see(index, entry.time, &alive[id], true, &alive);
            }
            MemoryChange::Freed { id } => {
                if let Some(block) = alive.remove(id) {
                    see(index, entry.time, &block, false, &alive);
                }
            }
        }
    }
}

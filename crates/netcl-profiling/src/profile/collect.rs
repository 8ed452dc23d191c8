//! What a scope keeps while it is open, and the common clock of host and devices.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use netcl_core::backend::Queue;
use netcl_core::error::Result;
use netcl_core::observe::{Command, MemoryChange, Observer};

use super::{Device, Timed};

/// What an observer has seen.
#[derive(Default)]
pub(super) struct Log(Mutex<Entries>);

#[derive(Default)]
pub(super) struct Entries {
    pub(super) commands: Vec<Command>,
    pub(super) memory: Vec<MemoryEntry>,
}

pub(super) struct MemoryEntry {
    pub(super) time: Instant,
    pub(super) change: MemoryChange,
    /// Bytes that the device's pool holds with a new block.
    pub(super) in_use: usize,
}

impl Log {
    pub(super) fn take(&self) -> Entries {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Log {
    fn command(&self, command: Command) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).commands.push(command);
    }

    fn memory(&self, change: MemoryChange) {
        let in_use = match &change {
            MemoryChange::Allocated { queue: Queue::OpenCl(stream), .. } => stream.pool().stats().bytes_in_use,
            MemoryChange::Allocated { queue: Queue::Cpu(_), .. } => {
                netcl_core::backend::cpu::buffer::stats().live_bytes
            }
            MemoryChange::Freed { .. } => 0,
        };
        let entry = MemoryEntry { time: Instant::now(), change, in_use };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).memory.push(entry);
    }
}

impl Entries {
    /// The queues of allocations.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.memory.iter().filter_map(|entry| match &entry.change {
            MemoryChange::Allocated { queue, .. } => Some(queue),
            MemoryChange::Freed { .. } => None,
        })
    }

    /// Waits for everything that was seen.
    pub(super) fn finish(&self) -> Result<()> {
        let mut done: Vec<&Queue> = Vec::new();
        for queue in self.commands.iter().map(|command| &command.queue) {
            if !done.contains(&queue) {
                queue.finish()?;
                done.push(queue);
            }
        }
        Ok(())
    }
}

pub(super) fn nanoseconds(began: Instant, time: Instant) -> u64 {
    u64::try_from(time.saturating_duration_since(began).as_nanos()).unwrap_or(u64::MAX)
}

/// Times of a command on its device's own clock.
struct Clocked {
    queued: u64,
    started: u64,
    ended: u64,
}

/// `None` where the driver does not know. NVIDIA's says 0 for when some copies entered the queue and began.
fn clocked(command: &Command) -> Option<Clocked> {
    let mut all: Option<Clocked> = None;
    for event in &command.events {
        let times = event.times().ok()?;
        let started = [times.started, times.submitted, times.queued].into_iter().find(|&time| time > 0)?;
        if times.ended < started {
            return None;
        }
        let known = all.get_or_insert(Clocked { queued: times.queued, started, ended: times.ended });
        known.queued = known.queued.min(times.queued);
        known.started = known.started.min(started);
        known.ended = known.ended.max(times.ended);
    }
    all
}

/// Commands with times on the host's clock.
///
/// A command enters its queue while the host is in the call, so that each one bounds the difference between the device's clock and the
/// host's from both sides; the middle of what all of them allow is taken. Of a command whose driver does not know when it
/// entered, it is only known that it began after the call did.
pub(super) fn timed(commands: &[Command], began: Instant, devices: &[Device]) -> Vec<Timed> {
    let device_of = |queue: &Queue| devices.iter().position(|device| device.queue.same_device(queue)).unwrap_or(0);
    let clocks: Vec<Option<Clocked>> = commands.iter().map(clocked).collect();
    let mut bounds = vec![(i128::MIN, i128::MAX); devices.len()];
    for (command, clock) in commands.iter().zip(&clocks) {
        if let Some(clock) = clock {
            let (low, high) = &mut bounds[device_of(&command.queue)];
            let host = (nanoseconds(began, command.host.0), nanoseconds(began, command.host.1));
            let knows_entry = clock.queued > 0 && clock.queued <= clock.started;
            let entered = if knows_entry { clock.queued } else { clock.started };
            *low = (*low).max(i128::from(host.0) - i128::from(entered));
            if knows_entry {
                *high = (*high).min(i128::from(host.1) - i128::from(entered));
            }
        }
    }
    let one = |(command, clock): (&Command, Option<Clocked>)| {
        let device = device_of(&command.queue);
        let host = (nanoseconds(began, command.host.0), nanoseconds(began, command.host.1));
        let (low, high) = bounds[device];
        let to_host = |time: u64| {
            let offset = if low <= high && high < i128::MAX { low + (high - low) / 2 } else { low };
            u64::try_from((i128::from(time) + offset).max(0)).unwrap_or(0)
        };
        let device_time = clock.map_or(host, |clock| {
            let start = to_host(clock.started).max(host.0);
            (start, start + clock.ended.saturating_sub(clock.started))
        });
        let place = command.place.as_deref().cloned().unwrap_or_default();
        Timed {
            name: command.name.to_string(),
            kind: command.kind,
            device,
            thread: command.thread,
            module: place.module,
            backward: place.backward,
            line: place.site,
            flops: command.cost.flops,
            bytes: command.cost.bytes,
            host,
            device_time,
            grid: command.kernel.as_ref().map(|(_, grid)| grid.to_string()),
            source: command.kernel.as_ref().and_then(|(kernel, _)| kernel.program().source().map(Arc::clone)),
        }
    };
    commands.iter().zip(clocks).map(one).collect()
}

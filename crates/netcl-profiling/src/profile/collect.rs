//! What a scope keeps while it is open, and the common clock of host and devices.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::EventTimes;
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
    /// When it entered its queue.
    queued: Option<u64>,
    started: Option<u64>,
    ended: u64,
}

/// `None` where the driver knows nothing. NVIDIA's gives the mapping of page-locked memory the times of an earlier one and 0 for when it
/// entered the queue: such an event counts only where there is no other, and no command can have taken longer than the `longest`, from
/// its call until now.
fn clocked(command: &Command, longest: u64) -> Option<Clocked> {
    let mut times: Vec<EventTimes> = command.events.iter().map(|event| event.times().ok()).collect::<Option<_>>()?;
    if times.iter().any(|times| times.queued > 0) {
        times.retain(|times| times.queued > 0);
    }
    let ended = times.iter().map(|times| times.ended).max()?;
    let known = |time: &u64| (1..=ended).contains(time) && ended - time <= longest;
    let queued = times.iter().map(|times| times.queued).min().filter(known);
    let started =
        times.iter().filter_map(|times| [times.started, times.submitted, times.queued].into_iter().find(known)).min();
    Some(Clocked { queued, started, ended })
}

/// Commands with times on the host's clock.
///
/// A command enters its queue while the host is in the call, so that each one bounds the difference between the device's clock and the
/// host's from both sides; the middle of what all of them allow is taken. Of a command whose driver does not know when it
/// entered, it is only known that it began, or ended, after the call did.
pub(super) fn timed(commands: &[Command], began: Instant, devices: &[Device]) -> Vec<Timed> {
    let device_of = |queue: &Queue| devices.iter().position(|device| device.queue.same_device(queue)).unwrap_or(0);
    let now = Instant::now();
    let clock_of = |command: &Command| clocked(command, nanoseconds(command.host.0, now));
    let clocks: Vec<Option<Clocked>> = commands.iter().map(clock_of).collect();
    let mut bounds = vec![(i128::MIN, i128::MAX); devices.len()];
    for (command, clock) in commands.iter().zip(&clocks) {
        if let Some(clock) = clock {
            let (low, high) = &mut bounds[device_of(&command.queue)];
            let host = (nanoseconds(began, command.host.0), nanoseconds(began, command.host.1));
            let after = clock.queued.or(clock.started).unwrap_or(clock.ended);
            *low = (*low).max(i128::from(host.0) - i128::from(after));
            if let Some(queued) = clock.queued {
                *high = (*high).min(i128::from(host.1) - i128::from(queued));
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
            let start = clock.started.map_or(host.0, to_host).max(host.0);
            let end = clock.started.map_or_else(|| to_host(clock.ended), |started| start + (clock.ended - started));
            (start, end.max(start))
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
            source: command.kernel.as_ref().and_then(|(kernel, _)| kernel.program().ok()?.source().map(Arc::clone)),
        }
    };
    commands.iter().zip(clocks).map(one).collect()
}

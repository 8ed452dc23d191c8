//! First launches: what drivers do behind them is over before the caller goes on.
//!
//! Some drivers compile at a kernel's first launch, on a thread of their own: PoCL for every kernel and work-group size, in a folder that
//! it shares with other processes (see [`CompilerLock`]). And all make objects of their own at a process's first launch, which are
//! cleaned up before any exit handler that was registered earlier: a program that ends meanwhile crashes in its driver (PoCL and
//! Intel's runtime, every second time). So a first launch waits until its kernel has started, and an exit handler is registered then.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use super::compiler_lock::CompilerLock;
use super::error::ClResult;
use super::event::{Deps, Event, EventStatus};
use super::exit::{self, After};
use super::interrupts::InFlight;
use super::kernel::{Grid, Kernel};
use super::queue::Queue;

/// The longest wait for a kernel to start. Commands before it in the queue may take for ever.
const START: Duration = Duration::from_secs(10);
/// The longest wait for a queue's first kernel to end, once it has started. Most take microseconds, some never end.
const END: Duration = Duration::from_millis(250);

impl Queue {
    /// Enqueues a kernel by way of `enqueue`, and waits where this is a first launch.
    pub(super) fn enqueue_first(
        &self,
        kernel: &Kernel,
        grid: &Grid,
        deps: Deps<'_>,
        enqueue: impl FnOnce(Deps<'_>) -> ClResult<Option<Event>>,
    ) -> ClResult<Option<Event>> {
        let compiles =
            self.device().quirks().shared_compiler_folder && kernel.program()?.note_variant(variant(kernel, grid));
        let first = self.note_launch();
        if !compiles && !first {
            return enqueue(deps);
        }
        let lock = compiles.then(|| {
            // Other processes need not wait for the work before this one. What goes wrong there shows elsewhere.
            let _ = self.marker(&[]).and_then(|before| self.wait(&before, START, Event::is_complete));
            CompilerLock::acquire(self.device())
        });
        let event = enqueue(deps.event())?;
        if let Some(event) = &event {
            // The kernel's own error comes to whoever waits for it.
            let _ = self.wait(event, START, has_started);
            drop(lock);
            if first {
                let _ = self.wait(event, END, Event::is_complete);
                exit::wait_at_exit(After::Launch);
            }
        }
        Ok(event.filter(|_| deps.wants_event()))
    }

    /// Waits at most `limit` for an event of this queue to get somewhere.
    fn wait(&self, event: &Event, limit: Duration, there: impl Fn(&Event) -> ClResult<bool>) -> ClResult<()> {
        self.flush()?;
        let _call = InFlight::blocking();
        let start = Instant::now();
        while !there(event)? && start.elapsed() < limit {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

fn has_started(event: &Event) -> ClResult<bool> {
    Ok(!matches!(event.status()?, EventStatus::Queued | EventStatus::Submitted))
}

/// What PoCL compiles apart: the work-group's size (which it chooses by the grid's where none is given), ids that begin at 0, small grids.
fn variant(kernel: &Kernel, grid: &Grid) -> u64 {
    let (global, local) = (grid.global_size(), grid.local_size());
    let small = |size: &usize| *size < usize::from(u16::MAX);
    let groups = global.iter().enumerate().map(|(i, &n)| n / local.map_or(1, |local| local[i].max(1)));
    let mut hasher = DefaultHasher::new();
    kernel.name().hash(&mut hasher);
    local.unwrap_or(global).hash(&mut hasher);
    (grid.begins_at_zero(), global.iter().all(small), groups.clone().all(|n| small(&n))).hash(&mut hasher);
    hasher.finish()
}

//! Device times of single commands, and of all launches of a scope.

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::Event;
use netcl_core::error::Result;

use super::{ProfileOptions, Profiler};

/// How long a command took.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRecord {
    /// What it is called.
    pub name: String,
    /// Milliseconds on the device.
    pub duration_ms: f64,
}

/// Times commands on the device: one by its event, or all launches and copies of a scope.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_profiling::profile::EventTimer;
///
/// let queue = manager().cpu().queue;
/// let mut timer = EventTimer::new(Some(&queue));
/// timer.time(|| Tensor::full(&queue, [1000], DType::F32, 2.5))??;
/// assert!(timer.elapsed_ms > 0.0 && timer.records[0].name == "fill");
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Default)]
pub struct EventTimer {
    queue: Option<Queue>,
    running: Option<Profiler>,
    /// From the start of the scope's first command on the device to the end of its last, in milliseconds.
    pub elapsed_ms: f64,
    /// What the commands took together.
    pub busy_ms: f64,
    /// The commands, in the order of the host's calls.
    pub records: Vec<ProfileRecord>,
}

impl EventTimer {
    /// A timer for the commands of one device; without a queue for those of all.
    pub fn new(queue: Option<&Queue>) -> EventTimer {
        EventTimer { queue: queue.cloned(), ..EventTimer::default() }
    }

    /// Waits for a command and gives its time. Its queue must have been made for profiling.
    ///
    /// # Errors
    /// What the driver says: queues without device times have none to give.
    pub fn time_event(event: &Event, name: impl Into<String>) -> Result<ProfileRecord> {
        event.wait()?;
        let duration_ms = event.times()?.duration().as_secs_f64() * 1e3;
        Ok(ProfileRecord { name: name.into(), duration_ms })
    }

    /// Begins to time launches and copies.
    pub fn start(&mut self) {
        self.running = Some(Profiler::start(ProfileOptions { ceilings: false }));
    }

    /// Waits for them and sets the figures; nothing happens if it was not started.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stop(&mut self) -> Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let profile = running.stop()?;
        let wanted =
            |device: usize| self.queue.as_ref().is_none_or(|queue| profile.devices[device].queue.same_device(queue));
        let commands: Vec<_> = profile.commands.iter().filter(|command| wanted(command.device)).collect();
        let first = commands.iter().map(|command| command.device_time.0).min().unwrap_or(0);
        let last = commands.iter().map(|command| command.device_time.1).max().unwrap_or(0);
        self.elapsed_ms = (last - first) as f64 * 1e-6;
        self.busy_ms = commands.iter().map(|command| command.seconds()).sum::<f64>() * 1e3;
        let record = |command: &&super::Timed| ProfileRecord {
            name: command.name.clone(),
            duration_ms: command.seconds() * 1e3,
        };
        self.records = commands.iter().map(record).collect();
        Ok(())
    }

    /// Times a closure.
    ///
    /// # Errors
    /// Those of [`EventTimer::stop`].
    pub fn time<R>(&mut self, f: impl FnOnce() -> R) -> Result<R> {
        self.start();
        let result = f();
        self.stop()?;
        Ok(result)
    }
}

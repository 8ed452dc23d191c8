//! Events: completion, status and device times of one command.

use std::cell::RefCell;
use std::ffi::c_void;
use std::time::Duration;

use opencl_sys::*;
use smallvec::SmallVec;

use super::api::api;
use super::error::{ClError, ClResult, check};
use super::handle::{EventObject, Handle};
use super::info;
use super::interrupts::InFlight;
use super::queue;

/// How far a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStatus {
    /// In the queue of the host.
    Queued,
    /// Handed to the device.
    Submitted,
    /// Running.
    Running,
    /// Done.
    Complete,
    /// Ended with this error code.
    Failed(i32),
}

/// Device times of a command, in nanoseconds of the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTimes {
    /// When it entered the queue.
    pub queued: u64,
    /// When it was handed to the device.
    pub submitted: u64,
    /// When it began to run.
    pub started: u64,
    /// When it ended.
    pub ended: u64,
}

impl EventTimes {
    /// Time between start and end.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.ended.saturating_sub(self.started))
    }
}

/// The completion of one command. Released when dropped; the command goes on regardless.
#[derive(Clone)]
pub struct Event(Handle<EventObject>);

impl Event {
    /// Takes over the event that an enqueue returned.
    ///
    /// # Safety
    /// `raw` is null or an event whose reference passes on.
    pub(super) unsafe fn adopt(call: &'static str, raw: cl_event) -> ClResult<Event> {
        // SAFETY: as the caller promises.
        Ok(Event(unsafe { Handle::adopt(call, raw)? }))
    }

    /// Wraps a `cl_event` made by other code; a reference is added.
    ///
    /// # Safety
    /// `ptr` is a valid `cl_event` of the loaded library.
    pub unsafe fn from_int_ptr(ptr: usize) -> ClResult<Event> {
        // SAFETY: the caller vouches for the pointer.
        Ok(Event(unsafe { Handle::share(ptr as *mut c_void)? }))
    }

    /// The `cl_event` as a number.
    pub fn int_ptr(&self) -> usize {
        self.0.raw() as usize
    }

    pub(super) fn raw(&self) -> cl_event {
        self.0.raw()
    }

    /// Blocks until the command is done.
    pub fn wait(&self) -> ClResult<()> {
        Event::wait_all(&[self])
    }

    /// Blocks until all commands are done; they must be of one context.
    pub fn wait_all(events: &[&Event]) -> ClResult<()> {
        const CALL: &str = "clWaitForEvents";
        let api = api(CALL)?;
        if events.is_empty() {
            return Ok(());
        }
        let list: SmallVec<[cl_event; 8]> = events.iter().map(|e| e.raw()).collect();
        let call = InFlight::blocking();
        // SAFETY: the list holds `len` live events.
        let code = unsafe { (api.clWaitForEvents)(list.len() as cl_uint, list.as_ptr()) };
        drop(call);
        if code != CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST {
            return check(CALL, code);
        }
        // The general code hides the command's own: look for it.
        for event in events {
            if let EventStatus::Failed(code) = event.status()? {
                return Err(ClError::call("a command", code));
            }
        }
        Err(ClError::call(CALL, code))
    }

    /// How far the command has come.
    pub fn status(&self) -> ClResult<EventStatus> {
        const CALL: &str = "clGetEventInfo";
        let api = api(CALL)?;
        // SAFETY: the event is alive, and `info` passes a matching capacity.
        let status: cl_int = info::scalar(CALL, |size, to, got| unsafe {
            (api.clGetEventInfo)(self.raw(), CL_EVENT_COMMAND_EXECUTION_STATUS, size, to, got)
        })?;
        Ok(match status {
            CL_COMPLETE => EventStatus::Complete,
            CL_RUNNING => EventStatus::Running,
            CL_SUBMITTED => EventStatus::Submitted,
            code if code < 0 => EventStatus::Failed(code),
            _ => EventStatus::Queued,
        })
    }

    /// True when the command is over, well or badly.
    pub fn is_complete(&self) -> ClResult<bool> {
        Ok(matches!(self.status()?, EventStatus::Complete | EventStatus::Failed(_)))
    }

    /// Device times; the queue must have been made for profiling and the command must be done.
    pub fn times(&self) -> ClResult<EventTimes> {
        const CALL: &str = "clGetEventProfilingInfo";
        let api = api(CALL)?;
        let time = |what| {
            // SAFETY: the event is alive, and `info` passes a matching capacity.
            info::scalar::<cl_ulong>(CALL, |size, to, got| unsafe {
                (api.clGetEventProfilingInfo)(self.raw(), what, size, to, got)
            })
        };
        Ok(EventTimes {
            queued: time(CL_PROFILING_COMMAND_QUEUED)?,
            submitted: time(CL_PROFILING_COMMAND_SUBMIT)?,
            started: time(CL_PROFILING_COMMAND_START)?,
            ended: time(CL_PROFILING_COMMAND_END)?,
        })
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({:#x})", self.int_ptr())
    }
}

/// What a command waits for, and whether it makes an event. Events cost time (2 us each on NVIDIA), so none is made unless
/// asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deps<'a> {
    wait: &'a [&'a Event],
    event: bool,
    blocking: bool,
}

impl<'a> Deps<'a> {
    /// Wait for nothing but the queue's order, make no event.
    pub const NONE: Deps<'static> = Deps { wait: &[], event: false, blocking: false };
    /// Wait for nothing, make an event.
    pub const EVENT: Deps<'static> = Deps { wait: &[], event: true, blocking: false };

    /// Wait for these events first.
    pub fn after(wait: &'a [&'a Event]) -> Self {
        Deps { wait, event: false, blocking: false }
    }

    /// Make an event as well.
    #[must_use]
    pub fn event(mut self) -> Self {
        self.event = true;
        self
    }

    pub(super) fn wants_event(&self) -> bool {
        self.event
    }

    /// The command waits for its own end.
    pub(super) fn blocking(mut self, blocking: bool) -> Self {
        self.blocking = blocking;
        self
    }

    /// Enqueues a command: calls `enqueue(count, list, event)` and wraps the event it may return.
    pub(super) fn enqueue(
        self,
        call: &'static str,
        enqueue: impl FnOnce(cl_uint, *const cl_event, *mut cl_event) -> cl_int,
    ) -> ClResult<Option<Event>> {
        let list: SmallVec<[cl_event; 8]> = self.wait.iter().map(|e| e.raw()).collect();
        // The standard wants a null list when the count is zero.
        let pointer = if list.is_empty() { std::ptr::null() } else { list.as_ptr() };
        let mut raw = std::ptr::null_mut();
        let kept = keeps_events();
        let wanted = if self.event || kept { &raw mut raw } else { std::ptr::null_mut() };
        let code = {
            // Counted also when it does not block: a full queue makes some drivers wait here.
            let _call = if self.blocking { InFlight::blocking() } else { InFlight::begin() };
            let _same_queue = queue::keep_queues();
            enqueue(list.len() as cl_uint, pointer, wanted)
        };
        check(call, code)?;
        if !self.event && !kept {
            return Ok(None);
        }
        // SAFETY: a successful enqueue stored a new event reference.
        let event = unsafe { Event::adopt(call, raw)? };
        // Markers and barriers take no time that is anybody's.
        if kept && !call.ends_with("WithWaitList") {
            KEPT.with_borrow_mut(|events| events.iter_mut().for_each(|events| events.push(event.clone())));
        }
        Ok(self.event.then_some(event))
    }
}

thread_local! {
    /// Events of this thread's driver calls, while somebody wants them.
    static KEPT: RefCell<Option<SmallVec<[Event; 1]>>> = const { RefCell::new(None) };
}

/// Runs a closure and gives the events of the commands that it enqueues on this thread. Calls nest: the outer one gets them, too.
pub(crate) fn keep_events<R>(run: impl FnOnce() -> R) -> (R, SmallVec<[Event; 1]>) {
    let outer = KEPT.replace(Some(SmallVec::new()));
    let result = run();
    let events = KEPT.replace(outer).unwrap_or_default();
    KEPT.with_borrow_mut(|outer| outer.iter_mut().for_each(|outer| outer.extend(events.iter().cloned())));
    (result, events)
}

/// Whether the events of this thread's driver calls are kept.
pub(crate) fn keeps_events() -> bool {
    KEPT.with_borrow(Option::is_some)
}

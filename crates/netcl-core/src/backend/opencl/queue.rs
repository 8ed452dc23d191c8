//! Queues: in order, one command after the other; made for profiling only on request.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};

use opencl_sys::*;

use super::api::api;
use super::context::Context;
use super::device::Device;
use super::error::{ClError, ClResult, check};
use super::event::{Deps, Event};
use super::fork;
use super::handle::{Handle, QueueObject};
use super::info;
use super::interrupts::InFlight;
use crate::env;

/// An in-order command queue; clones are the same queue, and threads may share it.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

struct Inner {
    handle: Handle<QueueObject>,
    context: Context,
    device: Device,
    profiling: bool,
    launched: AtomicBool,
    /// Takes its place while somebody wants the device times of its commands; `None` where the driver refused.
    timed: OnceLock<Option<Handle<QueueObject>>>,
    is_timed: AtomicBool,
    /// Whether other code enqueues on the handle, so that nothing may take its place.
    shared: AtomicBool,
}

impl Inner {
    fn raw(&self) -> cl_command_queue {
        match self.timed.get() {
            Some(Some(timed)) if self.is_timed.load(Ordering::Acquire) => timed.raw(),
            _ => self.handle.raw(),
        }
    }
}

/// Held for reading over every enqueue, and for writing while queues take each other's place: what is given to the old one is over
/// before anything is given to the new one.
static SWITCH: RwLock<()> = RwLock::new(());
/// Whether device times are wanted.
static TIMED: AtomicBool = AtomicBool::new(false);

/// Keeps all queues what they are until the result is dropped.
pub(super) fn keep_queues() -> RwLockReadGuard<'static, ()> {
    SWITCH.read().unwrap_or_else(PoisonError::into_inner)
}

/// Gives all queues device times for their commands, those that will be made meanwhile included, or no longer.
pub(crate) fn time_queues(wanted: bool) {
    TIMED.store(wanted, Ordering::Release);
    if !fork::is_forked_child() {
        Queue::all().iter().for_each(|queue| queue.time(wanted));
    }
}

/// All queues there are, for the end of the process.
static QUEUES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

fn queues() -> MutexGuard<'static, Vec<Weak<Inner>>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A driver that is cleaned up while its kernels are under way crashes, and nobody can wait for a queue that is gone.
        if *self.launched.get_mut()
            && let Ok(api) = api("clFinish")
        {
            let _call = InFlight::blocking();
            // SAFETY: the queue is alive until its handle is dropped, after this. An error has nobody to go to.
            unsafe { (api.clFinish)(self.raw()) };
        }
    }
}

impl Queue {
    /// A queue that profiles its commands only when `NETCL_PROFILE_EVENTS=1` (profiling nearly doubles a launch's cost).
    pub fn new(context: &Context, device: &Device) -> ClResult<Queue> {
        Queue::with_profiling(context, device, env::PROFILE_EVENTS.switch())
    }

    /// A queue that does or does not profile its commands.
    pub fn with_profiling(context: &Context, device: &Device, profiling: bool) -> ClResult<Queue> {
        let handle = Queue::create(context, device, profiling)?;
        let queue = Queue::register(handle, context.clone(), device.clone(), profiling, false);
        queue.time(TIMED.load(Ordering::Acquire));
        Ok(queue)
    }

    fn create(context: &Context, device: &Device, profiling: bool) -> ClResult<Handle<QueueObject>> {
        let bits = if profiling { CL_QUEUE_PROFILING_ENABLE } else { 0 };
        let mut code = 0;
        // The old call is deprecated but everywhere; the new one only where the device says 2.0, whatever the loader exports.
        let modern =
            api("clCreateCommandQueue")?.clCreateCommandQueueWithProperties.filter(|_| device.info().opencl >= (2, 0));
        let (call, raw) = if let Some(create) = modern {
            let properties = [CL_QUEUE_PROPERTIES as cl_queue_properties, bits, 0];
            // SAFETY: context and device are alive, the property list ends with a zero.
            let raw = unsafe { create(context.raw(), device.raw_id(), properties.as_ptr(), &mut code) };
            ("clCreateCommandQueueWithProperties", raw)
        } else {
            const CALL: &str = "clCreateCommandQueue";
            // SAFETY: context and device are alive.
            let raw = unsafe { (api(CALL)?.clCreateCommandQueue)(context.raw(), device.raw_id(), bits, &mut code) };
            (CALL, raw)
        };
        check(call, code).map_err(|e| e.about(|| format!("{device:?}")))?;
        // SAFETY: the call returned a new reference.
        unsafe { Handle::adopt(call, raw) }
    }

    /// Begins or ends device times for the commands of a queue that was made without: another one takes its place meanwhile.
    fn time(&self, wanted: bool) {
        let inner = &self.0;
        let wanted = wanted && !inner.profiling && !inner.shared.load(Ordering::Acquire);
        if wanted {
            inner.timed.get_or_init(|| Queue::create(&inner.context, &inner.device, true).ok());
        }
        let _alone = SWITCH.write().unwrap_or_else(PoisonError::into_inner);
        if inner.is_timed.load(Ordering::Acquire) != wanted {
            // An error comes to whoever waits next.
            let _ = self.finish();
            inner.is_timed.store(wanted, Ordering::Release);
        }
    }

    /// Tells that other code enqueues on the handle.
    pub fn share(&self) {
        if !self.0.shared.swap(true, Ordering::AcqRel) {
            self.time(false);
        }
    }

    /// Wraps a `cl_command_queue` made by other code; a reference is added. It must be an in-order queue of the host.
    ///
    /// # Safety
    /// `ptr` is a valid `cl_command_queue` of the loaded library.
    pub unsafe fn from_int_ptr(ptr: usize) -> ClResult<Queue> {
        const CALL: &str = "clGetCommandQueueInfo";
        let api = api(CALL)?;
        // SAFETY: the caller vouches for the pointer.
        let handle = unsafe { Handle::<QueueObject>::share(ptr as *mut c_void)? };
        let query = |what| {
            // SAFETY: the queue is alive, and `info` passes a matching capacity.
            move |size, to, got| unsafe { (api.clGetCommandQueueInfo)(ptr as cl_command_queue, what, size, to, got) }
        };
        let bits: cl_command_queue_properties = info::scalar(CALL, query(CL_QUEUE_PROPERTIES))?;
        if bits & (CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_ON_DEVICE) != 0 {
            return Err(ClError::usage(
                CALL,
                "the queue runs out of order or on the device; make an in-order host queue",
            ));
        }
        let context = info::pointer(CALL, query(CL_QUEUE_CONTEXT))?;
        let device = info::pointer(CALL, query(CL_QUEUE_DEVICE))?;
        // SAFETY: the driver names the queue's own context and device.
        let (context, device) =
            unsafe { (Context::from_int_ptr(context as usize)?, Device::from_int_ptr(device as usize)?) };
        let profiling = bits & CL_QUEUE_PROFILING_ENABLE != 0;
        Ok(Queue::register(handle, context, device, profiling, true))
    }

    fn register(handle: Handle<QueueObject>, context: Context, device: Device, profiling: bool, shared: bool) -> Queue {
        let made = Arc::new(Inner {
            handle,
            context,
            device,
            profiling,
            launched: AtomicBool::new(false),
            timed: OnceLock::new(),
            is_timed: AtomicBool::new(false),
            shared: AtomicBool::new(shared),
        });
        let mut queues = queues();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&made));
        Queue(made)
    }

    /// Every queue that is not dropped yet.
    pub(super) fn all() -> Vec<Queue> {
        queues().iter().filter_map(Weak::upgrade).map(Queue).collect()
    }

    /// Notes a launch; true at the first.
    #[inline]
    pub(super) fn note_launch(&self) -> bool {
        !self.0.launched.load(Ordering::Relaxed) && !self.0.launched.swap(true, Ordering::Relaxed)
    }

    /// The `cl_command_queue` as a number.
    pub fn int_ptr(&self) -> usize {
        self.0.handle.raw() as usize
    }

    pub(super) fn raw(&self) -> cl_command_queue {
        self.0.raw()
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// True when its events carry device times.
    pub fn profiling(&self) -> bool {
        let timed = || self.0.is_timed.load(Ordering::Acquire) && matches!(self.0.timed.get(), Some(Some(_)));
        self.0.profiling || timed()
    }

    /// True when its events carry device times for good.
    pub(super) fn made_for_profiling(&self) -> bool {
        self.0.profiling
    }

    /// Hands everything enqueued so far to the device, without waiting.
    pub fn flush(&self) -> ClResult<()> {
        const CALL: &str = "clFlush";
        let api = api(CALL)?;
        let _call = InFlight::begin();
        // SAFETY: the queue is alive.
        check(CALL, unsafe { (api.clFlush)(self.raw()) })
    }

    /// Waits until everything enqueued so far is done.
    pub fn finish(&self) -> ClResult<()> {
        let _call = InFlight::blocking();
        self.finish_uncounted()
    }

    /// As [`Queue::finish`], for a thread that nobody depends on.
    pub(super) fn finish_uncounted(&self) -> ClResult<()> {
        const CALL: &str = "clFinish";
        // SAFETY: the queue is alive.
        check(CALL, unsafe { (api(CALL)?.clFinish)(self.raw()) })
    }

    /// An event for everything enqueued so far and the given events.
    pub fn marker(&self, after: &[&Event]) -> ClResult<Event> {
        const CALL: &str = "clEnqueueMarkerWithWaitList";
        let api = api(CALL)?;
        let event = Deps::after(after).event().enqueue(CALL, |count, list, event| {
            // SAFETY: the queue is alive, and `Deps` passes a matching list.
            unsafe { (api.clEnqueueMarkerWithWaitList)(self.raw(), count, list, event) }
        })?;
        event.ok_or_else(|| ClError::usage(CALL, "the driver returned no event"))
    }

    /// Later commands wait for the given events (of any queue of this context).
    pub fn barrier(&self, deps: Deps<'_>) -> ClResult<Option<Event>> {
        const CALL: &str = "clEnqueueBarrierWithWaitList";
        let api = api(CALL)?;
        deps.enqueue(CALL, |count, list, event| {
            // SAFETY: the queue is alive, and `Deps` passes a matching list.
            unsafe { (api.clEnqueueBarrierWithWaitList)(self.raw(), count, list, event) }
        })
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({:?})", self.device())
    }
}

impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        self.int_ptr() == other.int_ptr()
    }
}

impl Eq for Queue {}

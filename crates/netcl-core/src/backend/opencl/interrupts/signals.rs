//! The signal handler and the thread that measures the grace.
//!
//! The handler does only what a handler may: atomics, one `write`, the handlers before it. The thread does the waiting.
//!
//! Ours is not the only one that stands in front of another. LLVM, inside PoCL and Intel's runtime, installs a handler at the
//! first compilation; when a signal comes it puts back what it found and raises the signal again, to be handled by that. If
//! what it found was ours, ours is entered a second time, inside its own call of LLVM's. So each signal has a stack of
//! earlier handlers, and a nested entry goes one further down.

use std::ffi::{c_int, c_void};
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use super::{GRACE, NEXT, in_flight_before};

/// The signals that ask a process to end.
const SIGNALS: [c_int; 2] = [libc::SIGINT, libc::SIGTERM];

/// What to do with a SIGINT that has its default meaning.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Default {
    /// Leave it: Ctrl+C ends the process at once.
    Leave,
    /// Note the first, end at the second.
    Catch,
}

/// The process that the handlers belong to; 0 before they are installed. A forked child only passes signals on.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The end of the pipe that the handler writes to.
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// The number that the next call had at the last signal: calls with smaller ones were in flight then. 0: no signal yet.
static MARK: AtomicU64 = AtomicU64::new(0);
/// How many signals came, to this process or the one it was forked from.
static SEEN: AtomicU64 = AtomicU64::new(0);
/// The last signal.
static LAST: AtomicI32 = AtomicI32::new(0);
/// Whether the first Ctrl+C is only noted: the program looks at [`interrupted`].
static CATCH: AtomicBool = AtomicBool::new(false);
/// Whether waits look after the handlers.
static ARMED: AtomicBool = AtomicBool::new(false);
/// The earlier handlers of each signal.
static EARLIER: [Stack; 2] = [const { Stack::new() }; 2];

/// More handlers in front of each other than this are not kept.
const DEPTH: usize = 8;

/// The handlers that were found where ours should be, the one that was there last on top. Only [`take_front`] changes it.
struct Stack {
    handlers: [Handler; DEPTH],
    len: AtomicUsize,
    /// The thread that is calling handlers; 0 for none.
    caller: AtomicUsize,
    /// How many handlers it has not called yet.
    left: AtomicUsize,
}

/// The parts of a `sigaction` that a call needs, in atomics because signals come at any time.
struct Handler {
    address: AtomicUsize,
    flags: AtomicI32,
}

impl Stack {
    const fn new() -> Stack {
        Stack {
            handlers: [const { Handler { address: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; DEPTH],
            len: AtomicUsize::new(0),
            caller: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
        }
    }

    fn of(signal: c_int) -> &'static Stack {
        &EARLIER[usize::from(signal != SIGNALS[0])]
    }

    fn get(&self, index: usize) -> Option<(libc::sighandler_t, c_int)> {
        let handler = self.handlers.get(index).filter(|_| index < self.len.load(Ordering::SeqCst))?;
        Some((handler.address.load(Ordering::SeqCst), handler.flags.load(Ordering::SeqCst)))
    }

    fn set(&self, index: usize, (address, flags): (libc::sighandler_t, c_int)) {
        self.handlers[index].address.store(address, Ordering::SeqCst);
        self.handlers[index].flags.store(flags, Ordering::SeqCst);
    }

    /// Puts a handler on top, or moves it there.
    fn raise(&self, new: (libc::sighandler_t, c_int)) {
        let len = self.len.load(Ordering::SeqCst);
        let known = (0..len).find(|&index| self.get(index).is_some_and(|(address, _)| address == new.0));
        // A full stack loses its lowest but one: the lowest is the host's.
        let from = known.unwrap_or(if len < DEPTH { len } else { 1 });
        let top = from.max(len.saturating_sub(usize::from(known.is_some() || len == DEPTH)));
        for index in from..top {
            if let Some(above) = self.get(index + 1) {
                self.set(index, above);
            }
        }
        self.set(top, new);
        self.len.store(len.max(top + 1), Ordering::SeqCst);
    }
}

/// How many signals came.
pub(super) fn seen() -> u64 {
    SEEN.load(Ordering::Relaxed)
}

pub(super) fn interrupted() -> bool {
    MARK.load(Ordering::SeqCst) != 0
}

/// Starts the watching thread and puts the handlers in their places.
pub(super) fn install(default: Default) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok((reader, writer)) = std::io::pipe() else { return };
        if start_watching(reader).is_err() {
            return;
        }
        keep(writer);
        OWNER.store(std::process::id(), Ordering::SeqCst);
        if default == Default::Catch && handler_of(libc::SIGINT).is_some_and(|now| now.sa_sigaction == libc::SIG_DFL) {
            CATCH.store(true, Ordering::SeqCst);
            put(libc::SIGINT, libc::SA_RESTART);
        }
        ARMED.store(true, Ordering::SeqCst);
        arm();
    });
}

/// The write end stays open for good and must never make the handler wait.
fn keep(writer: PipeWriter) {
    let fd = writer.into_raw_fd();
    // SAFETY: plain calls on a descriptor that is ours.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
    WAKE.store(fd, Ordering::SeqCst);
}

/// Puts our handler in front of the ones that are there now. Called before every wait: whoever installs a handler later (Python's
/// `signal.signal` and `asyncio.run` do) replaces ours without knowing of it.
pub(super) fn arm() {
    if !ARMED.load(Ordering::Relaxed) || OWNER.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    SIGNALS.into_iter().for_each(take_front);
}

/// Puts our handler in front of another function. What is default or ignored stays so. May be called in a handler.
fn take_front(signal: c_int) {
    static BUSY: AtomicBool = AtomicBool::new(false);
    if let Some(now) = handler_of(signal)
        && ![libc::SIG_DFL, libc::SIG_IGN, ours()].contains(&now.sa_sigaction)
        && !BUSY.swap(true, Ordering::SeqCst)
    {
        // Known before ours can be called.
        Stack::of(signal).raise((now.sa_sigaction, now.sa_flags));
        put(signal, now.sa_flags & (libc::SA_RESTART | libc::SA_NODEFER));
        BUSY.store(false, Ordering::SeqCst);
    }
}

fn ours() -> libc::sighandler_t {
    handle as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as libc::sighandler_t
}

fn handler_of(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: an all-zero sigaction is a valid one, and the call only fills it.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &mut now) == 0).then_some(now)
    }
}

/// Installs our handler with flags like the previous one's, so that interrupted system calls behave as before. Never on the
/// alternate stack: see [`OwnStack`].
fn put(signal: c_int, flags: c_int) {
    // SAFETY: the handler keeps to what handlers may do, and the structure is complete.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = ours();
        new.sa_flags = flags | libc::SA_SIGINFO;
        libc::sigemptyset(&mut new.sa_mask);
        libc::sigaction(signal, &new, null_mut());
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the place of this thread's errno is always valid, and getpid and pthread_self may be called in a handler.
    let (saved, pid, me) = unsafe { (*errno(), libc::getpid() as u32, libc::pthread_self() as usize) };
    SEEN.fetch_add(1, Ordering::SeqCst);
    let stack = Stack::of(signal);
    let child = OWNER.load(Ordering::SeqCst) != pid;
    if stack.caller.load(Ordering::SeqCst) == me {
        // Raised by a handler that we called: it wants the one before it.
        let left = stack.left.load(Ordering::SeqCst);
        stack.left.store(left.saturating_sub(1), Ordering::SeqCst);
        earlier(stack, left, child, signal, info, context);
    } else {
        if !child {
            note(signal);
        }
        let len = stack.len.load(Ordering::SeqCst);
        if stack.caller.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            stack.left.store(len.saturating_sub(1), Ordering::SeqCst);
            let _room = OwnStack::enter();
            earlier(stack, len, child, signal, info, context);
            stack.caller.store(0, Ordering::SeqCst);
            if !child {
                // LLVM's handler put back what it had found, which need not have been ours.
                take_front(signal);
            }
        } else {
            // Another thread is handling the same signal: the host's own handler must know of this one all the same.
            earlier(stack, len.min(1), child, signal, info, context);
        }
    }
    // SAFETY: as above.
    unsafe { *errno() = saved };
}

/// While this lives, handlers of this thread run on its own stack.
///
/// Handlers that raise the signal again nest, and each level takes a frame with all vector registers: 3.6 KB with AVX-512. The
/// drivers ask for the alternate stack, which is Rust's in threads of Rust and 8 KB small: the third level would end the process.
struct OwnStack(libc::stack_t);

impl OwnStack {
    /// Nothing to do for a thread without an alternate stack, or on it already.
    fn enter() -> Option<OwnStack> {
        // SAFETY: system calls on locals; an all-zero stack_t is a valid one.
        unsafe {
            let mut old: libc::stack_t = std::mem::zeroed();
            if libc::sigaltstack(std::ptr::null(), &mut old) != 0
                || old.ss_flags & (libc::SS_DISABLE | libc::SS_ONSTACK) != 0
            {
                return None;
            }
            let mut none: libc::stack_t = std::mem::zeroed();
            none.ss_flags = libc::SS_DISABLE;
            (libc::sigaltstack(&none, null_mut()) == 0).then_some(OwnStack(old))
        }
    }
}

impl Drop for OwnStack {
    fn drop(&mut self) {
        // SAFETY: the alternate stack that this thread had before.
        unsafe { libc::sigaltstack(&self.0, null_mut()) };
    }
}

/// Ends the process if it did not react to an earlier signal; otherwise marks the time and wakes the watching thread.
fn note(signal: c_int) {
    let mark = MARK.load(Ordering::SeqCst);
    if mark != 0 && (CATCH.load(Ordering::SeqCst) || in_flight_before(mark)) {
        end(signal, b"netcl: interrupted again: leaving at once\n");
    }
    LAST.store(signal, Ordering::SeqCst);
    MARK.store(NEXT.load(Ordering::SeqCst), Ordering::SeqCst);
    // SAFETY: write may be called in a handler; one byte of a static. A full pipe has woken the thread already.
    unsafe { libc::write(WAKE.load(Ordering::SeqCst), b"!".as_ptr().cast(), 1) };
}

/// Calls the highest of the lowest `count` earlier handlers.
fn earlier(stack: &Stack, count: usize, child: bool, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    match count.checked_sub(1).and_then(|index| stack.get(index)) {
        Some(previous) => call(previous, signal, info, context),
        // A child inherits our handler, but not the program's promise to look at `interrupted`.
        None if child => die_of(signal),
        None => {}
    }
}

fn call(
    (address, flags): (libc::sighandler_t, c_int),
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the address came from the system, which would have called it in one of these two ways.
    unsafe {
        if flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(address);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = std::mem::transmute(address);
            handler(signal);
        }
    }
}

/// Ends the process because the device does not answer.
pub(crate) fn give_up() -> ! {
    end(
        LAST.load(Ordering::SeqCst),
        b"netcl: interrupted, and the device has not answered for 3 s: leaving without waiting for it\n",
    )
}

/// Ends the process without running anybody's exit handlers: 130 for SIGINT, by the signal itself otherwise. May be called in a
/// handler.
fn end(signal: c_int, message: &[u8]) -> ! {
    // SAFETY: write and _exit may be called in a handler; the message is a static.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
        if signal == libc::SIGINT {
            libc::_exit(128 + signal);
        }
    }
    die_of(signal)
}

/// Lets a signal do what it does by default: end the process. May be called in a handler.
fn die_of(signal: c_int) -> ! {
    // SAFETY: all of these may be called in a handler, and the set is a local.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, null_mut());
        libc::raise(signal);
        libc::_exit(128 + signal)
    }
}

/// Starts the thread that measures the grace, with all signals blocked there so that they go on reaching the others.
fn start_watching(reader: PipeReader) -> std::io::Result<()> {
    // SAFETY: plain calls on local sets; the mask is put back below.
    let mut old = unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    };
    let started = std::thread::Builder::new().name("netcl-interrupt".into()).spawn(move || watch(&reader));
    // SAFETY: the mask that was there before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw mut old, null_mut()) };
    started.map(drop)
}

fn watch(reader: &PipeReader) {
    let fd = reader.as_raw_fd();
    let mut pending: Option<(Instant, u64)> = None;
    loop {
        let left = pending.map_or(-1, |(since, _)| GRACE.saturating_sub(since.elapsed()).as_millis() as c_int + 1);
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry on the stack.
        if unsafe { libc::poll(&mut entry, 1, left) } > 0 {
            let mut bytes = [0_u8; 64];
            // SAFETY: the descriptor is open as long as the reader, and the array has that many bytes.
            unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
            // A new signal replaces the old one: a call that was in flight at both has ended the process already.
            pending = Some((Instant::now(), MARK.load(Ordering::SeqCst)));
        }
        if let Some((since, mark)) = pending
            && since.elapsed() >= GRACE
        {
            if in_flight_before(mark) {
                give_up();
            }
            pending = None;
        }
    }
}

/// Where this thread's errno is.
fn errno() -> *mut c_int {
    // SAFETY: the call has no conditions.
    unsafe {
        #[cfg(any(target_os = "linux", target_os = "emscripten", target_os = "redox"))]
        return libc::__errno_location();
        #[cfg(any(target_os = "android", target_os = "netbsd", target_os = "openbsd"))]
        return libc::__errno();
        #[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
        return libc::__error();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handler_that_was_there_last_is_on_top() {
        let stack = Stack::new();
        let addresses =
            || (0..DEPTH).map_while(|index| stack.get(index)).map(|(address, _)| address).collect::<Vec<_>>();
        for address in [10, 20, 30, 20, 20, 10] {
            stack.raise((address, 0));
        }
        assert_eq!(addresses(), [30, 20, 10]);
        stack.raise((30, 4));
        assert_eq!((addresses(), stack.get(2)), (vec![20, 10, 30], Some((30, 4))));
        for address in 40..60 {
            stack.raise((address, 0));
        }
        let full = addresses();
        assert_eq!((full.len(), full[0], full[DEPTH - 1]), (DEPTH, 20, 59));
        stack.raise((20, 0));
        assert_eq!((addresses().len(), addresses()[DEPTH - 1]), (DEPTH, 20));
    }
}

//! How a process with device work ends: interrupts while a driver call does not return, waits with a time limit, the finish at exit.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::error::{ClError, ClResult};
pub use super::exit::{finish_all, finish_at_exit, on_first_stream};
use super::fork;
pub use super::interrupts::{GRACE, catch_interrupts, install_interrupt_handler, interrupted};
use super::stream::Stream;
use crate::error::Error;

/// How often [`finish_timeout`] asks whether to go on.
pub const POLL: Duration = Duration::from_millis(10);

/// Waits for everything given to a stream, but at most `timeout`; `true` when it is done.
///
/// The wait happens on another thread. This one calls `poll` every 10 ms, and an error of `poll` ends the wait: the way for a
/// host to react to a signal meanwhile. When the wait ends early the work goes on, and so does the other thread.
///
/// ```
/// use netcl_core::backend::opencl::{Stream, discover, shutdown::finish_timeout};
/// use std::time::Duration;
///
/// for device in discover().map(|found| found.devices()).unwrap_or_default() {
///     let stream = Stream::on_device(&device)?;
///     assert!(finish_timeout(&stream, Duration::from_secs(30), || Ok::<(), netcl_core::Error>(()))?);
/// }
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn finish_timeout<E: From<Error>>(
    stream: &Arc<Stream>,
    timeout: Duration,
    mut poll: impl FnMut() -> Result<(), E>,
) -> Result<bool, E> {
    const CALL: &str = "finish_timeout";
    if fork::is_forked_child() {
        return Err(Error::from(ClError::Forked { call: CALL }).into());
    }
    let start = Instant::now();
    let (sender, receiver) = mpsc::channel::<ClResult<()>>();
    let waited = Arc::clone(stream);
    let worker = std::thread::Builder::new().name("netcl-finish".into()).spawn(move || {
        // Not counted as in flight: the caller stays able to react. Nobody listens any more after a time-out.
        let result = waited.finish_uncounted();
        // Dropped first: the last reference must not go with this thread after the caller went on.
        drop(waited);
        let _ = sender.send(result);
    });
    if let Err(error) = worker {
        let what = format!("no thread to wait on could be started: {error}");
        return Err(Error::State { op: CALL, what }.into());
    }
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        match receiver.recv_timeout(left.min(POLL)) {
            Ok(result) => {
                result.map_err(Error::from)?;
                return Ok(true);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let what = "the thread that waited ended without a result".to_owned();
                return Err(Error::State { op: CALL, what }.into());
            }
        }
        poll()?;
        if start.elapsed() >= timeout {
            return Ok(false);
        }
    }
}

//! Waiting for a queue without being stuck with it: a thread waits, the caller looks up now and then.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::error::{ClError, ClResult};
use super::stream::Stream;

/// How often the caller looks up.
const POLL: Duration = Duration::from_millis(10);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishOutcome {
    /// Everything given to the stream is done.
    Finished,
    /// Time was up; the device goes on.
    TimedOut,
    /// The caller no longer wanted to wait; the device goes on.
    Interrupted,
}

/// Waits for everything given to a stream, for at most `timeout` (`None`: for ever), asking `go_on` every 10 ms.
///
/// The driver's wait cannot be broken off. It runs in a thread of its own, which a timeout or an interruption leaves behind until
/// the device is done.
///
/// ```
/// use std::time::Duration;
/// use netcl_core::backend::opencl::{FinishOutcome, Stream, discover, interruptible_finish};
/// for device in discover().map(|found| found.devices()).unwrap_or_default() {
///     let stream = Stream::on_device(&device)?;
///     let outcome = interruptible_finish(&stream, Some(Duration::from_secs(30)), || true)?;
///     assert_eq!(outcome, FinishOutcome::Finished);
/// }
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Errors
/// What the driver says; [`ClError::Usage`] when no thread can be started.
pub fn interruptible_finish(
    stream: &Arc<Stream>,
    timeout: Option<Duration>,
    mut go_on: impl FnMut() -> bool,
) -> ClResult<FinishOutcome> {
    const OP: &str = "interruptible_finish";
    // A forked child is told before a thread is started.
    super::api::api(OP)?;
    // A duration too long for the clock is as good as none.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let (done, result) = channel();
    let waiting = stream.clone();
    std::thread::Builder::new()
        .name("netcl-finish".to_owned())
        .spawn(move || {
            let answer = waiting.finish();
            // Whoever asked may be the stream's last owner, and need not wait for this thread's reference to go.
            drop(waiting);
            // Nobody listens after a timeout.
            let _ = done.send(answer);
        })
        .map_err(|e| ClError::usage(OP, format!("no thread could be started: {e}")))?;
    loop {
        let left = deadline.map_or(POLL, |deadline| deadline.saturating_duration_since(Instant::now()));
        match result.recv_timeout(left.min(POLL)) {
            Ok(answer) => return answer.map(|()| FinishOutcome::Finished),
            Err(RecvTimeoutError::Disconnected) => return Err(ClError::usage(OP, "the waiting thread failed")),
            Err(RecvTimeoutError::Timeout) if !go_on() => return Ok(FinishOutcome::Interrupted),
            Err(RecvTimeoutError::Timeout) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                return Ok(FinishOutcome::TimedOut);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

//! Signals, exits and forks with a kernel that never ends, in processes of their own.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::shutdown::*;
use netcl_core::backend::opencl::*;
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::error::Error;
use netcl_core::tensor::Tensor;

use crate::opencl_support::{self, Folder, child_ok, devices};

/// Spins until `flag[0]` is set, which nobody does, or until the count runs out.
const SPIN: &str = "__kernel void spin(volatile __global int* flag, ulong count) {
    for (ulong i = 0; (count == 0 || i < count) && flag[0] == 0; ++i) { flag[1] = (int)i; }
}";

/// A stream with a kernel on its way that spins `count` times, for ever when 0.
fn spinning(device: &Device, count: u64) -> Arc<Stream> {
    let stream = Stream::on_device(device).unwrap();
    spin(&stream, count);
    stream
}

/// Gives a stream a kernel that spins `count` times.
fn spin(stream: &Stream, count: u64) {
    let kernel = stream.kernel("spin", || (Source::new(SPIN, ""), "spin")).unwrap();
    let flag = Buffer::new(stream.context(), MemFlags::READ_WRITE, 8).unwrap();
    stream.queue().write(&flag, 0, &[0_i32; 2]).unwrap();
    stream.queue().launch(&kernel, Grid::new([1]), &[(&flag).into(), Arg::scalar(count)], Deps::NONE).unwrap();
    stream.flush().unwrap();
    // The flag's memory must outlive the kernel.
    std::mem::forget(flag);
}

/// How many turns the device makes in a second, measured over at least 50 ms and without the compilation.
fn turns_per_second(stream: &Stream) -> f64 {
    stream.finish().unwrap();
    let mut count = 100_000;
    loop {
        let start = Instant::now();
        spin(stream, count);
        stream.finish().unwrap();
        if start.elapsed() > Duration::from_millis(50) {
            return count as f64 / start.elapsed().as_secs_f64();
        }
        count *= 4;
    }
}

/// A test of this binary that runs as a process of its own while this one sends it signals.
struct Running {
    child: Child,
    started: Instant,
    _cache: Folder,
}

impl Running {
    /// Starts it and waits until it says that it is ready.
    fn start(test: &str) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
        // Nothing comes from a cache: the drivers' compilers install signal handlers of their own, which must not matter.
        let empty = Folder::new(&test.replace("::", "-"));
        command.envs([("NETCL_CACHE", "0"), ("POCL_CACHE_DIR", empty.text())]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains("READY"));
        assert!(ready, "{test} ended early: {:?}", child.wait_with_output());
        // Somebody has to read on, or the child could block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        std::thread::sleep(Duration::from_millis(300));
        Running { child, started: Instant::now(), _cache: empty }
    }

    fn send(&self, signal: libc::c_int) {
        // SAFETY: the child is ours and has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    /// Its end: how, when, and what it wrote to stderr. A child that hangs is killed, and the test fails.
    fn end(self) -> (ExitStatus, Duration, String) {
        let Running { mut child, started, _cache } = self;
        while child.try_wait().unwrap().is_none() {
            if started.elapsed() > Duration::from_secs(20) {
                child.kill().unwrap();
                panic!("the child hangs: {:?}", child.wait_with_output());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let after = started.elapsed();
        let output = child.wait_with_output().unwrap();
        (output.status, after, String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn ready() {
    println!("READY");
}

fn first_device() -> Device {
    devices().into_iter().next().unwrap()
}

#[test]
#[ignore = "run by ctrl_c_during_an_endless_kernel"]
fn child_waits_for_ever() {
    catch_interrupts();
    let stream = spinning(&first_device(), 0);
    ready();
    stream.finish().unwrap();
}

#[test]
fn ctrl_c_during_an_endless_kernel_ends_with_130_after_the_grace() {
    if devices().is_empty() {
        return;
    }
    let child = Running::start("process_signals::child_waits_for_ever");
    child.send(libc::SIGINT);
    let (status, after, text) = child.end();
    assert_eq!(status.code(), Some(130), "{status} {text}");
    assert!(after >= GRACE && after < GRACE + Duration::from_secs(2), "{after:?}");
    assert!(text.contains("the device has not answered for 3 s"), "{text}");
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    if devices().is_empty() {
        return;
    }
    let child = Running::start("process_signals::child_waits_for_ever");
    child.send(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    child.send(libc::SIGINT);
    let (status, after, text) = child.end();
    assert_eq!(status.code(), Some(130), "{status} {text}");
    assert!(after < Duration::from_secs(2), "{after:?}");
}

#[test]
fn sigterm_during_an_endless_kernel_is_death_by_sigterm() {
    if devices().is_empty() {
        return;
    }
    let child = Running::start("process_signals::child_waits_for_ever");
    child.send(libc::SIGTERM);
    let (status, after, text) = child.end();
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status} {text}");
    assert!(after < Duration::from_secs(2), "{after:?}");
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_signal: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn set_own_handler(signal: libc::c_int) {
    let handler = count_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler only counts.
    assert_ne!(unsafe { libc::signal(signal, handler) }, libc::SIG_ERR);
}

#[test]
#[ignore = "run by a_host_that_handles_sigterm_cannot_keep_a_stuck_process"]
fn child_handles_sigterm() {
    install_interrupt_handler();
    // After the installation, as a host may: the next wait notices.
    set_own_handler(libc::SIGTERM);
    let stream = spinning(&first_device(), 0);
    ready();
    stream.finish().unwrap();
}

#[test]
fn a_host_that_handles_sigterm_cannot_keep_a_stuck_process() {
    if devices().is_empty() {
        return;
    }
    let child = Running::start("process_signals::child_handles_sigterm");
    child.send(libc::SIGTERM);
    let (status, after, text) = child.end();
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status} {text}");
    assert!(after >= GRACE && after < GRACE + Duration::from_secs(2), "{after:?}");
}

#[test]
#[ignore = "run by handlers_are_called_and_finite_work_is_not_cut_short"]
fn child_with_a_handler() {
    set_own_handler(libc::SIGINT);
    install_interrupt_handler();
    let device = first_device();
    let stream = spinning(&device, 1);
    let per_second = turns_per_second(&stream);
    for round in 1..=2 {
        spin(&stream, (per_second * 0.8) as u64);
        let start = Instant::now();
        let sender = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            // SAFETY: a signal of this process to itself, while the other thread waits for the kernel.
            unsafe { libc::kill(libc::getpid(), libc::SIGINT) };
        });
        stream.finish().unwrap();
        sender.join().unwrap();
        // Not in flight at the signal, so a wait may be under way when the grace ends. (In pieces: how long one takes depends on
        // what else the machine does.)
        while start.elapsed() < GRACE + Duration::from_secs(1) {
            spin(&stream, (per_second * 0.5) as u64);
            stream.finish().unwrap();
        }
        assert_eq!(HANDLED.load(Ordering::SeqCst), round);
        assert!(interrupted());
    }
    // Replaced behind our back, twice: the next wait stands in front again, and what is default or ignored stays so.
    set_own_handler(libc::SIGINT);
    spinning(&device, 10).finish().unwrap();
    // SAFETY: a signal of this process to itself.
    unsafe { libc::raise(libc::SIGINT) };
    assert_eq!(HANDLED.load(Ordering::SeqCst), 3);
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    spinning(&device, 10).finish().unwrap();
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGINT) };
    assert_eq!(HANDLED.load(Ordering::SeqCst), 3);
}

#[test]
fn handlers_are_called_and_finite_work_is_not_cut_short() {
    if !devices().is_empty() {
        let empty = Folder::new("handler");
        child_ok("process_signals::child_with_a_handler", &[("NETCL_CACHE", "0"), ("POCL_CACHE_DIR", empty.text())]);
    }
}

#[test]
#[ignore = "run by the_finish_at_exit_is_bounded_after_an_interrupt"]
fn child_exits_after_an_interrupt() {
    catch_interrupts();
    let _stream = spinning(&first_device(), 0);
    ready();
    while !interrupted() {
        std::thread::sleep(Duration::from_millis(5));
    }
    finish_at_exit();
}

#[test]
fn the_finish_at_exit_is_bounded_after_an_interrupt() {
    if devices().is_empty() {
        return;
    }
    let child = Running::start("process_signals::child_exits_after_an_interrupt");
    child.send(libc::SIGINT);
    let (status, after, text) = child.end();
    assert_eq!(status.code(), Some(130), "{status} {text}");
    assert!(after >= GRACE && after < GRACE + Duration::from_secs(2), "{after:?}");
}

#[test]
#[ignore = "run by signals_are_left_alone_unless_asked_for"]
fn child_asks_for_nothing() {
    let stream = spinning(&first_device(), 0);
    ready();
    stream.finish().unwrap();
}

#[test]
#[ignore = "run by signals_are_left_alone_unless_asked_for"]
fn child_asks_only_as_a_guest() {
    install_interrupt_handler();
    let stream = spinning(&first_device(), 0);
    ready();
    stream.finish().unwrap();
}

#[test]
fn signals_are_left_alone_unless_asked_for() {
    if devices().is_empty() {
        return;
    }
    for test in ["process_signals::child_asks_for_nothing", "process_signals::child_asks_only_as_a_guest"] {
        let child = Running::start(test);
        child.send(libc::SIGINT);
        let (status, after, text) = child.end();
        assert_eq!(status.signal(), Some(libc::SIGINT), "{test}: {status} {text}");
        assert!(after < Duration::from_secs(2), "{test}: {after:?}");
    }
}

#[test]
#[ignore = "run by waits_with_a_limit_end_in_time in a process that may leave a kernel behind"]
fn child_waits_with_a_limit() {
    let device = first_device();
    let quick = spinning(&device, 10);
    assert!(finish_timeout(&quick, Duration::from_secs(20), || Ok::<(), Error>(())).unwrap());
    let stuck = spinning(&device, 0);
    let start = Instant::now();
    let mut polls = 0;
    let limit = Duration::from_millis(300);
    let done = finish_timeout(&stuck, limit, || {
        polls += 1;
        Ok::<(), Error>(())
    });
    assert!(!done.unwrap());
    let took = start.elapsed();
    assert!(took >= limit && took < limit + Duration::from_millis(500), "{took:?}");
    assert!((5..=31).contains(&polls), "{polls} polls in 300 ms");
    let start = Instant::now();
    let error = finish_timeout(&stuck, Duration::from_secs(20), || Err(Error::argument("poll", "enough"))).unwrap_err();
    assert!(error.to_string().contains("enough") && start.elapsed() < Duration::from_secs(1), "{error}");
    println!("LIMITS HELD");
    // SAFETY: leaves without the driver's exit handlers, which would wait for the kernel.
    unsafe { libc::_exit(0) };
}

#[test]
fn waits_with_a_limit_end_in_time() {
    if devices().is_empty() {
        return;
    }
    let output = opencl_support::child("process_signals::child_waits_with_a_limit", &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("LIMITS HELD"), "{} {text}", output.status);
}

#[test]
#[ignore = "run by a_forked_child_computes_on_the_cpu_and_cannot_touch_the_device"]
fn child_forks_with_tensors() {
    install_interrupt_handler();
    let handle = manager().handle(&first_device()).unwrap();
    let Queue::OpenCl(stream) = &handle.queue else { panic!("not an OpenCL queue") };
    let tensor = Tensor::from_host(&handle.queue, &[1.0_f32, 2.0, 3.0], [3]).unwrap();
    // SAFETY: the child ends with _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: alarm turns a hang into a death that the parent sees.
        unsafe { libc::alarm(20) };
        let forked = |error: Error| matches!(error, Error::OpenCl(ClError::Forked { .. }));
        let cpu = manager().get("cpu").map(|cpu| cpu.queue);
        let sum = cpu.and_then(|q| Tensor::from_host(&q, &[1.0_f32, 2.0], [2])?.cast(DType::F64)?.to_host::<f64>());
        let wait = finish_timeout(stream, Duration::from_secs(1), || Ok::<(), Error>(()));
        let checks = [
            is_forked_child(),
            sum.is_ok_and(|sum| sum == [1.0, 2.0]),
            tensor.to_host::<f32>().is_err_and(forked),
            Tensor::from_host(&handle.queue, &[1.0_f32], [1]).is_err(),
            wait.is_err_and(forked),
            Stream::new(stream.queue()).is_err_and(forked),
            manager().get("gpu").is_err_and(forked),
        ];
        finish_at_exit();
        drop(tensor);
        let wrong = checks.iter().position(|ok| !ok);
        // SAFETY: ends the child.
        unsafe { libc::_exit(wrong.map_or(42, |index| 100 + index as i32)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 42, "the check that failed in the child is this number minus 100");
    assert_eq!(tensor.to_host::<f32>().unwrap(), [1.0, 2.0, 3.0], "the parent goes on");
    finish_at_exit();
}

#[test]
fn a_forked_child_computes_on_the_cpu_and_cannot_touch_the_device() {
    if !devices().is_empty() {
        child_ok("process_signals::child_forks_with_tensors", &[]);
    }
}

#[test]
#[ignore = "run by a_child_of_a_process_without_opencl_is_like_its_parent"]
fn child_forks_without_opencl() {
    assert!(manager().discover().unwrap().is_empty());
    // SAFETY: the child ends with _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let fine = !is_forked_child() && manager().get("auto").is_ok_and(|handle| handle.backend.name() == "cpu");
        // SAFETY: ends the child.
        unsafe { libc::_exit(if fine { 42 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(libc::WEXITSTATUS(status), 42);
}

#[test]
fn a_child_of_a_process_without_opencl_is_like_its_parent() {
    child_ok(
        "process_signals::child_forks_without_opencl",
        &[("NETCL_OPENCL_LIB", "/nonexistent"), ("NETCL_DEVICE", "")],
    );
}

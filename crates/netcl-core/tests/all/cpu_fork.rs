//! Real forks: a child must be able to allocate and to compute in parallel, whatever other threads were doing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use netcl_core::backend::cpu::{CpuBuffer, buffer, parallel_for, set_num_threads};

/// What a child does; it may not return to the test harness. 0 is success.
fn child() -> i32 {
    for round in 0..20usize {
        let Ok(block) = CpuBuffer::zeroed(1000 + round * 50_000) else { return 2 };
        let sum = AtomicUsize::new(0);
        let outcome = parallel_for("child", 10_000, 100, |range| {
            sum.fetch_add(range.sum::<usize>(), Ordering::Relaxed);
        });
        if outcome.is_err() || sum.into_inner() != 49_995_000 {
            return 3;
        }
        drop(block);
    }
    if buffer::stats().misses == 0 { 4 } else { 0 }
}

fn fork_and_wait(round: usize) {
    // SAFETY: the child calls only code under test and leaves with `_exit`, never returning into the harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let code = child();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let mut status = 0;
        // SAFETY: waits for the child just started.
        let done = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
        if done == pid {
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "round {round}: status {status:#x}");
            return;
        }
        if Instant::now() > deadline {
            // SAFETY: ends and reaps the child this function started.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, &mut status, 0);
            }
            panic!("round {round}: the child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One test only: a fork concerns the whole process.
#[test]
fn children_of_a_busy_process_compute_and_allocate() {
    set_num_threads(3);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let stop = &stop;
            scope.spawn(move || {
                let mut size = thread;
                while !stop.load(Ordering::Relaxed) {
                    size = (size * 7 + 13) % 300_000;
                    let _block = CpuBuffer::uninit(size).unwrap();
                    parallel_for("busy", 1000, 10, |range| {
                        std::hint::black_box(range.sum::<usize>());
                    })
                    .unwrap();
                }
            });
        }
        let rounds = std::panic::catch_unwind(|| (0..200).for_each(fork_and_wait));
        // Also after a failure: the scope waits for its threads.
        stop.store(true, Ordering::Relaxed);
        rounds.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
    });
    // The parent's own pool and counters are as before.
    assert_eq!(buffer::stats().live_bytes, 0);
    parallel_for("parent", 100, 1, |_| ()).unwrap();
}

//! What needs a process of its own: fork, a hidden library, the environment.

use netcl_core::backend::opencl::*;
use netcl_core::capabilities::DeviceProfile;

use crate::opencl_support::{self, child, child_ok, devices, setups};

#[test]
#[ignore = "run by a_machine_without_opencl_is_a_clean_error in a process of its own"]
fn child_without_a_library() {
    let error = discover().unwrap_err();
    assert!(matches!(error, ClError::Load(_)), "{error:?}");
    println!("{error}");
    assert_eq!(Api::get().err().unwrap().tried.len(), 1);
    assert!(Platform::all().is_err() && Context::new(&[]).is_err());
}

#[test]
fn a_machine_without_opencl_is_a_clean_error() {
    let text =
        child_ok("opencl_process::child_without_a_library", &[("NETCL_OPENCL_LIB", "/nonexistent/libOpenCL.so")]);
    assert!(text.contains("OpenCL is not available: /nonexistent/libOpenCL.so:"), "{text}");
    assert!(
        text.contains("NETCL_OPENCL_LIB names a file that cannot be loaded") && !text.contains("install"),
        "{text}"
    );
    // A library that loads but is not OpenCL.
    if cfg!(target_os = "linux") {
        let text = child_ok("opencl_process::child_without_a_library", &[("NETCL_OPENCL_LIB", "libc.so.6")]);
        assert!(text.contains("libc.so.6: lacks clGetPlatformIDs"), "{text}");
    }
}

#[test]
#[ignore = "run by a_machine_without_drivers_has_no_devices in a process of its own"]
fn child_without_drivers() {
    let found = discover().unwrap();
    println!("platforms={} devices={}", found.platforms.len(), found.devices().len());
}

#[test]
fn a_machine_without_drivers_has_no_devices() {
    if Api::get().is_err() {
        devices(); // says so aloud
        return;
    }
    let empty = opencl_support::Folder::new("no-icd");
    let text = child_ok("opencl_process::child_without_drivers", &[("OCL_ICD_VENDORS", empty.text())]);
    assert!(text.contains("platforms=0 devices=0"), "{text}");
}

#[test]
#[ignore = "run by a_forked_child_gets_errors_and_the_parent_goes_on in a process of its own"]
fn child_forks() {
    for setup in setups() {
        let context = &setup.context;
        let source = "__kernel void inc(__global int* x) { x[get_global_id(0)] += 1; }";
        let program = Builder::new(None).build(context, &setup.device, &Source::new(source, "")).unwrap();
        let kernel = program.kernel("inc").unwrap();
        let x = Buffer::new(context, MemFlags::READ_WRITE, 64).unwrap();
        setup.queue.write(&x, 0, &[0_i32; 16]).unwrap();
        let event = setup.queue.launch(&kernel, Grid::new([16]), &[(&x).into()], Deps::EVENT).unwrap().unwrap();
        let mapped_buffer = Buffer::new(context, MemFlags::READ_WRITE, 64).unwrap();
        let mapped = setup.queue.map(&mapped_buffer, 0..64, MapMode::ReadWrite, &[]).unwrap();
        let transfer = setup.queue.read_async(&x, 0, vec![0_i32; 16], &[]).unwrap();

        // SAFETY: the child only runs the closure below and ends with _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: alarm turns a hang into a death by signal, which the parent sees.
            unsafe { libc::alarm(20) };
            let forked = |result: Result<(), ClError>| matches!(result, Err(ClError::Forked { .. }));
            // What is known stays known, and what is not is "no": asking must not hang.
            setup.device.probes().fp16_storage();
            let checks = [
                is_forked_child(),
                !setup.device.name().is_empty(),
                forked(discover().map(drop)),
                forked(setup.queue.finish()),
                forked(setup.queue.write(&x, 0, &[1_i32])),
                forked(setup.queue.launch(&kernel, Grid::new([16]), &[(&x).into()], Deps::NONE).map(drop)),
                forked(Buffer::new(context, MemFlags::READ_WRITE, 4).map(drop)),
                forked(event.wait()),
                forked(kernel.duplicate().map(drop)),
                forked(Builder::new(None).build(context, &setup.device, &Source::new(source, "")).map(drop)),
                setup.queue.finish().unwrap_err().to_string().contains("use threads or spawned processes"),
            ];
            // Clones and drops touch nothing.
            drop((event.clone(), x.clone(), event, x, mapped, transfer, mapped_buffer, kernel, program));
            let wrong = checks.iter().position(|ok| !ok);
            // SAFETY: _exit skips the driver's own exit handlers, whose threads are not here.
            unsafe { libc::_exit(wrong.map_or(42, |index| 100 + index as i32)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 42, "the check that failed in the child is this number minus 100");

        assert!(!is_forked_child());
        drop(mapped);
        assert_eq!(transfer.wait().unwrap(), [1; 16]);
        setup.queue.launch(&kernel, Grid::new([16]), &[(&x).into()], Deps::NONE).unwrap();
        let mut back = [0_i32; 16];
        setup.queue.read(&x, 0, &mut back).unwrap();
        assert_eq!(back, [2; 16], "the parent goes on");
    }
}

#[cfg(unix)]
#[test]
fn a_forked_child_gets_errors_and_the_parent_goes_on() {
    if !devices().is_empty() {
        child_ok("opencl_process::child_forks", &[]);
    }
}

#[test]
#[ignore = "run by limits_make_devices_small in a process of its own"]
fn child_with_limits() {
    for setup in setups() {
        let (info, raw) = (setup.device.info(), setup.device.raw_info());
        assert_eq!(info.max_work_group_size, 64.min(raw.max_work_group_size));
        assert!(info.max_work_item_sizes.iter().all(|&n| n <= 64));
        assert_eq!(info.local_mem_size, 16 * 1024);
        assert_eq!(setup.context.max_alloc(), 1 << 20);
        let profile = DeviceProfile::from_opencl(&setup.device);
        assert!(!profile.has_fp64 && !profile.has_fp16 && !profile.has_subgroups);
        assert!(!profile.fp16_arithmetic() && profile.subgroups().is_none());
        assert!(profile.static_local_mem_size() <= 16 * 1024);
        assert_eq!(profile.max_work_group_size, 64);
        assert_eq!(Buffer::new(&setup.context, MemFlags::READ_WRITE, (1 << 20) + 1).unwrap_err().code(), Some(-61));
        let source = Source::new("__kernel void f(__global int* x) { x[get_global_id(0)] = 1; }", "");
        let kernel = Builder::new(None).build(&setup.context, &setup.device, &source).unwrap().kernel("f").unwrap();
        assert!(kernel.work_group_info().unwrap().max_size <= 64);
        let x = Buffer::new(&setup.context, MemFlags::READ_WRITE, 512).unwrap();
        let launch = |size| setup.queue.launch(&kernel, Grid::new([128]).local([size]), &[(&x).into()], Deps::NONE);
        launch(64).unwrap();
        assert_eq!(launch(128).unwrap_err().code(), Some(-54));
    }
}

#[test]
fn limits_make_devices_small() {
    if devices().is_empty() {
        return;
    }
    let limits = "wg=64,local=16k,alloc=1M,no_fp64,no_fp16,no_subgroups";
    child_ok("opencl_process::child_with_limits", &[("NETCL_LIMITS", limits), ("NETCL_CACHE", "0")]);
    let wrong = child("opencl_process::child_without_drivers", &[("NETCL_LIMITS", "wg=many")]);
    let text = String::from_utf8_lossy(&wrong.stderr);
    assert!(text.contains("NETCL_LIMITS: \"wg=many\" cannot be used; write a list such as wg=64"), "{text}");
}

#[test]
#[ignore = "run by the_environment_asks_for_profiling in a process of its own"]
fn child_reports_profiling() {
    for device in devices() {
        let context = Context::new(std::slice::from_ref(&device)).unwrap();
        println!("profiling={}", Queue::new(&context, &device).unwrap().profiling());
    }
}

#[test]
fn the_environment_asks_for_profiling() {
    if devices().is_empty() {
        return;
    }
    for (value, expected) in [("1", "profiling=true"), ("0", "profiling=false")] {
        let text = child_ok("opencl_process::child_reports_profiling", &[("NETCL_PROFILE_EVENTS", value)]);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
#[ignore = "run by a_program_may_end_right_after_its_first_launch in a process of its own"]
fn child_ends_after_its_first_launch() {
    for setup in setups() {
        let profile = DeviceProfile::from_opencl(&setup.device);
        // These build and run programs as well.
        let _ = (profile.fp16_arithmetic(), profile.subgroups(), profile.static_local_mem_size());
        let number = std::env::var("NETCL_TEST_NUMBER").unwrap_or_default();
        let text = format!("__kernel void f(__global int* x) {{ x[get_global_id(0)] = {number} + 0; }}");
        let program = Builder::new(None).build(&setup.context, &setup.device, &Source::new(text, "")).unwrap();
        let x = Buffer::new(&setup.context, MemFlags::READ_WRITE, 512).unwrap();
        let grid = Grid::new([128]).local([64]);
        setup.queue.launch(&program.kernel("f").unwrap(), grid, &[(&x).into()], Deps::NONE).unwrap();
    }
}

/// Drivers whose objects are cleaned up while they compile or run a kernel crash, every second time.
#[test]
fn a_program_may_end_right_after_its_first_launch() {
    if !devices().is_empty() {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        // A kernel that no driver has ever compiled, and one that a driver may have in a cache of its own.
        for number in [time % 1_000_000, 1, 1, 1, 1] {
            let variables = [("NETCL_CACHE", "0"), ("NETCL_TEST_NUMBER", &number.to_string())];
            child_ok("opencl_process::child_ends_after_its_first_launch", &variables);
        }
    }
}

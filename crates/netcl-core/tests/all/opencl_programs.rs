//! Building programs: error texts, the cache within and across processes, damage, parallel builds.

use std::fs;

use netcl_core::Error;
use netcl_core::ErrorKind;
use netcl_core::backend::opencl::cache::{Header, Key, Store};
use netcl_core::backend::opencl::*;

use crate::opencl_support::{Folder, Setup, child_ok, devices, distinct, setups};

const GOOD: &str =
    "__kernel void one(__global int* x) { x[0] = 41; }\n__kernel void two(__global int* x) { x[0] += VALUE; }\n";
const BAD: &str = "// a comment\n__kernel void f(__global floaty* x) {\n    x[0] = 1;\n}\n";

fn cached(folder: &Folder) -> Builder {
    Builder::new(Some(Store::new(&folder.0, 64 << 20)))
}

fn run(setup: &Setup, program: &Program) -> i32 {
    let x = Buffer::new(&setup.context, MemFlags::READ_WRITE, 4).unwrap();
    for name in ["one", "two"] {
        let kernel = program.kernel(name).unwrap();
        setup.queue.launch(&kernel, Grid::new([1]), &[Arg::Buffer(&x)], Deps::NONE).unwrap();
    }
    let mut back = [0_i32];
    setup.queue.read(&x, 0, &mut back).unwrap();
    back[0]
}

fn entry_files(folder: &Folder) -> Vec<std::path::PathBuf> {
    fs::read_dir(&folder.0).unwrap().map(|f| f.unwrap().path()).collect()
}

#[test]
fn build_errors_show_the_log_and_the_numbered_source() {
    for setup in setups() {
        let source = Source::new(BAD, "-DUNUSED=3");
        let error = Builder::new(None).build(&setup.context, &setup.device, &source).unwrap_err();
        let ClError::Build(build) = &error else { panic!("{error:?}") };
        assert!(build.device == setup.device.name() && build.options.ends_with("-DUNUSED=3"), "{build:?}");
        assert!(build.options.starts_with("-cl-std=CL"), "{}", build.options);
        assert!(build.log.contains("floaty"), "{}", build.log);
        let text = error.to_string();
        assert!(text.starts_with(&format!("an OpenCL program does not compile for {}", setup.device.name())), "{text}");
        assert!(text.contains("--- compiler log ---\n") && text.contains("--- source ---\n     1 | // a comment\n"));
        assert!(text.contains(">    2 | __kernel void f(__global floaty* x) {\n     3 |     x[0] = 1;"), "{text}");
        let core = Error::from(error);
        assert_eq!(core.kind(), ErrorKind::Build);
    }
}

#[test]
fn the_cache_counts_exactly_and_remembers_failures() {
    for setup in setups() {
        let folder = Folder::new("counts");
        let first = cached(&folder);
        let source = Source::new(GOOD, "-DVALUE=1");
        let build = |builder: &Builder, source: &Source| builder.build(&setup.context, &setup.device, source);
        assert_eq!(run(&setup, &build(&first, &source).unwrap()), 42);
        assert_eq!(first.stats(), BuildStats { builds: 1, misses: 1, ..BuildStats::default() });
        assert_eq!(run(&setup, &build(&first, &source).unwrap()), 42);
        assert_eq!(first.stats(), BuildStats { builds: 1, misses: 1, hits: 1, ..BuildStats::default() });
        assert_eq!(run(&setup, &build(&first, &Source::new(GOOD, "-DVALUE=2")).unwrap()), 43, "options count");

        let second = cached(&folder);
        let fresh = build(&second, &Source::new(BAD, "")).unwrap_err();
        let remembered = build(&second, &Source::new(BAD, "")).unwrap_err();
        let told = "(remembered by the program cache; `netcl cache clear` has it built again)\n";
        assert_eq!(remembered.to_string().replace(told, ""), fresh.to_string());
        assert_ne!(fresh.to_string(), remembered.to_string());
        // A failure is believed when it happens twice.
        let expected = BuildStats { builds: 2, failures: 2, misses: 1, negative_hits: 1, ..BuildStats::default() };
        assert_eq!(second.stats(), expected);

        let entries = second.store().unwrap().entries().unwrap();
        assert_eq!(entries.len(), 3);
        let good = entries.iter().filter_map(|e| e.header.as_ref()).find(|h| h.options.ends_with("VALUE=1")).unwrap();
        assert_eq!(good.kernels, ["one", "two"]);
        assert_eq!(good.device, setup.device.name());
        assert_eq!(entries.iter().filter(|e| e.header.as_ref().unwrap().failed).count(), 1);

        let without = Builder::new(None);
        build(&without, &source).unwrap();
        build(&without, &source).unwrap();
        assert_eq!(without.stats(), BuildStats { builds: 2, ..BuildStats::default() });
    }
}

#[test]
fn damaged_and_foreign_entries_are_rebuilt() {
    for setup in setups() {
        let folder = Folder::new("damage");
        let source = Source::new(GOOD, "-DVALUE=1");
        cached(&folder).build(&setup.context, &setup.device, &source).unwrap();
        let path = entry_files(&folder).remove(0);
        let good = fs::read(&path).unwrap();
        let mut flipped = good.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for bad in [&good[..good.len() / 2], &[], &flipped] {
            fs::write(&path, bad).unwrap();
            let builder = cached(&folder);
            assert_eq!(run(&setup, &builder.build(&setup.context, &setup.device, &source).unwrap()), 42);
            assert_eq!(builder.stats(), BuildStats { builds: 1, misses: 1, corrupt: 1, ..BuildStats::default() });
            let entries = builder.store().unwrap().entries().unwrap();
            assert_eq!(entries.len(), 1);
            assert_eq!(entries[0].header.as_ref().unwrap().kernels, ["one", "two"], "the entry is whole again");
        }
        // Intact, but nothing the driver can use.
        let header = Header { kernels: vec!["one".into(), "two".into()], ..Header::default() };
        let key = Key::of(&path).unwrap();
        Store::new(&folder.0, 1 << 20).put(&key, &header, b"no binary of any driver").unwrap();
        let builder = cached(&folder);
        assert_eq!(run(&setup, &builder.build(&setup.context, &setup.device, &source).unwrap()), 42);
        assert_eq!(builder.stats(), BuildStats { builds: 1, misses: 1, rejected: 1, ..BuildStats::default() });
    }
}

#[test]
fn entries_under_each_others_names_are_rebuilt() {
    const OTHER: &str = "__kernel void three(__global int* x) { x[0] = 3; }";
    for setup in setups() {
        let folder = Folder::new("swapped");
        let sources = [Source::new(GOOD, "-DVALUE=1"), Source::new(OTHER, "")];
        let build =
            |builder: &Builder| sources.each_ref().map(|s| builder.build(&setup.context, &setup.device, s).unwrap());
        build(&cached(&folder));
        let files = entry_files(&folder);
        let aside = folder.0.join("aside");
        for (from, to) in [(&files[0], &aside), (&files[1], &files[0]), (&aside, &files[1])] {
            fs::rename(from, to).unwrap();
        }
        let builder = cached(&folder);
        let [good, other] = build(&builder);
        assert_eq!((run(&setup, &good), other.kernel("three").unwrap().name()), (42, "three"));
        assert_eq!(builder.stats(), BuildStats { builds: 2, misses: 2, corrupt: 2, ..BuildStats::default() });
        build(&builder);
        assert_eq!(builder.stats().hits, 2, "the entries are whole again");
    }
}

/// PoCL's device, which compiles in a folder that it shares with other processes.
fn pocl() -> Option<Setup> {
    let found = setups().into_iter().find(|setup| setup.device.quirks().shared_compiler_folder);
    if found.is_none() {
        eprintln!("NOT TESTED: there is no PoCL here");
    }
    found
}

#[test]
#[ignore = "run by failures_that_pass_are_not_remembered in a process of its own"]
fn child_builds_in_a_broken_folder() {
    // Only in a folder made for it: this one is removed.
    let Some(folder) = std::env::var_os("NETCL_TEST_BROKEN_FOLDER").map(std::path::PathBuf::from) else { return };
    let Some(setup) = pocl() else { return };
    let builder = Builder::global();
    let build = || builder.build(&setup.context, &setup.device, &Source::new(GOOD, "-DVALUE=1"));
    // A file in place of PoCL's folder stops root as well.
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    let error = build().unwrap_err();
    assert!(matches!(error, ClError::Build(_)), "{error:?}");
    assert!(error.to_string().contains("the log blames no line of the source"), "{error}");
    assert_eq!(builder.stats(), BuildStats { builds: 2, failures: 2, misses: 1, ..BuildStats::default() });
    assert!(!setup.device.probes().fp16_storage());
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    assert_eq!(run(&setup, &build().unwrap()), 42);
    assert!(setup.device.probes().fp16_storage(), "a probe that could not be built is tried again");
    println!("both ways");
}

#[test]
fn failures_that_pass_are_not_remembered() {
    if pocl().is_none() {
        return;
    }
    let (cache, broken) = (Folder::new("cache"), Folder::new("broken"));
    let variables = [
        ("NETCL_CACHE_DIR", cache.text()),
        ("POCL_CACHE_DIR", broken.text()),
        ("NETCL_TEST_BROKEN_FOLDER", broken.text()),
    ];
    assert!(child_ok("opencl_programs::child_builds_in_a_broken_folder", &variables).contains("both ways"));
}

#[test]
fn a_folder_that_cannot_be_written_does_not_stop_a_build() {
    for setup in setups() {
        let folder = Folder::new("unwritable");
        let file = folder.0.join("file");
        fs::write(&file, "a file where a folder should be").unwrap();
        let builder = Builder::new(Some(Store::new(file.join("programs"), 1 << 20)));
        let program = builder.build(&setup.context, &setup.device, &Source::new(GOOD, "-DVALUE=1")).unwrap();
        assert_eq!(run(&setup, &program), 42);
        assert_eq!(builder.stats(), BuildStats { builds: 1, misses: 1, unwritten: 1, ..BuildStats::default() });
    }
}

#[test]
fn promised_kernels_are_built_together_and_once() {
    const ADD: &str = "__kernel void add(__global int* x) { x[0] += VALUE; }\n";
    let builds = || Builder::global().stats().builds + Builder::global().stats().hits;
    for device in devices() {
        let stream = Stream::on_device(&device).unwrap();
        let kernel = |value: i32| {
            let make = || (Source::new(ADD, format!("-DVALUE={value}")), "add");
            stream.kernel(&("promised", value), make).unwrap()
        };
        let before = builds();
        let (promised, broken) = {
            let _deferred = ahead::Deferred::begin();
            // The same one twice.
            let promised: Vec<Kernel> = (1..10).chain([1]).map(kernel).collect();
            (promised, stream.kernel("broken", || (Source::new(BAD, ""), "f")).unwrap())
        };
        assert_eq!(builds(), before, "{}", device.name());
        ahead::build_all(&promised).unwrap();
        assert_eq!(builds(), before + 9, "{}", device.name());
        let x = Buffer::new(stream.context(), MemFlags::READ_WRITE, 4).unwrap();
        stream.queue().write(&x, 0, &[0_i32]).unwrap();
        for kernel in promised.iter().chain([&kernel(5)]) {
            assert_eq!(kernel.arg_count().unwrap(), 1);
            stream.queue().launch(kernel, Grid::new([1]), &[Arg::Buffer(&x)], Deps::NONE).unwrap();
        }
        let mut sum = [0_i32];
        stream.queue().read(&x, 0, &mut sum).unwrap();
        assert_eq!(sum, [45 + 1 + 5], "{}", device.name());
        assert_eq!(builds(), before + 9, "{}", device.name());
        // What does not compile says so to whoever builds or launches it, and keeps nothing else from its build.
        let good = {
            let _deferred = ahead::Deferred::begin();
            kernel(20)
        };
        assert!(matches!(ahead::build_all([&broken, &good]), Err(ClError::Build(_))));
        let launched = stream.queue().launch(&broken, Grid::new([1]), &[Arg::Buffer(&x)], Deps::NONE);
        assert!(matches!(launched, Err(ClError::Build(_))));
        assert_eq!(good.group_up_to(1).unwrap(), 1);
    }
}

#[test]
fn retargeting_what_is_no_ptx_is_an_error_with_a_reason() {
    for setup in setups() {
        let source = Source::new(GOOD, "-DVALUE=1").retargeted();
        let error = Builder::new(None).build(&setup.context, &setup.device, &source).unwrap_err();
        assert!(matches!(error, ClError::Usage { .. }) && error.to_string().contains("PTX"), "{error}");
    }
}

#[test]
#[ignore = "run by processes_share_the_cache in a process of its own"]
fn child_builds_and_reports() {
    for setup in setups() {
        let program = build(&setup.context, &setup.device, GOOD, "-DVALUE=1").unwrap();
        assert_eq!(run(&setup, &program), 42);
    }
    let stats = Builder::global().stats();
    println!("builds={} hits={} misses={}", stats.builds, stats.hits, stats.misses);
}

#[test]
fn processes_share_the_cache() {
    let devices = devices();
    let (count, models) = (devices.len(), distinct(&devices));
    if count == 0 {
        return;
    }
    let folder = Folder::new("processes");
    let run = |extra: &[(&str, &str)]| {
        let mut variables = vec![("NETCL_CACHE_DIR", folder.text())];
        variables.extend_from_slice(extra);
        child_ok("opencl_programs::child_builds_and_reports", &variables)
    };
    let first = run(&[]);
    assert!(first.contains(&format!("builds={models} hits={} misses={models}", count - models)), "{first}");
    let second = run(&[]);
    assert!(second.contains(&format!("builds=0 hits={count} misses=0")), "{second}");
    let off = run(&[("NETCL_CACHE", "0")]);
    assert!(off.contains(&format!("builds={count} hits=0 misses=0")), "{off}");
    assert!(folder.0.join("programs").is_dir());
    // Several at once on an empty folder: each works, and the folder is whole afterwards.
    fs::remove_dir_all(folder.0.join("programs")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| run(&[]));
        }
    });
    let entries = Store::new(folder.0.join("programs"), 1 << 30).entries().unwrap();
    assert_eq!(entries.len(), models);
    assert!(entries.iter().all(|e| e.header.is_some()));
}

#[test]
fn a_build_waits_for_another_process_that_compiles() {
    if pocl().is_none() {
        return;
    }
    let (cache, shared) = (Folder::new("waits"), Folder::new("shared"));
    let compiling = fs::File::open(&shared.0).unwrap();
    compiling.lock().unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "opencl_programs::child_builds_and_reports",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.envs([("NETCL_CACHE_DIR", cache.text()), ("POCL_CACHE_DIR", shared.text())]);
    let mut child = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let mut told = lines.map_while(Result::ok).filter(|line| line.contains("waiting for another process"));
    assert!(told.next().is_some(), "ended without a word: {:?}", child.wait());
    assert!(child.try_wait().unwrap().is_none());
    compiling.unlock().unwrap();
    assert_eq!(told.count(), 0, "said once");
    assert!(child.wait().unwrap().success());
}

/// Processes that start at once with nothing in any cache.
fn cold_starts(processes: usize, rounds: usize) {
    for round in 0..rounds {
        let (cache, shared) = (Folder::new(&format!("cold-{round}")), Folder::new(&format!("cold-pocl-{round}")));
        let variables = [("NETCL_CACHE_DIR", cache.text()), ("POCL_CACHE_DIR", shared.text())];
        std::thread::scope(|scope| {
            for _ in 0..processes {
                scope.spawn(|| child_ok("opencl_programs::child_builds_and_reports", &variables));
            }
        });
    }
}

#[test]
fn cold_starts_at_once() {
    if !devices().is_empty() {
        cold_starts(8, 1);
    }
}

#[test]
#[ignore = "takes minutes"]
fn many_cold_starts_at_once() {
    if !devices().is_empty() {
        cold_starts(8, 16);
    }
}

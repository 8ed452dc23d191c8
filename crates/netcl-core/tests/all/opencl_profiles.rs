//! Profiles and probes on every device of the machine, and the layer's costs.

use std::time::Instant;

use netcl_core::backend::opencl::cache::Store;
use netcl_core::backend::opencl::*;
use netcl_core::capabilities::{DeviceProfile, MatrixUnit, device_profile, kernel_strategy};
use netcl_core::device_profile::ExtendedDeviceProfile;

use crate::opencl_support::{Folder, child_ok, devices, distinct, setups};

#[test]
fn profiles_agree_with_the_extension_string() {
    for device in devices() {
        let profile = device_profile(&device);
        assert_eq!(profile.name, device.name());
        assert_eq!(profile.backend, "cl");
        assert_eq!(profile.device_type, device.device_type().as_str());
        assert_eq!(profile.has_fp16, profile.extensions.iter().any(|e| e.contains("fp16")));
        assert_eq!(profile.supports_fp16(), profile.has_fp16);
        assert_eq!(profile.has_fp64, device.has_extension("cl_khr_fp64"));
        assert_eq!(profile.has_subgroups, profile.extensions.iter().any(|e| e.contains("subgroup")));
        assert!(["portable", "optimized"].contains(&kernel_strategy(&profile)));
        let extended = ExtendedDeviceProfile::from_opencl(&device);
        assert!(extended.bandwidth_gbps > 0.0 && extended.warp_size > 0 && extended.vector_width_float > 0);
        if device.device_type() == DeviceType::Cpu {
            assert_eq!(extended.architecture, "cpu");
            assert!(profile.unified_memory);
        }
    }
}

/// Asked in a process of its own with an empty cache and again with a full one, so both paths answer.
#[test]
#[ignore = "run by probes_answer_and_are_remembered in a process of its own"]
fn child_probes() {
    for device in devices() {
        let profile = DeviceProfile::from_opencl(&device);
        assert!(profile.fp16_storage(), "vload_half and vstore_half are core OpenCL");
        if profile.fp16_arithmetic() {
            assert!(profile.has_fp16);
        }
        let subgroups = profile.subgroups();
        assert!(profile.has_subgroups || subgroups.is_none());
        assert!(profile.static_local_mem_size() >= profile.local_mem_size);
        let units = profile.matrix_units();
        match device.raw_info().compute_capability {
            Some((9, _)) => assert_eq!(units, [MatrixUnit::NvidiaMma, MatrixUnit::NvidiaWgmma]),
            Some((8 | 10.., _)) => assert_eq!(units, [MatrixUnit::NvidiaMma]),
            _ => assert!(units.is_empty()),
        }
        if device.platform().name().contains("Intel(R) OpenCL") && device.device_type() == DeviceType::Cpu {
            assert!(profile.fp16_arithmetic() && subgroups.is_some_and(|s| s.shuffle));
        }
        println!(
            "FACTS {}: fp16 arithmetic {}, subgroups {subgroups:?}, static local {}, matrix {units:?}",
            profile.name,
            profile.fp16_arithmetic(),
            profile.static_local_mem_size()
        );
    }
}

#[test]
fn probes_answer_and_are_remembered() {
    if devices().is_empty() {
        return;
    }
    let folder = Folder::new("probes");
    let facts = |text: &str| text.lines().filter(|l| l.contains("FACTS")).map(str::to_owned).collect::<Vec<_>>();
    let first = child_ok("opencl_profiles::child_probes", &[("NETCL_CACHE_DIR", folder.text())]);
    let kept = Store::new(folder.0.join("probes"), 1 << 30).entries().unwrap();
    assert!(kept.len() >= distinct(&devices()), "each model has at least one fact on disk");
    assert!(kept.iter().all(|e| e.header.as_ref().is_some_and(|h| h.options.starts_with("probe "))));
    let second = child_ok("opencl_profiles::child_probes", &[("NETCL_CACHE_DIR", folder.text())]);
    assert_eq!(facts(&first), facts(&second));
    assert_eq!(Store::new(folder.0.join("probes"), 1 << 30).entries().unwrap().len(), kept.len());
}

/// Not a check: prints what a launch, a build and a load from the cache cost here.
#[test]
#[ignore = "prints timings; run it by name"]
fn costs() {
    for setup in setups() {
        let source = Source::new("__kernel void f(__global float* x, const float y) { x[get_global_id(0)] += y; }", "");
        let folder = Folder::new("costs");
        let builder = Builder::new(Some(Store::new(&folder.0, 1 << 30)));
        let time = |label: &str, repeats: u32, work: &dyn Fn()| {
            let start = Instant::now();
            (0..repeats).for_each(|_| work());
            println!(
                "{}: {label}: {:.2} us",
                setup.device.name(),
                start.elapsed().as_secs_f64() * 1e6 / f64::from(repeats)
            );
        };
        let build = || drop(builder.build(&setup.context, &setup.device, &source).unwrap());
        time("build", 1, &build);
        time("load from the cache", 20, &build);
        let kernel = builder.build(&setup.context, &setup.device, &source).unwrap().kernel("f").unwrap();
        let x = Buffer::new(&setup.context, MemFlags::READ_WRITE, 1024).unwrap();
        let launch = |queue: &Queue, deps| {
            drop(queue.launch(&kernel, Grid::new([64]).local([64]), &[(&x).into(), 1.0_f32.into()], deps).unwrap())
        };
        time("first launch", 1, &|| {
            launch(&setup.queue, Deps::NONE);
            setup.queue.finish().unwrap();
        });
        let profiled = Queue::with_profiling(&setup.context, &setup.device, true).unwrap();
        for _ in 0..2 {
            time("enqueue (2 arguments)", 2000, &|| launch(&setup.queue, Deps::NONE));
            setup.queue.finish().unwrap();
            time("enqueue with event", 2000, &|| launch(&setup.queue, Deps::EVENT));
            setup.queue.finish().unwrap();
            time("enqueue with event, profiling queue", 2000, &|| launch(&profiled, Deps::EVENT));
            profiled.finish().unwrap();
            time("enqueue and finish", 500, &|| {
                launch(&setup.queue, Deps::NONE);
                setup.queue.finish().unwrap();
            });
        }
        time("buffer of 1 MiB, made and dropped", 500, &|| {
            drop(Buffer::new(&setup.context, MemFlags::READ_WRITE, 1 << 20).unwrap());
        });
    }
}

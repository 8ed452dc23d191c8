//! Tensors on every OpenCL device of this machine, held against the native CPU.

use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::Device;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch;
use netcl_core::shape::Slice;
use netcl_core::tensor::{HostOptions, Tensor, reshape};

/// Every OpenCL device; a machine without one is named, and fails the run where everything must be tested.
fn devices() -> Vec<DeviceHandle> {
    let found = manager().discover().unwrap();
    if found.is_empty() {
        eprintln!("NOT TESTED: there is no OpenCL device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device: install pocl-opencl-icd");
    }
    found.iter().map(|device| manager().handle(device).unwrap()).collect()
}

fn values(n: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 37 + 11) % 101) as f64 * 0.37 - 17.5).collect()
}

/// Whether a device can hold a dtype: not every one has float64.
fn supports(queue: &Queue, dtype: DType) -> bool {
    queue.check_dtype("test", dtype).is_ok()
}

fn options(dtype: DType, asynchronous: bool, pinned: bool) -> HostOptions {
    HostOptions { dtype: Some(dtype), async_copy: Some(asynchronous), use_pinned: Some(pinned) }
}

#[test]
fn round_trips_by_every_path_and_dtype() {
    for device in devices() {
        for n in [1, 7, 1000, 100_003] {
            let data = values(n);
            for dtype in DType::FLOATS.into_iter().filter(|&dtype| supports(&device.queue, dtype)) {
                let expected = Tensor::from_host_with(&manager().cpu().queue, &data, [n], options(dtype, false, false));
                let expected = expected.unwrap().to_f64_vec().unwrap();
                for (asynchronous, pinned) in [(false, false), (false, true), (true, false), (true, true)] {
                    let tensor =
                        Tensor::from_host_with(&device.queue, &data, [n], options(dtype, asynchronous, pinned))
                            .unwrap();
                    if asynchronous {
                        tensor.wait().unwrap();
                        tensor.wait().unwrap();
                    }
                    assert_eq!(
                        tensor.to_f64_vec().unwrap(),
                        expected,
                        "{device:?} {dtype} {n} {asynchronous} {pinned}"
                    );
                }
            }
        }
    }
}

#[test]
fn an_upload_is_finished_before_a_kernel_reads_it() {
    for device in devices() {
        for round in 0..20 {
            let n = 1 << 18;
            let data: Vec<f32> = (0..n).map(|i| (i + round) as f32).collect();
            let tensor =
                Tensor::from_host_with(&device.queue, &data, [n], options(DType::F32, true, round % 2 == 0)).unwrap();
            let twin = tensor.duplicate().unwrap();
            drop(tensor);
            assert_eq!(twin.to_host::<f32>().unwrap(), data, "{device:?}");
        }
    }
}

#[test]
fn strided_copies_fills_and_casts_equal_the_cpu() {
    for device in devices() {
        for dtype in DType::FLOATS.into_iter().filter(|&dtype| supports(&device.queue, dtype)) {
            let results: Vec<Vec<Vec<f64>>> = [&device.queue, &manager().cpu().queue]
                .into_iter()
                .map(|q| {
                    let data = values(2 * 3 * 4 * 5);
                    let base = Tensor::from_host_with(q, &data, [2, 3, 4, 5], options(dtype, true, true)).unwrap();
                    let flipped = base
                        .permute(&[3, 1, 0, 2])
                        .unwrap()
                        .slice(0, Slice::new(None, None, -2))
                        .unwrap()
                        .slice(3, Slice::new(Some(1), None, 1))
                        .unwrap();
                    let expanded = base.select(2, 1).unwrap().expand([6, 2, 3, 5]).unwrap();
                    let assigned = base.duplicate().unwrap();
                    assigned.select(1, 2).unwrap().fill(0.25).unwrap();
                    assigned
                        .permute(&[1, 0, 3, 2])
                        .unwrap()
                        .select(0, 0)
                        .unwrap()
                        .assign(&base.select(1, 1).unwrap().permute(&[0, 2, 1]).unwrap())
                        .unwrap();
                    let mut out = vec![
                        flipped.to_f64_vec().unwrap(),
                        expanded.contiguous().unwrap().to_f64_vec().unwrap(),
                        assigned.to_f64_vec().unwrap(),
                        reshape(&flipped, [flipped.size()]).unwrap().to_f64_vec().unwrap(),
                    ];
                    let targets = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8];
                    for target in targets.into_iter().filter(|&target| supports(&device.queue, target)) {
                        out.push(flipped.cast(target).unwrap().to_f64_vec().unwrap());
                        out.push(base.cast(target).unwrap().to_f64_vec().unwrap());
                    }
                    out
                })
                .collect();
            assert_eq!(results[0], results[1], "{device:?} {dtype}");
        }
    }
}

/// Copies whose blocks have edges: longer than a block along and across, both axes, one, and none of them dense.
#[test]
fn copies_of_many_blocks_equal_the_cpu() {
    for device in devices() {
        let copies = |q: &Queue| {
            // Not every device casts from f64.
            let singles = |n: usize| values(n).into_iter().map(|value| value as f32).collect::<Vec<f32>>();
            let whole = |n: usize, shape: &[usize]| Tensor::from_host(q, &singles(n), shape).unwrap();
            let matrix = whole(300 * 211, &[300, 211]);
            let images = whole(3 * 5 * 70 * 67, &[3, 5, 70, 67]);
            let every = |t: &Tensor, axis, step| t.slice(axis, Slice::new(None, None, step)).unwrap();
            let views = [
                matrix.permute(&[1, 0]).unwrap(),
                every(&matrix, 1, 2).permute(&[1, 0]).unwrap(),
                every(&matrix, 0, -3),
                images.permute(&[0, 2, 3, 1]).unwrap(),
                images.permute(&[3, 0, 1, 2]).unwrap(),
                images.permute(&[1, 0, 2, 3]).unwrap(),
                every(&images, 3, -1).permute(&[2, 1, 0, 3]).unwrap(),
                images.select(3, 4).unwrap().expand([9, 3, 5, 70]).unwrap(),
                whole(10_007, &[10_007]),
            ];
            let halves = views.iter().map(|view| view.cast(DType::F16).unwrap().to_f64_vec().unwrap());
            let copied = views.iter().map(|view| view.contiguous().unwrap().to_f64_vec().unwrap());
            // Into a view, whose neighbours stay.
            let target = Tensor::full(q, [211, 400], DType::F32, 7.0).unwrap();
            let inside = target.slice(1, Slice::new(Some(50), Some(350), 1)).unwrap();
            inside.assign(&views[0]).unwrap();
            halves.chain(copied).chain([target.to_f64_vec().unwrap()]).collect::<Vec<Vec<f64>>>()
        };
        assert!(copies(&device.queue) == copies(&manager().cpu().queue), "{device:?}");
    }
}

#[test]
fn views_with_more_axes_than_the_kernel_has() {
    for device in devices() {
        let shape: Vec<usize> = vec![2; 14];
        let data: Vec<f32> = (0..1 << 14).map(|i| i as f32).collect();
        let axes: Vec<isize> = (0..14).map(|i| (i * 5) % 14).collect();
        let permuted = |q: &Queue| {
            Tensor::from_host(q, &data, shape.as_slice()).unwrap().permute(&axes).unwrap().to_host::<f32>().unwrap()
        };
        assert_eq!(permuted(&device.queue), permuted(&manager().cpu().queue), "{device:?}");
    }
}

#[test]
fn special_values_survive_casts() {
    for device in devices().into_iter().filter(|device| supports(&device.queue, DType::F64)) {
        let data =
            [f64::NAN, f64::INFINITY, -f64::INFINITY, 0.0, -0.0, 65519.9, 65520.0, 1e-8, 3.4e38, 1e300, 300.7, -3.9];
        for dtype in DType::FLOATS {
            let cast = |q: &Queue| {
                let tensor = Tensor::from_host(q, &data, [data.len()]).unwrap().cast(dtype).unwrap();
                let back = tensor.cast(DType::F64).unwrap().to_f64_vec().unwrap();
                let whole = tensor.cast(DType::I32).unwrap().to_f64_vec().unwrap();
                (back.into_iter().map(f64::to_bits).collect::<Vec<_>>(), whole)
            };
            let (ours, reference) = (cast(&device.queue), cast(&manager().cpu().queue));
            let quiet = |bits: &Vec<u64>| -> Vec<u64> {
                bits.iter().map(|&b| if f64::from_bits(b).is_nan() { f64::NAN.to_bits() } else { b }).collect()
            };
            assert_eq!(quiet(&ours.0), quiet(&reference.0), "{device:?} {dtype}");
            assert_eq!(ours.1, reference.1, "{device:?} {dtype}");
        }
    }
}

#[test]
fn memory_comes_from_the_pool_and_goes_back() {
    for device in devices() {
        let Queue::OpenCl(stream) = &device.queue else { panic!("not an OpenCL device") };
        let before = stream.pool().stats();
        let bytes = 3 << 20;
        drop(Tensor::from_shape(&device.queue, [bytes / 4], DType::F32).unwrap());
        let counter = Rc::new(launch::Counter::default());
        let tensor = launch::with_sink(counter.clone(), || Tensor::full(&device.queue, [bytes / 4], DType::F32, 1.5));
        let tensor = tensor.unwrap();
        let after = stream.pool().stats();
        assert!(after.hits > before.hits, "{device:?}: {after}");
        assert_eq!(counter.of("fill"), 1);
        assert!(tensor.to_host::<f32>().unwrap().iter().all(|&v| v == 1.5), "a recycled buffer was not filled");
        assert!(Tensor::from_shape(&device.queue, [0, 4], DType::F32).unwrap().storage().cl_memory().is_none());
    }
}

#[test]
fn mixing_devices_is_an_error_that_says_what_to_do() {
    let cpu = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [2]).unwrap();
    for device in devices() {
        let there = cpu.to(&device.queue).unwrap();
        let text = there.assign(&cpu).unwrap_err().to_string();
        assert!(text.contains("different devices") && text.contains("t.to(queue)"), "{text}");
        assert_eq!(there.to(&manager().cpu().queue).unwrap().to_host::<f32>().unwrap(), [1.0, 2.0]);
    }
}

#[test]
fn selectors_find_what_they_name() {
    let found = manager().discover().unwrap();
    for (index, device) in found.iter().enumerate() {
        let handle = manager().handle(device).unwrap();
        assert_eq!(manager().default(&index.to_string()).unwrap().as_ref(), Some(&handle));
        assert!(manager().default(&device.name().to_uppercase()).unwrap().is_some());
        assert!(manager().default(device.platform().name()).unwrap().is_some());
    }
    if !found.is_empty() {
        assert_eq!(manager().default("opencl").unwrap().unwrap().backend.name(), "cl");
        assert!(manager().default("0:0").unwrap().is_some());
        let double = found.iter().any(|device| supports(&manager().handle(device).unwrap().queue, DType::F64));
        assert!(manager().default("fp64").unwrap().is_some_and(|handle| double || handle.backend.name() == "cpu"));
    }
    let fast = |device: &Device| ["gpu", "accel"].contains(&device.device_type().as_str());
    let auto = manager().default("auto").unwrap().unwrap();
    if std::env::var_os("NETCL_DEVICE").is_none() {
        assert_eq!(auto.backend.name(), if found.iter().any(fast) { "cl" } else { "cpu" });
    }
    let driver = manager().cpu_driver().unwrap();
    assert_eq!(driver.is_some(), found.iter().any(|device| device.device_type().as_str() == "cpu"));
    assert!(driver.is_none_or(|handle| handle.backend.name() == "cl" && handle.device_type.as_str() == "cpu"));
    assert!(manager().default("matrix").unwrap().is_none_or(|h| h.device_type.as_str() == "gpu"));
    assert!(manager().default("99").unwrap().is_none() && manager().default("99:0").unwrap().is_none());
    assert_eq!(manager().default("cpu").unwrap().unwrap().backend.name(), "cpu");
    let text = manager().get("no such device").unwrap_err().to_string();
    assert!(text.contains("no device matches \"no such device\"; available:") && text.contains("cpu ("), "{text}");
}

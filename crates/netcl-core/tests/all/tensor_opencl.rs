//! Tensors over buffers, leases and pools of the caller's choice, reads that do not wait, host memory, and patient waits, on
//! every OpenCL device of this machine.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use netcl_core::Error;
use netcl_core::backend::Queue;
use netcl_core::backend::opencl as cl;
use netcl_core::backend::opencl::{
    Arg, Buffer, ClSource, Context, Deps, Grid, MemFlags, Stream, shutdown::finish_timeout,
};
use netcl_core::device::{DeviceType, manager};
use netcl_core::dtype::DType;
use netcl_core::memory::{
    BlockSource, BufferPool, ZeroCopyRules, create_pinned_buffer, create_zero_copy_buffer, has_svm_support,
    is_integrated_gpu,
};
use netcl_core::tensor::Tensor;

use crate::opencl_support;

/// Runs a test on a stream of its own on every device.
fn on_every_device(test: impl Fn(&Queue, &Arc<Stream>)) {
    for device in opencl_support::devices() {
        let stream = Stream::on_device(&device).unwrap();
        test(&Queue::OpenCl(stream.clone()), &stream);
    }
}

fn pool_of(stream: &Stream) -> BufferPool<ClSource> {
    BufferPool::new(ClSource::device_memory(stream.context(), stream.device()))
}

#[test]
fn a_pool_of_ones_own_gets_its_memory_back() {
    on_every_device(|queue, stream| {
        let pool = pool_of(stream);
        let x = Tensor::full_in(queue, &pool, [10, 10], DType::F32, 2.5).unwrap();
        assert_eq!(x.to_host::<f32>().unwrap(), [2.5; 100]);
        assert_eq!(pool.stats().bytes_in_use, 512);
        drop(x);
        assert_eq!((pool.stats().bytes_in_use, pool.stats().bytes_cached), (0, 512));
        assert!(Tensor::full_in(queue, &pool, [0], DType::F32, 1.0).unwrap().storage().cl_memory().is_none());
        let cpu = manager().cpu().queue;
        assert!(matches!(Tensor::full_in(&cpu, &pool, [4], DType::F32, 0.0), Err(Error::Argument { .. })));
    });
}

#[test]
fn a_lease_ends_with_the_last_tensor_over_it() {
    on_every_device(|queue, stream| {
        let pool = pool_of(stream);
        let lease = Arc::new(RwLock::new(pool.allocate(48).unwrap()));
        let x = Tensor::from_lease(queue, lease.clone(), [3, 4], DType::F32).unwrap();
        x.fill(1.0).unwrap();
        let view = x.select(0, 1).unwrap();
        drop(x);
        assert!(!lease.read().unwrap().is_released());
        assert_eq!(view.to_host::<f32>().unwrap(), [1.0; 4]);
        drop(view);
        assert!(lease.read().unwrap().is_released());
        assert!(matches!(Tensor::from_lease(queue, lease, [12], DType::F32), Err(Error::State { .. })));
    });
}

#[test]
fn foreign_buffers_are_checked_for_size_and_context() {
    on_every_device(|queue, stream| {
        let buffer = Buffer::new(stream.context(), MemFlags::READ_WRITE, 48).unwrap();
        stream.queue().write(&buffer, 0, &[7.0f32; 12]).unwrap();
        let x = Tensor::from_buffer(queue, buffer.clone(), [12], DType::F32).unwrap();
        assert_eq!(x.to_host::<f32>().unwrap(), [7.0; 12]);
        assert!(matches!(Tensor::from_buffer(queue, buffer.clone(), [13], DType::F32), Err(Error::Shape { .. })));
        let context = Context::new(std::slice::from_ref(stream.device())).unwrap();
        let other = Queue::OpenCl(Stream::new(&cl::Queue::new(&context, stream.device()).unwrap()).unwrap());
        let error = Tensor::from_buffer(&other, buffer, [12], DType::F32).unwrap_err();
        assert!(error.to_string().contains("another OpenCL context"), "{error}");
    });
}

#[test]
fn asynchronous_reads_give_the_values_and_may_be_dropped() {
    on_every_device(|queue, _| {
        let host: Vec<f32> = (0..50_000).map(|i| i as f32).collect();
        let x = Tensor::from_host(queue, &host, [50_000]).unwrap();
        drop(x.to_host_async::<f32>().unwrap());
        let transfer = x.to_host_async::<f32>().unwrap();
        assert!(transfer.event().is_some());
        drop(x);
        assert_eq!(transfer.wait().unwrap(), host);
        let wrong = Tensor::from_shape(queue, [3], DType::F32).unwrap().to_host_async::<f64>();
        assert!(matches!(wrong.map(|_| ()), Err(Error::Dtype { .. })));
    });
    let cpu = Tensor::from_host(&manager().cpu().queue, &[1.0f64, 2.0], [2]).unwrap();
    let transfer = cpu.to_host_async::<f64>().unwrap();
    assert!(transfer.is_complete().unwrap() && transfer.event().is_none());
    assert_eq!(transfer.wait().unwrap(), [1.0, 2.0]);
}

#[test]
fn a_read_gives_the_uploads_page_locked_memory_back() {
    on_every_device(|queue, stream| {
        let x = Tensor::from_host(queue, &[1.0f32; 1000], [1000]).unwrap();
        x.to_host::<f32>().unwrap();
        assert!(x.storage().cl_memory().unwrap().upload().is_none());
        assert_eq!(stream.pinned_pool().stats().bytes_in_use, 0);
    });
}

#[test]
fn buffers_of_host_memory() {
    on_every_device(|queue, stream| {
        let pinned = create_pinned_buffer(stream.context(), 4096).unwrap();
        assert!(pinned.flags().contains(MemFlags::ALLOC_HOST_PTR) && pinned.size() == 4096);
        assert!(matches!(create_pinned_buffer(stream.context(), 0), Err(Error::Argument { .. })));
        assert!(matches!(create_pinned_buffer(stream.context(), usize::MAX), Err(Error::OutOfMemory { .. })));
        let rules = ZeroCopyRules::of(stream.context());
        match create_zero_copy_buffer(stream.context(), vec![3.0f32; 1024]) {
            Ok(buffer) => {
                let x = Tensor::from_buffer(queue, buffer, [1024], DType::F32).unwrap();
                assert_eq!(x.to_host::<f32>().unwrap(), [3.0; 1024]);
            }
            Err(error) => assert!(rules.alignment > 16, "{error}"),
        }
        assert_eq!(has_svm_support(queue), stream.device().info().svm_capabilities != 0);
        assert!(is_integrated_gpu(queue) || stream.device().device_type().as_str() != "cpu");
    });
}

/// Runs a test on every device that works in this host's memory, with the source of its blocks.
#[cfg(target_os = "linux")]
fn on_every_processor(test: impl Fn(&Queue, &Stream, &ClSource)) {
    on_every_device(|queue, stream| {
        let device = stream.device();
        if device.device_type() == DeviceType::Cpu && device.info().host_unified_memory {
            test(queue, stream, &ClSource::device_memory(stream.context(), device));
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn large_blocks_of_processors_lie_in_pages_of_this_process() {
    const USE_HOST_PTR: u64 = 1 << 3;
    on_every_processor(|queue, stream, source| {
        let small = source.allocate(1 << 20).unwrap();
        assert_eq!((small.flags().bits() & USE_HOST_PTR, small.size()), (0, 1 << 20));
        // No multiple of a page.
        let n = (5 << 20) / 4 + 3;
        let large = source.allocate(4 * n).unwrap();
        assert_ne!(large.flags().bits() & USE_HOST_PTR, 0);
        assert_eq!(large.size(), (4 * n).next_multiple_of(4096));
        let x = Tensor::from_buffer(queue, large, [n], DType::F32).unwrap();
        assert!(x.to_host::<f32>().unwrap().iter().all(|v| v.to_bits() == 0), "fresh pages are zeros");
        let values: Vec<f32> = (0..n).map(|i| i as f32 * 0.5 - 7.0).collect();
        let y = Tensor::from_host(queue, &values, [n]).unwrap();
        x.assign(&y).unwrap();
        assert_eq!(x.to_host::<f32>().unwrap(), values);
        // Page-locked memory stays what it is called.
        let pinned = ClSource::pinned_memory(stream.context(), stream.device()).allocate(8 << 20).unwrap();
        assert!(pinned.flags().contains(MemFlags::ALLOC_HOST_PTR));
    });
}

#[test]
#[cfg(target_os = "linux")]
fn processors_have_no_more_memory_than_they_say() {
    on_every_processor(|_, stream, source| {
        let all = usize::try_from(stream.device().info().global_mem_size).unwrap();
        let largest = source.largest() / 4096 * 4096;
        // Nothing touches the pages, so this costs address space only.
        let held: Vec<Buffer> = (0..all / largest).map(|_| source.allocate(largest).unwrap()).collect();
        match source.allocate(largest) {
            Err(Error::OutOfMemory { bytes, holders, .. }) => {
                assert_eq!(bytes, largest);
                assert!(holders.contains(&format!("of the device's {all} bytes")), "{holders}");
            }
            other => panic!("{:?}", other.map(|buffer| buffer.size())),
        }
        drop(held);
        // Drivers may let go a little later.
        let until = Instant::now() + Duration::from_secs(20);
        while let Err(error) = source.allocate(largest) {
            assert!(Instant::now() < until, "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn waits_finish_time_out_or_are_given_up() {
    on_every_device(|queue, stream| {
        let go_on = || Ok::<(), netcl_core::Error>(());
        assert!(finish_timeout(stream, Duration::MAX, go_on).unwrap());
        // A kernel of a second or so: one work-item that counts.
        let source = "__kernel void spin(__global uint *x, ulong n) { uint v = x[0]; \
             for (ulong i = 0; i < n; i++) v = v * 1664525u + 1013904223u + (uint)(i >> 7); x[0] = v; }";
        let program = cl::build(stream.context(), stream.device(), source, "").unwrap();
        let kernel = program.kernel("spin").unwrap();
        let memory = Tensor::from_shape(queue, [1], DType::I32).unwrap();
        let buffer = memory.storage().cl_memory().unwrap().acquire(stream).unwrap();
        let spin = |n: u64| {
            let args = [Arg::Buffer(&buffer), Arg::scalar(n)];
            stream.queue().launch(&kernel, Grid::new([1]).local([1]), &args, Deps::NONE).unwrap();
            stream.flush().unwrap();
        };
        spin(1);
        stream.finish().unwrap();
        let start = Instant::now();
        spin(20_000_000);
        stream.finish().unwrap();
        let per_second = 2e7 / start.elapsed().as_secs_f64();
        spin((per_second * 1.5) as u64);
        let start = Instant::now();
        assert!(!finish_timeout(stream, Duration::from_millis(50), go_on).unwrap());
        let give_up = || Err(netcl_core::Error::argument("test", "given up"));
        assert!(finish_timeout(stream, Duration::MAX, give_up).unwrap_err().to_string().contains("given up"));
        assert!(start.elapsed() < Duration::from_secs(1));
        assert!(finish_timeout(stream, Duration::MAX, go_on).unwrap());
    });
}

//! Objects and commands of the OpenCL layer, on every device of the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use netcl_core::backend::opencl::*;

use crate::opencl_support::{self, Setup, setups};

const KERNELS: &str = r#"
__kernel void scale(__global float* x, const float factor) { x[get_global_id(0)] *= factor; }
__kernel void ids(__global int* out, const int base) {
    out[get_global_id(0) - base] = (int)(get_global_id(0) * 1000 + get_local_id(0));
}
__kernel void reverse(__global int* x, __local int* tile) {
    const size_t i = get_local_id(0), n = get_local_size(0);
    tile[i] = x[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    x[get_global_id(0)] = tile[n - 1 - i];
}
__kernel void is_null(__global int* out, __global const int* p) { out[0] = p == 0; }
__kernel void sum4(__global float* out, const float4 v) { out[0] = v.x + v.y + v.z + v.w; }
"#;

fn buffer(setup: &Setup, bytes: usize) -> Buffer {
    Buffer::new(&setup.context, MemFlags::READ_WRITE, bytes).unwrap()
}

fn program(setup: &Setup) -> Program {
    let source = Source::new(KERNELS, "-cl-kernel-arg-info");
    Builder::new(None).build(&setup.context, &setup.device, &source).unwrap()
}

fn usage(error: ClError) -> String {
    assert!(matches!(error, ClError::Usage { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn discovery_is_stable_and_typed() {
    let devices = opencl_support::devices();
    assert_eq!(devices, discover().unwrap().devices(), "the same objects in the same order");
    for device in devices {
        let info = device.info();
        assert!(!info.name.is_empty() && !info.driver_version.is_empty() && info.opencl >= (1, 2), "{info:?}");
        assert!(info.compute_units > 0 && info.max_work_group_size > 0 && info.max_work_item_sizes.len() >= 3);
        assert!(info.global_mem_size >= info.max_mem_alloc_size && info.max_mem_alloc_size > 0);
        assert!(info.base_addr_align.is_power_of_two() && info.max_parameter_size >= 256);
        assert!(!info.extensions.is_empty() && info.compiler_available);
        let platform = device.platform();
        assert!(platform.version().starts_with("OpenCL ") && !platform.vendor().is_empty());
        // SAFETY: the pointers come from live objects.
        let (same, same_platform) = unsafe {
            (Device::from_int_ptr(device.int_ptr()).unwrap(), Platform::from_int_ptr(platform.int_ptr()).unwrap())
        };
        assert_eq!((same, &same_platform), (device.clone(), platform));
    }
}

#[test]
fn blocking_transfers_respect_offsets_and_bounds() {
    for setup in setups() {
        let (queue, x) = (&setup.queue, buffer(&setup, 16));
        queue.write(&x, 0, &[1_u32, 2, 3, 4]).unwrap();
        queue.write(&x, 8, &[9_u8, 0, 0, 0]).unwrap();
        let mut back = [0_u32; 3];
        queue.read(&x, 4, &mut back).unwrap();
        assert_eq!(back, [2, 9, 4]);
        queue.write::<u8>(&x, 16, &[]).unwrap();
        queue.read::<u8>(&x, 16, &mut []).unwrap();
        let text = usage(queue.write(&x, 12, &[0_u64]).unwrap_err());
        assert!(text.contains("8 bytes at offset 12 reach past the end of a buffer of 16 bytes"), "{text}");
        assert!(usage(queue.read(&x, usize::MAX, &mut back).unwrap_err()).contains("past the end"));
    }
}

#[test]
fn transfers_in_the_background_keep_their_memory_and_wait_for_events() {
    for setup in setups() {
        let (queue, x) = (&setup.queue, buffer(&setup, 4000));
        let event = queue.fill(&x, 0..4000, 7_u32, Deps::EVENT).unwrap().unwrap();
        let read = queue.read_async(&x, 0, vec![0_u32; 1000], &[&event]).unwrap();
        queue.flush().unwrap();
        assert_eq!(read.wait().unwrap(), [7; 1000]);
        assert_eq!(event.status().unwrap(), EventStatus::Complete);
        // Dropping one unread is a wait, not a crash.
        drop(queue.read_async(&x, 0, vec![0_u8; 4000].into_boxed_slice(), &[]).unwrap());
        assert!(queue.read_async(&x, 1, vec![0_u8; 4000], &[]).is_err());
    }
}

#[test]
fn copies_fills_and_waits_across_queues() {
    for setup in setups() {
        let (queue, a, b) = (&setup.queue, buffer(&setup, 64), buffer(&setup, 64));
        let other = Queue::with_profiling(&setup.context, &setup.device, false).unwrap();
        let filled = queue.fill(&a, 0..64, 0x0102_0304_u32, Deps::EVENT).unwrap().unwrap();
        assert!(queue.fill(&a, 16..32, 7_u8, Deps::NONE).unwrap().is_none(), "no event unless asked");
        let done = queue.marker(&[&filled]).unwrap();
        assert!(other.copy(&a, 8, &b, 0, 32, Deps::after(&[&done]).event()).unwrap().is_some());
        other.barrier(Deps::after(&[&done])).unwrap();
        let mut back = [0_u32; 8];
        other.read(&b, 0, &mut back).unwrap();
        assert_eq!(
            back,
            [0x0102_0304, 0x0102_0304, 0x0707_0707, 0x0707_0707, 0x0707_0707, 0x0707_0707, 0x0102_0304, 0x0102_0304]
        );
        assert!(usage(queue.fill(&a, 2..10, 0_u32, Deps::NONE).unwrap_err()).contains("must divide both ends"));
        assert!(usage(queue.fill(&a, 0..12, [0_u8; 3], Deps::NONE).unwrap_err()).contains("pattern of 3 bytes"));
        assert!(queue.copy(&a, 40, &b, 0, 32, Deps::NONE).is_err());
        assert!(queue.copy(&a, 64, &b, 0, 0, Deps::EVENT).unwrap().is_some(), "an empty copy still has an event");
        Event::wait_all(&[]).unwrap();
        queue.finish().unwrap();
    }
}

#[test]
fn mappings_are_exclusive_and_unmap_themselves() {
    for setup in setups() {
        let queue = &setup.queue;
        for flags in [MemFlags::READ_WRITE, MemFlags::READ_WRITE | MemFlags::ALLOC_HOST_PTR] {
            let x = Buffer::new(&setup.context, flags, 1024).unwrap();
            let mut mapped = queue.map(&x, 0..1024, MapMode::Overwrite, &[]).unwrap();
            mapped.bytes_mut().unwrap().fill(5);
            assert!(usage(queue.map(&x, 0..4, MapMode::Read, &[]).err().unwrap()).contains("mapped already"));
            let event = mapped.unmap(Deps::EVENT).unwrap().unwrap();
            let mut partial = queue.map(&x, 1000..1024, MapMode::ReadWrite, &[&event]).unwrap();
            assert_eq!(partial.bytes(), [5; 24]);
            partial.bytes_mut().unwrap()[0] = 6;
            drop(partial);
            let mut reader = queue.map(&x, 999..1002, MapMode::Read, &[]).unwrap();
            assert_eq!(reader.bytes(), [5, 6, 5]);
            assert!(reader.bytes_mut().is_none());
            drop(reader);
            assert!(queue.map(&x, 5..5, MapMode::Read, &[]).is_err());
            assert!(queue.map(&x, 1000..1025, MapMode::Read, &[]).is_err());
        }
    }
}

#[test]
fn sub_buffers_share_memory_and_check_alignment() {
    for setup in setups() {
        let align = setup.device.info().base_addr_align;
        let whole = buffer(&setup, 4 * align);
        let part = whole.sub_buffer(align..3 * align).unwrap();
        assert_eq!(part.size(), 2 * align);
        assert_eq!(part.parent().map(|(p, at)| (p.int_ptr(), at)), Some((whole.int_ptr(), align)));
        setup.queue.fill(&whole, 0..4 * align, 1_u8, Deps::NONE).unwrap();
        setup.queue.fill(&part, 0..2 * align, 2_u8, Deps::NONE).unwrap();
        drop(whole.clone());
        let mut back = vec![0_u8; 4 * align];
        setup.queue.read(&whole, 0, &mut back).unwrap();
        assert!(back.iter().enumerate().all(|(i, &v)| v == if (align..3 * align).contains(&i) { 2 } else { 1 }));
        let mapped = setup.queue.map(&part, 0..1, MapMode::Read, &[]).unwrap();
        assert!(setup.queue.map(&whole, 0..1, MapMode::Read, &[]).is_err(), "a part's mapping locks the whole");
        drop(mapped);
        assert!(usage(part.sub_buffer(0..1).unwrap_err()).contains("part of a part"));
        assert!(usage(whole.sub_buffer(1..align).unwrap_err()).contains("not a multiple of"));
        assert!(whole.sub_buffer(0..0).is_err() && whole.sub_buffer(0..5 * align).is_err());
        drop(whole);
        setup.queue.read(&part, 0, &mut back[..1]).unwrap();
        assert_eq!(back[0], 2, "a part keeps the whole alive");
    }
}

struct Owned {
    data: Vec<u8>,
    dropped: Arc<AtomicUsize>,
}
impl Drop for Owned {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}
// SAFETY: the vector's block stays in place and belongs to this value alone.
unsafe impl StableBytes for Owned {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }
}

#[test]
fn host_memory_lives_until_the_driver_lets_go() {
    for setup in setups() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let owner = Owned { data: vec![3; 4096], dropped: dropped.clone() };
        let x = Buffer::from_host_memory(&setup.context, MemFlags::READ_WRITE, owner).unwrap();
        let mut back = [0_u8; 2];
        setup.queue.read(&x, 4094, &mut back).unwrap();
        assert_eq!(back, [3, 3]);
        let copy = x.clone();
        drop(x);
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        drop(copy);
        setup.queue.finish().unwrap();
        let start = Instant::now(); // the driver may let go a moment later, on a thread of its own
        while dropped.load(Ordering::SeqCst) == 0 && start.elapsed() < Duration::from_secs(5) {
            std::thread::yield_now();
        }
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "{:?}", setup.device);
    }
}

#[test]
fn buffers_of_impossible_sizes_are_refused() {
    for setup in setups() {
        let most = setup.context.max_alloc();
        for size in [0, most as usize + 1] {
            let error = Buffer::new(&setup.context, MemFlags::READ_WRITE, size).unwrap_err();
            assert_eq!(error.code(), Some(-61));
            assert!(error.to_string().contains(&format!("{size} bytes, at most {most} per buffer")), "{error}");
        }
    }
}

#[test]
fn kernels_run_with_scalars_offsets_local_memory_and_null() {
    for setup in setups() {
        let (queue, program) = (&setup.queue, program(&setup));
        assert_eq!(program.kernel_names(), ["ids", "is_null", "reverse", "scale", "sum4"]);
        let x = buffer(&setup, 32);
        queue.write(&x, 0, &[1.0_f32; 8]).unwrap();
        let scale = program.kernel("scale").unwrap();
        queue.launch(&scale, Grid::new([8]), &[Arg::Buffer(&x), Arg::from(2.5_f32)], Deps::NONE).unwrap();
        let mut floats = [0.0_f32; 8];
        queue.read(&x, 0, &mut floats).unwrap();
        assert_eq!(floats, [2.5; 8]);

        let ids = program.kernel("ids").unwrap();
        let grid = Grid::new([8]).local([4]).offset([100]);
        queue.launch(&ids, grid, &[(&x).into(), 100_i32.into()], Deps::NONE).unwrap();
        let mut ints = [0_i32; 8];
        queue.read(&x, 0, &mut ints).unwrap();
        assert_eq!(ints, [100_000, 101_001, 102_002, 103_003, 104_000, 105_001, 106_002, 107_003]);

        let reverse = program.kernel("reverse").unwrap();
        queue.write(&x, 0, &[0_i32, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        let grid = Grid::new([8]).local([4]);
        queue.launch(&reverse, grid, &[Arg::Buffer(&x), Arg::Local(16)], Deps::NONE).unwrap();
        queue.read(&x, 0, &mut ints).unwrap();
        assert_eq!(ints, [3, 2, 1, 0, 7, 6, 5, 4]);

        let is_null = program.kernel("is_null").unwrap();
        for (arg, expected) in [(Arg::Null, 1), (Arg::Buffer(&x), 0)] {
            queue.launch(&is_null, Grid::new([1]), &[Arg::Buffer(&x), arg], Deps::NONE).unwrap();
            queue.read(&x, 0, &mut ints[..1]).unwrap();
            assert_eq!(ints[0], expected);
        }

        let sum4 = program.kernel("sum4").unwrap();
        let v = [1.0_f32, 2.0, 4.0, 8.0];
        for arg in [Arg::scalar(v), Arg::bytes(&v)] {
            queue.launch(&sum4, Grid::new([1]), &[Arg::Buffer(&x), arg], Deps::NONE).unwrap();
            queue.read(&x, 0, &mut floats[..1]).unwrap();
            assert_eq!(floats[0], 15.0);
        }
        let none = queue.launch(&scale, Grid::new([0]), &[Arg::Buffer(&x), 2.0_f32.into()], Deps::EVENT).unwrap();
        none.unwrap().wait().unwrap();
    }
}

#[test]
fn wrong_launches_say_what_is_wrong() {
    for setup in setups() {
        let (queue, program, x) = (&setup.queue, program(&setup), buffer(&setup, 32));
        let scale = program.kernel("scale").unwrap();
        let text = usage(queue.launch(&scale, Grid::new([8]), &[Arg::Buffer(&x)], Deps::NONE).unwrap_err());
        assert!(text.contains("kernel scale takes 2 arguments, 1 were given"), "{text}");
        let wrong_size = queue.launch(&scale, Grid::new([8]), &[Arg::Buffer(&x), 1.0_f64.into()], Deps::NONE);
        let text = wrong_size.unwrap_err().to_string();
        assert!(text.contains("CL_INVALID_ARG_SIZE") && text.contains("argument 1 of scale"), "{text}");
        let most = setup.device.info().max_work_group_size;
        let args = [Arg::Buffer(&x), 1.0_f32.into()];
        let too_big = queue.launch(&scale, Grid::new([2 * most]).local([2 * most]), &args, Deps::NONE).unwrap_err();
        assert_eq!(too_big.code(), Some(-54));
        assert!(too_big.to_string().contains("kernel scale, grid ["), "{too_big}");
        let missing = program.kernel("nothing").unwrap_err();
        assert!(
            missing.to_string().contains("nothing; the program has ids, is_null, reverse, scale, sum4"),
            "{missing}"
        );
        let local = setup.device.info().local_mem_size as usize + 1;
        let reverse = program.kernel("reverse").unwrap();
        let error = queue.launch(&reverse, Grid::new([4]), &[Arg::Buffer(&x), Arg::Local(local)], Deps::NONE);
        assert!(usage(error.unwrap_err()).contains("bytes of local memory, the device has"));
    }
}

#[test]
fn kernels_tell_about_themselves() {
    for setup in setups() {
        let program = program(&setup);
        let reverse = program.kernel("reverse").unwrap();
        let info = reverse.work_group_info().unwrap();
        assert!(info.max_size > 0 && info.max_size <= setup.device.info().max_work_group_size);
        assert!(info.preferred_multiple > 0 && info.required_size.is_none());
        let args = reverse.arg_info().unwrap().expect("built with -cl-kernel-arg-info");
        assert_eq!((args[0].name.as_str(), args[0].type_name.as_str(), args[0].address), ("x", "int*", "global"));
        assert_eq!((args[1].name.as_str(), args[1].address), ("tile", "local"));
        let is_null = program.kernel("is_null").unwrap().arg_info().unwrap().unwrap();
        assert!(is_null[1].is_const && !is_null[0].is_const);
        assert_eq!(reverse.duplicate().unwrap().arg_count().unwrap(), 2);
    }
}

#[test]
fn threads_share_a_kernel_without_mixing_their_arguments() {
    for setup in setups() {
        let scale = program(&setup).kernel("scale").unwrap();
        std::thread::scope(|scope| {
            for thread in 1..=4_u32 {
                let (setup, scale) = (&setup, scale.clone());
                scope.spawn(move || {
                    let kernel = if thread % 2 == 0 { scale } else { scale.duplicate().unwrap() };
                    let queue = Queue::with_profiling(&setup.context, &setup.device, false).unwrap();
                    let x = buffer(setup, 64);
                    for round in 0..100 {
                        queue.write(&x, 0, &[1.0_f32; 16]).unwrap();
                        let factor = (thread * 1000 + round) as f32;
                        queue.launch(&kernel, Grid::new([16]), &[(&x).into(), factor.into()], Deps::NONE).unwrap();
                        let mut back = [0.0_f32; 16];
                        queue.read(&x, 0, &mut back).unwrap();
                        assert_eq!(back, [factor; 16]);
                    }
                });
            }
        });
    }
}

#[test]
fn profiling_times_are_ordered_and_only_on_request() {
    for setup in setups() {
        let program = program(&setup);
        let (scale, x) = (program.kernel("scale").unwrap(), buffer(&setup, 1 << 16));
        let args = [Arg::Buffer(&x), 1.0_f32.into()];
        let profiled = Queue::with_profiling(&setup.context, &setup.device, true).unwrap();
        assert!(profiled.profiling() && !setup.queue.profiling());
        let event = profiled.launch(&scale, Grid::new([1 << 14]), &args, Deps::EVENT).unwrap().unwrap();
        event.wait().unwrap();
        let times = event.times().unwrap();
        assert!(times.queued <= times.submitted && times.submitted <= times.started && times.started <= times.ended);
        assert!(times.duration() < Duration::from_secs(10));
        let event = setup.queue.launch(&scale, Grid::new([1 << 14]), &args, Deps::EVENT).unwrap().unwrap();
        event.wait().unwrap();
        // SAFETY: the pointer comes from a live event.
        let same = unsafe { Event::from_int_ptr(event.int_ptr()).unwrap() };
        assert!(same.is_complete().unwrap());
        assert_eq!(event.times().unwrap_err().code(), Some(-7), "{:?}", setup.device);
    }
}

#[test]
fn objects_pass_through_integers() {
    for setup in setups() {
        let (x, program) = (buffer(&setup, 64), program(&setup));
        let kernel = program.kernel("scale").unwrap();
        // SAFETY: the pointers come from live objects.
        let (context, queue, y, program, kernel) = unsafe {
            (
                Context::from_int_ptr(setup.context.int_ptr()).unwrap(),
                Queue::from_int_ptr(setup.queue.int_ptr()).unwrap(),
                Buffer::from_int_ptr(x.int_ptr()).unwrap(),
                Program::from_int_ptr(program.int_ptr()).unwrap(),
                Kernel::from_int_ptr(kernel.int_ptr().unwrap()).unwrap(),
            )
        };
        assert_eq!(context, setup.context);
        assert_eq!(queue.device(), &setup.device);
        assert_eq!((y.size(), y.context()), (64, &setup.context));
        assert!(y.flags().contains(MemFlags::READ_WRITE) && program.kernel_names().len() == 5);
        drop(x);
        queue.write(&y, 0, &[2.0_f32; 16]).unwrap();
        queue.launch(&kernel, Grid::new([16]), &[(&y).into(), 3.0_f32.into()], Deps::NONE).unwrap();
        let mut back = [0.0_f32; 16];
        queue.read(&y, 0, &mut back).unwrap();
        assert_eq!(back, [6.0; 16]);
        // SAFETY: null is refused before it is used.
        assert!(unsafe { Buffer::from_int_ptr(0) }.is_err());
    }
}

#[test]
fn contexts_refuse_nothing_and_foreign_devices() {
    assert!(Context::new(&[]).is_err());
    let devices = opencl_support::devices();
    if let Some(other) = devices.iter().find(|d| d.platform() != devices[0].platform()) {
        let text = usage(Context::new(&[devices[0].clone(), other.clone()]).unwrap_err());
        assert!(text.contains("different platforms"), "{text}");
    }
}

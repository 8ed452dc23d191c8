//! Kernels of one's own on every OpenCL device of this machine.

use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::{Buffer, MemFlags};
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::error::ErrorKind;
use netcl_core::kernels::launch;
use netcl_core::kernels::primitives::{
    KernelArg, KernelFunction, KernelSpec, PRIMITIVE_PREAMBLE, ParameterKind, PrimitiveBuilder, WorkGroupTuner,
    build_elementwise_kernel,
};
use netcl_core::shape::Slice;
use netcl_core::tensor::{HostOptions, Tensor};

use crate::opencl_support::{self, child_ok, devices};

fn handles() -> Vec<DeviceHandle> {
    devices().iter().map(|device| manager().handle(device).unwrap()).collect()
}

fn twice() -> KernelSpec {
    let source = "__kernel void scale_by_two(__global float* x) {  int gid = get_global_id(0);  x[gid] *= 2.0f;}";
    KernelSpec::from_source("scale_by_two", source).unwrap()
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32 - 3.0).collect()
}

fn error_text(result: netcl_core::Result<()>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn both_forms_run_with_odd_sizes_and_exact_bounds() {
    for device in handles() {
        let q = &device.queue;
        let program = twice().build(q).unwrap();
        let add = KernelSpec::new(
            "vec_add",
            ["__global const float* a", "__global const float* b", "__global float* c"],
            "int gid = get_global_id(0); STORE(c, gid, ADD(LOAD(a, gid), LOAD(b, gid)));",
        )
        .unwrap()
        .preamble(PRIMITIVE_PREAMBLE)
        .build(q)
        .unwrap();
        for n in [1, 31, 96, 1000, 1021, 4096] {
            // One element more than the kernel is run for: it must stay as it is.
            let x = Tensor::from_host(q, &ramp(n + 1), [n + 1]).unwrap();
            program.run(q, &[n], None, &[KernelArg::from(&x)]).unwrap();
            let mut expected: Vec<f32> = ramp(n).iter().map(|v| v * 2.0).collect();
            expected.push(n as f32 - 3.0);
            assert_eq!(x.to_host::<f32>().unwrap(), expected, "{device:?} {n}");

            let y = Tensor::from_shape(q, [n + 1], DType::F32).unwrap();
            add.run(q, &[n + 1], None, &[(&x).into(), (&x).into(), (&y).into()]).unwrap();
            let sums: Vec<f32> = expected.iter().map(|v| v + v).collect();
            assert_eq!(y.to_host::<f32>().unwrap(), sums, "{device:?} {n}");
        }
    }
}

#[test]
fn every_macro_of_the_preamble_computes() {
    for device in handles() {
        let q = &device.queue;
        for (expression, expected) in [
            ("ADD(v0, v1)", [4.0f32, -1.0]),
            ("SUB(v0, v1)", [2.0, -3.0]),
            ("MUL(v0, v1)", [3.0, -2.0]),
            ("DIV(v0, v1)", [3.0, -2.0]),
            ("RELU(v0)", [3.0, 0.0]),
            ("RELU(SUB(v0, v1))", [2.0, 0.0]),
        ] {
            let spec = PrimitiveBuilder::new(DType::F32).unwrap().elementwise_spec("op", 2, expression).unwrap();
            let a = Tensor::from_host(q, &[3.0f32, -2.0], [2]).unwrap();
            let b = Tensor::from_host(q, &[1.0f32, 1.0], [2]).unwrap();
            let out = Tensor::from_shape(q, [2], DType::F32).unwrap();
            let args = [(&a).into(), (&b).into(), (&out).into(), KernelArg::from(2)];
            spec.build(q).unwrap().run(q, &[2], None, &args).unwrap();
            assert_eq!(out.to_host::<f32>().unwrap(), expected, "{device:?} {expression}");
        }
        let nan = Tensor::from_host(q, &[f32::NAN], [1]).unwrap();
        let spec = PrimitiveBuilder::new(DType::F32).unwrap().elementwise_spec("relu", 1, "RELU(v0)").unwrap();
        spec.build(q).unwrap().run(q, &[1], None, &[(&nan).into(), (&nan).into(), 1.into()]).unwrap();
        assert!(nan.to_host::<f32>().unwrap()[0].is_nan());
    }
}

#[test]
fn elementwise_kernels_of_every_dtype_round_once() {
    for device in handles() {
        let (q, context) = (&device.queue, device.context().unwrap());
        for dtype in DType::FLOATS {
            if q.check_dtype("test", dtype).is_err() {
                continue;
            }
            let (_, kernel) = build_elementwise_kernel(context, "mul_add", 2, "MUL(ADD(v0, v1), 2.0f)", dtype).unwrap();
            for n in [1usize, 255, 1025] {
                let options = HostOptions { dtype: Some(dtype), ..Default::default() };
                let host: Vec<f64> = (0..n).map(|i| (i as f64 * 0.37).sin() * 9.0).collect();
                let a = Tensor::from_host_with(q, &host, [n], options).unwrap();
                let b = Tensor::full(q, [n], dtype, 0.3).unwrap();
                let out = Tensor::from_shape(q, [n + 2], dtype).unwrap();
                kernel.run(q, &[n], None, &[(&a).into(), (&b).into(), (&out).into(), n.into()]).unwrap();
                let (a, b) = (a.to_f64_vec().unwrap(), b.to_f64_vec().unwrap());
                // 16-bit sums and products are exact enough in f32 that one rounding at the end is what is seen; f32 rounds
                // after each step, and doubling is exact.
                let sums: Vec<f64> = a.iter().zip(&b).map(|(x, y)| (x + y) * 2.0).collect();
                let cpu = &manager().cpu().queue;
                let mut expected = Tensor::from_host_with(cpu, &sums, [n], options).unwrap().to_f64_vec().unwrap();
                if dtype == DType::BF16 {
                    // The f32 sum of two bfloat16 numbers may itself be rounded; redo that step.
                    let sums: Vec<f32> = a.iter().zip(&b).map(|(x, y)| (*x as f32 + *y as f32) * 2.0).collect();
                    expected = Tensor::from_host_with(cpu, &sums, [n], options).unwrap().to_f64_vec().unwrap();
                }
                expected.extend([0.0, 0.0]); // beyond n nothing is written
                assert_eq!(out.to_f64_vec().unwrap(), expected, "{device:?} {dtype} {n}");
            }
        }
    }
}

#[test]
fn launches_pass_through_the_seam_and_raise_versions_of_what_they_write() {
    for device in handles() {
        let q = &device.queue;
        let params = ["__global const float* a", "__global float* b"];
        let spec = KernelSpec::new("copy_one", params, "b[get_global_id(0)] = a[get_global_id(0)] + 1.0f;").unwrap();
        let program = spec.build(q).unwrap();
        let a = Tensor::from_host(q, &[1.0f32; 8], [8]).unwrap();
        let b = Tensor::from_shape(q, [8], DType::F32).unwrap();
        let (before_a, before_b) = (a.version(), b.version());
        let args = [KernelArg::from(&a), KernelArg::from(&b)];

        let counter = Rc::new(launch::Counter::default());
        launch::with_sink(counter.clone(), || program.run(q, &[8], None, &args)).unwrap();
        assert_eq!(counter.of("copy_one"), 1);
        assert_eq!((a.version(), b.version()), (before_a, before_b + 1), "{device:?}");

        let recorder = Rc::new(launch::Recorder::default());
        let back = [KernelArg::from(&b), KernelArg::from(&a)];
        launch::with_sink(recorder.clone(), || {
            program.run(q, &[8], None, &back).unwrap();
            assert!(
                error_text(program.kernel("copy_one").unwrap().tune(q, &[8], &back).map(drop)).contains("recorded")
            );
        });
        assert_eq!((recorder.len(), a.version()), (1, before_a));
        recorder.replay().unwrap();
        assert_eq!(a.to_host::<f32>().unwrap(), [3.0; 8]);
    }
}

#[test]
fn arguments_of_every_kind_arrive() {
    let source = "typedef float real;
        __kernel void everything(__global float* out, const char c, const ushort s, const int i, const ulong l, const float f,
                          const float4 v, __local float* tile, __global const float* nothing, const real r) {
            int lid = get_local_id(0);
            tile[lid] = f;
            barrier(CLK_LOCAL_MEM_FENCE);
            if (get_global_id(0) != 0) return;
            out[0] = c; out[1] = s; out[2] = i; out[3] = l; out[4] = tile[get_local_size(0) - 1];
            out[5] = v.x; out[6] = v.y; out[7] = v.z; out[8] = v.w; out[9] = nothing == 0 ? 1 : 0; out[10] = r;
        }";
    for device in handles() {
        let Queue::OpenCl(stream) = &device.queue else { panic!("an OpenCL queue") };
        let q = &device.queue;
        let program = KernelSpec::from_source("everything", source).unwrap().build(q).unwrap();
        let out = Buffer::new(stream.context(), MemFlags::READ_WRITE, 44).unwrap();
        let vector = KernelArg::Vector(vec![1.into(), 2.5.into(), 3.into(), 4.into()]);
        let typed = netcl_core::kernels::primitives::ScalarType::Float;
        let typed = KernelArg::Typed(typed, 0.75f32.to_ne_bytes()[..].into());
        let args = [
            KernelArg::from(&out),
            (-5).into(),
            65535.into(),
            (-70000).into(),
            (1u64 << 40).into(),
            0.5.into(),
            vector,
            KernelArg::Local(4 * 4),
            KernelArg::Null,
            typed,
        ];
        program.run(q, &[4], Some(&[4]), &args).unwrap();
        let mut back = [0.0f32; 11];
        stream.queue().read(&out, 0, &mut back).unwrap();
        let expected = [-5.0, 65535.0, -70000.0, (1u64 << 40) as f32, 0.5, 1.0, 2.5, 3.0, 4.0, 1.0, 0.75];
        assert_eq!(back, expected, "{device:?}");
        let kernel = program.main().unwrap();
        assert_eq!(kernel.parameters()[7].kind, ParameterKind::Local, "{device:?}");
        assert!(format!("{kernel:?}").contains("__global const float* nothing"), "{kernel:?}");
    }
}

#[test]
fn wrong_arguments_are_named_before_anything_runs() {
    let params = ["__global const float* a", "__global float* out", "const int n"];
    let spec = KernelSpec::new("scale", params, "out[get_global_id(0)] = a[get_global_id(0)] * n;").unwrap();
    for device in handles() {
        let q = &device.queue;
        let program = spec.build(q).unwrap();
        let a = Tensor::from_host(q, &ramp(8), [2, 4]).unwrap();
        let n = || KernelArg::from(2);
        let run = |args: &[KernelArg]| program.run(q, &[4], None, args);

        let text = error_text(run(&[(&a).into(), n()]));
        assert!(
            text.contains("takes 3 arguments (") && text.contains("const float* a") && text.contains("2 were given"),
            "{text}"
        );

        if q.check_dtype("test", DType::F64).is_ok() {
            let double = a.cast(DType::F64).unwrap();
            let error = run(&[(&double).into(), (&a).into(), n()]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Type);
            let text = error.to_string();
            assert!(text.contains("kernel scale, argument 0") && text.contains("stored as double"), "{text}");
        }
        let column = a.slice(1, Slice::new(Some(1), Some(2), 1)).unwrap();
        assert!(error_text(run(&[(&column).into(), (&a).into(), n()])).contains("make it contiguous"));
        let row = a.select(0, 1).unwrap();
        let text = error_text(run(&[(&row).into(), (&a).into(), n()]));
        assert!(text.contains("begins at element 4") && text.contains("sub-buffer"), "{text}");

        let native = Tensor::from_host(&manager().cpu().queue, &ramp(8), [8]).unwrap();
        assert!(error_text(run(&[(&native).into(), (&a).into(), n()])).contains("t.to(queue)"));
        assert!(error_text(run(&[(&a).into(), (&a).into(), 0.5.into()])).contains("argument 2"));
        assert!(error_text(run(&[(&a).into(), 1.into(), n()])).contains("pass a tensor"));

        let args = [(&a).into(), (&a).into(), n()];
        let at = |global: &[usize], local: Option<&[usize]>| error_text(program.run(q, global, local, &args));
        assert!(at(&[], None).contains("one to three"));
        assert!(at(&[1, 1, 1, 1], None).contains("one to three"));
        assert!(at(&[5], Some(&[2])).contains("does not divide"));
        assert!(at(&[4], Some(&[2, 2])).contains("dimensions"));
        assert!(at(&[4], Some(&[0])).contains("zero"));
        assert!(at(&[1 << 20], Some(&[1 << 20])).contains("work-items"));
        assert!(program.run(q, &[0], None, &args).is_ok(), "nothing to do is no error");
        assert_eq!(a.to_host::<f32>().unwrap(), ramp(8), "nothing ran");
        let empty = Tensor::from_shape(q, [0], DType::F32).unwrap();
        program.run(q, &[0], None, &[(&empty).into(), (&empty).into(), n()]).unwrap();

        let cpu = manager().cpu().queue;
        assert!(error_text(program.run(&cpu, &[4], None, &args)).contains("t.to(queue)"));
        let stranger = netcl_core::backend::opencl::Stream::on_device(&devices()[0]).unwrap();
        assert!(error_text(program.run(&Queue::OpenCl(stranger), &[4], None, &args)).contains("spec.build(queue)"));
    }
}

fn local_of(kernel: &KernelFunction, q: &Queue, global: &[usize]) -> Option<Vec<usize>> {
    kernel.local_size(q, global).unwrap().map(|sizes| sizes.to_vec())
}

#[test]
fn sizes_that_were_given_or_won_are_remembered_by_the_spec() {
    for device in handles() {
        let q = &device.queue;
        let spec = twice();
        let kernel = spec.build(q).unwrap().main().unwrap();
        let x = Tensor::from_host(q, &[0.0f32; 96], [96]).unwrap();
        let args = [KernelArg::from(&x)];
        kernel.run(q, &[96], Some(&[3]), &args).unwrap();
        // Also in another program of the same spec, and only where it divides.
        let again = spec.clone().build(q).unwrap().main().unwrap();
        assert_eq!(local_of(&again, q, &[96]), Some(vec![3]));
        assert_ne!(local_of(&again, q, &[64]), Some(vec![3]));
        assert_ne!(local_of(&twice().build(q).unwrap().main().unwrap(), q, &[96]), Some(vec![3]));

        let tuned = again.tune(q, &[96], &args).unwrap();
        assert!(tuned.tried.iter().any(|(size, time)| *size == tuned.local_size && *time == tuned.best));
        assert!(tuned.tried.iter().all(|(_, time)| *time >= tuned.best));
        assert_eq!(kernel.local_size(q, &[96]).unwrap(), tuned.local_size, "{device:?}");
        assert!(error_text(kernel.tune(q, &[0], &args).map(drop)).contains("nothing to time"));
    }
}

#[test]
fn a_size_fixed_in_the_source_is_used() {
    let source = "__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void groups(__global int* out) {
        out[get_global_id(0)] = get_local_size(0); }";
    for device in handles() {
        let q = &device.queue;
        let program = KernelSpec::from_source("groups", source).unwrap().build(q).unwrap();
        let out = Tensor::from_shape(q, [16], DType::I32).unwrap();
        program.run(q, &[16], None, &[(&out).into()]).unwrap();
        assert_eq!(out.to_host::<i32>().unwrap(), [8; 16], "{device:?}");
        assert!(error_text(program.run(q, &[16], Some(&[4]), &[(&out).into()])).contains("fixes the work-group size"));
    }
}

#[test]
fn programs_have_all_their_kernels_and_name_what_is_missing() {
    let source = "__kernel void b(__global int* x) { x[0] = 2; } __kernel void a(__global int* x) { x[0] = 1; }";
    for device in handles() {
        let q = &device.queue;
        let program = KernelSpec::from_source("b", source).unwrap().build_for(device.context().unwrap()).unwrap();
        assert_eq!(program.kernel_names(), ["a", "b"]);
        let x = Tensor::from_shape(q, [1], DType::I32).unwrap();
        program.kernel("a").unwrap().run(q, &[1], None, &[(&x).into()]).unwrap();
        assert_eq!(x.to_host::<i32>().unwrap(), [1]);
        let before = x.version();
        program.run(q, &[1], None, &[KernelArg::Storage(x.storage().clone())]).unwrap();
        assert_eq!((x.to_host::<i32>().unwrap(), x.version()), (vec![2], before + 1));
        assert!(program.kernel("c").unwrap_err().to_string().contains("it has: a, b"));
        let error = KernelSpec::from_source("c", source).unwrap().build(q).unwrap_err();
        assert!(error.to_string().contains("no kernel \"c\"; it has: a, b"), "{error}");

        let broken = KernelSpec::new("broken", ["__global floaty* x"], "x[0] = 1;").unwrap().build(q).unwrap_err();
        assert_eq!(broken.kind(), ErrorKind::Build);
        let text = broken.to_string();
        assert!(
            text.contains("floaty") && text.contains("compiler log") && text.contains("1 | __kernel void broken("),
            "{text}"
        );
    }
}

#[test]
fn a_program_out_of_the_cache_is_checked_alike() {
    let folder = opencl_support::Folder::new("kernel-spec");
    for round in ["cold", "warm"] {
        let text = child_ok("kernel_spec::checked_in_a_child", &[("NETCL_CACHE_DIR", folder.text())]);
        assert!(text.contains("checked"), "{round}: {text}");
    }
}

#[test]
#[ignore = "run by a_program_out_of_the_cache_is_checked_alike"]
fn checked_in_a_child() {
    for device in handles() {
        let q = &device.queue;
        let params = ["__global const float* a", "__global float* out", "const int n"];
        let kernel =
            KernelSpec::new("checked", params, "out[0] = a[0] * n;").unwrap().build(q).unwrap().main().unwrap();
        assert!(matches!(kernel.parameters()[0].kind, ParameterKind::Memory { read_only: true, .. }), "{kernel:?}");
        assert!(matches!(kernel.parameters()[2].kind, ParameterKind::Value(_)), "{kernel:?}");
        println!("checked {device:?}");
    }
}

#[test]
fn small_devices_get_small_groups() {
    if !devices().is_empty() {
        child_ok("kernel_spec::groups_of_a_small_device", &[("NETCL_LIMITS", "wg=16,no_fp64")]);
    }
}

#[test]
#[ignore = "run by small_devices_get_small_groups"]
fn groups_of_a_small_device() {
    for device in handles() {
        let (q, context) = (&device.queue, device.context().unwrap());
        let (_, kernel) = build_elementwise_kernel(context, "neg", 1, "-v0", DType::F32).unwrap();
        assert_eq!(local_of(&kernel, q, &[1000]), Some(vec![16]));
        let x = Tensor::from_host(q, &ramp(1000), [1000]).unwrap();
        kernel.run(q, &[1000], None, &[(&x).into(), (&x).into(), 1000.into()]).unwrap();
        let expected: Vec<f32> = ramp(1000).iter().map(|v| -v).collect();
        assert_eq!(x.to_host::<f32>().unwrap(), expected);
        let text = error_text(kernel.run(q, &[64], Some(&[32]), &[(&x).into(), (&x).into(), 1000.into()]));
        assert!(text.contains("at most 16"), "{text}");
        let error = build_elementwise_kernel(context, "d", 1, "v0", DType::F64).unwrap_err();
        assert!(error.to_string().contains("cl_khr_fp64"), "{error}");
    }
}

#[test]
fn a_builders_tuner_caps_its_kernels() {
    for device in handles() {
        let q = &device.queue;
        let builder = PrimitiveBuilder::new(DType::F32).unwrap().tuner(WorkGroupTuner::new(32).unwrap());
        let kernel = builder.elementwise_spec("same", 1, "v0").unwrap().build(q).unwrap().main().unwrap();
        assert_eq!(local_of(&kernel, q, &[1000]), Some(vec![32]));
    }
}

//! Every rule of the documentation's table, the environment, the fall-back order and the limits.

use std::process::Command;

use super::fit::tile_bytes;
use super::*;
use crate::conv::ConvParams;
use crate::env;

fn gpu(vendor: &str, architecture: &str) -> ExtendedDeviceProfile {
    let mut profile = ExtendedDeviceProfile::cpu();
    profile.base.device_type = "gpu";
    profile.base.vendor = vendor.to_owned();
    profile.base.local_mem_size = 48 << 10;
    profile.base.max_work_group_size = 1024;
    profile.architecture = architecture.to_owned();
    profile.vector_width_float = 1;
    profile.local_mem_dedicated = true;
    profile
}

fn nvidia() -> KernelSelector {
    KernelSelector::new(gpu("NVIDIA Corporation", "ampere"))
}

fn convolution(side: usize, kernel: [usize; 2], params: ConvParams) -> ConvGeometry {
    ConvGeometry::of("conv2d", [8, 16, side, side], 32, kernel, &params).unwrap()
}

fn conv(kernel: usize) -> ConvGeometry {
    convolution(56, [kernel, kernel], ConvParams::default())
}

#[test]
fn matmul_by_size() {
    let selector = nvidia();
    let variant = |m, n, k| selector.select_matmul_kernel(m, n, k, DType::F32).variant;
    assert_eq!(variant(0, 5, 5), KernelVariant::MatmulNaive);
    assert_eq!(variant(31, 32, 32), KernelVariant::MatmulNaive);
    assert_eq!(variant(32, 32, 32), KernelVariant::MatmulRegisterTiled);
    assert_eq!(variant(512, 512, 512), KernelVariant::MatmulRegisterTiled);
    assert_eq!(variant(usize::MAX, usize::MAX, 1), KernelVariant::MatmulRegisterTiled);
}

#[test]
fn strips_are_read_by_a_kernel_of_their_own() {
    let selector = nvidia();
    let variant = |m, n, k, dtype| selector.select_matmul_kernel(m, n, k, dtype).variant;
    assert_eq!(variant(1, 4096, 1024, DType::F32), KernelVariant::MatmulStrip);
    assert_eq!(variant(1000, 8, 1024, DType::F16), KernelVariant::MatmulStrip);
    assert_eq!(variant(16, 1024, 1024, DType::F32), KernelVariant::MatmulStrip);
    assert_eq!(variant(16, 1024, 1024, DType::F16), KernelVariant::MatmulRegisterTiled, "units are faster");
    assert_eq!(variant(1, 4096, 64, DType::F32), KernelVariant::MatmulRegisterTiled, "too few terms");
    assert_eq!(variant(17, 4096, 1024, DType::F32), KernelVariant::MatmulRegisterTiled);
    let choose = |spec: MatmulSpec| selector.choose_matmul(&spec).unwrap().config.variant;
    let strip = MatmulSpec::new(1, 4096, 1024, DType::F32);
    assert_eq!(choose(MatmulSpec { dense: false, ..strip }), KernelVariant::MatmulRegisterTiled);
    let cpu = KernelSelector::new(ExtendedDeviceProfile::cpu());
    assert_eq!(cpu.choose_matmul(&strip).unwrap().config.variant, KernelVariant::MatmulVectorized);
}

#[test]
fn matmul_of_vendors_and_families() {
    let tile = |vendor: &str, architecture: &str| {
        let config = KernelSelector::new(gpu(vendor, architecture)).select_matmul_kernel(1024, 1024, 1024, DType::F32);
        assert_eq!(config.variant, KernelVariant::MatmulRegisterTiled, "{vendor} {architecture}");
        (config.tile_m, config.tile_n, config.tile_k)
    };
    assert_eq!(tile("NVIDIA Corporation", "ampere"), (128, 128, 16));
    assert_eq!(tile("NVIDIA Corporation", "turing"), (128, 64, 8));
    assert_eq!(tile("NVIDIA Corporation", "pascal"), (64, 64, 16)); // the vendor's
    assert_eq!(tile("Advanced Micro Devices, Inc.", "rdna2"), (64, 128, 8));
    assert_eq!(tile("Advanced Micro Devices, Inc.", "rdna3"), (128, 128, 8));
    assert_eq!(tile("Advanced Micro Devices, Inc.", "gcn"), (64, 64, 8)); // everybody's
}

#[test]
fn devices_without_local_memory_of_their_own_go_without_register_tiles() {
    let large = |profile| KernelSelector::new(profile).select_matmul_kernel(1024, 1024, 1024, DType::F32);
    // Nothing is known to be fast on this one, but its local memory is real.
    assert_eq!(large(gpu("ARM", "mali")).variant, KernelVariant::MatmulRegisterTiled);
    let mut cached = gpu("ARM", "mali");
    cached.local_mem_dedicated = false;
    assert_eq!(large(cached).variant, KernelVariant::MatmulVectorized);
    let config = large(ExtendedDeviceProfile::cpu());
    assert_eq!((config.variant, config.use_local_memory), (KernelVariant::MatmulVectorized, false));
}

#[test]
fn convolutions() {
    let selector = nvidia();
    let variant = |kernel, params| selector.select_conv2d_kernel(&convolution(56, kernel, params), DType::F32).variant;
    let plain = ConvParams::default();
    let strided = |stride| ConvParams { stride, ..plain };
    assert_eq!(variant([1, 1], plain), KernelVariant::Conv2dImplicitGemm);
    assert_eq!(variant([1, 1], strided([2, 2])), KernelVariant::Conv2dImplicitGemm);
    assert_eq!(variant([3, 3], plain), KernelVariant::Conv2dWinograd);
    assert_eq!(variant([3, 3], ConvParams { padding: [1; 4], ..plain }), KernelVariant::Conv2dWinograd);
    let others =
        [strided([2, 2]), strided([1, 2]), ConvParams { dilation: [2, 2], ..plain }, ConvParams { groups: 4, ..plain }];
    for params in others {
        assert_eq!(variant([3, 3], params), KernelVariant::Conv2dImplicitGemm, "{params:?}");
    }
    for kernel in [[5, 5], [1, 3]] {
        assert_eq!(variant(kernel, plain), KernelVariant::Conv2dImplicitGemm, "{kernel:?}");
    }
    let cpu = KernelSelector::new(ExtendedDeviceProfile::cpu());
    for shape in [conv(1), conv(3), conv(7)] {
        assert_eq!(cpu.select_conv2d_kernel(&shape, DType::F32).variant, KernelVariant::Conv2dIm2col);
    }
}

#[test]
fn elementwise() {
    let selector = nvidia();
    let scalar = selector.select_elementwise_kernel(1024, DType::F32);
    assert_eq!((scalar.variant, scalar.vector_width), (KernelVariant::ElementwiseScalar, 1));
    assert!(!scalar.use_vectorization);
    for (dtype, width) in [(DType::F32, 4), (DType::F64, 4), (DType::F16, 8), (DType::BF16, 8)] {
        let config = selector.select_elementwise_kernel(1025, dtype);
        assert_eq!((config.variant, config.vector_width), (KernelVariant::ElementwiseVectorized, width), "{dtype}");
        assert!(config.use_vectorization);
    }
    let mut wide = gpu("NVIDIA Corporation", "ampere");
    wide.vector_width_float = 8;
    assert_eq!(KernelSelector::new(wide).select_elementwise_kernel(1 << 20, DType::F32).vector_width, 8);
}

#[test]
fn reductions() {
    let selector = nvidia();
    let variant = |n| selector.select_reduction_kernel(n, "sum").variant;
    assert_eq!((variant(0), variant(255)), (KernelVariant::ReductionSequential, KernelVariant::ReductionSequential));
    assert_eq!((variant(256), variant(65535)), (KernelVariant::ReductionParallel, KernelVariant::ReductionParallel));
    assert_eq!(
        (variant(65536), variant(1 << 30)),
        (KernelVariant::ReductionWorkgroup, KernelVariant::ReductionWorkgroup)
    );
    let config = selector.select_reduction_kernel(1 << 20, "max");
    assert_eq!(config.extra["kind"], Extra::Text("max".to_owned()));
    assert_eq!(config.extra["stages"], Extra::Int(2));
}

#[test]
fn batch_normalisation() {
    let selector = nvidia();
    let get = |fuse, training| selector.select_batchnorm_kernel([8, 64, 16, 16], fuse, training, DType::F32);
    assert_eq!(get(true, false).variant, KernelVariant::BatchnormFused);
    for (fuse, training) in [(true, true), (false, false), (false, true)] {
        assert_eq!(get(fuse, training).variant, KernelVariant::BatchnormNaive);
    }
    assert_eq!(get(true, false).local_size_1d, 256);
    assert_eq!(selector.select_batchnorm_kernel([3, 64, 3, 5], false, true, DType::F32).local_size_1d, 64);
    assert_eq!(get(true, false).extra["fuse_relu"], Extra::Bool(true));
}

#[test]
fn the_cache_counts_exactly_and_shares_shape_classes() {
    let selector = nvidia();
    let counts = |selector: &KernelSelector| (selector.stats().hits, selector.stats().misses, selector.stats().entries);
    selector.select_matmul_kernel(100, 100, 100, DType::F32);
    selector.select_matmul_kernel(100, 100, 100, DType::F32);
    selector.select_matmul_kernel(101, 100, 90, DType::F32); // the same class
    assert_eq!(counts(&selector), (2, 1, 1));
    selector.select_matmul_kernel(100, 100, 100, DType::F16);
    selector.select_reduction_kernel(1000, "sum");
    selector.select_reduction_kernel(1000, "max"); // the same kernel
    assert_eq!(counts(&selector), (3, 3, 3));
    let before = selector.select_matmul_kernel(100, 100, 100, DType::F32);
    selector.clear_cache();
    assert_eq!(counts(&selector), (0, 0, 0));
    assert_eq!(selector.select_matmul_kernel(100, 100, 100, DType::F32), before);
    assert_eq!(counts(&selector), (0, 1, 1));
}

#[test]
fn tuner_results_extend_the_table() {
    let selector = nvidia();
    assert_eq!(selector.select_matmul_kernel(1024, 1024, 1024, DType::F32).tile_m, 128);
    let text =
        "[[kernel]]\nvariant = \"matmul_register_tiled\"\ndevice = \"native CPU\"\ntile_m = 96\nwork_per_thread = 48";
    selector.extend_from_toml(text).unwrap();
    let config = selector.select_matmul_kernel(1024, 1024, 1024, DType::F32);
    assert_eq!((config.tile_m, config.tile_n, config.work_per_thread), (96, 128, 48));
    // Later entries win among equals, and other devices' entries do not count.
    selector.extend_from_toml(&text.replace("96", "80")).unwrap();
    selector.extend_from_toml(&text.replace("native CPU", "another").replace("96", "72")).unwrap();
    assert_eq!(selector.select_matmul_kernel(1024, 1024, 1024, DType::F32).tile_m, 80);
    assert!(selector.extend_from_toml("[[kernel]]").unwrap_err().to_string().contains("entry 0"));
}

#[test]
fn what_was_measured_goes_before_the_rules_for_its_class_only() {
    let selector = nvidia();
    let before = selector.select_matmul_kernel(1000, 1000, 1000, DType::F32);
    let text = "[[kernel]]\nclass = \"matmul_vectorized\"\ndevice = \"native CPU\"\nshapes = \"1024x1024x1024\"\n\
                dtype = \"float32\"\ntile_m = 6\ntile_n = 32\nvector_width = 16\nlocal_size_1d = 1";
    selector.extend_from_toml(text).unwrap();
    let config = selector.select_matmul_kernel(1000, 1000, 1000, DType::F32);
    assert_eq!((config.variant, config.tile_m, config.vector_width), (KernelVariant::MatmulVectorized, 6, 16));
    let choice =
        selector.choose_matmul(&MatmulSpec { matrices: 2, ..MatmulSpec::new(1000, 1000, 1000, DType::F32) }).unwrap();
    assert_eq!((choice.config, choice.exact), (before.clone(), false), "a batch was not measured");
    for (m, dtype) in [(2000, DType::F32), (1000, DType::F16)] {
        assert_ne!(selector.select_matmul_kernel(m, m, m, dtype).tile_m, 6, "another class");
    }
    // What is forced goes before all, if the device can have it.
    let forced = KernelConfig::new(KernelVariant::MatmulNaive);
    tuner::with_forced(&forced, || {
        assert_eq!(selector.select_matmul_kernel(1000, 1000, 1000, DType::F32), forced);
        assert_ne!(selector.select_conv2d_kernel(&conv(3), DType::F32), forced);
    });
    let misfit = KernelConfig { local_size_1d: 1 << 20, ..forced };
    let error = tuner::with_forced(&misfit, || selector.choose_matmul(&MatmulSpec::new(9, 9, 9, DType::F32)));
    assert!(error.unwrap_err().to_string().contains("does not fit"));
    // What was found out here goes before what others found out.
    let problem = Problem::matmul(1000, 1000, 1000, DType::F32);
    selector.remember(&problem, KernelConfig { tile_m: 12, ..config.clone() });
    assert_eq!(selector.select_matmul_kernel(600, 1024, 1024, DType::F32).tile_m, 12);
    // Entries that no kernel can run are passed over, and half of an entry is a mistake.
    for wrong in ["vector_width = 3", "tile_n = 40", "tile_m = 100", "local_size_1d = 100000"] {
        let (name, _) = wrong.split_once(" =").unwrap();
        let lines: Vec<&str> = text.lines().map(|line| if line.starts_with(name) { wrong } else { line }).collect();
        let selector = nvidia();
        selector.extend_from_toml(&lines.join("\n")).unwrap();
        assert_eq!(selector.select_matmul_kernel(1000, 1000, 1000, DType::F32), before, "{wrong}");
    }
    let half = text.replace("dtype = \"float32\"", "");
    assert!(nvidia().extend_from_toml(&half).unwrap_err().to_string().contains("go together"));
}

/// Every decision of a selector.
fn all_decisions(selector: &KernelSelector, dtype: DType) -> Vec<KernelConfig> {
    let mut found = Vec::new();
    for n in [8, 128, 2048] {
        found.push(selector.select_matmul_kernel(n, n, n, dtype));
        found.push(selector.select_elementwise_kernel(n, dtype));
        found.push(selector.select_reduction_kernel(n * n, "sum"));
        found.push(selector.select_batchnorm_kernel([n, n, n, n], true, false, dtype));
    }
    found.extend([1, 3, 5].map(|kernel| selector.select_conv2d_kernel(&conv(kernel), dtype)));
    found
}

#[test]
fn every_choice_fits_the_device() {
    for (vendor, architecture) in
        [("NVIDIA", "ampere"), ("NVIDIA", "hopper"), ("AMD", "rdna3"), ("Intel", "xe"), ("ARM", "mali")]
    {
        for most in [1, 2, 3, 16, 48, 64, 100, 256, 1024] {
            for local in [0, 16, 64, 1 << 10, 16 << 10, 32 << 10, 64 << 10] {
                let mut profile = gpu(vendor, architecture);
                profile.base.max_work_group_size = most;
                profile.base.local_mem_size = local;
                let selector = KernelSelector::new(profile);
                for dtype in DType::FLOATS {
                    for config in all_decisions(&selector, dtype) {
                        let (x, y) = config.local_size_2d;
                        assert!(x * y <= most && x * y > 0, "{config:?} with {most}");
                        assert!((1..=most).contains(&config.local_size_1d), "{config:?} with {most}");
                        assert!(tile_bytes(&config, dtype) <= local, "{config:?} with {local}");
                        if tile_bytes(&config, dtype) > 0 {
                            assert_eq!(config.tile_m * config.tile_n, x * y * config.work_per_thread, "{config:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn without_local_memory_there_are_no_tiles() {
    let mut profile = gpu("NVIDIA Corporation", "ampere");
    profile.base.local_mem_size = 0;
    let selector = KernelSelector::new(profile);
    let config = selector.select_matmul_kernel(1024, 1024, 1024, DType::F32);
    assert_eq!((config.variant, config.use_local_memory), (KernelVariant::MatmulVectorized, false));
    assert_eq!(selector.select_conv2d_kernel(&conv(3), DType::F32).variant, KernelVariant::Conv2dNaive);
    assert_eq!(selector.select_reduction_kernel(1 << 20, "sum").variant, KernelVariant::ReductionSequential);
}

#[test]
fn reductions_of_the_native_cpu_follow_the_thresholds() {
    let selector = get_kernel_selector(Some(&crate::device::manager().cpu().queue)).unwrap();
    let variants = [255, 256, 65_535, 65_536].map(|n| selector.select_reduction_kernel(n, "sum").variant);
    use KernelVariant::{ReductionParallel, ReductionSequential, ReductionWorkgroup};
    assert_eq!(variants, [ReductionSequential, ReductionParallel, ReductionParallel, ReductionWorkgroup]);
}

#[test]
fn one_selector_per_device() {
    let cpu = crate::device::manager().cpu().queue;
    let one = get_kernel_selector(Some(&cpu)).unwrap();
    assert!(Arc::ptr_eq(&one, &get_kernel_selector(Some(&cpu)).unwrap()));
    let _scope = crate::device::activate(crate::device::manager().cpu());
    assert!(Arc::ptr_eq(&one, &get_kernel_selector(None).unwrap()));
    assert_eq!(select_matmul_config(8, 8, 8).unwrap().variant, KernelVariant::MatmulNaive);
    assert_eq!(select_conv2d_config(&conv(3)).unwrap().variant, KernelVariant::Conv2dIm2col);
    for device in crate::device::manager().discover().unwrap() {
        let queue = crate::device::manager().handle(&device).unwrap().queue;
        let selector = get_kernel_selector(Some(&queue)).unwrap();
        assert!(!Arc::ptr_eq(&one, &selector));
        assert_eq!(selector.profile().base.name, device.name());
    }
}

/// What a process with these variables decides for a large product, a 3x3 convolution with a large and with a small output.
fn in_a_child(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kernel_selector::tests::print_decisions", "--ignored", "--nocapture"]);
    for name in ["NETCL_KERNEL_STRATEGY", env::CONV_WINOGRAD.name, env::CONV_TILED_LOCAL.name] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let line = text.lines().find_map(|line| line.split_once("decided: ")).unwrap();
    line.1.to_owned()
}

#[test]
#[ignore = "run in children by the_environment_decides"]
fn print_decisions() {
    let selector = nvidia();
    let small = |kernel| convolution(16, [kernel, kernel], ConvParams::default());
    let variants = [
        selector.select_matmul_kernel(1024, 1024, 1024, DType::F32).variant,
        selector.select_conv2d_kernel(&conv(3), DType::F32).variant,
        selector.select_conv2d_kernel(&small(3), DType::F32).variant,
        selector.select_conv2d_kernel(&small(1), DType::F32).variant,
    ];
    println!("decided: {}", variants.map(KernelVariant::name).join(" "));
}

#[test]
fn the_environment_decides() {
    let plain = "MATMUL_REGISTER_TILED CONV2D_WINOGRAD CONV2D_WINOGRAD CONV2D_IMPLICIT_GEMM";
    assert_eq!(in_a_child(&[]), plain);
    assert_eq!(in_a_child(&[(env::CONV_WINOGRAD.name, "1"), (env::CONV_TILED_LOCAL.name, "0")]), plain);
    assert_eq!(in_a_child(&[("NETCL_KERNEL_STRATEGY", "auto")]), plain);
    assert_eq!(in_a_child(&[("NETCL_KERNEL_STRATEGY", "portable")]), plain);
    assert_eq!(
        in_a_child(&[(env::CONV_WINOGRAD.name, "0")]),
        "MATMUL_REGISTER_TILED CONV2D_IMPLICIT_GEMM CONV2D_IMPLICIT_GEMM CONV2D_IMPLICIT_GEMM"
    );
    assert_eq!(
        in_a_child(&[(env::CONV_TILED_LOCAL.name, "1")]),
        "MATMUL_REGISTER_TILED CONV2D_WINOGRAD CONV2D_TILED_LOCAL CONV2D_IMPLICIT_GEMM"
    );
}

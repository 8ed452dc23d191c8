//! What convolutions launch: images are read where they are, CPU devices write windows out, matrix units are given
//! windows that were written out, and the statistics that batch normalisation starts with come with the convolution where they can.

use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, DeviceType};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_core::tensor::Tensor;
use netcl_ops::conv::*;
use netcl_ops::matmul::{Epilogue, matmul};
use netcl_ops::norm::{Affine, ChannelStatistics, Normalized, Running, batch_norm, batch_norm_with};

use crate::support::{Grid, Tolerance, devices, opencl, random, supports, tensor};

/// Names and numbers of the launches of a function.
fn launches<R>(body: impl FnOnce() -> R) -> (R, Vec<(String, usize)>) {
    let counter = Rc::new(Counter::default());
    let result = with_sink(counter.clone(), body);
    (result, counter.names())
}

fn values(queue: &Queue, shape: [usize; 4], seed: u64, dtype: DType) -> Tensor {
    tensor(queue, &random(shape.iter().product(), seed, (-1.0, 1.0)), shape, dtype).0
}

/// The same values, with channels side by side in memory.
fn channels_last(t: &Tensor) -> Tensor {
    let last = t.permute(&[0, 2, 3, 1]).unwrap().contiguous().unwrap().permute(&[0, 3, 1, 2]).unwrap();
    assert!(!last.layout().is_contiguous());
    last
}

/// Forward and both gradients, and what they launch.
type Results = ([Tensor; 3], Vec<(String, usize)>);

#[test]
fn channels_last_images_are_read_in_place() {
    let product = ConvOptions::default();
    let strided = ConvParams { stride: [2, 1], padding: [1, 0, 1, 2], ..Default::default() }.into();
    for device in devices() {
        let q = &device.queue;
        let mut variants = vec![None];
        if device.backend.name() == "cl" {
            variants.extend([Variant::Naive, Variant::Im2col].map(Some));
            // Takes seconds to build there.
            if !is_pocl(&device) {
                variants.push(Some(Variant::ImplicitGemm));
            }
        }
        for (kernel, options) in [([1, 1], &product), ([3, 2], &strided)] {
            let (x, weight) =
                (values(q, [2, 6, 7, 9], 1, DType::F32), values(q, [5, 6, kernel[0], kernel[1]], 2, DType::F32));
            for &variant in &variants {
                let options = ConvOptions { variant, ..options.clone() };
                let out = conv2d(&x, &weight, None, &options).unwrap();
                let grad = values(q, out.shape()[..].try_into().unwrap(), 3, DType::F32);
                let all = |x: &Tensor, grad: &Tensor| -> Results {
                    launches(|| {
                        [
                            conv2d(x, &weight, None, &options).unwrap(),
                            conv2d_backward_data(grad, &weight, x.shape(), &options).unwrap(),
                            conv2d_backward_weight(grad, x, weight.shape(), &options).unwrap(),
                        ]
                    })
                };
                let (dense, expected) = all(&x, &grad);
                let (got, names) = all(&channels_last(&x), &channels_last(&grad));
                // Pixels side by side need no copy to become columns of one matrix.
                let copies =
                    |names: &[(String, usize)]| names.iter().find(|(name, _)| name == "copy").map_or(0, |(_, n)| *n);
                let others = |names: &[(String, usize)]| -> Vec<_> {
                    names.iter().filter(|(name, _)| name != "copy").cloned().collect()
                };
                assert_eq!(others(&names), others(&expected), "{kernel:?} {variant:?} on {}", device.device_name);
                assert!(copies(&names) <= copies(&expected), "{kernel:?} {variant:?} on {}", device.device_name);
                for (got, dense) in got.iter().zip(&dense) {
                    let check =
                        Tolerance::balanced(DType::F32).check(&got.to_f64_vec().unwrap(), &dense.to_f64_vec().unwrap());
                    check.unwrap_or_else(|why| panic!("{kernel:?} {variant:?} on {}: {why}", device.device_name));
                }
            }
        }
    }
}

#[test]
fn cpu_devices_write_windows_out_and_others_take_winograd() {
    for device in opencl() {
        let q = &device.queue;
        let (x, weight) = (values(q, [3, 8, 9, 21], 1, DType::F32), values(q, [16, 8, 3, 3], 2, DType::F32));
        let chosen = if device.device_type == DeviceType::Cpu { "im2col" } else { "winograd_input" };
        for (variant, name) in [(Some(Variant::Im2col), "im2col"), (None, chosen)] {
            let params = ConvParams { padding: [1; 4], ..Default::default() };
            let options = ConvOptions { params, variant, ..Default::default() };
            let (out, names) = launches(|| conv2d(&x, &weight, None, &options).unwrap());
            let launched = names.iter().any(|(launched, _)| launched == name);
            assert!(launched, "{variant:?} launches {names:?} on {}, not {name}", device.device_name);
            let naive = conv2d(&x, &weight, None, &ConvOptions { variant: Some(Variant::Naive), ..options }).unwrap();
            let check =
                Tolerance::permissive(DType::F32).check(&out.to_f64_vec().unwrap(), &naive.to_f64_vec().unwrap());
            check.unwrap_or_else(|why| panic!("{}: {why}", device.device_name));
        }
    }
}

/// Running averages that a step changes.
struct Averages {
    mean: Tensor,
    var: Tensor,
}

impl Averages {
    fn new(queue: &Queue, channels: usize) -> Averages {
        let make = |value: f64| Tensor::full(queue, [channels], DType::F32, value).unwrap();
        Averages { mean: make(0.5), var: make(2.0) }
    }

    fn running(&self) -> Running<'_> {
        Running::new(&self.mean, &self.var, 0.25)
    }
}

fn is_pocl(device: &DeviceHandle) -> bool {
    device.platform_name.contains("Portable")
}

/// Both ways of normalising agree, and so do the averages. A mean that is thousands of deviations away is rounded, and with it
/// every value counted from it.
fn agree(out: &Tensor, statistics: &ChannelStatistics, far: bool) -> Result<(), String> {
    let (q, channels) = (out.queue(), out.shape()[1]);
    let (weight, bias) = (
        tensor(q, &random(channels, 7, (0.5, 2.0)), [channels], DType::F32).0,
        Tensor::full(q, [channels], DType::F32, 0.25).unwrap(),
    );
    let affine = Affine { weight: Some(&weight), bias: Some(&bias) };
    let (given, found) = (Averages::new(q, channels), Averages::new(q, channels));
    let text = |e: netcl_core::Error| e.to_string();
    let with = batch_norm_with(out, statistics, affine, Some(given.running()), 1e-5).map_err(text)?;
    let without = batch_norm(out, affine, Some(found.running()), 1e-5).map_err(text)?;
    let all = |n: Normalized, a: Averages| {
        [("mean", n.mean), ("rstd", n.rstd), ("output", n.output), ("averages", a.mean), ("averages", a.var)]
    };
    for ((what, got), (_, expected)) in all(with, given).into_iter().zip(all(without, found)) {
        let near = Tolerance::balanced(got.dtype());
        let tolerance = if far { Tolerance { absolute: 1e3 * near.absolute, ..near } } else { near };
        let check = tolerance.check(&got.to_f64_vec().map_err(text)?, &expected.to_f64_vec().map_err(text)?);
        check.map_err(|why| format!("{what}: {why}"))?;
    }
    Ok(())
}

/// Whether a convolution's statistics cost a pass over its result.
fn passes(names: &[(String, usize)]) -> bool {
    names.iter().any(|(name, _)| name == "channel_statistics")
}

/// Whether it should not: the one kernel that finds statistics may be forced or, on GPUs, chosen.
fn fuses(device: &DeviceHandle, names: &[(String, usize)], options: &ConvOptions<'_>, weight: &Tensor) -> bool {
    match device.backend.name() {
        "cl" => names.iter().any(|(name, _)| name == "conv_implicit_gemm"),
        // A product of matrices knows nothing of channels.
        _ => weight.shape()[2..] != [1, 1] || options.params.stride != [1, 1],
    }
}

#[test]
fn statistics_are_those_of_the_result() {
    let g = Graph::new();
    let expr = g.finish(&[g.input(0) * 3.0 + 1.0]);
    let base = ConvParams { padding: [1; 4], ..Default::default() };
    // More images and rows than one task or tile takes; groups; several tiles with a rest; one value short of nothing.
    let cases = [
        ([5, 4, 11, 13], [10, 4, 3, 3], base),
        ([3, 6, 9, 8], [9, 2, 3, 3], ConvParams { groups: 3, stride: [2, 1], ..base }),
        ([2, 3, 7, 5], [70, 3, 1, 1], ConvParams::default()),
        ([9, 2, 30, 31], [3, 2, 3, 3], base),
        ([2, 1, 3, 3], [1, 1, 3, 3], ConvParams::default()),
    ];
    let mut grid = Grid::new("conv2d_with_statistics");
    for device in devices() {
        let q = &device.queue;
        let opencl = device.backend.name() == "cl";
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            // A kernel with local memory takes a second to build for each tile and type.
            let few = match dtype {
                DType::F32 => cases.len(),
                _ if is_pocl(&device) => 0,
                _ if opencl => 1,
                _ => cases.len(),
            };
            let step = if is_pocl(&device) { 2 } else { 1 };
            let variants: &[Option<Variant>] = if opencl { &[None, Some(Variant::ImplicitGemm)] } else { &[None] };
            for (&(x, weight, params), &variant) in
                cases[..few].iter().step_by(step).flat_map(|c| variants.iter().map(move |v| (c, v)))
            {
                for far in [false, true] {
                    // An end of its own is a program of its own.
                    if if dtype.size() == 2 { far } else { opencl && !far } {
                        continue;
                    }
                    grid.cell(&device, format!("{dtype} {x:?} {weight:?} {variant:?} {far}"), || {
                        let (x, weight) = (values(q, x, 1, dtype), values(q, weight, 2, dtype));
                        // Far from zero, where a difference of large squares would have lost all digits.
                        let bias = Tensor::full(q, [weight.shape()[0]], dtype, if far { 3000.0 } else { 0.5 }).unwrap();
                        let epilogue =
                            far.then(|| Epilogue { expr: &expr, inputs: vec![], scalars: vec![], dtype: None });
                        let options = ConvOptions { params, variant, epilogue, ..Default::default() };
                        let ((out, statistics), names) =
                            launches(|| conv2d_with_statistics(&x, &weight, Some(&bias), &options).unwrap());
                        let fused = fuses(&device, &names, &options, &weight);
                        if passes(&names) == fused || (variant == Some(Variant::ImplicitGemm) && !fused) {
                            return Err(format!("unexpected launches: {names:?}"));
                        }
                        agree(&out, &statistics, far)
                    });
                }
            }
        }
    }
    grid.finish(4 * cases.len());
}

#[test]
fn statistics_of_another_tensor_are_refused() {
    let queue = netcl_core::device::manager().cpu().queue;
    let (x, y) = (values(&queue, [2, 3, 4, 4], 1, DType::F32), values(&queue, [2, 3, 4, 5], 1, DType::F32));
    let statistics = ChannelStatistics::of(&x).unwrap();
    let message = |x: &Tensor| batch_norm_with(x, &statistics, Affine::default(), None, 1e-5).unwrap_err().to_string();
    assert!(message(&y).contains("give those of this tensor"), "{}", message(&y));
    assert!(message(&x.cast(DType::F64).unwrap()).contains("float64"));
    let empty = values(&queue, [0, 3, 4, 4], 1, DType::F32);
    let statistics = ChannelStatistics::of(&empty).unwrap();
    let out = batch_norm_with(&empty, &statistics, Affine::default(), None, 1e-5).unwrap();
    assert!(out.output.size() == 0 && out.mean.to_host::<f32>().unwrap().iter().all(|v| v.is_nan()));
}

/// What Winograd does not compute is a product of windows that were written out, where products have matrix units.
#[test]
fn windows_are_written_out_for_matrix_units() {
    for device in devices() {
        let q = &device.queue;
        // Whatever multiplies a large matrix here multiplies windows too.
        let large = values(q, [1, 1, 1024, 1024], 1, DType::F32);
        let (_, names) = launches(|| matmul(&large, &large).unwrap());
        if !names.iter().any(|(name, _)| {
            netcl_ops::matmul::Variant::MATRIX_UNITS.iter().any(|variant| variant.kernel_name() == name)
        }) {
            eprintln!("no matrix units for float32 on {}", device.device_name);
            continue;
        }
        // As many as a matrix of several images needs, and one image with enough windows of its own.
        for (n, size) in [(64, 8), (2, 48)] {
            let (x, weight) = (values(q, [n, 96, size, size], 1, DType::F32), values(q, [80, 96, 3, 3], 2, DType::F32));
            for (stride, direct) in [([1, 1], "winograd_input"), ([2, 2], "im2col")] {
                let options = ConvOptions::from(ConvParams { stride, padding: [1; 4], ..Default::default() });
                let (out, names) = launches(|| conv2d(&x, &weight, None, &options).unwrap());
                assert!(names.iter().any(|(name, _)| name == direct), "{names:?} on {}", device.device_name);
                let grad = values(q, out.shape()[..].try_into().unwrap(), 3, DType::F32);
                let (_, names) = launches(|| conv2d_backward_data(&grad, &weight, x.shape(), &options).unwrap());
                let back = if stride == [1, 1] { direct } else { "col2im" };
                assert!(names.iter().any(|(name, _)| name == back), "{names:?} on {}", device.device_name);
                let weights = || conv2d_backward_weight(&grad, &x, weight.shape(), &options).unwrap();
                let (got, names) = launches(weights);
                assert!(names.iter().any(|(name, _)| name == "im2col"), "{names:?} on {}", device.device_name);
                let naive = ConvOptions { variant: Some(Variant::Naive), ..options.clone() };
                let want = conv2d_backward_weight(&grad, &x, weight.shape(), &naive).unwrap();
                // Sums of thousands of terms of either sign: what is rounded off is a part of the largest, not of each.
                let (got, want) = (got.to_f64_vec().unwrap(), want.to_f64_vec().unwrap());
                let largest = want.iter().fold(0.0f64, |most, v| most.max(v.abs()));
                let off = got.iter().zip(&want).fold(0.0f64, |most, (g, w)| most.max((g - w).abs()));
                assert!(off <= 4e-6 * largest, "{n} images, {stride:?} on {}: {off} of {largest}", device.device_name);
            }
        }
    }
}

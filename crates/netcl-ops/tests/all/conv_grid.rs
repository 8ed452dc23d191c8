//! Convolutions and their gradients: devices x dtypes x geometries x variants, held against plain f64 loops with a bound that grows
//! with the number of terms; and PyTorch's own numbers, exactly.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::has_wgmma;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::launch;
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor;
use netcl_ops::conv::*;
use netcl_ops::matmul::Epilogue;

use crate::conv_support::{Case, Form, case, operand, run};
use crate::support::{self, Grid, devices, every, in_child, opencl, random, supports, tensor};

const CASES: [Case; 33] = [
    case([2, 3, 7, 9], 5, [3, 3]).pad([1, 1, 1, 1]),
    case([1, 1, 1, 1], 1, [1, 1]),
    case([2, 9, 8, 8], 17, [3, 3]).pad([1, 1, 1, 1]),
    case([2, 4, 11, 13], 3, [3, 3]).stride(2, 2).pad([1, 1, 1, 1]),
    case([1, 3, 15, 15], 8, [7, 7]).stride(2, 2).pad([3, 3, 3, 3]),
    case([2, 6, 7, 5], 4, [1, 1]),
    case([2, 6, 7, 5], 4, [1, 1]).stride(2, 3),
    case([2, 6, 7, 5], 4, [1, 1]).pad([1, 0, 2, 1]),
    case([1, 4, 9, 10], 6, [3, 3]).pad([0, 2, 1, 3]),
    case([2, 3, 8, 9], 4, [2, 5]).pad([1, 0, 2, 2]),
    case([1, 2, 12, 6], 3, [5, 1]).stride(3, 1),
    case([1, 2, 4, 14], 3, [1, 4]).stride(1, 3).pad([0, 0, 2, 0]),
    case([2, 3, 11, 12], 4, [3, 3]).dilate(2, 3).pad([2, 2, 3, 3]),
    case([1, 3, 13, 13], 4, [3, 3]).dilate(3, 2).stride(2, 3).pad([1, 2, 0, 3]),
    case([2, 6, 6, 7], 9, [3, 3]).groups(3).pad([1, 1, 1, 1]),
    case([2, 5, 9, 8], 5, [3, 3]).groups(5).pad([1, 1, 1, 1]),
    case([1, 4, 9, 8], 12, [3, 3]).groups(4).stride(2, 2).pad([1, 1, 1, 1]),
    case([2, 8, 5, 5], 6, [1, 1]).groups(2),
    case([0, 3, 5, 5], 4, [3, 3]),
    case([3, 2, 3, 3], 2, [3, 3]),
    case([2, 3, 6, 7], 4, [3, 3]).pad([1, 1, 1, 1]).form(Form::ChannelsLast),
    case([2, 4, 6, 7], 3, [3, 2]).stride(2, 1).form(Form::Strided),
    case([2, 4, 6, 7], 3, [1, 1]).form(Form::ChannelsLast),
    // The filter is taller than the image, which the padding makes up for; a stride longer than the filter.
    case([1, 2, 2, 9], 3, [4, 3]).pad([2, 2, 0, 0]).stride(1, 5),
    // More padding than the filter reaches.
    case([1, 2, 4, 3], 2, [2, 2]).pad([3, 2, 2, 4]).stride(2, 2),
    case([5, 3, 17, 19], 10, [3, 3]).pad([1, 1, 1, 1]),
    case([1, 20, 10, 33], 19, [3, 3]).pad([1, 1, 1, 1]),
    // Filters that see one channel each.
    case([3, 4, 13, 10], 4, [5, 5]).groups(4).stride(3, 2).dilate(2, 1).pad([4, 3, 1, 2]),
    case([2, 6, 9, 7], 12, [3, 3]).groups(6).stride(2, 2).pad([1, 1, 1, 1]).form(Form::ChannelsLast),
    case([2, 3, 6, 8], 3, [2, 3]).groups(3).pad([1, 0, 1, 1]).form(Form::Strided),
    case([2, 3, 1, 40], 6, [1, 5]).groups(3).stride(1, 2).pad([0, 0, 7, 6]),
    case([2, 2, 12, 13], 2, [11, 9]).groups(2).pad([5, 5, 4, 4]),
    case([1, 2, 23, 9], 2, [3, 2]).groups(2).stride(9, 3).pad([2, 4, 0, 1]),
];

fn is_pocl(device: &DeviceHandle) -> bool {
    device.platform_name.contains("Portable")
}

#[test]
fn every_geometry_dtype_and_device() {
    let mut grid = Grid::new("conv2d");
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            let step = if dtype == DType::F32 { every(&device, 5, 1) } else { every(&device, 24, 5) };
            for case in CASES.iter().skip(dtype as usize % step).step_by(step) {
                grid.cell(&device, format!("{dtype} {case:?}"), || run(&device, dtype, case, None));
            }
        }
    }
    grid.finish(4 * CASES.len());
}

fn winograd_fits(case: &Case, dtype: DType) -> bool {
    let plain = case.stride == [1, 1] && case.dilation == [1, 1] && case.groups == 1;
    plain && case.kernel == [3, 3] && dtype == DType::F32
}

/// Whether a variant can compute a case.
fn fits(variant: Variant, case: &Case, dtype: DType) -> bool {
    match variant {
        Variant::Winograd => winograd_fits(case, dtype),
        Variant::Depthwise => case.x[1] == case.groups,
        // `matrix_units` has cases of its own.
        Variant::Units => false,
        _ => true,
    }
}

#[test]
fn every_variant() {
    let mut grid = Grid::new("conv2d variants");
    for device in opencl() {
        for variant in Variant::ALL {
            for dtype in DType::FLOATS {
                if !supports(&device, dtype) {
                    grid.skip("the device has no float64");
                    continue;
                }
                // Kernels with local memory take a second to build for each tile and type.
                let cases: Vec<&Case> = match (dtype, variant) {
                    (DType::F32, Variant::Naive | Variant::Im2col | Variant::Winograd | Variant::Depthwise) => {
                        CASES.iter().step_by(every(&device, 5, 1)).collect()
                    }
                    (_, Variant::Depthwise) if !is_pocl(&device) => CASES.iter().skip(15).collect(),
                    (DType::F32, _) => CASES.iter().step_by(every(&device, 9, 3)).collect(),
                    _ => CASES.iter().step_by(every(&device, 40, 9)).collect(),
                };
                for case in cases {
                    if !fits(variant, case, dtype) {
                        continue;
                    }
                    grid.cell(&device, format!("{variant:?} {dtype} {case:?}"), || {
                        run(&device, dtype, case, Some(variant))
                    });
                }
            }
        }
    }
    grid.finish(0);
}

/// Boxes that fill tiles, hang over edges, span images; channels and filters that do and do not fill the tiles.
const FOR_UNITS: [Case; 12] = [
    case([2, 64, 16, 16], 64, [3, 3]).pad([1, 1, 1, 1]),
    case([3, 24, 9, 7], 40, [3, 3]).pad([1, 1, 1, 1]).form(Form::ChannelsLast),
    case([5, 72, 5, 5], 136, [1, 1]),
    case([2, 64, 14, 10], 72, [3, 3]).stride(2, 2).pad([1, 1, 1, 1]),
    case([2, 32, 11, 13], 64, [1, 1]).stride(2, 2).form(Form::ChannelsLast),
    case([2, 16, 12, 9], 24, [5, 3]).stride(1, 3).pad([2, 1, 0, 2]),
    case([2, 32, 13, 12], 32, [3, 3]).dilate(2, 3).pad([2, 2, 3, 3]),
    case([1, 16, 15, 14], 16, [3, 3]).dilate(2, 1).stride(3, 2).pad([4, 3, 1, 2]),
    case([130, 16, 1, 1], 8, [1, 1]),
    case([1, 8, 1, 70], 8, [1, 7]).pad([0, 0, 3, 3]),
    case([2, 16, 6, 7], 296, [2, 2]).pad([1, 0, 0, 1]).form(Form::Strided),
    case([9, 264, 8, 8], 264, [3, 3]).pad([1, 1, 1, 1]),
];

#[test]
fn matrix_units() {
    let mut grid = Grid::new("conv2d on matrix units");
    for device in opencl() {
        if !matches!(&device.queue, Queue::OpenCl(stream) if has_wgmma(stream.device())) {
            grid.skip("the device has no matrix units");
            continue;
        }
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            for case in &FOR_UNITS {
                grid.cell(&device, format!("{dtype} {case:?}"), || run(&device, dtype, case, Some(Variant::Units)));
            }
        }
    }
    grid.finish(0);
}

#[test]
fn bias_and_epilogue_end_every_variant() {
    let g = Graph::new();
    // relu(s0 * (sum + bias)) + residual, to another type.
    let expr = g.finish(&[(g.input(0) * g.scalar(0)).relu() + g.input(1)]);
    let case = case([2, 3, 7, 6], 5, [3, 3]).pad([1, 1, 1, 1]);
    let product = Case { kernel: [1, 1], padding: [0; 4], ..case };
    let mut grid = Grid::new("conv2d epilogues");
    for device in devices() {
        let q = &device.queue;
        let variants: Vec<Option<Variant>> = match device.backend.name() {
            "cl" => std::iter::once(None).chain(Variant::ALL.map(Some)).collect(),
            _ => vec![None],
        };
        for (dtype, to) in [(DType::F32, DType::F32), (DType::BF16, DType::F32)] {
            for (case, &variant) in [case, product].iter().flat_map(|c| variants.iter().map(move |v| (c, v))) {
                let sampled = dtype != DType::F32 && (is_pocl(&device) || variant.is_some());
                if sampled || variant.is_some_and(|variant| !fits(variant, case, dtype)) {
                    continue;
                }
                grid.cell(&device, format!("{dtype} {case:?} {variant:?}"), || {
                    let (x, _) = operand(q, case.x, Form::Dense, 1, dtype);
                    let (weight, _) = operand(q, case.weight(), Form::Dense, 2, dtype);
                    let (bias, vb) = tensor(q, &random(5, 5, (-1.0, 1.0)), [5], dtype);
                    // Broadcast along channels and columns.
                    let (residual, vr) = tensor(q, &random(14, 6, (-1.0, 1.0)), [2, 1, 7, 1], DType::F32);
                    let plain = ConvOptions { epilogue: None, ..case.options(variant) };
                    let wide = |t: &Tensor| t.to(&manager().cpu().queue).unwrap().cast(DType::F64).unwrap();
                    let expected = conv2d(&wide(&x), &wide(&weight), None, &plain).unwrap().to_f64_vec().unwrap();
                    let expected: Vec<f64> = expected
                        .iter()
                        .enumerate()
                        .map(|(i, sum)| {
                            let (image, filter, row) = (i / (5 * 42), i / 42 % 5, i / 6 % 7);
                            (0.75 * (sum + vb[filter])).max(0.0) + vr[image * 7 + row]
                        })
                        .collect();
                    let epilogue =
                        Epilogue { expr: &expr, inputs: vec![residual], scalars: vec![0.75.into()], dtype: Some(to) };
                    let options = ConvOptions { epilogue: Some(epilogue), ..case.options(variant) };
                    let got = conv2d(&x, &weight, Some(&bias), &options).map_err(|e| e.to_string())?;
                    if got.dtype() != to {
                        return Err(format!("{} instead of {to}", got.dtype()));
                    }
                    support::Tolerance::balanced(to).check(&got.to_f64_vec().unwrap(), &expected)
                });
            }
        }
    }
    grid.finish(4);
}

#[test]
fn mistakes_say_what_to_do() {
    let queue = manager().cpu().queue;
    let zeros = |shape: &[usize]| Tensor::from_shape(&queue, shape, DType::F32).unwrap();
    let (x, weight) = (zeros(&[1, 4, 5, 5]), zeros(&[6, 4, 3, 3]));
    let message = |x: &Tensor, weight: &Tensor, options: &ConvOptions<'_>| {
        conv2d(x, weight, None, options).unwrap_err().to_string()
    };
    let plain = ConvOptions::default();
    let with = |f: fn(&mut ConvParams)| {
        let mut params = ConvParams::default();
        f(&mut params);
        ConvOptions::from(params)
    };
    assert!(message(&zeros(&[4, 5, 5]), &weight, &plain).contains("four axes"));
    assert!(message(&x, &zeros(&[6, 4, 3]), &plain).contains("four axes"));
    assert!(message(&x, &zeros(&[6, 3, 3, 3]), &plain).contains("needs filters of 4 channels"));
    assert!(message(&x, &zeros(&[6, 4, 0, 3]), &plain).contains("empty"));
    assert!(message(&zeros(&[1, 4, 0, 5]), &weight, &plain).contains("only the batch"));
    assert!(message(&x, &weight, &with(|o| o.stride = [0, 1])).contains("at least 1"));
    assert!(message(&x, &weight, &with(|o| o.dilation = [1, 0])).contains("at least 1"));
    assert!(message(&x, &weight, &with(|o| o.groups = 0)).contains("at least 1"));
    assert!(message(&x, &weight, &with(|o| o.groups = 3)).contains("multiples"));
    assert!(message(&x, &weight, &with(|o| o.dilation = [3, 1])).contains("reaches over 7"));
    assert!(message(&x, &weight, &with(|o| o.padding = [usize::MAX, 0, 0, 0])).contains("addressed"));
    assert!(message(&x, &weight, &with(|o| o.dilation = [usize::MAX, 1])).contains("addressed"));
    assert!(conv2d(&x, &weight, Some(&zeros(&[5])), &plain).unwrap_err().to_string().contains("6 output channels"));
    assert!(conv2d(&x, &weight.cast(DType::F64).unwrap(), None, &plain).unwrap_err().to_string().contains("mixes"));
    let wrong = conv2d_backward_data(&zeros(&[1, 6, 2, 3]), &weight, x.shape(), &plain).unwrap_err().to_string();
    assert!(wrong.contains("(1, 6, 3, 3)"), "{wrong}");
    let up = |padding, extra| {
        let options = ConvParams { padding, ..Default::default() }.into();
        conv_transpose2d(&x, &zeros(&[4, 6, 3, 3]), None, &options, extra).unwrap_err().to_string()
    };
    assert!(up([0; 4], [1, 0]).contains("less than the stride"));
    assert!(up([9, 9, 0, 0], [0, 0]).contains("pad less"));
    for device in opencl() {
        let x = Tensor::from_shape(&device.queue, [1, 4, 9, 9], DType::F32).unwrap();
        let weight = Tensor::from_shape(&device.queue, [6, 4, 5, 5], DType::F32).unwrap();
        let options = ConvOptions { variant: Some(Variant::Winograd), ..Default::default() };
        assert!(message(&x, &weight, &options).contains("leave the variant open"));
    }
}

#[test]
fn scratch_memory_is_bounded() {
    // Windows of the whole batch would take 9 times the input: 75 MB of 64 images, 340 MB of 288.
    for device in devices() {
        let queue = &device.queue;
        let native = device.backend.name() == "cpu";
        let case = case([if native { 64 } else { 288 }, 32, 32, 32], 8, [3, 3]).pad([1, 1, 1, 1]);
        let x = Tensor::from_shape(queue, case.x, DType::F32).unwrap();
        let weight = Tensor::from_shape(queue, case.weight(), DType::F32).unwrap();
        let largest = Rc::new(Largest::default());
        let out = launch::with_sink(largest.clone(), || {
            let out = conv2d(&x, &weight, None, &case.options(None)).unwrap();
            conv2d_backward_data(&out, &weight, x.shape(), &case.options(None)).unwrap();
            conv2d_backward_weight(&out, &x, weight.shape(), &case.options(None)).unwrap();
            out
        });
        // A process that ends while a driver still computes may not end well.
        queue.finish().unwrap();
        let (input, most) = (x.size() * 4, largest.0.get());
        // Natively a few images at a time; OpenCL devices are only fast with many, in a fixed number of bytes.
        let allowed = if native { 2 * input.max(out.size() * 4) } else { 256 << 20 };
        assert!(most <= allowed, "{}: {most} bytes at once", device.device_name);
    }
}

/// Remembers the largest allocation.
#[derive(Default)]
struct Largest(Cell<usize>);

impl launch::Sink for Largest {
    fn allocate(&self, request: &launch::Allocation) -> netcl_core::Result<Arc<Storage>> {
        self.0.set(self.0.get().max(request.nbytes));
        request.queue.allocate_now(request.nbytes, request.label)
    }
}

#[test]
fn small_devices_are_respected() {
    for limits in ["wg=64,local=16k,alloc=64M,no_fp64", "wg=7,local=1k"] {
        in_child("conv_grid::bias_and_epilogue_end_every_variant", "NETCL_LIMITS", limits);
    }
}

#[test]
fn every_instruction_set_computes_the_same() {
    for level in ["baseline", "avx2"] {
        in_child("golden::conv2d::pytorch_computes_the_same", "NETCL_SIMD", level);
    }
}

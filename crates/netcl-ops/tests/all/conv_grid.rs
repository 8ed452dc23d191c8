//! Convolutions and their gradients: devices x dtypes x geometries x variants, held against plain f64 loops with a bound that grows
//! with the number of terms; and PyTorch's own numbers, exactly.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::launch;
use netcl_core::shape::Shape;
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor;
use netcl_ops::conv::*;
use netcl_ops::matmul::Epilogue;

use crate::conv_support::{Case, Form, case, operand, run};
use crate::golden::conv2d::whole;
use crate::support::{self, Grid, devices, in_child, opencl, random, supports, tensor};

const CASES: [Case; 27] = [
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
            // A PoCL kernel takes a fifth of a second to build: types other than f32 are sampled there.
            let step = if is_pocl(&device) && dtype != DType::F32 { 6 } else { 1 };
            for case in CASES.iter().step_by(step) {
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
                    (DType::F32, Variant::Naive | Variant::Im2col | Variant::Im2colPlanes | Variant::Winograd) => {
                        CASES.iter().collect()
                    }
                    (DType::F32, _) => CASES.iter().step_by(if is_pocl(&device) { 3 } else { 1 }).collect(),
                    _ => CASES.iter().step_by(if is_pocl(&device) { 40 } else { 9 }).collect(),
                };
                for case in cases {
                    if variant == Variant::Winograd && !winograd_fits(case, dtype) {
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
                if sampled || (variant == Some(Variant::Winograd) && !winograd_fits(case, dtype)) {
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
fn sequences_are_images_of_one_row() {
    for device in devices() {
        let q = &device.queue;
        let x = whole(q, &[2, 4, 11], 1, DType::F32);
        let weight = whole(q, &[6, 2, 3], 2, DType::F32);
        let bias = whole(q, &[6], 4, DType::F32);
        let options = Conv1dOptions { stride: 2, padding: [1, 2], dilation: 2, groups: 2, ..Default::default() };
        let out = conv1d(&x, &weight, Some(&bias), &options).unwrap();
        assert_eq!(out.shape(), &Shape::from([2, 6, 5]));
        let image = |t: &Tensor| {
            let [a, b, c] = t.shape()[..] else { panic!("three axes") };
            netcl_core::tensor::reshape(t, [a, b, 1, c]).unwrap()
        };
        let same_options =
            ConvOptions { stride: [1, 2], padding: [0, 0, 1, 2], dilation: [1, 2], groups: 2, ..Default::default() };
        let reference = conv2d(&image(&x), &image(&weight), Some(&bias), &same_options).unwrap();
        assert_eq!(out.to_host::<f32>().unwrap(), reference.to_host::<f32>().unwrap());
        let grad = whole(q, out.shape(), 3, DType::F32);
        let dx = conv1d_backward_data(&grad, &weight, x.shape(), &options).unwrap();
        let dw = conv1d_backward_weight(&grad, &x, weight.shape(), &options).unwrap();
        assert_eq!((dx.shape(), dw.shape()), (x.shape(), weight.shape()));
        // Both are gradients of one bilinear form: <dx, x> = <dw, weight> = <grad, out - bias>.
        let dot = |a: &Tensor, b: &Tensor| -> f64 {
            a.to_f64_vec().unwrap().iter().zip(b.to_f64_vec().unwrap()).map(|(a, b)| a * b).sum()
        };
        let form = dot(&grad, &conv1d(&x, &weight, None, &options).unwrap());
        assert_eq!((dot(&dx, &x), dot(&dw, &weight)), (form, form));
    }
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
    let with = |f: fn(&mut ConvOptions<'static>)| {
        let mut options = ConvOptions::default();
        f(&mut options);
        options
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
    let up = |options: &ConvTransposeOptions<'_>| {
        conv_transpose2d(&x, &zeros(&[4, 6, 3, 3]), None, options).unwrap_err().to_string()
    };
    let extra = ConvTransposeOptions { output_padding: [1, 0], ..Default::default() };
    assert!(up(&extra).contains("less than the stride"));
    assert!(up(&ConvTransposeOptions { padding: [9, 9, 0, 0], ..Default::default() }).contains("pad less"));
    for device in opencl() {
        let x = Tensor::from_shape(&device.queue, [1, 4, 9, 9], DType::F32).unwrap();
        let weight = Tensor::from_shape(&device.queue, [6, 4, 5, 5], DType::F32).unwrap();
        let options = ConvOptions { variant: Some(Variant::Winograd), ..Default::default() };
        assert!(message(&x, &weight, &options).contains("leave the variant open"));
    }
}

#[test]
fn scratch_memory_is_bounded() {
    // Windows of the whole batch would take 9 times the input; planes and columns are made for a few images at a time.
    let case = case([64, 32, 32, 32], 8, [3, 3]).pad([1, 1, 1, 1]);
    for device in devices() {
        let queue = &device.queue;
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
        // A GPU is only fast with many images at a time: Winograd's transforms may take a fixed number of bytes there.
        let allowed = if device.device_type.as_str() == "gpu" { 256 << 20 } else { 2 * input.max(out.size() * 4) };
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

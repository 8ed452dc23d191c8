//! Depthwise convolutions of channels-last images: the numbers of the kernels for dense ones, results that lie as the images do.

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Graph;
use netcl_core::tensor::Tensor;
use netcl_ops::conv::*;
use netcl_ops::matmul::{Epilogue, Prologue};

use crate::support::{Tolerance, every, opencl, random, supports, tensor};

fn channels_last(t: &Tensor) -> Tensor {
    t.permute(&[0, 2, 3, 1]).unwrap().contiguous().unwrap().permute(&[0, 3, 1, 2]).unwrap()
}

/// Images, then kernel, stride, dilation, padding (top, left, bottom, right).
type Case = ([usize; 4], [usize; 2], [usize; 2], [usize; 2], [usize; 4]);

/// Widths around a tile's edge, channels that are no multiple of a group's, strides that miss pixels, windows without symmetry.
const CASES: [Case; 7] = [
    ([2, 8, 9, 7], [3, 3], [1, 1], [1, 1], [1; 4]),
    ([1, 36, 7, 10], [3, 3], [2, 2], [1, 1], [1; 4]),
    ([2, 4, 8, 5], [5, 3], [1, 2], [1, 1], [2, 0, 1, 1]),
    ([1, 12, 11, 9], [3, 2], [3, 1], [1, 2], [0, 1, 2, 0]),
    ([1, 4, 9, 9], [3, 3], [2, 2], [2, 2], [2; 4]),
    ([1, 8, 6, 6], [7, 7], [1, 1], [1, 1], [3; 4]),
    ([3, 4, 5, 5], [1, 1], [2, 2], [1, 1], [0; 4]),
];

fn options(case: &Case) -> ConvOptions<'static> {
    let &(shape, _, stride, dilation, padding) = case;
    let params = ConvParams { stride, padding, dilation, groups: shape[1] };
    ConvOptions { params, variant: Some(Variant::Depthwise), ..Default::default() }
}

fn check(got: &Tensor, expected: &Tensor, what: &str) {
    let check = Tolerance::balanced(got.dtype()).check(&got.to_f64_vec().unwrap(), &expected.to_f64_vec().unwrap());
    check.unwrap_or_else(|why| panic!("{what}: {why}"));
}

#[test]
fn channels_last_images_give_what_dense_ones_give() {
    for device in opencl() {
        let q = &device.queue;
        // PoCL takes ten seconds to compile each window, Intel's runtime five.
        for (number, case) in CASES.iter().enumerate().step_by(every(&device, CASES.len(), 2)) {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                if !supports(&device, dtype) || (dtype != DType::F32 && number > 0) {
                    continue;
                }
                let &(shape, kernel, ..) = case;
                let what = format!("{case:?} {dtype} on {}", device.device_name);
                let make = |shape: [usize; 4], seed| {
                    tensor(q, &random(shape.iter().product(), seed, (-1.0, 1.0)), shape, dtype).0
                };
                let (x, weight) = (make(shape, 1), make([shape[1], 1, kernel[0], kernel[1]], 2));
                let options = options(case);
                let expected = conv2d(&x, &weight, None, &options).unwrap();
                let got = conv2d(&channels_last(&x), &weight, None, &options).unwrap();
                assert!(expected.layout().is_contiguous() && got.layout().is_channels_last(), "{what}");
                check(&got, &expected, &what);
                let grad = make(expected.shape()[..].try_into().unwrap(), 3);
                let expected = conv2d_backward_data(&grad, &weight, x.shape(), &options).unwrap();
                let got = conv2d_backward_data(&channels_last(&grad), &weight, x.shape(), &options).unwrap();
                assert!(got.layout().is_channels_last(), "{what}");
                check(&got, &expected, &what);
                let expected = conv2d_backward_weight(&grad, &x, weight.shape(), &options).unwrap();
                let (grad, x) = (channels_last(&grad), channels_last(&x));
                check(&conv2d_backward_weight(&grad, &x, weight.shape(), &options).unwrap(), &expected, &what);
            }
        }
    }
}

#[test]
fn prologue_and_epilogue_see_each_element_once() {
    for device in opencl() {
        let q = &device.queue;
        let make = |shape: [usize; 4], seed| {
            tensor(q, &random(shape.iter().product(), seed, (-1.0, 1.0)), shape, DType::F32).0
        };
        let case = &CASES[1];
        let (x, weight) = (make(case.0, 1), make([36, 1, 3, 3], 2));
        let (scale, residual) = (make([1, 36, 1, 1], 3), make([1, 36, 4, 5], 4));
        let g = Graph::new();
        let scaled = g.finish(&[(g.input(0) * g.input(1)).relu()]);
        let g = Graph::new();
        let joined = g.finish(&[(g.input(0) + g.input(1)) * g.scalar(0)]);
        let options = ConvOptions {
            prologue: Some(Prologue { operand: 0, expr: &scaled, inputs: vec![scale], scalars: vec![] }),
            epilogue: Some(Epilogue { expr: &joined, inputs: vec![residual], scalars: vec![0.5.into()], dtype: None }),
            ..options(case)
        };
        let expected = conv2d(&x, &weight, None, &options).unwrap();
        let got = conv2d(&channels_last(&x), &weight, None, &options).unwrap();
        check(&got, &expected, &device.device_name);
    }
}

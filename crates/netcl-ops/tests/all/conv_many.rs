//! Convolutions of many filters and channels on the native CPU, whose vectors are filters, and weights that stay packed.

use netcl_core::backend::cpu::threads::set_num_threads;
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Graph;
use netcl_core::tensor::Tensor;
use netcl_ops::conv::*;
use netcl_ops::matmul::Epilogue;
use netcl_ops::norm::{Affine, batch_norm, batch_norm_with};

use crate::conv_support::{Case, Form, case, operand, run};
use crate::support::{Grid, Tolerance, in_child, random, tensor};

/// Narrow and odd planes, panels that run
/// over the ends of images, blocks of filters and of terms that are not full, and phases without taps.
const MANY: [Case; 14] = [
    case([3, 66, 4, 4], 72, [3, 3]).pad([1, 1, 1, 1]),
    case([5, 67, 7, 5], 65, [3, 3]).pad([1, 1, 1, 1]),
    case([2, 70, 3, 3], 98, [3, 3]).pad([1, 1, 1, 1]),
    case([2, 66, 9, 7], 80, [3, 3]).stride(2, 2).pad([1, 1, 1, 1]),
    case([2, 66, 8, 9], 70, [1, 1]).stride(2, 2),
    case([1, 16, 40, 5], 64, [5, 2]).stride(1, 3).pad([2, 2, 0, 1]),
    case([2, 64, 11, 3], 64, [3, 3]).dilate(2, 1).pad([2, 2, 1, 1]),
    case([2, 130, 6, 3], 132, [3, 3]).groups(2).pad([1, 1, 1, 1]),
    case([2, 64, 6, 7], 128, [3, 3]).groups(2).stride(2, 1).pad([0, 1, 1, 0]),
    case([0, 16, 5, 5], 16, [3, 3]),
    case([2, 64, 6, 3], 66, [3, 3]).pad([1, 1, 1, 1]).form(Form::ChannelsLast),
    case([2, 64, 6, 3], 65, [3, 2]).stride(2, 1).form(Form::Strided),
    case([1, 16, 20, 33], 19, [3, 3]).pad([1, 1, 1, 1]),
    case([2, 64, 1, 1], 70, [3, 3]).pad([1, 1, 1, 1]),
];

#[test]
fn many_filters_and_channels() {
    let mut grid = Grid::new("conv2d of many channels");
    let device = manager().cpu();
    for (dtype, case) in DType::FLOATS.into_iter().flat_map(|dtype| MANY.iter().map(move |case| (dtype, case))) {
        grid.cell(&device, format!("{dtype} {case:?}"), || run(&device, dtype, case, None));
    }
    grid.finish(4 * MANY.len());
}

#[test]
fn packed_weights_stay_until_the_weight_is_written() {
    let queue = manager().cpu().queue;
    for case in [
        case([1, 20, 7, 7], 67, [3, 3]).pad([1, 1, 1, 1]),
        case([1, 8, 30, 30], 8, [3, 3]).groups(8).pad([1, 1, 1, 1]),
        case([2, 40, 7, 7], 33, [1, 1]),
        case([1, 5, 32, 16], 12, [1, 1]),
    ] {
        let (x, _) = operand(&queue, case.x, Form::Dense, 1, DType::F32);
        let (weight, _) = operand(&queue, case.weight(), Form::Dense, 2, DType::F32);
        let options = case.options(None);
        let computed = |weight: &Tensor| {
            let out = conv2d(&x, weight, None, &options).unwrap();
            let dx = conv2d_backward_data(&out, weight, x.shape(), &options).unwrap();
            [out.to_host::<f32>().unwrap(), dx.to_host::<f32>().unwrap()]
        };
        for round in 0..3 {
            let expected = computed(&weight.duplicate().unwrap());
            for _ in 0..3 {
                assert_eq!(computed(&weight), expected, "{case:?} in round {round}");
            }
            weight.assign(&operand(&queue, case.weight(), Form::Dense, 10 + round, DType::F32).0).unwrap();
        }
    }
}

#[test]
fn many_channels_end_like_few() {
    // Bias, epilogue and statistics of packed sums, in pieces of several images.
    let queue = manager().cpu().queue;
    let g = Graph::new();
    let expr = g.finish(&[(g.input(0) * g.scalar(0)).relu() + g.input(1)]);
    for (dtype, case) in [
        (DType::F32, case([6, 20, 5, 7], 67, [3, 3]).pad([1, 1, 1, 1])),
        (DType::BF16, case([3, 20, 9, 6], 24, [3, 3]).stride(2, 2)),
    ] {
        let [oh, ow] = case.output();
        let (x, _) = operand(&queue, case.x, Form::Dense, 1, dtype);
        let (weight, _) = operand(&queue, case.weight(), Form::Dense, 2, dtype);
        let (bias, vb) = tensor(&queue, &random(case.filters, 5, (-1.0, 1.0)), [case.filters], dtype);
        let (residual, vr) = tensor(&queue, &random(case.x[0] * oh, 6, (-1.0, 1.0)), [case.x[0], 1, oh, 1], DType::F32);
        let wide = |t: &Tensor| t.cast(DType::F64).unwrap();
        let sums = conv2d(&wide(&x), &wide(&weight), None, &case.options(None)).unwrap().to_f64_vec().unwrap();
        let plane = oh * ow;
        let expected: Vec<f64> = sums
            .iter()
            .enumerate()
            .map(|(i, sum)| {
                let (image, filter, row) = (i / (case.filters * plane), i / plane % case.filters, i / ow % oh);
                (0.75 * (sum + vb[filter])).max(0.0) + vr[image * oh + row]
            })
            .collect();
        let epilogue =
            Epilogue { expr: &expr, inputs: vec![residual], scalars: vec![0.75.into()], dtype: Some(DType::F32) };
        let options = ConvOptions { epilogue: Some(epilogue), ..case.options(None) };
        let got = conv2d(&x, &weight, Some(&bias), &options).unwrap();
        Tolerance::balanced(DType::F32).check(&got.to_f64_vec().unwrap(), &expected).unwrap();
        let (out, statistics) = conv2d_with_statistics(&x, &weight, Some(&bias), &case.options(None)).unwrap();
        let given = batch_norm_with(&out, &statistics, Affine::default(), None, 1e-5).unwrap().output;
        let found = batch_norm(&out, Affine::default(), None, 1e-5).unwrap().output;
        Tolerance::balanced(dtype).check(&given.to_f64_vec().unwrap(), &found.to_f64_vec().unwrap()).unwrap();
    }
}

#[test]
fn native_results_do_not_depend_on_the_number_of_threads() {
    let queue = manager().cpu().queue;
    let cases = [
        case([7, 20, 19, 18], 21, [3, 3]).pad([1, 1, 1, 1]),
        case([1, 6, 40, 40], 50, [5, 5]).stride(2, 2),
        case([3, 48, 20, 20], 48, [3, 3]).groups(48).pad([1, 1, 1, 1]),
        case([2, 200, 6, 6], 130, [3, 3]).pad([1, 1, 1, 1]),
        case([20, 70, 4, 4], 90, [3, 3]).stride(2, 2).pad([1, 1, 1, 1]),
    ];
    for case in cases {
        let (x, _) = operand(&queue, case.x, Form::Dense, 1, DType::F32);
        let (weight, _) = operand(&queue, case.weight(), Form::Dense, 2, DType::F32);
        let options = case.options(None);
        let bits = |threads: usize| {
            set_num_threads(threads);
            let out = conv2d(&x, &weight, None, &options).unwrap();
            let dx = conv2d_backward_data(&out, &weight, x.shape(), &options).unwrap();
            let dw = conv2d_backward_weight(&out, &x, weight.shape(), &options).unwrap();
            [out, dx, dw].map(|t| t.to_host::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>())
        };
        let one = bits(1);
        for threads in [2, 3, 8] {
            assert!(bits(threads) == one, "{case:?}: {threads} threads give other bits than one");
        }
        set_num_threads(0);
    }
}

#[test]
fn every_instruction_set_computes_the_same() {
    for level in ["baseline", "avx2"] {
        in_child("conv_many::many_filters_and_channels", "NETCL_SIMD", level);
    }
}

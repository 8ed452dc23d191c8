//! Every recordable op as a case: what it is called, what it takes, params it is applied. Checks of gradients run over this list.

use netcl_autograd::gradcheck::Tolerance;
use netcl_autograd::ops::attention::{Attention, RotaryForm, RotaryTables, rotary, scaled_dot_product_attention};
use netcl_autograd::ops::conv::{self, BatchNorm, ConvParams, symmetric};
use netcl_autograd::ops::dropout::{Dropped, alpha_dropout, dropout, feature_dropout};
use netcl_autograd::ops::embedding_bag::{BagMode, EmbeddingBagOptions, embedding_bag};
use netcl_autograd::ops::grid::{GridMode, GridPadding, affine_grid, grid_sample};
use netcl_autograd::ops::norm::LocalResponse;
use netcl_autograd::ops::pad::PadMode;
use netcl_autograd::ops::pool::Window;
use netcl_autograd::ops::quantized::{Packing, quantized_linear};
use netcl_autograd::ops::recurrent::{Cell, Recurrent, RecurrentOutput, recurrent};
use netcl_autograd::ops::{
    activation, distance, elementwise, indexing, layout, linalg, matmul, norm, pad, pool, resample, shuffle, softmax,
    sort, unfold,
};
use netcl_autograd::{Result, Tensor};
use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::table;
use netcl_core::random::{Generator, fill_uniform_f64};
use netcl_core::shape::Slice;
use netcl_core::tensor::HostOptions;

pub(crate) fn cpu() -> Queue {
    manager().cpu().queue
}

/// The native CPU and every OpenCL device. A machine without OpenCL is named, and fails the run where all must be tested.
pub(crate) fn devices() -> Vec<DeviceHandle> {
    let found = manager().discover().unwrap();
    if found.is_empty() {
        eprintln!("NOT TESTED on OpenCL: there is no device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device: install pocl-opencl-icd");
    }
    let mut handles = vec![manager().cpu()];
    handles.extend(found.iter().map(|device| manager().handle(device).unwrap()));
    handles
}

/// Numbers without a pattern between two bounds, the same for the same seed.
pub(crate) fn values(n: usize, seed: u64, (low, high): (f64, f64)) -> Vec<f64> {
    let mut values = vec![0.0; n];
    fill_uniform_f64(&mut values, &Generator::new(seed)).unwrap();
    values.into_iter().map(|u| low + u * (high - low)).collect()
}

/// A leaf of such numbers.
pub(crate) fn leaf(queue: &Queue, dtype: DType, shape: &[usize], seed: u64, bounds: (f64, f64)) -> Tensor {
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    let values = values(shape.iter().product(), seed, bounds);
    Tensor::from_host_with(queue, &values, shape, options).unwrap().with_grad()
}

/// Second derivatives come from differences of first ones: a larger step, a looser tolerance.
pub(crate) const SECOND: Tolerance = Tolerance { eps: 1e-5, atol: 1e-4, rtol: 1e-3 };

type Function = Box<dyn Fn(&[&Tensor]) -> Result<Tensor>>;

/// One op, or one form of it.
pub(crate) struct Case {
    pub(crate) name: String,
    /// Shape and range of each input.
    pub(crate) inputs: Vec<(Vec<usize>, (f64, f64))>,
    /// Whether it launches a kernel of its own kind, worth differences on every device.
    pub(crate) heavy: bool,
    pub(crate) function: Function,
}

impl Case {
    /// The inputs as leaves.
    pub(crate) fn leaves(&self, queue: &Queue, dtype: DType) -> Vec<Tensor> {
        let inputs = self.inputs.iter().enumerate();
        inputs.map(|(i, (shape, bounds))| leaf(queue, dtype, shape, 11 + i as u64, *bounds)).collect()
    }
}

const ONE: (f64, f64) = (-1.0, 1.0);

/// Where an op of the table is smooth enough for differences, inside its domain.
fn smooth(op: &table::OpDef, operand: usize) -> (f64, f64) {
    let (low, high) = op.domain[operand];
    match op.name {
        "log" | "sqrt" | "rsqrt" | "reciprocal" => (0.3, 3.0),
        "div" if operand == 1 => (0.5, 2.0),
        "pow" => [(0.4, 2.0), (-1.5, 2.0)][operand],
        "log1p" => (-0.4, 2.0),
        "tan" => (-1.2, 1.2),
        "asin" | "acos" | "atanh" => (-0.8, 0.8),
        "acosh" => (1.3, 3.0),
        "log2" | "log10" | "hypot" | "atan2" | "copysign" => (0.3, 3.0),
        "xlogy" if operand == 1 => (0.3, 3.0),
        // Between the jumps.
        "frac" => (0.1, 0.9),
        "fmod" | "remainder" | "floor_divide" => [(2.1, 2.9), (2.95, 3.05)][operand],
        // Away from the jumps at 0.5 and -0.5.
        "hardshrink" => (0.6, 2.2),
        _ => (low.max(-2.2), high.min(2.2)),
    }
}

/// All of them: the elementwise table by itself, everything else by hand.
pub(crate) fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = table::ops()
        .iter()
        .map(|op| Case {
            name: op.name.to_owned(),
            inputs: (0..op.arity()).map(|i| (vec![2, 3], smooth(op, i))).collect(),
            heavy: false,
            function: Box::new(move |t| {
                let operands: Vec<elementwise::Operand<'_>> = t.iter().map(|t| (*t).into()).collect();
                elementwise::apply(op.name, &operands, &[])
            }),
        })
        .collect();
    let mut case = |name: &str, heavy: bool, inputs: &[(&[usize], (f64, f64))], function: Function| {
        let inputs = inputs.iter().map(|(shape, bounds)| (shape.to_vec(), *bounds)).collect();
        all.push(Case { name: name.to_owned(), inputs, heavy, function });
    };

    // Broadcasting, numbers in place of tensors.
    case(
        "mul, broadcast",
        false,
        &[(&[4, 1, 3], ONE), (&[2, 1], ONE)],
        Box::new(|t| elementwise::mul(&t[0].exp()?, t[1])),
    );
    case("add, scalar tensor", false, &[(&[2, 3], ONE), (&[], ONE)], Box::new(|t| t[0] + t[1]));
    case("div by number", false, &[(&[5], ONE)], Box::new(|t| t[0] / 3.0));
    case("number over tensor", false, &[(&[5], (0.5, 2.0))], Box::new(|t| 2.0 / t[0]));
    case("where", false, &[(&[2, 3], ONE), (&[3], ONE)], Box::new(|t| elementwise::where_(&t[0].gt(0.1)?, t[0], t[1])));
    case("fma", false, &[(&[3], ONE), (&[3], ONE), (&[3], ONE)], Box::new(|t| elementwise::fma(t[0], t[1], t[2])));

    // Reductions.
    for keepdims in [false, true] {
        let shape: &[(&[usize], (f64, f64))] = &[(&[2, 3, 4], (0.2, 2.0))];
        let name = |op: &str| format!("{op}, keepdims {keepdims}");
        case(&name("sum"), true, shape, Box::new(move |t| t[0].square()?.sum(&[0, 2], keepdims)));
        case(&name("mean"), true, shape, Box::new(move |t| t[0].square()?.mean(1, keepdims)));
        case(&name("prod"), true, shape, Box::new(move |t| t[0].prod(2, keepdims)));
        case(&name("max"), true, shape, Box::new(move |t| t[0].max(1, keepdims)));
        case(&name("min"), true, shape, Box::new(move |t| t[0].min((), keepdims)));
        case(&name("var"), true, shape, Box::new(move |t| t[0].var(&[0, 1], 1.0, keepdims)));
        case(&name("std"), true, shape, Box::new(move |t| t[0].std((), 0.0, keepdims)));
        case(&name("norm 1"), true, shape, Box::new(move |t| t[0].norm(1.0, 0, keepdims)));
        case(&name("norm 2"), true, shape, Box::new(move |t| t[0].norm(2.0, 1, keepdims)));
        case(&name("norm 3"), true, shape, Box::new(move |t| t[0].norm(3.0, (), keepdims)));
        case(&name("norm inf"), true, shape, Box::new(move |t| t[0].norm(f64::INFINITY, -1, keepdims)));
        case(&name("logsumexp"), true, shape, Box::new(move |t| t[0].logsumexp(&[1, 2], keepdims)));
    }
    for axis in [0, 1, -1] {
        let shape: &[(&[usize], (f64, f64))] = &[(&[2, 3, 4], (-2.0, 2.0))];
        case(&format!("softmax, axis {axis}"), true, shape, Box::new(move |t| t[0].softmax(axis)));
        case(&format!("log_softmax, axis {axis}"), true, shape, Box::new(move |t| t[0].log_softmax(axis)));
        case(&format!("cumsum, axis {axis}"), true, shape, Box::new(move |t| t[0].square()?.cumsum(axis)));
    }

    // Products.
    let products: [(&[usize], &[usize]); 6] = [
        (&[2, 3], &[3, 4]),
        (&[3], &[3]),
        (&[3], &[2, 3, 2]),
        (&[2, 1, 2, 3], &[4, 3, 2]),
        (&[4, 3], &[3]),
        (&[9, 5], &[5, 17]),
    ];
    for (a, b) in products {
        case(&format!("matmul {a:?} {b:?}"), true, &[(a, ONE), (b, ONE)], Box::new(|t| t[0].matmul(t[1])));
    }
    case(
        "matmul, transposed",
        true,
        &[(&[4, 3], ONE), (&[5, 4], ONE)],
        Box::new(|t| t[0].transpose(0, 1)?.matmul(&t[1].transpose(0, 1)?)),
    );
    let linear: &[(&[usize], (f64, f64))] = &[(&[2, 5, 3], ONE), (&[4, 3], ONE), (&[4], ONE)];
    case("linear", true, linear, Box::new(|t| matmul::linear(t[0], t[1], Some(t[2]))));
    case("linear without bias", true, &linear[..2], Box::new(|t| matmul::linear(t[0], t[1], None)));
    let quantized: Function = Box::new(|t| {
        let weight = Tensor::full(t[0].queue(), [4, 1], DType::I32, f64::from(0x5A90_7F81))?;
        let scale = Tensor::full(t[0].queue(), [4, 1], t[0].dtype(), 0.01)?;
        quantized_linear(t[0], &weight, &scale, Some(t[1]), Packing::new(8, 64)?)
    });
    case("quantized_linear", true, &[(&[2, 5, 3], ONE), (&[4], ONE)], quantized);
    case("bias_add", false, &[(&[2, 5, 3], ONE), (&[3], ONE)], Box::new(|t| matmul::bias_add(t[0], t[1])));
    case("bias_add, images", false, &[(&[2, 3, 2, 2], ONE), (&[3], ONE)], Box::new(|t| matmul::bias_add(t[0], t[1])));

    // Layout.
    let (x, y): ((&[usize], _), (&[usize], _)) = ((&[2, 1, 3], ONE), (&[2, 4, 3], ONE));
    case("reshape", false, &[y], Box::new(|t| layout::reshape(&t[0].transpose(0, 2)?, [24])));
    case("permute", false, &[y], Box::new(|t| t[0].permute(&[2, 0, 1])));
    case("expand", false, &[x], Box::new(|t| t[0].expand([5, 2, 4, 3])));
    case("slice", false, &[y], Box::new(|t| t[0].slice(1, Slice::new(Some(3), None, -2))));
    case("select", false, &[y], Box::new(|t| t[0].select(1, -2)));
    case("squeeze", false, &[x], Box::new(|t| t[0].squeeze(&[])));
    case("unsqueeze", false, &[x], Box::new(|t| t[0].unsqueeze(1)));
    case("flatten", false, &[y], Box::new(|t| t[0].flatten(1, -1)));
    case("flip", false, &[y], Box::new(|t| t[0].flip(&[0, -1])));
    case("contiguous", false, &[y], Box::new(|t| t[0].transpose(0, 2)?.contiguous()));
    case("duplicate", false, &[y], Box::new(|t| t[0].duplicate()));
    case("cat", false, &[x, y], Box::new(|t| layout::cat(&[t[0], t[1], t[0]], 1)));
    case("stack", false, &[x], Box::new(|t| layout::stack(&[t[0], &t[0].exp()?], -1)));
    case(
        "split",
        false,
        &[y],
        Box::new(|t| {
            let parts = layout::split(t[0], &[1, 3], 1)?;
            layout::cat(&[&parts[1], &parts[0].exp()?], 1)
        }),
    );
    case("chunk", false, &[y], Box::new(|t| layout::chunk(t[0], 3, 1)?[1].exp()));
    case("repeat", false, &[x], Box::new(|t| layout::repeat(t[0], &[2, 1, 3, 2])));
    case("tril", false, &[y], Box::new(|t| layout::tril(t[0], -1)));
    case("triu", false, &[y], Box::new(|t| layout::triu(t[0], 1)));

    // Normalisation. Weights away from zero, so that scaling matters.
    let (image, channel): ((&[usize], _), (&[usize], _)) = ((&[2, 4, 3, 2], (-2.0, 2.0)), (&[4], (0.5, 1.5)));
    let (line, width): ((&[usize], _), (&[usize], _)) = ((&[3, 2, 5], (-2.0, 2.0)), (&[2, 5], (0.5, 1.5)));
    case(
        "batch_norm",
        true,
        &[image, channel, channel],
        Box::new(|t| norm::batch_norm(t[0], Some(t[1]), Some(t[2]), None, 1e-3)),
    );
    case("batch_norm, plain", true, &[image], Box::new(|t| norm::batch_norm(t[0], None, None, None, 1e-3)));
    case(
        "batch_norm, eval",
        true,
        &[image, channel, channel],
        Box::new(|t| {
            let fixed = |low, high| leaf(t[0].queue(), t[0].dtype(), &[4], 5, (low, high)).raw().clone();
            norm::batch_norm_eval(t[0], Some(t[1]), Some(t[2]), (&fixed(-1.0, 1.0), &fixed(0.5, 2.0)), 1e-3)
        }),
    );
    case(
        "layer_norm",
        true,
        &[line, width, width],
        Box::new(|t| norm::layer_norm(t[0], 2, Some(t[1]), Some(t[2]), 1e-3)),
    );
    case("layer_norm, plain", true, &[line], Box::new(|t| norm::layer_norm(t[0], 1, None, None, 1e-3)));
    case(
        "group_norm",
        true,
        &[image, channel, channel],
        Box::new(|t| norm::group_norm(t[0], 2, Some(t[1]), Some(t[2]), 1e-3)),
    );
    case("rms_norm", true, &[line, width], Box::new(|t| norm::rms_norm(t[0], 2, Some(t[1]), 1e-3)));
    case(
        "instance_norm",
        true,
        &[image, channel, channel],
        Box::new(|t| norm::instance_norm(t[0], Some(t[1]), Some(t[2]), None, 1e-3)),
    );
    case(
        "instance_norm, one sequence",
        false,
        &[(&[2, 5], (-2.0, 2.0))],
        Box::new(|t| norm::instance_norm(t[0], None, None, None, 1e-3)),
    );
    for size in [3, 4] {
        let params = LocalResponse { alpha: 0.5, ..LocalResponse::new(size) };
        let function = move |t: &[&Tensor]| norm::local_response_norm(t[0], &params);
        case(&format!("local_response_norm {size}"), false, &[image], Box::new(function));
    }

    // Windows, images, margins.
    let plane: (&[usize], _) = (&[2, 2, 5, 4], ONE);
    let window = Window { stride: [2, 1], padding: [1, 1], ..Window::new([3, 2]) };
    let line: (&[usize], _) = (&[2, 3, 7], ONE);
    case("max_pool2d", true, &[plane], Box::new(move |t| pool::max_pool2d(t[0], &window)));
    case(
        "max_pool1d",
        true,
        &[line],
        Box::new(|t| pool::max_pool1d(t[0], &Window { stride: [2], ..Window::new([3]) })),
    );
    case("adaptive_max_pool2d", true, &[plane], Box::new(|t| pool::adaptive_max_pool2d(t[0], [3, 2])));
    case("adaptive_max_pool1d", true, &[line], Box::new(|t| pool::adaptive_max_pool1d(t[0], 3)));
    case("avg_pool2d", true, &[plane], Box::new(move |t| pool::avg_pool2d(t[0], &window, Default::default())));
    case("avg_pool1d", true, &[line], Box::new(|t| pool::avg_pool1d(t[0], &Window::new([2]), Default::default())));
    case("adaptive_avg_pool2d", true, &[plane], Box::new(|t| pool::adaptive_avg_pool2d(t[0], [3, 2])));
    case("adaptive_avg_pool1d", true, &[line], Box::new(|t| pool::adaptive_avg_pool1d(t[0], 3)));
    case(
        "lp_pool2d",
        false,
        &[(&[2, 2, 5, 4], (0.2, 1.0))],
        Box::new(|t| pool::lp_pool2d(t[0], 3.0, &Window { stride: [2, 1], ..Window::new([3, 2]) })),
    );
    case("lp_pool1d", false, &[line], Box::new(|t| pool::lp_pool1d(t[0], 2.0, &Window::new([3]))));
    case("upsample_nearest", true, &[plane], Box::new(|t| resample::upsample_nearest(t[0], [7, 9])));
    case("upsample_bilinear", true, &[plane], Box::new(|t| resample::upsample_bilinear(t[0], 2.0, false)));
    case("upsample_bilinear, corners", true, &[plane], Box::new(|t| resample::upsample_bilinear(t[0], [7, 3], true)));
    for mode in [PadMode::Constant(1.5), PadMode::Reflect, PadMode::Replicate, PadMode::Circular] {
        case(&format!("pad {mode:?}"), true, &[plane], Box::new(move |t| pad::pad(t[0], &[(1, 2), (2, 0)], mode)));
    }

    // Convolutions: a plain one, one with every option, one whose channels are on their own.
    let filters: (&[usize], _) = (&[3, 2, 3, 2], ONE);
    let all_options = ConvParams { stride: [2, 1], padding: [1, 0, 2, 1], dilation: [1, 2], ..Default::default() };
    case(
        "conv2d",
        true,
        &[plane, filters, (&[3], ONE)],
        Box::new(|t| {
            conv::conv2d(t[0], t[1], Some(t[2]), &ConvParams { padding: symmetric([1, 1]), ..Default::default() })
        }),
    );
    case(
        "conv2d, every option",
        true,
        &[plane, filters],
        Box::new(move |t| conv::conv2d(t[0], t[1], None, &all_options)),
    );
    case(
        "conv2d, depthwise",
        true,
        &[plane, (&[4, 1, 2, 2], ONE)],
        Box::new(|t| conv::conv2d(t[0], t[1], None, &ConvParams { groups: 2, ..Default::default() })),
    );
    case(
        "conv2d, 1x1",
        true,
        &[plane, (&[3, 2, 1, 1], ONE)],
        Box::new(|t| conv::conv2d(t[0], t[1], None, &ConvParams::default())),
    );
    // All parameters, and none but the filters.
    let both: [(&[usize], _); 5] = [plane, filters, (&[3], ONE), (&[3], ONE), (&[3], ONE)];
    for (name, parameters) in [("conv2d_batch_norm", 5), ("conv2d_batch_norm, plain", 2)] {
        let function = move |t: &[&Tensor]| {
            let norm = BatchNorm { weight: t.get(3).copied(), bias: t.get(4).copied(), running: None, eps: 1e-3 };
            conv::conv2d_batch_norm(t[0], t[1], t.get(2).copied(), &all_options, &norm)
        };
        case(name, true, &both[..parameters], Box::new(function));
    }
    case(
        "conv1d",
        true,
        &[(&[2, 2, 6], ONE), (&[3, 2, 3], ONE), (&[3], ONE)],
        Box::new(|t| conv::conv1d(t[0], t[1], Some(t[2]), &ConvParams { stride: [1, 2], ..Default::default() })),
    );
    case(
        "conv_transpose2d",
        true,
        &[(&[2, 3, 3, 2], ONE), filters, (&[2], ONE)],
        Box::new(|t| {
            let params = ConvParams { stride: [2, 2], padding: symmetric([1, 0]), ..Default::default() };
            conv::conv_transpose2d(t[0], t[1], Some(t[2]), &params, [1, 0])
        }),
    );
    case(
        "conv_transpose1d",
        true,
        &[(&[2, 4, 5], ONE), (&[4, 1, 3], ONE), (&[2], ONE)],
        Box::new(|t| {
            let params = ConvParams { stride: [1, 2], padding: [0, 0, 1, 0], dilation: [1, 2], groups: 2 };
            conv::conv_transpose1d(t[0], t[1], Some(t[2]), &params, 1)
        }),
    );
    // One image, one sequence.
    let one: (&[usize], _) = (&[2, 5, 4], ONE);
    case(
        "conv2d, one image",
        false,
        &[one, filters],
        Box::new(|t| conv::conv2d(t[0], t[1], None, &ConvParams::default())),
    );
    case(
        "conv_transpose2d, one image",
        false,
        &[(&[3, 3, 2], ONE), filters],
        Box::new(|t| conv::conv_transpose2d(t[0], t[1], None, &ConvParams::default(), [0, 0])),
    );
    case(
        "conv_transpose1d, one sequence",
        false,
        &[(&[2, 4], ONE), (&[2, 3, 3], ONE)],
        Box::new(|t| conv::conv_transpose1d(t[0], t[1], None, &ConvParams::default(), 0)),
    );

    // Attention.
    let (queries, keys): ((&[usize], _), (&[usize], _)) = ((&[1, 2, 3, 4], ONE), (&[1, 2, 5, 4], ONE));
    for (name, causal, masked, dropout) in [
        ("attention", false, false, 0.0),
        ("attention, causal", true, false, 0.0),
        ("attention, masked", false, true, 0.0),
        ("attention, dropout", false, false, 0.3),
    ] {
        let function = move |t: &[&Tensor]| {
            let mask = leaf(t[0].queue(), t[0].dtype(), &[3, 5], 8, ONE).detach();
            let params = Attention { causal, mask: masked.then_some(&mask), dropout, ..Default::default() };
            scaled_dot_product_attention(t[0], t[1], t[2], &params, Some(&mut Generator::new(3)))
        };
        case(name, true, &[queries, keys, keys], Box::new(function));
    }
    // A mask with a gradient, broadcast along heads and queries; two heads of keys for four of queries.
    for (name, heads, causal, dropout, mask) in [
        ("attention, learned mask", 2, true, 0.3, Some(&[2, 1, 5][..])),
        ("attention, grouped", 4, false, 0.3, None),
        ("attention, grouped, learned mask", 4, true, 0.0, Some(&[4, 3, 5][..])),
    ] {
        let queries = [1, heads, 3, 4];
        let inputs: Vec<_> = [&queries[..], keys.0, keys.0].into_iter().chain(mask).map(|shape| (shape, ONE)).collect();
        let function = move |t: &[&Tensor]| {
            let params =
                Attention { causal, mask: t.get(3).copied(), dropout, grouped: heads == 4, ..Default::default() };
            scaled_dot_product_attention(t[0], t[1], t[2], &params, Some(&mut Generator::new(3)))
        };
        case(name, true, &inputs, Box::new(function));
    }

    // Recurrent layers: all results in one, so that every one has a gradient.
    for (name, cell, reverse, given) in [
        ("recurrent lstm", Cell::Lstm, false, 5),
        ("recurrent gru, reversed", Cell::Gru, true, 4),
        ("recurrent tanh", Cell::Tanh, false, 3),
        ("recurrent relu, reversed", Cell::Relu, true, 2),
    ] {
        let width = cell.gates() * 3;
        let shapes: [&[usize]; 5] = [&[3, 2, width], &[width, 3], &[width], &[2, 3], &[2, 3]];
        let inputs = shapes.map(|shape| (shape, ONE));
        let function = move |t: &[&Tensor]| {
            let [bias, hidden, memory] = [2, 3, 4].map(|i| t.get(i).copied());
            let layer = Recurrent { cell, input: t[0], weight: t[1], bias, hidden, memory, reverse };
            let RecurrentOutput { out, hidden, memory } = recurrent(&layer)?;
            let last = memory.map_or(Ok(hidden.clone()), |memory| &hidden * &memory)?;
            &out + &last
        };
        case(name, true, &inputs[..given], Box::new(function));
    }
    for form in [RotaryForm::Interleaved, RotaryForm::HalfSplit] {
        let function =
            move |t: &[&Tensor]| rotary(t[0], &RotaryTables::new(t[0].queue(), 2, 3, 4, 1e4, t[0].dtype())?, form);
        case(&format!("rotary {form:?}"), true, &[queries], Box::new(function));
    }

    // In order, and chosen by index.
    case("sort", true, &[(&[3, 4], ONE)], Box::new(|t| Ok(sort::sort(t[0], 0, true)?.0)));
    case("topk", true, &[(&[3, 4], ONE)], Box::new(|t| Ok(sort::topk(t[0], 2, 1, true)?.0)));
    let indices = |t: &Tensor, values: &[i64], shape: &[usize]| IndexTensor::from_host(t.queue(), values, shape);
    let table: (&[usize], _) = (&[4, 3], ONE);
    case(
        "index_select",
        true,
        &[table],
        Box::new(move |t| indexing::index_select(t[0], 0, &indices(t[0], &[2, 0, 2], &[3])?)),
    );
    case(
        "gather",
        true,
        &[table],
        Box::new(move |t| indexing::gather(t[0], 0, &indices(t[0], &[3, 0, 1, 3, 0, 2], &[2, 3])?)),
    );
    case(
        "scatter_add",
        true,
        &[table, (&[3, 3], ONE)],
        Box::new(move |t| indexing::scatter_add(t[0], 0, &indices(t[0], &[3, 0, 1, 3, 0, 2], &[2, 3])?, t[1])),
    );
    case(
        "index_add",
        true,
        &[table, (&[2, 3], ONE)],
        Box::new(move |t| indexing::index_add(t[0], 0, &indices(t[0], &[1, 1], &[2])?, t[1])),
    );
    case(
        "embedding",
        true,
        &[table],
        Box::new(move |t| indexing::embedding(t[0], &indices(t[0], &[3, 3, 0, 1], &[2, 2])?, None)),
    );
    case(
        "masked_fill",
        false,
        &[table],
        Box::new(|t| indexing::masked_fill(t[0], leaf(t[0].queue(), t[0].dtype(), &[3], 8, ONE).gt(0.0)?.raw(), 2.0)),
    );
    case("dropout", true, &[table], Box::new(|t| dropout(t[0], 0.4, Some(&mut Generator::new(3)))));
    case("feature_dropout", false, &[y], Box::new(|t| feature_dropout(t[0], 0.4, Some(&mut Generator::new(3)))));
    for dropped in [Dropped::Elements, Dropped::Channels] {
        let function = move |t: &[&Tensor]| alpha_dropout(t[0], 0.4, dropped, Some(&mut Generator::new(3)));
        case(&format!("alpha_dropout of {dropped:?}"), false, &[y], Box::new(function));
    }

    // Bags: of rows of indices, and of stretches with an empty one.
    for mode in [BagMode::Sum, BagMode::Mean, BagMode::Max] {
        let function = move |t: &[&Tensor]| {
            let options = EmbeddingBagOptions { mode, ..Default::default() };
            embedding_bag(t[0], &indices(t[0], &[3, 3, 0, 1, 3, 2], &[3, 2])?, &options)
        };
        case(&format!("embedding_bag {mode:?}"), true, &[table], Box::new(function));
        let function = move |t: &[&Tensor]| {
            let offsets = indices(t[0], &[0, 2, 2, 5], &[4])?;
            let factors = t.get(1).copied();
            let options = EmbeddingBagOptions {
                mode,
                offsets: Some(&offsets),
                per_sample_weights: factors,
                ..Default::default()
            };
            embedding_bag(t[0], &indices(t[0], &[3, 3, 0, 1, 3, 2], &[6])?, &options)
        };
        let inputs: &[(&[usize], _)] = if mode == BagMode::Sum { &[table, (&[6], ONE)] } else { &[table] };
        case(&format!("embedding_bag {mode:?} of stretches"), true, inputs, Box::new(function));
    }

    // Gates, choices, angles, layouts.
    case("glu", false, &[y], Box::new(|t| activation::glu(t[0], 1)));
    case("rrelu", false, &[y], Box::new(|t| activation::rrelu(t[0], 0.1, 0.3, true, Some(&mut Generator::new(3)))));
    case("softmin", false, &[y], Box::new(|t| softmax::softmin(t[0], 1)));
    case(
        "gumbel_softmax",
        false,
        &[y],
        Box::new(|t| softmax::gumbel_softmax(t[0], 0.7, false, 1, Some(&mut Generator::new(3)))),
    );
    case(
        "bilinear",
        false,
        &[(&[2, 2, 3], ONE), (&[2, 2, 4], ONE), (&[5, 3, 4], ONE), (&[5], ONE)],
        Box::new(|t| matmul::bilinear(t[0], t[1], t[2], Some(t[3]))),
    );
    case(
        "cosine_similarity",
        false,
        &[(&[2, 4, 3], ONE), (&[4, 1], ONE)],
        Box::new(|t| distance::cosine_similarity(t[0], t[1], 1, 1e-8)),
    );
    for p in [1.0, 2.0, 3.0] {
        let function = move |t: &[&Tensor]| distance::pairwise_distance(t[0], t[1], p, 1e-6, true);
        case(&format!("pairwise_distance {p}"), false, &[table, table], Box::new(function));
    }
    case("normalize", false, &[table], Box::new(|t| distance::normalize(t[0], 2.0, 1, 1e-12)));
    // Windows and patches, overlapping and side by side.
    let pairs = unfold::Windows { size: 2, step: 3, dilation: 2 };
    case("unfold, windows", false, &[(&[2, 9], ONE)], Box::new(move |t| unfold::windows(t[0], 1, pairs)));
    let patches = unfold::Patches { kernel_size: [2, 3], dilation: [2, 1], padding: [1, 2], stride: [1, 2] };
    case("unfold", false, &[(&[2, 2, 3, 4], ONE)], Box::new(move |t| unfold::unfold(t[0], &patches)));
    case("fold", false, &[(&[2, 12, 9], ONE)], Box::new(move |t| unfold::fold(t[0], [3, 4], &patches)));

    // Grids: away from whole places, where gradients jump.
    let (image, points): ((&[usize], _), (&[usize], _)) = ((&[1, 2, 3, 4], ONE), (&[1, 2, 2, 2], (-0.62, -0.55)));
    for (name, mode, padding, align_corners) in [
        ("grid_sample", GridMode::Bilinear, GridPadding::Zeros, false),
        ("grid_sample, nearest", GridMode::Nearest, GridPadding::Border, true),
        ("grid_sample, bicubic", GridMode::Bicubic, GridPadding::Reflection, false),
    ] {
        case(name, false, &[image, points], Box::new(move |t| grid_sample(t[0], t[1], mode, padding, align_corners)));
    }
    case("affine_grid", false, &[(&[2, 2, 3], ONE)], Box::new(|t| affine_grid(t[0], [2, 3], false)));
    case(
        "upsample_bicubic",
        false,
        &[(&[1, 2, 3, 4], ONE)],
        Box::new(|t| resample::upsample_bicubic(t[0], [5, 3], false)),
    );

    // Factorisations, and what is made of them.
    // 3, 6, 9 are added to the diagonal: factors of matrices that are nearly singular, or whose values are nearly equal, would
    // compare rounding errors.
    let apart = |a: &Tensor| -> Result<Tensor> {
        let (n, size) = (a.shape()[a.ndim() - 1], a.shape()[a.ndim() - 2] * a.shape()[a.ndim() - 1]);
        let values: Vec<f64> = (0..size).map(|i| if i / n == i % n { 3.0 * (i / n + 1) as f64 } else { 0.0 }).collect();
        let options = HostOptions { dtype: Some(a.dtype()), ..Default::default() };
        a + &Tensor::from_host_with(a.queue(), &values, [size / n, n], options)?
    };
    let symmetric = move |a: &Tensor| -> Result<Tensor> {
        let a = apart(a)?;
        &a + &layout::transpose(&a, -1, -2)?
    };
    let flat = |a: &Tensor, b: &Tensor| -> Result<Tensor> {
        layout::cat(&[&layout::flatten(a, 0, -1)?, &layout::flatten(b, 0, -1)?], 0)
    };
    let of = |shape: &'static [usize]| (shape, ONE);
    let (square, tall, wide) = (of(&[2, 3, 3]), of(&[4, 3]), of(&[2, 4]));
    case("linalg_solve", false, &[square, (&[3, 2], ONE)], Box::new(move |t| linalg::solve(&apart(t[0])?, t[1])));
    case("linalg_inv", false, &[square], Box::new(move |t| linalg::inv(&apart(t[0])?)));
    case("linalg_det", false, &[square], Box::new(move |t| linalg::det(&(&apart(t[0])? / 4.0)?)));
    case("linalg_slogdet", false, &[square], Box::new(move |t| Ok(linalg::slogdet(&apart(t[0])?)?.1)));
    case("linalg_cholesky", false, &[square], Box::new(move |t| linalg::cholesky(&symmetric(t[0])?)));
    let eigen = move |t: &[&Tensor]| linalg::eigh(&symmetric(t[0])?).and_then(|(w, v)| flat(&w, &v));
    case("linalg_eigh", false, &[square], Box::new(eigen));
    for (shape, form) in [(tall, "tall"), (wide, "wide")] {
        let name = |op: &str| format!("linalg_{op}, {form}");
        let orthogonal = move |t: &[&Tensor]| linalg::qr(&apart(t[0])?, false).and_then(|(q, r)| flat(&q, &r));
        case(&name("qr"), false, &[shape], Box::new(orthogonal));
        let singular = move |t: &[&Tensor]| {
            let (u, s, vt) = linalg::svd(&apart(t[0])?, false)?;
            flat(&flat(&u, &s)?, &vt)
        };
        case(&name("svd"), false, &[shape], Box::new(singular));
        case(&name("pinv"), false, &[shape], Box::new(move |t| linalg::pinv(&apart(t[0])?, None)));
    }

    case("pixel_shuffle", false, &[(&[2, 8, 2, 3], ONE)], Box::new(|t| shuffle::pixel_shuffle(t[0], 2)));
    case("pixel_unshuffle", false, &[(&[2, 4, 6], ONE)], Box::new(|t| shuffle::pixel_unshuffle(t[0], 2)));
    case("channel_shuffle", false, &[(&[2, 6, 3], ONE)], Box::new(|t| shuffle::channel_shuffle(t[0], 3)));
    all
}

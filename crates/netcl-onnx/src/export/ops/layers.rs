//! Products, convolutions, pooling, normalisation and resampling.

use netcl_nn::autograd::DType;

use super::Handler;
use crate::export::builder::{Builder, Call, Dim, Trouble, Written, float, int, ints, text};

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("matmul", matmul),
    ("linear", linear),
    ("conv2d", conv),
    ("conv_transpose2d", conv_transpose),
    ("max_pool2d", pool),
    ("max_pool1d", pool),
    ("avg_pool2d", pool),
    ("avg_pool1d", pool),
    ("adaptive_avg_pool2d", adaptive),
    ("adaptive_avg_pool1d", adaptive),
    ("adaptive_max_pool2d", adaptive),
    ("adaptive_max_pool1d", adaptive),
    ("batch_norm_eval", batch_norm),
    ("layer_norm", layer_norm),
    ("rms_norm", rms_norm),
    ("group_norm", group_norm),
    ("instance_norm", group_norm),
    ("upsample_nearest", resize),
    ("upsample_bilinear", resize),
    ("upsample_bicubic", resize),
];

fn bind(b: &mut Builder<'_>, call: &Call<'_>, made: String) -> Written {
    b.bind(&call.op.outputs[0], made);
    Ok(())
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn matmul(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let inputs = b.inputs(call)?;
    let made = b.node("MatMul", &refs(&inputs), vec![]);
    bind(b, call, made)
}

fn linear(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let inputs = b.inputs(call)?;
    let made = if call.rank() == 2 {
        b.node("Gemm", &refs(&inputs), vec![int("transB", 1)])
    } else {
        let weight = b.node("Transpose", &[&inputs[1]], vec![ints("perm", &[1, 0])]);
        let product = b.node("MatMul", &[&inputs[0], &weight], vec![]);
        match inputs.get(2) {
            Some(bias) => b.node("Add", &[&product, bias], vec![]),
            None => product,
        }
    };
    bind(b, call, made)
}

/// Stride, padding, dilation and groups; padding is top, bottom, left, right here and begins, then ends, in ONNX.
fn convolution(call: &Call<'_>) -> Vec<crate::proto::Attribute> {
    let kernel: Vec<i64> = call.shape(1)[2..].iter().map(|&n| n as i64).collect();
    let mut pads = call.ints("padding");
    if let [_, bottom, left, _] = &mut pads[..] {
        std::mem::swap(bottom, left);
    }
    vec![
        ints("kernel_shape", &kernel),
        ints("strides", &call.ints("stride")),
        ints("pads", &pads),
        ints("dilations", &call.ints("dilation")),
        int("group", call.int("groups")),
    ]
}

fn conv(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let inputs = b.inputs(call)?;
    let made = b.node("Conv", &refs(&inputs), convolution(call));
    bind(b, call, made)
}

fn conv_transpose(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let inputs = b.inputs(call)?;
    let mut attributes = convolution(call);
    // What the stride leaves open of the result's size.
    let (stride, dilation, padding) = (call.ints("stride"), call.ints("dilation"), call.ints("padding"));
    let extra: Vec<i64> = (0..2)
        .map(|axis| {
            let length = |shape: &[usize]| shape[2 + axis] as i64;
            let taps = dilation[axis] * (length(call.shape(1)) - 1) + 1;
            let plain = (length(call.shape(0)) - 1) * stride[axis] + taps;
            length(call.out_shape()) - (plain - padding[2 * axis] - padding[2 * axis + 1])
        })
        .collect();
    attributes.push(ints("output_padding", &extra));
    let made = b.node("ConvTranspose", &refs(&inputs), attributes);
    bind(b, call, made)
}

/// Runs a node on tensors with a batch: one image or line gets one, which is taken away again.
fn batched(
    b: &mut Builder<'_>,
    call: &Call<'_>,
    spatial: usize,
    node: impl FnOnce(&mut Builder<'_>, &str) -> Written<String>,
) -> Written {
    let x = b.input(call, 0)?;
    if call.rank() == spatial + 2 {
        let made = node(b, &x)?;
        return bind(b, call, made);
    }
    let axis = b.list(&[0]);
    let raised = b.node("Unsqueeze", &[&x, &axis], vec![]);
    let made = node(b, &raised)?;
    let made = b.node("Squeeze", &[&made, &axis], vec![]);
    bind(b, call, made)
}

fn pool(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let spatial = call.ints("kernel").len();
    batched(b, call, spatial, |b, x| {
        let (kernel, padding) = (call.ints("kernel"), call.ints("padding"));
        let mut attributes = vec![
            ints("kernel_shape", &kernel),
            ints("strides", &call.ints("stride")),
            ints("pads", &[&padding[..], &padding[..]].concat()),
            int("ceil_mode", call.int("ceil_mode")),
        ];
        if call.op.name.starts_with("max") {
            attributes.push(ints("dilations", &call.ints("dilation")));
            return Ok(b.node("MaxPool", &[x], attributes));
        }
        let divisor = call.int("divisor");
        attributes.push(int("count_include_pad", i64::from(call.flag("count_include_pad") || divisor != 0)));
        if divisor == 0 {
            return Ok(b.node("AveragePool", &[x], attributes));
        }
        if call.flag("ceil_mode") {
            return Err("a divisor of its own together with ceil_mode has no operator".into());
        }
        let mean = b.node("AveragePool", &[x], attributes);
        let factor = b.scalar(call.dtype(), kernel.iter().product::<i64>() as f64 / divisor as f64);
        Ok(b.node("Mul", &[&mean, &factor], vec![]))
    })
}

/// Windows that follow from the lengths before and after.
fn adaptive(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let spatial = if call.op.name.ends_with("2d") { 2 } else { 1 };
    let last = |shape: &[usize]| shape[shape.len() - spatial..].iter().map(|&n| n as i64).collect::<Vec<i64>>();
    let (from, to) = (last(call.shape(0)), last(call.out_shape()));
    let max = call.op.name.contains("max");
    batched(b, call, spatial, |b, x| {
        if to.iter().all(|&n| n == 1) {
            return Ok(b.node(if max { "GlobalMaxPool" } else { "GlobalAveragePool" }, &[x], vec![]));
        }
        let all = [b.in_dims(call, 0)?, b.out_dims(call)?].concat();
        if all
            .iter()
            .rev()
            .take(spatial)
            .chain(&all[call.rank() - spatial..call.rank()])
            .any(|dim| dim.fixed().is_none())
        {
            return Err("its windows follow from a dynamic length; make it fixed".into());
        }
        if from.iter().zip(&to).any(|(from, to)| *to == 0 || from % to != 0) {
            return Err(format!("{from:?} elements cannot be divided into {to:?} equal windows").into());
        }
        let window: Vec<i64> = from.iter().zip(&to).map(|(from, to)| from / to).collect();
        let attributes = vec![ints("kernel_shape", &window), ints("strides", &window)];
        Ok(b.node(if max { "MaxPool" } else { "AveragePool" }, &[x], attributes))
    })
}

/// The weight and the bias of a normalisation, or the given numbers in their place.
fn affine(b: &mut Builder<'_>, call: &Call<'_>, dims: &[Dim]) -> Written<[String; 2]> {
    let mut next = 1;
    let mut found = |b: &mut Builder<'_>, name: &str, neutral: f64| {
        if call.flag(name) {
            next += 1;
            let input = b.input(call, next - 1)?;
            return Ok::<_, Trouble>(b.cast(&input, call.op.inputs[next - 1].raw().dtype(), call.dtype()));
        }
        let lengths: Option<Vec<i64>> = dims.iter().map(Dim::fixed).collect();
        if let Some(lengths) = lengths {
            let shape: Vec<usize> = lengths.into_iter().map(|n| n as usize).collect();
            return Ok(b.filled(call.dtype(), &shape, &vec![neutral; shape.iter().product()]));
        }
        let (one, shape) = (b.scalar(call.dtype(), neutral), b.numbers(dims)?);
        Ok(b.node("Expand", &[&one, &shape], vec![]))
    };
    Ok([found(b, "weight", 1.0)?, found(b, "bias", 0.0)?])
}

fn batch_norm(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let channels = &b.in_dims(call, 0)?[1..2];
    let [weight, bias] = affine(b, call, channels)?;
    let mut averages = Vec::new();
    for name in ["mean", "var"] {
        let value = call.operand(name)?;
        let average = b.value(&value)?;
        averages.push(b.cast(&average, value[0].raw().dtype(), call.dtype()));
    }
    let inputs = [&x, &weight, &bias, &averages[0], &averages[1]].map(String::as_str);
    let made = b.node("BatchNormalization", &inputs, vec![float("epsilon", call.float("eps"))]);
    bind(b, call, made)
}

fn layer_norm(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let axes = call.int("axes");
    let inner = b.in_dims(call, 0)?.split_off(call.rank() - axes as usize);
    let [weight, bias] = affine(b, call, &inner)?;
    let attributes = vec![int("axis", -axes), float("epsilon", call.float("eps"))];
    let made = b.node("LayerNormalization", &[&x, &weight, &bias], attributes);
    bind(b, call, made)
}

fn rms_norm(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let axes: Vec<i64> = (1..=call.int("axes")).map(|axis| -axis).collect();
    let (axes, eps) = (b.list(&axes), b.scalar(call.dtype(), call.float("eps")));
    let square = b.node("Mul", &[&x, &x], vec![]);
    let mean = b.node("ReduceMean", &[&square, &axes], vec![int("keepdims", 1)]);
    let sum = b.node("Add", &[&mean, &eps], vec![]);
    let root = b.node("Sqrt", &[&sum], vec![]);
    let mut made = b.node("Div", &[&x, &root], vec![]);
    if call.flag("weight") {
        let weight = b.input(call, 1)?;
        let weight = b.cast(&weight, call.op.inputs[1].raw().dtype(), call.dtype());
        made = b.node("Mul", &[&made, &weight], vec![]);
    }
    bind(b, call, made)
}

/// Groups of channels are the channels of an instance normalisation.
fn group_norm(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let (groups, channels) = (call.int("groups"), call.shape(0)[1]);
    let epsilon = || vec![float("epsilon", call.float("eps"))];
    let [weight, bias] = affine(b, call, &[Dim::Fixed(channels as i64)])?;
    if groups == channels as i64 && call.rank() > 2 {
        let made = b.node("InstanceNormalization", &[&x, &weight, &bias], epsilon());
        return bind(b, call, made);
    }
    let dims = b.in_dims(call, 0)?;
    // 0: as long as it was.
    let lines = b.list(&[0, groups, -1]);
    let lines = b.node("Reshape", &[&x, &lines], vec![]);
    let ones = b.filled(call.dtype(), &[groups as usize], &vec![1.0; groups as usize]);
    let zeros = b.filled(call.dtype(), &[groups as usize], &vec![0.0; groups as usize]);
    let made = b.node("InstanceNormalization", &[&lines, &ones, &zeros], epsilon());
    let mut made = b.reshape(&made, &dims)?;
    let mut column = vec![Dim::Fixed(1); call.rank() - 1];
    column[0] = Dim::Fixed(channels as i64);
    for (name, operand, operator) in [("weight", weight, "Mul"), ("bias", bias, "Add")] {
        if call.flag(name) {
            let operand = b.reshape(&operand, &column)?;
            made = b.node(operator, &[&made, &operand], vec![]);
        }
    }
    bind(b, call, made)
}

fn resize(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let corners = if call.flag("align_corners") { "align_corners" } else { "half_pixel" };
    let attributes = match call.op.name {
        "upsample_nearest" => vec![
            text("mode", "nearest"),
            text("coordinate_transformation_mode", "asymmetric"),
            text("nearest_mode", "floor"),
        ],
        "upsample_bilinear" => vec![text("mode", "linear"), text("coordinate_transformation_mode", corners)],
        _ => {
            vec![text("mode", "cubic"), text("coordinate_transformation_mode", corners), float("cubic_coeff_a", -0.75)]
        }
    };
    // How often an axis is as long as before, if that is so in every run.
    let factor = |axis: usize| {
        let (from, to) = (call.input(0), call.output(0));
        let mut factors = from.iter().zip(&to).map(|(from, to)| {
            let (from, to) = (from.raw().shape()[axis], to.raw().shape()[axis]);
            (from != 0 && to.is_multiple_of(from)).then(|| to / from)
        });
        let first = factors.next().flatten();
        first.filter(|_| factors.all(|other| other == first))
    };
    let made = if let [Some(rows), Some(columns)] = [factor(2), factor(3)] {
        let scales = [1.0, 1.0, rows as f64, columns as f64];
        let scales = b.filled(DType::F32, &[4], &scales);
        b.node("Resize", &[&x, "", &scales], attributes)
    } else {
        let dims = b.out_dims(call)?;
        let sizes = b.numbers(&dims)?;
        b.node("Resize", &[&x, "", "", &sizes], attributes)
    };
    bind(b, call, made)
}

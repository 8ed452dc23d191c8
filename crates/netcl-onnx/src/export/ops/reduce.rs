//! Reductions and running sums.

use netcl_nn::autograd::DType;

use super::Handler;
use crate::export::builder::{Builder, Call, Dim, Written, int};

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("sum", reduce),
    ("mean", reduce),
    ("max", reduce),
    ("min", reduce),
    ("prod", reduce),
    ("logsumexp", reduce),
    ("norm", norm),
    ("var", spread),
    ("std", spread),
    ("any", truth),
    ("all", truth),
    ("argmax", arg),
    ("argmin", arg),
    ("cumsum", cumsum),
    ("sort", sort),
    ("topk", sort),
    ("softmax", along),
    ("log_softmax", along),
];

fn bind(b: &mut Builder<'_>, call: &Call<'_>, made: String) -> Written {
    b.bind(&call.op.outputs[0], made);
    Ok(())
}

/// The operator over the axes of the call; `None` of them leave the operand as it is.
fn over(b: &mut Builder<'_>, call: &Call<'_>, operator: &str, x: &str, keepdims: bool) -> String {
    let keep = int("keepdims", keepdims.into());
    if call.flag("all") {
        return b.node(operator, &[x], vec![keep]);
    }
    let axes = call.ints("axes");
    if axes.is_empty() {
        return x.to_owned();
    }
    let axes = b.list(&axes);
    b.node(operator, &[x, &axes], vec![keep])
}

fn reduce(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    // Sums of whole numbers are int64; truth values are reduced as numbers.
    let dtype = if call.dtype() == DType::U8 { DType::I32 } else { call.dtype() };
    let x = b.input(call, 0)?;
    let x = b.cast(&x, call.op.inputs[0].raw().dtype(), dtype);
    let operator = match call.op.name {
        "sum" => "ReduceSum",
        "mean" => "ReduceMean",
        "max" => "ReduceMax",
        "min" => "ReduceMin",
        "prod" => "ReduceProd",
        _ => "ReduceLogSumExp",
    };
    let made = over(b, call, operator, &x, call.flag("keepdims"));
    let made = b.cast(&made, dtype, call.dtype());
    bind(b, call, made)
}

fn norm(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let (x, p, keep) = (b.input(call, 0)?, call.float("p"), call.flag("keepdims"));
    let made = if p == 1.0 || p == 2.0 {
        over(b, call, if p == 1.0 { "ReduceL1" } else { "ReduceL2" }, &x, keep)
    } else {
        let (power, root) = (b.scalar(call.dtype(), p), b.scalar(call.dtype(), 1.0 / p));
        let x = b.node("Abs", &[&x], vec![]);
        let x = b.node("Pow", &[&x, &power], vec![]);
        let sum = over(b, call, "ReduceSum", &x, keep);
        b.node("Pow", &[&sum, &root], vec![])
    };
    bind(b, call, made)
}

/// Variance and standard deviation.
fn spread(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let dims = b.in_dims(call, 0)?;
    let rank = dims.len() as i64;
    let axes: Vec<i64> = call.ints("axes").into_iter().map(|axis| axis.rem_euclid(rank.max(1))).collect();
    let reduced = |axis: usize| call.flag("all") || axes.contains(&(axis as i64));
    let mut count = 1;
    let mut open = Vec::new();
    for (_, dim) in dims.iter().enumerate().filter(|(axis, _)| reduced(*axis)) {
        match dim {
            Dim::Fixed(n) => count *= n,
            other => open.push(other.clone()),
        }
    }
    let mean = over(b, call, "ReduceMean", &x, true);
    let centred = b.node("Sub", &[&x, &mean], vec![]);
    let square = b.node("Mul", &[&centred, &centred], vec![]);
    let sum = over(b, call, "ReduceSum", &square, call.flag("keepdims"));
    let correction = call.float("correction");
    let divisor = if open.is_empty() {
        b.scalar(call.dtype(), (count as f64 - correction).max(0.0))
    } else {
        open.push(Dim::Fixed(count));
        let lengths = b.numbers(&open)?;
        let product = b.node("ReduceProd", &[&lengths], vec![int("keepdims", 0)]);
        let product = b.cast(&product, DType::I64, call.dtype());
        let correction = b.scalar(call.dtype(), correction);
        let rest = b.node("Sub", &[&product, &correction], vec![]);
        let none = b.scalar(call.dtype(), 0.0);
        b.node("Max", &[&rest, &none], vec![])
    };
    let mut made = b.node("Div", &[&sum, &divisor], vec![]);
    if call.op.name == "std" {
        made = b.node("Sqrt", &[&made], vec![]);
    }
    bind(b, call, made)
}

/// Whether any or all elements are not 0.
fn truth(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let truth = b.cast(&x, call.op.inputs[0].raw().dtype(), DType::U8);
    let number = b.cast(&truth, DType::U8, DType::I32);
    let made =
        over(b, call, if call.op.name == "any" { "ReduceMax" } else { "ReduceMin" }, &number, call.flag("keepdims"));
    let made = b.cast(&made, DType::I32, DType::U8);
    bind(b, call, made)
}

/// The first input, with numbers in the place of truth values.
fn comparable(b: &mut Builder<'_>, call: &Call<'_>) -> Written<(String, DType)> {
    let (x, dtype) = (b.input(call, 0)?, call.op.inputs[0].raw().dtype());
    let number = match dtype {
        DType::U8 => DType::I32,
        // TopK has it only in later operator sets.
        DType::BF16 => DType::F32,
        other => other,
    };
    Ok((b.cast(&x, dtype, number), number))
}

fn arg(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let (mut x, _) = comparable(b, call)?;
    let axis = match call.ints("axes")[..] {
        [axis] => axis,
        _ => {
            let flat = b.list(&[-1]);
            x = b.node("Reshape", &[&x, &flat], vec![]);
            0
        }
    };
    let operator = if call.op.name == "argmax" { "ArgMax" } else { "ArgMin" };
    let keep = int("keepdims", (call.flag("keepdims") && !call.flag("all")).into());
    let mut made = b.node(operator, &[&x], vec![int("axis", axis), keep]);
    if call.flag("all") {
        let dims = b.out_dims(call)?;
        made = b.reshape(&made, &dims)?;
    }
    let made = b.cast(&made, DType::I64, call.dtype());
    bind(b, call, made)
}

fn cumsum(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let x = b.cast(&x, call.op.inputs[0].raw().dtype(), call.dtype());
    let axis = b.scalar(DType::I64, call.axis("axis") as f64);
    let made = b.node("CumSum", &[&x, &axis], vec![]);
    bind(b, call, made)
}

/// The first so many elements in order along an axis, and where they were; all of them are sorted.
fn sort(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let (x, dtype) = comparable(b, call)?;
    let axis = call.axis("axis");
    let dims = b.out_dims(call)?;
    let count = b.numbers(&dims[axis as usize..=axis as usize])?;
    let attributes = vec![int("axis", axis), int("largest", call.int("largest")), int("sorted", 1)];
    let made = b.node_of("TopK", &[&x, &count], 2, attributes);
    let values = b.cast(&made[0], dtype, call.dtype());
    b.bind(&call.op.outputs[0], values);
    if let Some(indices) = call.op.outputs.get(1) {
        let cast = b.cast(&made[1], DType::I64, indices.raw().dtype());
        b.bind(indices, cast);
    }
    Ok(())
}

fn along(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let operator = if call.op.name == "softmax" { "Softmax" } else { "LogSoftmax" };
    let made = b.node(operator, &[&x], vec![int("axis", call.axis("axis"))]);
    bind(b, call, made)
}

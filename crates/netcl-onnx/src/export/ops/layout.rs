//! Other axes, parts, and elements chosen by index.

use netcl_nn::autograd::DType;

use super::Handler;
use crate::export::builder::{Builder, Call, Dim, Trouble, Written, code, int, ints, text};

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("reshape", reshape),
    ("permute", permute),
    ("expand", expand),
    ("slice", slice),
    ("flip", flip),
    ("cat", cat),
    ("repeat", repeat),
    ("tril", triangle),
    ("triu", triangle),
    ("duplicate", same),
    ("to", same),
    ("cast", cast),
    ("pad", pad),
    ("embedding", embedding),
    ("index_select", index_select),
    ("gather", gather),
    ("masked_fill", masked_fill),
    ("rotary", rotary),
];

fn bind(b: &mut Builder<'_>, call: &Call<'_>, made: String) -> Written {
    b.bind(&call.op.outputs[0], made);
    Ok(())
}

fn same(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    bind(b, call, x)
}

fn cast(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let made = b.node("Cast", &[&x], vec![int("to", code(call.dtype()))]);
    bind(b, call, made)
}

fn reshape(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let dims = b.out_dims(call)?;
    let made = b.reshape(&x, &dims)?;
    bind(b, call, made)
}

/// Axes counted from the front.
fn from_front(axes: Vec<i64>, rank: usize) -> Vec<i64> {
    axes.into_iter().map(|axis| if axis < 0 { axis + rank as i64 } else { axis }).collect()
}

fn permute(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let axes = from_front(call.ints("axes"), call.rank());
    let made = b.node("Transpose", &[&x], vec![ints("perm", &axes)]);
    bind(b, call, made)
}

fn expand(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let dims = b.out_dims(call)?;
    let shape = b.numbers(&dims)?;
    let made = b.node("Expand", &[&x, &shape], vec![]);
    bind(b, call, made)
}

fn slice(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let axis = call.axis("axis");
    let bounds = b.dims(call, |op| {
        let number = |name| match op.attribute(name) {
            Some(netcl_nn::autograd::trace::Attr::Int(value)) => *value,
            _ => 0,
        };
        let length = op.outputs[0].raw().shape()[axis as usize] as i64;
        let (start, step) = (number("start"), number("step"));
        let past = start + (length - 1) * step + step.signum();
        // Before the first element there is no number: -1 is the last one.
        vec![
            start,
            if length == 0 {
                start
            } else if past < 0 {
                i64::MIN
            } else {
                past
            },
            step,
        ]
    })?;
    let [start, end, step] = [b.numbers(&bounds[..1])?, b.numbers(&bounds[1..2])?, b.numbers(&bounds[2..])?];
    let axis = b.list(&[axis]);
    let made = b.node("Slice", &[&x, &start, &end, &axis, &step], vec![]);
    bind(b, call, made)
}

fn flip(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let axes = from_front(call.ints("axes"), call.rank());
    let list = |b: &mut Builder<'_>, value: i64| b.list(&vec![value; axes.len()]);
    let (start, end, step) = (list(b, -1), list(b, i64::MIN), list(b, -1));
    let axes = b.list(&axes);
    let made = b.node("Slice", &[&x, &start, &end, &axes, &step], vec![]);
    bind(b, call, made)
}

fn cat(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let mut parts = Vec::new();
    for (at, input) in call.op.inputs.iter().enumerate() {
        let name = b.input(call, at)?;
        parts.push(b.cast(&name, input.raw().dtype(), call.dtype()));
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let made = b.node("Concat", &parts, vec![int("axis", call.axis("axis"))]);
    bind(b, call, made)
}

fn repeat(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let mut x = b.input(call, 0)?;
    let times = b.dims(call, |op| match op.attribute("times") {
        Some(netcl_nn::autograd::trace::Attr::Ints(times)) => times.clone(),
        _ => Vec::new(),
    })?;
    let mut dims = b.in_dims(call, 0)?;
    if times.len() > dims.len() {
        dims.splice(0..0, vec![Dim::Fixed(1); times.len() - dims.len()]);
        x = b.reshape(&x, &dims)?;
    }
    let times = b.numbers(&times)?;
    let made = b.node("Tile", &[&x, &times], vec![]);
    bind(b, call, made)
}

fn triangle(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let diagonal = call.int("diagonal") as f64;
    let diagonal = b.scalar(DType::I64, diagonal);
    let made = b.node("Trilu", &[&x, &diagonal], vec![int("upper", (call.op.name == "triu").into())]);
    bind(b, call, made)
}

fn pad(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let mode = call.text("mode");
    if mode == "wrap" {
        return Err("circular padding needs operator set 19".into());
    }
    let x = b.input(call, 0)?;
    let pads = call.ints("pads");
    let rank = call.rank();
    let mut all = vec![0; 2 * rank];
    for (at, pair) in pads.chunks_exact(2).enumerate() {
        let axis = rank - pads.len() / 2 + at;
        (all[axis], all[rank + axis]) = (pair[0], pair[1]);
    }
    let (pads, value) = (b.list(&all), b.scalar(call.dtype(), call.float("value")));
    let made = b.node("Pad", &[&x, &pads, &value], vec![text("mode", mode)]);
    bind(b, call, made)
}

fn embedding(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let table = b.input(call, 0)?;
    let indices = b.value(&call.operand("indices")?)?;
    let made = b.node("Gather", &[&table, &indices], vec![int("axis", 0)]);
    bind(b, call, made)
}

fn index_select(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let indices = b.value(&call.operand("indices")?)?;
    let made = b.node("Gather", &[&x, &indices], vec![int("axis", call.axis("axis"))]);
    bind(b, call, made)
}

fn gather(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let indices = b.value(&call.operand("indices")?)?;
    let made = b.node("GatherElements", &[&x, &indices], vec![int("axis", call.axis("axis"))]);
    bind(b, call, made)
}

fn masked_fill(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let mask = call.operand("mask")?;
    let name = b.value(&mask)?;
    let hide = b.cast(&name, mask[0].raw().dtype(), DType::U8);
    let value = b.scalar(call.dtype(), call.float("value"));
    let made = b.node("Where", &[&hide, &value, &x], vec![]);
    bind(b, call, made)
}

/// Pairs of elements turned by the angles of their row.
fn rotary(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let x = b.input(call, 0)?;
    let mut dims = b.in_dims(call, 0)?;
    let Some(width) = dims.last().and_then(Dim::fixed) else {
        return Err(Trouble::Said("its width is a dynamic length; make it fixed".to_owned()));
    };
    let halves = call.text("form") == "halves";
    let mut tables = Vec::new();
    for name in ["cos", "sin"] {
        let table = call.operand(name)?;
        let found = b.value(&table)?;
        let mut found = b.cast(&found, table[0].raw().dtype(), call.dtype());
        if !halves {
            let last = b.list(&[-1]);
            found = b.node("Unsqueeze", &[&found, &last], vec![]);
        }
        tables.push(found);
    }
    // Neighbours are the two columns of an axis of pairs.
    let (rows, length) = if halves {
        (x, width / 2)
    } else {
        let last = dims.len() - 1;
        dims.splice(last.., [Dim::Fixed(width / 2), Dim::Fixed(2)]);
        (b.reshape(&x, &dims)?, 1)
    };
    let (axis, step) = (b.list(&[-1]), b.list(&[1]));
    let part = |b: &mut Builder<'_>, from: i64| {
        let (start, end) = (b.list(&[from]), b.list(&[from + length]));
        b.node("Slice", &[&rows, &start, &end, &axis, &step], vec![])
    };
    let (first, second) = (part(b, 0), part(b, length));
    let [cos, sin] = [&tables[0], &tables[1]];
    let turned = |b: &mut Builder<'_>, operator: &str, with_cos: &str, with_sin: &str| {
        let (along, across) = (b.node("Mul", &[with_cos, cos], vec![]), b.node("Mul", &[with_sin, sin], vec![]));
        b.node(operator, &[&along, &across], vec![])
    };
    let (left, right) = (turned(b, "Sub", &first, &second), turned(b, "Add", &second, &first));
    let mut made = b.node("Concat", &[&left, &right], vec![int("axis", -1)]);
    if !halves {
        let dims = b.out_dims(call)?;
        made = b.reshape(&made, &dims)?;
    }
    bind(b, call, made)
}

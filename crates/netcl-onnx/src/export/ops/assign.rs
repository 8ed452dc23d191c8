//! Writing to a part of a tensor: the file makes the tensor anew.

use netcl_nn::autograd::DType;
use netcl_nn::autograd::trace::{Attr, Op};

use super::Handler;
use crate::export::builder::{Builder, Call, Dim, Trouble, Written, int, text};

pub(super) const TABLE: &[(&str, Handler)] = &[("assign", assign), ("view", view), ("index_put", index_put)];

/// A part of an axis; `past` is where a slice of it ends.
struct Slice {
    axis: usize,
    start: Dim,
    past: Dim,
    step: i64,
    length: Dim,
}

fn numbers<'t>(op: &'t Op, name: &str) -> &'t [i64] {
    match op.attribute(name) {
        Some(Attr::Ints(list)) => list,
        _ => &[],
    }
}

/// The axes of which only a part is meant.
fn slices(b: &Builder<'_>, call: &Call<'_>) -> Written<Vec<Slice>> {
    let steps = numbers(call.op, "steps");
    let known = |op: &Op| numbers(op, "steps") == steps && steps.len() == op.inputs[0].raw().ndim();
    if !known(call.op) || !call.twins.iter().all(|twin| known(twin)) {
        return Err("it writes through a view that is no slice, or whose steps depend on a dynamic length".into());
    }
    let whole = b.in_dims(call, 0)?;
    let starts = b.dims(call, |op| numbers(op, "starts").to_vec())?;
    let lengths = b.dims(call, |op| numbers(op, "lengths").to_vec())?;
    let past = |op: &Op, axis: usize| {
        let past = numbers(op, "starts")[axis] + steps[axis] * numbers(op, "lengths")[axis];
        // Before the first element there is no number: -1 is the last one.
        if past < 0 { i64::MIN } else { past }
    };
    let pasts = b.dims(call, |op| (0..steps.len()).map(|axis| past(op, axis)).collect())?;
    let all = (0..steps.len())
        .filter(|&axis| starts[axis] != Dim::Fixed(0) || lengths[axis] != whole[axis] || steps[axis] != 1);
    Ok(all
        .map(|axis| Slice {
            axis,
            start: starts[axis].clone(),
            past: pasts[axis].clone(),
            step: steps[axis],
            length: lengths[axis].clone(),
        })
        .collect())
}

fn sliced(b: &mut Builder<'_>, x: &str, axis: usize, start: &Dim, past: &Dim, step: i64) -> Written<String> {
    let (start, past) = (b.numbers(std::slice::from_ref(start))?, b.numbers(std::slice::from_ref(past))?);
    let (axis, step) = (b.list(&[axis as i64]), b.list(&[step]));
    Ok(b.node("Slice", &[x, &start, &past, &axis, &step], vec![]))
}

fn view(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let mut made = b.input(call, 0)?;
    for part in slices(b, call)? {
        made = sliced(b, &made, part.axis, &part.start, &part.past, part.step)?;
    }
    let dims = b.out_dims(call)?;
    if call.rank() != dims.len() {
        made = b.reshape(&made, &dims)?;
    }
    b.bind(&call.op.outputs[0], made);
    Ok(())
}

fn assign(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let parts = slices(b, call)?;
    let x = b.input(call, 0)?;
    let lengths = b.dims(call, |op| numbers(op, "lengths").to_vec())?;
    let shown = b.dims(call, |op| numbers(op, "shape").to_vec())?;
    let (mut source, own) = match call.op.inputs.get(1) {
        Some(value) => {
            let name = b.input(call, 1)?;
            (b.cast(&name, value.raw().dtype(), call.dtype()), b.in_dims(call, 1)?)
        }
        None => (b.scalar(call.dtype(), call.float("value")), Vec::new()),
    };
    if own != shown {
        let to = b.numbers(&shown)?;
        source = b.node("Expand", &[&source, &to], vec![]);
    }
    if shown != lengths {
        source = b.reshape(&source, &lengths)?;
    }
    let dims = b.in_dims(call, 0)?;
    let made = written(b, &x, dims, &parts, &source)?;
    b.bind(&call.op.outputs[0], made);
    Ok(())
}

/// `x` with `source` in the part that slices name.
fn written(b: &mut Builder<'_>, x: &str, mut dims: Vec<Dim>, parts: &[Slice], source: &str) -> Written<String> {
    let [part, rest @ ..] = parts else { return Ok(source.to_owned()) };
    let whole = std::mem::replace(&mut dims[part.axis], part.length.clone());
    let source = if rest.is_empty() {
        source.to_owned()
    } else {
        let inner = sliced(b, x, part.axis, &part.start, &part.past, part.step)?;
        written(b, &inner, dims.clone(), rest, source)?
    };
    if part.step == 1 {
        // What is before, the part, what is after.
        let mut pieces = Vec::new();
        if part.start != Dim::Fixed(0) {
            pieces.push(sliced(b, x, part.axis, &Dim::Fixed(0), &part.start, 1)?);
        }
        pieces.push(source);
        if part.past != whole {
            pieces.push(sliced(b, x, part.axis, &part.past, &Dim::Fixed(i64::MAX), 1)?);
        }
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        return Ok(b.node("Concat", &pieces, vec![int("axis", part.axis as i64)]));
    }
    let indices = match (&part.start, &part.length) {
        (&Dim::Fixed(start), &Dim::Fixed(length)) => {
            let indices: Vec<i64> = (0..length).map(|i| start + i * part.step).collect();
            b.list(&indices)
        }
        _ if part.step < 0 => return Err(Trouble::Said("it writes backwards along a dynamic length".to_owned())),
        (start, _) => {
            let none = b.list(&[]);
            let scalar = |b: &mut Builder<'_>, dim: &Dim| -> Written<String> {
                let list = b.numbers(std::slice::from_ref(dim))?;
                Ok(b.node("Reshape", &[&list, &none], vec![]))
            };
            let (start, past) = (scalar(b, start)?, scalar(b, &part.past)?);
            let step = b.scalar(DType::I64, part.step as f64);
            b.node("Range", &[&start, &past, &step], vec![])
        }
    };
    scattered(b, x, part.axis, &indices, &source, &dims, false)
}

/// `x` with rows of `source`, whose lengths are `dims`, at a list of indices along an axis.
fn scattered(
    b: &mut Builder<'_>,
    x: &str,
    axis: usize,
    indices: &str,
    source: &str,
    dims: &[Dim],
    accumulate: bool,
) -> Written<String> {
    let mut along = vec![1; dims.len()];
    along[axis] = -1;
    let along = b.list(&along);
    let indices = b.node("Reshape", &[indices, &along], vec![]);
    let to = b.numbers(dims)?;
    let indices = b.node("Expand", &[&indices, &to], vec![]);
    let mut attributes = vec![int("axis", axis as i64)];
    if accumulate {
        attributes.push(text("reduction", "add"));
    }
    Ok(b.node("ScatterElements", &[x, &indices, source], attributes))
}

fn index_put(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let (x, source) = (b.input(call, 0)?, b.input(call, 1)?);
    let indices = b.value(&call.operand("indices")?)?;
    let dims = b.in_dims(call, 1)?;
    let made = scattered(b, &x, call.axis("axis") as usize, &indices, &source, &dims, call.flag("accumulate"))?;
    b.bind(&call.op.outputs[0], made);
    Ok(())
}

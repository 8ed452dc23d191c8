//! Attention and recurrent layers.

use netcl_nn::autograd::DType;

use super::Handler;
use crate::export::builder::{Builder, Call, Dim, Trouble, Written, int, ints, text, texts};

pub(super) const TABLE: &[(&str, Handler)] = &[("scaled_dot_product_attention", attention), ("recurrent", recurrent)];

/// `softmax(q k^T * scale + mask) v`.
fn attention(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    if call.float("dropout") > 0.0 {
        return Err("it drops values, as in training; call eval() first".into());
    }
    let [q, k, v] = [b.input(call, 0)?, b.input(call, 1)?, b.input(call, 2)?];
    let dtype = call.dtype();
    let scale = b.scalar(dtype, call.float("scale"));
    let q = b.node("Mul", &[&q, &scale], vec![]);
    let k = b.node("Transpose", &[&k], vec![ints("perm", &[0, 1, 3, 2])]);
    let mut scores = b.node("MatMul", &[&q, &k], vec![]);
    if call.flag("causal") {
        let hidden = later_keys(b, call)?;
        let never = b.scalar(dtype, f64::NEG_INFINITY);
        scores = b.node("Where", &[&hidden, &never, &scores], vec![]);
    }
    let made = if call.flag("masked") {
        let mask = call.operand("mask")?;
        let name = b.value(&mask)?;
        let mask = b.cast(&name, mask[0].raw().dtype(), dtype);
        let scores = b.node("Add", &[&scores, &mask], vec![]);
        // A query whose keys are all hidden gives zeros, where softmax would give NaN.
        let lowest = b.scalar(dtype, if dtype == DType::F16 { -65504.0 } else { -3e38 });
        let hidden = b.node("Less", &[&scores, &lowest], vec![]);
        let held = b.node("Max", &[&scores, &lowest], vec![]);
        let weights = b.node("Softmax", &[&held], vec![int("axis", -1)]);
        let zero = b.scalar(dtype, 0.0);
        b.node("Where", &[&hidden, &zero, &weights], vec![])
    } else {
        b.node("Softmax", &[&scores], vec![int("axis", -1)])
    };
    let made = b.node("MatMul", &[&made, &v], vec![]);
    b.bind(&call.op.outputs[0], made);
    Ok(())
}

/// Whether a key comes after a query: a table, made by the file where its lengths are dynamic.
fn later_keys(b: &mut Builder<'_>, call: &Call<'_>) -> Written<String> {
    let table = [b.in_dims(call, 0)?[2].clone(), b.in_dims(call, 1)?[2].clone()];
    if let [Some(queries), Some(keys)] = table.each_ref().map(Dim::fixed) {
        let hidden = |at: i64| if at % keys > at / keys { 1.0 } else { 0.0 };
        let hidden: Vec<f64> = (0..queries * keys).map(hidden).collect();
        return Ok(b.filled(DType::U8, &[queries as usize, keys as usize], &hidden));
    }
    let shape = b.numbers(&table)?;
    let one = b.scalar(DType::F32, 1.0);
    let ones = b.node("Expand", &[&one, &shape], vec![]);
    let next = b.scalar(DType::I64, 1.0);
    let above = b.node("Trilu", &[&ones, &next], vec![int("upper", 1)]);
    Ok(b.cast(&above, DType::F32, DType::U8))
}

/// The order of a cell's gates here, in the order of ONNX.
fn gates(cell: &str) -> Option<(&'static str, &'static [usize])> {
    Some(match cell {
        // Input, forget, candidate, output here; input, output, forget, candidate there.
        "lstm" => ("LSTM", &[0, 3, 1, 2]),
        // Reset, update, candidate here; update, reset, candidate there.
        "gru" => ("GRU", &[1, 0, 2]),
        "tanh" | "relu" => ("RNN", &[0]),
        _ => return None,
    })
}

/// A weight or bias with its gates in ONNX's order.
fn ordered(b: &mut Builder<'_>, name: &str, order: &[usize]) -> String {
    if order.len() == 1 {
        return name.to_owned();
    }
    let parts = b.node_of("Split", &[name], order.len(), vec![int("num_outputs", order.len() as i64), int("axis", 0)]);
    let parts: Vec<&str> = order.iter().map(|&at| parts[at].as_str()).collect();
    b.node("Concat", &parts, vec![int("axis", 0)])
}

/// A recurrent layer in one direction. The product with its input was a linear operation of its own, which ONNX's has inside: it is
/// taken in where there is one, else the weight of the input is the identity.
fn recurrent(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let (operator, order) =
        gates(call.text("cell")).ok_or_else(|| Trouble::Said("its cell is not known".to_owned()))?;
    let dtype = call.dtype();
    let input = &call.op.inputs[0];
    let width = call.shape(1)[1];
    let runs = b.runs;
    let before = runs.traces[0].ops.iter().position(|op| op.name == "linear" && op.outputs[0].key() == input.key());
    let (x, w, own_bias) = match before {
        Some(at) => {
            let linear = runs.call(at);
            let (x, w) = (b.input(&linear, 0)?, b.input(&linear, 1)?);
            let bias = if linear.op.inputs.len() > 2 { Some(b.input(&linear, 2)?) } else { None };
            (x, ordered(b, &w, order), bias)
        }
        None => {
            let x = b.input(call, 0)?;
            let side = order.len() * width;
            let mut identity = vec![0.0; side * side];
            for (row, &gate) in order.iter().enumerate() {
                (0..width).for_each(|i| identity[(row * width + i) * side + gate * width + i] = 1.0);
            }
            (x, b.filled(dtype, &[side, side], &identity), None)
        }
    };
    let mut at = 1;
    let mut given = |b: &mut Builder<'_>, there: bool| {
        if !there {
            return Ok(None);
        }
        at += 1;
        b.input(call, at).map(Some)
    };
    let r = b.input(call, 1)?;
    let r = ordered(b, &r, order);
    let bias = given(b, call.flag("bias"))?;
    let (hidden, memory) = (given(b, call.flag("hidden"))?, given(b, call.flag("memory"))?);
    let front = b.list(&[0]);
    let raised = |b: &mut Builder<'_>, name: &str| b.node("Unsqueeze", &[name, &front], vec![]);
    let (w, r) = (raised(b, &w), raised(b, &r));
    let biases = if own_bias.is_none() && bias.is_none() {
        String::new()
    } else {
        let zeros = b.filled(dtype, &[order.len() * width], &vec![0.0; order.len() * width]);
        let own = own_bias.map_or(zeros.clone(), |bias| ordered(b, &bias, order));
        let other = bias.map_or(zeros, |bias| ordered(b, &bias, order));
        let both = b.node("Concat", &[&own, &other], vec![int("axis", 0)]);
        raised(b, &both)
    };
    let state = |b: &mut Builder<'_>, state: Option<String>| state.map_or(String::new(), |state| raised(b, &state));
    let (hidden, memory) = (state(b, hidden), state(b, memory));
    let mut inputs = vec![x.as_str(), &w, &r, &biases, "", &hidden, &memory];
    while inputs.last().is_some_and(|name| name.is_empty()) {
        inputs.pop();
    }
    let direction = if call.flag("reverse") { "reverse" } else { "forward" };
    let mut attributes = vec![int("hidden_size", width as i64), text("direction", direction)];
    match operator {
        "GRU" => attributes.push(int("linear_before_reset", 1)),
        "RNN" => attributes.push(texts("activations", &[if call.text("cell") == "relu" { "Relu" } else { "Tanh" }])),
        _ => {}
    }
    let outputs = b.node_of(operator, &inputs, call.op.outputs.len(), attributes);
    // All results have an axis of directions: after the steps, and in front of a state.
    for (at, (value, name)) in call.op.outputs.iter().zip(&outputs).enumerate() {
        let axis = b.list(&[i64::from(at == 0)]);
        let made = b.node("Squeeze", &[name, &axis], vec![]);
        b.bind(value, made);
    }
    Ok(())
}

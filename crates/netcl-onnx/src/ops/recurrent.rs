//! RNN, GRU and LSTM in both directions. Layers as PyTorch has them run over all steps at once; for the other variants of ONNX each step
//! is composed of recordable operations, so that every one has its gradient.

use netcl_nn::autograd::ops::layout::{cat, stack};
use netcl_nn::autograd::ops::matmul::linear;
use netcl_nn::autograd::ops::recurrent::{Cell, Recurrent, recurrent};
use netcl_nn::autograd::{Result, Tensor};

use super::activation::activate;
use super::{Op, Table};
use crate::array::{Array, bad, count as limit};
use crate::kind::Kind;
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[("GRU", run as Op), ("LSTM", run), ("RNN", run)];

/// Activations with one parameter, and those with a second one.
const WITH_ALPHA: &[&str] = &["Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu"];
const WITH_BETA: &[&str] = &["Affine", "HardSigmoid", "ScaledTanh"];

/// One direction of a layer.
struct Layer<'c> {
    call: &'c Call<'c>,
    /// `(I, gates * H)` and `(H, gates * H)`.
    w: Tensor,
    r: Tensor,
    /// Biases of the input's part and of the state's part.
    biases: Option<(Tensor, Tensor)>,
    peepholes: Option<Tensor>,
    hidden: usize,
    /// The first of this direction's activations.
    first: usize,
    activations: Vec<String>,
}

impl Layer<'_> {
    fn activate(&self, i: usize, x: &Tensor) -> Result<Tensor> {
        let clip = self.call.float("clip", 0.0);
        let x = if clip > 0.0 { x.clamp(-clip, clip)? } else { x.clone() };
        let at = self.first + i;
        let name = self.activations.get(at).ok_or_else(|| bad("activations are missing"))?;
        // The lists hold numbers for those functions alone that have them, in the order of the functions.
        let number = |list, has: &[&str]| {
            let before = self.activations[..at].iter().filter(|name| has.contains(&name.as_str())).count();
            let numbers = self.call.float_list(list).filter(|_| has.contains(&name.as_str()))?;
            numbers.get(before).copied()
        };
        activate(name, &x, number("activation_alpha", WITH_ALPHA), number("activation_beta", WITH_BETA))
    }

    fn gate(&self, x: &Tensor, i: usize) -> Result<Tensor> {
        x.narrow(-1, (i * self.hidden) as isize, self.hidden)
    }

    /// Both parts of all gates' inputs.
    fn parts(&self, x: &Tensor, h: &Tensor) -> Result<(Tensor, Tensor)> {
        let (x, h) = (x.matmul(&self.w)?, h.matmul(&self.r)?);
        match &self.biases {
            Some((a, b)) => Ok(((x + a)?, (h + b)?)),
            None => Ok((x, h)),
        }
    }

    fn step(&self, x: &Tensor, h: &Tensor, memory: &Tensor) -> Result<(Tensor, Tensor)> {
        match self.call.node.operator.as_str() {
            "RNN" => {
                let (a, b) = self.parts(x, h)?;
                let h = self.activate(0, &(a + b)?)?;
                Ok((h, memory.clone()))
            }
            "GRU" => {
                let (a, b) = self.parts(x, h)?;
                let z = self.activate(0, &(self.gate(&a, 0)? + self.gate(&b, 0)?)?)?;
                let r = self.activate(0, &(self.gate(&a, 1)? + self.gate(&b, 1)?)?)?;
                let state = if self.call.flag("linear_before_reset") {
                    (&r * &self.gate(&b, 2)?)?
                } else {
                    let own = (&r * h)?.matmul(&self.gate(&self.r, 2)?)?;
                    match &self.biases {
                        Some((_, bias)) => (own + self.gate(bias, 2)?)?,
                        None => own,
                    }
                };
                let new = self.activate(1, &(self.gate(&a, 2)? + state)?)?;
                // (1 - z) new + z h
                let h = (&new + &(&z * &(h - &new)?)?)?;
                Ok((h, memory.clone()))
            }
            _ => {
                let (a, b) = self.parts(x, h)?;
                let all = (a + b)?;
                let seen = |i: usize, gate: Tensor, memory: &Tensor| match &self.peepholes {
                    Some(p) => gate + &(self.gate(p, i)? * memory)?,
                    None => Ok(gate),
                };
                let input = self.activate(0, &seen(0, self.gate(&all, 0)?, memory)?)?;
                let forget = self.activate(0, &seen(2, self.gate(&all, 2)?, memory)?)?;
                let new = self.activate(1, &self.gate(&all, 3)?)?;
                let memory = ((&forget * memory)? + (&input * &new)?)?;
                let output = self.activate(0, &seen(1, self.gate(&all, 1)?, &memory)?)?;
                let h = (&output * &self.activate(2, &memory)?)?;
                Ok((h, memory))
            }
        }
    }
}

/// The directions of a layer: whether each runs backwards.
fn directions(call: &Call<'_>) -> Result<&'static [bool]> {
    match call.text("direction").unwrap_or("forward") {
        "forward" => Ok(&[false]),
        "reverse" => Ok(&[true]),
        "bidirectional" => Ok(&[false, true]),
        other => Err(bad(format!("direction {other:?} does not exist"))),
    }
}

fn activations(call: &Call<'_>, directions: usize) -> Vec<String> {
    let standard: &[&str] = match call.node.operator.as_str() {
        "RNN" => &["Tanh"],
        "GRU" => &["Sigmoid", "Tanh"],
        _ => &["Sigmoid", "Tanh", "Tanh"],
    };
    match call.texts("activations") {
        Some(given) => given.to_vec(),
        None => standard.repeat(directions).into_iter().map(str::to_owned).collect(),
    }
}

/// The layer's cell and its gates in our order, where ours computes the same.
fn standard(call: &Call<'_>) -> Option<(Cell, &'static [usize])> {
    let plain = call.float("clip", 0.0) == 0.0
        && call.optional(4).is_none()
        && call.optional(7).is_none()
        && call.attribute("activation_alpha").is_none()
        && call.attribute("activation_beta").is_none();
    let names = activations(call, 1);
    // All directions alike: a list for two of them repeats.
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let are = |expected: &[&str]| {
        names.len().is_multiple_of(expected.len()) && names.chunks(expected.len()).all(|n| n == expected)
    };
    let float = call.kind().is_ok_and(|kind| kind.dtype().is_some() && kind.is_float());
    if !plain || !float {
        return None;
    }
    match call.node.operator.as_str() {
        "RNN" if are(&["Tanh"]) => Some((Cell::Tanh, &[0])),
        "RNN" if are(&["Relu"]) => Some((Cell::Relu, &[0])),
        // Update, reset, candidate there; reset, update, candidate here.
        "GRU" if call.flag("linear_before_reset") && are(&["Sigmoid", "Tanh"]) => Some((Cell::Gru, &[1, 0, 2])),
        // Input, output, forget, candidate there; input, forget, candidate, output here.
        "LSTM" if are(&["Sigmoid", "Tanh", "Tanh"]) => Some((Cell::Lstm, &[0, 2, 3, 1])),
        _ => None,
    }
}

/// A weight or bias with its gates in another order.
fn ordered(x: &Tensor, order: &[usize]) -> Result<Tensor> {
    if order.len() == 1 {
        return Ok(x.clone());
    }
    let rows = x.shape()[0] / order.len();
    let gates = order.iter().map(|&gate| x.narrow(0, (gate * rows) as isize, rows)).collect::<Result<Vec<_>>>()?;
    cat(&gates.iter().collect::<Vec<_>>(), 0)
}

/// One direction over all steps: the states of all steps, the last one, and the last memory.
fn at_once(
    (cell, order): (Cell, &[usize]),
    x: &Tensor,
    [w, r]: [&Tensor; 2],
    bias: Option<&Tensor>,
    [hidden, memory]: [Option<&Tensor>; 2],
    reverse: bool,
) -> Result<(Tensor, Tensor, Option<Tensor>)> {
    let halves = match bias {
        Some(both) => {
            let half = both.size() / 2;
            let [own, other] = [both.narrow(0, 0, half)?, both.narrow(0, half as isize, half)?];
            Some([ordered(&own, order)?, ordered(&other, order)?])
        }
        None => None,
    };
    let [own, other] = match &halves {
        Some([own, other]) => [Some(own), Some(other)],
        None => [None, None],
    };
    let (input, weight) = (linear(x, &ordered(w, order)?, own)?, ordered(r, order)?);
    let layer = Recurrent { cell, input: &input, weight: &weight, bias: other, hidden, memory, reverse };
    let found = recurrent(&layer)?;
    Ok((found.out, found.hidden, found.memory))
}

fn run(call: &Call<'_>) -> Result<Vec<Value>> {
    let batch_first = call.flag("layout");
    let x = call.tensor(0)?;
    let x = if batch_first { x.transpose(0, 1)? } else { x };
    let &[steps, batch, _] = &x.shape()[..] else { return Err(bad(format!("expected three axes, got {}", x.shape()))) };
    if call.flag("input_forget") {
        return Err(bad("input_forget is not supported"));
    }
    let (w, r, b) = (call.tensor(1)?, call.tensor(2)?, call.optional_tensor(3)?);
    let &[count, _, hidden] = &r.shape()[..] else { return Err(bad(format!("weight of shape {}", r.shape()))) };
    let directions = directions(call)?;
    if count != directions.len() || w.shape().ndim() != 3 {
        return Err(bad(format!("weights for {count} directions, the layer has {}", directions.len())));
    }
    let lstm = call.node.operator == "LSTM";
    let initial = |input: usize, d: usize| -> Result<Tensor> {
        match call.optional_tensor(input)? {
            Some(all) => all.select(if batch_first { 1 } else { 0 }, d as isize),
            None => Tensor::from_shape(call.queue, [batch, hidden], x.dtype()),
        }
    };
    let names = activations(call, directions.len());
    let lengths = call.optional_ints(4)?;
    let (mut outputs, mut states, mut memories) = (Vec::new(), Vec::new(), Vec::new());
    let standard = standard(call).filter(|_| steps > 0 && batch > 0);
    for (d, &reverse) in directions.iter().enumerate() {
        let at = d as isize;
        if let Some(cell) = standard {
            let state = |input: usize| match call.optional_tensor(input)? {
                Some(all) => all.select(if batch_first { 1 } else { 0 }, at).map(Some),
                None => Ok(None),
            };
            let (hidden, memory) = (state(5)?, if lstm { state(6)? } else { None });
            let bias = b.as_ref().map(|b| b.select(0, at)).transpose()?;
            let weights = [&w.select(0, at)?, &r.select(0, at)?];
            let before = [hidden.as_ref(), memory.as_ref()];
            let (out, last, memory) = at_once(cell, &x, weights, bias.as_ref(), before, reverse)?;
            outputs.push(out.unsqueeze(1)?);
            states.push(last.unsqueeze(0)?);
            memories.push(memory.unwrap_or(last).unsqueeze(0)?);
            continue;
        }
        let biases = match &b {
            Some(b) => {
                let both = b.select(0, at)?;
                let half = both.size() / 2;
                Some((both.narrow(0, 0, half)?, both.narrow(0, half as isize, half)?))
            }
            None => None,
        };
        let peepholes = if lstm { call.optional_tensor(7)?.map(|p| p.select(0, at)).transpose()? } else { None };
        let layer = Layer {
            call,
            w: w.select(0, at)?.transpose(0, 1)?,
            r: r.select(0, at)?.transpose(0, 1)?,
            biases,
            peepholes,
            hidden,
            first: d * names.len() / directions.len(),
            activations: names.clone(),
        };
        let mut h = initial(5, d)?;
        let mut memory = if lstm { initial(6, d)? } else { h.clone() };
        let mut rows = vec![None; limit(&[steps])?];
        for i in 0..steps {
            let t = if reverse { steps - 1 - i } else { i };
            let (mut new, mut kept) = layer.step(&x.select(0, t as isize)?, &h, &memory)?;
            let mut shown = new.clone();
            if let Some(lengths) = &lengths {
                // Rows that are over keep their state, and show zeros.
                let alive = lengths.iter().map(|&n| f64::from(u8::from((t as i64) < n))).collect();
                let alive =
                    Array::floats(Kind::of_dtype(x.dtype()), vec![lengths.len(), 1], alive).to_tensor(call.queue)?;
                shown = (&new * &alive)?;
                new = (&h + &((&new - &h)? * &alive)?)?;
                kept = (&memory + &((&kept - &memory)? * &alive)?)?;
            }
            (h, memory) = (new, kept);
            rows[t] = Some(shown);
        }
        let rows: Vec<Tensor> = rows.into_iter().flatten().collect();
        outputs.push(stack(&rows.iter().collect::<Vec<_>>(), 0)?.unsqueeze(1)?);
        states.push(h.unsqueeze(0)?);
        memories.push(memory.unsqueeze(0)?);
    }
    let join = |list: &[Tensor], at| cat(&list.iter().collect::<Vec<_>>(), at);
    let (mut y, mut h, mut c) = (join(&outputs, 1)?, join(&states, 0)?, join(&memories, 0)?);
    if batch_first {
        (y, h, c) = (y.permute(&[2, 0, 1, 3])?, h.transpose(0, 1)?, c.transpose(0, 1)?);
    }
    let mut results: Vec<Value> = vec![y.into(), h.into()];
    if lstm {
        results.push(c.into());
    }
    Ok(results)
}

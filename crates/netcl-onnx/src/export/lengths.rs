//! Lengths that the file leaves open, such as the batch: a module runs with several sizes of them, and every length that differs
//! is a polynomial of the open ones.
//!
//! With k open lengths there are 2^k runs, one for each choice of "as in the example" and "one more", which determine all products
//! of distinct lengths (`batch * sequence`). One further run, at about twice the size, tells whether the polynomial holds: a strided
//! convolution halves lengths and rounds, and such a length is left for the reader of the file to infer.

use std::collections::BTreeMap;

use netcl_nn::autograd::trace::{Op, Trace, Value, trace};
use netcl_nn::autograd::{self, DType, Tensor};

use super::builder::{Builder, Call, Trouble, Written, bytes_of, int};
use super::call::differ;
use super::{SaveOptions, wrong};
use crate::error::{Error, Result};

/// More open lengths would need too many runs.
const MOST: usize = 3;

/// A length, or another whole number that may follow from open lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dim {
    Fixed(i64),
    /// Factors of the products of open lengths; bit `i` of an index stands for length `i`.
    Open(Vec<i64>),
    /// It differs, by no formula.
    Unknown,
}

impl Dim {
    pub(super) fn fixed(&self) -> Option<i64> {
        match self {
            Dim::Fixed(n) => Some(*n),
            _ => None,
        }
    }
}

/// A length that is left open: an axis of one or more inputs.
#[derive(Clone, Debug)]
pub(super) struct Symbol {
    pub(super) name: String,
    /// Inputs and their axes that have this length.
    places: Vec<(usize, usize)>,
    /// The length in the example, but at least 2: 1 could be mistaken for a length that is always 1.
    base: usize,
    /// Whether longer ones than one more are not tried.
    limited: bool,
}

/// What the module did with several sizes of its inputs; the first ones are those of the example.
pub(super) struct Runs {
    pub(super) symbols: Vec<Symbol>,
    pub(super) traces: Vec<Trace>,
    pub(super) results: Vec<Vec<Value>>,
    /// The open lengths in each run.
    points: Vec<Vec<usize>>,
    /// Runs with the example's lengths and other values, with their results: what differs there follows from values that were read on
    /// the host, which no file could do. A module that does not take other values has none.
    pub(super) varied: Vec<(Trace, Vec<Value>)>,
}

type Forward<'f> = dyn Fn(&[Tensor]) -> autograd::Result<Vec<Tensor>> + 'f;

impl Runs {
    /// Runs the module. One with a longest sequence that the example has gets shorter ones.
    pub(super) fn of(
        examples: &[Tensor],
        weights: &[Tensor],
        input_names: &[String],
        options: &SaveOptions,
        forward: &Forward<'_>,
    ) -> Result<Runs> {
        let symbols = symbols(examples, input_names, options)?;
        let examples = &apart(examples, weights)?;
        let shorter = || {
            let halved = |symbol: &Symbol| Symbol { base: (symbol.base / 2).max(2), limited: true, ..symbol.clone() };
            Runs::with(symbols.iter().map(halved).collect(), examples, weights, forward)
        };
        let first = Runs::with(symbols.clone(), examples, weights, forward);
        let mut runs =
            first.or_else(|error| if symbols.is_empty() { Err(error) } else { shorter().map_err(|_| error) })?;
        let inputs = resized(examples, &runs.symbols, &runs.points[0])?;
        for turned in [true, false] {
            let varied = inputs.iter().map(|input| other_values(input, turned)).collect::<Result<Vec<_>>>()?;
            if let Ok((outputs, traced)) = trace(&varied, weights, || forward(&varied)) {
                runs.varied.push((traced, outputs.iter().map(|output| Value::from(output.raw())).collect()));
            }
        }
        Ok(runs)
    }

    fn with(symbols: Vec<Symbol>, examples: &[Tensor], weights: &[Tensor], forward: &Forward<'_>) -> Result<Runs> {
        let mut runs =
            Runs { symbols, traces: Vec::new(), results: Vec::new(), points: Vec::new(), varied: Vec::new() };
        let lengths = |of: &dyn Fn(usize, &Symbol) -> usize, runs: &Runs| -> Vec<usize> {
            runs.symbols.iter().enumerate().map(|(at, symbol)| of(at, symbol)).collect()
        };
        for corner in 0..1usize << runs.symbols.len() {
            let sizes = lengths(&|at, symbol| symbol.base + (corner >> at & 1), &runs);
            runs.run(sizes, examples, weights, forward)?;
        }
        if runs.symbols.is_empty() {
            return Ok(runs);
        }
        let shorter = lengths(&|_, symbol| symbol.base - 1, &runs);
        let far = lengths(&|_, symbol| if symbol.limited { symbol.base - 1 } else { 2 * symbol.base }, &runs);
        if runs.run(far, examples, weights, forward).is_err() {
            runs.run(shorter, examples, weights, forward)?;
        }
        Ok(runs)
    }

    /// Traces the module with these sizes.
    fn run(&mut self, point: Vec<usize>, examples: &[Tensor], weights: &[Tensor], forward: &Forward<'_>) -> Result<()> {
        let inputs = resized(examples, &self.symbols, &point)?;
        let (outputs, traced) = trace(&inputs, weights, || forward(&inputs)).map_err(|error| {
            let sizes = self.symbols.iter().zip(&point).map(|(symbol, size)| format!("{} = {size}", symbol.name));
            match sizes.collect::<Vec<_>>().join(", ") {
                sizes if sizes.is_empty() || self.traces.is_empty() => Error::Tensor(error),
                sizes => wrong(format!("with {sizes} the model fails: {error}; make this length fixed")),
            }
        })?;
        self.traces.push(traced);
        self.results.push(outputs.iter().map(|output| Value::from(output.raw())).collect());
        self.points.push(point);
        Ok(())
    }

    /// Whether the module called other operations in a run.
    fn differs(&self, trace: &Trace, results: &[Value]) -> bool {
        let first = &self.traces[0];
        results.len() != self.results[0].len()
            || trace.ops.len() != first.ops.len()
            || trace.ops.iter().zip(&first.ops).any(|(a, b)| a.name != b.name || a.inputs.len() != b.inputs.len())
    }

    /// What an operation of the first trace takes from values that were read on the host.
    pub(super) fn read_on_host(&self, at: usize) -> Option<String> {
        let op = &self.traces[0].ops[at];
        self.varied.iter().filter_map(|(trace, _)| trace.ops.get(at)).find_map(|varied| {
            let mut settings = op.attributes.iter().zip(&varied.attributes);
            if let Some(((name, _), _)) = settings.find(|(a, b)| differ(&a.1, &b.1)) {
                return Some(format!("its {name}"));
            }
            let mut operands = op.operands().zip(varied.operands());
            operands.any(|(a, b)| self.is_other_constant(a, b)).then(|| "a constant".to_owned())
        })
    }

    /// Whether a result follows from values that were read on the host, and from nothing else.
    pub(super) fn result_read_on_host(&self, at: usize) -> bool {
        self.varied.iter().any(|(_, results)| self.is_other_constant(&self.results[0][at], &results[at]))
    }

    fn is_other_constant(&self, value: &Value, varied: &Value) -> bool {
        self.traces[0].writer(value).is_none()
            && value.key() != varied.key()
            && (value.raw().shape() != varied.raw().shape() || bytes_of(value).ok() != bytes_of(varied).ok())
    }

    /// The lengths by which the module's operations differ, if they do.
    pub(super) fn keep_alike(&mut self) -> Option<String> {
        let values = self.varied.iter().any(|(trace, results)| self.differs(trace, results));
        if values {
            self.varied.clear();
        }
        if !self.traces.iter().zip(&self.results).any(|(trace, results)| self.differs(trace, results)) {
            let what = "the model calls other operations for other values of its inputs: its Python or Rust code decides by \
                        numbers that it reads; choose with where() instead";
            return values.then(|| what.to_owned());
        }
        let names: Vec<&str> = self.symbols.iter().map(|symbol| symbol.name.as_str()).collect();
        let names = names.join(", ");
        // What cannot be written at all is said first.
        self.traces.truncate(1);
        self.results.truncate(1);
        Some(format!(
            "the model calls other operations where {names} differs; give a shorter example, or make it fixed \
             (dynamic_batch = false, or fewer dynamic_axes)"
        ))
    }

    /// A value of the first trace in all of them.
    pub(super) fn call(&self, at: usize) -> Call<'_> {
        Call { op: &self.traces[0].ops[at], twins: self.traces[1..].iter().map(|trace| &trace.ops[at]).collect() }
    }

    /// A whole number that has these values in the runs.
    fn fit(&self, values: &[i64]) -> Dim {
        let first = values[0];
        if values.iter().all(|&value| value == first) {
            return Dim::Fixed(first);
        }
        self.polynomial(values).map_or(Dim::Unknown, Dim::Open)
    }

    fn polynomial(&self, values: &[i64]) -> Option<Vec<i64>> {
        let k = self.symbols.len();
        // Factors of products of what each length exceeds the example's by, which is 0 or 1 in these runs.
        let mut factors: Vec<i128> = values[..1 << k].iter().map(|&v| i128::from(v)).collect();
        let base = |at: usize| self.symbols[at].base as i128;
        for at in 0..k {
            for corner in (0..factors.len()).filter(|corner| corner >> at & 1 == 1) {
                factors[corner] -= factors[corner ^ 1 << at];
            }
        }
        // The same in the lengths themselves.
        for at in 0..k {
            for corner in (0..factors.len()).filter(|corner| corner >> at & 1 == 1) {
                factors[corner ^ 1 << at] -= factors[corner] * base(at);
            }
        }
        let holds = |(value, point): (&i64, &Vec<usize>)| evaluated(&factors, point) == i128::from(*value);
        let fits = values.iter().zip(&self.points).all(holds);
        let factors = factors.iter().map(|&factor| i64::try_from(factor).ok()).collect::<Option<Vec<i64>>>()?;
        fits.then_some(factors)
    }

    /// The name of a length in the file.
    pub(super) fn formula(&self, factors: &[i64]) -> String {
        let term = |(product, &factor): (usize, &i64)| {
            let names = self.symbols.iter().enumerate().filter(|(at, _)| product >> at & 1 == 1);
            let mut parts: Vec<String> = names.map(|(_, symbol)| symbol.name.clone()).collect();
            if factor != 1 || parts.is_empty() {
                parts.insert(0, factor.to_string());
            }
            (factor != 0).then(|| parts.join(" * "))
        };
        let mut terms: Vec<String> = factors.iter().enumerate().filter_map(term).collect();
        // Lengths before numbers.
        if factors[0] != 0 {
            terms.rotate_left(1);
        }
        terms.join(" + ")
    }
}

fn evaluated(factors: &[i128], point: &[usize]) -> i128 {
    let product = |corner: usize| -> i128 {
        point.iter().enumerate().filter(|(at, _)| corner >> at & 1 == 1).map(|(_, &n)| n as i128).product()
    };
    factors.iter().enumerate().map(|(corner, factor)| factor * product(corner)).sum()
}

/// The lengths that options leave open.
fn symbols(examples: &[Tensor], names: &[String], options: &SaveOptions) -> Result<Vec<Symbol>> {
    let mut places: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    if let Some(given) = &options.dynamic_axes {
        for axis in given {
            let Some(input) = names.iter().position(|name| *name == axis.input) else {
                return Err(wrong(format!("dynamic_axes names {:?}; the inputs are {}", axis.input, names.join(", "))));
            };
            let rank = examples[input].shape().ndim();
            if axis.axis >= rank {
                let what = format!("dynamic_axes names axis {} of {:?}, which has {rank}", axis.axis, axis.input);
                return Err(wrong(what));
            }
            if !order.contains(&axis.name.as_str()) {
                order.push(&axis.name);
            }
            places.entry(&axis.name).or_default().push((input, axis.axis));
        }
    } else if options.dynamic_batch {
        let Some(&batch) = examples[0].shape().first() else {
            return Err(wrong("the first input has no axis that could be a batch; export with dynamic_batch = false"));
        };
        order.push("batch");
        let alike = examples.iter().enumerate().filter(|(_, example)| example.shape().first() == Some(&batch));
        places.insert("batch", alike.map(|(input, _)| (input, 0)).collect());
    }
    if order.len() > MOST {
        return Err(wrong(format!("{} lengths are open ({}), at most {MOST} can be", order.len(), order.join(", "))));
    }
    let symbol = |name: &str| {
        let places = places.remove(name).unwrap_or_default();
        let lengths: Vec<usize> = places.iter().map(|&(input, axis)| examples[input].shape()[axis]).collect();
        match lengths[..] {
            [0, ..] => Err(wrong(format!("{name} is 0 in the example; it must be at least 1"))),
            [first, ..] if lengths.iter().all(|&length| length == first) => {
                let base = first.max(2);
                Ok(Symbol { name: name.to_owned(), places, base, limited: false })
            }
            _ => Err(wrong(format!("axes called {name} have the lengths {lengths:?}; one name stands for one length"))),
        }
    };
    order.into_iter().map(symbol).collect()
}

/// The examples with open lengths of other sizes.
fn resized(examples: &[Tensor], symbols: &[Symbol], point: &[usize]) -> Result<Vec<Tensor>> {
    let mut inputs = examples.to_vec();
    for (symbol, &size) in symbols.iter().zip(point) {
        for &(input, axis) in &symbol.places {
            inputs[input] = repeated(&inputs[input], axis, size)?;
        }
    }
    Ok(inputs)
}

/// The examples in memory of their own: values are known by their memory, and one tensor could be two inputs.
fn apart(examples: &[Tensor], weights: &[Tensor]) -> Result<Vec<Tensor>> {
    let shares = |a: &Tensor, b: &Tensor| std::sync::Arc::ptr_eq(a.raw().storage(), b.raw().storage());
    let own = |(at, example): (usize, &Tensor)| {
        if !examples[..at].iter().chain(weights).any(|other| shares(example, other)) {
            return Ok(example.clone());
        }
        let copy = example.raw().duplicate().map_err(|error| Error::Tensor(error.into()))?;
        Ok(Tensor::from(copy))
    };
    examples.iter().enumerate().map(own).collect()
}

/// Other values that a module probably takes: the same ones from behind (`turned`), or of another sign and place.
fn other_values(x: &Tensor, turned: bool) -> Result<Tensor> {
    let tensor_error = |error: autograd::CoreError| Error::Tensor(error.into());
    if !turned && x.dtype().is_float() {
        return Ok(((x * -1.0)? + 1.0)?);
    }
    let width = x.dtype().size();
    let mut bytes = vec![0; x.size() * width];
    x.read_bytes(&mut bytes).map_err(tensor_error)?;
    let mut elements: Vec<&[u8]> = bytes.chunks(width).collect();
    if turned {
        elements.reverse();
    } else if !elements.is_empty() {
        elements.rotate_left(1);
    }
    let mut elements = elements.concat();
    if !turned && (elements == bytes || x.dtype() == DType::U8) {
        // The lowest bit: an even number becomes the next one, a truth value the other one.
        elements.iter_mut().step_by(width).for_each(|byte| *byte ^= 1);
    }
    let out = Tensor::from_shape(x.queue(), x.shape().to_vec(), x.dtype())?;
    out.write_bytes(&elements, x.dtype()).map_err(tensor_error)?;
    Ok(out)
}

/// A tensor with an axis of another length, again from its beginning where there is not enough.
fn repeated(x: &Tensor, axis: usize, length: usize) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    if shape[axis] == length {
        return Ok(x.clone());
    }
    let tensor_error = |error: autograd::CoreError| Error::Tensor(error.into());
    let mut bytes = vec![0; x.size() * x.dtype().size()];
    x.read_bytes(&mut bytes).map_err(tensor_error)?;
    let inner = shape[axis + 1..].iter().product::<usize>() * x.dtype().size();
    let blocks = bytes.chunks((shape[axis] * inner).max(1));
    let made: Vec<u8> = blocks.flat_map(|block| block.iter().copied().cycle().take(length * inner)).collect();
    shape[axis] = length;
    let out = Tensor::from_shape(x.queue(), shape, x.dtype())?;
    out.write_bytes(&made, x.dtype()).map_err(tensor_error)?;
    Ok(out)
}

impl Builder<'_> {
    /// Numbers of an operation in all runs.
    pub(super) fn dims(&self, call: &Call<'_>, of: impl Fn(&Op) -> Vec<i64>) -> Written<Vec<Dim>> {
        let all: Vec<Vec<i64>> = std::iter::once(&call.op).chain(&call.twins).map(|op| of(op)).collect();
        self.fitted(&all)
    }

    /// The shape of a value.
    pub(super) fn shape_of(&self, seen: &[&Value]) -> Written<Vec<Dim>> {
        let shape = |value: &&Value| value.raw().shape().iter().map(|&n| n as i64).collect::<Vec<i64>>();
        self.fitted(&seen.iter().map(shape).collect::<Vec<_>>())
    }

    fn fitted(&self, all: &[Vec<i64>]) -> Written<Vec<Dim>> {
        let count = all[0].len();
        if all.iter().any(|one| one.len() != count) {
            return Err("the number of its axes depends on a length that is dynamic; make it fixed".into());
        }
        if all.len() == 1 {
            return Ok(all[0].iter().map(|&n| Dim::Fixed(n)).collect());
        }
        Ok((0..count).map(|at| self.runs.fit(&all.iter().map(|one| one[at]).collect::<Vec<_>>())).collect())
    }

    /// The lengths of the first result.
    pub(super) fn out_dims(&self, call: &Call<'_>) -> Written<Vec<Dim>> {
        self.shape_of(&call.output(0))
    }

    /// The lengths of an input.
    pub(super) fn in_dims(&self, call: &Call<'_>, at: usize) -> Written<Vec<Dim>> {
        self.shape_of(&call.input(at))
    }

    /// An open length as a list of one number, read from the shape of an input.
    fn length(&mut self, at: usize) -> String {
        if let Some(name) = self.lengths.get(&at) {
            return name.clone();
        }
        let (input, axis) = self.runs.symbols[at].places[0];
        let input = self.graph.input[input].name.clone();
        let axis = axis as i64;
        let made = self.node("Shape", &[&input], vec![int("start", axis), int("end", axis + 1)]);
        self.lengths.insert(at, made.clone());
        made
    }

    /// A list of whole numbers as an operand, computed from the inputs' shapes where they follow them.
    pub(super) fn numbers(&mut self, dims: &[Dim]) -> Written<String> {
        let mut parts: Vec<String> = Vec::new();
        let mut known: Vec<i64> = Vec::new();
        for dim in dims {
            match dim {
                Dim::Fixed(n) => known.push(*n),
                Dim::Open(factors) => {
                    if !known.is_empty() {
                        let list = self.list(&std::mem::take(&mut known));
                        parts.push(list);
                    }
                    let sum = self.sum(&factors.clone());
                    parts.push(sum);
                }
                Dim::Unknown => return Err(unknown_length()),
            }
        }
        if !known.is_empty() || parts.is_empty() {
            parts.push(self.list(&known));
        }
        match &parts[..] {
            [one] => Ok(one.clone()),
            several => {
                let several: Vec<&str> = several.iter().map(String::as_str).collect();
                Ok(self.node("Concat", &several, vec![int("axis", 0)]))
            }
        }
    }

    fn sum(&mut self, factors: &[i64]) -> String {
        let mut sum: Option<String> = None;
        for (product, &factor) in factors.iter().enumerate().rev().filter(|(_, factor)| **factor != 0) {
            let mut term: Option<String> = None;
            for at in (0..self.runs.symbols.len()).filter(|at| product >> at & 1 == 1) {
                let length = self.length(at);
                term = Some(match term {
                    Some(term) => self.node("Mul", &[&term, &length], vec![]),
                    None => length,
                });
            }
            let term = match term {
                None => self.list(&[factor]),
                Some(term) if factor == 1 => term,
                Some(term) => {
                    let factor = self.list(&[factor]);
                    self.node("Mul", &[&term, &factor], vec![])
                }
            };
            sum = Some(match sum {
                Some(sum) => self.node("Add", &[&sum, &term], vec![]),
                None => term,
            });
        }
        sum.unwrap_or_else(|| self.list(&[0]))
    }

    /// A value with other lengths.
    pub(super) fn reshape(&mut self, name: &str, dims: &[Dim]) -> Written<String> {
        let open = dims.iter().filter(|dim| dim.fixed().is_none()).count();
        let unknown = dims.iter().filter(|dim| **dim == Dim::Unknown).count();
        // A -1 is the one length that is not known, unless another one is 0: then it could be anything.
        let shape = if (open == 1 || unknown == 1) && !dims.contains(&Dim::Fixed(0)) {
            let rest = |dim: &Dim| {
                if open == 1 && dim.fixed().is_none() || *dim == Dim::Unknown { Dim::Fixed(-1) } else { dim.clone() }
            };
            self.numbers(&dims.iter().map(rest).collect::<Vec<_>>())?
        } else {
            self.numbers(dims)?
        };
        let zeros = if dims.contains(&Dim::Fixed(0)) { vec![int("allowzero", 1)] } else { vec![] };
        Ok(self.node("Reshape", &[name, &shape], zeros))
    }
}

pub(super) fn unknown_length() -> Trouble {
    let what = "a length follows from the dynamic ones by no formula that can be written";
    Trouble::Said(format!("{what}; make them fixed (dynamic_batch = false, or fewer dynamic_axes)"))
}

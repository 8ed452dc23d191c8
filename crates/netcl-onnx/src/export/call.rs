//! One operation of a trace, as it is written: its settings, its values, and why it cannot be written.

use netcl_nn::autograd::DType;
use netcl_nn::autograd::trace::{Attr, Op, Value};

/// Why an operation is not written.
pub(super) enum Trouble {
    /// A reason for the user.
    Said(String),
    /// It reads the result of another one that is not written.
    Downstream,
}

impl From<String> for Trouble {
    fn from(said: String) -> Trouble {
        Trouble::Said(said)
    }
}

impl From<&str> for Trouble {
    fn from(said: &str) -> Trouble {
        Trouble::Said(said.to_owned())
    }
}

pub(super) type Written<T = ()> = Result<T, Trouble>;

/// A value in every run of the module; the first one is that of the example.
pub(super) type Seen<'t> = Vec<&'t Value>;

/// An operation of a trace, and the same one of the traces with other lengths.
#[derive(Clone)]
pub(super) struct Call<'t> {
    pub(super) op: &'t Op,
    pub(super) twins: Vec<&'t Op>,
}

impl<'t> Call<'t> {
    /// A whole number among the settings; 0 where it is missing.
    pub(super) fn int(&self, name: &str) -> i64 {
        match self.op.attribute(name) {
            Some(Attr::Int(value)) => *value,
            _ => 0,
        }
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.int(name) != 0
    }

    pub(super) fn float(&self, name: &str) -> f64 {
        match self.op.attribute(name) {
            Some(Attr::Float(value)) => *value,
            _ => 0.0,
        }
    }

    pub(super) fn ints(&self, name: &str) -> Vec<i64> {
        match self.op.attribute(name) {
            Some(Attr::Ints(values)) => values.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn text(&self, name: &str) -> &'static str {
        match self.op.attribute(name) {
            Some(Attr::Text(text)) => text,
            _ => "",
        }
    }

    /// A setting that follows a dynamic length, but for those that count elements.
    pub(super) fn changed_setting(&self) -> Option<&'static str> {
        // Scalars of expressions may be lengths.
        let differ = |a: &Attr, b: &Attr| !matches!(a, Attr::Floats(_)) && differ(a, b);
        if matches!(self.op.name, "slice" | "repeat" | "assign" | "view") {
            return None;
        }
        let pairs = self.twins.iter().flat_map(|twin| self.op.attributes.iter().zip(&twin.attributes));
        pairs.filter(|(a, b)| differ(&a.1, &b.1)).map(|(a, _)| a.0).next()
    }

    /// A setting that counts from the front of an input's axes.
    pub(super) fn axis(&self, name: &str) -> i64 {
        let axis = self.int(name);
        if axis < 0 { axis + self.rank() as i64 } else { axis }
    }

    /// The number of axes of the first input.
    pub(super) fn rank(&self) -> usize {
        self.op.inputs.first().map_or(0, |input| input.raw().ndim())
    }

    pub(super) fn shape(&self, input: usize) -> &[usize] {
        self.op.inputs[input].raw().shape()
    }

    pub(super) fn out_shape(&self) -> &[usize] {
        self.op.outputs[0].raw().shape()
    }

    /// The dtype of the first result.
    pub(super) fn dtype(&self) -> DType {
        self.op.outputs[0].raw().dtype()
    }

    /// An input in every run.
    pub(super) fn input(&self, at: usize) -> Seen<'t> {
        self.ops().filter_map(|op| op.inputs.get(at)).collect()
    }

    /// A result in every run.
    pub(super) fn output(&self, at: usize) -> Seen<'t> {
        self.ops().filter_map(|op| op.outputs.get(at)).collect()
    }

    /// The value of a setting in every run.
    pub(super) fn operand(&self, name: &str) -> Written<Seen<'t>> {
        let find = |op: &'t Op| match op.attribute(name) {
            Some(Attr::Value(value)) => Some(value),
            _ => None,
        };
        let found: Option<Seen<'t>> = self.ops().map(find).collect();
        Ok(found.ok_or_else(|| format!("it did not say its {name}"))?)
    }

    /// The operation in every run.
    fn ops(&self) -> impl Iterator<Item = &'t Op> {
        std::iter::once(self.op).chain(self.twins.clone())
    }
}

/// Whether two settings are other numbers.
pub(super) fn differ(a: &Attr, b: &Attr) -> bool {
    match (a, b) {
        (Attr::Int(a), Attr::Int(b)) => a != b,
        (Attr::Ints(a), Attr::Ints(b)) => a != b,
        (Attr::Float(a), Attr::Float(b)) => a.to_bits() != b.to_bits(),
        (Attr::Floats(a), Attr::Floats(b)) => a.iter().map(|v| v.to_bits()).ne(b.iter().map(|v| v.to_bits())),
        _ => false,
    }
}

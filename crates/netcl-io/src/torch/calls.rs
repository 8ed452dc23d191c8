//! The calls of a pickle: what the known functions give, as nodes.

use super::globals::{Global, Rebuild};
use super::pickle::{Id, Machine, Node, StorageRef, TensorRef, kind};
use crate::npy::MOST_AXES;

impl Machine<'_> {
    /// What a call of one of the known functions gives.
    pub(super) fn call(&mut self, function: Id, arguments: Id) -> Result<(), String> {
        let Node::Global(function) = self.nodes[function as usize] else {
            return Err("it calls what is no function".to_owned());
        };
        let Node::List(arguments) = &self.nodes[arguments as usize] else {
            return Err("it calls a function without a tuple of arguments".to_owned());
        };
        let first = arguments.first().copied();
        match (function, first) {
            (Global::Dict, None) => self.push(Node::Dict(Vec::new())),
            (Global::Dict, Some(first)) => self.dict(first),
            (Global::Same, None) => self.push(Node::List(Vec::new())),
            (Global::Same, Some(first)) => self.push_id(first),
            // (function, class, arguments, attributes)
            (Global::Rebuild(Rebuild::Typed), Some(function)) => {
                let is_plain = !matches!(self.nodes[function as usize], Node::Global(Global::Rebuild(Rebuild::Typed)));
                match arguments.get(2) {
                    Some(&inner) if is_plain => self.call(function, inner),
                    _ => Err("it makes a tensor by an unknown function".to_owned()),
                }
            }
            (Global::Rebuild(rebuild), Some(_)) => {
                let arguments: Vec<Id> = arguments.iter().copied().take(8).collect();
                let tensor = self.tensor(rebuild, &arguments)?;
                self.push(Node::Tensor(Box::new(tensor)))
            }
            _ => Err("it calls what cannot be called".to_owned()),
        }
    }

    /// A dictionary from one, or from a list of pairs, as Python 2 wrote them.
    fn dict(&mut self, from: Id) -> Result<(), String> {
        let items = match &self.nodes[from as usize] {
            Node::Dict(_) => return self.push_id(from),
            Node::List(items) => items,
            other => return Err(format!("it makes a dictionary of {}", kind(other))),
        };
        let pair = |&item: &Id| match &self.nodes[item as usize] {
            Node::List(pair) if pair.len() == 2 => Ok((pair[0], pair[1])),
            _ => Err("it makes a dictionary of what are no pairs"),
        };
        let pairs = items.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        self.spend(2 * pairs.len())?;
        self.push(Node::Dict(pairs))
    }

    fn tensor(&mut self, rebuild: Rebuild, arguments: &[Id]) -> Result<TensorRef, String> {
        let &[storage, offset, shape, strides, ..] = arguments else {
            return Err("it makes a tensor of too few arguments".to_owned());
        };
        let Node::Storage(of) = self.nodes[storage as usize] else {
            return Err("it makes a tensor without a storage".to_owned());
        };
        // Then whether it requires gradients, its hooks, of bytes its dtype, and what is left to do with the elements.
        let argument = |index: usize| arguments.get(index).map(|&id| &self.nodes[id as usize]);
        let (named, todo) = match (rebuild, argument(6)) {
            (Rebuild::Untyped, Some(Node::Global(Global::DType(element)))) => (Some(*element), argument(7)),
            (_, todo) => (None, todo),
        };
        if matches!(todo, Some(Node::Dict(todo)) if !todo.is_empty()) {
            return Err(
                "it has a tensor that is negated or conjugated later; save tensor.resolve_neg().resolve_conj()"
                    .to_owned(),
            );
        }
        let element = named.or(of.element).ok_or("it makes a tensor of no known dtype")?;
        let (shape, strides) = (self.lengths(shape)?, self.lengths(strides)?);
        if shape.len() != strides.len() {
            return Err(format!("it makes a tensor of {} axes with {} strides", shape.len(), strides.len()));
        }
        self.spend(2 * shape.len())?;
        Ok(TensorRef { storage, element, offset: self.length(offset)?, shape, strides })
    }

    fn lengths(&self, id: Id) -> Result<Vec<usize>, String> {
        match &self.nodes[id as usize] {
            Node::List(items) if items.len() <= MOST_AXES => items.iter().map(|&item| self.length(item)).collect(),
            _ => Err("it makes a tensor whose shape is no short tuple".to_owned()),
        }
    }

    fn length(&self, id: Id) -> Result<usize, String> {
        match self.nodes[id as usize] {
            Node::Int(number) => usize::try_from(number).map_err(|_| format!("it has a length or offset of {number}")),
            _ => Err("it has a length that is no whole number".to_owned()),
        }
    }

    /// ("storage", type, key, device, number of elements[, view]), where a view is None or (key, offset, number of elements).
    pub(super) fn storage(&mut self) -> Result<(), String> {
        const WRONG: &str = "it refers to something that is no storage";
        let id = self.pop()?;
        let Node::List(items) = &self.nodes[id as usize] else { return Err(WRONG.to_owned()) };
        let mut parts = items.iter().map(|&item| &self.nodes[item as usize]);
        let (Some(Node::Text("storage")), Some(Node::Global(Global::Storage(element))), Some(Node::Text(key))) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Err(WRONG.to_owned());
        };
        let offset = match parts.nth(2) {
            Some(Node::List(view)) => view.get(1).map_or(Err(WRONG.to_owned()), |&offset| self.length(offset))?,
            _ => 0,
        };
        self.push(Node::Storage(StorageRef { key, element: *element, offset }))
    }
}

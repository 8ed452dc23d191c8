//! What a pickle holds as named tensors and JSON: `{"epoch": 3, "model": {"w": tensor}}` is a tensor `model.w` and `{"epoch": 3}`.

use serde_json::{Map, Value};

use super::pickle::{Id, Node, Pickle, TensorRef};

/// Nested deeper than any checkpoint; also where a container holds itself.
const DEEPEST: usize = 100;
/// What a dictionary takes, counted in plain values.
const DICT: usize = 16;

/// The content of a pickle.
pub(super) struct Flat<'t> {
    pub(super) tensors: Vec<(String, &'t TensorRef)>,
    pub(super) metadata: Map<String, Value>,
}

/// Takes a pickle apart. Values that several containers share are repeated, so that a small pickle can stand for any number of
/// them: both the values and the bytes of names and texts are limited.
pub(super) fn flatten<'t>(pickle: &'t Pickle<'_>) -> Result<Flat<'t>, String> {
    let (values, bytes) = ((1 << 20) + 4 * pickle.nodes().len(), (16 << 20) + 16 * pickle.length);
    let mut walk = Walk { pickle, tensors: Vec::new(), values, bytes };
    let metadata = match walk.value(pickle.root, "", 0)? {
        Some(Value::Object(metadata)) => metadata,
        None | Some(Value::Null) => Map::new(),
        Some(other) => Map::from_iter([("value".to_owned(), other)]),
    };
    Ok(Flat { tensors: walk.tensors, metadata })
}

struct Walk<'t, 'p> {
    pickle: &'t Pickle<'p>,
    tensors: Vec<(String, &'t TensorRef)>,
    /// Values and bytes that may still come.
    values: usize,
    bytes: usize,
}

impl<'t> Walk<'t, '_> {
    fn spend(&mut self, values: usize, bytes: usize) -> Result<(), String> {
        let left = self.values.checked_sub(values).zip(self.bytes.checked_sub(bytes));
        (self.values, self.bytes) = left.ok_or("its pickle repeats its values too often")?;
        Ok(())
    }

    /// The JSON of a value without its tensors; `None` where it holds nothing else.
    fn value(&mut self, id: Id, name: &str, depth: usize) -> Result<Option<Value>, String> {
        if depth > DEEPEST {
            return Err(format!("its pickle has containers nested more than {DEEPEST} deep"));
        }
        self.spend(1, 0)?;
        let pickle = self.pickle;
        let inner = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
        Ok(Some(match pickle.node(id) {
            Node::Tensor(tensor) => {
                let name = if name.is_empty() { "tensor" } else { name };
                self.spend(4, name.len())?;
                self.tensors.push((name.to_owned(), tensor));
                return Ok(None);
            }
            Node::Dict(items) => {
                let mut object = Map::new();
                for &(key, value) in items {
                    let key = self.text(key)?;
                    let place = inner(&key);
                    self.spend(1, place.len())?;
                    if let Some(value) = self.value(value, &place, depth + 1)? {
                        self.spend(if object.is_empty() { DICT } else { 1 }, 0)?;
                        object.insert(key, value);
                    }
                }
                if object.is_empty() && !items.is_empty() {
                    return Ok(None);
                }
                Value::Object(object)
            }
            Node::List(items) => {
                let mut list = Vec::new();
                let mut is_plain = items.is_empty();
                for (index, &item) in items.iter().enumerate() {
                    let place = inner(&index.to_string());
                    self.spend(1, place.len())?;
                    let value = self.value(item, &place, depth + 1)?;
                    is_plain |= value.is_some();
                    // The places of what remains are those of the list.
                    list.push(value.unwrap_or_default());
                }
                if !is_plain {
                    return Ok(None);
                }
                Value::Array(list)
            }
            Node::None => Value::Null,
            Node::Bool(value) => (*value).into(),
            Node::Int(number) => (*number).into(),
            // JSON has no such numbers.
            Node::Float(number) if !number.is_finite() => number.to_string().into(),
            Node::Float(number) => (*number).into(),
            _ => self.text(id)?.into(),
        }))
    }

    /// A value as text: a key of a dictionary, or what JSON cannot say.
    fn text(&mut self, id: Id) -> Result<String, String> {
        let text = match self.pickle.node(id) {
            Node::Text(text) => {
                self.spend(0, text.len())?;
                (*text).to_owned()
            }
            Node::Int(number) => number.to_string(),
            Node::Bool(value) => value.to_string(),
            Node::Float(number) => number.to_string(),
            Node::None => "None".to_owned(),
            Node::Bytes(bytes) => {
                self.spend(0, 2 * bytes.len())?;
                bytes.iter().map(|byte| format!("{byte:02x}")).collect()
            }
            Node::Long(bytes) => {
                self.spend(0, 2 * bytes.len())?;
                bytes.iter().rev().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
            }
            Node::Global(super::globals::Global::DType(element)) => element.name().to_owned(),
            Node::Global(_) => "a class".to_owned(),
            Node::Storage(storage) => format!("storage {}", storage.key),
            Node::List(items) => {
                // A key such as (0, "weight").
                self.spend(items.len(), 0)?;
                let parts = items.clone().into_iter().map(|item| match self.pickle.node(item) {
                    Node::List(_) | Node::Dict(_) | Node::Tensor(_) => Err("a key of its dictionaries is a container"),
                    _ => Ok(item),
                });
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                parts.into_iter().map(|part| self.text(part)).collect::<Result<Vec<_>, _>>()?.join(", ")
            }
            Node::Dict(_) | Node::Tensor(_) => return Err("a key of its dictionaries is a container".to_owned()),
        };
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(pickle: &[u8]) -> Result<Value, String> {
        flatten(&Pickle::load(pickle)?).map(|flat| flat.metadata.into())
    }

    #[test]
    fn plain_values_become_json() {
        // pickle.dumps({"a": [1, -2, 3.5, None, True, 2**70], (1,): b"x", 3: float("inf")}, 4)
        let pickle = b"\x80\x04}(\x8c\x01a](K\x01J\xfe\xff\xff\xffG@\x0c\0\0\0\0\0\0N\x88\
            \x8a\x09\0\0\0\0\0\0\0\0@eK\x01\x85C\x01xK\x03G\x7f\xf0\0\0\0\0\0\0u.";
        let expected = serde_json::json!({
            "a": [1, -2, 3.5, null, true, "0x400000000000000000"], "1": "78", "3": "inf"
        });
        assert_eq!(json(pickle).unwrap(), expected);
        assert_eq!(json(b"K\x05.").unwrap(), serde_json::json!({ "value": 5 }));
        assert_eq!(json(b"}.").unwrap(), serde_json::json!({}));
    }

    #[test]
    fn shared_containers_do_not_explode() {
        // A list of ten times the one before, thirty times over: 10^30 values.
        let mut laughs = b"]q\x00".to_vec();
        for _ in 0..30 {
            laughs.extend(b"](h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00eq\x00");
        }
        laughs.push(b'.');
        assert!(json(&laughs).unwrap_err().contains("repeats its values too often"));
        // A list in itself, and lists in lists.
        assert!(json(b"]q\x00h\x00a.").unwrap_err().contains("nested more than"));
        let deep = [&b"N"[..], &b"\x85".repeat(100_000), b"."].concat();
        assert!(json(&deep).unwrap_err().contains("nested more than"));
        // A long text, many times.
        let mut long = b"](X\x00\x00\x10\x00".to_vec();
        long.extend(vec![b'a'; 1 << 20]);
        long.extend(b"q\x00");
        long.extend(b"h\x00".repeat(1000));
        long.extend(b"e.");
        assert!(json(&long).unwrap_err().contains("repeats its values too often"));
    }
}

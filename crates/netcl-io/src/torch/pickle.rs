//! Reads pickles as PyTorch writes them, without running anything.
//!
//! A pickle is a program for a stack machine that may call any Python function. This one knows the instructions of the binary
//! protocols 2 to 5, and calls nothing: the few functions that state dictionaries are made with ([`Global`]) become nodes of a
//! tree, every other name is refused. Values lie in a list and refer to each other by index, so that sharing and cycles cost
//! nothing, and no instruction takes more memory than a small multiple of its own length.

use std::collections::HashMap;

use super::globals::{Global, global};
use crate::element::Element;

/// The place of a node.
pub(crate) type Id = u32;

/// Nodes, items of containers and entries of the memo, together: far more than any checkpoint has, within some 200 MB.
const MOST_ITEMS: usize = 4 << 20;

/// A value.
#[derive(Debug)]
pub(crate) enum Node<'p> {
    None,
    Bool(bool),
    Int(i64),
    /// More than 64 bits, little-endian.
    Long(&'p [u8]),
    Float(f64),
    Text(&'p str),
    Bytes(&'p [u8]),
    /// A list, tuple or set.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(StorageRef<'p>),
    Tensor(Box<TensorRef>),
}

/// Bytes that lie elsewhere in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StorageRef<'p> {
    pub(crate) key: &'p str,
    /// `None` for untyped bytes.
    pub(crate) element: Option<Element>,
    /// The elements before its first one in the storage of the key, which an old file may have split.
    pub(crate) offset: usize,
}

/// A view of a storage.
#[derive(Debug)]
pub(crate) struct TensorRef {
    pub(crate) storage: Id,
    pub(crate) element: Element,
    /// In elements.
    pub(crate) offset: usize,
    pub(crate) shape: Vec<usize>,
    /// In elements.
    pub(crate) strides: Vec<usize>,
}

/// What a pickle holds.
pub(crate) struct Pickle<'p> {
    nodes: Vec<Node<'p>>,
    pub(crate) root: Id,
    /// Its bytes.
    pub(crate) length: usize,
    /// The bytes after it.
    pub(crate) rest: &'p [u8],
}

impl<'p> Pickle<'p> {
    /// Reads the first pickle of some bytes.
    pub(crate) fn load(bytes: &'p [u8]) -> Result<Pickle<'p>, String> {
        let mut machine = Machine {
            rest: bytes,
            nodes: vec![Node::None, Node::Bool(false), Node::Bool(true)],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            items: 0,
        };
        let root = machine.run().map_err(|what| {
            let at = bytes.len() - machine.rest.len();
            format!("its pickle cannot be read at byte {at}: {what}")
        })?;
        Ok(Pickle { nodes: machine.nodes, root, length: bytes.len() - machine.rest.len(), rest: machine.rest })
    }

    pub(crate) fn node(&self, id: Id) -> &Node<'p> {
        &self.nodes[id as usize]
    }

    pub(crate) fn nodes(&self) -> &[Node<'p>] {
        &self.nodes
    }
}

pub(super) struct Machine<'p> {
    rest: &'p [u8],
    pub(super) nodes: Vec<Node<'p>>,
    stack: Vec<Id>,
    /// The heights of the stack at which marks lie.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    items: usize,
}

const ENDS: &str = "it ends too soon";

impl<'p> Machine<'p> {
    fn run(&mut self) -> Result<Id, String> {
        loop {
            let [code] = self.take()?;
            match code {
                b'.' => return Ok(self.pop()?),
                // The protocol, and the length of a frame.
                0x80 => drop(self.take::<1>()?),
                0x95 => drop(self.take::<8>()?),
                b'(' => {
                    self.spend(1)?;
                    self.marks.push(self.stack.len());
                }
                b'0' => drop(self.pop()?),
                b'1' => drop(self.pop_mark()?),
                b'2' => {
                    let top = self.top()?;
                    self.push_id(top)?;
                }
                b'N' => self.push_id(0)?,
                0x89 => self.push_id(1)?,
                0x88 => self.push_id(2)?,
                b'J' | b'K' | b'M' | 0x8a | 0x8b | b'G' => {
                    let number = self.number(code)?;
                    self.push(number)?;
                }
                b'X' | 0x8c | 0x8d | b'B' | b'C' | 0x8e | 0x96 | b'T' | b'U' => {
                    let text = self.text(code)?;
                    self.push(text)?;
                }
                b']' | b')' | 0x8f => self.push(Node::List(Vec::new()))?,
                b'}' => self.push(Node::Dict(Vec::new()))?,
                b't' | b'l' | 0x91 => {
                    let items = self.pop_mark()?;
                    self.push_list(items)?;
                }
                0x85..=0x87 => {
                    let start = self.stack.len().checked_sub(usize::from(code) - 0x84).ok_or("its stack is empty")?;
                    let items = self.stack.split_off(start);
                    self.push_list(items)?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                b'e' | 0x90 => {
                    let items = self.pop_mark()?;
                    self.append(items)?;
                }
                b'd' => {
                    let items = self.pop_mark()?;
                    self.push(Node::Dict(Vec::new()))?;
                    self.set(&items)?;
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set(&[key, value])?;
                }
                b'u' => {
                    let items = self.pop_mark()?;
                    self.set(&items)?;
                }
                b'q' | b'r' | 0x94 => self.remember(code)?,
                b'h' | b'j' => {
                    let index =
                        if code == b'h' { self.take::<1>()?[0].into() } else { u32::from_le_bytes(self.take()?) };
                    let id = *self.memo.get(&index).ok_or("it recalls what it never kept")?;
                    self.push_id(id)?;
                }
                b'c' | 0x93 => self.global(code)?,
                b'R' | 0x81 => {
                    let (arguments, function) = (self.pop()?, self.pop()?);
                    self.call(function, arguments)?;
                }
                // Attributes of an object, among them the versions of a state dictionary's modules: not needed.
                b'b' => drop(self.pop()?),
                b'Q' => self.storage()?,
                code => return Err(format!("its instruction {code:#04x} is none that PyTorch writes")),
            }
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(ENDS)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn bytes(&mut self, length: u64) -> Result<&'p [u8], &'static str> {
        let length = usize::try_from(length).map_err(|_| ENDS)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(ENDS)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn line(&mut self) -> Result<&'p str, &'static str> {
        let end = self.rest.iter().position(|&byte| byte == b'\n').ok_or(ENDS)?;
        let line = self.bytes(end as u64)?;
        self.take::<1>()?;
        std::str::from_utf8(line).map_err(|_| "a name in it is no text")
    }

    /// Counts what takes memory.
    pub(super) fn spend(&mut self, items: usize) -> Result<(), String> {
        self.items = self.items.saturating_add(items);
        if self.items > MOST_ITEMS {
            return Err(format!("it has more than {MOST_ITEMS} values"));
        }
        Ok(())
    }

    pub(super) fn push(&mut self, node: Node<'p>) -> Result<(), String> {
        self.nodes.push(node);
        // Fewer than MOST_ITEMS, so that it fits.
        self.push_id(self.nodes.len() as Id - 1)
    }

    pub(super) fn push_id(&mut self, id: Id) -> Result<(), String> {
        self.spend(1)?;
        self.stack.push(id);
        Ok(())
    }

    fn push_list(&mut self, items: Vec<Id>) -> Result<(), String> {
        self.spend(items.len())?;
        self.push(Node::List(items))
    }

    pub(super) fn pop(&mut self) -> Result<Id, &'static str> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor { Err("its stack is empty") } else { self.stack.pop().ok_or("its stack is empty") }
    }

    fn top(&self) -> Result<Id, &'static str> {
        self.stack.last().copied().ok_or("its stack is empty")
    }

    /// Everything above the last mark.
    fn pop_mark(&mut self) -> Result<Vec<Id>, &'static str> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or("a mark is missing")?;
        Ok(self.stack.split_off(mark))
    }

    fn number(&mut self, code: u8) -> Result<Node<'p>, String> {
        let long = match code {
            b'J' => return Ok(Node::Int(i32::from_le_bytes(self.take()?).into())),
            b'K' => return Ok(Node::Int(self.take::<1>()?[0].into())),
            b'M' => return Ok(Node::Int(u16::from_le_bytes(self.take()?).into())),
            b'G' => return Ok(Node::Float(f64::from_be_bytes(self.take()?))),
            0x8a => {
                let [length] = self.take()?;
                self.bytes(length.into())?
            }
            _ => {
                let length = u32::from_le_bytes(self.take()?);
                self.bytes(length.into())?
            }
        };
        // Two's complement of any length.
        let sign = if long.last().is_some_and(|&last| last > 127) { 0xff } else { 0 };
        if long.len() > 8 {
            return Ok(Node::Long(long));
        }
        let mut whole = [sign; 8];
        whole[..long.len()].copy_from_slice(long);
        Ok(Node::Int(i64::from_le_bytes(whole)))
    }

    fn text(&mut self, code: u8) -> Result<Node<'p>, String> {
        let length = match code {
            0x8c | b'C' | b'U' => self.take::<1>()?[0].into(),
            b'X' | b'B' | b'T' => u32::from_le_bytes(self.take()?).into(),
            _ => u64::from_le_bytes(self.take()?),
        };
        let bytes = self.bytes(length)?;
        match (code, std::str::from_utf8(bytes)) {
            (b'B' | b'C' | 0x8e | 0x96, _) => Ok(Node::Bytes(bytes)),
            (_, Ok(text)) => Ok(Node::Text(text)),
            // The strings of Python 2 were bytes.
            (b'T' | b'U', Err(_)) => Ok(Node::Bytes(bytes)),
            // Python writes lone surrogates, which no text has.
            (_, Err(_)) => Err("a text in it is not UTF-8".to_owned()),
        }
    }

    fn append(&mut self, mut new: Vec<Id>) -> Result<(), String> {
        self.spend(new.len())?;
        let top = self.top()?;
        match &mut self.nodes[top as usize] {
            Node::List(items) => items.append(&mut new),
            other => return Err(format!("it adds items to {}", kind(other))),
        }
        Ok(())
    }

    /// Puts alternating keys and values into the dictionary on top.
    fn set(&mut self, new: &[Id]) -> Result<(), String> {
        self.spend(new.len())?;
        let top = self.top()?;
        match &mut self.nodes[top as usize] {
            Node::Dict(items) => items.extend(new.as_chunks::<2>().0.iter().map(|&[key, value]| (key, value))),
            other => return Err(format!("it sets items of {}", kind(other))),
        }
        Ok(())
    }

    fn remember(&mut self, code: u8) -> Result<(), String> {
        let index = match code {
            b'q' => self.take::<1>()?[0].into(),
            b'r' => u32::from_le_bytes(self.take()?),
            _ => self.memo.len() as u32,
        };
        self.spend(1)?;
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn global(&mut self, code: u8) -> Result<(), String> {
        let (module, name) = if code == b'c' {
            (self.line()?, self.line()?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            match (&self.nodes[module as usize], &self.nodes[name as usize]) {
                (Node::Text(module), Node::Text(name)) => (*module, *name),
                _ => return Err("it names a function by what is no text".to_owned()),
            }
        };
        let found = global(module, name).ok_or_else(|| {
            format!(
                "it needs {module}.{name}, which is refused: read are tensors, plain containers, numbers and text; save \
                 model.state_dict() instead of a model, and float(x) instead of a number of NumPy"
            )
        })?;
        self.push(Node::Global(found))
    }
}

/// A node in an error.
pub(super) fn kind(node: &Node<'_>) -> &'static str {
    match node {
        Node::None => "None",
        Node::Bool(_) => "a bool",
        Node::Int(_) | Node::Long(_) | Node::Float(_) => "a number",
        Node::Text(_) | Node::Bytes(_) => "a text",
        Node::List(_) => "a list",
        Node::Dict(_) => "a dictionary",
        Node::Global(_) => "a function",
        Node::Storage(_) => "a storage",
        Node::Tensor(_) => "a tensor",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(pickle: &[u8]) -> String {
        Pickle::load(pickle).err().unwrap()
    }

    #[test]
    fn plain_values_are_read() {
        // pickle.dumps({"a": [1, -2, 3.5, None, True, 2**70], (1,): b"x"}, 4)
        let pickle =
            b"\x80\x04\x95B\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffG@\x0c\0\0\0\0\0\0N\x88\
            \x8a\x09\0\0\0\0\0\0\0\0@eK\x01\x85\x94C\x01x\x94u.rest";
        let loaded = Pickle::load(pickle).unwrap();
        let Node::Dict(items) = loaded.node(loaded.root) else { panic!("no dict") };
        let Node::List(list) = loaded.node(items[0].1) else { panic!("no list") };
        let list = list.iter().map(|&id| format!("{:?}", loaded.node(id))).collect::<Vec<_>>().join(" ");
        assert_eq!(list, "Int(1) Int(-2) Float(3.5) None Bool(true) Long([0, 0, 0, 0, 0, 0, 0, 0, 64])");
        assert!(matches!(loaded.node(items[1].1), Node::Bytes(b"x")));
        assert_eq!(loaded.rest, b"rest");
    }

    #[test]
    fn what_could_run_code_is_refused_by_name() {
        assert!(refused(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.").contains("needs os.system, which is refused"));
        assert!(refused(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.").contains("builtins.eval"));
        // Through an attribute of an allowed module, by the instruction for instances, and by an extension code.
        assert!(refused(b"ctorch._utils\nos.system\n.").contains("torch._utils.os.system"));
        assert!(refused(b"(ios\nsystem\n.").contains("0x69"));
        assert!(refused(b"\x82\x01.").contains("0x82"));
    }

    #[test]
    fn broken_programs_are_refused() {
        for (pickle, expected) in [
            (&b""[..], "ends too soon"),
            (b".", "stack is empty"),
            (b"(0.", "stack is empty"),
            (b"t.", "a mark is missing"),
            (b"h\x07.", "never kept"),
            (b"K\x01K\x02a.", "adds items to a number"),
            (b"X\xff\xff\xff\xffa", "ends too soon"),
            (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffa", "ends too soon"),
            (b"K\x01)R.", "calls what is no function"),
            (b"K\x01Q.", "no storage"),
        ] {
            assert!(refused(pickle).contains(expected), "{} for {expected}", refused(pickle));
        }
        assert!(refused(&vec![b'N'; MOST_ITEMS + 1]).contains("more than"));
        assert!(refused(&vec![b'('; MOST_ITEMS + 1]).contains("more than"));
        // A dictionary of many pairs, made again and again.
        let mut pickle = b"](".to_vec();
        pickle.extend(b"NN\x86".repeat(10_000));
        pickle.extend(b"e\x85q\x00");
        pickle.extend(b"ccollections\nOrderedDict\nh\x00R".repeat(10_000));
        assert!(refused(&pickle).contains("more than"));
    }
}

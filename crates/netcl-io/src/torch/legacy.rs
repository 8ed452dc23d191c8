//! PyTorch files of before 1.6: four pickles (a magic number, the version, facts of the machine, the structure), the keys of the
//! storages, and the storages.

use std::collections::HashMap;

use super::found;
use super::pickle::{Node, Pickle};
use crate::bytes::Bytes;
use crate::tensor_file::{Found, Storage};

/// The first pickle of a file: the number 0x1950a86a20f9469cfc6c.
const MAGIC: &[u8] = b"l\xfc\x9cF\xf9 j\xa8P\x19";
/// The bytes of that pickle, in any protocol.
const LONGEST_MAGIC: usize = 32;
const VERSION: i64 = 1001;

/// Whether a file is one of these.
pub(crate) fn is_legacy(content: &[u8]) -> bool {
    let start = &content[..content.len().min(LONGEST_MAGIC)];
    start.starts_with(b"\x80") && start.windows(MAGIC.len()).any(|window| window == MAGIC)
}

/// Opens such a file.
pub(crate) fn open(file: &Bytes) -> Result<Found, String> {
    let version = Pickle::load(Pickle::load(file)?.rest)?;
    match version.node(version.root) {
        Node::Int(VERSION) => {}
        other => return Err(format!("its version of the format is {other:?}; read is {VERSION}")),
    }
    let machine = Pickle::load(version.rest)?;
    let pickle = Pickle::load(machine.rest)?;
    let keys = Pickle::load(pickle.rest)?;
    let Node::List(order) = keys.node(keys.root) else { return Err("it has no list of storages".to_owned()) };

    let mut sizes: HashMap<&str, usize> = HashMap::new();
    for node in pickle.nodes() {
        if let Node::Storage(storage) = node {
            sizes.insert(storage.key, storage.element.map_or(1, |element| element.size()));
        }
    }
    let mut storages: HashMap<&str, Bytes> = HashMap::with_capacity(order.len());
    let mut at = file.len() - keys.rest.len();
    for &key in order {
        let Node::Text(key) = keys.node(key) else { return Err("the key of a storage is no text".to_owned()) };
        let size = sizes.get(key).ok_or_else(|| format!("its storage {key:?} belongs to no tensor"))?;
        let count = file.get(at..).and_then(<[u8]>::first_chunk).map(|count| u64::from_le_bytes(*count));
        let bytes = count.and_then(|count| usize::try_from(count).ok()?.checked_mul(*size));
        let start = at + 8;
        let end = bytes.and_then(|bytes| start.checked_add(bytes));
        let part = end.and_then(|end| file.part(start..end));
        let part = part.ok_or_else(|| format!("its storage {key:?} is cut off"))?;
        at = start + part.len();
        storages.insert(key, part);
    }
    let big_endian = is_big_endian(&machine);
    found(&pickle, file.len(), big_endian, |storage| {
        let bytes = storages.get(storage.key).ok_or_else(|| format!("its storage {:?} is missing", storage.key))?;
        Ok((Storage::Part(bytes.clone()), bytes.len() as u64))
    })
}

/// What the facts of the machine say.
fn is_big_endian(machine: &Pickle<'_>) -> bool {
    let Node::Dict(facts) = machine.node(machine.root) else { return false };
    facts.iter().any(|&(key, value)| {
        matches!((machine.node(key), machine.node(value)), (Node::Text("little_endian"), Node::Bool(false)))
    })
}

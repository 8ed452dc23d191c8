//! Files of PyTorch's `torch.save`: a pickle with the structure, and the elements beside it.

mod calls;
mod flatten;
mod globals;
mod legacy;
mod pickle;
mod write;

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) use legacy::{is_legacy, open as open_legacy};
pub(crate) use write::write;

use crate::array::extent;
use crate::bytes::Bytes;
use crate::directory::Entry;
use crate::tensor_file::{Found, Kind, Place, Storage, largest_metadata, largest_unpacked};
use crate::tensors::Info;
use flatten::flatten;
use pickle::{Node, Pickle, StorageRef};

/// The member with the structure, inside of a folder of any name.
const PICKLE: &str = "data.pkl";

/// Whether the members of a ZIP file are those of a PyTorch file.
pub(crate) fn is_zip(entries: &[Entry]) -> bool {
    folder(entries).is_some()
}

/// The folder that all members are in, with its slash.
fn folder(entries: &[Entry]) -> Option<String> {
    let folder = |entry: &Entry| entry.name.strip_suffix(PICKLE).map(str::to_owned);
    entries.iter().filter_map(folder).find(|folder| folder.is_empty() || folder.ends_with('/'))
}

/// Opens a ZIP file with checked members.
pub(crate) fn open_zip(file: &Bytes, entries: Vec<Entry>) -> Result<Found, String> {
    let folder = folder(&entries).unwrap_or_default();
    let inside = |entry: Entry| Some((entry.name.strip_prefix(&folder)?.to_owned(), Arc::new(entry)));
    let members: HashMap<String, Arc<Entry>> = entries.into_iter().filter_map(inside).collect();
    if members.keys().any(|name| name.starts_with("code/")) {
        return Err("it is a TorchScript program; read are files of torch.save(model.state_dict(), ...)".to_owned());
    }
    let text = |name: &str| members.get(name).and_then(|entry| entry.start(file, 16).ok());
    let big_endian = text("byteorder").is_some_and(|order| order.trim_ascii() == b"big");
    let pickle = members.get(PICKLE).ok_or("it has no pickle")?;
    if pickle.size > largest_metadata(file.len()) {
        return Err(format!("its pickle unpacks to {} bytes, too many for a file of {}", pickle.size, file.len()));
    }
    pickle.skip_absent_checksum();
    let pickle = pickle.content(file).map_err(|reason| format!("its pickle is damaged ({reason})"))?;
    found(&Pickle::load(&pickle)?, file.len(), big_endian, |storage| {
        let entry = members.get(&format!("data/{}", storage.key));
        let entry = entry.ok_or_else(|| format!("its storage {:?} is missing", storage.key))?;
        // Every tensor in it would unpack it again.
        if !entry.is_stored() {
            return Err(format!("its storage {:?} is compressed, which PyTorch never does", storage.key));
        }
        entry.skip_absent_checksum();
        Ok((Storage::Member(file.clone(), entry.clone()), entry.size))
    })
}

/// The tensors and plain values of a pickle in a file of some length; `place` finds a storage and its bytes.
fn found<'p>(
    pickle: &Pickle<'p>,
    length: usize,
    big_endian: bool,
    place: impl Fn(&StorageRef<'p>) -> Result<(Storage, u64), String>,
) -> Result<Found, String> {
    let flat = flatten(pickle)?;
    let mut tensors = Vec::with_capacity(flat.tensors.len());
    let mut total = 0u64;
    for (name, tensor) in flat.tensors {
        let placed = || {
            let Node::Storage(storage) = pickle.node(tensor.storage) else {
                return Err("it has no storage".to_owned());
            };
            let (place, bytes) = place(storage)?;
            let size = tensor.element.size();
            let past = || format!("it reaches past the {bytes} bytes of its storage {:?}", storage.key);
            let offset = tensor.offset.checked_add(storage.offset).and_then(|offset| offset.checked_mul(size));
            let offset = offset.ok_or_else(past)?;
            let elements = extent(&tensor.shape, &tensor.strides).ok_or_else(past)?;
            let end = elements.checked_mul(size).and_then(|size| size.checked_add(offset));
            // A view may repeat elements: what it becomes counts as well.
            let dense = tensor.shape.iter().try_fold(size, |bytes, &length| bytes.checked_mul(length));
            if elements > 0 && end.is_none_or(|end| end as u64 > bytes) {
                return Err(past());
            }
            let dense = dense.ok_or("its shape is too large")?;
            let offset = if elements == 0 { 0 } else { offset };
            let strides = (!is_dense(&tensor.shape, &tensor.strides)).then(|| tensor.strides.clone());
            Ok((dense as u64, Place { storage: place, offset, strides, big_endian }))
        };
        let (bytes, place) = placed().map_err(|what| format!("its tensor {name:?} cannot be used: {what}"))?;
        total = total.saturating_add(bytes);
        tensors.push((Info { name, element: tensor.element, shape: tensor.shape.clone() }, place));
    }
    if total > largest_unpacked(length) {
        return Err(format!("its tensors have {total} bytes, too many for a file of {length}"));
    }
    Ok(Found { kind: Kind::Torch, metadata: flat.metadata, tensors })
}

/// Whether strides are those of dense elements in row-major order.
fn is_dense(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1usize;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&length, &stride)| {
            let fits = length == 1 || stride == expected;
            expected = expected.saturating_mul(length);
            fits
        })
}

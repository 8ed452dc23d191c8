//! Models in several safetensors files, with an index that says in which of them each tensor is, as Hugging Face writes them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::atomic::Pending;
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::safetensors;
use crate::tensor_file::{Found, Kind, TensorFile};
use crate::tensors::Tensors;

/// Parsed JSON takes several times the memory of its text.
const LONGEST_INDEX: usize = 64 << 20;
/// The largest shard where nobody says otherwise: that of Hugging Face's libraries.
pub const MAX_SHARD_SIZE: u64 = 5_000_000_000;

/// An index: the names of the tensors by shard.
pub(crate) struct Index {
    shards: BTreeMap<String, Vec<String>>,
    metadata: Map<String, Value>,
}

/// Reads a file that is such an index; `None` for other files.
pub(crate) fn index(content: &[u8]) -> Option<Result<Index, String>> {
    if content.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    if content.len() > LONGEST_INDEX {
        return Some(Err(format!("it is text of {} bytes, too long for an index of shards", content.len())));
    }
    Some(parse(content))
}

fn parse(content: &[u8]) -> Result<Index, String> {
    let mut index: Map<String, Value> =
        serde_json::from_slice(content).map_err(|error| format!("it is a damaged index of shards ({error})"))?;
    let Some(Value::Object(places)) = index.remove("weight_map") else {
        return Err("it is JSON, but no index of shards: it has no object \"weight_map\"".to_owned());
    };
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, shard) in places {
        let Value::String(shard) = shard else {
            return Err(format!("its index names no file for the tensor {name:?}"));
        };
        let is_inside = |part| matches!(part, Component::Normal(_));
        if shard.is_empty() || shard.contains('\\') || !Path::new(&shard).components().all(is_inside) {
            return Err(format!("its index names the file {shard:?}, which is not in the index's folder"));
        }
        shards.entry(shard).or_default().push(name);
    }
    let metadata = match index.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => Map::new(),
    };
    Ok(Index { shards, metadata })
}

impl Index {
    /// Opens the shards of the index at a path.
    pub(crate) fn open(self, path: &Path) -> Result<TensorFile> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut found = Found { kind: Kind::SafeTensorsIndex, metadata: Map::new(), tensors: Vec::new() };
        for (shard, names) in self.shards {
            let place = folder.join(&shard);
            let malformed = |what| Error::Malformed { path: place.clone(), what };
            let content = Bytes::of_file(&place).map_err(|error| match error {
                Error::Read { reason, .. } => {
                    let what = format!("its shard {shard:?} cannot be read: {reason}");
                    Error::Malformed { path: path.to_owned(), what }
                }
                other => other,
            })?;
            let inside = safetensors::open(&content).map_err(malformed)?;
            found.metadata.extend(inside.metadata);
            let mut tensors: HashMap<String, _> =
                inside.tensors.into_iter().map(|(info, place)| (info.name.clone(), (info, place))).collect();
            for name in names {
                let missing =
                    || malformed(format!("it is a shard without the tensor {name:?}, which the index expects"));
                found.tensors.push(tensors.remove(&name).ok_or_else(missing)?);
            }
        }
        found.metadata.extend(self.metadata.into_iter().filter(|(key, _)| key != "total_size"));
        TensorFile::new(path, found).map_err(|what| Error::Malformed { path: path.to_owned(), what })
    }
}

/// Writes shards of at most about a size (a single tensor may be larger) and the index, and gives their paths, that of the index
/// last. All shards are written before the first takes its name.
pub(crate) fn write(path: &Path, tensors: &dyn Tensors, largest: u64) -> Result<Vec<PathBuf>> {
    let mut shards: Vec<Vec<usize>> = vec![Vec::new()];
    let (mut size, mut total) = (0u64, 0u64);
    for (index, info) in tensors.infos().iter().enumerate() {
        let bytes = info.count() as u64 * info.readable(tensors.path())?.size() as u64;
        if size > 0 && size.saturating_add(bytes) > largest {
            shards.push(Vec::new());
            size = 0;
        }
        shards.last_mut().into_iter().for_each(|shard| shard.push(index));
        size += bytes;
        total += bytes;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".safetensors.index.json").unwrap_or(&name);
    let (mut pending, mut places) = (Vec::with_capacity(shards.len() + 1), Map::new());
    for (number, chosen) in shards.iter().enumerate() {
        let shard = format!("{stem}-{:05}-of-{:05}.safetensors", number + 1, shards.len());
        pending.push(Pending::write(&path.with_file_name(&shard), |out| safetensors::write(out, tensors, chosen))?);
        places.extend(chosen.iter().map(|&index| (tensors.infos()[index].name.clone(), shard.clone().into())));
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
    pending.push(Pending::write(path, |out| {
        Ok(serde_json::to_writer_pretty(out, &index).map_err(std::io::Error::from)?)
    })?);
    pending.into_iter().map(Pending::commit).collect()
}

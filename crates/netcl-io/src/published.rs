//! Files of the published package, netcl 0.4: what has another name or another order of axes there.

use serde_json::{Map, Value};

use crate::tensor_file::Place;
use crate::tensors::Info;

/// The version of the format that it writes.
pub(crate) const VERSION: u64 = 2;

/// Gives the tensors of a network the names and axes of today: weights of linear layers are `[inputs, outputs]` there, and batch
/// norms have `gamma` and `beta`.
pub(crate) fn translate(metadata: &Map<String, Value>, tensors: &mut [(Info, Place)]) {
    let Some(Value::Array(layers)) = metadata.get("config") else { return };
    for (info, place) in tensors {
        let Some((layer, name)) = info.name.split_once('.') else { continue };
        let layer = layer.parse().ok().and_then(|index: usize| layers.get(index));
        match (layer.and_then(|layer| layer["type"].as_str()), name) {
            (Some("Linear"), "weight") if place.strides.is_none() => {
                if let [inputs, outputs] = info.shape[..] {
                    (info.shape, place.strides) = (vec![outputs, inputs], Some(vec![1, outputs]));
                }
            }
            (Some("BatchNorm2d"), "gamma") => info.name = info.name.replace(".gamma", ".weight"),
            (Some("BatchNorm2d"), "beta") => info.name = info.name.replace(".beta", ".bias"),
            _ => {}
        }
    }
}

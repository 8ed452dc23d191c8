//! What flows along a graph's edges.

use netcl_nn::autograd::{Queue, Result, Tensor};

use crate::array::{Array, bad};
use crate::kind::Kind;

/// A value of a model: a tensor on a device, an array on the host, a list of values, or nothing.
#[derive(Clone, Debug)]
pub enum Value {
    /// On a device, where gradients flow.
    Tensor(Tensor),
    /// On the host: shapes, constants, and element types that devices do not compute with.
    Array(Array),
    /// A list.
    Sequence(Vec<Value>),
    /// An optional value that is absent.
    None,
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Tensor(tensor)
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}

impl Value {
    /// The tensor, copied to a device where it is none yet.
    pub fn to_tensor(&self, queue: &Queue) -> Result<Tensor> {
        match self {
            Value::Tensor(tensor) => Ok(tensor.clone()),
            Value::Array(array) => array.to_tensor(queue),
            _ => Err(bad("expected a tensor, got a sequence or an absent value")),
        }
    }

    /// The array, read from the device where it lies there.
    pub fn to_array(&self) -> Result<Array> {
        match self {
            Value::Tensor(tensor) => Array::of_tensor(tensor),
            Value::Array(array) => Ok(array.clone()),
            _ => Err(bad("expected a tensor, got a sequence or an absent value")),
        }
    }

    /// The lengths of the axes.
    pub fn shape(&self) -> Result<Vec<usize>> {
        match self {
            Value::Tensor(tensor) => Ok(tensor.shape().to_vec()),
            Value::Array(array) => Ok(array.shape.clone()),
            _ => Err(bad("expected a tensor, got a sequence or an absent value")),
        }
    }

    /// The type of the elements.
    pub fn kind(&self) -> Result<Kind> {
        match self {
            Value::Tensor(tensor) => Ok(Kind::of_dtype(tensor.dtype())),
            Value::Array(array) => Ok(array.kind),
            _ => Err(bad("expected a tensor, got a sequence or an absent value")),
        }
    }

    /// An array of a type that devices compute with becomes a tensor: how values enter a model. One whole number stays on the host:
    /// it mostly decides what is computed, such as a sampling rate or a length.
    pub fn on_device(self, queue: &Queue) -> Result<Value> {
        match self {
            Value::Array(array) if array.shape.is_empty() && !array.kind.is_float() => Ok(Value::Array(array)),
            Value::Array(array) if array.kind.dtype().is_some() => Ok(array.to_tensor(queue)?.into()),
            Value::Sequence(values) => {
                Ok(Value::Sequence(values.into_iter().map(|value| value.on_device(queue)).collect::<Result<_>>()?))
            }
            value => Ok(value),
        }
    }
}

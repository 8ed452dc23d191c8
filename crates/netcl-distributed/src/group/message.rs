//! Tensors as bytes, for ranks that do not know their shapes: the elements, the lengths of the axes, their number and the dtype.

use netcl_core::host;
use netcl_nn::autograd::{DType, HostOptions, Queue, RawTensor, Shape};

use super::foreign;
use crate::error::Result;

const DTYPES: [DType; 7] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::I32, DType::I64];

/// A tensor's dtype and shape but for the first axis: "float32 (_, 3)".
pub(super) fn describe_rows(tensor: &RawTensor) -> String {
    match &tensor.shape()[..] {
        [] => format!("{} ()", tensor.dtype()),
        [_, rest @ ..] => {
            let rest: String = rest.iter().map(|length| format!(", {length}")).collect();
            format!("{} (_{rest})", tensor.dtype())
        }
    }
}

/// The elements in row-major order.
pub(super) fn download(call: &'static str, tensor: &RawTensor) -> Result<Vec<u8>> {
    let mut bytes = host::filled(call, tensor.shape().nbytes(call, tensor.dtype())?, 0)?;
    tensor.read_bytes(&mut bytes)?;
    Ok(bytes)
}

/// A tensor with its shape and dtype.
pub(super) fn pack(call: &'static str, tensor: &RawTensor) -> Result<Vec<u8>> {
    let length = tensor.shape().nbytes(call, tensor.dtype())?;
    let mut bytes = host::filled(call, length + 8 * tensor.ndim() + 2, 0)?;
    tensor.read_bytes(&mut bytes[..length])?;
    for (place, axis) in bytes[length..].chunks_exact_mut(8).zip(tensor.shape().iter()) {
        place.copy_from_slice(&(*axis as u64).to_le_bytes());
    }
    let dtype = DTYPES.iter().position(|dtype| *dtype == tensor.dtype()).unwrap_or(0);
    bytes[length + 8 * tensor.ndim()..].copy_from_slice(&[tensor.ndim() as u8, dtype as u8]);
    Ok(bytes)
}

/// The tensor that a rank packed.
pub(super) fn unpack(call: &'static str, queue: &Queue, from: usize, message: &[u8]) -> Result<RawTensor> {
    let parts = || {
        let (rest, &[axes, dtype]) = message.split_last_chunk::<2>()?;
        let (data, shape) = rest.split_at_checked(rest.len().checked_sub(8 * usize::from(axes))?)?;
        let axis = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
        let shape = shape.chunks_exact(8).map(axis).collect::<Option<Shape>>()?;
        Some((data, shape, *DTYPES.get(usize::from(dtype))?))
    };
    let (data, shape, dtype) = parts().ok_or_else(|| foreign(call, from, "gave bytes that are no tensor"))?;
    Ok(RawTensor::from_host_bytes(queue, data, dtype, shape, HostOptions::default())?)
}

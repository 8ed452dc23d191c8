//! Attention, rotary embedding and sums of products.

use netcl::Tensor as Recorded;
use netcl::autograd::ops::attention::{self as attend, Attention, RotaryForm, RotaryTables};
use netcl::autograd::ops::einsum as notation_of;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::arguments::{Given, numbers, present};
use super::{Mode, both};
use crate::autograd::like;
use crate::error::{IntoPyResult, kind};
use crate::index::Made;
use crate::ndarray::numpy;
use crate::ops::seeded;
use crate::tensor::Tensor;

/// What is added to scores: a tensor or an array of numbers, or an array of truth values that says which keys are seen, or hidden.
/// A tensor of truth values stays one: attention itself knows what it means.
pub(crate) fn added(mask: &Bound<'_, PyAny>, scores_like: &Recorded, true_hides: bool) -> PyResult<Recorded> {
    if mask.cast::<Tensor>().is_ok() {
        return like(mask, scores_like);
    }
    let numpy = numpy(mask.py())?;
    let array = numpy.call_method1("asarray", (mask,))?;
    match array.cast::<PyUntypedArray>()?.dtype().kind() {
        b'b' => {
            let (yes, no) = if true_hides { (f64::NEG_INFINITY, 0.0) } else { (0.0, f64::NEG_INFINITY) };
            like(&numpy.call_method1("where", (array, yes, no))?, scores_like)
        }
        _ => like(&array, scores_like),
    }
}

both! {
    /// ``softmax(q k^T * scale + attn_mask) v`` for every batch and head, in memory linear in the number of queries and keys.
    ///
    /// ``q``, ``k`` and ``v`` have the axes (batch, heads, length, width), or any others in place of the first two. ``attn_mask`` broadcasts to (batch, heads, queries, keys):
    /// numbers are added to the scores (minus infinity hides a key), truth values say which keys are seen. With ``is_causal`` query
    /// i sees the keys 0 to i. A query that sees no key gives zeros. ``scale`` is ``1 / sqrt(width)`` unless given. With
    /// ``enable_gqa`` ``k`` and ``v`` may have fewer heads than ``q``, each of which serves as many neighbouring heads of ``q``.
    #[signature(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=false, scale=None, enable_gqa=false, *, seed=None)]
    #[text("(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, *, seed=None)")]
    fn scaled_dot_product_attention(
        mode, py, q: &Tensor, k: &Tensor, v: &Tensor, attn_mask: Given<'_, '_>, dropout_p: f64, is_causal: bool,
        scale: Option<f64>, enable_gqa: bool, seed: Option<u64>,
    ) -> Made {
        let (q, k, v) = (&q.inner(), &k.inner(), &v.inner());
        let mut mask = present(attn_mask).map(|mask| added(mask, q, false)).transpose()?;
        if mode == Mode::Forward {
            mask = mask.map(|mask| mask.detach());
        }
        let how = Attention { causal: is_causal, mask: mask.as_ref(), dropout: dropout_p, scale, grouped: enable_gqa };
        mode.tensor(py, q, || attend::scaled_dot_product_attention(q, k, v, &how, seeded(seed).as_mut()))
    }

    /// Rotary position embedding of the last two axes (length, width): pairs of elements are turned by angles that grow with the
    /// position, ``position / base ** (2 * i / width)`` for pair i.
    ///
    /// Pair i is element i and element ``i + width / 2``, or with ``interleaved`` the neighbours ``2 * i`` and ``2 * i + 1``. The
    /// first position is ``start``. ``cos`` and ``sin`` of shape (length, width / 2) replace the angles; they have no gradient.
    #[signature(x, cos=None, sin=None, *, base=10000.0, start=None, interleaved=false)]
    #[text("(x, cos=None, sin=None, *, base=10000.0, start=0, interleaved=False)")]
    fn rotary(
        mode, py, x: &Tensor, cos: Given<'_, '_>, sin: Given<'_, '_>, base: f64, start: Given<'_, '_>, interleaved: bool,
    ) -> Made {
        let x = &x.inner();
        let [start] = numbers("rotary", "start", start, [0])?;
        let form = if interleaved { RotaryForm::Interleaved } else { RotaryForm::HalfSplit };
        let tables = match (present(cos), present(sin)) {
            (Some(cos), Some(sin)) => {
                RotaryTables::from_parts(like(cos, x)?.raw().clone(), like(sin, x)?.raw().clone()).py()?
            }
            (None, None) => {
                let [.., length, width] = x.shape()[..] else {
                    let what = format!("rotary: a tensor of shape {} has no axes of length and width", x.shape());
                    return Err(PyValueError::new_err(what));
                };
                RotaryTables::new(x.queue(), start, length, width, base, x.dtype()).py()?
            }
            _ => return Err(PyValueError::new_err("rotary: give both cos and sin, or neither")),
        };
        mode.tensor(py, x, || attend::rotary(x, &tables, form))
    }

    /// Sums of products in Einstein's notation, as in NumPy: ``"ij,jk->ik"`` is the matrix product, ``"ii"`` the trace. ``...``
    /// stands for axes that broadcast. Operands are multiplied from left to right.
    #[signature(notation, *operands)]
    #[text("(notation, *operands)")]
    fn einsum(mode, py, notation: &str, operands: &Bound<'_, PyTuple>) -> Made {
        // As in PyTorch, operands can be given as one list.
        let list = operands.get_item(0).ok().filter(|_| operands.len() == 1);
        let list = list.filter(|only| only.is_instance_of::<PyList>() || only.is_instance_of::<PyTuple>());
        let operands: Vec<Bound<'_, PyAny>> = match list {
            Some(list) => list.try_iter()?.collect::<PyResult<_>>()?,
            None => operands.iter().collect(),
        };
        let tensors: Vec<Recorded> = operands
            .iter()
            .map(|operand| match operand.cast::<Tensor>() {
                Ok(tensor) => Ok(tensor.get().inner().as_ref().clone()),
                Err(_) => Err(PyTypeError::new_err(format!("einsum: operands are tensors, not {}", kind(operand)))),
            })
            .collect::<PyResult<_>>()?;
        let list: Vec<&Recorded> = tensors.iter().collect();
        let Some(first) = list.first() else {
            return Err(PyValueError::new_err(format!("einsum: {notation:?} has no operands")));
        };
        mode.tensor(py, first, || notation_of::einsum(notation, &list))
    }
}

//! Layers and cells that carry states from step to step.

use netcl::nn::{GRU, GRUCell, LSTM, LSTMCell, RNN, RNNCell};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::layer::Layer;
use crate::autograd::wrap;
use crate::index::Made;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(lstm, module)?)?;
    module.add_function(wrap_pyfunction!(lstm_cell, module)?)?;
    module.add_function(wrap_pyfunction!(gru, module)?)?;
    module.add_function(wrap_pyfunction!(gru_cell, module)?)?;
    module.add_function(wrap_pyfunction!(rnn, module)?)?;
    module.add_function(wrap_pyfunction!(rnn_cell, module)?)
}

type Pair<'py> = (Bound<'py, Tensor>, Bound<'py, Tensor>);

/// The results of all steps of an ``LSTM``, and its last states and memories.
#[pyfunction]
#[pyo3(signature = (layer, own, x, hx=None))]
fn lstm(
    py: Python<'_>,
    layer: &Layer,
    own: &Bound<'_, PyDict>,
    x: &Tensor,
    hx: Option<Pair<'_>>,
) -> PyResult<(Made, (Made, Made))> {
    let (x, hx) = (x.inner(), hx.map(|(h, c)| (h.get().inner(), c.get().inner())));
    let hx = hx.as_ref().map(|(h, c)| (&**h, &**c));
    let (out, (h, c)) = layer.with_kind(py, own, &x, |lstm: &LSTM| lstm.run(&x, hx))?;
    Ok((wrap(py, out)?, (wrap(py, h)?, wrap(py, c)?)))
}

/// The next state and memory of an ``LSTMCell``.
#[pyfunction]
#[pyo3(signature = (layer, own, x, hx=None))]
fn lstm_cell(
    py: Python<'_>,
    layer: &Layer,
    own: &Bound<'_, PyDict>,
    x: &Tensor,
    hx: Option<Pair<'_>>,
) -> PyResult<(Made, Made)> {
    let (x, hx) = (x.inner(), hx.map(|(h, c)| (h.get().inner(), c.get().inner())));
    let hx = hx.as_ref().map(|(h, c)| (&**h, &**c));
    let (h, c) = layer.with_kind(py, own, &x, |cell: &LSTMCell| cell.run(&x, hx))?;
    Ok((wrap(py, h)?, wrap(py, c)?))
}

/// Networks and cells whose state is one tensor.
macro_rules! without_memory {
    ($($network:ident = $Network:ident, $cell:ident = $Cell:ident;)*) => {$(
        #[doc = concat!("The results of all steps of a ``", stringify!($Network), "``, and its last states.")]
        #[pyfunction]
        #[pyo3(signature = (layer, own, x, hx=None))]
        fn $network(
            py: Python<'_>,
            layer: &Layer,
            own: &Bound<'_, PyDict>,
            x: &Tensor,
            hx: Option<&Tensor>,
        ) -> PyResult<(Made, Made)> {
            let (x, hx) = (x.inner(), hx.map(Tensor::inner));
            let (out, h) = layer.with_kind(py, own, &x, |network: &$Network| network.run(&x, hx.as_deref()))?;
            Ok((wrap(py, out)?, wrap(py, h)?))
        }

        #[doc = concat!("The next state of a ``", stringify!($Cell), "``.")]
        #[pyfunction]
        #[pyo3(signature = (layer, own, x, hx=None))]
        fn $cell(
            py: Python<'_>,
            layer: &Layer,
            own: &Bound<'_, PyDict>,
            x: &Tensor,
            hx: Option<&Tensor>,
        ) -> PyResult<Made> {
            let (x, hx) = (x.inner(), hx.map(Tensor::inner));
            wrap(py, layer.with_kind(py, own, &x, |cell: &$Cell| cell.run(&x, hx.as_deref()))?)
        }
    )*};
}

without_memory! {
    gru = GRU, gru_cell = GRUCell;
    rnn = RNN, rnn_cell = RNNCell;
}

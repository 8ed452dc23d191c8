//! `netcl.data.shared_batch`: headers and arrays in and out of a ring; Python's side makes the headers.

use std::time::{Duration, Instant};

use netcl::data::shared_batch::SharedBatchRing;
use numpy::PyUntypedArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::IntoPy;
use crate::ndarray::{bytes_over, dense_bytes};

/// How long the interpreter's signal handlers may have to wait.
const SLICE: Duration = Duration::from_millis(50);

/// The ring of slots; ``netcl.data.shared_batch`` puts batches into it.
#[pyclass(frozen, module = "netcl._netcl.data")]
pub(crate) struct BatchRing {
    ring: SharedBatchRing,
}

#[pymethods]
impl BatchRing {
    #[new]
    fn new(py: Python<'_>, slots: usize, slot_bytes: usize) -> PyResult<BatchRing> {
        Ok(BatchRing { ring: SharedBatchRing::new(slots, slot_bytes).data(py)? })
    }

    /// A ring of another process.
    #[staticmethod]
    fn open(py: Python<'_>, path: &str) -> PyResult<BatchRing> {
        Ok(BatchRing { ring: SharedBatchRing::open(path).data(py)? })
    }

    /// Where another process finds it.
    #[getter]
    fn path(&self) -> String {
        self.ring.path().display().to_string()
    }

    #[getter]
    fn slots(&self) -> usize {
        self.ring.slots()
    }

    #[getter]
    fn slot_bytes(&self) -> usize {
        self.ring.slot_bytes()
    }

    /// How many slots are in which state.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.ring.counts();
        let all = PyDict::new(py);
        all.set_item("free", counts.free)?;
        all.set_item("writing", counts.writing)?;
        all.set_item("ready", counts.ready)?;
        all.set_item("reading", counts.reading)?;
        Ok(all)
    }

    /// Copies a header and dense arrays, each with its first byte in the body, into a slot; false where none became free in time.
    #[pyo3(signature = (header, parts, timeout=None))]
    fn put(
        &self,
        py: Python<'_>,
        header: &[u8],
        parts: Vec<(usize, Bound<'_, PyUntypedArray>)>,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        let parts =
            parts.iter().map(|(start, array)| Ok((*start, dense_bytes(array)?))).collect::<PyResult<Vec<_>>>()?;
        let Some(mut slot) = wait(py, timeout, |time| self.ring.claim(time))? else { return Ok(false) };
        py.detach(|| slot.write(header, &parts).map(|()| slot.publish())).data(py)?;
        Ok(true)
    }

    /// The next batch's header and its body, which is the slot's own memory while the array or a view of it lives; None where
    /// there was none in time.
    #[pyo3(signature = (timeout=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyAny>)>> {
        let Some(slot) = wait(py, timeout, |time| self.ring.take(time))? else { return Ok(None) };
        let (header, body, length) = slot.parts().data(py)?;
        // SAFETY: the range is the slot's, which the array's owner holds, so that no process that keeps to the ring's rules writes
        // there.
        let body = unsafe { bytes_over(py, body, length, Box::new(slot))? };
        Ok(Some((PyBytes::new(py, &header), body)))
    }
}

/// Waits without the interpreter's lock, in slices between which it handles signals.
fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    attempt: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    let timeout = match timeout {
        None => Duration::MAX,
        Some(seconds) if seconds >= 0.0 => Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
        Some(seconds) => {
            return Err(PyValueError::new_err(format!(
                "SharedBatchRing: a timeout of {seconds} s; it must be 0 or more"
            )));
        }
    };
    let began = Instant::now();
    loop {
        let left = timeout.saturating_sub(began.elapsed());
        let found = py.detach(|| attempt(left.min(SLICE)));
        if found.is_some() || left <= SLICE {
            return Ok(found);
        }
        py.check_signals()?;
    }
}

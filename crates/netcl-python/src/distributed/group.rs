//! `Group`: collectives over ranks; and ranks whose bytes Python moves.

use netcl::autograd::RawTensor;
use netcl::distributed::{self as ranks, Call, Communicator, Piece, Reduce, Threads};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::autograd::site;
use crate::device::resolve_queue;
use crate::error::{carry, distributed_to_py, kind};
use crate::index::Made;
use crate::tensor::Tensor;

/// Most threads of ``threads``: each call waits for all of them.
const MOST_THREADS: usize = 64;

/// Ranks that make the same calls in the same order; each has its own tensors, and this is one of them.
///
/// Every method must be called by all ranks. If their calls differ, all get a ``ValueError`` that shows both; if a rank ends, raises
/// inside ``with group:``, or does not come within ``NETCL_RANK_TIMEOUT`` seconds, all others get a ``RuntimeError`` that names it.
#[pyclass(module = "netcl.distributed", frozen)]
pub(crate) struct Group(pub(crate) ranks::Group);

#[pymethods]
impl Group {
    /// The number of this rank, from 0.
    #[getter]
    fn rank(&self) -> usize {
        self.0.rank()
    }

    /// How many ranks there are.
    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }

    /// What kind of ranks these are: ``"alone"``, ``"threads"``, ``"processes"`` or ``"python"``.
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    /// Returns when all ranks have called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, ranks::Group::barrier)
    }

    /// Tells the other ranks that this one gives up: their calls end with an error that names it and the reason.
    #[pyo3(signature = (reason=""))]
    fn abort(&self, py: Python<'_>, reason: &str) {
        site::detach(py, || self.0.abort(reason));
    }

    /// Overwrites ``x`` with the reduction over all ranks, and returns it. ``op`` is ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``.
    #[pyo3(signature = (x, op="sum"))]
    fn all_reduce<'py>(&self, py: Python<'py>, x: Bound<'py, PyAny>, op: &str) -> PyResult<Bound<'py, PyAny>> {
        let (raw, op) = (raw(&x)?, reduction("all_reduce", op)?);
        self.wait(py, |group| group.all_reduce(&raw, op))?;
        Ok(x)
    }

    /// Overwrites ``x`` of rank ``root`` with the reduction over all ranks; the others keep theirs. Returns ``x``.
    #[pyo3(signature = (x, op="sum", root=0))]
    fn reduce<'py>(&self, py: Python<'py>, x: Bound<'py, PyAny>, op: &str, root: usize) -> PyResult<Bound<'py, PyAny>> {
        let (raw, op) = (raw(&x)?, reduction("reduce", op)?);
        self.wait(py, |group| group.reduce(&raw, op, root))?;
        Ok(x)
    }

    /// Overwrites ``x`` with the one of rank ``root``, and returns it.
    #[pyo3(signature = (x, root=0))]
    fn broadcast<'py>(&self, py: Python<'py>, x: Bound<'py, PyAny>, root: usize) -> PyResult<Bound<'py, PyAny>> {
        let raw = raw(&x)?;
        self.wait(py, |group| group.broadcast(&raw, root))?;
        Ok(x)
    }

    /// Makes every parameter's gradient the sum over ranks of ``share`` times its gradient there; ``share`` is this rank's part of the
    /// global batch, an equal one unless given. A gradient that is missing counts as zeros, unless it is missing everywhere.
    #[pyo3(signature = (parameters, share=None))]
    fn sync_grads(&self, py: Python<'_>, parameters: &Bound<'_, PyAny>, share: Option<f64>) -> PyResult<()> {
        let given = parameters.try_iter()?.map(|one| Ok(one?.cast::<Tensor>()?.get().inner().as_ref().clone()));
        let parameters = given.collect::<PyResult<Vec<netcl::Tensor>>>()?;
        let share = share.unwrap_or(1.0 / self.0.size() as f64);
        self.wait(py, |group| group.sync_grads(&parameters, share))
    }

    /// The tensors of all ranks, in their order; their first axes may differ.
    fn all_gather<'py>(&self, py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let raw = raw(x)?;
        wrapped(py, self.wait(py, |group| group.all_gather(&raw))?)
    }

    /// On rank ``root`` the tensors of all ranks, in their order, of which the first axes may differ; ``None`` on the others.
    #[pyo3(signature = (x, root=0))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        root: usize,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let raw = raw(x)?;
        self.wait(py, |group| group.gather(&raw, root))?.map(|all| wrapped(py, all)).transpose()
    }

    /// The tensor that rank ``root`` gives to this one. ``root`` gives one for every rank, the others ``None``; the result lies on ``queue``.
    #[pyo3(signature = (parts=None, root=0, queue=None))]
    fn scatter<'py>(
        &self,
        py: Python<'py>,
        parts: Option<&Bound<'py, PyAny>>,
        root: usize,
        queue: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let parts = parts.map_or_else(|| Ok(Vec::new()), |parts| raws("scatter", self.0.size(), parts))?;
        let queue = match (queue, parts.get(self.0.rank())) {
            (None, Some(own)) => own.queue().clone(),
            _ => resolve_queue(py, queue, None)?,
        };
        wrap(py, self.wait(py, |group| group.scatter(&parts, &queue, root))?)
    }

    /// The reduction over all ranks of what they give to this one: ``parts[k]`` of every rank goes to rank ``k``.
    #[pyo3(signature = (parts, op="sum"))]
    fn reduce_scatter<'py>(&self, py: Python<'py>, parts: &Bound<'py, PyAny>, op: &str) -> PyResult<Bound<'py, PyAny>> {
        let (parts, op) = (raws("reduce_scatter", self.0.size(), parts)?, reduction("reduce_scatter", op)?);
        wrap(py, self.wait(py, |group| group.reduce_scatter(&parts, op))?)
    }

    /// What every rank gives to this one: ``parts[k]`` of every rank goes to rank ``k``. First axes may differ.
    fn all_to_all<'py>(&self, py: Python<'py>, parts: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let parts = raws("all_to_all", self.0.size(), parts)?;
        wrapped(py, self.wait(py, |group| group.all_to_all(&parts))?)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// An exception that leaves the block ends the calls of the other ranks.
    #[pyo3(signature = (*raised))]
    fn __exit__(&self, py: Python<'_>, raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        match raised.get_item(1) {
            Ok(error) if !error.is_none() => {
                let reason = format!("{}: {}", kind(&error), error.str()?.to_string_lossy());
                site::detach(py, || self.0.abort(&reason));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn __repr__(&self) -> String {
        format!("Group(rank={}, size={}, kind={:?})", self.0.rank(), self.0.size(), self.0.kind())
    }
}

impl Group {
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&ranks::Group) -> ranks::Result<T> + Send,
    ) -> PyResult<T> {
        site::detach(py, || call(&self.0)).map_err(distributed_to_py)
    }
}

/// The group of the processes that were started together: by ``netcl launch``, by ``mpirun`` on one host, or this process alone.
///
/// It returns when all ranks have called it; further calls return the same ranks. ``communicator`` moves the bytes instead: an object
/// with ``rank``, ``size`` and ``exchange``, such as ``from_mpi4py(comm)`` and ``from_torch()`` make.
#[pyfunction]
#[pyo3(signature = (communicator=None))]
pub(super) fn init(py: Python<'_>, communicator: Option<&Bound<'_, PyAny>>) -> PyResult<Group> {
    let group = match communicator {
        None => site::detach(py, ranks::init).map_err(distributed_to_py)?,
        Some(object) => ranks::Group::new(Foreign::new(object)?),
    };
    Ok(Group(group))
}

/// Groups of ``n`` ranks that are threads of this process; each thread takes one of them.
#[pyfunction]
pub(super) fn threads(n: usize) -> PyResult<Vec<Group>> {
    if !(1..=MOST_THREADS).contains(&n) {
        return Err(PyValueError::new_err(format!("threads: n={n}; there may be 1 to {MOST_THREADS}")));
    }
    Ok(Threads::new(n).into_iter().map(|rank| Group(ranks::Group::new(rank))).collect())
}

fn reduction(call: &'static str, op: &str) -> PyResult<Reduce> {
    Reduce::parse(call, op).map_err(distributed_to_py)
}

/// The raw tensor of a `Tensor` or an `IndexTensor`.
fn raw(object: &Bound<'_, PyAny>) -> PyResult<RawTensor> {
    match object.cast::<Tensor>() {
        Ok(tensor) => Ok(tensor.get().inner().raw().clone()),
        Err(_) => Err(PyTypeError::new_err(format!("expected a Tensor or an IndexTensor, got {}", kind(object)))),
    }
}

/// One tensor for each rank.
fn raws(call: &str, size: usize, parts: &Bound<'_, PyAny>) -> PyResult<Vec<RawTensor>> {
    // A tensor can be walked as well, element by element.
    if parts.is_instance_of::<Tensor>() {
        return Err(PyTypeError::new_err(format!("{call}: give a list of {size} tensors, one for each rank")));
    }
    let mut found = Vec::new();
    for part in parts.try_iter()? {
        if found.len() == size {
            return Err(PyValueError::new_err(format!("{call}: more than {size} tensors for {size} ranks")));
        }
        found.push(raw(&part?)?);
    }
    Ok(found)
}

fn wrap(py: Python<'_>, raw: RawTensor) -> PyResult<Bound<'_, PyAny>> {
    Ok(Made::new(raw.into()).into_pyobject(py)?.into_any())
}

fn wrapped(py: Python<'_>, all: Vec<RawTensor>) -> PyResult<Vec<Bound<'_, PyAny>>> {
    all.into_iter().map(|raw| wrap(py, raw)).collect()
}

/// Ranks whose bytes a Python object moves: `exchange(call, parts)` gives the texts of all ranks' calls, and what each of them gave to
/// this rank, as `bytes` or a NumPy array of `uint8`. It gets copies: no view of ours may outlive the call.
struct Foreign {
    object: Py<PyAny>,
    rank: usize,
    size: usize,
}

impl Foreign {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Foreign> {
        let number = |name: &str| -> PyResult<usize> { object.getattr(name)?.extract() };
        let (rank, size) = (number("rank")?, number("size")?);
        if rank >= size || !object.getattr("exchange")?.is_callable() {
            let what =
                format!("init: rank {rank} of {size}: a communicator has rank, size > rank, and exchange(call, parts)");
            return Err(PyValueError::new_err(what));
        }
        Ok(Foreign { object: object.clone().unbind(), rank, size })
    }

    fn call(&self, py: Python<'_>, call: &Call<'_>, parts: &[&[u8]]) -> PyResult<(Vec<String>, Vec<Py<PyAny>>)> {
        let mut given: Vec<Bound<'_, PyBytes>> = Vec::with_capacity(parts.len());
        for (to, part) in parts.iter().enumerate() {
            let same = parts[..to].iter().position(|before| std::ptr::eq(*before, *part));
            given.push(same.map_or_else(|| PyBytes::new(py, part), |before| given[before].clone()));
        }
        let (texts, received): (Vec<String>, Vec<Py<PyAny>>) =
            self.object.bind(py).call_method1("exchange", (call.text, given))?.extract()?;
        let agreed = texts.iter().all(|text| text == call.text);
        if texts.len() != self.size || agreed && received.len() != self.size {
            let what = format!("{}: exchange gave {} parts of {} ranks", call.name, received.len(), self.size);
            return Err(PyValueError::new_err(what));
        }
        Ok((texts, received))
    }
}

/// Shows the bytes of an object.
fn with_bytes<T>(object: &Bound<'_, PyAny>, show: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(show(bytes.as_bytes()));
    }
    let array: PyReadonlyArray1<'_, u8> = object.extract().map_err(|_| {
        PyTypeError::new_err(format!("exchange must give bytes or arrays of uint8, not {}", kind(object)))
    })?;
    Ok(show(array.as_slice()?))
}

impl Communicator for Foreign {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn kind(&self) -> &'static str {
        "python"
    }

    fn exchange(
        &self,
        call: &Call<'_>,
        parts: &[&[u8]],
        receive: &mut dyn FnMut(Piece<'_>) -> ranks::Result<()>,
    ) -> ranks::Result<()> {
        let raised = |error: PyErr| ranks::Error::from(carry(error));
        Python::attach(|py| {
            let (texts, received) = self.call(py, call, parts).map_err(raised)?;
            call.check(self.rank, texts)?;
            for (from, object) in received.iter().enumerate() {
                let shown =
                    with_bytes(object.bind(py), |bytes| receive(Piece { from, offset: 0, total: bytes.len(), bytes }));
                shown.map_err(raised)??;
            }
            Ok(())
        })
    }

    fn abort(&self, reason: &str) {
        // Whether the others can be told is up to the object; there is nobody to tell if it fails.
        Python::attach(|py| {
            let object = self.object.bind(py);
            if object.hasattr("abort").unwrap_or(false) {
                let _ = object.call_method1("abort", (reason,));
            }
        });
    }
}

//! `netcl.ops`: forward-only operations.

use std::sync::Arc;

use netcl::autograd::ops::{elementwise as recorded, reduce};
use netcl::core::host;
use netcl::core::kernels::expr::table;
use netcl::core::precision;
use netcl::core::random::Generator;
use netcl::core::tensor::Tensor as Raw;
use netcl::raw_ops::matmul::MatmulOptions;
use netcl::raw_ops::{self as ops, Axes, Operand};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::autograd::{site, unrecorded};
use crate::axis;
use crate::device::resolve_queue;
use crate::error::{IntoPyResult, kind};
use crate::index::Made;
use crate::layer_ops::whole;
use crate::list::List;
use crate::opencl::Program;
use crate::tensor::{Tensor, parse_dtype, parse_shape};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(
        elementwise,
        elementwise_table,
        reshape_forward,
        permute,
        transpose,
        expand,
        squeeze,
        unsqueeze,
        flip,
        contiguous,
        cast
    );
    add!(sum, mean, prod, max, min, any, all, logsumexp, var, std_, norm, argmax, argmin, cumsum, softmax, log_softmax);
    add!(matmul, linear, bias_add, build_matmul_kernel, set_matmul_precision, get_matmul_precision);
    add!(cat, stack, split, chunk, repeat, tril, triu, arange, full, uniform, normal, bernoulli, permutation);
    Ok(())
}

/// A tensor that depends on no other.
fn made(raw: netcl::core::Result<Raw>) -> PyResult<Made> {
    Ok(Made::new(raw.py()?.into()))
}

/// The result of an operation that did not record. It remembers the operation if one of the inputs wants a gradient, so that a
/// backward pass that would need it can name it.
fn wrap(op: &'static str, inputs: &[&Tensor], raw: netcl::core::Result<Raw>) -> PyResult<Made> {
    let result = made(raw)?;
    result.0.remember_unrecorded(unrecorded(op, inputs));
    Ok(result)
}

fn wrap_all(op: &'static str, input: &Tensor, raw: netcl::core::Result<Vec<Raw>>) -> PyResult<Vec<Made>> {
    raw.py()?.into_iter().map(|raw| wrap(op, &[input], Ok(raw))).collect()
}

/// The result of an operation that may have written it into given memory.
fn wrap_out(
    py: Python<'_>,
    raw: Raw,
    out: Option<Bound<'_, Tensor>>,
    lost: Option<&'static str>,
) -> PyResult<Py<Tensor>> {
    let result = match out {
        Some(out) => out.unbind(),
        None => Py::new(py, Tensor::new(raw.into()))?,
    };
    result.get().remember_unrecorded(lost);
    Ok(result)
}

/// Applies an operation of the elementwise table by name; operands are tensors and numbers.
#[pyfunction]
#[pyo3(signature = (name, operands, params=List(vec![]), out=None))]
fn elementwise(
    py: Python<'_>,
    name: &str,
    operands: List<Bound<'_, PyAny>>,
    params: List<f64>,
    out: Option<Bound<'_, Tensor>>,
) -> PyResult<Py<Tensor>> {
    enum Given {
        Tensor(Arc<netcl::Tensor>),
        Number(f64),
    }
    let given: Vec<Given> = operands
        .iter()
        .map(|object| match object.cast::<Tensor>() {
            Ok(tensor) => Ok(Given::Tensor(tensor.get().inner())),
            Err(_) => object.extract::<f64>().map(Given::Number).map_err(|_| {
                PyTypeError::new_err(format!("{name}: operands are tensors and numbers, not {}", kind(object)))
            }),
        })
        .collect::<PyResult<_>>()?;
    let operands: Vec<Operand<'_>> = given
        .iter()
        .map(|operand| match operand {
            Given::Tensor(tensor) => Operand::Tensor(tensor.raw()),
            Given::Number(number) => Operand::Number(*number),
        })
        .collect();
    let target = out.as_ref().map(|out| out.get().inner());
    let target = target.as_deref().map(netcl::Tensor::raw);
    let result = site::detach(py, || ops::elementwise::apply(name, &operands, &params, target)).py()?;
    let recordable: Vec<recorded::Operand<'_>> = given
        .iter()
        .map(|operand| match operand {
            Given::Tensor(tensor) => recorded::Operand::Tensor(tensor),
            Given::Number(number) => recorded::Operand::Number(*number),
        })
        .collect();
    wrap_out(py, result, out, recorded::unrecorded(name, &recordable).py()?)
}

/// Name, documentation, operand names and (parameter, default) pairs of every elementwise operation.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a table for Python to read")]
fn elementwise_table() -> Vec<(&'static str, &'static str, Vec<&'static str>, Vec<(&'static str, f64)>)> {
    let row = |op: &table::OpDef| {
        (op.name, op.doc, op.inputs.to_vec(), op.params.iter().map(|p| (p.name, p.default)).collect())
    };
    table::ops().iter().map(row).collect()
}

/// ``reshape`` without recording.
#[pyfunction]
fn reshape_forward(x: &Bound<'_, Tensor>, shape: &Bound<'_, PyAny>) -> PyResult<Made> {
    let (raw, shape) = (&x.get().inner(), parse_shape(shape)?);
    let reshaped = x.py().detach(|| netcl::core::tensor::reshape(raw, shape)).py()?;
    let view = Tensor::view(reshaped.into(), x, None);
    view.remember_unrecorded(unrecorded("reshape", &[x.get()]));
    Ok(Made(view))
}

/// The axes in another order, as a view.
#[pyfunction]
fn permute(x: &Tensor, axes: &Bound<'_, PyAny>) -> PyResult<Made> {
    wrap("permute", &[x], ops::permute(x.inner().raw(), &crate::ops::axes(Some(axes))?))
}

/// Two axes exchanged, as a view; the last two unless named.
#[pyfunction]
#[pyo3(signature = (x, axis0=-2, axis1=-1), text_signature = "(x, axis0=-2, axis1=-1)")]
fn transpose(x: &Tensor, axis0: isize, axis1: isize) -> PyResult<Made> {
    wrap("transpose", &[x], ops::transpose(x.inner().raw(), axis0, axis1))
}

/// The elements repeated along new or length-1 axes, as a view.
#[pyfunction]
fn expand(x: &Tensor, shape: &Bound<'_, PyAny>) -> PyResult<Made> {
    wrap("expand", &[x], ops::expand(x.inner().raw(), parse_shape(shape)?))
}

/// Without axes of length 1: the given one(s), or all of them. A view.
#[pyfunction]
#[pyo3(signature = (x, axis=None))]
fn squeeze(x: &Tensor, axis: Option<&Bound<'_, PyAny>>) -> PyResult<Made> {
    wrap("squeeze", &[x], ops::squeeze(x.inner().raw(), &axes(axis)?))
}

/// With a new axis of length 1, as a view.
#[pyfunction]
fn unsqueeze(x: &Tensor, axis: isize) -> PyResult<Made> {
    wrap("unsqueeze", &[x], ops::unsqueeze(x.inner().raw(), axis))
}

/// The elements in reverse order along some axes, as a view.
#[pyfunction]
fn flip(x: &Tensor, axis: &Bound<'_, PyAny>) -> PyResult<Made> {
    wrap("flip", &[x], ops::flip(x.inner().raw(), &axes(Some(axis))?))
}

/// The tensor itself if its elements lie densely in row-major order, else a copy in which they do.
#[pyfunction]
fn contiguous(x: &Tensor) -> PyResult<Made> {
    wrap("contiguous", &[x], ops::contiguous(x.inner().raw()))
}

/// The values in another dtype.
#[pyfunction]
fn cast(x: &Tensor, dtype: &Bound<'_, PyAny>) -> PyResult<Made> {
    wrap("cast", &[x], ops::cast(x.inner().raw(), parse_dtype(Some(dtype))?))
}

fn own<'a>(tensors: &'a [Bound<'_, Tensor>]) -> Vec<&'a Tensor> {
    tensors.iter().map(Bound::get).collect()
}

/// Several tensors, from anything that can be walked through.
pub(crate) fn tensor_list<'py>(op: &str, given: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Tensor>>> {
    let wrong = |object: &Bound<'py, PyAny>| {
        PyTypeError::new_err(format!("{op}: a list of tensors is needed, not {}", kind(object)))
    };
    let items = given.try_iter().ok().filter(|_| !given.is_instance_of::<Tensor>()).ok_or_else(|| wrong(given))?;
    items.map(|item| item?.cast_into::<Tensor>().map_err(|error| wrong(&error.into_inner()))).collect()
}

fn raws(tensors: &[Bound<'_, Tensor>]) -> Vec<Raw> {
    tensors.iter().map(|t| t.get().inner().raw().clone()).collect()
}

/// Tensors joined along an existing axis.
#[pyfunction]
#[pyo3(signature = (tensors, axis=0))]
fn cat(tensors: &Bound<'_, PyAny>, axis: isize) -> PyResult<Made> {
    let tensors = tensor_list("cat", tensors)?;
    wrap("cat", &own(&tensors), ops::cat(&raws(&tensors).iter().collect::<Vec<_>>(), axis))
}

/// Tensors of one shape joined along a new axis.
#[pyfunction]
#[pyo3(signature = (tensors, axis=0))]
fn stack(tensors: &Bound<'_, PyAny>, axis: isize) -> PyResult<Made> {
    let tensors = tensor_list("stack", tensors)?;
    wrap("stack", &own(&tensors), ops::stack(&raws(&tensors).iter().collect::<Vec<_>>(), axis))
}

/// Views of consecutive parts: of the given lengths, or all of one length (the last may be shorter).
#[pyfunction]
#[pyo3(signature = (x, lengths, axis=0))]
fn split(x: &Tensor, lengths: &Bound<'_, PyAny>, axis: isize) -> PyResult<Vec<Made>> {
    let raw = &x.inner();
    wrap_all("split", x, ops::split(raw, &split_lengths(raw, lengths, axis)?, axis))
}

/// The lengths of the parts of an axis: as given, or all of one length with a shorter one at the end.
pub(crate) fn split_lengths(raw: &Raw, lengths: &Bound<'_, PyAny>, axis: isize) -> PyResult<Vec<usize>> {
    match lengths.extract::<usize>() {
        Ok(0) => Err(PyValueError::new_err("split: a part cannot have length 0")),
        Ok(one) => {
            let total = raw.shape()[raw.shape().axis("split", axis).py()?];
            host::collect("split", (0..total).step_by(one).map(|start| one.min(total - start))).py()
        }
        Err(_) => whole("split", "lengths", lengths),
    }
}

/// Views of at most ``n`` parts of equal length; the last may be shorter.
#[pyfunction]
#[pyo3(signature = (x, n, axis=0))]
fn chunk(x: &Tensor, n: usize, axis: isize) -> PyResult<Vec<Made>> {
    wrap_all("chunk", x, ops::chunk(x.inner().raw(), n, axis))
}

/// The tensor repeated along each axis so many times; new axes come first.
#[pyfunction]
fn repeat(x: &Tensor, times: &Bound<'_, PyAny>) -> PyResult<Made> {
    wrap("repeat", &[x], ops::repeat(x.inner().raw(), &whole("repeat", "times", times)?))
}

/// The lower triangle of the last two axes; zero elsewhere.
#[pyfunction]
#[pyo3(signature = (x, diagonal=0))]
fn tril(x: &Tensor, diagonal: isize) -> PyResult<Made> {
    wrap("tril", &[x], ops::tril(x.inner().raw(), diagonal))
}

/// The upper triangle of the last two axes; zero elsewhere.
#[pyfunction]
#[pyo3(signature = (x, diagonal=0))]
fn triu(x: &Tensor, diagonal: isize) -> PyResult<Made> {
    wrap("triu", &[x], ops::triu(x.inner().raw(), diagonal))
}

/// ``start``, ``start + step``, ... up to but not including ``stop``; ``arange(stop)`` starts at 0.
#[pyfunction]
#[pyo3(signature = (start, stop=None, step=1.0, dtype=None, queue=None),
    text_signature = "(start, stop=None, step=1.0, dtype='float32', queue=None)")]
fn arange(
    py: Python<'_>,
    start: f64,
    stop: Option<f64>,
    step: f64,
    dtype: Option<&Bound<'_, PyAny>>,
    queue: Option<&Bound<'_, PyAny>>,
) -> PyResult<Made> {
    let (start, stop) = stop.map_or((0.0, start), |stop| (start, stop));
    made(ops::arange(&resolve_queue(py, queue, None)?, start, stop, step, parse_dtype(dtype)?))
}

/// A tensor filled with a value.
#[pyfunction]
#[pyo3(signature = (shape, value, dtype=None, queue=None),
    text_signature = "(shape, value, dtype='float32', queue=None)")]
fn full(
    py: Python<'_>,
    shape: &Bound<'_, PyAny>,
    value: f64,
    dtype: Option<&Bound<'_, PyAny>>,
    queue: Option<&Bound<'_, PyAny>>,
) -> PyResult<Made> {
    made(ops::full(&resolve_queue(py, queue, None)?, parse_shape(shape)?, value, parse_dtype(dtype)?))
}

/// A generator for one call: of a seed, or `None` for the process-wide one.
pub(crate) fn seeded(seed: Option<u64>) -> Option<Generator> {
    seed.map(Generator::new)
}

/// Uniform numbers in [low, high); the same on every device. ``seed`` makes the draw independent of earlier ones.
#[pyfunction]
#[pyo3(signature = (shape, low=0.0, high=1.0, dtype=None, queue=None, seed=None),
    text_signature = "(shape, low=0.0, high=1.0, dtype='float32', queue=None, seed=None)")]
fn uniform(
    py: Python<'_>,
    shape: &Bound<'_, PyAny>,
    low: f64,
    high: f64,
    dtype: Option<&Bound<'_, PyAny>>,
    queue: Option<&Bound<'_, PyAny>>,
    seed: Option<u64>,
) -> PyResult<Made> {
    let (queue, shape) = (resolve_queue(py, queue, None)?, parse_shape(shape)?);
    made(ops::random::uniform(&queue, shape, parse_dtype(dtype)?, low, high, seeded(seed).as_mut()))
}

/// Normal numbers of a mean and a standard deviation.
#[pyfunction]
#[pyo3(signature = (shape, mean=0.0, std=1.0, dtype=None, queue=None, seed=None),
    text_signature = "(shape, mean=0.0, std=1.0, dtype='float32', queue=None, seed=None)")]
fn normal(
    py: Python<'_>,
    shape: &Bound<'_, PyAny>,
    mean: f64,
    std: f64,
    dtype: Option<&Bound<'_, PyAny>>,
    queue: Option<&Bound<'_, PyAny>>,
    seed: Option<u64>,
) -> PyResult<Made> {
    let (queue, shape) = (resolve_queue(py, queue, None)?, parse_shape(shape)?);
    made(ops::random::normal(&queue, shape, parse_dtype(dtype)?, mean, std, seeded(seed).as_mut()))
}

/// 1 with probability ``p``, else 0.
#[pyfunction]
#[pyo3(signature = (shape, p, dtype=None, queue=None, seed=None),
    text_signature = "(shape, p, dtype='float32', queue=None, seed=None)")]
fn bernoulli(
    py: Python<'_>,
    shape: &Bound<'_, PyAny>,
    p: f64,
    dtype: Option<&Bound<'_, PyAny>>,
    queue: Option<&Bound<'_, PyAny>>,
    seed: Option<u64>,
) -> PyResult<Made> {
    let (queue, shape) = (resolve_queue(py, queue, None)?, parse_shape(shape)?);
    made(ops::random::bernoulli(&queue, shape, parse_dtype(dtype)?, p, seeded(seed).as_mut()))
}

/// The numbers 0 to n - 1 in a random order, as an ``IndexTensor``.
#[pyfunction]
#[pyo3(signature = (n, queue=None, seed=None))]
fn permutation(py: Python<'_>, n: usize, queue: Option<&Bound<'_, PyAny>>, seed: Option<u64>) -> PyResult<Made> {
    let index = ops::random::permutation(&resolve_queue(py, queue, None)?, n, seeded(seed).as_mut()).py()?;
    Ok(index.into())
}

/// An axis, several axes, or none.
pub(crate) fn axes(axis: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<isize>> {
    match axis.filter(|a| !a.is_none()) {
        None => Ok(Vec::new()),
        Some(axis) => match axis.extract::<isize>() {
            Ok(one) => Ok(vec![one]),
            Err(_) => axis.extract::<List<isize>>().map(|list| list.0).map_err(|_| {
                let given = axis.repr().map_or_else(|_| "that".to_owned(), |text| text.to_string());
                PyTypeError::new_err(format!("axis is a whole number or a tuple of them, not {given}"))
            }),
        },
    }
}

/// `Axes` of an axis argument: all of them where it is left out.
fn with_axes<R>(axis: Option<&Bound<'_, PyAny>>, body: impl FnOnce(Axes<'_>) -> R) -> PyResult<R> {
    match axis.filter(|a| !a.is_none()) {
        None => Ok(body(Axes::All)),
        some => Ok(body(Axes::Several(&axes(some)?))),
    }
}

/// `constant`: which case holds is a fact without a slope, so that no gradient is lost.
macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident $($constant:ident)?;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, axis=None, keepdims=false))]
        fn $name(py: Python<'_>, x: &Tensor, axis: Option<&Bound<'_, PyAny>>, keepdims: bool) -> PyResult<Made> {
            let raw = &x.inner();
            let constant: &[&str] = &[$(stringify!($constant)),*];
            let inputs: &[&Tensor] = if constant.is_empty() { &[x] } else { &[] };
            wrap(stringify!($name), inputs, with_axes(axis, |axes| site::detach(py, || ops::$name(raw, axes, keepdims)))?)
        }
    )*};
}

reductions! {
    /// The sum over some axes, or over all of them.
    sum;
    /// The mean over some axes, or over all of them.
    mean;
    /// The product over some axes, or over all of them.
    prod;
    /// The largest value; NaN if there is one.
    max;
    /// The smallest value; NaN if there is one.
    min;
    /// 1 where any value is not 0, else 0.
    any constant;
    /// 1 where no value is 0, else 0.
    all constant;
    /// ``log(sum(exp(x)))``, stable.
    logsumexp;
}

/// The variance over some axes; ``correction=1`` divides by one less than the count.
#[pyfunction]
#[pyo3(signature = (x, axis=None, correction=1.0, keepdims=false))]
fn var(py: Python<'_>, x: &Tensor, axis: Option<&Bound<'_, PyAny>>, correction: f64, keepdims: bool) -> PyResult<Made> {
    let raw = &x.inner();
    wrap("var", &[x], with_axes(axis, |axes| site::detach(py, || ops::var(raw, axes, correction, keepdims)))?)
}

/// The standard deviation over some axes; ``correction=1`` divides by one less than the count.
#[pyfunction]
#[pyo3(name = "std", signature = (x, axis=None, correction=1.0, keepdims=false))]
fn std_(
    py: Python<'_>,
    x: &Tensor,
    axis: Option<&Bound<'_, PyAny>>,
    correction: f64,
    keepdims: bool,
) -> PyResult<Made> {
    let raw = &x.inner();
    wrap("std", &[x], with_axes(axis, |axes| site::detach(py, || ops::std(raw, axes, correction, keepdims)))?)
}

/// The p-norm over some axes.
#[pyfunction]
#[pyo3(signature = (x, p=2.0, axis=None, keepdims=false))]
fn norm(py: Python<'_>, x: &Tensor, p: f64, axis: Option<&Bound<'_, PyAny>>, keepdims: bool) -> PyResult<Made> {
    let raw = &x.inner();
    wrap("norm", &[x], with_axes(axis, |axes| site::detach(py, || ops::norm(raw, p, axes, keepdims)))?)
}

/// Where the largest value is: along an axis, or in the flattened tensor. The first of equals; NaN counts as largest.
#[pyfunction]
#[pyo3(signature = (x, axis=None, keepdims=false, *, dim=None, keepdim=false))]
pub(crate) fn argmax(
    py: Python<'_>,
    x: &Tensor,
    axis: Option<isize>,
    keepdims: bool,
    dim: Option<isize>,
    keepdim: bool,
) -> PyResult<Made> {
    let (x, axis) = (&x.inner(), axis::maybe("argmax", dim, axis)?);
    Ok(site::detach(py, || reduce::argmax(x, axis, keepdims || keepdim)).py()?.into())
}

/// Where the smallest value is: along an axis, or in the flattened tensor. The first of equals; NaN counts as smallest.
#[pyfunction]
#[pyo3(signature = (x, axis=None, keepdims=false, *, dim=None, keepdim=false))]
pub(crate) fn argmin(
    py: Python<'_>,
    x: &Tensor,
    axis: Option<isize>,
    keepdims: bool,
    dim: Option<isize>,
    keepdim: bool,
) -> PyResult<Made> {
    let (x, axis) = (&x.inner(), axis::maybe("argmin", dim, axis)?);
    Ok(site::detach(py, || reduce::argmin(x, axis, keepdims || keepdim)).py()?.into())
}

macro_rules! along_an_axis {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, axis=-1), text_signature = "(x, axis=-1)")]
        fn $name(py: Python<'_>, x: &Tensor, axis: isize) -> PyResult<Made> {
            let raw = &x.inner();
            wrap(stringify!($name), &[x], site::detach(py, || ops::$name(raw, axis)))
        }
    )*};
}

along_an_axis! {
    /// The running sum along an axis.
    cumsum;
    /// ``exp(x) / sum(exp(x))`` along an axis, stable.
    softmax;
    /// ``log(softmax(x))`` along an axis, stable.
    log_softmax;
}

/// The matrix product by NumPy's rules: the last two axes are multiplied, axes before them broadcast.
#[pyfunction]
#[pyo3(signature = (a, b, *, transpose_a=false, transpose_b=false, out=None))]
fn matmul(
    py: Python<'_>,
    a: &Tensor,
    b: &Tensor,
    transpose_a: bool,
    transpose_b: bool,
    out: Option<Bound<'_, Tensor>>,
) -> PyResult<Py<Tensor>> {
    let target = out.as_ref().map(|out| out.get().inner());
    let target = target.as_deref().map(netcl::Tensor::raw);
    let options = MatmulOptions { transpose_a, transpose_b, out: target, ..Default::default() };
    let lost = unrecorded("matmul", &[a, b]);
    let (a, b) = (&a.inner(), &b.inner());
    let result = site::detach(py, || ops::matmul_with(a, b, &options)).py()?;
    wrap_out(py, result, out, lost)
}

/// ``x`` times the transposed ``weight`` (of shape ``(out_features, in_features)``) plus ``bias``, in one launch.
#[pyfunction]
#[pyo3(signature = (x, weight, bias=None))]
fn linear(py: Python<'_>, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> PyResult<Made> {
    let inputs: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    let (x, weight, bias) = (&x.inner(), &weight.inner(), bias.map(Tensor::inner));
    let bias = bias.as_deref().map(netcl::Tensor::raw);
    wrap("linear", &inputs, site::detach(py, || ops::linear(x, weight, bias)))
}

/// Adds a vector along the channel axis: the last axis of matrices and sequences, axis 1 of images (4 or 5 axes).
#[pyfunction]
fn bias_add(py: Python<'_>, x: &Tensor, bias: &Tensor) -> PyResult<Made> {
    let inputs = [x, bias];
    let (x, bias) = (&x.inner(), &bias.inner());
    wrap("bias_add", &inputs, site::detach(py, || ops::bias_add(x, bias)))
}

/// Sets how exactly float32 products are computed from now on, on all threads: ``"highest"`` (as accurate as float32, by whatever
/// is fastest), ``"high"`` (tf32) or ``"medium"`` (bfloat16). Only devices with matrix units know the difference.
#[pyfunction]
fn set_matmul_precision(precision: &str) -> PyResult<()> {
    precision::set_matmul_precision(precision.parse().py()?);
    Ok(())
}

/// How exactly float32 products are computed: ``"highest"``, ``"high"`` or ``"medium"``.
#[pyfunction]
fn get_matmul_precision() -> &'static str {
    precision::matmul_precision().as_str()
}

/// The OpenCL program of the tiled product for a dtype, built for a queue's device (the active or default one for ``None``).
#[pyfunction]
#[pyo3(signature = (queue=None, dtype=None), text_signature = "(queue=None, dtype='float32')")]
fn build_matmul_kernel(
    py: Python<'_>,
    queue: Option<&Bound<'_, PyAny>>,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<Program> {
    let (queue, dtype) = (resolve_queue(py, queue, None)?, parse_dtype(dtype)?);
    Ok(Program(py.detach(|| ops::build_matmul_kernel(&queue, dtype)).py()?))
}

//! Layers of text models that are more than a function of one tensor: attention with masks and caches, places, and drawing tokens.

use std::sync::{Mutex, PoisonError};

use netcl::autograd::IndexTensor;
use netcl::autograd::ops::reduce::mean;
use netcl::nn::generation::{Text, generate_with};
use netcl::nn::settings::Settings;
use netcl::nn::{
    CausalSelfAttention, GPT, Masks, MultiheadAttention, PositionalEmbedding, RotaryAttention, Sampling,
    SinusoidalEmbedding, TransformerDecoder, TransformerDecoderLayer,
};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::layer::Layer;
use super::values::named;
use crate::autograd::{run, site, wrap};
use crate::device::resolve_queue;
use crate::error::IntoPyResult;
use crate::index::{self, Made};
use crate::layer_ops::attention::added;
use crate::tensor::{Tensor, parse_dtype};

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<KVCache>()?;
    module.add_class::<Sampler>()?;
    module.add_function(wrap_pyfunction!(cached_attention, module)?)?;
    module.add_function(wrap_pyfunction!(decode, module)?)?;
    module.add_function(wrap_pyfunction!(draw_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(generate, module)?)?;
    module.add_function(wrap_pyfunction!(multihead_attention, module)?)?;
    module.add_function(wrap_pyfunction!(places, module)?)
}

/// Attention of several heads under masks; with ``need_weights`` a pair of the result and the weights.
#[pyfunction]
#[pyo3(signature = (layer, own, query, key=None, value=None, key_padding_mask=None, attn_mask=None, is_causal=false,
    need_weights=false, average_attn_weights=true))]
#[allow(clippy::too_many_arguments, reason = "PyTorch's")]
fn multihead_attention<'py>(
    py: Python<'py>,
    layer: &Layer,
    own: &Bound<'py, PyDict>,
    query: &Tensor,
    key: Option<&Tensor>,
    value: Option<&Tensor>,
    key_padding_mask: Option<&Bound<'py, PyAny>>,
    attn_mask: Option<&Bound<'py, PyAny>>,
    is_causal: bool,
    need_weights: bool,
    average_attn_weights: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let key = key.unwrap_or(query);
    let (query, key, value) = (&query.inner(), &key.inner(), &value.unwrap_or(key).inner());
    let mask = |given: Option<&Bound<'py, PyAny>>| given.map(|given| added(given, query, true)).transpose();
    let (attn_mask, key_padding_mask) = (mask(attn_mask)?, mask(key_padding_mask)?);
    let masks = Masks { is_causal, attn_mask: attn_mask.as_ref(), key_padding_mask: key_padding_mask.as_ref() };
    let attend = |layer: &MultiheadAttention| {
        if !need_weights {
            return Ok((layer.attend(query, key, value, &masks)?, None));
        }
        let (out, weights) = layer.attend_with_weights(query, key, value, &masks)?;
        // The heads' axis is the third from the end, with or without a batch.
        Ok((out, Some(if average_attn_weights { mean(&weights, -3, false)? } else { weights })))
    };
    let (out, weights) = layer.with_kind(py, own, query, attend)?;
    let out = wrap(py, out)?;
    match weights {
        Some(weights) => Ok((out, wrap(py, weights)?).into_pyobject(py)?.into_any()),
        None => Ok(out.into_pyobject(py)?.into_any()),
    }
}

/// Self-attention of places that follow those in a cache.
#[pyfunction]
fn cached_attention(
    py: Python<'_>,
    layer: &Layer,
    own: &Bound<'_, PyDict>,
    x: &Tensor,
    cache: &KVCache,
    index: usize,
) -> PyResult<Made> {
    let x = &x.inner();
    let out = layer.with(py, own, x, |module| {
        let cached = Some((&cache.0, index));
        match (module.downcast_ref::<CausalSelfAttention>(), module.downcast_ref::<RotaryAttention>()) {
            (Some(layer), _) => layer.attend(x, cached),
            (_, Some(layer)) => layer.attend(x, cached),
            _ => Err(netcl::Error::wrong_type("attention", format!("a {} has no cache", module.kind()))),
        }
    });
    wrap(py, out?)
}

/// The vectors of ``length`` places from ``start`` on.
#[pyfunction]
fn places(
    py: Python<'_>,
    layer: &Layer,
    own: &Bound<'_, PyDict>,
    weight: &Tensor,
    length: usize,
    start: usize,
) -> PyResult<Made> {
    let found = layer.with(py, own, &weight.inner(), |module| {
        match (module.downcast_ref::<PositionalEmbedding>(), module.downcast_ref::<SinusoidalEmbedding>()) {
            (Some(layer), _) => layer.places(length, start),
            (_, Some(layer)) => layer.places(length, start),
            _ => Err(netcl::Error::wrong_type("places", format!("a {} knows no places", module.kind()))),
        }
    });
    wrap(py, found?)
}

/// The result of a decoder of Rust's for a target and a memory, without masks: for tests, which hold Python's decoders against it.
#[pyfunction]
fn decode(py: Python<'_>, layer: &Layer, tgt: &Tensor, memory: &Tensor) -> PyResult<Made> {
    let (tgt, memory, none) = (&tgt.inner(), &memory.inner(), &Masks::default());
    let out = layer.with(py, None, tgt, |module| {
        match (module.downcast_ref::<TransformerDecoderLayer>(), module.downcast_ref::<TransformerDecoder>()) {
            (Some(layer), _) => layer.decode(tgt, memory, none, none),
            (_, Some(stack)) => stack.decode(tgt, memory, none, none),
            _ => Err(netcl::Error::wrong_type("decode", format!("a {} is no decoder", module.kind()))),
        }
    });
    wrap(py, out?)
}

/// What a GPT of Rust's generates: for tests, which hold Python's against it.
#[pyfunction]
fn generate(
    py: Python<'_>,
    layer: &Layer,
    tokens: &Tensor,
    max_new_tokens: usize,
    temperature: f64,
    top_p: Option<f64>,
    seed: u64,
) -> PyResult<Made> {
    let (tokens, on) = (&index::core(tokens)?, tokens.inner());
    let sampling = Sampling { temperature, top_p, seed: Some(seed), ..Default::default() };
    let generate = |model: &GPT| model.generate(tokens, max_new_tokens, sampling);
    Ok(layer.with_kind(py, None, &on, generate)?.into())
}

/// Fewer than none are none, which the sampler refuses.
fn at_least_none(top_k: Option<i64>) -> Option<usize> {
    top_k.map(|k| usize::try_from(k).unwrap_or(0))
}

/// Up to ``count`` tokens that follow each text, drawn by ``scores(tokens, cache)``, which is recorded once; ``each`` gets those of a
/// step as an array, and ends the texts with ``False``. The tokens given and those drawn.
#[pyfunction]
#[pyo3(signature = (scores, cache, texts, count, temperature, top_k, top_p, repetition_penalty, seed, each))]
#[allow(clippy::too_many_arguments, reason = "Python's arguments have names")]
fn draw_tokens(
    py: Python<'_>,
    scores: Py<PyAny>,
    cache: Py<KVCache>,
    texts: Vec<Vec<i64>>,
    count: usize,
    temperature: f64,
    top_k: Option<i64>,
    top_p: Option<f64>,
    repetition_penalty: f64,
    seed: Option<u64>,
    each: Option<Py<PyAny>>,
) -> PyResult<Vec<Vec<i64>>> {
    let sampling = Sampling { temperature, top_k: at_least_none(top_k), top_p, repetition_penalty, seed };
    let raised = |error: PyErr| netcl::Error::Custom(Box::new(error));
    let mut called = |tokens: &IndexTensor, _: &netcl::nn::KVCache| {
        Python::attach(|py| {
            let found = scores.bind(py).call1((Made::from(tokens.clone()), cache.clone_ref(py)))?;
            Ok(found.cast::<Tensor>()?.get().inner().as_ref().clone())
        })
        .map_err(raised)
    };
    let heard = &mut |drawn: &IndexTensor| {
        let values = each.is_some().then(|| drawn.to_host()).transpose()?;
        Python::attach(|py| {
            py.check_signals()?;
            let (Some(each), Some(values)) = (&each, values) else { return Ok(true) };
            let answer = each.bind(py).call1((values.into_pyarray(py),))?;
            Ok(answer.is_none() || answer.is_truthy()?)
        })
        .map_err(raised)
    };
    let known = &cache.get().0;
    let queue = known.keys()[0].queue();
    site::detach(py, || {
        let mut text = Text::of(queue, &texts)?;
        generate_with(&mut called, &mut text, count, known, sampling, heard)?;
        text.rows()
    })
    .py()
}

/// Keys and values of the places that were seen, so that the next one costs one step instead of all of them again.
///
/// Every attention layer appends its part; ``advance`` moves on when all have. For inference: nothing is recorded.
#[pyclass(module = "netcl._netcl.nn", frozen)]
pub(crate) struct KVCache(netcl::nn::KVCache);

impl KVCache {
    fn tensors(&self, of: fn(&netcl::nn::KVCache) -> &[netcl::Tensor]) -> Vec<Tensor> {
        of(&self.0).iter().map(|tensor| Tensor::new(tensor.clone())).collect()
    }
}

#[pymethods]
impl KVCache {
    #[new]
    #[pyo3(signature = (n_layer, batch, n_head, head_dim, capacity, queue=None, dtype=None))]
    #[allow(clippy::too_many_arguments, reason = "Python's arguments have names")]
    fn new<'py>(
        py: Python<'py>,
        n_layer: &Bound<'py, PyAny>,
        batch: &Bound<'py, PyAny>,
        n_head: &Bound<'py, PyAny>,
        head_dim: &Bound<'py, PyAny>,
        capacity: &Bound<'py, PyAny>,
        queue: Option<&Bound<'py, PyAny>>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<KVCache> {
        let given = PyDict::new(py);
        let values = [n_layer, batch, n_head, head_dim, capacity];
        for (name, value) in netcl::nn::KVCacheOptions::NAMES.iter().zip(values) {
            given.set_item(name, value)?;
        }
        let size = netcl::nn::KVCacheOptions::read("KVCache", named(&given)?).py()?;
        let (queue, dtype) = (resolve_queue(py, queue, None)?, parse_dtype(dtype)?);
        let cache = py.detach(|| netcl::nn::KVCache::new(&queue, dtype, &size)).py()?;
        Ok(KVCache(cache))
    }

    /// The keys of each layer, (batch, heads, capacity, head_dim).
    #[getter]
    fn k(&self) -> Vec<Tensor> {
        self.tensors(netcl::nn::KVCache::keys)
    }

    /// The values of each layer.
    #[getter]
    fn v(&self) -> Vec<Tensor> {
        self.tensors(netcl::nn::KVCache::values)
    }

    /// The number of places that it can hold.
    #[getter]
    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// The number of places that were seen.
    #[getter]
    fn length(&self) -> usize {
        self.0.length()
    }

    #[setter]
    fn set_length(&self, length: usize) -> PyResult<()> {
        self.0.set_length(length).py()
    }

    /// Writes the keys and values (batch, heads, new places, head_dim) of a layer; returns all of it so far.
    fn append(&self, py: Python<'_>, layer: usize, k: &Tensor, v: &Tensor) -> PyResult<(Made, Made)> {
        let (k, v) = (&k.inner(), &v.inner());
        let (k, v) = run(py, k, || self.0.append(layer, k, v)).py()?;
        Ok((wrap(py, k)?, wrap(py, v)?))
    }

    /// Counts places as seen.
    #[pyo3(signature = (n=1))]
    fn advance(&self, n: usize) {
        self.0.advance(n);
    }

    /// Says how many places at the beginning of each text hold none of it, before anything is appended.
    fn pad(&self, padding: Vec<usize>) -> PyResult<()> {
        self.0.pad(&padding).py()
    }

    /// The rows of a table with one for each place of a text that belong to the next ``count`` places.
    fn rows(&self, py: Python<'_>, table: &Tensor, count: usize) -> PyResult<Made> {
        let table = &table.inner();
        wrap(py, run(py, table, || self.0.rows(table, count)).py()?)
    }

    /// Forgets all places.
    fn reset(&self) -> PyResult<()> {
        self.set_length(0)
    }
}

/// Draws tokens by their scores.
#[pyclass(module = "netcl._netcl.nn", frozen)]
pub(crate) struct Sampler(Mutex<netcl::nn::Sampler>);

#[pymethods]
impl Sampler {
    #[new]
    #[pyo3(signature = (temperature=1.0, top_k=None, top_p=None, seed=None, repetition_penalty=1.0))]
    fn new(
        temperature: f64,
        top_k: Option<i64>,
        top_p: Option<f64>,
        seed: Option<u64>,
        repetition_penalty: f64,
    ) -> PyResult<Sampler> {
        let sampling = Sampling { temperature, top_k: at_least_none(top_k), top_p, repetition_penalty, seed };
        Ok(Sampler(Mutex::new(netcl::nn::Sampler::new(sampling).py()?)))
    }

    /// A token for each row of scores (batch, tokens).
    fn draw<'py>(&self, py: Python<'py>, logits: &Tensor) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let logits = &logits.inner();
        let drawn = run(py, logits, || self.0.lock().unwrap_or_else(PoisonError::into_inner).draw(logits));
        Ok(drawn.py()?.into_pyarray(py))
    }
}

//! Vectors by number.

use netcl_autograd::ops::indexing::embedding;
use netcl_autograd::{Error, IndexTensor, Queue, Result, Tensor};

use crate::Module;
use crate::config::Build;
use crate::init::Init;
use crate::settings::Settings;

/// A table of vectors, of which [`Embedding::lookup`] takes the rows with given numbers.
///
/// The weight has shape `[num_embeddings, embedding_dim]` and starts normal, as in PyTorch.
///
/// ```
/// use netcl_nn::Embedding;
/// use netcl_nn::autograd::{IndexTensor, manager};
///
/// let queue = manager().cpu().queue;
/// let words = IndexTensor::from_host(&queue, &[3i64, 0, 3], [1, 3])?;
/// assert_eq!(Embedding::new(&queue, 10, 4)?.lookup(&words)?.shape()[..], [1, 3, 4]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct Embedding {
    weight: Tensor,
    #[module(settings)]
    settings: EmbeddingOptions,
}

/// How an [`Embedding`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = EmbeddingOptions::check_padding)]
pub struct EmbeddingOptions {
    /// The number of vectors.
    #[setting(least = 1)]
    pub num_embeddings: usize,
    /// The length of a vector.
    #[setting(least = 1)]
    pub embedding_dim: usize,
    /// A row that starts at zero and is not trained; below 0 it counts from the end.
    #[setting(default, quiet)]
    pub padding_idx: Option<isize>,
    /// The standard deviation of the first values.
    #[setting(default = 1.0, quiet)]
    pub init_std: f64,
}

impl EmbeddingOptions {
    fn check_padding(&self, layer: &'static str) -> Result<()> {
        row(layer, self.padding_idx, self.num_embeddings).map(|_| ())
    }
}

/// The number of a row that may be counted from the end.
fn row(layer: &'static str, at: Option<isize>, rows: usize) -> Result<Option<usize>> {
    let Some(at) = at else { return Ok(None) };
    let from_start = if at < 0 { at.checked_add_unsigned(rows) } else { Some(at) };
    match from_start.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < rows) {
        Some(row) => Ok(Some(row)),
        None => Err(Error::argument(layer, format!("padding_idx={at} is no index of {rows} rows"))),
    }
}

impl Embedding {
    /// A float32 table of so many vectors of a length.
    pub fn new(queue: &Queue, num_embeddings: usize, embedding_dim: usize) -> Result<Embedding> {
        Embedding::new_with(queue, EmbeddingOptions::new(num_embeddings, embedding_dim))
    }

    fn make(build: &mut Build<'_>, mut settings: EmbeddingOptions) -> Result<Embedding> {
        let EmbeddingOptions { num_embeddings, embedding_dim, padding_idx, init_std: std } = settings;
        let weight = build.parameter(Init::Normal { mean: 0.0, std }, [num_embeddings, embedding_dim])?;
        if let Some(row) = row("Embedding", padding_idx, num_embeddings)? {
            settings.padding_idx = Some(row as isize);
            if !build.is_hollow() {
                weight.raw().select(0, row as isize)?.fill(0.0)?;
            }
        }
        Ok(Embedding { weight, settings })
    }

    /// The rows with these numbers: the result has their shape and an axis of the vectors' length.
    pub fn lookup(&self, indices: &IndexTensor) -> Result<Tensor> {
        let rows = self.weight.shape().first().copied().unwrap_or(0);
        embedding(&self.weight, indices, row("Embedding", self.settings.padding_idx, rows)?)
    }

    /// The table.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// [`Embedding::lookup`] of whole numbers in a float tensor.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.lookup(&IndexTensor::from_float(input.raw())?)
    }
}

//! Vectors by number.

use netcl_autograd::ops::indexing::embedding;
use netcl_autograd::{DType, Error, Generator, IndexTensor, Queue, Result, Tensor};

use crate::init::Init;
use crate::members;
use crate::module::{Module, print_as_module};

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
pub struct Embedding {
    weight: Tensor,
    padding_idx: Option<usize>,
}

/// How an [`Embedding`] is made.
#[derive(Debug)]
pub struct EmbeddingOptions<'g> {
    /// A row that starts at zero and is not trained.
    pub padding_idx: Option<usize>,
    /// The table's dtype.
    pub dtype: DType,
    /// Where the first vectors come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for EmbeddingOptions<'_> {
    fn default() -> Self {
        EmbeddingOptions { padding_idx: None, dtype: DType::F32, generator: None }
    }
}

impl Embedding {
    /// A float32 table of so many vectors of a length.
    pub fn new(queue: &Queue, num_embeddings: usize, embedding_dim: usize) -> Result<Embedding> {
        Embedding::new_with(queue, num_embeddings, embedding_dim, EmbeddingOptions::default())
    }

    /// A table with a padding row, of another dtype, or from a generator of its own.
    ///
    /// # Errors
    /// If there is no row of the padding's number.
    pub fn new_with(
        queue: &Queue,
        num_embeddings: usize,
        embedding_dim: usize,
        options: EmbeddingOptions<'_>,
    ) -> Result<Embedding> {
        let EmbeddingOptions { padding_idx, dtype, generator } = options;
        let law = Init::Normal { mean: 0.0, std: 1.0 };
        let weight = law.tensor(queue, [num_embeddings, embedding_dim], dtype, generator)?;
        let table = Embedding::from_parameters(weight, padding_idx)?;
        if let Some(row) = padding_idx {
            table.weight.raw().select(0, row as isize)?.fill(0.0)?;
        }
        Ok(table)
    }

    /// A table over existing values of shape `[num_embeddings, embedding_dim]`.
    ///
    /// # Errors
    /// If it is no matrix, or there is no row of the padding's number.
    pub fn from_parameters(weight: Tensor, padding_idx: Option<usize>) -> Result<Embedding> {
        let &[count, _] = &weight.shape()[..] else {
            let why = "a table is (num_embeddings, embedding_dim)".to_owned();
            return Err(Error::shape("Embedding", weight.shape(), why));
        };
        if let Some(row) = padding_idx.filter(|row| *row >= count) {
            let what = format!("padding_idx is {row}, but must lie in 0..{count}");
            return Err(Error::argument("Embedding", what));
        }
        Ok(Embedding { weight: weight.with_grad(), padding_idx })
    }

    /// The rows with these numbers: the result has their shape and an axis of the vectors' length.
    pub fn lookup(&self, indices: &IndexTensor) -> Result<Tensor> {
        embedding(&self.weight, indices, self.padding_idx)
    }

    /// The table.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The row that is not trained.
    pub fn padding_idx(&self) -> Option<usize> {
        self.padding_idx
    }
}

impl Module for Embedding {
    /// [`Embedding::lookup`] of whole numbers in a float tensor.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.lookup(&IndexTensor::from_float(input.raw())?)
    }

    fn arguments(&self) -> String {
        let shape = self.weight.shape();
        let text = format!("num_embeddings={}, embedding_dim={}", shape[0], shape[1]);
        self.padding_idx.map_or_else(|| text.clone(), |row| format!("{text}, padding_idx={row}"))
    }

    members! { parameters: weight }
}

print_as_module!(Embedding);

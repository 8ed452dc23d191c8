//! Vectors by number.

use netcl_autograd::ops::embedding_bag::{BagMode, EmbeddingBagOptions as Bags, embedding_bag};
use netcl_autograd::ops::indexing::{embedding, indices};
use netcl_autograd::{Error, IndexTensor, Queue, Result, Tensor};

use crate::Module;
use crate::config::Build;
use crate::init::Init;
use crate::settings::{Setting, Settings, Value, Wrong};

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

/// Refuses a padding row that there is not, and makes the table.
macro_rules! tables {
    ($($options:ident),*) => {$(
        impl $options {
            fn check_padding(&self, layer: &'static str) -> Result<()> {
                row(layer, self.padding_idx, self.num_embeddings).map(|_| ())
            }

            /// The first values, with zeros at the padding, whose number is from now on counted from the start.
            fn table(&mut self, layer: &'static str, build: &mut Build<'_>) -> Result<Tensor> {
                let start = Init::Normal { mean: 0.0, std: self.init_std };
                let weight = build.parameter(start, [self.num_embeddings, self.embedding_dim])?;
                if let Some(row) = row(layer, self.padding_idx, self.num_embeddings)? {
                    self.padding_idx = Some(row as isize);
                    if !build.is_hollow() {
                        weight.raw().select(0, row as isize)?.fill(0.0)?;
                    }
                }
                Ok(weight)
            }
        }
    )*};
}
tables!(EmbeddingOptions, EmbeddingBagOptions);

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
        Ok(Embedding { weight: settings.table("Embedding", build)?, settings })
    }

    /// The rows with these numbers: the result has their shape and an axis of the vectors' length.
    pub fn lookup(&self, indices: &IndexTensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let rows = self.weight.shape().first().copied().unwrap_or(0);
            embedding(&self.weight, indices, row("Embedding", self.settings.padding_idx, rows)?)
        })
    }

    /// The table.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// [`Embedding::lookup`] of whole numbers in a float tensor.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.lookup(&indices(input)?))
    }
}

impl Setting for BagMode {
    fn wanted() -> String {
        crate::settings::one_of(&["sum", "mean", "max"])
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::Text(name) => {
                BagMode::parse(name).map_err(|_| Wrong::Other(format!("is {value}; use {}", Self::wanted())))
            }
            _ => Err(Wrong::Type),
        }
    }
    fn write(&self) -> Value {
        let name = match self {
            BagMode::Sum => "sum",
            BagMode::Mean => "mean",
            BagMode::Max => "max",
        };
        Value::Text(name.to_owned())
    }
}

/// A table of vectors, of which [`EmbeddingBag::bags`] puts several rows together to one: their sum, mean or maximum.
///
/// ```
/// use netcl_nn::EmbeddingBag;
/// use netcl_nn::autograd::{IndexTensor, manager};
///
/// let queue = manager().cpu().queue;
/// let words = IndexTensor::from_host(&queue, &[3i64, 0, 3, 7], [4])?;
/// let starts = IndexTensor::from_host(&queue, &[0i64, 3], [2])?;
/// let table = EmbeddingBag::new(&queue, 10, 4)?;
/// assert_eq!(table.bags(&words, Some(&starts), None)?.shape()[..], [2, 4]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct EmbeddingBag {
    weight: Tensor,
    #[module(settings)]
    settings: EmbeddingBagOptions,
}

/// How an [`EmbeddingBag`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = EmbeddingBagOptions::check_padding)]
pub struct EmbeddingBagOptions {
    /// The number of vectors.
    #[setting(least = 1)]
    pub num_embeddings: usize,
    /// The length of a vector.
    #[setting(least = 1)]
    pub embedding_dim: usize,
    /// What becomes of the rows of a bag.
    #[setting(default)]
    pub mode: BagMode,
    /// Whether the last offset is the end of the last bag, and begins none.
    #[setting(default = false, quiet)]
    pub include_last_offset: bool,
    /// A row that starts at zero, belongs to no bag and is not trained; below 0 it counts from the end.
    #[setting(default, quiet)]
    pub padding_idx: Option<isize>,
    /// The standard deviation of the first values.
    #[setting(default = 1.0, quiet)]
    pub init_std: f64,
}

impl EmbeddingBag {
    /// A float32 table of so many vectors of a length, for means.
    pub fn new(queue: &Queue, num_embeddings: usize, embedding_dim: usize) -> Result<EmbeddingBag> {
        EmbeddingBag::new_with(queue, EmbeddingBagOptions::new(num_embeddings, embedding_dim))
    }

    fn make(build: &mut Build<'_>, mut settings: EmbeddingBagOptions) -> Result<EmbeddingBag> {
        Ok(EmbeddingBag { weight: settings.table("EmbeddingBag", build)?, settings })
    }

    /// One row per bag. Indices with two axes have a bag in each row; a row of indices is cut into bags that begin at the offsets.
    /// `per_sample_weights` are factors of a sum, one for each index.
    pub fn bags(
        &self,
        indices: &IndexTensor,
        offsets: Option<&IndexTensor>,
        per_sample_weights: Option<&Tensor>,
    ) -> Result<Tensor> {
        let EmbeddingBagOptions { mode, include_last_offset, padding_idx, .. } = self.settings;
        let rows = self.weight.shape().first().copied().unwrap_or(0);
        let padding = row("EmbeddingBag", padding_idx, rows)?;
        let options = Bags { mode, offsets, include_last_offset, per_sample_weights, padding };
        embedding_bag(&self.weight, indices, &options)
    }

    /// The table.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// [`EmbeddingBag::bags`] of whole numbers in a float tensor with a bag in each row.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.bags(&indices(input)?, None, None))
    }
}

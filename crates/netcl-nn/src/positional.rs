//! Vectors of places.

use netcl_autograd::ops::layout::slice;
use netcl_autograd::{Error, HostOptions, Queue, Result, Slice, Tensor, host};

use crate::Module;
use crate::config::Build;
use crate::init::Init;
use crate::settings::Settings;

/// Rows of a table, which are those of the places from `start` on.
fn places(layer: &'static str, table: &Tensor, length: usize, start: usize) -> Result<Tensor> {
    let known = table.shape()[0];
    let Some(end) = start.checked_add(length).filter(|&end| end <= known) else {
        let what = format!("knows the places 0 to {}, not {length} from {start} on", known - 1);
        return Err(Error::argument(layer, what));
    };
    slice(table, 0, Slice::new(Some(start as isize), Some(end as isize), 1))
}

/// A learned vector for each place.
///
/// ```
/// use netcl_nn::PositionalEmbedding;
/// use netcl_nn::autograd::manager;
///
/// let table = PositionalEmbedding::new(&manager().cpu().queue, 16, 4)?;
/// assert_eq!(table.places(3, 5)?.shape()[..], [3, 4]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
#[module(no_forward)]
pub struct PositionalEmbedding {
    weight: Tensor,
    #[module(settings)]
    settings: PositionalEmbeddingOptions,
}

/// How a [`PositionalEmbedding`] is made.
#[derive(Clone, Debug, Settings)]
pub struct PositionalEmbeddingOptions {
    /// The number of places.
    #[setting(least = 1)]
    pub max_len: usize,
    /// The width of a vector.
    #[setting(least = 1)]
    pub d_model: usize,
    /// The deviation of the first values.
    #[setting(default = 0.02, least = 0, quiet)]
    pub init_std: f64,
}

impl PositionalEmbedding {
    /// A float32 table.
    pub fn new(queue: &Queue, max_len: usize, d_model: usize) -> Result<PositionalEmbedding> {
        PositionalEmbedding::new_with(queue, PositionalEmbeddingOptions::new(max_len, d_model))
    }

    fn make(build: &mut Build<'_>, settings: PositionalEmbeddingOptions) -> Result<PositionalEmbedding> {
        let PositionalEmbeddingOptions { max_len, d_model, init_std } = settings;
        let weight = build.parameter(Init::Normal { mean: 0.0, std: init_std }, [max_len, d_model])?;
        Ok(PositionalEmbedding { weight, settings })
    }

    /// The vectors of `length` places from `start` on.
    pub fn places(&self, length: usize, start: usize) -> Result<Tensor> {
        places("PositionalEmbedding", &self.weight, length, start)
    }
}

/// A fixed vector for each place: sines and cosines of waves that get longer along the width (Vaswani et al., 2017).
#[derive(Module)]
#[module(no_forward)]
pub struct SinusoidalEmbedding {
    #[module(buffer)]
    weight: Tensor,
    #[module(settings)]
    settings: SinusoidalEmbeddingOptions,
}

/// How a [`SinusoidalEmbedding`] is made.
#[derive(Clone, Debug, Settings)]
pub struct SinusoidalEmbeddingOptions {
    /// The number of places.
    #[setting(least = 1)]
    pub max_len: usize,
    /// The width of a vector.
    #[setting(least = 1)]
    pub d_model: usize,
    /// The longest wave is this times the shortest.
    #[setting(default = 10_000.0, least = 1, quiet)]
    pub base: f64,
}

impl SinusoidalEmbedding {
    /// A float32 table.
    pub fn new(queue: &Queue, max_len: usize, d_model: usize) -> Result<SinusoidalEmbedding> {
        SinusoidalEmbedding::new_with(queue, SinusoidalEmbeddingOptions::new(max_len, d_model))
    }

    fn make(build: &mut Build<'_>, settings: SinusoidalEmbeddingOptions) -> Result<SinusoidalEmbedding> {
        let SinusoidalEmbeddingOptions { max_len, d_model, base } = settings;
        let weight = build.buffer(Init::Constant(0.0), [max_len, d_model])?;
        let wave = |at: usize| {
            let (place, pair, odd) = (at / d_model, at % d_model / 2, at % 2 == 1);
            let angle = place as f64 * base.powf(-2.0 * pair as f64 / d_model as f64);
            if odd { angle.cos() } else { angle.sin() }
        };
        if !build.is_hollow() {
            let mut values = host::with_capacity("SinusoidalEmbedding", weight.size())?;
            values.extend((0..weight.size()).map(wave));
            let options = HostOptions { dtype: Some(weight.dtype()), ..Default::default() };
            weight.assign(Tensor::from_host_with(weight.queue(), &values, [max_len, d_model], options)?.raw())?;
        }
        Ok(SinusoidalEmbedding { weight, settings })
    }

    /// The vectors of `length` places from `start` on.
    pub fn places(&self, length: usize, start: usize) -> Result<Tensor> {
        places("SinusoidalEmbedding", &self.weight, length, start)
    }
}

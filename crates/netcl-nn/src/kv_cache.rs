//! Keys and values of the places that were seen.

use netcl_autograd::{DType, Error, Queue, Result, Slice, Tensor, host};

use crate::Settings;
use crate::settings::depth;

/// The size of a [`KVCache`].
#[derive(Clone, Debug, Settings)]
#[settings(check = KVCacheOptions::fits)]
pub struct KVCacheOptions {
    /// The number of attention layers.
    #[setting(least = 1)]
    pub n_layer: usize,
    /// The number of sequences.
    #[setting(least = 1)]
    pub batch: usize,
    /// The heads of each layer.
    #[setting(least = 1)]
    pub n_head: usize,
    /// The width of a head.
    #[setting(least = 1)]
    pub head_dim: usize,
    /// The number of places that it can hold.
    #[setting(least = 1)]
    pub capacity: usize,
}

impl KVCacheOptions {
    fn fits(&self, layer: &'static str) -> Result<()> {
        depth(layer, "n_layer", self.n_layer)
    }
}

/// Keys and values of the places that were seen, so that the next one costs one step instead of all of them again.
///
/// Every attention layer appends its part; [`KVCache::advance`] moves on when all have. For inference: nothing is recorded.
#[derive(Debug)]
pub struct KVCache {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    capacity: usize,
    length: usize,
}

/// A cache, and the number of the layer that looks into it.
pub type Cached<'c> = Option<(&'c KVCache, usize)>;

impl KVCache {
    /// An empty cache.
    ///
    /// # Errors
    /// For sizes of 0.
    pub fn new(queue: &Queue, dtype: DType, size: &KVCacheOptions) -> Result<KVCache> {
        size.check("KVCache")?;
        let &KVCacheOptions { n_layer, batch, n_head, head_dim, capacity } = size;
        let stores = || {
            let mut stores = host::with_capacity("KVCache", n_layer)?;
            for _ in 0..n_layer {
                stores.push(Tensor::from_shape(queue, [batch, n_head, capacity, head_dim], dtype)?);
            }
            Ok::<_, Error>(stores)
        };
        Ok(KVCache { keys: stores()?, values: stores()?, capacity, length: 0 })
    }

    /// The keys of each layer, `[batch, heads, capacity, head_dim]`.
    pub fn keys(&self) -> &[Tensor] {
        &self.keys
    }

    /// The values of each layer.
    pub fn values(&self) -> &[Tensor] {
        &self.values
    }

    /// The number of places that it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of places that were seen.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Writes the keys and values `[batch, heads, new places, head_dim]` of a layer; returns all of it so far.
    ///
    /// # Errors
    /// If there is no such layer, or no room.
    pub fn append(&self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        const OP: &str = "append";
        let new = keys.shape().get(2).copied().unwrap_or(0);
        let (Some(all_keys), Some(all_values)) = (self.keys.get(layer), self.values.get(layer)) else {
            return Err(Error::argument(OP, format!("KVCache has {} layers, no layer {layer}", self.keys.len())));
        };
        let end = self.length + new;
        if end > self.capacity {
            let (capacity, length) = (self.capacity, self.length);
            let what = format!("KVCache holds {capacity} places: {new} more do not fit behind {length}");
            return Err(Error::argument(OP, what));
        }
        let part = |store: &Tensor, from: usize| {
            Ok::<_, Error>(store.raw().slice(2, Slice::new(Some(from as isize), Some(end as isize), 1))?)
        };
        part(all_keys, self.length)?.assign(keys.raw())?;
        part(all_values, self.length)?.assign(values.raw())?;
        Ok((part(all_keys, 0)?.into(), part(all_values, 0)?.into()))
    }

    /// Counts places as seen.
    pub fn advance(&mut self, places: usize) {
        self.length += places;
    }

    /// Forgets all places after the first few.
    ///
    /// # Errors
    /// If it cannot hold so many.
    pub fn set_length(&mut self, places: usize) -> Result<()> {
        if places > self.capacity {
            let what = format!("KVCache holds {} places, not {places}", self.capacity);
            return Err(Error::argument("length", what));
        }
        self.length = places;
        Ok(())
    }
}

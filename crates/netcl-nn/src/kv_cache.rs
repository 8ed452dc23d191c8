//! Keys and values of the places that were seen.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netcl_autograd::ops::attention::{Cache, attention_append};
use netcl_autograd::ops::elementwise::{add, cast, le, where_};
use netcl_autograd::ops::indexing::embedding;
use netcl_autograd::ops::layout::{select, side_by_side, slice};
use netcl_autograd::{DType, Error, HostOptions, IndexTensor, Queue, Result, Slice, Tensor, host, reshape};

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
///
/// A captured step cannot count: it takes its [`Place`] as an input and tells the cache with [`KVCache::follow`].
#[derive(Debug)]
pub struct KVCache {
    /// Of each layer the keys, then the values; the two below are views of them.
    stores: Vec<Tensor>,
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    capacity: usize,
    /// 0, 1, ... up to the capacity.
    numbers: IndexTensor,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    length: usize,
    told: Option<Told>,
    padding: Option<Padding>,
}

/// A place that is followed.
#[derive(Debug)]
struct Told {
    place: Place,
    /// What hides places after it as well as padding; made for the first layer that asks.
    mask: Option<Tensor>,
}

/// What stands before the shorter ones of several texts, so that all end at the same place.
#[derive(Debug)]
struct Padding {
    /// The number of each place within its own text, `[batch, capacity]`.
    numbers: IndexTensor,
    /// What is added to scores, `[batch, 1, 1, capacity]`.
    mask: Tensor,
}

/// Where one place is, as tensors: its number `[1]`; that within each text, `[batch, 1]`, where it is another; the numbers of all places
/// that a step looks at, from 0 on; what is added to the scores of padding, `[batch, 1, 1, places]`, where there is some.
pub type Place = (IndexTensor, Option<IndexTensor>, IndexTensor, Option<Tensor>);

/// What is added to the scores of padding. Finite, as padding sees nothing but padding; every float dtype has it.
const HIDDEN: f64 = -30_000.0;

/// The fewest places that a captured step looks at; more come in powers of two, each of which is recorded once.
const LEAST_PLACES: usize = 64;

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
        let mut stores: Vec<Tensor> = host::with_capacity("KVCache", n_layer)?;
        for _ in 0..n_layer {
            stores.push(Tensor::from_shape(queue, [2, batch, n_head, capacity, head_dim], dtype)?);
        }
        let half = |which: isize| stores.iter().map(|store| select(store, 0, which)).collect::<Result<Vec<_>>>();
        let (keys, values) = (half(0)?, half(1)?);
        // The stores are larger by far, and there was room for them.
        let numbers: Vec<i64> = (0..capacity as i64).collect();
        Ok(KVCache {
            stores,
            keys,
            values,
            capacity,
            numbers: IndexTensor::from_host(queue, &numbers, [capacity])?,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.state().length
    }

    /// Says how many places at the beginning of each text hold none of it, before anything is appended.
    ///
    /// # Errors
    /// If the cache is not empty, for another number of texts, and for one of padding alone.
    pub fn pad(&self, padding: &[usize]) -> Result<()> {
        let (batch, capacity) = (self.keys[0].shape()[0], self.capacity);
        let refuse = |what: String| Err(Error::argument("pad", what));
        let mut state = self.state();
        if state.length > 0 {
            return refuse(format!("KVCache holds {} places already: say it before the first", state.length));
        }
        if padding.len() != batch {
            return refuse(format!("KVCache holds {batch} texts, padding is given for {}", padding.len()));
        }
        if let Some(places) = padding.iter().find(|&&places| places >= capacity) {
            return refuse(format!("{places} places of padding leave none of {capacity} to the text"));
        }
        state.padding = if padding.iter().all(|&places| places == 0) {
            None
        } else {
            let all = || padding.iter().flat_map(|&places| (0..capacity).map(move |at| (at, places)));
            let numbers: Vec<i64> = all().map(|(at, places)| at.saturating_sub(places) as i64).collect();
            let mask: Vec<f64> = all().map(|(at, places)| if at < places { HIDDEN } else { 0.0 }).collect();
            let queue = self.keys[0].queue();
            let as_keys = HostOptions { dtype: Some(self.keys[0].dtype()), ..Default::default() };
            Some(Padding {
                numbers: IndexTensor::from_host(queue, &numbers, [batch, capacity])?,
                mask: Tensor::from_host_with(queue, &mask, [batch, 1, 1, capacity], as_keys)?,
            })
        };
        Ok(())
    }

    /// The next place, for [`KVCache::follow`].
    ///
    /// # Errors
    /// If the cache is full.
    pub fn place(&self) -> Result<Place> {
        let (State { length, padding, .. }, capacity) = (&*self.state(), self.capacity);
        let &length = length;
        if length == capacity {
            return Err(Error::argument("place", format!("KVCache holds {capacity} places, and all are taken")));
        }
        let seen = (length + 1).next_power_of_two().clamp(LEAST_PLACES, capacity.max(LEAST_PLACES)).min(capacity);
        let within = |padding: &Padding| some(&padding.numbers, 1, length, 1);
        let padded = |padding: &Padding| slice(&padding.mask, 3, part(0, seen));
        Ok((
            some(&self.numbers, 0, length, 1)?,
            padding.as_ref().map(within).transpose()?,
            some(&self.numbers, 0, 0, seen)?,
            padding.as_ref().map(padded).transpose()?,
        ))
    }

    /// Takes the next place from the device instead of [`KVCache::length`], until it is told otherwise: [`KVCache::append`] writes one
    /// place there and gives as many as the step looks at, of which [`KVCache::mask`] hides those that nobody has written.
    pub fn follow(&self, place: Option<Place>) {
        self.state().told = place.map(|place| Told { place, mask: None });
    }

    /// The number `[1]` of the place that the cache follows.
    pub(crate) fn followed(&self) -> Option<IndexTensor> {
        self.state().told.as_ref().map(|told| told.place.0.clone())
    }

    /// The number of the place that the cache follows within each text, `[batch, 1]`, or in all of them, `[1]`.
    pub(crate) fn followed_within(&self) -> Option<IndexTensor> {
        self.state()
            .told
            .as_ref()
            .map(|Told { place: (number, within, ..), .. }| within.as_ref().unwrap_or(number).clone())
    }

    /// What is added to the scores of the first so many places: it hides padding, and where the cache follows a place those that
    /// nobody has written.
    ///
    /// # Errors
    /// What the device says.
    pub fn mask(&self, places: usize) -> Result<Option<Tensor>> {
        let State { told, padding, .. } = &mut *self.state();
        match (told, padding) {
            (Some(Told { mask: Some(mask), .. }), _) => Ok(Some(mask.clone())),
            (Some(Told { place: (number, _, numbers, padding), mask }), _) => {
                // Whole numbers of this size are floats without a loss.
                let [number, numbers] = [number, numbers].map(|numbers| numbers.tensor().cast(DType::F32));
                let seen = le(&numbers?.into(), &Tensor::from(number?))?;
                let hidden = cast(&where_(&seen, 0.0, f64::NEG_INFINITY)?, self.keys[0].dtype())?;
                let hidden = reshape(&hidden, [1, 1, 1, hidden.size()])?;
                let all = padding.as_ref().map_or(Ok(hidden.clone()), |padding| add(&hidden, padding))?;
                Ok(Some(mask.insert(all).clone()))
            }
            (None, Some(padding)) => slice(&padding.mask, 3, part(0, places)).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The rows of a table with one for each place of a text that belong to the next `count` places: `[count, width]`, with
    /// padding `[texts, count, width]`.
    ///
    /// # Errors
    /// If the table is shorter.
    pub fn rows(&self, table: &Tensor, count: usize) -> Result<Tensor> {
        let State { length, told, padding } = &*self.state();
        match (told, padding) {
            (Some(Told { place: (number, within, ..), .. }), _) => {
                embedding(table, within.as_ref().unwrap_or(number), None)
            }
            (None, Some(padding)) => embedding(table, &some(&padding.numbers, 1, *length, count)?, None),
            (None, None) => slice(table, 0, part(*length, count)),
        }
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
        let State { length, told, .. } = &*self.state();
        let places = |store: &Tensor, from: usize, count: usize| {
            Ok::<Tensor, Error>(store.raw().slice(2, part(from, count))?.into())
        };
        if let Some(Told { place: (number, _, numbers, _), .. }) = told {
            // Both lie in one projection's result, as a rule: one launch.
            match (side_by_side(keys, values)?, self.stores.get(layer)) {
                (Some(both), Some(store)) => store.clone().index_copy_(3, number, &both)?,
                _ => {
                    for (store, new) in [(all_keys, keys), (all_values, values)] {
                        store.clone().index_copy_(2, number, new)?;
                    }
                }
            }
            let seen = numbers.tensor().size();
            return Ok((places(all_keys, 0, seen)?, places(all_values, 0, seen)?));
        }
        let end = length + new;
        if end > self.capacity {
            let capacity = self.capacity;
            let what = format!("KVCache holds {capacity} places: {new} more do not fit behind {length}");
            return Err(Error::argument(OP, what));
        }
        places(all_keys, *length, new)?.assign(keys.raw())?;
        places(all_values, *length, new)?.assign(values.raw())?;
        Ok((places(all_keys, 0, end)?, places(all_values, 0, end)?))
    }

    /// Writes the key and value of the place that the cache follows and attends to all up to it; `None`, and nothing was written, where
    /// it counts itself, or where that is not one launch.
    pub(crate) fn attend(&self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Option<Tensor>> {
        let (State { told, .. }, Some(store)) = (&*self.state(), self.stores.get(layer)) else { return Ok(None) };
        let Some(Told { place: (number, _, numbers, padding), .. }) = told else { return Ok(None) };
        let cache = Cache { store, place: number, seen: numbers.tensor().size() };
        attention_append(q, k, v, &cache, padding.as_ref())
    }

    /// Counts places as seen; a step that follows a place leaves that to whoever calls it.
    pub fn advance(&self, places: usize) {
        let mut state = self.state();
        if state.told.is_none() {
            state.length += places;
        }
    }

    /// Forgets all places after the first few; with the last of them, what was said of padding.
    ///
    /// # Errors
    /// If it cannot hold so many.
    pub fn set_length(&self, places: usize) -> Result<()> {
        if places > self.capacity {
            let what = format!("KVCache holds {} places, not {places}", self.capacity);
            return Err(Error::argument("length", what));
        }
        let mut state = self.state();
        state.length = places;
        if places == 0 {
            state.padding = None;
        }
        Ok(())
    }
}

fn part(from: usize, count: usize) -> Slice {
    Slice::new(Some(from as isize), Some((from + count) as isize), 1)
}

fn some(numbers: &IndexTensor, axis: isize, from: usize, count: usize) -> Result<IndexTensor> {
    Ok(IndexTensor::from_tensor(numbers.tensor().slice(axis, part(from, count))?)?)
}

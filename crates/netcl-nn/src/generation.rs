//! Text from a model, token after token: the first step sees the whole beginning, each later one the token before it.
//!
//! Later steps differ in numbers only, so they are recorded once and replayed. What changes is an input: the token, its place in
//! the cache, random numbers. A step ends with the choice of its token on the device; the host reads it when somebody asks.

use std::cell::RefCell;
use std::iter::repeat_n;

use netcl_autograd::constants::constant_weights;
use netcl_autograd::ops::layout::{cat, slice};
use netcl_autograd::{Error, IndexTensor, Queue, Result, Slice, Tensor, capture, no_grad};

use crate::kv_cache::{KVCache, Place};
use crate::sampling::{Sampler, Sampling, columns};

/// The scores `[batch, tokens]` of what comes after those that the cache has seen and the tokens `[batch, length]`.
pub type Scores<'f> = dyn FnMut(&IndexTensor, &KVCache) -> Result<Tensor> + 'f;

/// Draws up to `count` tokens that follow the texts, and gives each batch of them `[batch]` to `each` as soon as its step is on its
/// way, until that answers `false`. What lies further back than the cache's capacity is not seen. A tensor that `each` gets holds
/// its values until the next step.
///
/// # Errors
/// Those of `scores` and `each`, and for a sampling that cannot be.
pub fn generate_with(
    scores: &mut Scores<'_>,
    text: &mut Text,
    count: usize,
    cache: &KVCache,
    sampling: Sampling,
    each: &mut dyn FnMut(&IndexTensor) -> Result<bool>,
) -> Result<()> {
    let mut sampler = Sampler::new(sampling)?;
    let (_scope, _weights) = (no_grad(), constant_weights());
    let scores = RefCell::new(scores);
    let mut step = capture(|(token, place, noise, seen): &(IndexTensor, Place, Option<Tensor>, Option<Tensor>)| {
        cache.follow(Some(place.clone()));
        let logits = scores.borrow_mut()(token, cache);
        cache.follow(None);
        sampling.choose(&logits?, noise.as_ref(), seen.as_ref())
    });
    // Scores of the first step: those of later ones have the same shape.
    let mut first = None;
    for _ in 0..count {
        let drawn = match &first {
            Some(logits) if (1..cache.capacity()).contains(&cache.length()) => {
                let input = (text.last()?, cache.place()?, sampler.noise(logits)?, sampler.seen().clone());
                let (drawn, seen) = step.call(&input)?;
                cache.advance(1);
                *sampler.seen() = seen;
                drawn
            }
            _ => {
                // Beyond the last place every token moves to another one, and what was cached is of no use.
                cache.set_length(0)?;
                cache.pad(&text.padding(cache.capacity()))?;
                let logits = scores.borrow_mut()(&text.end(cache.capacity())?, cache)?;
                if first.is_none() {
                    sampler.see(Some(&text.whole()?), &logits)?;
                }
                let drawn = sampler.next(&logits)?;
                first = Some(logits);
                drawn
            }
        };
        text.push(&drawn)?;
        if !each(&drawn)? {
            break;
        }
    }
    Ok(())
}

/// Texts that grow by a token at a time, on the device. They end at the same place: shorter ones have padding before them.
pub struct Text {
    /// Each `[batch, some]`.
    parts: Vec<Tensor>,
    length: usize,
    /// The places before each text.
    padding: Vec<usize>,
}

impl Text {
    /// Texts that begin with the tokens `[batch, length]`.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(tokens: &IndexTensor) -> Result<Text> {
        match tokens.tensor().shape()[..] {
            [batch, length] if batch > 0 && length > 0 => {
                Ok(Text { parts: vec![tokens.tensor().clone().into()], length, padding: vec![0; batch] })
            }
            _ => Err(Error::shape("generate", tokens.tensor().shape(), "it takes tokens (at least 1, at least 1)")),
        }
    }

    /// Texts that begin with tokens of different number.
    ///
    /// # Errors
    /// If there is none, or one of no token.
    pub fn of(queue: &Queue, texts: &[Vec<i64>]) -> Result<Text> {
        if let Some(at) = texts.iter().position(Vec::is_empty) {
            return Err(Error::argument("generate", format!("text {at} is empty: each begins with a token at least")));
        }
        let length = texts.iter().map(Vec::len).max().unwrap_or(0);
        let padding: Vec<usize> = texts.iter().map(|text| length - text.len()).collect();
        // Padding is never seen; the text's own first token is one that a penalty for repetition counts anyway.
        let padded =
            texts.iter().zip(&padding).flat_map(|(text, &places)| repeat_n(text[0], places).chain(text.clone()));
        let tokens = IndexTensor::from_host(queue, &padded.collect::<Vec<i64>>(), [texts.len(), length])?;
        Ok(Text { padding, ..Text::new(&tokens)? })
    }

    /// The number of texts.
    pub(crate) fn batch(&self) -> usize {
        self.padding.len()
    }

    /// The texts without padding.
    ///
    /// # Errors
    /// What the device says.
    pub fn rows(&mut self) -> Result<Vec<Vec<i64>>> {
        let tokens = self.whole()?.to_host()?;
        Ok(tokens.chunks(self.length).zip(&self.padding).map(|(text, &places)| text[places..].to_vec()).collect())
    }

    /// The padding among the last so many places.
    fn padding(&self, most: usize) -> Vec<usize> {
        let gone = self.length.saturating_sub(most);
        self.padding.iter().map(|places| places.saturating_sub(gone)).collect()
    }

    /// Adds a token `[batch]` to each text: a copy, as the next step overwrites it.
    ///
    /// # Errors
    /// What the device says.
    pub fn push(&mut self, drawn: &IndexTensor) -> Result<()> {
        let copy = IndexTensor::from_tensor(drawn.tensor().duplicate()?)?;
        self.parts.push(columns(&copy, drawn.tensor().size())?.tensor().clone().into());
        self.length += 1;
        Ok(())
    }

    /// All of them with their padding, `[batch, length]`.
    ///
    /// # Errors
    /// What the device says.
    pub fn whole(&mut self) -> Result<IndexTensor> {
        if self.parts.len() > 1 {
            let dtype = self.parts[0].dtype();
            let parts = self.parts.iter().map(|part| Ok(part.raw().cast(dtype)?.into())).collect::<Result<Vec<_>>>()?;
            self.parts = vec![cat(&parts.iter().collect::<Vec<_>>(), 1)?];
        }
        Ok(IndexTensor::from_tensor(self.parts[0].raw().clone())?)
    }

    /// The last tokens, so many at most.
    fn end(&mut self, most: usize) -> Result<IndexTensor> {
        let (whole, start) = (self.whole()?, self.length.saturating_sub(most));
        let end = slice(&whole.tensor().clone().into(), 1, Slice::new(Some(start as isize), None, 1))?;
        Ok(IndexTensor::from_tensor(end.raw().clone())?)
    }

    /// The last token, `[batch, 1]`.
    fn last(&self) -> Result<IndexTensor> {
        let last = self.parts.last().map(|part| part.raw().slice(1, Slice::new(Some(-1), None, 1))).transpose()?;
        let last = last.ok_or_else(|| Error::argument("generate", "there is no token"))?;
        Ok(IndexTensor::from_tensor(last)?)
    }
}

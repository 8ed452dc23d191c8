//! Text from a model, token after token: the first step sees the whole beginning, each later one the token before it.
//!
//! Later steps differ in numbers only, so they are recorded once and replayed. What changes is an input: the token, its place in
//! the cache, random numbers. A step ends with the choice of its token on the device; the host reads it when somebody asks.

use std::cell::RefCell;

use netcl_autograd::ops::layout::{cat, slice};
use netcl_autograd::{Error, IndexTensor, Result, Slice, Tensor, capture, no_grad};

use crate::kv_cache::{KVCache, Place};
use crate::sampling::{Sampler, Sampling, columns};

/// The scores `[batch, tokens]` of what comes after the tokens `[batch, length]`; with the cache, after those it has seen and these.
pub type Scores<'f> = dyn FnMut(&IndexTensor, Option<&KVCache>) -> Result<Tensor> + 'f;

/// Draws up to `count` tokens that follow `tokens`, and gives each batch of them `[batch]` to `each` as soon as its step is on its
/// way, until that answers `false`. What lies further back than the cache's capacity is not seen. A tensor that `each` gets holds
/// its values until the next step.
///
/// # Errors
/// If there is no token, those of `scores` and `each`, and for a sampling that cannot be.
pub fn generate_with(
    scores: &mut Scores<'_>,
    tokens: &IndexTensor,
    count: usize,
    cache: &KVCache,
    sampling: Sampling,
    each: &mut dyn FnMut(&IndexTensor) -> Result<bool>,
) -> Result<()> {
    let (mut text, mut sampler) = (Text::new(tokens)?, Sampler::new(sampling)?);
    let _scope = no_grad();
    let scores = RefCell::new(scores);
    let mut step = capture(|(token, place, noise, seen): &(IndexTensor, Place, Option<Tensor>, Option<Tensor>)| {
        cache.follow(Some(place.clone()));
        let logits = scores.borrow_mut()(token, Some(cache));
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
                let cached = (first.is_none() && text.length <= cache.capacity()).then_some(cache);
                let logits = scores.borrow_mut()(&text.end(cache.capacity())?, cached)?;
                if first.is_none() {
                    sampler.see(Some(tokens), &logits)?;
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

/// Texts of one length, which grow by a token at a time, on the device.
pub struct Text {
    /// Each `[batch, some]`.
    parts: Vec<Tensor>,
    length: usize,
}

impl Text {
    /// Texts that begin with the tokens `[batch, length]`.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(tokens: &IndexTensor) -> Result<Text> {
        match tokens.tensor().shape()[..] {
            [batch, length] if batch > 0 && length > 0 => {
                Ok(Text { parts: vec![tokens.tensor().clone().into()], length })
            }
            _ => Err(Error::shape("generate", tokens.tensor().shape(), "it takes tokens (at least 1, at least 1)")),
        }
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

    /// All of them, `[batch, length]`.
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

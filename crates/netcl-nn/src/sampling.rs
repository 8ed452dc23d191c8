//! Choosing the next token by its score, where the scores are.

use netcl_autograd::ops::reduce::argmax;
use netcl_autograd::ops::sampling::{Choice, candidates, count, draw, gumbel, penalize};
use netcl_autograd::{DType, Error, Generator, IndexTensor, Result, Tensor, reshape};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What scores are divided by: less than 1 prefers likely tokens, 0 always takes the likeliest.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are considered; all of them where none is given.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together have at least this probability are considered.
    pub top_p: Option<f64>,
    /// Above 1, tokens that the text has already are less likely: their scores are divided by it above 0, multiplied below.
    pub repetition_penalty: f64,
    /// What makes the drawing repeatable; the process-wide generator is used where none is given.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: None, top_p: None, repetition_penalty: 1.0, seed: None }
    }
}

/// Below this the likeliest token is as good as certain, and scores divided by it overflow.
const COLD: f64 = 1e-6;

impl Sampling {
    fn check(&self) -> Result<()> {
        const OP: &str = "generate";
        let Sampling { temperature, top_k, top_p, repetition_penalty, .. } = self;
        if temperature.is_nan() || *temperature < 0.0 {
            return Err(Error::argument(OP, format!("temperature={temperature} must not be negative")));
        }
        if *top_k == Some(0) {
            return Err(Error::argument(OP, "top_k=0 must be at least 1"));
        }
        if let Some(p) = top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            return Err(Error::argument(OP, format!("top_p={p} must be above 0 and at most 1")));
        }
        if !(repetition_penalty.is_finite() && *repetition_penalty > 0.0) {
            return Err(Error::argument(OP, format!("repetition_penalty={repetition_penalty} must be above 0")));
        }
        Ok(())
    }

    fn choice(&self) -> Option<Choice> {
        let &Sampling { temperature, top_k, top_p, .. } = self;
        (temperature > COLD).then_some(Choice { temperature, top_k, top_p })
    }

    /// The token of each row of scores `[batch, tokens]`, by random numbers of [`Sampler::noise`], and how often each token was seen
    /// with it. Reads nothing, so a captured step may choose.
    pub(crate) fn choose(
        &self,
        logits: &Tensor,
        noise: Option<&Tensor>,
        seen: Option<&Tensor>,
    ) -> Result<(IndexTensor, Option<Tensor>)> {
        let penalized = seen.map(|seen| penalize(logits, seen, self.repetition_penalty)).transpose()?;
        let logits = penalized.as_ref().unwrap_or(logits);
        let token = match (self.choice(), noise) {
            (Some(choice), Some(noise)) => draw(logits, noise, &choice)?,
            _ => argmax(logits, Some(-1), false)?,
        };
        let seen = seen.map(|seen| count(seen, &columns(&token, logits.shape()[0])?)).transpose()?;
        Ok((token, seen))
    }
}

/// Tokens as `[batch, length]`.
pub(crate) fn columns(tokens: &IndexTensor, batch: usize) -> Result<IndexTensor> {
    let tokens = Tensor::from(tokens.tensor().clone());
    let length = tokens.size() / batch.max(1);
    Ok(IndexTensor::from_tensor(reshape(&tokens, [batch, length])?.raw().clone())?)
}

/// Draws tokens, one after the other.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Sampler, Sampling};
///
/// let logits = Tensor::from_host(&manager().cpu().queue, &[0.0f32, 2.0, 1.0, 5.0, -1.0, 0.0], [2, 3])?;
/// let mut greedy = Sampler::new(Sampling { temperature: 0.0, ..Default::default() })?;
/// assert_eq!(greedy.draw(&logits)?, [1, 0]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    generator: Option<Generator>,
    /// How often each token was seen, `[batch, tokens]`, where that counts.
    seen: Option<Tensor>,
}

impl Sampler {
    /// One that has drawn nothing yet.
    ///
    /// # Errors
    /// For a negative temperature, no token to choose from, a probability that is none, or a penalty that is not above 0.
    pub fn new(sampling: Sampling) -> Result<Sampler> {
        sampling.check()?;
        Ok(Sampler { sampling, generator: sampling.seed.map(Generator::new), seen: None })
    }

    /// A token for each row of scores `[batch, tokens]`.
    ///
    /// # Errors
    /// If there is no token.
    pub fn draw(&mut self, logits: &Tensor) -> Result<Vec<i64>> {
        if self.seen.is_none() {
            self.see(None, logits)?;
        }
        Ok(self.next(logits)?.to_host()?)
    }

    /// A token for each row of scores, `[batch]`, on their device.
    pub(crate) fn next(&mut self, logits: &Tensor) -> Result<IndexTensor> {
        if !matches!(logits.shape()[..], [_, tokens] if tokens > 0) {
            return Err(Error::shape("generate", logits.shape(), "scores are (batch, at least 1)"));
        }
        let noise = self.noise(logits)?;
        let (token, seen) = self.sampling.choose(logits, noise.as_ref(), self.seen.as_ref())?;
        self.seen = seen;
        Ok(token)
    }

    /// Random numbers for the next tokens of scores like these; none where nothing is left to chance.
    pub(crate) fn noise(&mut self, logits: &Tensor) -> Result<Option<Tensor>> {
        let Some(choice) = self.sampling.choice() else { return Ok(None) };
        let [rows, tokens] = [0, 1].map(|axis| logits.shape()[axis]);
        gumbel(logits.queue(), [rows, candidates(tokens, &choice)], self.generator.as_mut()).map(Some)
    }

    /// Starts to count tokens, for scores like these, where that matters: from those `[batch, length]` that the texts begin with.
    pub(crate) fn see(&mut self, tokens: Option<&IndexTensor>, logits: &Tensor) -> Result<()> {
        if self.sampling.repetition_penalty != 1.0 {
            let none = Tensor::from_shape(logits.queue(), logits.shape().clone(), DType::F32)?;
            self.seen = Some(tokens.map_or(Ok(none.clone()), |tokens| count(&none, tokens))?);
        }
        Ok(())
    }

    pub(crate) fn seen(&mut self) -> &mut Option<Tensor> {
        &mut self.seen
    }
}

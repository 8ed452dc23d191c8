//! Choosing the next token by its score.

use netcl_autograd::ops::random::uniform;
use netcl_autograd::ops::reduce::argmax;
use netcl_autograd::{DType, Error, Generator, Result, Tensor, manager};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What scores are divided by: less than 1 prefers likely tokens, 0 always takes the likeliest.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are considered; all of them where none is given.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together have at least this probability are considered.
    pub top_p: Option<f64>,
    /// What makes the drawing repeatable; the process-wide generator is used where none is given.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: None, top_p: None, seed: None }
    }
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
}

impl Sampler {
    /// One that has drawn nothing yet.
    ///
    /// # Errors
    /// For a negative temperature, no token to choose from, or a probability that is none.
    pub fn new(sampling: Sampling) -> Result<Sampler> {
        const OP: &str = "generate";
        let Sampling { temperature, top_k, top_p, seed } = sampling;
        if temperature.is_nan() || temperature < 0.0 {
            return Err(Error::argument(OP, format!("temperature={temperature} must not be negative")));
        }
        if top_k == Some(0) {
            return Err(Error::argument(OP, "top_k=0 must be at least 1"));
        }
        if let Some(p) = top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            return Err(Error::argument(OP, format!("top_p={p} must be above 0 and at most 1")));
        }
        Ok(Sampler { sampling, generator: seed.map(Generator::new) })
    }

    /// A token for each row of scores `[batch, tokens]`.
    ///
    /// # Errors
    /// If there is no token.
    pub fn draw(&mut self, logits: &Tensor) -> Result<Vec<i64>> {
        let (batch, tokens) = match logits.shape()[..] {
            [batch, tokens] if tokens > 0 => (batch, tokens),
            _ => return Err(Error::shape("generate", logits.shape(), "scores are (batch, at least 1)")),
        };
        if self.sampling.temperature == 0.0 {
            // Where the scores are: one number of each row comes to the host instead of all.
            return Ok(argmax(logits, Some(-1), false)?.to_host()?);
        }
        let scores = logits.to_f64_vec()?;
        let queue = &manager().cpu().queue;
        let shares = uniform(queue, [batch], DType::F64, 0.0, 1.0, self.generator.as_mut())?.to_host::<f64>()?;
        Ok(scores.chunks_exact(tokens).zip(shares).map(|(row, share)| self.one(row, share) as i64).collect())
    }

    /// The token at a share of the probability, the likeliest tokens first.
    fn one(&self, scores: &[f64], share: f64) -> usize {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        // Of equals the first.
        let likelier = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
        if let Some(k) = self.sampling.top_k.filter(|k| *k < scores.len()) {
            order.select_nth_unstable_by(k, likelier);
            order.truncate(k);
        }
        order.sort_unstable_by(likelier);
        let likeliest = order[0];
        let weight = |&token: &usize| ((scores[token] - scores[likeliest]) / self.sampling.temperature).exp();
        let mut weights: Vec<f64> = order.iter().map(weight).collect();
        if let Some(p) = self.sampling.top_p {
            let enough = p * weights.iter().sum::<f64>();
            let mut sum = 0.0;
            let reached = weights.iter().position(|weight| {
                sum += weight;
                sum >= enough
            });
            weights.truncate(reached.map_or(weights.len(), |last| last + 1));
        }
        let mut left = share * weights.iter().sum::<f64>();
        for (token, weight) in order.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return *token;
            }
        }
        likeliest
    }
}

//! An LSTM tells rising from falling sequences.

use netcl::nn::{LSTM, RecurrentOptions};
use netcl::prelude::*;

const LENGTH: usize = 12;
const VOCABULARY: usize = 20;

#[derive(Module)]
#[module(no_forward)]
struct Classifier {
    embedding: Embedding,
    lstm: LSTM,
    fc: Linear,
}

impl Classifier {
    fn new(queue: &Queue, width: usize, hidden: usize) -> netcl::Result<Classifier> {
        Ok(Classifier {
            embedding: Embedding::new(queue, VOCABULARY, width)?,
            lstm: LSTM::new_with(
                queue,
                RecurrentOptions { batch_first: true, ..RecurrentOptions::new(width, hidden) },
            )?,
            fc: Linear::new(queue, hidden, 2)?,
        })
    }

    fn logits(&self, tokens: &IndexTensor) -> netcl::Result<Tensor> {
        let (_, (hidden, _)) = self.lstm.run(&self.embedding.lookup(tokens)?, None)?;
        self.fc.forward(&hidden.select(0, -1)?)
    }
}

/// Tokens (N, L) that rise (1) or fall (0), with noise.
fn sequences(queue: &Queue, count: usize) -> netcl::Result<(IndexTensor, Vec<i64>)> {
    let noise = Tensor::randint(queue, -2, 3, [count, LENGTH])?.to_f64_vec()?;
    let labels: Vec<i64> = Tensor::randint(queue, 0, 2, [count])?.to_f64_vec()?.iter().map(|&l| l as i64).collect();
    let token = |at: usize| {
        let along = if labels[at / LENGTH] == 1 { at % LENGTH } else { LENGTH - 1 - at % LENGTH };
        (2.0 + along as f64 * (VOCABULARY as f64 - 5.0) / (LENGTH as f64 - 1.0) + noise[at]) as i64
    };
    let tokens: Vec<i64> = (0..count * LENGTH).map(token).collect();
    Ok((IndexTensor::from_host(queue, &tokens, [count, LENGTH])?, labels))
}

pub(crate) fn run(queue: &Queue) -> Result<(), Box<dyn std::error::Error>> {
    netcl::manual_seed(0);
    let model = Classifier::new(queue, 16, 32)?;
    let mut opt = SGD::new_with(model.parameters(), SgdOptions { lr: 0.2, momentum: 0.9, ..Default::default() })?;
    let mut losses = Vec::new();
    for _step in 0..60 {
        let (tokens, labels) = sequences(queue, 32)?;
        let loss = F::cross_entropy(&model.logits(&tokens)?, &labels)?;
        loss.backward()?;
        netcl::optim::clip_grad_norm(&model.parameters(), 1.0)?;
        opt.step()?;
        opt.zero_grad();
        losses.push(loss.item()?);
    }
    let _inference = no_grad();
    let (tokens, labels) = sequences(queue, 256)?;
    let guesses = F::argmax(&model.logits(&tokens)?, Some(1), false)?.to_host()?;
    let right = guesses.iter().zip(&labels).filter(|(guess, label)| guess == label).count();
    println!("loss {:.3} -> {:.3}, {right} of {} right", losses[0], losses[losses.len() - 1], labels.len());
    if right * 10 < labels.len() * 9 {
        return Err("the network should have learned more".into());
    }
    Ok(())
}

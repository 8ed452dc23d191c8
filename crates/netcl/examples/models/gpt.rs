//! A small GPT learns to write a text letter by letter.

use netcl::nn::{GPT, GPTOptions, Sampling};
use netcl::prelude::*;

const TEXT: &str = "the quick brown fox jumps over the lazy dog. ";
const LENGTH: usize = 32;
const ROWS: usize = 16;

pub(crate) fn run(queue: &Queue) -> Result<(), Box<dyn std::error::Error>> {
    netcl::manual_seed(0);
    let mut letters: Vec<char> = TEXT.chars().collect();
    letters.sort_unstable();
    letters.dedup();
    let tokens_of = |text: &str| -> Vec<i64> {
        text.chars().filter_map(|letter| Some(letters.binary_search(&letter).ok()? as i64)).collect()
    };
    let text = tokens_of(&TEXT.repeat(40));

    let options = GPTOptions { n_layer: 2, n_head: 4, n_embd: 48, ..GPTOptions::new(letters.len(), LENGTH) };
    let mut model = GPT::new_with(queue, options)?;
    println!("{} parameters", model.num_parameters());
    let mut opt = AdamW::new(model.parameters(), 3e-3)?;
    let mut losses = Vec::new();
    for step in 0..60 {
        // Windows of the text, and the same windows one letter further on: what each letter is to predict.
        let starts: Vec<usize> = (0..ROWS).map(|row| (step * ROWS + row) * 29 % (text.len() - LENGTH - 1)).collect();
        let x: Vec<i64> = starts.iter().flat_map(|&at| &text[at..at + LENGTH]).copied().collect();
        let y: Vec<i64> = starts.iter().flat_map(|&at| &text[at + 1..at + LENGTH + 1]).copied().collect();
        let x = IndexTensor::from_host(queue, &x, [ROWS, LENGTH])?;
        let y = IndexTensor::from_host(queue, &y, [ROWS, LENGTH])?;
        let loss = model.loss(&x, &y)?;
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        losses.push(loss.item()?);
    }
    println!("loss {:.3} -> {:.3}", losses[0], losses[losses.len() - 1]);

    model.eval();
    let start = tokens_of("the quick");
    let start = IndexTensor::from_host(queue, &start, [1, start.len()])?;
    let written = model.generate(&start, 36, Sampling { temperature: 0.0, ..Default::default() })?;
    let written: String = written.to_host()?.iter().filter_map(|&token| letters.get(token as usize)).collect();
    println!("{written}");
    if !written.contains("brown fox") {
        return Err("the network should have learned the text".into());
    }
    Ok(())
}

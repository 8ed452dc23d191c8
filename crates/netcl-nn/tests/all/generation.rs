//! Drawing tokens: recorded steps against the whole text computed anew, and draws against the probabilities.

use netcl_nn::autograd::ops::elementwise::cast;
use netcl_nn::autograd::ops::layout::{cat, expand, select, slice};
use netcl_nn::autograd::{DType, Generator, IndexTensor, Queue, Slice, Tensor, no_grad};
use netcl_nn::*;

use crate::golden::{cpu, devices};

/// Blocks of 80 places, so that steps are recorded for 64 of them and for all.
fn model(queue: &Queue) -> GPT {
    let options = GPTOptions { n_embd: 16, n_head: 2, n_layer: 2, ..GPTOptions::new(13, 80) };
    let mut model = GPT::new_with(Build::on(queue).generator(&mut Generator::new(4)), options).unwrap();
    // Scores that differ: as initialised, tokens are all but equally likely.
    for (name, parameter) in model.named_parameters() {
        if !name.ends_with("bias") && parameter.ndim() == 2 {
            parameter.assign(&(&parameter.detach() * 20.0).unwrap()).unwrap();
        }
    }
    model.eval();
    model
}

fn tokens(queue: &Queue, rows: &[Vec<i64>]) -> IndexTensor {
    IndexTensor::from_host(queue, &rows.concat(), [rows.len(), rows[0].len()]).unwrap()
}

/// The likeliest next tokens, without a cache; scores of tokens that are there are divided by a penalty, or multiplied below 0.
fn slowly(model: &GPT, queue: &Queue, mut rows: Vec<Vec<i64>>, count: usize, penalty: f64) -> Vec<i64> {
    let _off = no_grad();
    for _ in 0..count {
        let seen: Vec<Vec<i64>> = rows.iter().map(|row| row[row.len().saturating_sub(80)..].to_vec()).collect();
        let logits = model.logits(&tokens(queue, &seen), None).unwrap();
        let scores = select(&logits, 1, -1).unwrap().to_f64_vec().unwrap();
        for (row, scores) in rows.iter_mut().zip(scores.chunks(13)) {
            let less = |token: usize| match (row.contains(&(token as i64)), scores[token] > 0.0) {
                (true, true) => scores[token] / penalty,
                (true, false) => scores[token] * penalty,
                (false, _) => scores[token],
            };
            let best = (0..13).max_by(|&a, &b| less(a).total_cmp(&less(b)).then(b.cmp(&a))).unwrap();
            row.push(best as i64);
        }
    }
    rows.concat()
}

#[test]
fn recorded_steps_give_what_the_whole_text_gives() {
    for device in devices() {
        let queue = device.queue;
        let model = model(&queue);
        let rows = vec![vec![1, 2, 3, 4, 5], vec![7, 7, 0, 12, 2]];
        // Past 64 places, and past the block.
        for (count, penalty) in [(85, 1.0), (40, 1.6)] {
            let sampling = Sampling { temperature: 0.0, repetition_penalty: penalty, ..Default::default() };
            let found = model.generate(&tokens(&queue, &rows), count, sampling).unwrap();
            assert_eq!(found.tensor().shape()[..], [2, 5 + count]);
            let expected = slowly(&model, &queue, rows.clone(), count, penalty);
            assert_eq!(found.to_host().unwrap(), expected, "{}, penalty {penalty}", device.device_name);
            if penalty > 1.0 {
                assert_ne!(expected, slowly(&model, &queue, rows.clone(), count, 1.0), "the penalty changes something");
            }
        }
    }
}

#[test]
fn texts_of_different_lengths_go_on_as_each_would_alone() {
    for device in devices() {
        let queue = device.queue;
        let model = model(&queue);
        let texts = [vec![1, 2, 3, 4, 5], vec![7], vec![12, 0, 2]];
        // Past 64 places, and past the block, where the longest text is cut first, while the others still have padding.
        for (count, penalty) in [(85, 1.0), (40, 1.6)] {
            let sampling = Sampling { temperature: 0.0, repetition_penalty: penalty, ..Default::default() };
            let found = model.generate_texts(&texts, count, sampling).unwrap();
            for (found, text) in found.iter().zip(&texts) {
                let expected = slowly(&model, &queue, vec![text.clone()], count, penalty);
                assert_eq!(*found, expected, "{}, penalty {penalty}", device.device_name);
            }
        }
    }
    let model = model(&cpu());
    let why = |texts: &[Vec<i64>]| model.generate_texts(texts, 3, Sampling::default()).unwrap_err().to_string();
    assert!(why(&[vec![1], vec![]]).contains("text 1 is empty"), "{}", why(&[vec![1], vec![]]));
    assert!(why(&[]).contains("at least 1"), "{}", why(&[]));
}

#[test]
fn recorded_steps_with_quantised_weights_do_as_well() {
    for device in devices() {
        let queue = device.queue;
        for bits in [8, 4] {
            let mut model = model(&queue);
            let rows = vec![vec![1, 2, 3, 4, 5], vec![7, 7, 0, 12, 2]];
            let logits = |model: &GPT| model.logits(&tokens(&queue, &rows), None).unwrap().to_f64_vec().unwrap();
            let before = logits(&model);
            let names = quantize(&mut model, &Quantization { bits, group: 32, ..Default::default() }).unwrap();
            assert_eq!(names.len(), 8, "{names:?}");
            let sampling = Sampling { temperature: 0.0, ..Default::default() };
            let found = model.generate(&tokens(&queue, &rows), 30, sampling).unwrap().to_host().unwrap();
            assert_ne!(logits(&model), before, "rounding changes something");
            let expected = slowly(&model, &queue, rows.clone(), 30, 1.0);
            assert_eq!(found, expected, "{}, {bits} bits", device.device_name);
        }
    }
}

#[test]
fn each_step_hands_over_its_tokens_and_may_be_the_last() {
    let queue = cpu();
    let model = model(&queue);
    let start = tokens(&queue, &[vec![1, 2], vec![3, 4]]);
    let sampling = Sampling { top_k: Some(5), seed: Some(3), ..Default::default() };
    let all = model.generate(&start, 9, sampling).unwrap().to_host().unwrap();
    let mut heard = Vec::new();
    let mut each = |more: &[i64]| {
        heard.push(more.to_vec());
        heard.len() < 4
    };
    model.generate_each(&start, 9, sampling, &mut each).unwrap();
    let expected: Vec<Vec<i64>> = (2..6).map(|at| vec![all[at], all[11 + at]]).collect();
    assert_eq!(heard, expected);
}

#[test]
fn draws_have_the_probabilities_of_the_scores() {
    let (rows, scores) = (40_000, [1.0f32, 3.0, 2.0, f32::NEG_INFINITY, 0.0]);
    let shares = |kept: &[usize], temperature: f64| {
        let weight = |token: usize| (f64::from(scores[token]) / temperature).exp();
        let sum: f64 = kept.iter().map(|&token| weight(token)).sum();
        (0..5).map(|token| if kept.contains(&token) { weight(token) / sum } else { 0.0 }).collect::<Vec<f64>>()
    };
    let plain = Sampling { seed: Some(11), ..Default::default() };
    let cases = [
        (plain, shares(&[0, 1, 2, 4], 1.0)),
        (Sampling { temperature: 2.0, ..plain }, shares(&[0, 1, 2, 4], 2.0)),
        (Sampling { top_k: Some(2), ..plain }, shares(&[1, 2], 1.0)),
        // 0.64 alone is not enough, with 0.24 it is.
        (Sampling { top_p: Some(0.8), ..plain }, shares(&[1, 2], 1.0)),
        (Sampling { top_k: Some(3), top_p: Some(0.6), ..plain }, shares(&[1], 1.0)),
    ];
    for device in devices() {
        for dtype in [DType::F32, DType::F16] {
            let row = Tensor::from_host(&device.queue, &scores, [1, 5]).unwrap();
            let logits = expand(&cast(&row, dtype).unwrap(), [rows, 5]).unwrap();
            for (sampling, expected) in &cases {
                let drawn = Sampler::new(*sampling).unwrap().draw(&logits).unwrap();
                for (token, share) in expected.iter().enumerate() {
                    let found = drawn.iter().filter(|&&d| d == token as i64).count() as f64 / rows as f64;
                    // Five deviations.
                    let most = 5.0 * (share * (1.0 - share) / rows as f64).sqrt();
                    assert!(
                        (found - share).abs() <= most,
                        "{}: {sampling:?}: {token} {found} {share}",
                        device.device_name
                    );
                }
            }
        }
    }
}

#[test]
fn a_rotary_step_that_follows_a_place_equals_one_that_counts() {
    let _off = no_grad();
    for device in devices() {
        let queue = device.queue;
        let mut block =
            DecoderBlock::new_with(Build::on(&queue).generator(&mut Generator::new(1)), DecoderBlockOptions::new(8, 2))
                .unwrap();
        block.eval();
        let size = KVCacheOptions { n_layer: 1, batch: 2, n_head: 2, head_dim: 4, capacity: 6 };
        let [counting, following] = [0, 1].map(|_| KVCache::new(&queue, DType::F32, &size).unwrap());
        let x: Vec<f32> = (0..2 * 6 * 8).map(|i| (i as f32 * 0.7).sin()).collect();
        let x = Tensor::from_host(&queue, &x, [2, 6, 8]).unwrap();
        let place = |at: isize| slice(&x, 1, Slice::new(Some(at), Some(at + 1), 1)).unwrap();
        let mut found: [Vec<Tensor>; 2] = Default::default();
        for at in 0..6 {
            found[0].push(block.attend(&place(at), Some((&counting, 0))).unwrap());
            counting.advance(1);
            following.follow(Some(following.place().unwrap()));
            found[1].push(block.attend(&place(at), Some((&following, 0))).unwrap());
            following.follow(None);
            following.advance(1);
        }
        let [a, b] = found.map(|parts| cat(&parts.iter().collect::<Vec<_>>(), 1).unwrap().to_f64_vec().unwrap());
        let apart = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-5, "{}: {apart:e}", device.device_name);
        assert!(following.place().unwrap_err().to_string().contains("KVCache holds 6 places, and all are taken"));
    }
}

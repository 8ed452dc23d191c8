//! A step of generation as a GPU takes it, on every OpenCL device: few launches, the bits of the plain step, the tokens of the whole text.

use std::cell::RefCell;

use netcl::autograd::constants::constant_weights;
use netcl::autograd::no_grad;
use netcl::core::kernel_selector::{KernelConfig, KernelVariant};
use netcl::core::random::Generator;
use netcl::core::tuner::with_forced;
use netcl::nn::{Build, GPT, GPTOptions, KVCache, KVCacheOptions, Sampling};
use netcl::prelude::*;
use netcl::raw_ops::attention::force_split;
use netcl::runtime::capture::capture;

use crate::capture_support::devices;

const OPTIONS: fn() -> GPTOptions = || GPTOptions { n_embd: 64, n_head: 2, n_layer: 2, ..GPTOptions::new(61, 80) };

fn model(queue: &Queue, dtype: DType) -> GPT {
    let mut model = GPT::new_with(Build::on(queue).dtype(dtype).generator(&mut Generator::new(4)), OPTIONS()).unwrap();
    // Scores that differ: as initialised, tokens are all but equally likely.
    for (name, parameter) in model.named_parameters() {
        if !name.ends_with("bias") && parameter.ndim() == 2 {
            parameter.assign(&(&parameter.detach() * 8.0).unwrap()).unwrap();
        }
    }
    model.eval();
    model
}

/// As on a GPU: products of few rows in strips, keys shared by work-groups.
fn as_on_a_gpu<R>(f: impl FnOnce() -> R) -> R {
    let strip = KernelConfig::new(KernelVariant::MatmulStrip);
    with_forced(&strip, || force_split(3, f))
}

#[test]
fn a_step_has_five_launches_for_each_layer_and_the_bits_of_the_plain_one() {
    let _off = no_grad();
    for device in devices().into_iter().filter(|device| device.backend.name() != "cpu") {
        let queue = &device.queue;
        for dtype in [DType::F32, DType::BF16] {
            let model = model(queue, dtype);
            let (length, size) = (5, KVCacheOptions { n_layer: 2, batch: 1, n_head: 2, head_dim: 32, capacity: 80 });
            let [captured, plain] = [0, 1].map(|_| RefCell::new(KVCache::new(queue, dtype, &size).unwrap()));
            let tokens = |tokens: &[i64]| IndexTensor::from_host(queue, tokens, [1, tokens.len()]).unwrap();
            // The first call makes the copies.
            let _weights = constant_weights();
            for cache in [&captured, &plain] {
                model.logits(&tokens(&[1, 2, 3, 4, 5]), Some(&mut cache.borrow_mut())).unwrap();
            }
            let follow = |cache: &RefCell<KVCache>, token: &IndexTensor, place| {
                cache.borrow().follow(Some(place));
                let logits = model.logits(token, Some(&mut cache.borrow_mut()));
                cache.borrow().follow(None);
                logits
            };
            let mut step =
                capture(|(token, place): &(IndexTensor, netcl::nn::Place)| follow(&captured, token, place.clone()));
            for at in 0..4 {
                let token = tokens(&[7 * at + 1]);
                let place = |cache: &RefCell<KVCache>| cache.borrow().place().unwrap();
                let found = as_on_a_gpu(|| step.call(&(token.clone(), place(&captured)))).unwrap();
                let expected = as_on_a_gpu(|| follow(&plain, &token, place(&plain))).unwrap();
                let bits = |t: &Tensor| t.to_f64_vec().unwrap().into_iter().map(f64::to_bits).collect::<Vec<u64>>();
                assert_eq!(bits(&found), bits(&expected), "{} {dtype} token {at}", device.device_name);
                for cache in [&captured, &plain] {
                    cache.borrow().advance(1);
                    assert_eq!(cache.borrow().length(), length + at as usize + 1);
                }
            }
            let names = &step.stats().unwrap().names;
            println!("{}: {dtype}: {} launches: {names:?}", device.device_name, names.len());
            let layer = [
                "layer_norm_matmul_strip",
                "attention_append",
                "matmul_strip_add",
                "layer_norm_matmul_strip_gelu",
                "matmul_strip_add",
            ];
            let layers = layer.into_iter().cycle().take(10);
            let expected: Vec<&str> =
                ["embedding_sum"].into_iter().chain(layers).chain(["layer_norm_matmul_strip"]).collect();
            assert_eq!(*names, expected);
        }
    }
}

#[test]
fn tokens_are_those_of_other_kernels() {
    for device in devices().into_iter().filter(|device| device.backend.name() != "cpu") {
        let queue = &device.queue;
        let model = model(queue, DType::F32);
        let texts = [vec![1, 2, 3, 4, 5], vec![7], vec![12, 0, 2]];
        for (texts, temperature) in [(&texts[..1], 0.0), (&texts[..], 0.0), (&texts[..1], 0.7)] {
            let sampling = Sampling { temperature, seed: Some(5), ..Default::default() };
            let expected = model.generate_texts(texts, 70, sampling).unwrap();
            let found = as_on_a_gpu(|| model.generate_texts(texts, 70, sampling)).unwrap();
            assert_eq!(found, expected, "{}", device.device_name);
        }
    }
}

//! Inference from a safetensors file: weights that somebody else has trained, in a model that is written here.

use netcl::io::{load_weights, save_model};
use netcl::prelude::*;

fn network(queue: &Queue) -> netcl::Result<Sequential> {
    Ok(sequential![Flatten::default(), Linear::new(queue, 64, 64)?, ReLU, Linear::new(queue, 64, 10)?])
}

pub(crate) fn run(queue: &Queue) -> Result<(), Box<dyn std::error::Error>> {
    // Your file comes from elsewhere; names and shapes are those of `netcl inspect model.safetensors`.
    let path = std::env::temp_dir().join(format!("netcl-inference-{}.safetensors", std::process::id()));
    train(queue, &path)?;

    let mut model = network(queue)?;
    load_weights(&path, &mut model)?; // a name or a shape that does not fit is an error that says which
    std::fs::remove_file(&path)?;
    model.eval();

    let _inference = no_grad();
    let test = ImageSplits::digits()?.test;
    let (count, mut right) = (test.len(), 0);
    for batch in on_device(DataLoader::of(test).batch_size(128).build()?.epoch(0)?, queue)? {
        let batch = batch?;
        let images = (Tensor::from(batch.tensor_at(0)?.clone()) * (1.0 / 255.0))?;
        let chances = model.forward(&images)?.softmax(-1)?;
        let guesses = F::argmax(&chances, Some(1), false)?.to_host()?;
        let labels = batch.tensor_at(1)?.to_host::<i64>()?;
        right += guesses.iter().zip(&labels).filter(|(guess, label)| guess == label).count();
    }
    println!("{right} of {count} right");
    if right * 10 < count * 8 {
        return Err("the weights should know the digits".into());
    }
    Ok(())
}

/// Makes the file.
fn train(queue: &Queue, path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    netcl::manual_seed(0);
    let model = network(queue)?;
    let mut opt = AdamW::new(model.parameters(), 1e-2)?;
    let loader = DataLoader::of(ImageSplits::digits()?.train).batch_size(64).shuffle(true).build()?;
    for epoch in 0..4 {
        for batch in on_device(loader.epoch(epoch)?, queue)? {
            let batch = batch?;
            let images = (Tensor::from(batch.tensor_at(0)?.clone()) * (1.0 / 255.0))?;
            let labels = IndexTensor::from_tensor(batch.tensor_at(1)?.clone())?;
            F::cross_entropy(&model.forward(&images)?, &labels)?.backward()?;
            opt.step()?;
            opt.zero_grad();
        }
    }
    Ok(save_model(path, &model, Default::default())?)
}

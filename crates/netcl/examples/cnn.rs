//! A convolutional network, trained by the loop that `netcl train` uses, saved to a file and asked again.
//!
//! `cargo run --release --example cnn`

use netcl::augment::on_device;
use netcl::data::transforms::{Border, Compose, Transform};
use netcl::data::{DataLoader, ImageSet, ImageSplits, Normalization};
use netcl::io::{load_weights, save_model};
use netcl::nn::{BatchNorm2d, Conv2d, Conv2dOptions, Flatten, MaxPool2d, functional as F};
use netcl::optim::AdamW;
use netcl::optim::schedule::{OneCycleLR, OneCycleOptions};
use netcl::prelude::*;
use netcl::trainer::callbacks::Progress;
use netcl::trainer::metric::Accuracy;
use netcl::trainer::trainer::{Loader, Opened, Output, Trainer, TrainerOptions, Truth};

type Batch = (Tensor, IndexTensor);

/// Two convolutions, each followed by pooling: 8x8 pixels become 2x2.
fn network(queue: &Queue) -> netcl::Result<Sequential> {
    let convolution = |inputs, outputs| {
        let options = Conv2dOptions { padding: 1.into(), bias: false, ..Conv2dOptions::new(inputs, outputs, 3) };
        Conv2d::new_with(queue, options)
    };
    Ok(sequential![
        convolution(1, 16)?,
        BatchNorm2d::new(queue, 16)?,
        ReLU,
        MaxPool2d::new(2),
        convolution(16, 32)?,
        BatchNorm2d::new(queue, 32)?,
        ReLU,
        MaxPool2d::new(2),
        Flatten::default(),
        Linear::new(queue, 32 * 2 * 2, 10)?,
    ])
}

/// Batches of images on the device, a new order in each epoch.
fn batches(
    set: ImageSet,
    transforms: Vec<Transform>,
    queue: &Queue,
) -> netcl::trainer::Result<impl Loader<Batch = Batch> + use<>> {
    let changes = Compose::new(transforms)?;
    let loader = DataLoader::of(set).batch_size(32).shuffle(true).transform(changes.on_field(0)).build()?;
    let queue = queue.clone();
    Ok(Opened::new(loader.len(), move |epoch, skipped| {
        let epoch = on_device(loader.epoch(epoch as u64)?, &queue)?;
        Ok(epoch.skip(skipped).map(|batch| {
            let batch = batch?;
            let labels = IndexTensor::from_tensor(batch.tensor_at(1)?.clone())?;
            Ok((Tensor::from(batch.tensor_at(0)?.clone()), labels))
        }))
    }))
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    const EPOCHS: usize = 4;
    let queue = manager().cpu().queue;
    let digits = ImageSplits::digits()?;
    let normalize = Normalization::of(&digits.train).transform(1);
    let model = network(&queue)?;
    println!("{model}\n{} parameters", model.num_parameters());

    let shift = Transform::Crop { size: [8, 8], padding: 1, border: Border::Constant(0.0) };
    let mut train = batches(digits.train, vec![shift, normalize.clone()], &queue)?;
    let mut test = batches(digits.test, vec![normalize], &queue)?;
    let opt = AdamW::new(model.parameters(), 1e-3)?;
    let steps = EPOCHS * train.batches().unwrap_or(1);
    let cycle = OneCycleLR::new(&opt, OneCycleOptions::new(0.01, steps as u64))?;
    let mut trainer = Trainer::new(model, opt, TrainerOptions::default(), |model, (images, labels): &Batch| {
        let scores = model.forward(images)?;
        let loss = F::cross_entropy(&scores, labels)?;
        Ok(Output { loss, predictions: Some((scores, Truth::Index(labels.clone()))) })
    })?
    .schedule(cycle)
    .metric(Accuracy::default(), Accuracy::default())
    .callback(Progress::default().unit("images", 1));
    trainer.fit(&mut train, Some(&mut test), EPOCHS)?;
    let accuracy = trainer.evaluate(&mut test)?["accuracy"];

    let folder = std::env::temp_dir().join(format!("netcl-example-{}", std::process::id()));
    let mut model = trainer.into_model()?;
    save_model(&folder.join("cnn.netcl"), &model, Default::default())?;
    let mut copy = network(&queue)?;
    load_weights(&folder.join("cnn.netcl"), &mut copy)?;
    std::fs::remove_dir_all(&folder)?;
    model.eval();
    copy.eval();
    test.begin(1, 0)?;
    if let Some((images, _)) = test.next_batch()? {
        let same = model.forward(&images)?.to_host::<f32>()? == copy.forward(&images)?.to_host::<f32>()?;
        println!("test accuracy {:.1} %; the same after saving and loading: {same}", accuracy * 100.0);
    }
    if accuracy < 0.93 {
        return Err("the network should have learned more".into());
    }
    Ok(())
}

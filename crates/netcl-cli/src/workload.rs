//! Training steps and inference of known models with random data: what `netcl profile` and `netcl bench` run.

use anyhow::{Context, Result};
use clap::ValueEnum;
use netcl::Tensor;
use netcl::autograd::{Generator, no_grad};
use netcl::core::backend::Queue;
use netcl::core::dtype::DType;
use netcl::core::index::IndexTensor;
use netcl::nn::{Build, GPT, GPTOptions, Module, functional as F};
use netcl::optim::{Adam, Optimizer};
use netcl::raw_ops::random::normal;
use netcl::runtime::capture::{Tensors, capture};
use netcl::trainer::{Architecture, Network};

/// A model that can be run by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// Two hidden layers, images of 28 x 28
    Mlp,
    /// Two convolutions, images of 28 x 28
    Cnn,
    /// ResNet-18 for images of 32 x 32
    Resnet18,
    /// A small GPT: 4 layers of width 128, 64 tokens
    Gpt,
}

/// How a step is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Forward, loss, backward and update, launch by launch
    Train,
    /// The same, recorded once and replayed
    Captured,
    /// The forward pass alone, without gradients
    Infer,
}

const CLASSES: usize = 10;
const VOCABULARY: usize = 96;
const LENGTH: usize = 64;

impl Model {
    pub(crate) const ALL: [Model; 4] = [Model::Mlp, Model::Cnn, Model::Resnet18, Model::Gpt];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Cnn => "cnn",
            Model::Resnet18 => "resnet18",
            Model::Gpt => "gpt",
        }
    }

    /// Examples of a step: few enough for a CPU.
    pub(crate) fn default_batch(self) -> usize {
        match self {
            Model::Mlp | Model::Cnn => 64,
            Model::Resnet18 => 16,
            Model::Gpt => 8,
        }
    }

    /// A step of the model with random weights and data, the same in every run.
    pub(crate) fn step(self, queue: &Queue, batch: usize, mode: Mode) -> Result<Step> {
        let mut generator = Generator::new(2026);
        let labels = |n: usize, classes: usize| {
            let values: Vec<i64> = (0..n).map(|i| (i * 7 % classes) as i64).collect();
            IndexTensor::from_host(queue, &values, [n])
        };
        let network = match self {
            Model::Mlp => Some((Network::Mlp, [1, 28, 28])),
            Model::Cnn => Some((Network::Cnn, [1, 28, 28])),
            Model::Resnet18 => Some((Network::Resnet18, [3, 32, 32])),
            Model::Gpt => None,
        };
        if let Some((network, input)) = network {
            let architecture = Architecture::new(network, &input, CLASSES);
            let mut model = architecture.build(queue, &mut generator)?;
            if mode == Mode::Infer {
                model.eval();
            }
            let shape = [batch, input[0], input[1], input[2]];
            let images = normal(queue, shape, DType::F32, 0.0, 1.0, Some(&mut generator))?;
            let parameters = model.parameters();
            let forward = move |images: &Tensor| model.forward(images);
            return steps(forward, parameters, images.into(), labels(batch, CLASSES)?, mode);
        }
        let settings = GPTOptions { n_embd: 128, n_layer: 4, n_head: 4, ..GPTOptions::new(VOCABULARY, LENGTH) };
        let mut model = GPT::new_with(Build::on(queue).generator(&mut generator), settings)?;
        if mode == Mode::Infer {
            model.eval();
        }
        let tokens: Vec<i64> = (0..batch * LENGTH).map(|i| (i * 31 % VOCABULARY) as i64).collect();
        let tokens = IndexTensor::from_host(queue, &tokens, [batch, LENGTH])?;
        let parameters = model.parameters();
        let forward = move |tokens: &IndexTensor| model.logits(tokens, None);
        steps(forward, parameters, tokens, labels(batch * LENGTH, VOCABULARY)?, mode)
    }
}

/// One step, as often as wanted.
pub(crate) type Step = Box<dyn FnMut() -> netcl::Result<()>>;

fn steps<X>(
    forward: impl Fn(&X) -> netcl::Result<Tensor> + 'static,
    parameters: Vec<Tensor>,
    x: X,
    y: IndexTensor,
    mode: Mode,
) -> Result<Step>
where
    X: 'static,
    (X, IndexTensor): Tensors,
{
    if mode == Mode::Infer {
        return Ok(Box::new(move || {
            let _no_grad = no_grad();
            forward(&x).map(drop)
        }));
    }
    let mut optimizer = Adam::new(parameters, 1e-3).context("the optimizer")?;
    let mut train = move |(x, y): &(X, IndexTensor)| -> netcl::Result<Tensor> {
        let out = forward(x)?;
        let classes = out.shape()[out.ndim() - 1];
        // One row per token of a language model.
        let out = netcl::reshape(&out, [out.size() / classes, classes])?;
        let loss = F::cross_entropy(&out, y)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(loss)
    };
    let inputs = (x, y);
    if mode == Mode::Train {
        return Ok(Box::new(move || train(&inputs).map(drop)));
    }
    let mut captured = capture(train);
    Ok(Box::new(move || captured.call(&inputs).map(drop)))
}

//! A network of three branches with shared weights: its gradients, its training, its state.

use netcl_nn::autograd::{DType, Error, Generator, Queue, Result, Tensor};
use netcl_nn::{functional as F, *};
use netcl_optim::{Optimizer, SGD};

use crate::golden::{cpu, devices};

fn linear_of(dtype: DType, inputs: usize, outputs: usize, seed: u64) -> Linear {
    let mut generator = Generator::new(seed);
    let build = Build::on(&cpu()).dtype(dtype).generator(&mut generator);
    Linear::new_with(build, LinearOptions::new(inputs, outputs)).unwrap()
}

/// Three parts of the input go through one encoder, three heads with one weight but biases of their own, and are mixed.
#[derive(Module)]
struct ThreeBranches {
    encoder: Linear,
    heads: [Linear; 3],
    mix: Tensor,
}

const INPUTS: usize = 2;
const HIDDEN: usize = 4;
const OUTPUTS: usize = 3;

impl ThreeBranches {
    fn new(dtype: DType, seed: u64) -> ThreeBranches {
        let heads = [0, 1, 2].map(|i| linear_of(dtype, HIDDEN, OUTPUTS, seed + i));
        let shared = heads[0].weight().clone();
        let heads = heads.map(|head| Linear::from_parameters(shared.clone(), head.bias().cloned()).unwrap());
        let mix = Tensor::from_host(&cpu(), &[0.5f64, -1.0, 2.0], [3, 1]).unwrap().cast(dtype).unwrap();
        ThreeBranches { encoder: linear_of(dtype, INPUTS, HIDDEN, seed + 9), heads, mix: mix.detach().with_grad() }
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let parts = F::split(input, &[INPUTS; 3], -1)?;
        let branches = parts.iter().zip(&self.heads).enumerate().map(|(i, (part, head))| {
            let hidden = F::tanh(&self.encoder.forward(part)?)?;
            F::mul(&head.forward(&hidden)?, &self.mix.select(0, i as isize)?)
        });
        let branches = branches.collect::<Result<Vec<_>>>()?;
        F::add(&F::add(&branches[0], &branches[1])?, &branches[2])
    }
}

fn batch(dtype: DType, queue: &Queue) -> (Tensor, Tensor) {
    let x: Vec<f64> = (0..5 * 3 * INPUTS).map(|i| ((i * 7 % 13) as f64 - 6.0) / 5.0).collect();
    let y: Vec<f64> = (0..5 * OUTPUTS).map(|i| ((i * 5 % 11) as f64 - 5.0) / 6.0).collect();
    let make = |data: &[f64], width| {
        Tensor::from_host(&cpu(), data, [5, width]).unwrap().cast(dtype).unwrap().to(queue).unwrap()
    };
    (make(&x, 3 * INPUTS), make(&y, OUTPUTS))
}

fn loss(model: &ThreeBranches, x: &Tensor, y: &Tensor) -> Tensor {
    let error = F::sub(&Module::forward(model, x).unwrap(), y).unwrap();
    F::mean(&F::mul(&error, &error).unwrap(), (), false).unwrap()
}

/// The loss in plain f64, from the values by name.
fn plain_loss(state: &[(String, Vec<f64>)]) -> f64 {
    let get = |name: &str| &state.iter().find(|(known, _)| known == name).unwrap().1;
    let (x, y) = batch(DType::F64, &cpu());
    let (x, y) = (x.to_host::<f64>().unwrap(), y.to_host::<f64>().unwrap());
    let mut total = 0.0;
    for row in 0..5 {
        for out in 0..OUTPUTS {
            let mut value = 0.0;
            for branch in 0..3 {
                let mut sum = get(&format!("heads.{branch}.bias"))[out];
                for hidden in 0..HIDDEN {
                    let mut z = get("encoder.bias")[hidden];
                    for input in 0..INPUTS {
                        let at = row * 3 * INPUTS + branch * INPUTS + input;
                        z += get("encoder.weight")[hidden * INPUTS + input] * x[at];
                    }
                    sum += get("heads.0.weight")[out * HIDDEN + hidden] * z.tanh();
                }
                value += get("mix")[branch] * sum;
            }
            total += (value - y[row * OUTPUTS + out]).powi(2);
        }
    }
    total / (5 * OUTPUTS) as f64
}

const NAMES: [&str; 7] =
    ["mix", "encoder.weight", "encoder.bias", "heads.0.weight", "heads.0.bias", "heads.1.bias", "heads.2.bias"];

#[test]
fn shared_weights_get_the_gradients_of_all_branches() {
    let model = ThreeBranches::new(DType::F64, 3);
    let named = model.named_parameters();
    assert_eq!(named.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), NAMES);
    assert_eq!(model.num_parameters(), 3 + 8 + 4 + 12 + 9);
    let state: Vec<(String, Vec<f64>)> =
        named.iter().map(|(name, tensor)| (name.clone(), tensor.to_host::<f64>().unwrap())).collect();
    let (x, y) = batch(DType::F64, &cpu());
    let got = loss(&model, &x, &y);
    assert!((got.item().unwrap() - plain_loss(&state)).abs() < 1e-13);
    got.backward().unwrap();
    let mut exact = Vec::new();
    for (at, (name, tensor)) in named.iter().enumerate() {
        let gradient = tensor.grad().unwrap().to_host::<f64>().unwrap();
        for (i, analytic) in gradient.iter().enumerate() {
            let moved = |step: f64| {
                let mut state = state.clone();
                state[at].1[i] += step;
                plain_loss(&state)
            };
            let numeric = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((analytic - numeric).abs() < 1e-8, "{name}[{i}]: {analytic} for {numeric}");
        }
        exact.push(gradient);
    }
    // In f32 on every device: moving keeps the sharing, so the gradients are the same.
    for device in devices() {
        let mut model = ThreeBranches::new(DType::F64, 3);
        model.cast(DType::F32).unwrap();
        model.to(&device.queue).unwrap();
        let (x, y) = batch(DType::F32, &device.queue);
        loss(&model, &x, &y).backward().unwrap();
        let parameters = model.parameters();
        assert_eq!(parameters.len(), exact.len());
        for ((parameter, exact), name) in parameters.iter().zip(&exact).zip(NAMES) {
            for (a, b) in parameter.grad().unwrap().to_host::<f32>().unwrap().into_iter().zip(exact) {
                assert!((f64::from(a) - b).abs() < 1e-5, "{} {name}: {a} for {b}", device.device_name);
            }
        }
    }
}

#[test]
fn three_branches_train_and_keep_their_state() {
    let model = ThreeBranches::new(DType::F32, 3);
    let (x, y) = batch(DType::F32, &cpu());
    let start = model.state_dict().snapshot().unwrap();
    let first = loss(&model, &x, &y).item().unwrap();
    let mut optimizer = SGD::new(model.parameters(), 0.05).unwrap();
    for _ in 0..400 {
        loss(&model, &x, &y).backward().unwrap();
        optimizer.step().unwrap();
        optimizer.zero_grad();
    }
    let last = loss(&model, &x, &y).item().unwrap();
    assert!(last < 0.1 * first, "{last} after {first}");
    assert!(model.heads.iter().all(|head| head.weight().shares_storage(model.heads[0].weight())));

    // A shared tensor has each of its names in the state, with one storage also in copies.
    let state = model.state_dict().snapshot().unwrap();
    assert_eq!(state.len(), 9);
    assert!(state.get("heads.2.weight").unwrap().shares_storage(state.get("heads.0.weight").unwrap()));
    let fresh = ThreeBranches::new(DType::F32, 77);
    assert!(loss(&fresh, &x, &y).item().unwrap() != last);
    fresh.load_state_dict(&state, Strict::Yes).unwrap();
    assert_eq!(loss(&fresh, &x, &y).item().unwrap(), last);
    // Any one of its names is enough.
    let mut once = start.clone();
    once.remove("heads.0.weight");
    once.remove("heads.2.weight");
    model.load_state_dict(&once, Strict::Yes).unwrap();
    assert_eq!(loss(&model, &x, &y).item().unwrap(), first);
    once.remove("heads.1.weight");
    let error = model.load_state_dict(&once, Strict::Yes).unwrap_err();
    let Error::Custom(mismatch) = error else { panic!("{error}") };
    let mismatch: &StateMismatch = mismatch.downcast_ref().unwrap();
    assert_eq!(mismatch.missing, ["heads.0.weight", "heads.1.weight", "heads.2.weight"]);
}

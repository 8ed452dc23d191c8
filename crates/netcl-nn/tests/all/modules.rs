//! Modules: names, modes, moving, printing, initialisers, activations.

use netcl_nn::autograd::{DType, Generator, Queue, Result, Tensor};
use netcl_nn::init::{Fan, Gain, Init};
use netcl_nn::*;

use crate::golden::{cpu, devices};

fn linear(queue: &Queue, inputs: usize, outputs: usize, bias: bool, dtype: DType, seed: u64) -> Linear {
    let mut generator = Generator::new(seed);
    let build = Build::on(queue).dtype(dtype).generator(&mut generator);
    Linear::new_with(build, LinearOptions { bias, ..LinearOptions::new(inputs, outputs) }).unwrap()
}

fn names(module: &dyn Module) -> Vec<String> {
    module.named_parameters().into_iter().map(|(name, _)| name).collect()
}

/// A module with every kind of member.
struct Everything {
    scale: Tensor,
    shift: Option<Tensor>,
    seen: Tensor,
    first: Linear,
    maybe: Option<Linear>,
    blocks: Vec<Box<dyn Module>>,
    training: bool,
}

impl Module for Everything {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let hidden = functional::mul(&self.first.forward(input)?, &self.scale)?;
        self.blocks.iter().try_fold(hidden, |value, block| block.forward(&value))
    }

    members! {
        parameters: scale, shift;
        buffers: seen;
        children: first, maybe, blocks;
        mode: training;
    }
}

fn everything(queue: &Queue) -> Everything {
    let tied = linear(queue, 3, 3, false, DType::F32, 2);
    Everything {
        scale: Tensor::full(queue, [3], DType::F32, 2.0).unwrap().with_grad(),
        shift: None,
        seen: Tensor::from_shape(queue, [1], DType::F32).unwrap(),
        first: Linear::from_parameters(tied.weight().clone(), None).unwrap(),
        maybe: Some(tied),
        blocks: vec![Box::new(ReLU), Box::new(sequential![linear(queue, 3, 2, true, DType::F32, 3), Tanh])],
        training: true,
    }
}

#[test]
fn members_have_dotted_names_and_shared_ones_appear_once() {
    let module = everything(&cpu());
    assert_eq!(names(&module), ["scale", "first.weight", "blocks.1.0.weight", "blocks.1.0.bias"]);
    assert_eq!(module.named_buffers().len(), 1);
    assert_eq!(module.named_buffers()[0].0, "seen");
    assert_eq!(module.num_parameters(), 3 + 9 + 6 + 2);
    let expected = "Everything(
  (first): Linear(in_features=3, out_features=3, bias=False)
  (maybe): Linear(in_features=3, out_features=3, bias=False)
  (blocks.0): ReLU()
  (blocks.1): Sequential(
    (0): Linear(in_features=3, out_features=2, bias=True)
    (1): Tanh()
  )
)";
    assert_eq!((&module as &dyn Module).to_string(), expected);
}

#[test]
fn modes_reach_every_part() {
    let mut model = sequential![everything(&cpu()), ReLU];
    assert!(model.training() && sequential![ReLU].training());
    model.eval();
    assert!(!model.training());
    model.train();
    assert!(model.training());
}

#[test]
fn moving_keeps_values_gradients_and_sharing() {
    for device in devices() {
        let mut module = everything(&cpu());
        let x = Tensor::from_host(&cpu(), &[0.5f32, -1.0, 2.0], [1, 3]).unwrap();
        let before = module.forward(&x).unwrap();
        before.sum((), false).unwrap().backward().unwrap();
        let grad = module.scale.grad().unwrap().to_host::<f32>().unwrap();
        let kept = module.scale.clone();
        module.to(&device.queue).unwrap();
        assert!(module.parameters().iter().all(|p| p.queue().same_device(&device.queue) && p.requires_grad()));
        assert!(module.seen.queue().same_device(&device.queue) && !module.seen.requires_grad());
        assert_eq!(module.scale.grad().unwrap().to_host::<f32>().unwrap(), grad);
        assert!(
            module.first.weight().shares_storage(module.maybe.as_ref().unwrap().weight()),
            "tied weights stay tied"
        );
        // An optimizer's clone still is the parameter, and finds it where it went.
        assert!(kept.latest().shares_storage(&module.scale));
        assert_eq!(kept.shares_storage(&module.scale), device.queue.same_device(&cpu()));
        let after = module.forward(&x.to(&device.queue).unwrap()).unwrap().to_host::<f32>().unwrap();
        for (a, b) in after.iter().zip(before.to_host::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-5, "{}: {a} for {b}", device.device_name);
        }
        module.zero_grad();
        assert!(module.parameters().iter().all(|p| p.grad().is_none()));
    }
    let mut module = everything(&cpu());
    module.cast(DType::F64).unwrap();
    assert!(module.parameters().iter().all(|p| p.dtype() == DType::F64 && p.requires_grad()));
}

#[test]
fn a_linear_layer_is_the_formula_on_every_device() {
    let mut expected: Option<Vec<f32>> = None;
    for device in devices() {
        let layer = linear(&device.queue, 5, 3, true, DType::F32, 11);
        let (weight, bias) =
            (layer.weight().to_host::<f32>().unwrap(), layer.bias().unwrap().to_host::<f32>().unwrap());
        // Bit-equal weights for one seed on every device, within PyTorch's bounds, and not all alike.
        let both: Vec<f32> = weight.iter().chain(&bias).copied().collect();
        let bound = 1.0 / 5f32.sqrt();
        assert!(both.iter().all(|w| w.abs() <= bound) && both.iter().any(|w| w.abs() > 0.8 * bound));
        assert!(both.iter().any(|&w| w < 0.0) && both.iter().any(|&w| w > 0.0));
        assert_eq!(expected.get_or_insert_with(|| both.clone()), &both, "{}", device.device_name);
        let x: Vec<f32> = (0..20).map(|i| (i as f32 - 9.0) / 8.0).collect();
        let y = layer.forward(&Tensor::from_host(&device.queue, &x, [2, 2, 5]).unwrap()).unwrap();
        assert_eq!(y.shape()[..], [2, 2, 3]);
        for (i, got) in y.to_host::<f32>().unwrap().into_iter().enumerate() {
            let (row, column) = (i / 3, i % 3);
            let exact: f64 = (0..5).map(|k| f64::from(x[row * 5 + k]) * f64::from(weight[column * 5 + k])).sum();
            assert!((f64::from(got) - exact - f64::from(bias[column])).abs() < 1e-6);
        }
    }
    let weight = || Tensor::from_shape(&cpu(), [2, 3], DType::F32).unwrap();
    let error = Linear::from_parameters(weight(), Some(weight())).unwrap_err().to_string();
    assert!(error.contains("weight has shape (2, 3) and bias (2, 3)"), "{error}");
    assert!(Linear::new(&cpu(), 0, 2).is_ok() && Linear::new(&cpu(), 2, 0).is_ok());
}

#[test]
fn activations_are_their_functions() {
    let x = Tensor::from_host(&cpu(), &[-3.5f64, -0.5, 0.25, 7.0], [2, 2]).unwrap();
    let pairs: Vec<(Box<dyn Module>, Result<Tensor>)> = vec![
        (Box::new(ReLU), functional::relu(&x)),
        (Box::new(ReLU6), functional::relu6(&x)),
        (Box::new(LeakyReLU::default()), functional::leaky_relu(&x, 0.01)),
        (Box::new(LeakyReLU { negative_slope: 0.5 }), functional::leaky_relu(&x, 0.5)),
        (Box::new(ELU { alpha: 2.0 }), functional::elu(&x, 2.0)),
        (Box::new(SELU), functional::selu(&x)),
        (Box::new(GELU::default()), functional::gelu(&x)),
        (Box::new(GELU { approximate: Approximation::Tanh }), functional::gelu_tanh(&x)),
        (Box::new(SiLU), functional::silu(&x)),
        (Box::new(Mish), functional::mish(&x)),
        (Box::new(Tanh), functional::tanh(&x)),
        (Box::new(Sigmoid), functional::sigmoid(&x)),
        (Box::new(LogSigmoid), functional::logsigmoid(&x)),
        (Box::new(Softplus { beta: 2.0, threshold: 3.0 }), functional::softplus(&x, 2.0, 3.0)),
        (Box::new(Softsign), functional::softsign(&x)),
        (Box::new(Hardtanh { min_val: -2.0, max_val: 3.0 }), functional::hardtanh(&x, -2.0, 3.0)),
        (Box::new(Hardsigmoid), functional::hardsigmoid(&x)),
        (Box::new(Hardswish), functional::hardswish(&x)),
        (Box::new(Softmax { axis: 0 }), functional::softmax(&x, 0)),
        (Box::new(LogSoftmax::default()), functional::log_softmax(&x, -1)),
    ];
    for (module, expected) in pairs {
        let got = module.forward(&x).unwrap().to_host::<f64>().unwrap();
        assert_eq!(got, expected.unwrap().to_host::<f64>().unwrap(), "{}", module.kind());
        assert!(module.parameters().is_empty());
    }
    assert_eq!(Softplus::default().to_string(), "Softplus(beta=1, threshold=20)");
    assert_eq!(Hardtanh::default().to_string(), "Hardtanh(min_val=-1, max_val=1)");
    assert_eq!(Flatten::default().to_string(), "Flatten(start_dim=1, end_dim=-1)");
}

#[test]
fn initialisers_have_their_deviation() {
    let shape = [300, 20, 2, 5]; // fans 200 and 3000
    let laws = [
        (Init::Uniform { low: -1.0, high: 3.0 }, 1.0, 4.0 / 12f64.sqrt()),
        (Init::Normal { mean: 2.0, std: 0.5 }, 2.0, 0.5),
        (Init::XavierUniform { gain: Gain::Tanh }, 0.0, 5.0 / 3.0 * (2.0 / 3200f64).sqrt()),
        (Init::XavierNormal { gain: Gain::Linear }, 0.0, (2.0 / 3200f64).sqrt()),
        (Init::KaimingUniform { gain: Gain::LeakyRelu(5f64.sqrt()), fan: Fan::In }, 0.0, (1.0 / 600f64).sqrt()),
        (Init::KaimingNormal { gain: Gain::Relu, fan: Fan::Out }, 0.0, (2.0 / 3000f64).sqrt()),
        (Init::Constant(0.25), 0.25, 0.0),
    ];
    for (law, mean, std) in laws {
        let tensor = law.tensor(&cpu(), shape, DType::F32, Some(&mut Generator::new(5))).unwrap();
        let values = tensor.to_f64_vec().unwrap();
        let n = values.len() as f64;
        let got_mean = values.iter().sum::<f64>() / n;
        let got_std = (values.iter().map(|v| (v - got_mean).powi(2)).sum::<f64>() / n).sqrt();
        assert!((got_mean - mean).abs() <= 5.0 * std / n.sqrt() && (got_std - std).abs() <= 0.01 * std, "{law:?}");
        if let Init::KaimingUniform { .. } | Init::XavierUniform { .. } = law {
            let largest = values.iter().fold(0f64, |a, v| a.max(v.abs()));
            assert!(largest <= std * 3f64.sqrt() * (1.0 + 1e-6) && largest > 0.99 * std * 3f64.sqrt(), "{law:?}");
        }
    }
    let parameter = Tensor::from_shape(&cpu(), [4, 4], DType::F32).unwrap().with_grad();
    let before = parameter.version();
    Init::Constant(3.0).fill(&parameter, None).unwrap();
    assert!(parameter.version() > before && parameter.is_leaf());
    assert_eq!(parameter.to_host::<f32>().unwrap(), [3.0; 16]);
    let error = Init::XavierNormal { gain: Gain::Linear }.tensor(&cpu(), [3], DType::F32, None).unwrap_err();
    assert!(error.to_string().contains("at least two axes"), "{error}");
    assert!(Gain::parse("swoosh", 0.0).unwrap_err().to_string().contains("swoosh"));
    assert_eq!((Gain::parse("leaky_relu", 1.0).unwrap().factor(), Fan::parse("fan_out").unwrap()), (1.0, Fan::Out));
}

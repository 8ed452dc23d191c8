//! Losses: PyTorch's values and gradients (golden/losses.json), finite differences of every loss and option, extremes, errors.

mod labels;

use std::collections::BTreeMap;
use std::rc::Rc;

use netcl_autograd::gradcheck::{Tolerance, gradcheck, gradgradcheck};
use netcl_autograd::graph::BackwardOptions;
use netcl_autograd::ops::elementwise::{log, mul, sigmoid};
use netcl_autograd::ops::loss::{
    BceOptions, BceWithLogitsOptions, CosineEmbeddingOptions, CrossEntropyOptions, GaussianNllOptions,
    HingeEmbeddingOptions, HuberOptions, KlDivOptions, MarginRankingOptions, MultiMarginOptions,
    MultilabelSoftMarginOptions, NllOptions, PoissonNllOptions, Reduction, SmoothL1Options, TripletMarginOptions,
    binary_cross_entropy, binary_cross_entropy_with_logits, cosine_embedding_loss, cross_entropy, gaussian_nll_loss,
    hinge_embedding_loss, huber_loss, kl_div, l1_loss, margin_ranking_loss, mse_loss, multi_margin_loss,
    multilabel_margin_loss, multilabel_soft_margin_loss, nll_loss, pick, poisson_nll_loss, smooth_l1_loss,
    soft_margin_loss, triplet_margin_loss, unpick,
};
use netcl_autograd::ops::reduce::sum;
use netcl_autograd::{Result, Tensor, grad};
use netcl_core::backend::Queue;
use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_core::random::{Generator, fill_uniform_f64};
use netcl_core::tensor::HostOptions;
use serde_json::Value;

use crate::support::{cpu, devices};

/// Whether kernels are so slow to build that a sample of them must do.
fn slow_compiler(device: &DeviceHandle) -> bool {
    device.platform_name.contains("Portable")
}

fn tensor(queue: &Queue, values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    Tensor::from_host_with(queue, values, shape, options).unwrap()
}

fn f64s(values: &[f64], shape: &[usize]) -> Tensor {
    tensor(&cpu(), values, shape, DType::F64)
}

fn random(shape: &[usize], seed: u64, (low, high): (f64, f64)) -> Tensor {
    let mut values = vec![0.0; shape.iter().product()];
    fill_uniform_f64(&mut values, &Generator::new(seed)).unwrap();
    f64s(&values.into_iter().map(|u| low + u * (high - low)).collect::<Vec<_>>(), shape).with_grad()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_f64_vec().unwrap()
}

/// Equal but for a relative and absolute difference; NaN equals NaN.
fn close(got: &[f64], expected: &[f64], tolerance: f64) -> std::result::Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{} values instead of {}", got.len(), expected.len()));
    }
    let differs =
        |(g, e): (&f64, &f64)| !(g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= tolerance * (1.0 + e.abs()));
    match got.iter().zip(expected).position(differs) {
        None => Ok(()),
        Some(i) => Err(format!("value {i} is {:e}, expected {:e}", got[i], expected[i])),
    }
}

// ---- golden values ----------------------------------------------------------------------------------------------------

struct Golden {
    tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
    cases: Vec<Value>,
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect()
}

fn shape_of(value: &Value) -> Vec<usize> {
    numbers(value).into_iter().map(|n| n as usize).collect()
}

fn golden() -> Golden {
    let mut all: Value = serde_json::from_str(include_str!("golden/losses.json")).unwrap();
    let tensors = all["tensors"].as_object().unwrap().iter();
    let tensors = tensors.map(|(name, t)| (name.clone(), (shape_of(&t["shape"]), numbers(&t["data"])))).collect();
    Golden { tensors, cases: all["cases"].as_array_mut().unwrap().drain(..).collect() }
}

impl Golden {
    fn tensor(&self, name: &str, queue: &Queue, dtype: DType) -> Tensor {
        let (shape, data) = &self.tensors[name];
        tensor(queue, data, shape, dtype)
    }

    /// The loss of a case on these inputs, which stand in for the case's own.
    fn run(&self, case: &Value, inputs: &[&Tensor]) -> Result<Tensor> {
        let options = &case["options"];
        let (queue, dtype) = (inputs[0].queue(), inputs[0].dtype());
        let option = |name: &str| options[name].as_str().map(|name| self.tensor(name, queue, dtype));
        let number = |name: &str, default: f64| options[name].as_f64().unwrap_or(default);
        let flag = |name: &str| options[name].as_bool().unwrap_or(false);
        let named = options["reduction"].as_str().unwrap_or("mean");
        let reduction = if named == "batchmean" { Reduction::Mean } else { Reduction::parse(named)? };
        let ignore_index = Some(options["ignore_index"].as_i64().unwrap_or(-100));
        let target = case["inputs"].as_array().unwrap().last().unwrap().as_str().unwrap();
        let labels: Vec<i64> = self.tensors[target].1.iter().map(|&v| v as i64).collect();
        let classes = target.starts_with("labels");
        match case["loss"].as_str().unwrap() {
            "cross_entropy" => {
                let label_smoothing = number("label_smoothing", 0.0);
                let options =
                    CrossEntropyOptions { weight: option("weight"), ignore_index, label_smoothing, reduction };
                if classes {
                    cross_entropy(inputs[0], &labels, &options)
                } else {
                    cross_entropy(inputs[0], inputs[1], &options)
                }
            }
            "nll_loss" => {
                nll_loss(inputs[0], &labels, &NllOptions { weight: option("weight"), ignore_index, reduction })
            }
            "mse_loss" => mse_loss(inputs[0], inputs[1], reduction),
            "l1_loss" => l1_loss(inputs[0], inputs[1], reduction),
            "smooth_l1_loss" => {
                smooth_l1_loss(inputs[0], inputs[1], &SmoothL1Options { beta: number("beta", 1.0), reduction })
            }
            "huber_loss" => huber_loss(inputs[0], inputs[1], &HuberOptions { delta: number("delta", 1.0), reduction }),
            "binary_cross_entropy" => {
                binary_cross_entropy(inputs[0], inputs[1], &BceOptions { weight: option("weight"), reduction })
            }
            "binary_cross_entropy_with_logits" => {
                let options =
                    BceWithLogitsOptions { weight: option("weight"), pos_weight: option("pos_weight"), reduction };
                binary_cross_entropy_with_logits(inputs[0], inputs[1], &options)
            }
            "kl_div" => {
                let options =
                    KlDivOptions { log_target: flag("log_target"), batch_mean: named == "batchmean", reduction };
                kl_div(inputs[0], inputs[1], &options)
            }
            "cosine_embedding_loss" => {
                let options = CosineEmbeddingOptions { margin: number("margin", 0.0), reduction };
                cosine_embedding_loss(inputs[0], inputs[1], inputs[2], &options)
            }
            "triplet_margin_loss" => {
                let options = TripletMarginOptions {
                    margin: number("margin", 1.0),
                    p: number("p", 2.0),
                    eps: number("eps", 1e-6),
                    swap: flag("swap"),
                    reduction,
                };
                triplet_margin_loss(inputs[0], inputs[1], inputs[2], &options)
            }
            "margin_ranking_loss" => {
                let options = MarginRankingOptions { margin: number("margin", 0.0), reduction };
                margin_ranking_loss(inputs[0], inputs[1], inputs[2], &options)
            }
            "hinge_embedding_loss" => {
                let options = HingeEmbeddingOptions { margin: number("margin", 1.0), reduction };
                hinge_embedding_loss(inputs[0], inputs[1], &options)
            }
            "soft_margin_loss" => soft_margin_loss(inputs[0], inputs[1], reduction),
            "multi_margin_loss" => {
                let (p, margin) = (number("p", 1.0) as u32, number("margin", 1.0));
                let options = MultiMarginOptions { p, margin, weight: option("weight"), reduction };
                multi_margin_loss(inputs[0], &labels, &options)
            }
            "multilabel_margin_loss" => {
                let labels = IndexTensor::from_host(queue, &labels, inputs[0].shape().clone())?;
                multilabel_margin_loss(inputs[0], &labels, reduction)
            }
            "multilabel_soft_margin_loss" => {
                let options = MultilabelSoftMarginOptions { weight: option("weight"), reduction };
                multilabel_soft_margin_loss(inputs[0], inputs[1], &options)
            }
            "poisson_nll_loss" => {
                let log_input = options["log_input"].as_bool().unwrap_or(true);
                let options = PoissonNllOptions { log_input, full: flag("full"), eps: number("eps", 1e-8), reduction };
                poisson_nll_loss(inputs[0], inputs[1], &options)
            }
            "gaussian_nll_loss" => {
                let options = GaussianNllOptions { full: flag("full"), eps: number("eps", 1e-6), reduction };
                gaussian_nll_loss(inputs[0], inputs[1], inputs[2], &options)
            }
            other => panic!("{other}"),
        }
    }

    /// Holds values and gradients of a case against PyTorch's.
    fn check(&self, case: &Value, queue: &Queue, dtype: DType, tolerance: f64) -> std::result::Result<(), String> {
        let names: Vec<&str> = case["inputs"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        let inputs: Vec<Tensor> = names.iter().map(|name| self.tensor(name, queue, dtype)).collect();
        let wanted = case["grads"].as_object().unwrap();
        for (name, input) in names.iter().zip(&inputs) {
            input.set_requires_grad(wanted.contains_key(*name)).unwrap();
        }
        let loss = self.run(case, &inputs.iter().collect::<Vec<_>>()).map_err(|e| e.to_string())?;
        if loss.shape().to_vec() != shape_of(&case["shape"]) || loss.dtype() != dtype {
            return Err(format!("shape {} dtype {}", loss.shape(), loss.dtype()));
        }
        close(&values(&loss), &numbers(&case["value"]), tolerance)?;
        let upstream: Vec<f64> = (0..loss.size()).map(|i| ((i % 5) as f64 + 1.0) / 4.0).collect();
        let upstream = if loss.ndim() == 0 { vec![1.0] } else { upstream };
        let upstream = tensor(queue, &upstream, loss.shape(), dtype);
        loss.backward_with(Some(&upstream), BackwardOptions::default()).map_err(|e| e.to_string())?;
        for (name, input) in names.iter().zip(&inputs) {
            if let Some(expected) = wanted.get(*name) {
                let got = input.grad().ok_or_else(|| format!("no gradient of {name}"))?;
                close(&values(&got), &numbers(expected), tolerance).map_err(|e| format!("gradient of {name}: {e}"))?;
            }
        }
        Ok(())
    }
}

fn describe(case: &Value) -> String {
    format!("{} of {} with {}", case["loss"], case["inputs"], case["options"])
}

#[test]
fn as_pytorch_in_f64() {
    let golden = golden();
    assert!(golden.cases.len() >= 95, "{} cases", golden.cases.len());
    for case in &golden.cases {
        // PyTorch keeps the smallest divisor of this gradient as a float32.
        let tolerance = if case["inputs"][0] == "edge" { 1e-8 } else { 1e-11 };
        golden.check(case, &cpu(), DType::F64, tolerance).unwrap_or_else(|e| panic!("{}: {e}", describe(case)));
    }
}

#[test]
fn as_pytorch_in_f32_on_every_device() {
    let golden = golden();
    for device in devices() {
        for case in &golden.cases {
            // A sample with every loss, and every option of one, where a kernel takes up to a second to build.
            let options = case["options"].as_object().unwrap();
            let plain = options.iter().all(|(name, value)| name == "reduction" && value == "mean");
            if slow_compiler(&device) && !plain && case["inputs"][0] != "image" {
                continue;
            }
            let check = golden.check(case, &device.queue, DType::F32, 3e-6);
            check.unwrap_or_else(|e| panic!("{}: {}: {e}", device.device_name, describe(case)));
        }
    }
}

// ---- finite differences -----------------------------------------------------------------------------------------------

/// The case's inputs away from bends and edges; `None` for cases that are about nothing else.
fn smooth(golden: &Golden, case: &Value) -> Option<Vec<Tensor>> {
    let names = case["inputs"].as_array().unwrap().iter().map(|n| n.as_str().unwrap());
    let mut inputs = Vec::new();
    for (seed, name) in names.enumerate() {
        let (shape, _) = &golden.tensors[name];
        let range = match name {
            "edge" | "huge" | "labels_ignored" => return None,
            "input" | "target" | "better" | "worse" => (-2.0, 2.0),
            "score" => (-3.0, 3.0),
            // Stirling's approximation begins above 1, with a jump.
            "count" => (1.5, 6.0),
            "truth" | "q" | "soft" => (0.1, 0.9),
            _ => {
                inputs.push(golden.tensor(name, &cpu(), DType::F64));
                continue;
            }
        };
        inputs.push(random(shape, 31 + seed as u64, range));
    }
    Some(inputs)
}

#[test]
fn finite_differences_of_every_loss_and_option() {
    let golden = golden();
    let mut checked = 0;
    for case in &golden.cases {
        // A variance that is held at eps has a gradient, which differences do not see.
        if case["options"]["eps"] == 1.0 {
            continue;
        }
        let Some(inputs) = smooth(&golden, case) else { continue };
        let names: Vec<&str> = case["inputs"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        let constant = |name: &str| name.starts_with("labels") || name.starts_with("sign");
        let varied: Vec<&Tensor> = inputs.iter().zip(&names).filter(|(_, n)| !constant(n)).map(|(t, _)| t).collect();
        varied.iter().for_each(|t| t.set_requires_grad(true).unwrap());
        // Constants come last in every loss.
        let function = |given: &[&Tensor]| {
            let all: Vec<&Tensor> = given.iter().copied().chain(&inputs[given.len()..]).collect();
            golden.run(case, &all)
        };
        gradcheck(function, &varied, Tolerance::default()).unwrap_or_else(|e| panic!("{}: {e}", describe(case)));
        checked += 1;
        let tolerance = Tolerance { eps: 1e-5, atol: 1e-4, rtol: 1e-3 };
        gradgradcheck(function, &varied, tolerance).unwrap_or_else(|e| panic!("{} twice: {e}", describe(case)));
    }
    assert!(checked >= 80, "{checked} cases");
}

#[test]
fn gradients_of_weights() {
    let (p, t) = (random(&[2, 3], 1, (0.1, 0.9)), random(&[2, 3], 2, (0.1, 0.9)));
    let (w, pos) = (random(&[2, 1], 3, (0.5, 2.0)), random(&[3], 4, (0.5, 2.0)));
    for reduction in [Reduction::None, Reduction::Mean] {
        let bce =
            |x: &[&Tensor]| binary_cross_entropy(x[0], x[1], &BceOptions { weight: Some(x[2].clone()), reduction });
        gradcheck(bce, &[&p, &t, &w], Tolerance::default()).unwrap();
        let logits = |x: &[&Tensor]| {
            let options =
                BceWithLogitsOptions { weight: Some(x[2].clone()), pos_weight: Some(x[3].clone()), reduction };
            binary_cross_entropy_with_logits(x[0], x[1], &options)
        };
        gradcheck(logits, &[&p, &t, &w, &pos], Tolerance::default()).unwrap();
        let soft = |x: &[&Tensor]| {
            let options = CrossEntropyOptions { weight: Some(x[2].clone()), reduction, ..Default::default() };
            cross_entropy(x[0], x[1], &options)
        };
        gradcheck(soft, &[&p, &t, &pos], Tolerance::default()).unwrap();
    }
}

#[test]
fn pick_and_unpick_are_each_others_gradient() {
    let labels = IndexTensor::from_host(&cpu(), &[2i32, 0, -7, 1, 1, 2], [2, 3]).unwrap();
    let (x, y) = (random(&[2, 4, 3], 1, (-1.0, 1.0)), random(&[2, 3], 2, (-1.0, 1.0)));
    let squared = |t: &Tensor| mul(t, t);
    gradcheck(|t| pick(t[0], 1, &labels, Some(-7)), &[&x], Tolerance::default()).unwrap();
    gradcheck(|t| unpick(t[0], 1, &labels, 4, Some(-7)), &[&y], Tolerance::default()).unwrap();
    let second = Tolerance { eps: 1e-5, atol: 1e-4, rtol: 1e-3 };
    gradgradcheck(|t| squared(&pick(t[0], 1, &labels, Some(-7))?), &[&x], second).unwrap();
    gradgradcheck(|t| squared(&unpick(t[0], 1, &labels, 4, Some(-7))?), &[&y], second).unwrap();
    // The definition of an adjoint.
    let dot = |a: &Tensor, b: &Tensor| sum(&mul(a, b).unwrap(), (), false).unwrap().item().unwrap();
    let forth = dot(&pick(&x, 1, &labels, Some(-7)).unwrap(), &y);
    let back = dot(&x, &unpick(&y, 1, &labels, 4, Some(-7)).unwrap());
    assert!((forth - back).abs() < 1e-14, "{forth} {back}");
}

// ---- extremes ---------------------------------------------------------------------------------------------------------

#[test]
fn logits_of_ten_thousand() {
    for device in devices() {
        let queue = &device.queue;
        let make = |values: &[f64], shape: &[usize]| tensor(queue, values, shape, DType::F32).with_grad();
        let options = BackwardOptions { create_graph: true, retain_graph: true };
        let first = |loss: &Tensor, x: &Tensor| grad(&[loss], &[x], &[], options).unwrap().remove(0).unwrap();
        let second = |first: &Tensor, x: &Tensor| {
            // Second derivatives have many kernels of their own.
            if slow_compiler(&device) {
                return vec![0.0; x.size()];
            }
            let squares = sum(&mul(first, first).unwrap(), (), false).unwrap();
            values(&grad(&[&squares], &[x], &[], BackwardOptions::default()).unwrap().remove(0).unwrap())
        };
        // Both sides of a certain decision, right and wrong; the second derivative is 0 there, not NaN.
        let x = make(&[1e4, -1e4, -1e4, 1e4], &[2, 2]);
        let loss = cross_entropy(&x, &[0, 0], &CrossEntropyOptions::default()).unwrap();
        assert_eq!(loss.item().unwrap(), 1e4, "{device:?}");
        let slope = first(&loss, &x);
        assert_eq!(values(&slope), [0.0, 0.0, -0.5, 0.5], "{device:?}");
        assert_eq!(second(&slope, &x), [0.0; 4], "{device:?}");

        let x = make(&[1e4, -1e4, 1e4, -1e4, 50.0, -50.0], &[6]);
        let t = tensor(queue, &[1.0, 1.0, 0.0, 0.0, 1.0, 0.0], &[6], DType::F32);
        let options = BceWithLogitsOptions { reduction: Reduction::None, ..Default::default() };
        let loss = binary_cross_entropy_with_logits(&x, &t, &options).unwrap();
        // Not even a tiny loss is lost.
        let tiny = (-50f64).exp();
        close(&values(&loss), &[0.0, 1e4, 1e4, 0.0, tiny, tiny], 1e-6).unwrap();
        assert!((values(&loss)[4] / tiny - 1.0).abs() < 1e-5 && (values(&loss)[5] / tiny - 1.0).abs() < 1e-5);
        let total = sum(&loss, (), false).unwrap();
        let slope = first(&total, &x);
        close(&values(&slope), &[0.0, -1.0, 1.0, 0.0, -tiny, tiny], 1e-6).unwrap();
        let bend = second(&slope, &x);
        assert!(bend.iter().all(|v| v.abs() < 1e-6), "{device:?} {bend:?}");

        let (a, b) = (make(&[1e4, -1e4, 1e4], &[1, 3]), make(&[-1e4, 1e4, 1e4], &[1, 3]));
        let y = tensor(queue, &[1.0], &[1], DType::F32);
        let loss = cosine_embedding_loss(&a, &b, &y, &CosineEmbeddingOptions::default()).unwrap();
        assert!((loss.item().unwrap() - 4.0 / 3.0).abs() < 1e-6, "{device:?}");
        loss.backward().unwrap();
        assert!(values(&a.grad().unwrap()).iter().all(|v| v.is_finite() && v.abs() < 1e-3), "{device:?}");
    }
}

#[test]
fn zero_vectors_equal_vectors_and_no_rows() {
    let zeros = f64s(&[0.0; 4], &[2, 2]).with_grad();
    let other = f64s(&[1.0, 2.0, 0.0, 0.0], &[2, 2]);
    let sign = f64s(&[1.0, -1.0], &[2]);
    cosine_embedding_loss(&zeros, &other, &sign, &CosineEmbeddingOptions::default()).unwrap().backward().unwrap();
    assert!(values(&zeros.grad().unwrap()).iter().all(|v| v.is_finite()));
    zeros.set_grad(None);
    triplet_margin_loss(&zeros, &zeros.detach(), &other, &TripletMarginOptions::default()).unwrap().backward().unwrap();
    assert!(values(&zeros.grad().unwrap()).iter().all(|v| v.is_finite()));
    // PyTorch: the mean of nothing is NaN, the sum 0.
    let none = f64s(&[], &[0, 3]);
    let options = CrossEntropyOptions::default();
    assert!(cross_entropy(&none, &[], &options).unwrap().item().unwrap().is_nan());
    let options = CrossEntropyOptions { reduction: Reduction::Sum, ..options };
    assert_eq!(cross_entropy(&none, &[], &options).unwrap().item().unwrap(), 0.0);
    assert!(mse_loss(&none, &none, Reduction::Mean).unwrap().item().unwrap().is_nan());
}

#[test]
fn certain_and_wrong_probabilities_still_learn() {
    let p = f64s(&[0.0, 1.0], &[2]).with_grad();
    let t = f64s(&[1.0, 0.0], &[2]);
    let options = BceOptions { reduction: Reduction::Sum, ..Default::default() };
    let loss = binary_cross_entropy(&p, &t, &options).unwrap();
    assert_eq!(loss.item().unwrap(), 200.0);
    loss.backward().unwrap();
    assert_eq!(values(&p.grad().unwrap()), [-1e12, 1e12]);
    let outside = f64s(&[1.5, -0.5], &[2]);
    let refused = binary_cross_entropy(&outside, &t, &options).unwrap_err().to_string();
    assert!(refused.contains("element 0 of the input is 1.5"), "{refused}");
}

#[test]
fn sixteen_bits_are_reduced_in_f32() {
    for device in devices() {
        // Both take the same path; only the sum of float16 can overflow.
        let native = device.backend.name() == "cpu";
        let dtypes: &[DType] = if native { &[DType::F16, DType::BF16] } else { &[DType::F16] };
        for &dtype in dtypes {
            // 20000 rows of about 9: their sum does not fit a float16, their mean does.
            let (n, c) = (20_000, 4);
            let rows: Vec<f64> = (0..n * c).map(|i| if i % c == 0 { -9.0 } else { 0.0 }).collect();
            let logits = tensor(&device.queue, &rows, &[n, c], dtype).with_grad();
            let labels = vec![0i64; n];
            let one_hot: Vec<f64> = (0..n * c).map(|i| f64::from(i % c == 0)).collect();
            let one_hot = tensor(&device.queue, &one_hot, &[n, c], dtype);
            let expected = (-9f64).exp().mul_add(1.0, 3.0).ln() + 9.0;
            let smoothings: &[f64] = if slow_compiler(&device) { &[0.0] } else { &[0.0, 0.25] };
            for &smoothing in smoothings {
                let expected = (1.0 - smoothing) * expected + smoothing * (expected - 9.0 + 2.25);
                let options = CrossEntropyOptions { label_smoothing: smoothing, ..Default::default() };
                for loss in [cross_entropy(&logits, &labels, &options), cross_entropy(&logits, &one_hot, &options)] {
                    let loss = loss.unwrap();
                    assert_eq!(loss.dtype(), dtype);
                    let got = loss.item().unwrap();
                    assert!((got / expected - 1.0).abs() < 2e-2, "{device:?} {dtype} {smoothing}: {got} {expected}");
                }
            }
        }
    }
}

#[test]
fn few_launches() {
    let x = random(&[8, 5], 1, (-1.0, 1.0));
    let launches = |f: &dyn Fn() -> Result<Tensor>| {
        let counter = Rc::new(Counter::default());
        with_sink(counter.clone(), || f().unwrap());
        counter.names().into_iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
    };
    let labels = [0, 1, 2, 3, 4, 0, 1, 2];
    let ce = || cross_entropy(&x, &labels, &CrossEntropyOptions::default());
    assert_eq!(launches(&ce), "cross_entropy 1");
    assert_eq!(launches(&|| mse_loss(&x, &x, Reduction::Mean)), "mean 1, mse_loss 1");
    let bce = || binary_cross_entropy_with_logits(&x, &x, &BceWithLogitsOptions::default());
    assert_eq!(launches(&bce), "binary_cross_entropy_with_logits 1, mean 1");
    let weight = Some(random(&[5], 2, (0.5, 1.0)));
    let p = sigmoid(&x).unwrap();
    let bce = || binary_cross_entropy(&p, &p, &BceOptions { weight: weight.clone(), ..Default::default() });
    assert_eq!(launches(&bce), "binary_cross_entropy 1, mean 1");
    let kl = || kl_div(&log(&p)?, &p, &KlDivOptions::default());
    assert_eq!(launches(&kl), "kl_div 1, log 1, mean 1");
}

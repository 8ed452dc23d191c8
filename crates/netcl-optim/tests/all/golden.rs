//! Fifty steps of every optimizer and schedule beside PyTorch's (golden/optimizers.json, made by the script next to it).

use netcl_autograd::Tensor;
use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_optim::schedule::{
    Anneal, Better, ChainedScheduler, ConstantLR, CosineAnnealingLR, CosineAnnealingWarmRestarts, Cycle, CyclicLR,
    CyclicOptions, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, MultiplicativeLR, OneCycleLR, OneCycleOptions,
    PlateauOptions, PolynomialLR, ReduceLROnPlateau, SequentialLR, StepLR, Threshold, WarmupCosine,
};
use netcl_optim::{
    ASGD, Adadelta, AdadeltaOptions, Adagrad, AdagradOptions, Adam, AdamOptions, AdamW, AdamWOptions, Adamax,
    AdamaxOptions, AsgdOptions, Lion, LionOptions, NAdam, NAdamOptions, Optimizer, RAdam, RAdamOptions, RMSProp,
    RmsPropOptions, Rprop, RpropOptions, SGD, Schedule, SgdOptions, clip_grad_norm, clip_grad_value,
};
use serde_json::Value;

use crate::support::{cpu, devices, formula, has_double, numbers, sizes, tensor, worst};

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/optimizers.json")).unwrap()
}

/// An optimizer's settings with PyTorch's defaults.
struct Settings<'a>(&'a Value);

impl Settings<'_> {
    fn number(&self, key: &str, default: f64) -> f64 {
        self.0.get(key).map_or(default, |value| value.as_f64().unwrap())
    }

    fn flag(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|value| value.as_bool().unwrap())
    }

    fn count(&self, key: &str) -> u64 {
        self.0[key].as_u64().unwrap()
    }

    fn betas(&self) -> (f64, f64) {
        self.pair("betas", (0.9, 0.999))
    }

    fn pair(&self, key: &str, default: (f64, f64)) -> (f64, f64) {
        self.0.get(key).map(numbers).map_or(default, |pair| (pair[0], pair[1]))
    }
}

fn optimizer(case: &Value, params: Vec<Tensor>) -> Box<dyn Optimizer> {
    let s = Settings(&case["options"]);
    let (lr, weight_decay, maximize) = (s.number("lr", 0.0), s.number("weight_decay", 0.0), s.flag("maximize"));
    match case["optimizer"].as_str().unwrap() {
        "SGD" => {
            let (momentum, dampening) = (s.number("momentum", 0.0), s.number("dampening", 0.0));
            let nesterov = s.flag("nesterov");
            let options = SgdOptions { lr, momentum, dampening, weight_decay, nesterov, maximize };
            Box::new(SGD::new_with(params, options).unwrap())
        }
        "Adam" => {
            let (betas, eps, amsgrad) = (s.betas(), s.number("eps", 1e-8), s.flag("amsgrad"));
            let options = AdamOptions { lr, betas, eps, weight_decay, amsgrad, maximize };
            Box::new(Adam::new_with(params, options).unwrap())
        }
        "AdamW" => {
            let (betas, eps, amsgrad) = (s.betas(), s.number("eps", 1e-8), s.flag("amsgrad"));
            let weight_decay = s.number("weight_decay", 0.01);
            let options = AdamWOptions { lr, betas, eps, weight_decay, amsgrad, maximize };
            Box::new(AdamW::new_with(params, options).unwrap())
        }
        "RMSprop" => {
            let (alpha, eps, momentum) = (s.number("alpha", 0.99), s.number("eps", 1e-8), s.number("momentum", 0.0));
            let centered = s.flag("centered");
            let options = RmsPropOptions { lr, alpha, eps, weight_decay, momentum, centered, maximize };
            Box::new(RMSProp::new_with(params, options).unwrap())
        }
        "Adagrad" => {
            let (lr_decay, eps) = (s.number("lr_decay", 0.0), s.number("eps", 1e-10));
            let initial_accumulator_value = s.number("initial_accumulator_value", 0.0);
            let options = AdagradOptions { lr, lr_decay, weight_decay, initial_accumulator_value, eps, maximize };
            Box::new(Adagrad::new_with(params, options).unwrap())
        }
        "NAdam" => {
            let (betas, eps, momentum_decay) = (s.betas(), s.number("eps", 1e-8), s.number("momentum_decay", 4e-3));
            let decoupled_weight_decay = s.flag("decoupled_weight_decay");
            let options =
                NAdamOptions { lr, betas, eps, weight_decay, momentum_decay, decoupled_weight_decay, maximize };
            Box::new(NAdam::new_with(params, options).unwrap())
        }
        "RAdam" => {
            let (betas, eps) = (s.betas(), s.number("eps", 1e-8));
            let decoupled_weight_decay = s.flag("decoupled_weight_decay");
            let options = RAdamOptions { lr, betas, eps, weight_decay, decoupled_weight_decay, maximize };
            Box::new(RAdam::new_with(params, options).unwrap())
        }
        "Adamax" => {
            let options = AdamaxOptions { lr, betas: s.betas(), eps: s.number("eps", 1e-8), weight_decay, maximize };
            Box::new(Adamax::new_with(params, options).unwrap())
        }
        "Adadelta" => {
            let (rho, eps) = (s.number("rho", 0.9), s.number("eps", 1e-6));
            Box::new(Adadelta::new_with(params, AdadeltaOptions { lr, rho, eps, weight_decay, maximize }).unwrap())
        }
        "Lion" => {
            let betas = s.pair("betas", (0.9, 0.99));
            Box::new(Lion::new_with(params, LionOptions { lr, betas, weight_decay, maximize }).unwrap())
        }
        "Rprop" => {
            let (etas, step_sizes) = (s.pair("etas", (0.5, 1.2)), s.pair("step_sizes", (1e-6, 50.0)));
            Box::new(Rprop::new_with(params, RpropOptions { lr, etas, step_sizes, maximize }).unwrap())
        }
        "ASGD" => {
            let (lambd, alpha, t0) = (s.number("lambd", 1e-4), s.number("alpha", 0.75), s.number("t0", 1e6));
            let options = AsgdOptions { lr, lambd, alpha, t0, weight_decay, maximize };
            Box::new(ASGD::new_with(params, options).unwrap())
        }
        other => panic!("unknown optimizer {other}"),
    }
}

/// A schedule that steps by itself, or by a metric.
enum Driven {
    Alone(Box<dyn Schedule>),
    ByMetric(ReduceLROnPlateau),
}

fn schedule(spec: &Value, opt: &dyn Optimizer) -> Driven {
    let s = Settings(spec);
    let parts = || -> Vec<Box<dyn Schedule>> {
        let part = |spec: &Value| match schedule(spec, opt) {
            Driven::Alone(schedule) => schedule,
            Driven::ByMetric(_) => panic!("a metric inside a chain"),
        };
        spec["parts"].as_array().unwrap().iter().map(part).collect()
    };
    let counts = |key: &str| sizes(&spec[key]).into_iter().map(|n| n as u64).collect();
    let gamma = s.number("gamma", 0.1);
    Driven::Alone(match spec["name"].as_str().unwrap() {
        "StepLR" => Box::new(StepLR::new(opt, s.count("step_size"), gamma).unwrap()),
        "MultiStepLR" => Box::new(MultiStepLR::new(opt, counts("milestones"), gamma).unwrap()),
        "ExponentialLR" => Box::new(ExponentialLR::new(opt, gamma).unwrap()),
        "CosineAnnealingLR" => {
            Box::new(CosineAnnealingLR::new(opt, s.count("T_max"), s.number("eta_min", 0.0)).unwrap())
        }
        "WarmupCosine" => {
            let (most, warmup) = (s.count("max_epochs"), s.count("warmup_epochs"));
            Box::new(WarmupCosine::new(opt, most, warmup, s.number("min_lr", 0.0)).unwrap())
        }
        "LambdaLR" => Box::new(LambdaLR::new(opt, |epoch| 1.0 / (1.0 + 0.1 * epoch as f64)).unwrap()),
        "OneCycleLR" => {
            let anneal = if spec.get("anneal_strategy").is_some() { Anneal::Linear } else { Anneal::Cos };
            let options = OneCycleOptions::new(s.number("max_lr", 0.0), s.count("total_steps"));
            let options = OneCycleOptions { anneal, three_phase: s.flag("three_phase"), ..options };
            Box::new(OneCycleLR::new(opt, options).unwrap())
        }
        "ChainedScheduler" => Box::new(ChainedScheduler::new(parts()).unwrap()),
        "SequentialLR" => Box::new(SequentialLR::new(parts(), counts("milestones")).unwrap()),
        "ReduceLROnPlateau" => {
            let options = PlateauOptions {
                mode: if spec.get("mode").is_some() { Better::Larger } else { Better::Smaller },
                factor: s.number("factor", 0.1),
                patience: s.count("patience"),
                threshold: s.number("threshold", 1e-4),
                threshold_mode: spec.get("threshold_mode").map_or(Threshold::Relative, |_| Threshold::Absolute),
                cooldown: s.number("cooldown", 0.0) as u64,
                min_lr: s.number("min_lr", 0.0).into(),
                ..Default::default()
            };
            return Driven::ByMetric(ReduceLROnPlateau::new(opt, options).unwrap());
        }
        "LinearLR" => {
            let (start, end) = (s.number("start_factor", 1.0 / 3.0), s.number("end_factor", 1.0));
            Box::new(LinearLR::new(opt, start, end, s.count("total_iters")).unwrap())
        }
        "ConstantLR" => Box::new(ConstantLR::new(opt, s.number("factor", 1.0 / 3.0), s.count("total_iters")).unwrap()),
        "PolynomialLR" => Box::new(PolynomialLR::new(opt, s.count("total_iters"), s.number("power", 1.0)).unwrap()),
        "CosineAnnealingWarmRestarts" => {
            let (t_mult, eta_min) = (s.number("T_mult", 1.0) as u64, s.number("eta_min", 0.0));
            Box::new(CosineAnnealingWarmRestarts::new(opt, s.count("T_0"), t_mult, eta_min).unwrap())
        }
        "MultiplicativeLR" => Box::new(MultiplicativeLR::new(opt, |epoch| 1.0 - 0.5 / (epoch as f64 + 1.0)).unwrap()),
        "CyclicLR" => {
            let up = s.count("step_size_up");
            let usual = CyclicOptions::new(s.number("base_lr", 0.0), s.number("max_lr", 0.0), up);
            let options = CyclicOptions {
                step_size_down: s.number("step_size_down", up as f64) as u64,
                cycle: match spec.get("mode").and_then(Value::as_str) {
                    None => Cycle::Same,
                    Some("triangular2") => Cycle::Halving,
                    Some(_) => Cycle::Power(s.number("gamma", 1.0)),
                },
                base_momentum: s.number("base_momentum", 0.8),
                ..usual
            };
            Box::new(CyclicLR::new(opt, options).unwrap())
        }
        other => panic!("unknown schedule {other}"),
    })
}

/// A case on a device: parameters, optimizer and schedule, step by step.
struct Run<'a> {
    case: &'a Value,
    metrics: Vec<f64>,
    shapes: Vec<Vec<usize>>,
    params: Vec<Tensor>,
    opt: Box<dyn Optimizer>,
    schedule: Option<Driven>,
}

impl<'a> Run<'a> {
    fn new(golden: &'a Value, case: &'a Value, queue: &Queue, dtype: DType) -> Run<'a> {
        let shapes: Vec<Vec<usize>> = golden["shapes"].as_array().unwrap().iter().map(sizes).collect();
        let start = |(i, shape): (usize, &Vec<usize>)| tensor(queue, &formula(i, 0, shape), shape, dtype).with_grad();
        let params: Vec<Tensor> = shapes.iter().enumerate().map(start).collect();
        let groups = case.get("groups").is_some();
        let first = if groups { params[..2].to_vec() } else { params.clone() };
        let mut opt = optimizer(case, first);
        if groups {
            opt.add_group(params[2..].to_vec(), opt.learning_rate() / 4.0, 0.05).unwrap();
        }
        let schedule = case.get("schedule").map(|spec| schedule(spec, &*opt));
        Run { case, metrics: numbers(&golden["metrics"]), shapes, params, opt, schedule }
    }

    /// Step `t` (from 1 on), with the error of everything the golden file has for it.
    fn step(&mut self, t: usize) -> f64 {
        let mut error = 0f64;
        for (i, parameter) in self.params.iter().enumerate() {
            let shape = &self.shapes[i];
            let grad = || tensor(parameter.queue(), &formula(i, t, shape), shape, parameter.dtype());
            parameter.set_grad((!(i == 3 && (5..=7).contains(&t))).then(grad));
        }
        if let Some(max_norm) = self.case.get("max_norm") {
            let norm = clip_grad_norm(&self.params, max_norm.as_f64().unwrap()).unwrap();
            error = error.max(worst(&[norm], &[self.case["norms"][t - 1].as_f64().unwrap()]));
        }
        if let Some(limit) = self.case.get("clip_value") {
            clip_grad_value(&self.params, limit.as_f64().unwrap()).unwrap();
        }
        let rates: Vec<f64> = self.opt.groups().iter().map(|group| group.learning_rate()).collect();
        error = error.max(worst(&rates, &numbers(&self.case["rates"][t - 1])));
        self.opt.step().unwrap();
        match &mut self.schedule {
            Some(Driven::Alone(schedule)) => schedule.step().unwrap(),
            Some(Driven::ByMetric(schedule)) => schedule.step(self.metrics[t - 1]),
            None => {}
        }
        if let Some(after) = self.case["after"].get(t.to_string()) {
            let got: Vec<f64> = self.params.iter().flat_map(|p| p.to_f64_vec().unwrap()).collect();
            error = error.max(worst(&got, &numbers(after)));
        }
        error
    }

    fn all(mut self) -> f64 {
        (1..=50).map(|t| self.step(t)).fold(0.0, f64::max)
    }
}

fn name(case: &Value) -> String {
    format!("{} {}", case["optimizer"].as_str().unwrap(), case["name"].as_str().unwrap())
}

/// Runs cases on a queue and compares.
fn compare(golden: &Value, queue: &Queue, dtype: DType, tolerance: f64, wanted: impl Fn(&str) -> bool) -> usize {
    let cases = golden["cases"].as_array().unwrap();
    let cases: Vec<&Value> = cases.iter().filter(|case| wanted(&name(case))).collect();
    for case in &cases {
        let error = Run::new(golden, case, queue, dtype).all();
        assert!(error < tolerance, "{} on {} in {dtype}: {error:e}", name(case), queue.device_name());
    }
    cases.len()
}

/// How many there are.
const CASES: usize = 63;

#[test]
fn fifty_steps_in_double_precision_are_pytorchs() {
    assert_eq!(compare(&golden(), &cpu(), DType::F64, 1e-12, |_| true), CASES);
}

/// One case of each formula: a kernel takes long to build.
const SAMPLED: [&str; 13] = [
    "SGD dampening",
    "Adam amsgrad",
    "Adam max_norm",
    "AdamW amsgrad",
    "RMSprop all",
    "Adagrad all",
    "NAdam all",
    "RAdam decoupled",
    "Adamax all",
    "Adadelta all",
    "Lion all",
    "Rprop all",
    "ASGD all",
];

#[test]
fn devices_agree_with_pytorch_in_double_precision() {
    let golden = golden();
    for device in devices().iter().skip(1).filter(|device| has_double(&device.queue)) {
        assert_eq!(compare(&golden, &device.queue, DType::F64, 1e-8, |name| SAMPLED.contains(&name)), SAMPLED.len());
    }
}

#[test]
fn single_precision_is_close_to_pytorch_on_every_device() {
    let golden = golden();
    assert_eq!(compare(&golden, &cpu(), DType::F32, 2e-5, |_| true), CASES);
    for device in devices().iter().skip(1) {
        assert_eq!(compare(&golden, &device.queue, DType::F32, 2e-5, |name| SAMPLED.contains(&name)), SAMPLED.len());
    }
}

#[test]
#[ignore = "slow: builds the kernels of all formulas on every device"]
fn every_case_agrees_on_every_device() {
    let golden = golden();
    for device in devices() {
        assert_eq!(compare(&golden, &device.queue, DType::F32, 2e-5, |_| true), CASES);
        if has_double(&device.queue) {
            assert_eq!(compare(&golden, &device.queue, DType::F64, 1e-8, |_| true), CASES);
        }
    }
}

/// A run that is stored and goes on with new objects takes the same steps to the bit.
#[test]
fn stored_runs_go_on_bit_for_bit() {
    let golden = golden();
    for case in golden["cases"].as_array().unwrap() {
        let mut whole = Run::new(&golden, case, &cpu(), DType::F32);
        for t in 1..=6 {
            whole.step(t);
        }
        let state = whole.opt.state();
        let mut resumed = Run::new(&golden, case, &cpu(), DType::F32);
        for (to, from) in resumed.params.iter().zip(&whole.params) {
            to.assign(from).unwrap();
        }
        resumed.opt.load_state(&state).unwrap();
        match (&whole.schedule, &mut resumed.schedule) {
            (Some(Driven::Alone(from)), Some(Driven::Alone(to))) => to.load_state(&from.state()).unwrap(),
            (Some(Driven::ByMetric(from)), Some(Driven::ByMetric(to))) => to.load_state(&from.state()).unwrap(),
            _ => {}
        }
        let bits = |run: &Run<'_>| -> Vec<u32> {
            run.params.iter().flat_map(|p| p.to_host::<f32>().unwrap()).map(f32::to_bits).collect()
        };
        for t in 7..=15 {
            whole.step(t);
            resumed.step(t);
            assert_eq!(bits(&whole), bits(&resumed), "{} at step {t}", name(case));
        }
        // What is stored is equal to what would be stored by the resumed run.
        let (a, b) = (whole.opt.state(), resumed.opt.state());
        assert_eq!(a.numbers, b.numbers, "{}", name(case));
        for (key, tensor) in &a.tensors {
            assert_eq!(tensor.to_f64_vec().unwrap(), b.tensors[key].to_f64_vec().unwrap(), "{} {key}", name(case));
        }
    }
}

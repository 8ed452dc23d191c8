//! What steps leave alone, unscale, clip and skip; replays, averages and mistakes.

use std::rc::Rc;

use netcl_autograd::Tensor;
use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Recorder, with_sink};
use netcl_optim::schedule::{
    ChainedScheduler, CosineAnnealingLR, LambdaLR, OneCycleLR, OneCycleOptions, PlateauOptions, ReduceLROnPlateau,
    SequentialLR, StepLR, WarmupCosine,
};
use netcl_optim::{
    Adagrad, AdagradOptions, Adam, AdamOptions, AdamW, AdamWOptions, Ema, EmaOptions, GradScale, Momentum,
    MomentumOptions, Optimizer, ParamGroup, RMSProp, RmsPropOptions, SGD, Schedule, SgdOptions, StepOptions,
    clip_grad_norm, clip_grad_norm_device, clip_grad_value,
};

use crate::support::{self, cpu, devices, formula, has_double, tensor};

fn parameter(queue: &Queue, values: &[f64]) -> Tensor {
    tensor(queue, values, &[values.len()], DType::F32).with_grad()
}

fn set_gradient(parameter: &Tensor, values: &[f64]) {
    parameter.set_grad(Some(tensor(parameter.queue(), values, parameter.shape(), parameter.dtype())));
}

fn close(got: &Tensor, expected: &[f64]) {
    let got = got.to_f64_vec().unwrap();
    assert!(support::worst(&got, expected) < 1e-6, "{got:?} {expected:?}");
}

#[test]
fn gradients_are_unscaled_and_clipped_on_the_way() {
    for device in devices() {
        let queue = &device.queue;
        let (p, q) = (parameter(queue, &[0.0, 0.0]), parameter(queue, &[0.0]));
        let mut opt = SGD::new([p.clone(), q.clone()], 1.0).unwrap();
        set_gradient(&p, &[16.0, 32.0]);
        set_gradient(&q, &[32.0]);
        let scale = tensor(queue, &[16.0], &[1], DType::F32);
        for grad_scale in [GradScale::Number(16.0), GradScale::Device(scale)] {
            p.fill(0.0).unwrap();
            q.fill(0.0).unwrap();
            let options = StepOptions { grad_scale: Some(grad_scale), ..Default::default() };
            assert!(opt.step_with(&options).unwrap().is_none());
            close(&p, &[-1.0, -2.0]);
            let options = StepOptions { max_norm: Some(1.5), ..options };
            let norm = opt.step_with(&options).unwrap().unwrap();
            assert!((norm.item().unwrap() - 3.0).abs() < 1e-6 && norm.ndim() == 0);
            close(&p, &[-1.5, -3.0]);
            close(&q, &[-3.0]);
            assert_eq!(p.grad().unwrap().to_f64_vec().unwrap(), [16.0, 32.0]);
        }
        // A norm below the limit changes nothing.
        p.fill(0.0).unwrap();
        opt.step_with(&StepOptions { max_norm: Some(1e6), ..Default::default() }).unwrap();
        assert_eq!(p.to_f64_vec().unwrap(), [-16.0, -32.0]);
    }
}

#[test]
fn a_skipped_step_changes_nothing_and_does_not_count() {
    for device in devices() {
        let queue = &device.queue;
        let flag = |value: f64| tensor(queue, &[value], &[1], DType::F32);
        let run = |grads: &[(f64, f64)]| {
            let p = parameter(queue, &[1.0, -1.0]);
            let mut opt = Adam::new([p.clone()], 0.1).unwrap();
            for (step, (grad, found)) in grads.iter().enumerate() {
                set_gradient(&p, &[*grad, 0.5]);
                let found_inf = Some(flag(*found));
                let options = StepOptions { found_inf, skip_non_finite: true, ..Default::default() };
                // A plain step in between ends the count of the device and begins it anew.
                if step == 3 { opt.step().map(|()| None) } else { opt.step_with(&options) }.unwrap();
            }
            (p.to_f64_vec().unwrap(), opt.state())
        };
        let skipping =
            [(1.0, 0.0), (f64::NAN, 0.0), (2.0, 1.0), (-1.0, 0.0), (f64::INFINITY, 0.0), (0.25, 0.0), (3.0, 1.0)];
        let plain = [(1.0, 0.0), (-1.0, 0.0), (0.25, 0.0)];
        let ((got, state), (expected, _)) = (run(&skipping), run(&plain));
        assert_eq!(got, expected, "{}", device.device_name);
        assert_eq!(state.numbers["0.step"], 3.0);
        assert!(state.tensors["0.exp_avg"].to_f64_vec().unwrap().iter().all(|v| v.is_finite()));
    }
}

#[test]
fn a_replayed_step_counts_and_sees_the_learning_rate_of_the_moment() {
    for device in devices() {
        let queue = &device.queue;
        let start = formula(0, 0, &[9]);
        let (eager, replayed) = (parameter(queue, &start), parameter(queue, &start));
        let grad = formula(0, 1, &[9]);
        set_gradient(&eager, &grad);
        set_gradient(&replayed, &grad);
        let mut expected = Adam::new([eager.clone()], 0.1).unwrap();
        let mut opt = Adam::new([replayed.clone()], 0.1).unwrap();
        let recorder = Rc::new(Recorder::default());
        // The very first step may be captured: what it keeps is prepared outside the recording.
        with_sink(recorder.clone(), || opt.step()).unwrap();
        assert_eq!(recorder.len(), 1);
        for step in 0..5 {
            if step > 0 {
                opt.advance();
            }
            for opt in [&expected as &dyn Optimizer, &opt] {
                opt.set_learning_rate(0.1 / f64::from(step + 1));
            }
            recorder.replay().unwrap();
            expected.step().unwrap();
            assert_eq!(replayed.to_f64_vec().unwrap(), eager.to_f64_vec().unwrap(), "step {step}");
        }
    }
}

#[test]
fn a_gradient_that_lies_in_a_parameter_is_read_before_it_is_overwritten() {
    for device in devices() {
        let (p, q) = (parameter(&device.queue, &[1.0, 2.0]), parameter(&device.queue, &[10.0, 20.0]));
        p.set_grad(Some(q.detach()));
        q.set_grad(Some(p.detach()));
        SGD::new([p.clone(), q.clone()], 0.5).unwrap().step().unwrap();
        assert_eq!(p.to_f64_vec().unwrap(), [-4.0, -8.0]);
        assert_eq!(q.to_f64_vec().unwrap(), [9.5, 19.0]);
        clip_grad_norm([&p, &q], 1.0).unwrap();
        assert_eq!(q.to_f64_vec().unwrap(), [9.5, 19.0], "clipping a gradient leaves parameters alone");
    }
}

#[test]
fn clipping_sums_over_dtypes_and_repeated_gradients() {
    let queue = cpu();
    let p = parameter(&queue, &[0.0, 0.0]);
    let q = tensor(&queue, &[0.0], &[], DType::F64).with_grad();
    let h = tensor(&queue, &[0.0], &[1], DType::F16).with_grad();
    // One tensor for two parameters, and one element that is repeated.
    let shared = tensor(&queue, &[1.0], &[1], DType::F32).expand([2]).unwrap();
    p.set_grad(Some(shared));
    set_gradient(&q, &[1.0]);
    set_gradient(&h, &[1.0]);
    let norm = clip_grad_norm([&p, &q, &h], 1.0).unwrap();
    assert!((norm - 2.0).abs() < 1e-6);
    for grad in [&p, &q, &h].map(|p| p.grad().unwrap()) {
        assert!(grad.to_f64_vec().unwrap().iter().all(|g| (g - 0.5).abs() < 1e-3));
    }
    clip_grad_value([&p, &q, &h], 0.25).unwrap();
    assert_eq!(q.grad().unwrap().item().unwrap(), 0.25);
    // Large and small numbers: squares that overflow or vanish in float32.
    for (value, expected) in [(1e30, 2f64.sqrt() * 1e30), (1e-30, 2f64.sqrt() * 1e-30)] {
        set_gradient(&p, &[value, value]);
        let norm = clip_grad_norm([&p], f64::INFINITY).unwrap();
        assert!((norm / expected - 1.0).abs() < 1e-6, "{norm:e}");
    }
    p.set_grad(None);
    assert_eq!(clip_grad_norm([&p], 1.0).unwrap(), 0.0);
    assert!(clip_grad_norm_device([&p], 1.0).unwrap().is_none());
    assert!(clip_grad_norm([&p], f64::NAN).unwrap_err().to_string().contains("max_norm is NaN"));
    assert!(clip_grad_value([&p], -1.0).unwrap_err().to_string().contains("limit is -1"));
}

#[test]
fn norms_agree_on_all_devices() {
    let values = formula(3, 5, &[70_001]);
    let expected = values.iter().map(|v| v * v).sum::<f64>().sqrt();
    for device in devices() {
        let p = parameter(&device.queue, &values);
        set_gradient(&p, &values);
        let norm = clip_grad_norm_device([&p], 1.0).unwrap().unwrap().item().unwrap();
        let tolerance = if has_double(&device.queue) { 1e-7 } else { 1e-5 };
        assert!((norm / expected - 1.0).abs() < tolerance, "{}: {norm} {expected}", device.device_name);
        let clipped: f64 = p.grad().unwrap().to_f64_vec().unwrap().iter().map(|g| g * g).sum();
        assert!((clipped - 1.0).abs() < 1e-5);
    }
}

#[test]
fn averages_follow_their_formula_and_swap() {
    for device in devices() {
        let (p, q) = (parameter(&device.queue, &[1.0, 2.0]), parameter(&device.queue, &[3.0]));
        let mut ema = Ema::new([p.clone(), q.clone()], EmaOptions { decay: 0.9, warmup: true }).unwrap();
        assert_eq!(ema.averages().unwrap()[0].to_f64_vec().unwrap(), [1.0, 2.0]);
        let mut expected = 3.0;
        for (n, value) in [5.0, -1.0, 2.0].into_iter().enumerate() {
            let decay = (1.0 + n as f64) / (10.0 + n as f64);
            assert_eq!(ema.current_decay(), decay);
            q.fill(value).unwrap();
            ema.update().unwrap();
            expected = decay * expected + (1.0 - decay) * value;
        }
        close(&ema.averages().unwrap()[1], &[expected]);
        ema.swap().unwrap();
        close(&q, &[expected]);
        assert!(ema.is_swapped() && ema.update().unwrap_err().to_string().contains("call swap() first"));
        ema.swap().unwrap();
        assert_eq!(q.to_f64_vec().unwrap(), [2.0]);
        let state = ema.state().unwrap();
        let mut other = Ema::new([p.clone(), q.clone()], EmaOptions { decay: 0.9, warmup: true }).unwrap();
        other.load_state(&state).unwrap();
        assert_eq!(other.updates(), 3);
        other.copy_to_params().unwrap();
        close(&q, &[expected]);
        let mut wrong = state;
        wrong.tensors.remove("0.average");
        wrong.numbers.insert("other".to_owned(), 1.0);
        let error = other.load_state(&wrong).unwrap_err().to_string();
        assert!(error.contains("\"0.average\"") && error.contains("\"other\""), "{error}");
    }
    let p = parameter(&cpu(), &[1.0]);
    assert!(Ema::new([p], EmaOptions { decay: 1.0, warmup: true }).unwrap_err().to_string().contains("decay is 1"));
}

#[test]
fn a_state_that_does_not_fit_is_described_in_full() {
    let p = parameter(&cpu(), &[1.0, 2.0]);
    set_gradient(&p, &[1.0, 1.0]);
    let mut opt = Adam::new([p.clone()], 0.1).unwrap();
    opt.step().unwrap();
    let before = p.to_f64_vec().unwrap();
    let mut wrong = opt.state();
    wrong.numbers.remove("groups.0.lr");
    wrong.numbers.insert("groups.1.lr".to_owned(), 0.5);
    wrong.numbers.insert("1.step".to_owned(), 2.0);
    wrong.tensors.remove("0.exp_avg");
    wrong.tensors.insert("0.exp_avg_sq".to_owned(), parameter(&cpu(), &[1.0]));
    wrong.tensors.insert("0.sum".to_owned(), parameter(&cpu(), &[1.0]));
    let error = opt.load_state(&wrong).unwrap_err().to_string();
    for part in [
        "no number \"groups.0.lr\"",
        "unknown number \"groups.1.lr\"",
        "unknown number \"1.step\"",
        "no tensor \"0.exp_avg\"",
        "\"0.exp_avg_sq\", which has shape (1,), its parameter has shape (2,)",
        "unknown tensor \"0.sum\"",
    ] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert_eq!((p.to_f64_vec().unwrap(), opt.learning_rate()), (before, 0.1));
}

#[test]
fn parameters_join_and_keep_their_counts() {
    let (p, q) = (parameter(&cpu(), &[1.0]), parameter(&cpu(), &[1.0]));
    let alone = parameter(&cpu(), &[1.0]);
    let mut opt = Adam::new([p.clone()], 0.1).unwrap();
    let mut other = Adam::new([alone.clone()], 0.1).unwrap();
    for step in 0..6 {
        if step == 2 {
            opt.add_group(vec![q.clone()], 0.1, 0.0).unwrap();
        }
        let grad = [f64::from(step) - 2.5];
        set_gradient(&p, &grad);
        set_gradient(&alone, &grad);
        if step != 4 {
            set_gradient(&q, &grad);
        } else {
            q.set_grad(None);
        }
        opt.step().unwrap();
        other.step().unwrap();
    }
    assert_eq!(p.to_f64_vec().unwrap(), alone.to_f64_vec().unwrap());
    let state = opt.state();
    assert_eq!((state.numbers["0.step"], state.numbers["1.step"]), (6.0, 3.0));
}

#[test]
fn settings_out_of_range_are_named() {
    let p = || vec![parameter(&cpu(), &[1.0])];
    let text = |result: Result<(), netcl_autograd::Error>| result.unwrap_err().to_string();
    let adam = |options: AdamOptions| text(Adam::new_with(p(), options).map(|_| ()));
    assert!(adam(AdamOptions { betas: (1.0, 0.9), ..Default::default() }).contains("Adam: beta1 is 1"));
    assert!(adam(AdamOptions { betas: (0.9, -0.1), ..Default::default() }).contains("beta2 is -0.1"));
    assert!(adam(AdamOptions { eps: f64::NAN, ..Default::default() }).contains("eps is NaN"));
    assert!(adam(AdamOptions { lr: f64::INFINITY, ..Default::default() }).contains("learning rate is inf"));
    let adamw = AdamWOptions { weight_decay: -1.0, ..Default::default() };
    assert!(text(AdamW::new_with(p(), adamw).map(|_| ())).contains("AdamW: the weight decay is -1"));
    let rms = |options: RmsPropOptions| text(RMSProp::new_with(p(), options).map(|_| ()));
    assert!(rms(RmsPropOptions { alpha: 2.0, ..Default::default() }).contains("alpha is 2"));
    assert!(rms(RmsPropOptions { momentum: -1.0, ..Default::default() }).contains("momentum is -1"));
    let adagrad = AdagradOptions { lr_decay: -1.0, ..Default::default() };
    assert!(text(Adagrad::new_with(p(), adagrad).map(|_| ())).contains("lr_decay is -1"));
    let momentum = MomentumOptions { momentum: 0.0, nesterov: true, ..Default::default() };
    assert!(text(Momentum::new_with(p(), momentum).map(|_| ())).contains("Momentum: nesterov needs"));

    let opt = SGD::new_with(p(), SgdOptions { lr: 0.5, ..Default::default() }).unwrap();
    assert!(text(StepLR::new(&opt, 0, 0.1).map(|_| ())).contains("step_size is 0"));
    assert!(text(CosineAnnealingLR::new(&opt, 0, 0.1).map(|_| ())).contains("t_max is 0"));
    assert!(text(WarmupCosine::new(&opt, 5, 5, 0.0).map(|_| ())).contains("leaves nothing"));
    let cycle = OneCycleOptions::new(1.0, 10);
    assert!(text(OneCycleLR::new(&opt, cycle.clone()).map(|_| ())).contains("no momentum to cycle"));
    let cycle = OneCycleOptions { max_lr: vec![1.0, 2.0].into(), cycle_momentum: false, ..cycle };
    assert!(text(OneCycleLR::new(&opt, cycle).map(|_| ())).contains("2 values of max_lr for 1 groups"));
    let plateau = PlateauOptions { factor: 1.0, ..Default::default() };
    assert!(text(ReduceLROnPlateau::new(&opt, plateau).map(|_| ())).contains("factor is 1"));
    assert!(text(ChainedScheduler::new(Vec::new()).map(|_| ())).contains("no schedules"));
    let part = || Box::new(LambdaLR::new(&opt, |_| 1.0).unwrap()) as Box<dyn Schedule>;
    assert!(text(SequentialLR::new(vec![part(), part()], vec![]).map(|_| ())).contains("one fewer"));
    assert!(text(SequentialLR::new(vec![part(), part()], vec![0]).map(|_| ())).contains("must rise"));
    let two = vec![ParamGroup::free(1.0), ParamGroup::free(2.0)];
    assert!(text(LambdaLR::of_groups(two, Vec::new()).map(|_| ())).contains("0 functions for 2 groups"));
}

#[test]
fn a_step_follows_parameters_that_were_moved() {
    let gradients = [[0.5, -1.0, 0.25], [-0.25, 0.125, 2.0], [1.0, 1.0, -1.0]];
    let targets = devices().into_iter().map(|device| (device.queue, DType::F32)).chain([(cpu(), DType::F64)]);
    for (queue, dtype) in targets {
        // Moved after the first step, or there from the start with the same values and state.
        let values = |p: &Tensor| p.raw().cast(dtype).unwrap().to(&queue).unwrap();
        let mut model = parameter(&cpu(), &[1.0, 2.0, 3.0]);
        let untouched = parameter(&cpu(), &[4.0]);
        let mut opt = Adam::new([model.clone(), untouched.clone()], 0.25).unwrap();
        let mut ema = Ema::new([model.clone()], EmaOptions { decay: 0.5, warmup: false }).unwrap();
        set_gradient(&model, &gradients[0]);
        opt.step().unwrap();
        ema.update().unwrap();

        let twin = Tensor::from(values(&model).duplicate().unwrap()).with_grad();
        let mut expected = Adam::new([twin.clone(), parameter(&cpu(), &[4.0])], 0.25).unwrap();
        expected.load_state(&opt.state()).unwrap();
        let mut average = Ema::new([twin.clone()], EmaOptions { decay: 0.5, warmup: false }).unwrap();
        average.load_state(&ema.state().unwrap()).unwrap();

        model.move_to(values(&model)).unwrap();
        for gradient in &gradients[1..] {
            for p in [&model, &twin] {
                set_gradient(p, gradient);
            }
            assert!(clip_grad_norm([&model], 10.0).unwrap() > 0.0);
            opt.step().unwrap();
            expected.step().unwrap();
            ema.update().unwrap();
            average.update().unwrap();
        }
        assert_eq!((model.dtype(), opt.groups()[0].params()[0].dtype()), (dtype, dtype));
        assert_eq!(model.to_f64_vec().unwrap(), twin.to_f64_vec().unwrap());
        assert_eq!(
            ema.averages().unwrap()[0].to_f64_vec().unwrap(),
            average.averages().unwrap()[0].to_f64_vec().unwrap()
        );
        let (state, other) = (opt.state(), expected.state());
        assert_eq!(state.numbers, other.numbers);
        for (name, tensor) in &state.tensors {
            assert_eq!(tensor.to_f64_vec().unwrap(), other.tensors[name].to_f64_vec().unwrap(), "{name}");
        }
        assert_eq!(untouched.item().unwrap(), 4.0);
    }
}

//! Muon and L-BFGS beside PyTorch's (golden/matrices.json, made by the script next to it).

use netcl_autograd::{DType, Queue, Tensor};
use netcl_optim::{AdjustLr, LBFGS, LbfgsOptions, LineSearch, Muon, MuonOptions, Optimizer, StepOptions};
use serde_json::Value;

use crate::support::{cpu, devices, formula, has_double, numbers, sizes, tensor, worst};

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/matrices.json")).unwrap()
}

fn muon_options(options: &Value) -> MuonOptions {
    let number = |key: &str, default: f64| options.get(key).map_or(default, |value| value.as_f64().unwrap());
    let usual = MuonOptions::default();
    MuonOptions {
        lr: number("lr", usual.lr),
        weight_decay: number("weight_decay", usual.weight_decay),
        momentum: number("momentum", usual.momentum),
        nesterov: options.get("nesterov").is_none(),
        ns_coefficients: options
            .get("ns_coefficients")
            .map(numbers)
            .map_or(usual.ns_coefficients, |c| (c[0], c[1], c[2])),
        eps: number("eps", usual.eps),
        ns_steps: number("ns_steps", 5.0) as u64,
        adjust_lr: match options.get("adjust_lr_fn").and_then(Value::as_str) {
            None => AdjustLr::Original,
            Some("match_rms_adamw") => AdjustLr::MatchRmsAdamw,
            Some(_) => AdjustLr::SpectralUnclamped,
        },
    }
}

/// Ten steps of a case, stored and resumed after the fifth; the largest error.
fn muon(golden: &Value, case: &Value, queue: &Queue, dtype: DType, step: &StepOptions, scale: f64) -> f64 {
    let shapes: Vec<Vec<usize>> = golden["shapes"].as_array().unwrap().iter().map(sizes).collect();
    let start = |(i, shape): (usize, &Vec<usize>)| tensor(queue, &formula(i, 0, shape), shape, dtype).with_grad();
    let params: Vec<Tensor> = shapes.iter().enumerate().map(start).collect();
    let options = muon_options(&case["options"]);
    let mut opt = Muon::new_with(params.clone(), options).unwrap();
    let mut error = 0f64;
    for t in 1..=10 {
        for (i, parameter) in params.iter().enumerate() {
            let values: Vec<f64> = formula(i, t, &shapes[i]).iter().map(|x| x * scale).collect();
            let grad = || tensor(queue, &values, &shapes[i], dtype);
            parameter.set_grad((!(i == 2 && (3..=4).contains(&t))).then(grad));
        }
        opt.step_with(step).unwrap();
        let got: Vec<f64> = params.iter().flat_map(|p| p.to_f64_vec().unwrap()).collect();
        error = error.max(worst(&got, &numbers(&case["after"][t - 1])));
        if t == 5 {
            let state = opt.state();
            opt = Muon::new_with(params.clone(), options).unwrap();
            opt.load_state(&state).unwrap();
        }
    }
    error
}

#[test]
fn muon_is_pytorchs_with_iterations_in_the_parameters_type() {
    let golden = golden();
    let plain = StepOptions::default();
    for case in golden["muon"].as_array().unwrap() {
        let error = muon(&golden, case, &cpu(), DType::F64, &plain, 1.0);
        assert!(error < 1e-10, "{}: {error:e}", case["options"]);
    }
    let case = &golden["muon"][0];
    for device in devices() {
        let (dtype, tolerance) = if has_double(&device.queue) { (DType::F64, 1e-10) } else { (DType::F32, 1e-4) };
        let error = muon(&golden, case, &device.queue, dtype, &plain, 1.0);
        assert!(error < tolerance, "{}: {error:e}", device.queue.device_name());
    }
    // Gradients are unscaled on the way, and clipping by a norm that is never reached changes nothing.
    let scaled = StepOptions {
        grad_scale: Some(netcl_optim::GradScale::Number(16.0)),
        max_norm: Some(1e9),
        skip_non_finite: true,
        ..Default::default()
    };
    let error = muon(&golden, case, &cpu(), DType::F64, &scaled, 16.0);
    assert!(error < 1e-10, "scaled: {error:e}");
}

#[test]
fn muon_skips_steps_and_refuses_what_is_no_matrix() {
    let p = tensor(&cpu(), &[1.0, 2.0, 3.0, 4.0], &[2, 2], DType::F32).with_grad();
    let mut opt = Muon::new([p.clone()], 0.1).unwrap();
    p.set_grad(Some(tensor(&cpu(), &[1.0, f64::NAN, 3.0, 4.0], &[2, 2], DType::F32)));
    let skipping = StepOptions { skip_non_finite: true, ..Default::default() };
    opt.step_with(&skipping).unwrap();
    assert_eq!(p.to_f64_vec().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    p.set_grad(Some(tensor(&cpu(), &[1.0, 0.0, 0.0, 1.0], &[2, 2], DType::F32)));
    opt.step_with(&skipping).unwrap();
    assert!(p.to_f64_vec().unwrap()[0] < 0.99);
    let bias = tensor(&cpu(), &[1.0], &[1], DType::F32).with_grad();
    assert!(Muon::new([bias.clone()], 0.1).unwrap_err().to_string().contains("shape (1,)"));
    assert!(opt.add_group(vec![bias], 0.1, 0.0).is_err());
}

/// Steps of L-BFGS on Rosenbrock's function, stored and resumed after the third; the largest error.
fn lbfgs(case: &Value, queue: &Queue, dtype: DType, steps: usize) -> f64 {
    let start = |values: &[f64]| tensor(queue, values, &[3], dtype).with_grad();
    let (x, y) = (start(&[-1.5, 0.5, 2.0]), start(&[2.0, -1.0, 0.25]));
    let settings = &case["options"];
    let number = |key: &str| settings.get(key).map(|value| value.as_f64().unwrap());
    let options = LbfgsOptions {
        lr: number("lr").unwrap(),
        max_iter: number("max_iter").unwrap() as u64,
        max_eval: number("max_eval").map(|n| n as u64),
        history_size: number("history_size").unwrap_or(100.0) as usize,
        line_search: settings.get("line_search_fn").map_or(LineSearch::Fixed, |_| LineSearch::StrongWolfe),
        maximize: settings.get("maximize").is_some(),
        ..Default::default()
    };
    let sign = if options.maximize { -1.0 } else { 1.0 };
    let loss = || -> netcl_autograd::Result<f64> {
        let (a, b) = ((&(&x * -1.0)? + 1.0)?, (&y - &(&x * &x)?)?);
        let loss = (&(&a * &a)?.sum(None, false)? + &(&(&b * &b)?.sum(None, false)? * 100.0)?)?;
        let loss = (&loss * sign)?;
        loss.backward()?;
        Ok(loss.item()?)
    };
    let mut opt = LBFGS::new_with([x.clone(), y.clone()], options).unwrap();
    let mut error = 0f64;
    for t in 0..steps {
        let before = opt.step_closure(loss).unwrap();
        error = error.max(worst(&[before], &[case["losses"][t].as_f64().unwrap()]));
        let got: Vec<f64> = [&x, &y].iter().flat_map(|p| p.to_f64_vec().unwrap()).collect();
        error = error.max(worst(&got, &numbers(&case["after"][t])));
        if t == 2 {
            let state = opt.state();
            opt = LBFGS::new_with([x.clone(), y.clone()], options).unwrap();
            opt.load_state(&state).unwrap();
        }
    }
    if steps == 6 {
        assert_eq!(opt.state().numbers["func_evals"], case["func_evals"].as_f64().unwrap());
    }
    error
}

#[test]
fn lbfgs_is_pytorchs() {
    let golden = golden();
    for case in golden["lbfgs"].as_array().unwrap() {
        let error = lbfgs(case, &cpu(), DType::F64, 6);
        assert!(error < 1e-9, "{}: {error:e}", case["options"]);
    }
    for device in devices() {
        let error = lbfgs(&golden["lbfgs"][1], &device.queue, DType::F32, 1);
        assert!(error < 1e-2, "{}: {error:e}", device.queue.device_name());
    }
    let p = tensor(&cpu(), &[1.0], &[1], DType::F32).with_grad();
    let mut opt = LBFGS::new([p.clone()], 1.0).unwrap();
    assert!(opt.step().unwrap_err().to_string().contains("closure"));
    assert!(opt.add_group(vec![p], 0.1, 0.0).unwrap_err().to_string().contains("one group"));
    let mut state = opt.state();
    state.numbers.remove("n_iter");
    assert!(opt.load_state(&state).unwrap_err().to_string().contains("n_iter"));
}

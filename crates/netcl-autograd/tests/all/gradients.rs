//! Gradient rules against finite differences in f64, and the promises of the graph.

use std::sync::{Arc, Mutex};

use netcl_autograd::gradcheck::{Tolerance, gradcheck, gradgradcheck};
use netcl_autograd::graph::{BackwardOptions, unrecorded};
use netcl_autograd::in_place::View;
use netcl_autograd::ops::elementwise::{self, add, exp, mul, relu};
use netcl_autograd::ops::layout::split;
use netcl_autograd::ops::reduce;
use netcl_autograd::{Tape, Tensor, checkpoint, detect_anomaly, grad, no_grad};
use netcl_core::dtype::DType;
use netcl_core::shape::Layout;

use crate::support::{cpu, leaf};

fn random(shape: &[usize], seed: u64, bounds: (f64, f64)) -> Tensor {
    leaf(&cpu(), DType::F64, shape, seed, bounds)
}

fn vector(values: &[f64]) -> Tensor {
    Tensor::from_host(&cpu(), values, [values.len()]).unwrap().with_grad()
}

#[test]
fn gradients_where_formulas_divide_by_zero() {
    let x = vector(&[2.0, 0.0, 3.0]);
    gradcheck(|t| reduce::prod(t[0], 0, false), &[&x], Tolerance::default()).unwrap();
    gradgradcheck(|t| reduce::prod(t[0], 0, false), &[&x], Tolerance { eps: 1e-5, atol: 1e-4, rtol: 1e-3 }).unwrap();
    let two = vector(&[0.0, 5.0, 0.0]);
    gradcheck(|t| reduce::prod(t[0], 0, false), &[&two], Tolerance::default()).unwrap();
    let zero = vector(&[0.0, 0.0]);
    for p in [1.0, 2.0, 3.0] {
        reduce::norm(&zero, p, (), false).unwrap().backward().unwrap();
        reduce::std(&zero, (), 1.0, false).unwrap().backward().unwrap();
        assert_eq!(zero.grad().unwrap().to_f64_vec().unwrap(), [0.0, 0.0], "norm {p}");
    }
    let signed = vector(&[-2.0, 0.5, 1.5]);
    for p in [1.0, 2.0, 2.5, f64::INFINITY, f64::NEG_INFINITY] {
        gradcheck(|t| reduce::norm(t[0], p, 0, true), &[&signed], Tolerance::default())
            .unwrap_or_else(|e| panic!("norm {p}: {e}"));
    }
}

#[test]
fn gradients_accumulate_on_leaves_alone() {
    let x = vector(&[1.0, 2.0]);
    let y = mul(&x, &x).unwrap();
    let loss = reduce::sum(&y, (), false).unwrap();
    loss.backward_with(None, BackwardOptions { retain_graph: true, ..Default::default() }).unwrap();
    assert_eq!(x.grad().unwrap().to_f64_vec().unwrap(), [2.0, 4.0]);
    loss.backward().unwrap();
    assert_eq!(x.grad().unwrap().to_f64_vec().unwrap(), [4.0, 8.0]);
    assert!(y.grad().is_none() && !y.is_leaf() && x.is_leaf());
    let text = loss.backward().unwrap_err().to_string();
    assert!(text.contains("freed its saved values") && text.contains("retain_graph"), "{text}");
    x.set_grad(None);
    // Used twice: both paths add up.
    reduce::sum(&add(&mul(&x, 3.0).unwrap(), &exp(&x).unwrap()).unwrap(), (), false).unwrap().backward().unwrap();
    let expected: Vec<f64> = [1.0f64, 2.0].iter().map(|v| 3.0 + v.exp()).collect();
    let got = x.grad().unwrap().to_f64_vec().unwrap();
    assert!(got.iter().zip(&expected).all(|(g, e)| (g - e).abs() < 1e-12), "{got:?}");
}

#[test]
fn nothing_is_recorded_without_need() {
    let x = vector(&[1.0]);
    {
        let _scope = no_grad();
        assert!(!exp(&x).unwrap().requires_grad());
    }
    assert!(exp(&x).unwrap().requires_grad());
    assert!(!exp(&x.detach()).unwrap().requires_grad());
    let text = exp(&x.detach()).unwrap().backward().unwrap_err().to_string();
    assert!(text.contains("does not depend on anything with requires_grad"), "{text}");
    let text = mul(&vector(&[1.0, 2.0]), 2.0).unwrap().backward().unwrap_err().to_string();
    assert!(text.contains("reduce it to one element"), "{text}");
    assert!(exp(&x).unwrap().set_requires_grad(false).unwrap_err().to_string().contains("detach()"));
}

#[test]
fn a_gradient_lost_in_an_op_that_did_not_record_is_an_error() {
    let (x, w) = (vector(&[1.0, 2.0]), vector(&[3.0, 4.0]));
    let forward = |x: &Tensor| {
        let h = Tensor::from(x.raw().cast(DType::F64).unwrap());
        h.set_unrecorded(unrecorded("relu", [x]));
        h
    };
    let h = forward(&x);
    let message = |result: netcl_autograd::Result<()>| result.unwrap_err().to_string();
    let expected = "backward: relu of netcl.ops was called on a tensor that requires a gradient";
    let total = |t: &Tensor| reduce::sum(t, (), false).unwrap();
    for loss in [total(&h), total(&mul(&h, &w).unwrap()), total(&exp(&mul(&h, 2.0).unwrap()).unwrap())] {
        assert!(message(loss.backward()).starts_with(expected));
    }
    let loss = total(&mul(&h, &w).unwrap());
    let of_weight = grad(&[&loss], &[&w], &[], BackwardOptions::default()).map(|_| ());
    assert!(message(of_weight).starts_with("grad: relu of netcl.ops"));
    assert!(w.grad().is_none() && !h.requires_grad());
    // Nothing is said of what is detached, or made where nothing records.
    let quiet = {
        let _scope = no_grad();
        forward(&x)
    };
    for constant in [quiet, h.detach(), forward(&x.detach())] {
        assert_eq!(constant.unrecorded(), None);
        total(&mul(&constant, &w).unwrap()).backward().unwrap();
    }
}

#[test]
fn a_value_overwritten_in_place_is_noticed() {
    let x = vector(&[1.0, 2.0]);
    let y = mul(&x, &x).unwrap();
    let loss = reduce::sum(&exp(&y).unwrap(), (), false).unwrap();
    y.fill(0.0).unwrap();
    let text = loss.backward().unwrap_err().to_string();
    assert!(
        text.contains("backward of exp") && text.contains("overwritten in place") && text.contains("gradients.rs"),
        "{text}"
    );
}

#[test]
fn anomaly_mode_names_the_first_bad_op() {
    let _scope = detect_anomaly();
    let x = vector(&[-1.0, 2.0]);
    let text = elementwise::log(&x).unwrap_err().to_string();
    assert!(
        text.contains("forward pass of log") && text.contains("element 0") && text.contains("gradients.rs"),
        "{text}"
    );
    let zero = vector(&[0.0]);
    let root = elementwise::sqrt(&zero).unwrap();
    let text = reduce::sum(&root, (), false).unwrap().backward().unwrap_err().to_string();
    assert!(text.contains("backward pass of sqrt"), "{text}");
}

#[test]
fn deep_graphs_drop_without_recursion() {
    let x = vector(&[0.5]);
    let mut y = x.clone();
    for _ in 0..100_000 {
        y = add(&y, 1e-6).unwrap();
    }
    y.backward().unwrap();
    assert_eq!(x.grad().unwrap().to_f64_vec().unwrap(), [1.0]);
    let mut z = x.clone();
    for _ in 0..100_000 {
        z = relu(&z).unwrap();
    }
    drop(z);
    let mut z = exp(&x).unwrap();
    for _ in 0..30_000 {
        z = checkpoint(|t| relu(t[0]), &[&z]).unwrap();
    }
    drop(z);
}

#[test]
fn grad_leaves_the_leaves_alone() {
    let (x, y) = (vector(&[2.0]), vector(&[3.0]));
    let middle = mul(&x, &y).unwrap();
    let loss = exp(&middle).unwrap();
    let wanted = grad(&[&loss], &[&x, &middle, &vector(&[1.0])], &[], BackwardOptions::default()).unwrap();
    let at = |i: usize| wanted[i].as_ref().map(|t| t.to_f64_vec().unwrap()[0]);
    assert!((at(0).unwrap() - 3.0 * 6f64.exp()).abs() < 1e-9 && (at(1).unwrap() - 6f64.exp()).abs() < 1e-9);
    assert_eq!(at(2), None);
    assert!(x.grad().is_none() && y.grad().is_none());
}

#[test]
fn hooks_see_and_replace_gradients() {
    let x = vector(&[1.0, 2.0]);
    let handle = x.register_hook(|gradient| mul(gradient, 10.0).map(Some)).unwrap();
    reduce::sum(&x, (), false).unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_f64_vec().unwrap(), [10.0, 10.0]);
    handle.remove();
    x.set_grad(None);
    // A result's hook sees the complete gradient before it flows on; a leaf's sees the sum of all its uses.
    let seen = Arc::new(Mutex::new(Vec::new()));
    let middle = mul(&x, 2.0).unwrap();
    for (name, tensor) in [("x", &x), ("middle", &middle)] {
        let seen = seen.clone();
        let note = move |gradient: &Tensor| {
            seen.lock().unwrap().push((name, gradient.to_f64_vec()?));
            Ok(None)
        };
        tensor.register_hook(note).unwrap();
    }
    let twice = add(&mul(&middle, 3.0).unwrap(), &add(&middle, &x).unwrap()).unwrap();
    reduce::sum(&twice, (), false).unwrap().backward().unwrap();
    assert_eq!(*seen.lock().unwrap(), [("middle", vec![4.0, 4.0]), ("x", vec![9.0, 9.0])]);
    assert!(x.detach().register_hook(|_| Ok(None)).is_err());
    x.register_hook(|gradient| reduce::sum(gradient, (), false).map(Some)).unwrap();
    let text = reduce::sum(&x, (), false).unwrap().backward().unwrap_err().to_string();
    assert!(text.contains("a hook replaced a gradient of shape"), "{text}");
}

#[test]
fn a_leafs_gradient_is_its_own() {
    let (x, y) = (vector(&[1.0, 2.0]), vector(&[3.0, 4.0]));
    reduce::sum(&add(&x, &y).unwrap(), (), false).unwrap().backward().unwrap();
    let (of_x, of_y) = (x.grad().unwrap(), y.grad().unwrap());
    of_x.fill(7.0).unwrap();
    assert_eq!(of_y.to_f64_vec().unwrap(), [1.0, 1.0]);
}

#[test]
fn comparisons_are_facts_and_missing_gradients_are_errors_by_name() {
    let x = vector(&[-1.0, 2.0]);
    let positive = elementwise::gt(&x, 0.0).unwrap();
    assert!(!positive.requires_grad());
    reduce::sum(&(&x * &positive).unwrap(), (), false).unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_f64_vec().unwrap(), [0.0, 1.0]);
    let text = reduce::any(&x, (), false).unwrap().backward().unwrap_err().to_string();
    assert!(text.contains("any at") && text.contains("has no gradient"), "{text}");
    let text = x.norm(0.0, (), false).unwrap().backward().unwrap_err().to_string();
    assert!(text.contains("norm with p = 0"), "{text}");
}

#[test]
fn checkpoints_give_the_same_gradients_for_less_memory() {
    let (x, weight) = (random(&[4], 1, (-1.0, 1.0)), random(&[4], 2, (-1.0, 1.0)));
    let outside = mul(&weight, &weight).unwrap();
    let (captured, made) = (weight.clone(), outside.clone());
    let part = move |inputs: &[&Tensor]| -> netcl_autograd::Result<Tensor> {
        let noisy = mul(
            inputs[0],
            &Tensor::from(netcl_ops::random::uniform(inputs[0].queue(), [4], DType::F64, 0.5, 1.5, None)?),
        )?;
        mul(&exp(&mul(&noisy, &captured)?)?, &made)
    };
    let run = |checkpointed: bool| {
        netcl_core::random::manual_seed(5);
        for tensor in [&x, &weight] {
            tensor.set_grad(None);
        }
        let input = elementwise::sin(&x).unwrap();
        let y = if checkpointed { checkpoint(part.clone(), &[&input]).unwrap() } else { part(&[&input]).unwrap() };
        let loss = reduce::sum(&y, (), false).unwrap();
        loss.backward_with(None, BackwardOptions { retain_graph: true, create_graph: false }).unwrap();
        // The generator stands where it would have stood.
        let next = netcl_core::random::default_generator();
        [&x, &weight]
            .map(|t| t.grad().unwrap().to_f64_vec().unwrap())
            .into_iter()
            .chain([vec![next.offset as f64]])
            .collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
    let captured = weight.clone();
    let smooth = move |inputs: &[&Tensor]| exp(&mul(inputs[0], &captured)?);
    let second = Tolerance { eps: 1e-5, atol: 1e-4, rtol: 1e-3 };
    gradgradcheck(|t| checkpoint(smooth.clone(), &[&elementwise::sin(t[0])?]), &[&x], second).unwrap();
}

#[test]
fn recording_is_a_matter_of_the_thread() {
    let x = vector(&[1.0]);
    let _scope = no_grad();
    let other = x.clone();
    assert!(std::thread::spawn(move || exp(&other).unwrap().requires_grad()).join().unwrap());
    assert!(!exp(&x).unwrap().requires_grad());
    let tape = Tape::new();
    let y = exp(&x).unwrap();
    assert_eq!(tape.recorded(), 1);
    tape.backward(&y).unwrap();
    assert!(x.grad().is_some());
}

#[test]
fn operators_and_methods_record() {
    let (x, y) = (random(&[2, 3], 1, (0.5, 1.5)), random(&[3], 2, (0.5, 1.5)));
    let function = |t: &[&Tensor]| {
        let a = (&(t[0] + t[1])? * 2.0)?;
        let b = (&(1.0 - &a)? / t[1])?;
        (-&b)?.tanh()?.mean(1, true)?.expand([2, 3])?.transpose(0, 1)?.matmul(t[0])
    };
    gradcheck(function, &[&x, &y], Tolerance::default()).unwrap();
}

#[test]
fn saved_memory_is_freed_as_the_walk_passes() {
    use netcl_core::backend::cpu::buffer;
    let n = 1 << 18;
    let x = Tensor::full(&cpu(), [n], DType::F32, 0.5).unwrap().with_grad();
    let before = buffer::stats().live_bytes;
    let mut y = exp(&x).unwrap();
    for _ in 0..20 {
        y = elementwise::tanh(&y).unwrap();
    }
    let loss = reduce::sum(&y, (), false).unwrap();
    drop(y);
    let held = buffer::stats().live_bytes - before;
    assert!(held >= 20 * n * 4, "tanh saves its input: {held}");
    loss.backward().unwrap();
    let after = buffer::stats().live_bytes - before;
    assert!(after <= 3 * n * 4, "the walk should leave the gradient alone: {after} of {held}");
}

#[test]
fn writes_in_place_have_the_gradients_of_what_they_do() {
    type Write = fn(&mut Tensor, &Tensor) -> netcl_autograd::Result<()>;
    let writes: [(&str, Write); 10] = [
        ("add_", |x, y| x.add_(y)),
        ("sub_", |x, y| x.sub_(y)),
        ("mul_", |x, y| x.mul_(y)),
        ("div_", |x, y| x.div_(y)),
        ("pow_", |x, y| x.pow_(y)),
        ("mul_ itself", |x, _| x.mul_(&x.clone())),
        ("clamp_", |x, _| x.clamp_(1.0, 1.5)),
        ("copy_", |x, y| x.copy_(y)),
        ("fill_", |x, _| x.fill_(3.0)),
        ("update_at", |x, y| {
            let column: View = Arc::new(|layout| layout.select("test", 1, 2));
            x.update_at("mul_", &column, |part| part.mul_(2.5))?;
            x.assign_at(&(Arc::new(|layout: &Layout| layout.select("test", 0, 1)) as View), y)
        }),
    ];
    for (name, write) in writes {
        let (x, y) = (random(&[3, 4], 1, (0.5, 2.0)), random(&[4], 2, (0.5, 2.0)));
        let function = |t: &[&Tensor]| {
            let mut z = mul(t[0], 1.25)?;
            write(&mut z, t[1])?;
            add(&mul(&z, &z)?, &mul(t[1], 0.5)?)
        };
        gradcheck(function, &[&x, &y], Tolerance::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let tolerance = Tolerance { eps: 1e-5, atol: 1e-4, rtol: 1e-3 };
        gradgradcheck(function, &[&x, &y], tolerance).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn writes_in_place_obey_the_graph() {
    let mut leaf = vector(&[1.0, 2.0]);
    let text = leaf.add_(1.0).unwrap_err().to_string();
    assert!(text.contains("add_") && text.contains("leaf that requires grad") && text.contains("no_grad"), "{text}");
    let mut y = mul(&leaf, 2.0).unwrap();
    let alias = y.clone();
    let version = y.version();
    y.mul_(3.0).unwrap();
    assert!(y.shares_storage(&alias) && y.version() > version);
    assert_eq!(alias.to_f64_vec().unwrap(), [6.0, 12.0]);
    let text = alias.sum((), false).unwrap().backward().unwrap_err().to_string();
    assert!(text.contains("backward of mul") && text.contains("overwritten in place"), "{text}");
    y.sum((), false).unwrap().backward().unwrap();
    assert_eq!(leaf.grad().unwrap().to_f64_vec().unwrap(), [6.0, 6.0]);

    // A write that nobody records, into the result of an op.
    let result = exp(&leaf).unwrap();
    netcl_ops::elementwise::apply("mul", &[result.raw().into(), 2.0.into()], &[], Some(result.raw())).unwrap();
    assert!(result.sum((), false).unwrap().backward().unwrap_err().to_string().contains("backward of exp"));
    assert!(grad(&[&result.sum((), false).unwrap()], &[&leaf], &[], Default::default()).is_err());

    let _scope = no_grad();
    leaf.sub_(1.0).unwrap();
    assert_eq!(leaf.to_f64_vec().unwrap(), [0.0, 1.0]);
    assert!(leaf.is_leaf() && leaf.requires_grad());
}

#[test]
fn a_leaf_that_moves_stays_the_same_leaf() {
    let mut leaf = vector(&[1.0, 2.0]);
    let clone = leaf.clone();
    let recorded = mul(&leaf, &leaf).unwrap().sum((), false).unwrap();
    leaf.set_grad(Some(vector(&[0.5, 0.5]).detach()));
    leaf.move_to(leaf.raw().cast(DType::F32).unwrap()).unwrap();
    assert!(clone.has_moved() && clone.latest().shares_storage(&leaf) && !leaf.has_moved());
    assert_eq!(clone.grad().unwrap().dtype(), DType::F32);
    recorded.backward().unwrap();
    assert_eq!(clone.latest().grad().unwrap().to_host::<f32>().unwrap(), [2.5, 4.5]);
    assert!(mul(&leaf, 2.0).unwrap().move_to(leaf.raw().clone()).is_err());
}

#[test]
fn parts_of_a_split_that_nobody_uses_have_zeros() {
    let x = leaf(&cpu(), DType::F64, &[2, 3], 1, (1.0, 2.0));
    let values = x.to_host::<f64>().unwrap();
    for used in 0..3 {
        let part = split(&x, &[1, 1, 1], 1).unwrap().swap_remove(used);
        let squares = reduce::sum(&mul(&part, &part).unwrap(), (), false).unwrap();
        let found = grad(&[&squares], &[&x], &[], Default::default()).unwrap();
        let expected: Vec<f64> =
            values.iter().enumerate().map(|(i, v)| if i % 3 == used { 2.0 * v } else { 0.0 }).collect();
        assert_eq!(found[0].as_ref().unwrap().to_host::<f64>().unwrap(), expected);
    }
}

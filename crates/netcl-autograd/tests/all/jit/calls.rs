//! What is looked up in every call: captured tensors, their flags and versions, random numbers.

use netcl_autograd::jit::jit;
use netcl_autograd::ops::dropout::dropout;
use netcl_autograd::{Result, Tensor};
use netcl_core::device::manager;
use netcl_core::random::{Generator, default_generator, manual_seed};

use super::{close, queues, ramp};

#[test]
fn captured_parameters_get_gradients_and_their_new_values_are_seen() {
    let queue = manager().cpu().queue;
    let weight = ramp(&queue, &[6], 1.0).with_grad();
    let captured = weight.clone();
    let compiled = jit(move |t: &[&Tensor]| (t[0] * &captured)?.tanh());
    let x = ramp(&queue, &[3, 6], 1.0);
    for step in 0..3 {
        weight.fill(0.1 * f64::from(step)).unwrap();
        weight.set_grad(None);
        let out = compiled.call(&[&x]).unwrap();
        out.sum((), false).unwrap().backward().unwrap();
        let plain = weight.detach().with_grad();
        let expected = (&x * &plain).unwrap().tanh().unwrap();
        expected.sum((), false).unwrap().backward().unwrap();
        close(&out, &expected, 1e-6);
        close(&weight.grad().unwrap(), &plain.grad().unwrap(), 1e-6);
    }
    assert_eq!(compiled.counters().traces, 1);
}

/// Every call draws what op by op would have drawn, and leaves the generator where that would have left it.
#[test]
fn random_numbers_are_those_of_op_by_op() {
    let _alone = GENERATOR.lock().unwrap();
    for queue in queues() {
        let f = |t: &[&Tensor]| {
            let noise: Tensor = netcl_ops::random::uniform(t[0].queue(), [9, 7], t[0].dtype(), 0.0, 1.0, None)?.into();
            &dropout(&(t[0] * 2.0)?, 0.4, None)?.tanh()? + &noise
        };
        let x = ramp(&queue, &[9, 7], 1.0);
        // Three calls, and only then their backward passes: each has the mask of its own call.
        let run = |f: &dyn Fn(&[&Tensor]) -> Result<Tensor>| {
            manual_seed(11);
            let leaves: Vec<Tensor> = (0..3).map(|_| x.detach().with_grad()).collect();
            let outputs: Vec<Tensor> = leaves.iter().map(|leaf| f(&[leaf]).unwrap()).collect();
            outputs.iter().rev().for_each(|out| out.sum((), false).unwrap().backward().unwrap());
            let values = outputs.iter().cloned().chain(leaves.iter().map(|leaf| leaf.grad().unwrap()));
            (values.map(|t| t.to_host::<f32>().unwrap()).collect::<Vec<_>>(), default_generator())
        };
        let compiled = jit(f);
        let (expected, got) = (run(&f), run(&|t| compiled.call(t)));
        assert_eq!(got, expected, "on {}", queue.device_name());
        assert_ne!(got.0[0], got.0[1]);
        let leaf = x.detach().with_grad();
        let text = compiled.explain(&[&leaf]).unwrap();
        assert!(text.contains("random numbers are new in every call"), "{text}");
        assert_eq!(compiled.counters().traces, 1);
        // A generator of the function's own cannot be moved on by the compiler.
        let own = std::sync::Mutex::new(Generator::new(5));
        let aside = jit(move |t: &[&Tensor]| dropout(t[0], 0.5, Some(&mut own.lock().unwrap())));
        let first = aside.call(&[&x]).unwrap().to_host::<f32>().unwrap();
        assert_ne!(aside.call(&[&x]).unwrap().to_host::<f32>().unwrap(), first);
        assert!(aside.explain(&[&x]).unwrap().contains("generator of its own"));
    }
}

/// The process-wide generator is everybody's: tests that look at it take turns.
static GENERATOR: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A checkpoint draws the numbers of its forward pass again, which a compiled function could not.
#[test]
fn a_checkpoint_that_draws_runs_as_it_is() {
    let _alone = GENERATOR.lock().unwrap();
    // No zeros but those of the mask.
    let x = (&ramp(&manager().cpu().queue, &[64], 1.0) + 2.0).unwrap().detach().with_grad();
    let compiled =
        jit(|t: &[&Tensor]| netcl_autograd::checkpoint(|t: &[&Tensor]| dropout(&t[0].tanh()?, 0.5, None), &[t[0]]));
    let out = compiled.call(&[&x]).unwrap();
    out.sum((), false).unwrap().backward().unwrap();
    let (out, grad) = (out.to_host::<f32>().unwrap(), x.grad().unwrap().to_host::<f32>().unwrap());
    assert!(out.iter().zip(&grad).all(|(y, g)| (*y == 0.0) == (*g == 0.0)));
    assert!(compiled.explain(&[&x]).unwrap().contains("checkpoint"));
}

#[test]
fn a_captured_tensor_may_begin_and_cease_to_need_a_gradient() {
    let queue = manager().cpu().queue;
    let (weight, frozen) = (ramp(&queue, &[6], 1.0), ramp(&queue, &[6], 0.5));
    let captured = [weight.clone(), frozen.clone()];
    let compiled = jit(move |t: &[&Tensor]| (&(t[0] * &captured[0])? + &captured[1])?.tanh());
    let x = ramp(&queue, &[3, 6], 1.0).with_grad();
    for (round, wanted) in [false, true, false, true].into_iter().enumerate() {
        weight.set_requires_grad(wanted).unwrap();
        weight.set_grad(None);
        compiled.call(&[&x]).unwrap().sum((), false).unwrap().backward().unwrap();
        assert_eq!(weight.grad().is_some(), wanted, "round {round}");
        assert!(frozen.grad().is_none());
    }
    // Both kinds are known by now.
    assert_eq!((compiled.counters().traces, compiled.counters().plans), (2, 2));
}

#[test]
fn a_captured_tensor_that_was_overwritten_is_noticed() {
    let queue = manager().cpu().queue;
    let weight = ramp(&queue, &[6], 1.0);
    let captured = weight.clone();
    let compiled = jit(move |t: &[&Tensor]| t[0] * &captured);
    let x = ramp(&queue, &[6], 1.0).with_grad();
    let out = compiled.call(&[&x]).unwrap().sum((), false).unwrap();
    weight.fill(3.0).unwrap();
    let text = out.backward().unwrap_err().to_string();
    assert!(text.contains("overwritten in place"), "{text}");
    // A new call sees the new values.
    compiled.call(&[&x]).unwrap().sum((), false).unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_host::<f32>().unwrap(), [3.0; 6]);
}

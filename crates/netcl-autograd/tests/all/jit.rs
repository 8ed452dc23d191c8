//! Compiled functions: the same numbers in fewer launches, forward and backward, on every device.

mod before;
mod calls;

use std::rc::Rc;

use netcl_autograd::jit::{Jit, Outputs, Style, jit};
use netcl_autograd::ops::conv::{ConvParams, conv2d};
use netcl_autograd::ops::loss::{CrossEntropyOptions, cross_entropy};
use netcl_autograd::ops::matmul::linear;
use netcl_autograd::ops::norm::layer_norm;
use netcl_autograd::{Result, Tensor, no_grad};
use netcl_core::backend::Queue;
use netcl_core::device::manager;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{Counter, Recorder, with_sink};

fn queues() -> Vec<Queue> {
    let found = manager().discover().unwrap();
    let handles = found.iter().map(|device| manager().handle(device).unwrap());
    handles.chain([manager().cpu()]).map(|handle| handle.queue).collect()
}

fn ramp(queue: &Queue, shape: &[usize], scale: f32) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0) * scale).collect();
    Tensor::from_host(queue, &values, shape).unwrap()
}

/// Values and gradients of a function, op by op and compiled, and how many launches the compiled one made each way.
fn compare<R: Outputs + 'static>(
    f: impl Fn(&[&Tensor]) -> Result<R> + Send + Sync + Clone + 'static,
    inputs: &[&Tensor],
    tolerance: f64,
) -> (usize, usize) {
    let fresh = || inputs.iter().map(|t| t.detach().with_grad()).collect::<Vec<Tensor>>();
    let run = |outputs: Vec<Tensor>| {
        let mut launches = 0;
        for (i, output) in outputs.iter().enumerate() {
            let upstream = ramp(output.queue(), output.shape(), 1.0 + i as f32);
            let counter = Rc::new(Counter::default());
            let options = netcl_autograd::BackwardOptions { retain_graph: true, ..Default::default() };
            with_sink(counter.clone(), || output.backward_with(Some(&upstream), options)).unwrap();
            launches = counter.launches();
        }
        launches
    };
    let plain = fresh();
    let expected = f(&plain.iter().collect::<Vec<_>>()).unwrap().into_list();
    run(expected.clone());
    let compiled = jit(f);
    let mut counts = (0, 0);
    for pass in 0..2 {
        let own = fresh();
        let own_refs: Vec<&Tensor> = own.iter().collect();
        let counter = Rc::new(Counter::default());
        let got = with_sink(counter.clone(), || compiled.call(&own_refs)).unwrap().into_list();
        let back = run(got.clone());
        for (got, expected) in got.iter().zip(&expected) {
            close(got, expected, tolerance);
        }
        for (own, plain) in own.iter().zip(&plain) {
            match (own.grad(), plain.grad()) {
                (Some(own), Some(plain)) => close(&own, &plain, tolerance),
                (own, plain) => assert_eq!(own.is_some(), plain.is_some(), "pass {pass}"),
            }
        }
        counts = (counter.launches(), back);
    }
    assert_eq!(compiled.counters().traces, 1);
    counts
}

fn close(got: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(got.shape(), expected.shape());
    let (got, expected) = (got.to_f64_vec().unwrap(), expected.to_f64_vec().unwrap());
    for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
        assert!((g - e).abs() <= tolerance * (1.0 + e.abs()), "element {i}: {g} instead of {e}");
    }
}

fn launches<R: Outputs + 'static>(compiled: &Jit<R>, inputs: &[&Tensor]) -> usize {
    compiled.call(inputs).unwrap();
    let counter = Rc::new(Counter::default());
    with_sink(counter.clone(), || compiled.call(inputs)).unwrap();
    counter.launches()
}

fn chain(t: &[&Tensor]) -> Result<Tensor> {
    let (x, y) = (t[0], t[1]);
    &(&(&(x * y)? + 1.0)?.tanh()? * &x.sigmoid()?)? + &y.relu()?
}

#[test]
fn a_six_op_chain_is_one_launch_each_way() {
    for queue in queues() {
        let (x, y) = (ramp(&queue, &[3, 67], 1.0), ramp(&queue, &[3, 67], 2.0));
        assert_eq!(compare(chain, &[&x, &y], 1e-6), (1, 1), "on {}", queue.device_name());
    }
}

fn written_softmax(t: &[&Tensor]) -> Result<Tensor> {
    let shifted = (t[0] - &t[0].max(-1, true)?.detach())?.exp()?;
    &shifted / &shifted.sum(-1, true)?
}

#[test]
fn softmax_is_one_launch_each_way_however_it_is_written() {
    for queue in queues() {
        let x = ramp(&queue, &[70, 33], 3.0);
        assert_eq!(compare(|t: &[&Tensor]| t[0].softmax(-1), &[&x], 1e-6), (1, 1), "on {}", queue.device_name());
        assert_eq!(compare(|t: &[&Tensor]| t[0].log_softmax(-1), &[&x], 1e-6), (1, 1), "on {}", queue.device_name());
        assert_eq!(compare(written_softmax, &[&x], 1e-6), (1, 1), "on {}", queue.device_name());
    }
}

#[test]
fn layer_norm_is_one_launch_and_at_most_two_backward() {
    for queue in queues() {
        let (x, scale, shift) = (ramp(&queue, &[66, 40], 1.0), ramp(&queue, &[40], 1.0), ramp(&queue, &[40], 0.5));
        let norm = |t: &[&Tensor]| layer_norm(t[0], 1, Some(t[1]), Some(t[2]), 1e-5);
        let (forward, backward) = compare(norm, &[&x, &scale, &shift], 1e-5);
        assert_eq!(forward, 1, "on {}", queue.device_name());
        // On OpenCL devices the parameters' gradients are sums of sums.
        let most = if matches!(queue, Queue::Cpu(_)) { 1 } else { 2 };
        assert!(backward <= most, "{backward} on {}", queue.device_name());
    }
}

#[test]
fn what_follows_a_product_or_a_convolution_becomes_part_of_it() {
    for queue in queues() {
        let _scope = no_grad();
        let (x, w, b) = (ramp(&queue, &[20, 24], 1.0), ramp(&queue, &[32, 24], 0.5), ramp(&queue, &[32], 1.0));
        let layer = jit(|t: &[&Tensor]| linear(t[0], t[1], Some(t[2]))?.gelu());
        let expected = linear(&x, &w, Some(&b)).unwrap().gelu().unwrap();
        close(&layer.call(&[&x, &w, &b]).unwrap(), &expected, 1e-6);
        let plain = jit(|t: &[&Tensor]| linear(t[0], t[1], Some(t[2])));
        let alone = launches(&plain, &[&x, &w, &b]);
        assert_eq!(launches(&layer, &[&x, &w, &b]), alone, "linear on {}", queue.device_name());
        // Some devices pack the operands of a product first.
        assert!(matches!(queue, Queue::OpenCl(_)) || alone == 1);

        let (x, w, b) = (ramp(&queue, &[2, 3, 9, 9], 1.0), ramp(&queue, &[8, 3, 3, 3], 0.5), ramp(&queue, &[8], 1.0));
        let layer = jit(|t: &[&Tensor]| conv2d(t[0], t[1], Some(t[2]), &ConvParams::default())?.relu());
        let expected = conv2d(&x, &w, Some(&b), &ConvParams::default()).unwrap().relu().unwrap();
        close(&layer.call(&[&x, &w, &b]).unwrap(), &expected, 1e-6);
        let plain = jit(|t: &[&Tensor]| conv2d(t[0], t[1], Some(t[2]), &ConvParams::default()));
        let alone = launches(&plain, &[&x, &w, &b]);
        assert_eq!(launches(&layer, &[&x, &w, &b]), alone, "conv on {}", queue.device_name());
    }
}

#[test]
fn relu_is_part_of_a_convolution_in_training_too() {
    let queue = manager().cpu().queue;
    let (x, w, b) = (ramp(&queue, &[2, 3, 9, 9], 1.0), ramp(&queue, &[8, 3, 3, 3], 0.5), ramp(&queue, &[8], 1.0));
    let layer = |t: &[&Tensor]| conv2d(t[0], t[1], Some(t[2]), &ConvParams::default())?.relu();
    assert_eq!(compare(layer, &[&x, &w, &b], 1e-5).0, 1);
}

#[test]
fn cross_entropy_of_logits_is_one_launch_each_way_at_any_size() {
    for queue in queues() {
        for (rows, classes) in [(70, 11), (512, 1000), (4096, 50)] {
            let x = ramp(&queue, &[rows, classes], 3.0);
            let labels: Vec<i64> = (0..rows).map(|i| (i * 7 % classes) as i64).collect();
            let labels = IndexTensor::from_host(&queue, &labels, [rows]).unwrap();
            let loss = move |t: &[&Tensor]| cross_entropy(t[0], &labels, &CrossEntropyOptions::default());
            let counts = compare(loss, &[&x], 1e-6);
            assert_eq!(counts, (1, 1), "{rows} x {classes} on {}", queue.device_name());
        }
    }
}

/// Work-groups count themselves to know the last one: the count must be as before when a launch runs again.
#[test]
fn a_recorded_cross_entropy_can_be_replayed() {
    for queue in queues() {
        let x = ramp(&queue, &[300, 40], 1.0);
        let labels: Vec<i64> = (0..300).map(|i| i * 3 % 40).collect();
        let labels = IndexTensor::from_host(&queue, &labels, [300]).unwrap();
        let recorder = Rc::new(Recorder::default());
        let _scope = no_grad();
        let loss = || cross_entropy(&x, &labels, &CrossEntropyOptions::default()).unwrap();
        let replayed = with_sink(recorder.clone(), loss);
        for scale in [1.0f32, 2.0, -3.0] {
            x.assign(ramp(&queue, &[300, 40], scale).raw()).unwrap();
            recorder.replay().unwrap();
            assert_eq!(replayed.item().unwrap(), loss().item().unwrap(), "on {}", queue.device_name());
        }
    }
}

#[test]
fn five_hundred_operations_and_forty_inputs_are_cut_into_kernels() {
    for queue in queues() {
        let _scope = no_grad();
        let x = ramp(&queue, &[37], 1.0);
        let long =
            |t: &[&Tensor]| (0..250).try_fold(t[0].clone(), |x, i| (&(&x * 0.99)? + (f64::from(i) * 1e-3))?.sin());
        let expected = long(&[&x]).unwrap();
        let compiled = jit(long);
        close(&compiled.call(&[&x]).unwrap(), &expected, 1e-6);
        let count = launches(&compiled, &[&x]);
        // Every number of the chain is a parameter.
        let small = std::env::var_os("NETCL_LIMITS").is_some() && matches!(queue, Queue::OpenCl(_));
        let expected_launches = if small { 13..=40 } else { 2..=12 };
        assert!(expected_launches.contains(&count), "{count} launches on {}", queue.device_name());

        let many: Vec<Tensor> = (0..40).map(|i| ramp(&queue, &[19], 0.1 * (i + 1) as f32)).collect();
        let many: Vec<&Tensor> = many.iter().collect();
        let sum = |t: &[&Tensor]| t[1..].iter().try_fold(t[0].clone(), |sum, x| &sum + &x.tanh()?);
        let expected = sum(&many).unwrap();
        let compiled = jit(sum);
        close(&compiled.call(&many).unwrap(), &expected, 1e-6);
        let count = launches(&compiled, &many);
        let expected_launches = if small { 3..=8 } else { 1..=4 };
        assert!(expected_launches.contains(&count), "{count} launches on {}", queue.device_name());
    }
}

/// 256 bytes of parameters are 16 tensors. Limits are read once, so this is another process.
#[test]
fn forty_inputs_are_cut_where_a_device_takes_few_parameters() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "jit::five_hundred_operations_and_forty_inputs_are_cut_into_kernels"])
        .env("NETCL_LIMITS", "params=256")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_new_size_is_traced_but_compiles_nothing() {
    use netcl_core::backend::opencl::Builder;
    for queue in queues() {
        let compiled = jit(|t: &[&Tensor]| {
            let shifted = (t[0] - &t[0].mean(-1, true)?)?;
            &shifted / &(&shifted.square()?.mean(-1, true)? + 1e-5)?.sqrt()?
        });
        let call = |rows: usize, columns: usize| {
            let x = ramp(&queue, &[rows, columns], 1.0).with_grad();
            compiled.call(&[&x]).unwrap().sum((), false).unwrap().backward().unwrap();
            x.grad().unwrap().to_host::<f32>().unwrap();
        };
        // Neither compiled nor read from disk: the kernels of the first size are used.
        let programs = || Builder::global().stats().builds + Builder::global().stats().hits;
        call(70, 300);
        let before = programs();
        call(81, 412);
        call(81, 412);
        assert_eq!(programs(), before, "on {}", queue.device_name());
        assert_eq!(compiled.counters().traces, 2);
    }
}

#[test]
fn several_results_structures_and_unused_ones() {
    let queue = manager().cpu().queue;
    let (x, y) = (ramp(&queue, &[4, 5], 1.0), ramp(&queue, &[5], 2.0));
    let f = |t: &[&Tensor]| Ok(((t[0] * t[1])?, [t[0].exp()?, t[1].sum((), false)?]));
    compare(f, &[&x, &y], 1e-6);
    // Only one of the results is used: the others count as zero.
    let compiled = jit(f);
    let leaf = x.detach().with_grad();
    let (product, _) = compiled.call(&[&leaf, &y]).unwrap();
    product.sum((), false).unwrap().backward().unwrap();
    let expected: Vec<f32> = (0..4).flat_map(|_| y.to_host::<f32>().unwrap()).collect();
    assert_eq!(leaf.grad().unwrap().to_host::<f32>().unwrap(), expected);
}

#[test]
fn values_cannot_be_read_inside() {
    let x = ramp(&manager().cpu().queue, &[2], 1.0);
    let compiled = jit(|t: &[&Tensor]| {
        let largest = t[0].max((), false)?.item()?;
        t[0] * largest
    });
    let text = compiled.call(&[&x]).unwrap_err().to_string();
    assert!(text.contains("jit compiles") && text.contains("where()"), "{text}");
}

#[test]
fn in_place_writes_stay_right() {
    let queue = manager().cpu().queue;
    let x = ramp(&queue, &[8], 1.0);
    let state = Tensor::from_shape(&queue, [8], netcl_core::dtype::DType::F32).unwrap();
    let captured = state.clone();
    let compiled = jit(move |t: &[&Tensor]| {
        let before = (&captured + t[0])?;
        captured.assign(before.raw())?;
        &before * 2.0
    });
    let _scope = no_grad();
    for step in 1..4 {
        let out = compiled.call(&[&x]).unwrap();
        close(&state, &(&x * f64::from(step)).unwrap(), 1e-6);
        close(&out, &(&x * f64::from(2 * step)).unwrap(), 1e-6);
    }
}

#[test]
fn a_gradient_can_be_differentiated_again() {
    let queue = manager().cpu().queue;
    let x = Tensor::from_host(&queue, &[0.3f64, -0.7], [2]).unwrap().with_grad();
    let compiled = jit(|t: &[&Tensor]| (&t[0].square()? * t[0])?.sum((), false));
    let options = netcl_autograd::BackwardOptions { create_graph: true, ..Default::default() };
    let slope = netcl_autograd::grad(&[&compiled.call(&[&x]).unwrap()], &[&x], &[], options).unwrap();
    let slope = slope[0].clone().unwrap().sum((), false).unwrap();
    slope.backward().unwrap();
    close(&x.grad().unwrap(), &Tensor::from_host(&queue, &[1.8f64, -4.2], [2]).unwrap(), 1e-12);
}

#[test]
fn a_plan_explains_itself() {
    for queue in queues() {
        let (x, y) = (ramp(&queue, &[64, 32], 1.0).with_grad(), ramp(&queue, &[64, 32], 2.0));
        let compiled = jit(chain);
        let text = compiled.explain(&[&x, &y]).unwrap();
        assert!(text.contains("forward: 7 operations, 1 launch instead of 7"), "{text}");
        assert!(text.contains("kept for the backward pass: 0 values"), "{text}");
        let source = compiled.source(&[&x, &y]).unwrap();
        assert!(source.contains("kernel void") && source.contains("tanh"), "{source}");
        let drawing = compiled.graph(&[&x, &y], Style::Dot).unwrap();
        assert!(drawing.starts_with("digraph") && drawing.contains("label=\"tanh\""), "{drawing}");
        assert!(compiled.graph(&[&x, &y], Style::Mermaid).unwrap().contains("flowchart"));
    }
}

#[test]
fn sixteen_bit_chains_are_rounded_once() {
    use netcl_core::dtype::DType;
    for queue in queues() {
        for dtype in [DType::F16, DType::BF16] {
            let (x, y) = (ramp(&queue, &[65], 1.0), ramp(&queue, &[65], 2.0));
            let narrow = [x.cast(dtype).unwrap(), y.cast(dtype).unwrap()];
            let exact: Vec<Tensor> = narrow.iter().map(|t| t.cast(DType::F32).unwrap()).collect();
            let expected = chain(&[&exact[0], &exact[1]]).unwrap().cast(dtype).unwrap();
            let got = jit(chain).call(&[&narrow[0], &narrow[1]]).unwrap();
            assert_eq!(got.dtype(), dtype);
            assert_eq!(got.to_f64_vec().unwrap(), expected.to_f64_vec().unwrap(), "{dtype} on {}", queue.device_name());
        }
    }
}

/// Compiles something on every device and says how many programs the compilers were run for; only when asked to.
#[test]
fn a_process_that_compiles() {
    if std::env::var_os("NETCL_TEST_CHILD").is_none() {
        return;
    }
    for queue in queues() {
        let (x, y) = (ramp(&queue, &[70, 33], 1.0).with_grad(), ramp(&queue, &[70, 33], 2.0));
        let compiled = jit(|t: &[&Tensor]| &chain(t)? / &t[0].square()?.sum(-1, true)?);
        compiled.call(&[&x, &y]).unwrap().sum((), false).unwrap().backward().unwrap();
        x.grad().unwrap().to_host::<f32>().unwrap();
    }
    let stats = netcl_core::backend::opencl::Builder::global().stats();
    println!("compiled {} loaded {}.", stats.builds, stats.hits);
}

#[test]
fn a_second_process_compiles_nothing() {
    if manager().discover().unwrap().is_empty() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("netcl-jit-cache-{}", std::process::id()));
    let run = || {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "jit::a_process_that_compiles", "--nocapture"])
            .envs([("NETCL_TEST_CHILD", "1".as_ref()), ("NETCL_CACHE_DIR", folder.as_os_str())])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (first, second) = (run(), run());
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(first.contains("compiled ") && !first.contains("compiled 0 "), "{first}");
    assert!(second.contains("compiled 0 ") && !second.contains("loaded 0."), "{second}");
}

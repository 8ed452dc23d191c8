//! Autocast: dtypes by the table, gradients near those of float32, copies of weights, scopes, jit and capture.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

use netcl_autograd::autocast::{Policy, autocast, autocast_dtype, autocast_off, policies};
use netcl_autograd::ops::einsum::einsum;
use netcl_autograd::ops::matmul::{linear, matmul};
use netcl_autograd::ops::norm::layer_norm;
use netcl_autograd::ops::{elementwise, loss};
use netcl_autograd::{BackwardOptions, IndexTensor, Result, Tensor, checkpoint, jit, no_grad};
use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Access, Arg, Counter, Launch, Sink, with_sink};
use netcl_runtime::capture::capture;

use crate::support::{Case, cases, cpu, devices, leaf};

const NARROW: [DType; 2] = [DType::F16, DType::BF16];

/// The op that a case is about.
fn op_of(case: &Case) -> &str {
    match case.name.split([',', ' ']).next().unwrap() {
        "attention" => "scaled_dot_product_attention",
        op => op,
    }
}

fn policy_of(case: &Case) -> Policy {
    policies().find(|(op, _)| *op == op_of(case)).map_or(Policy::Keep, |(_, policy)| policy)
}

/// Cases that take the exponential of an input on the way, which is float32.
fn has_exponential(case: &Case) -> bool {
    matches!(&case.name[..], "mul, broadcast" | "stack" | "split" | "chunk")
}

fn cast_leaf(leaf: &Tensor, dtype: DType) -> Tensor {
    Tensor::from(leaf.raw().cast(dtype).unwrap()).with_grad()
}

#[test]
fn results_have_the_dtypes_of_the_table() {
    let mut tested = HashSet::new();
    for case in cases() {
        // A cast says itself what it gives.
        if op_of(&case) == "cast" {
            continue;
        }
        let (policy, leaves) = (policy_of(&case), case.leaves(&cpu(), DType::F32));
        tested.insert(op_of(&case).to_owned());
        // Comparisons give truth values whatever they compare.
        if (case.function)(&leaves.iter().collect::<Vec<_>>()).unwrap().dtype() == DType::U8 {
            continue;
        }
        for narrow in NARROW {
            let run = |dtypes: &dyn Fn(usize) -> DType| {
                let inputs: Vec<Tensor> = leaves.iter().enumerate().map(|(i, t)| cast_leaf(t, dtypes(i))).collect();
                let _scope = autocast(narrow).unwrap();
                let out = (case.function)(&inputs.iter().collect::<Vec<_>>()).unwrap();
                out.dtype()
            };
            let from_wide = if policy == Policy::Narrow { narrow } else { DType::F32 };
            assert_eq!(run(&|_| DType::F32), from_wide, "{} of float32", case.name);
            let exponential = has_exponential(&case);
            let from_narrow = if policy == Policy::Float32 || exponential { DType::F32 } else { narrow };
            assert_eq!(run(&|_| narrow), from_narrow, "{} of {narrow}", case.name);
            assert_eq!(run(&|_| DType::F64), DType::F64, "{} of float64", case.name);
            if leaves.len() > 1 && policy != Policy::Keep {
                let mixed = match policy {
                    Policy::Narrow => narrow,
                    Policy::First if !exponential => narrow,
                    _ => DType::F32,
                };
                assert_eq!(run(&|i| if i == 0 { narrow } else { DType::F32 }), mixed, "{} of both", case.name);
            }
        }
    }
    for (op, _) in policies().filter(|(op, _)| !op.contains("loss") && !OTHERS.contains(op)) {
        assert!(tested.contains(op), "{op} is in the table, but no case has it");
    }
}

/// Ops without a case in the list of all ops: the losses and the first of these are tested below, the last in Python.
const OTHERS: [&str; 9] = [
    "einsum",
    "kl_div",
    "cross_entropy",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cumprod",
    "logcumsumexp",
    "cdist",
    "linear_cross_entropy",
];

fn sum_of(out: &Tensor) -> Tensor {
    elementwise::cast(out, DType::F32).unwrap().sum((), false).unwrap()
}

fn gradients(case: &Case, leaves: &[Tensor]) -> Vec<Vec<f64>> {
    leaves.iter().for_each(|leaf| leaf.set_grad(None));
    let out = (case.function)(&leaves.iter().collect::<Vec<_>>()).unwrap();
    if out.requires_grad() {
        sum_of(&out).backward().unwrap(); // inside of the scope, which must not change what rules do
    }
    leaves
        .iter()
        .map(|leaf| {
            let Some(grad) = leaf.grad() else { return Vec::new() };
            assert_eq!(grad.dtype(), DType::F32, "the gradient of a float32 leaf of {}", case.name);
            grad.to_f64_vec().unwrap()
        })
        .collect()
}

#[test]
fn gradients_are_near_those_of_float32() {
    for device in devices() {
        for case in cases().into_iter().filter(|case| policy_of(case) != Policy::Keep) {
            // OpenCL drivers take their time for each kernel, PoCL most: there, the kernels that compute in 16 bits.
            let heavy = ["linear", "conv2d", "attention, masked", "recurrent lstm"];
            let heavy = if device.platform_name.contains("Portable") { &heavy[..1] } else { &heavy };
            if !matches!(device.queue, Queue::Cpu(_)) && !heavy.contains(&&case.name[..]) {
                continue;
            }
            let leaves = case.leaves(&device.queue, DType::F32);
            let expected = gradients(&case, &leaves);
            for (dtype, tolerance) in NARROW.into_iter().zip([0.01, 0.08]) {
                let _scope = autocast(dtype).unwrap();
                for (expected, found) in expected.iter().zip(gradients(&case, &leaves)) {
                    let scale = expected.iter().fold(1.0, |most: f64, value| most.max(value.abs()));
                    for (expected, found) in expected.iter().zip(found) {
                        let near = (expected - found).abs() <= tolerance * scale;
                        assert!(near, "{} in {dtype}: {found} instead of {expected}", case.name);
                    }
                }
            }
        }
    }
}

#[test]
fn losses_and_einsum() {
    let queue = cpu();
    for narrow in NARROW {
        let x = |seed: u64| leaf(&queue, narrow, &[3, 4], seed, (0.1, 0.9));
        let target = leaf(&queue, DType::F32, &[3, 4], 9, (0.1, 0.9)).detach();
        let sign = leaf(&queue, DType::F32, &[3], 9, (0.5, 2.0)).detach();
        let labels = IndexTensor::from_host(&queue, &[1i64, -1, 0, 0, 2, 3, -1, 0, 0, -1, 1, 1], [3, 4]).unwrap();
        let sequence = IndexTensor::from_host(&queue, &[1i64, 3], [2]).unwrap();
        let _scope = autocast(narrow).unwrap();
        let losses: Vec<(&str, Result<Tensor>)> = vec![
            ("cross_entropy", loss::cross_entropy(&x(1), &[1, 0, 3], &Default::default())),
            ("cross_entropy", loss::cross_entropy(&x(1), &target, &Default::default())),
            ("nll_loss", loss::nll_loss(&x(1), &[1, 0, 3], &Default::default())),
            ("mse_loss", loss::mse_loss(&x(1), &target, Default::default())),
            ("l1_loss", loss::l1_loss(&x(1), &target, Default::default())),
            ("smooth_l1_loss", loss::smooth_l1_loss(&x(1), &target, &Default::default())),
            ("huber_loss", loss::huber_loss(&x(1), &target, &Default::default())),
            ("binary_cross_entropy", loss::binary_cross_entropy(&x(1), &target, &Default::default())),
            (
                "binary_cross_entropy_with_logits",
                loss::binary_cross_entropy_with_logits(&x(1), &target, &Default::default()),
            ),
            ("kl_div", loss::kl_div(&x(1), &target, &Default::default())),
            ("cosine_embedding_loss", loss::cosine_embedding_loss(&x(1), &target, &sign, &Default::default())),
            ("triplet_margin_loss", loss::triplet_margin_loss(&x(1), &target, &x(2), &Default::default())),
            ("poisson_nll_loss", loss::poisson_nll_loss(&x(1), &target, &Default::default())),
            ("gaussian_nll_loss", loss::gaussian_nll_loss(&x(1), &target, &x(2), &Default::default())),
            ("ctc_loss", loss::ctc_loss(&x(1), &sequence, &[3], &[2], &Default::default())),
            ("margin_ranking_loss", loss::margin_ranking_loss(&x(1), &x(2), &target, &Default::default())),
            ("hinge_embedding_loss", loss::hinge_embedding_loss(&x(1), &target, &Default::default())),
            ("soft_margin_loss", loss::soft_margin_loss(&x(1), &target, Default::default())),
            ("multilabel_soft_margin_loss", loss::multilabel_soft_margin_loss(&x(1), &target, &Default::default())),
            ("multi_margin_loss", loss::multi_margin_loss(&x(1), &[1, 0, 3], &Default::default())),
            ("multilabel_margin_loss", loss::multilabel_margin_loss(&x(1), &labels, Default::default())),
        ];
        let tested: HashSet<&str> = losses.iter().map(|(op, _)| *op).collect();
        for (op, _) in policies().filter(|(op, _)| op.contains("loss") || OTHERS[1..5].contains(op)) {
            assert!(tested.contains(op), "{op} is in the table, but was not tested");
        }
        for (op, loss) in losses {
            let loss = loss.unwrap();
            assert_eq!(loss.dtype(), DType::F32, "{op} of {narrow}");
            loss.backward().unwrap();
        }
        for notation in ["ij,kj->ik", "ij,ij", "ij,ij->i"] {
            assert_eq!(einsum(notation, &[&target, &x(1)]).unwrap().dtype(), narrow, "{notation}");
        }
    }
}

/// A parameter and an input whose product is exact in 16 bits.
fn small(queue: &Queue) -> (Tensor, Tensor) {
    let weight = Tensor::full(queue, [4, 4], DType::F32, 0.5).unwrap().with_grad();
    (weight, Tensor::full(queue, [2, 4], DType::F16, 1.0).unwrap())
}

#[test]
fn captured_functions_are_kept_by_scope() {
    let (weight, _) = small(&cpu());
    let x = Tensor::full(&cpu(), [2, 4], DType::F32, 1.0).unwrap();
    let mut step = capture(move |x: &Tensor| linear(x, &weight, None));
    for _ in 0..2 {
        assert_eq!(step.call(&x).unwrap().dtype(), DType::F32);
        let _scope = autocast(DType::F16).unwrap();
        assert_eq!(step.call(&x).unwrap().dtype(), DType::F16);
    }
    assert_eq!(step.recordings(), 2);
}

/// The casts that a function launches.
fn casts(f: impl FnOnce()) -> usize {
    let counter = Rc::new(Counter::default());
    with_sink(counter.clone(), f);
    counter.of("cast") + counter.of("copy")
}

#[test]
fn a_weight_is_cast_once_in_a_scope_and_again_after_an_update() {
    for device in devices() {
        let (weight, x) = small(&device.queue);
        let product = || drop(linear(&x, &weight, None).unwrap());
        let _scope = autocast(DType::F16).unwrap();
        assert_eq!(casts(product), 1);
        assert_eq!(casts(product), 0, "the scope has a copy");
        {
            let _inner = autocast(DType::F16).unwrap();
            assert_eq!(casts(product), 0, "scopes inside share copies");
            let _off = autocast_off();
            assert!(linear(&x, &weight, None).is_err(), "without autocast dtypes do not mix");
        }
        {
            let _other = autocast(DType::BF16).unwrap();
            assert_eq!(casts(product), 2, "the weight and the input in bfloat16");
        }
        weight.raw().fill(0.25).unwrap();
        assert_eq!(casts(product), 1, "the copy is older than the weight");
        let y = linear(&x, &weight, None).unwrap();
        assert_eq!(y.to_f64_vec().unwrap(), [1.0; 8]);
        drop(_scope);
        let _scope = autocast(DType::F16).unwrap();
        assert_eq!(casts(product), 1, "copies end with the outermost scope");
    }
}

#[test]
fn copies_serve_several_graphs_and_both_modes() {
    let (weight, x) = small(&cpu());
    let _scope = autocast(DType::F16).unwrap();
    {
        let _off = no_grad();
        linear(&x, &weight, None).unwrap();
    }
    // A copy that was made unrecorded, then a second walk through the same copy.
    for round in 1..=2 {
        sum_of(&linear(&x, &weight, None).unwrap()).backward().unwrap();
        assert_eq!(weight.grad().unwrap().to_f64_vec().unwrap(), [2.0 * f64::from(round); 16]);
    }
    // Two uses in one graph are added in float32.
    weight.set_grad(None);
    let both = (&linear(&x, &weight, None).unwrap() + &linear(&x, &weight, None).unwrap()).unwrap();
    sum_of(&both).backward().unwrap();
    assert_eq!(weight.grad().unwrap().to_f64_vec().unwrap(), [4.0; 16]);
}

#[test]
fn scopes_nest_and_belong_to_their_thread() {
    assert_eq!(autocast_dtype(), None);
    let outer = autocast(DType::F16).unwrap();
    {
        let _inner = autocast(DType::BF16).unwrap();
        assert_eq!(autocast_dtype(), Some(DType::BF16));
        std::thread::spawn(|| assert_eq!(autocast_dtype(), None)).join().unwrap();
    }
    assert_eq!(autocast_dtype(), Some(DType::F16));
    drop(outer);
    assert_eq!(autocast_dtype(), None);
    let error = autocast(DType::F32).err().unwrap().to_string();
    assert!(error.contains("float16 or bfloat16"), "{error}");
}

#[test]
fn a_checkpoint_computes_again_in_the_scope_it_was_made_in() {
    let (weight, x) = small(&cpu());
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let loss = {
        let _scope = autocast(DType::BF16).unwrap();
        let (weight, seen) = (weight.clone(), seen.clone());
        let y = checkpoint(
            move |t| {
                let y = linear(t[0], &weight, None)?;
                seen.lock().unwrap().push(y.dtype());
                Ok(y)
            },
            &[&x],
        );
        y.unwrap().sum((), false).unwrap()
    };
    loss.backward().unwrap();
    assert_eq!(*seen.lock().unwrap(), [DType::BF16; 2]);
    assert_eq!(weight.grad().unwrap().to_f64_vec().unwrap(), [2.0; 16]);
    assert_eq!(autocast_dtype(), None);
}

#[test]
fn second_derivatives_of_mixed_dtypes() {
    let queue = cpu();
    let x = leaf(&queue, DType::F32, &[3, 4], 1, (-1.0, 1.0));
    let [weight, scale] = [2, 3].map(|seed| leaf(&queue, DType::F32, &[4, 4], seed, (0.5, 1.5)));
    let scale = scale.select(0, 0).unwrap().detach().with_grad();
    let _scope = autocast(DType::BF16).unwrap();
    let y = layer_norm(&matmul(&x, &weight).unwrap(), 1, Some(&scale), None, 1e-3).unwrap();
    assert_eq!(y.dtype(), DType::BF16);
    let loss = y.square().unwrap().sum((), false).unwrap();
    let options = BackwardOptions { create_graph: true, ..Default::default() };
    let first = netcl_autograd::grad(&[&loss], &[&x, &scale], &[], options).unwrap();
    let first: Vec<Tensor> = first.into_iter().flatten().collect();
    assert!(first.iter().all(|grad| grad.dtype() == DType::F32));
    first[0].square().unwrap().sum((), false).unwrap().backward().unwrap();
    assert_eq!(weight.grad().unwrap().dtype(), DType::F32);
}

#[test]
fn compiled_functions_are_kept_by_scope() {
    for device in devices() {
        let (weight, _) = small(&device.queue);
        let x = leaf(&device.queue, DType::F32, &[2, 4], 4, (-1.0, 1.0));
        let own = weight.clone();
        let layer = jit(move |t: &[&Tensor]| linear(t[0], &own, None)?.tanh()?.sum(1, false));
        let expected = layer.call(&[&x]).unwrap();
        assert_eq!(layer.counters().traces, 1);
        let _scope = autocast(DType::F16).unwrap();
        linear(&x, &weight, None).unwrap(); // a copy from outside, which must not become a part of the plan
        for value in [0.5, 0.25] {
            {
                let _off = no_grad();
                weight.raw().fill(value).unwrap();
            }
            let plain = linear(&x, &weight, None).unwrap().tanh().unwrap().sum(1, false).unwrap();
            let found = layer.call(&[&x]).unwrap();
            assert_eq!(found.dtype(), DType::F32);
            for (a, b) in plain.to_f64_vec().unwrap().iter().zip(found.to_f64_vec().unwrap()) {
                assert!((a - b).abs() < 4e-3, "{a} {b}");
            }
            let grad = |y: &Tensor| {
                weight.set_grad(None);
                y.sum((), false).unwrap().backward().unwrap();
                let grad = weight.grad().unwrap();
                assert_eq!(grad.dtype(), DType::F32);
                grad.to_f64_vec().unwrap()
            };
            for (a, b) in grad(&plain).iter().zip(grad(&found)) {
                assert!((a - b).abs() < 4e-3, "{a} {b}");
            }
        }
        assert_eq!(layer.counters().traces, 2);
        drop(_scope);
        weight.raw().fill(0.5).unwrap();
        assert_eq!(layer.call(&[&x]).unwrap().to_f64_vec().unwrap(), expected.to_f64_vec().unwrap());
        assert_eq!(layer.counters().traces, 2);
    }
}

#[test]
fn a_captured_step_casts_at_every_replay() {
    for device in devices() {
        let (weight, x) = small(&device.queue);
        let outer = autocast(DType::F16).unwrap();
        // A copy of the moment, which the recording must not take for the weight of later steps.
        linear(&x, &weight, None).unwrap();
        let own = weight.clone();
        let mut step = capture(move |x: &Tensor| {
            let first = linear(x, &own, None)?;
            let second = linear(x, &own, None)?;
            &first + &second
        });
        for value in [0.5, 0.25, 2.0] {
            weight.raw().fill(value).unwrap();
            assert_eq!(step.call(&x).unwrap().to_f64_vec().unwrap(), [8.0 * value; 8]);
        }
        let names = &step.stats().unwrap().names;
        let casts = names.iter().filter(|name| matches!(&name[..], "cast" | "copy")).count();
        assert_eq!(casts, 1, "two uses, one cast: {names:?}");
        // Copies that the recording made are not used outside of it.
        assert_eq!(linear(&x, &weight, None).unwrap().to_f64_vec().unwrap(), [8.0; 8]);
        drop(outer);
    }
}

/// Square weights of different sizes of elements, and what a chain of products with them gives; all numbers are exact in 16 bits.
struct Chain {
    weights: Vec<Tensor>,
    x: Tensor,
}

impl Chain {
    fn new(queue: &Queue) -> Chain {
        let weights = [0.5, -1.0, 2.0].map(|value| Tensor::full(queue, [4, 4], DType::F32, value).unwrap().with_grad());
        Chain { weights: weights.into(), x: Tensor::full(queue, [1, 4], DType::F16, 0.25).unwrap() }
    }

    fn forward(&self, weights: &[Tensor]) -> Tensor {
        weights.iter().fold(self.x.clone(), |x, weight| linear(&x, weight, None).unwrap())
    }

    /// All elements of a weight.
    fn set(&self, weight: usize, value: f64) {
        self.weights[weight].raw().fill(value).unwrap();
    }

    fn set_all(&self, value: f64) {
        (0..3).for_each(|weight| self.set(weight, value));
    }

    /// What [`Chain::forward`] gives for all weights, by plain numbers.
    fn expected(&self) -> Vec<f64> {
        let product: f64 = self.weights.iter().map(|weight| 4.0 * weight.to_f64_vec().unwrap()[0]).product();
        vec![0.25 * product; 4]
    }
}

#[test]
fn weights_of_one_scope_are_cast_in_one_launch_from_the_second_on() {
    for device in devices() {
        let chain = Chain::new(&device.queue);
        let check = || assert_eq!(chain.forward(&chain.weights).to_f64_vec().unwrap(), chain.expected());
        for dtype in [DType::F16, DType::BF16] {
            let x = if dtype == DType::F16 { 0 } else { 1 };
            for launches in [3, 1, 1] {
                let _scope = autocast(dtype).unwrap();
                assert_eq!(casts(check), x + launches);
                assert_eq!(casts(check), x, "all have copies");
            }
        }
        let _scope = autocast(DType::F16).unwrap();
        check();
        chain.set(1, 0.5);
        assert_eq!(casts(check), 1, "only the one that changed");
        chain.set_all(-0.5);
        assert_eq!(casts(check), 1, "all have changed");
        // One that changes after the others of its scope were cast, before it is asked for.
        chain.set_all(1.0);
        let first = linear(&chain.x, &chain.weights[0], None).unwrap();
        chain.set(2, 4.0);
        let last = linear(&linear(&first, &chain.weights[1], None).unwrap(), &chain.weights[2], None).unwrap();
        assert_eq!(last.to_f64_vec().unwrap(), chain.expected());
    }
}

/// How many tensors were made by casts.
#[derive(Default)]
struct Copies(Cell<usize>);

impl Sink for Copies {
    fn launch(&self, launch: Launch) -> netcl_core::Result<()> {
        let written = launch.args.iter().filter(|arg| matches!(arg, Arg::Buffer(_, Access::Write))).count();
        self.0.set(self.0.get() + if launch.name == "cast" { written } else { 0 });
        launch.run()
    }
}

#[test]
fn weights_that_are_not_asked_for_are_not_cast_again() {
    for device in devices() {
        let chain = Chain::new(&device.queue);
        let copies = |weights: &[Tensor]| {
            chain.set_all(0.5);
            let counter = Rc::new(Copies::default());
            let _scope = autocast(DType::F16).unwrap();
            with_sink(counter.clone(), || weights.iter().for_each(|w| drop(linear(&chain.x, w, None).unwrap())));
            counter.0.get()
        };
        assert_eq!(copies(&chain.weights), 3);
        assert_eq!(copies(&chain.weights), 3);
        assert_eq!(copies(&chain.weights[..1]), 3, "it could not know");
        assert_eq!(copies(&chain.weights[..1]), 1);
        assert_eq!(copies(&chain.weights), 3);
        // Other weights of a scope of their own.
        let other = Chain::new(&device.queue);
        assert_eq!(copies(&other.weights), 3);
        assert_eq!(copies(&other.weights[1..]), 3);
        assert_eq!(copies(&chain.weights), 3);
    }
}

#[test]
fn a_captured_step_casts_its_weights_in_one_launch() {
    for device in devices() {
        let chain = Rc::new(Chain::new(&device.queue));
        let own = chain.clone();
        let mut step = capture(move |(): &()| {
            let _scope = autocast(DType::F16)?;
            Ok::<_, netcl_autograd::Error>(own.forward(&own.weights))
        });
        for round in 0..4 {
            // Somebody else writes to one or all of them between two replays.
            let value = 0.5 * f64::from(round);
            chain.set(round as usize % 3, value);
            assert_eq!(step.call(&()).unwrap().to_f64_vec().unwrap(), chain.expected(), "round {round}");
        }
        // Eager steps cast together as well; the guard compares with those that do not.
        for _ in 0..2 {
            let _scope = autocast(DType::F16).unwrap();
            chain.forward(&chain.weights);
        }
        assert_eq!(step.verify(&()).unwrap().to_f64_vec().unwrap(), chain.expected());
        let names = &step.stats().unwrap().names;
        assert_eq!(names.iter().filter(|name| &name[..] == "cast").count(), 1, "{names:?}");
        assert_eq!(step.recordings(), 1);
    }
}

#[test]
fn a_captured_step_casts_again_what_it_has_changed_itself() {
    for device in devices() {
        let chain = Rc::new(Chain::new(&device.queue));
        let own = chain.clone();
        let mut step = capture(move |(): &()| {
            // Graphs, and the copies in them, are there to the end; another scope makes its own.
            let mut results = Vec::new();
            for _ in 0..2 {
                {
                    let _scope = autocast(DType::F16)?;
                    results.push(own.forward(&own.weights));
                }
                let _scope = autocast(DType::F16)?;
                results.push(own.forward(&own.weights));
                // An update in the middle of the forward pass, of a weight that was used and of one that was not.
                let first = linear(&own.x, &own.weights[0], None)?;
                for weight in [&own.weights[0], &own.weights[2]] {
                    weight.raw().assign((-&weight.detach())?.raw())?;
                }
                results.push(linear(&first, &own.weights[2], None)?);
                results.push(own.forward(&own.weights));
            }
            Ok::<_, netcl_autograd::Error>(results)
        });
        for round in 0..3 {
            // The guard makes the step op by op and compares every bit.
            step.verify(&()).unwrap();
            let found = step.call(&()).unwrap();
            assert_eq!(found.last().unwrap().to_f64_vec().unwrap(), chain.expected(), "round {round}");
            chain.set_all(1.0 - 0.5 * f64::from(round));
        }
    }
}

#[test]
fn a_captured_checkpoint_gives_copies_up_in_between() {
    for device in devices() {
        let chain = Rc::new(Chain::new(&device.queue));
        let own = chain.clone();
        let mut step = capture(move |(): &()| {
            let y = {
                let _scope = autocast(DType::F16)?;
                own.weights.iter().try_fold(own.x.detach().with_grad(), |x, weight| {
                    let weight = weight.clone();
                    checkpoint(move |t| linear(t[0], &weight, None)?.tanh(), &[&x])
                })?
            };
            sum_of(&y).backward()?;
            let gradients: Vec<Tensor> = own.weights.iter().filter_map(Tensor::grad).collect();
            own.weights.iter().for_each(|weight| weight.set_grad(None));
            Ok::<_, netcl_autograd::Error>((y.detach(), gradients))
        });
        for round in 0..2 {
            step.verify(&()).unwrap();
            let (_, gradients) = step.call(&()).unwrap();
            assert_eq!(gradients.len(), 3);
            chain.set_all(0.25 + 0.5 * f64::from(round));
        }
        let names = &step.stats().unwrap().names;
        // All weights, each again when its part is computed again, and the result.
        assert_eq!(names.iter().filter(|name| &name[..] == "cast").count(), 1 + 3 + 1, "{names:?}");
    }
}

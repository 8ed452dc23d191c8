//! Optimizers whose state is divided among ranks, against undivided ones, bit for bit.

use netcl_distributed::Group;
use netcl_distributed::data_parallel::shard_optimizer;
use netcl_nn::autograd::{DType, Tensor, manager};
use netcl_optim::{Adam, Momentum, Optimizer, ParamGroup, SGD, State, StepOptions};
use netcl_runtime::capture::capture;

use crate::support::{bits, numbers};

/// Parameters of several sizes and dtypes; the same on every rank.
fn parameters() -> Vec<Tensor> {
    let shapes: [&[usize]; 6] = [&[7, 5], &[5], &[], &[3, 0], &[40], &[2, 3, 4]];
    let one = |(at, shape): (usize, &&[usize])| {
        let dtype = if at == 1 { DType::F64 } else { DType::F32 };
        numbers(shape, at as u64).cast(dtype).unwrap().detach().with_grad()
    };
    shapes.iter().enumerate().map(one).collect()
}

/// Gradients of a step; the last parameter has none in the first.
fn set_gradients(parameters: &[Tensor], step: u64) {
    for (at, parameter) in parameters.iter().enumerate() {
        let gradient = numbers(parameter.shape(), 100 * step + at as u64).cast(parameter.dtype()).unwrap();
        parameter.set_grad((step > 0 || at < 5).then_some(gradient));
    }
}

fn adam(parameters: Vec<Tensor>) -> Box<dyn Optimizer> {
    let mut parameters = parameters;
    let rest = parameters.split_off(4);
    let mut adam = Adam::new(parameters, 0.01).unwrap();
    adam.add_group(rest, 0.1, 0.01).unwrap();
    Box::new(adam)
}

type Make = fn(Vec<Tensor>) -> Box<dyn Optimizer>;

const KINDS: [Make; 3] = [
    adam,
    |parameters| Box::new(Momentum::new(parameters, 0.1).unwrap()),
    |parameters| Box::new(SGD::new(parameters, 0.1).unwrap()),
];

/// Everything after some steps: the parameters' bits, and those of the whole state.
fn trained(
    make: Make,
    group: Option<&Group>,
    before: Option<&State>,
    steps: std::ops::Range<u64>,
) -> (Vec<Vec<u64>>, State) {
    let own = parameters();
    let mut optimizer = make(own.clone());
    if let Some(group) = group {
        shard_optimizer(&mut *optimizer, group).unwrap();
    }
    if let Some(before) = before {
        optimizer.load_state(before).unwrap();
    }
    for step in steps {
        set_gradients(&own, step);
        // The third update is skipped on the device.
        let found_inf = Tensor::full(&manager().cpu().queue, (), DType::F32, f64::from(u8::from(step == 2))).unwrap();
        let options = StepOptions { max_norm: Some(0.7), found_inf: Some(found_inf), ..Default::default() };
        optimizer.step_with(&options).unwrap();
    }
    (bits(&own), optimizer.gathered_state().unwrap())
}

/// Every entry of a state under its name.
fn state_bits(state: &State) -> Vec<(String, Vec<u64>)> {
    let numbers = state.numbers.iter().map(|(name, number)| (name.clone(), vec![number.to_bits()]));
    let tensors: Vec<Tensor> = state.tensors.values().cloned().collect();
    numbers.chain(state.tensors.keys().cloned().zip(bits(&tensors))).collect()
}

#[test]
fn divided_state_gives_the_bits_of_undivided() {
    for make in KINDS {
        let alone = trained(make, None, None, 0..4);
        // More ranks than large parameters: some own next to nothing.
        for size in [1, 2, 3, 7] {
            for ranks in crate::on_ranks(size, |group| trained(make, Some(group), None, 0..4)) {
                for rank in ranks {
                    assert_eq!(rank.0, alone.0);
                    assert_eq!(state_bits(&rank.1), state_bits(&alone.1));
                }
            }
        }
    }
}

#[test]
fn state_goes_on_with_another_number_of_ranks() {
    let start = trained(adam, None, None, 0..2);
    let whole = trained(adam, None, Some(&start.1), 2..4);
    let of_two = &crate::on_threads(2, |group| trained(adam, Some(group), None, 0..2).1)[1];
    for ranks in [1, 3] {
        for rank in crate::on_threads(ranks, |group| trained(adam, Some(group), Some(of_two), 2..4)) {
            assert_eq!(rank.0, whole.0);
        }
    }
}

#[test]
fn each_rank_keeps_a_part() {
    let kept = crate::on_threads(3, |group| {
        let own = parameters();
        let mut optimizer = adam(own.clone());
        // Whatever was kept before moves along.
        set_gradients(&own, 1);
        optimizer.step().unwrap();
        let whole = state_bits(&optimizer.state());
        shard_optimizer(&mut *optimizer, group).unwrap();
        assert_eq!(state_bits(&optimizer.gathered_state().unwrap()), whole);
        let again = shard_optimizer(&mut *optimizer, group).unwrap_err().to_string();
        assert!(again.contains("divided the parameters already"), "{again}");
        optimizer.add_group(vec![numbers(&[11], 9).detach().with_grad()], 0.1, 0.0).unwrap();
        assert_eq!(optimizer.groups().iter().flat_map(ParamGroup::params).count(), 7);
        optimizer.state().tensors.values().map(|tensor| tensor.size()).sum::<usize>()
    });
    // Two rows of 40, 35 and 24 + 5 + 1 elements.
    assert_eq!(kept, [80, 70, 60]);
}

#[test]
fn a_captured_step_repeats_the_exchange() {
    let run = |group: &Group, captured: bool| {
        let own = parameters();
        set_gradients(&own, 1);
        let mut optimizer = adam(own.clone());
        shard_optimizer(&mut *optimizer, group).unwrap();
        optimizer.step().unwrap();
        if captured {
            let mut step = capture(move |_: &()| optimizer.step());
            (0..3).for_each(|_| step.call(&()).unwrap());
        } else {
            (0..3).for_each(|_| optimizer.step().unwrap());
        }
        bits(&own)
    };
    let eager = crate::on_threads(2, |group| run(group, false));
    assert_eq!(crate::on_threads(2, |group| run(group, true)), eager);
    assert_eq!(eager[0], eager[1]);
}

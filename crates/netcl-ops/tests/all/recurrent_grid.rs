//! Recurrent layers: devices x dtypes x cells x shapes, against plain f64; gradients, launches, replays and small devices.

use std::process::Command;
use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::set_num_threads;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::group_limit::force_full_groups;
use netcl_core::kernels::launch::{Counter, Recorder, with_sink};
use netcl_core::tensor::Tensor;
use netcl_ops::recurrent::{Cell, Recurrent, RecurrentUpstream, recurrent, recurrent_backward};

use crate::support::{Grid, Tolerance, devices, epsilon, random, supports, tensor};

/// A layer: its sizes and which of its inputs are there.
#[derive(Clone, Copy, Debug)]
struct Case {
    cell: Cell,
    /// Steps, batch, hidden values.
    sizes: [usize; 3],
    bias: bool,
    states: bool,
    reverse: bool,
    /// Which gradients arrive: for all hidden states, for the last states.
    upstream: [bool; 2],
}

const SIZES: [[usize; 3]; 9] = [
    // One of everything; no multiple of anything; a batch of one and of two, which have a tile of their own.
    [1, 1, 1],
    [3, 5, 7],
    [4, 1, 12],
    [3, 2, 5],
    // Around the native panels and row blocks, and around the tiles of groups.
    [2, 9, 48],
    [2, 33, 49],
    [3, 8, 150],
    [2, 17, 64],
    [6, 4, 31],
];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (i, sizes) in SIZES.into_iter().enumerate() {
        for (j, cell) in Cell::ALL.into_iter().enumerate() {
            let n = i + j;
            let upstream = [[true, true], [true, false], [false, true]][n % 3];
            all.push(Case { cell, sizes, bias: n % 4 != 1, states: n % 2 == 0, reverse: n % 3 == 1, upstream });
        }
    }
    all
}

/// The gradients of a layer's inputs, in their order.
const GRADIENTS: [&str; 5] = ["d_input", "d_weight", "d_bias", "d_hidden", "d_memory"];

/// The tensors of a case.
#[derive(Clone)]
struct Inputs {
    /// Input, weight, bias, hidden state, memory.
    tensors: [Tensor; 5],
    grads: [Tensor; 3],
}

impl Inputs {
    fn new(case: &Case, queue: &Queue, dtype: DType) -> Inputs {
        let [steps, batch, hidden] = case.sizes;
        let gates = case.cell.gates();
        let make = |seed: u64, shape: &[usize], scale: f64| {
            tensor(queue, &random(shape.iter().product(), seed, (-scale, scale)), shape, dtype).0
        };
        // As small as an initialiser makes them: states neither vanish nor grow.
        let scale = 1.0 / (hidden as f64).sqrt();
        Inputs {
            tensors: [
                make(1, &[steps, batch, gates * hidden], 1.5),
                make(2, &[gates * hidden, hidden], scale),
                make(3, &[gates * hidden], 0.5),
                make(4, &[batch, hidden], 1.0),
                make(5, &[batch, hidden], 1.0),
            ],
            grads: [
                make(6, &[steps, batch, hidden], 1.0),
                make(7, &[batch, hidden], 1.0),
                make(8, &[batch, hidden], 1.0),
            ],
        }
    }

    /// The same numbers as float64 on the native CPU.
    fn exact(&self) -> Inputs {
        let queue = manager().cpu().queue;
        let exact = |t: &Tensor| Tensor::from_host(&queue, &t.to_f64_vec().unwrap(), t.shape().clone()).unwrap();
        Inputs { tensors: self.tensors.each_ref().map(exact), grads: self.grads.each_ref().map(exact) }
    }

    fn layer(&self, case: &Case) -> Recurrent<'_> {
        let [input, weight, bias, hidden, memory] = &self.tensors;
        Recurrent {
            cell: case.cell,
            input,
            weight,
            bias: case.bias.then_some(bias),
            hidden: case.states.then_some(hidden),
            memory: (case.states && case.cell.has_memory()).then_some(memory),
            reverse: case.reverse,
        }
    }

    fn upstream(&self, case: &Case) -> RecurrentUpstream<'_> {
        let [all, last] = case.upstream;
        RecurrentUpstream {
            out: all.then_some(&self.grads[0]),
            hidden: last.then_some(&self.grads[1]),
            memory: (last && case.cell.has_memory()).then_some(&self.grads[2]),
        }
    }

    /// All results and gradients, by name.
    fn run(&self, case: &Case) -> netcl_core::Result<Vec<(&'static str, Tensor)>> {
        let layer = self.layer(case);
        let result = recurrent(&layer, true)?;
        let gradients = recurrent_backward(&layer, &result, &self.upstream(case))?;
        let mut all = vec![
            ("out", result.out.clone()),
            ("hidden", result.hidden()?),
            ("d_input", gradients.input.clone()),
            ("d_weight", gradients.weight()?),
            ("d_bias", gradients.bias()?),
            ("d_hidden", gradients.hidden()?),
        ];
        all.extend(result.memory()?.map(|memory| ("memory", memory)));
        all.extend(gradients.memory()?.map(|memory| ("d_memory", memory)));
        Ok(all)
    }
}

fn check(device: &DeviceHandle, case: &Case, dtype: DType) -> Result<(), String> {
    let inputs = Inputs::new(case, &device.queue, dtype);
    let expected = inputs.exact().run(case).map_err(|e| e.to_string())?;
    let got = inputs.run(case).map_err(|e| e.to_string())?;
    for ((name, got), (_, expected)) in got.iter().zip(&expected) {
        if got.dtype() != dtype || got.shape() != expected.shape() {
            return Err(format!("{name} is {} of {}", got.shape(), got.dtype()));
        }
        let expected = expected.to_f64_vec().unwrap();
        let size = expected.iter().fold(0.0f64, |m, v| m.max(v.abs())).max(0.5);
        // Each step rounds the state, which all later ones read.
        let own = epsilon(dtype) * case.sizes[0] as f64;
        let compute = epsilon(if dtype == DType::F64 { DType::F64 } else { DType::F32 });
        let tolerance =
            Tolerance { relative: 2.0 * own + 64.0 * compute, absolute: size * (2.0 * own + 64.0 * compute) };
        tolerance.check(&got.to_f64_vec().unwrap(), &expected).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

fn whole_grid(name: &'static str, dtypes: &[DType], chosen: impl Fn(&DeviceHandle, usize, DType) -> bool) {
    let mut grid = Grid::new(name);
    for device in devices() {
        for &dtype in dtypes {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (i, case) in cases().iter().enumerate() {
                if device.backend.name() == "cpu" || chosen(&device, i, dtype) {
                    grid.cell(&device, format!("{dtype} {case:?}"), || check(&device, case, dtype));
                }
            }
        }
        device.queue.finish().unwrap();
    }
    grid.finish(dtypes.len() * cases().len());
}

#[test]
fn every_case_on_every_device_and_dtype() {
    // A program takes a second: everything in f32, else one size for each cell, and on PoCL, the slowest, a fifth of that.
    whole_grid("recurrent", &DType::FLOATS, |device, i, dtype| {
        let portable = device.platform_name.contains("Portable");
        (dtype == DType::F32 || (4..8).contains(&i)) && (!portable || i % 5 == 0)
    });
}

/// Groups as large as those of GPUs.
#[test]
fn groups_with_slices() {
    force_full_groups(|| {
        whole_grid("recurrent in groups", &[DType::F32], |device, i, _| {
            // Batches of one, of more than a tile, of a tile; PoCL takes seconds for each.
            if device.platform_name.contains("Portable") { i == 28 || i == 21 } else { matches!(i, 4..12 | 20..32) }
        });
    });
}

fn is_child() -> bool {
    std::env::var_os("NETCL_TEST_RECURRENT_CHILD").is_some()
}

/// On devices that pretend to be small: limits are read once per process.
#[test]
fn small_devices() {
    if is_child() {
        return force_full_groups(|| {
            whole_grid("recurrent on small devices", &[DType::F32], |device, i, _| {
                if device.platform_name.contains("Portable") { i == 20 } else { (20..24).contains(&i) }
            });
        });
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "recurrent_grid::small_devices", "--nocapture"])
        .env("NETCL_TEST_RECURRENT_CHILD", "1")
        .env("NETCL_LIMITS", "wg=32,local=1k,alloc=64M")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("grid recurrent on small devices"), "{text}");
}

/// The formulas, one element at a time.
fn reference(case: &Case, inputs: &Inputs) -> (Vec<f64>, Vec<f64>) {
    let [steps, batch, hidden] = case.sizes;
    let gates = case.cell.gates();
    let host = |t: &Tensor| t.to_f64_vec().unwrap();
    let [x, w, b, hidden_before, memory_before] = inputs.tensors.each_ref().map(host);
    let zeros = vec![0.0; batch * hidden];
    let mut h = if case.states { hidden_before } else { zeros.clone() };
    let mut c = if case.states { memory_before } else { zeros };
    let mut out = vec![0.0; steps * batch * hidden];
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for time in 0..steps {
        let step = if case.reverse { steps - 1 - time } else { time };
        let (h_before, c_before) = (h.clone(), c.clone());
        for (row, j) in (0..batch).flat_map(|row| (0..hidden).map(move |j| (row, j))) {
            let own = |gate: usize| {
                let line = gate * hidden + j;
                let sum: f64 = (0..hidden).map(|k| h_before[row * hidden + k] * w[line * hidden + k]).sum();
                if case.bias { sum + b[line] } else { sum }
            };
            let part = |gate: usize| x[((step * batch + row) * gates + gate) * hidden + j];
            let at = row * hidden + j;
            h[at] = match case.cell {
                Cell::Lstm => {
                    let [i, f, g, o] = [0, 1, 2, 3].map(|gate| own(gate) + part(gate));
                    c[at] = sigmoid(f) * c_before[at] + sigmoid(i) * g.tanh();
                    sigmoid(o) * c[at].tanh()
                }
                Cell::Gru => {
                    let (r, z) = (sigmoid(own(0) + part(0)), sigmoid(own(1) + part(1)));
                    let n = (part(2) + r * own(2)).tanh();
                    (1.0 - z) * n + z * h_before[at]
                }
                Cell::Tanh => (own(0) + part(0)).tanh(),
                Cell::Relu => (own(0) + part(0)).max(0.0),
            };
            out[step * batch * hidden + at] = h[at];
        }
    }
    (out, c)
}

#[test]
fn native_f64_agrees_with_the_formulas() {
    for case in cases() {
        let inputs = Inputs::new(&case, &manager().cpu().queue, DType::F64);
        let (out, memory) = reference(&case, &inputs);
        let result = recurrent(&inputs.layer(&case), false).unwrap();
        let tolerance = Tolerance { relative: 1e-12, absolute: 1e-12 };
        tolerance.check(&result.out.to_f64_vec().unwrap(), &out).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        if let Some(found) = result.memory().unwrap() {
            tolerance.check(&found.to_f64_vec().unwrap(), &memory).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        }
    }
}

/// Numeric gradients in f64 on the CPU.
#[test]
fn backward_agrees_with_finite_differences() {
    for case in cases().into_iter().filter(|case| case.sizes.iter().product::<usize>() <= 105) {
        let inputs = Inputs::new(&case, &manager().cpu().queue, DType::F64);
        let found = inputs.run(&case).unwrap();
        let loss = |inputs: &Inputs| {
            let result = recurrent(&inputs.layer(&case), false).unwrap();
            let upstream = inputs.upstream(&case);
            let dot = |t: &Tensor, grad: Option<&Tensor>| -> f64 {
                let Some(grad) = grad else { return 0.0 };
                t.to_f64_vec().unwrap().iter().zip(grad.to_f64_vec().unwrap()).map(|(a, b)| a * b).sum()
            };
            let memory = result.memory().unwrap().map_or(0.0, |memory| dot(&memory, upstream.memory));
            dot(&result.out, upstream.out) + dot(&result.hidden().unwrap(), upstream.hidden) + memory
        };
        let given = [true, true, case.bias, case.states, case.states];
        for (i, name) in GRADIENTS.into_iter().enumerate().filter(|(i, _)| given[*i]) {
            let Some((_, gradient)) = found.iter().find(|(found, _)| *found == name) else { continue };
            let values = inputs.tensors[i].to_f64_vec().unwrap();
            let at_distance = |at: usize, by: f64| {
                let (mut inputs, mut moved) = (inputs.clone(), values.clone());
                moved[at] += by;
                let tensor = &mut inputs.tensors[i];
                *tensor = Tensor::from_host(tensor.queue(), &moved, tensor.shape().clone()).unwrap();
                loss(&inputs)
            };
            let numeric: Vec<f64> =
                (0..values.len()).map(|at| (at_distance(at, 1e-6) - at_distance(at, -1e-6)) / 2e-6).collect();
            let tolerance = Tolerance { relative: 1e-3, absolute: 1e-5 };
            let checked = tolerance.check(&gradient.to_f64_vec().unwrap(), &numeric);
            checked.unwrap_or_else(|e| panic!("{name} of {case:?}: {e}"));
        }
    }
}

/// One launch for each step on OpenCL devices and one for all natively, beside a few that do not depend on the steps.
#[test]
fn launches_grow_with_the_steps_and_nothing_else() {
    for device in devices() {
        let per_step = |steps: usize| if device.backend.name() == "cl" { steps } else { 1 };
        for cell in [Cell::Lstm, Cell::Gru] {
            let count = |steps: usize| {
                let case =
                    Case { cell, sizes: [steps, 5, 8], bias: true, states: false, reverse: false, upstream: [true; 2] };
                let inputs = Inputs::new(&case, &device.queue, DType::F32);
                let layer = inputs.layer(&case);
                let counters = [Rc::new(Counter::default()), Rc::new(Counter::default())];
                let result = with_sink(counters[0].clone(), || recurrent(&layer, true).unwrap());
                with_sink(counters[1].clone(), || {
                    let gradients = recurrent_backward(&layer, &result, &inputs.upstream(&case)).unwrap();
                    drop((gradients.weight().unwrap(), gradients.bias().unwrap()));
                });
                assert_eq!(counters[0].of("recurrent"), per_step(steps), "{:?}", counters[0].names());
                assert_eq!(counters[1].of("recurrent_backward"), per_step(steps), "{:?}", counters[1].names());
                counters.map(|counter| counter.launches() - per_step(steps))
            };
            for [forward, backward] in [count(3), count(11)] {
                // The weights are packed; states, weight and bias have a launch or two each.
                assert!(forward <= 2 && backward <= 5, "{cell:?} on {}: {forward}, {backward}", device.device_name);
            }
        }
        device.queue.finish().unwrap();
    }
}

#[test]
fn recorded_steps_run_again() {
    let case =
        Case { cell: Cell::Lstm, sizes: [4, 3, 6], bias: true, states: true, reverse: true, upstream: [true, false] };
    for device in devices() {
        let inputs = Inputs::new(&case, &device.queue, DType::F32);
        let read = |all: &[(&str, Tensor)]| all.iter().map(|(_, t)| t.to_f64_vec().unwrap()).collect::<Vec<_>>();
        let expected = read(&inputs.run(&case).unwrap());
        let recorder = Rc::new(Recorder::default());
        let recorded = with_sink(recorder.clone(), || inputs.run(&case).unwrap());
        for _ in 0..2 {
            recorder.replay().unwrap();
            assert_eq!(read(&recorded), expected, "on {}", device.device_name);
        }
        device.queue.finish().unwrap();
    }
}

#[test]
fn threads_do_not_change_bits() {
    let queue = manager().cpu().queue;
    for case in cases().into_iter().filter(|case| case.sizes[2] > 48) {
        let inputs = Inputs::new(&case, &queue, DType::F32);
        let run = |threads: usize| {
            set_num_threads(threads);
            let found = inputs.run(&case).unwrap();
            set_num_threads(0);
            found.iter().map(|(_, t)| t.to_f64_vec().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(3), "{case:?}");
    }
}

#[test]
fn empty_batches_and_wrong_shapes() {
    let queue = manager().cpu().queue;
    let case =
        Case { cell: Cell::Lstm, sizes: [2, 0, 3], bias: true, states: true, reverse: false, upstream: [true, true] };
    for (name, found) in Inputs::new(&case, &queue, DType::F32).run(&case).unwrap() {
        assert!(found.to_f64_vec().unwrap().iter().all(|&v| v == 0.0), "{name}");
    }
    let inputs = Inputs::new(&Case { sizes: [2, 4, 3], ..case }, &queue, DType::F32);
    let refused = |layer: Recurrent<'_>| recurrent(&layer, false).unwrap_err().to_string();
    let layer = inputs.layer(&case);
    assert!(refused(Recurrent { weight: layer.input, ..layer }).contains("the weight must have shape [12, 3]"));
    assert!(refused(Recurrent { input: layer.weight, ..layer }).contains("(steps, batch, gates * hidden)"));
    assert!(refused(Recurrent { hidden: Some(layer.weight), ..layer }).contains("the first hidden state"));
    let gru = Recurrent { cell: Cell::Gru, input: &inputs.grads[0], weight: &inputs.grads[0], ..layer };
    assert!(refused(gru).contains("the weight must have shape [3, 1]"));
    let unsaved = recurrent(&layer, false).unwrap();
    let error = recurrent_backward(&layer, &unsaved, &RecurrentUpstream::default()).unwrap_err().to_string();
    assert!(error.contains("without saving"), "{error}");
}

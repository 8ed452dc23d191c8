//! Microseconds of a training step, eager and replayed, and what of a copy hides behind compute.
//!
//! `cargo bench -p netcl --bench replay` prints, for every device, the step of an MLP 784-128-10 (batch 32, Adam) both ways
//! in alternating rounds, its launches, each with its microseconds alone, and its memory, and then a copy and an equally long kernel one after the other and
//! side by side. `--worker <part of a device's name>` says which device that is and which launches a step has (JSON), and then answers
//! each line on its input with the seconds of a call and the host's part of them, for `benches/replay_peers.py` and
//! `benches/call_overhead.py`: `eager` and `replay` are the step, `tiny` is one of an MLP 16-8-4 with 4 rows, `op` one small operation,
//! captured, `chain` a compiled pointwise chain, and `launch` its kernel alone.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::cell::RefCell;
use std::io::BufRead;
use std::rc::Rc;
use std::time::Instant;

use netcl::autograd::jit;
use netcl::core::kernels::launch::{Counter, Launch, Sink, with_sink};
use netcl::core::random::{Generator, manual_seed};
use netcl::nn::Sequential;
use netcl::optim::{Adam, Optimizer};
use netcl::prelude::*;
use netcl::raw_ops::random::normal;
use netcl::runtime::capture::{CaptureStats, capture};
use netcl::runtime::scheduler::{HostArray, Scheduler};

type Batch = (Tensor, IndexTensor);
type Step = Box<dyn FnMut(&Batch) -> netcl::Result<Tensor>>;

/// The widths of an MLP.
type Widths = [usize; 3];
const MLP: Widths = [784, 128, 10];
/// So small that the host's part is most of a step.
const TINY: Widths = [16, 8, 4];

fn step(queue: &Queue, [wide, hidden, classes]: Widths) -> Step {
    manual_seed(1);
    let model: Sequential =
        sequential![Linear::new(queue, wide, hidden).unwrap(), ReLU, Linear::new(queue, hidden, classes).unwrap()];
    // So slow that thousands of steps on one batch do not end in gradients too small to be normal, which are slow to compute with.
    let mut optimizer = Adam::new(model.parameters(), 1e-7).unwrap();
    Box::new(move |(x, labels)| {
        let loss = F::cross_entropy(&model.forward(x)?, labels)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(loss)
    })
}

fn batch(queue: &Queue, [wide, _, classes]: Widths, count: usize) -> Batch {
    let mut generator = Generator::new(1);
    let x = normal(queue, [count, wide], DType::F32, 0.0, 1.0, Some(&mut generator)).unwrap();
    let labels: Vec<i64> = (0..count).map(|i| (i * 7 % classes) as i64).collect();
    (x.into(), IndexTensor::from_host(queue, &labels, [count]).unwrap())
}

/// The median seconds of a call over half a second of blocks of a hundred, each of which waits for the device at its end; and of
/// that the host's part, until everything is given to the device.
fn seconds(queue: &Queue, call: &mut dyn FnMut()) -> (f64, f64) {
    let mut block = |n: usize| {
        let start = Instant::now();
        (0..n).for_each(|_| call());
        let host = start.elapsed().as_secs_f64() / n as f64;
        queue.finish().unwrap();
        (start.elapsed().as_secs_f64() / n as f64, host)
    };
    block(3);
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || start.elapsed().as_secs_f64() < 0.5 {
        times.push(block(100));
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    times[times.len() / 2]
}

/// Small calls, of which the host's part is most: a captured step and operation, a compiled chain, and the chain's kernel alone.
struct Small {
    queue: Queue,
    step: Box<dyn FnMut()>,
    op: Box<dyn FnMut()>,
    chain: Box<dyn FnMut()>,
    launch: Box<dyn FnMut()>,
}

impl Small {
    fn new(queue: &Queue) -> Small {
        let tensor = |value| Tensor::full(queue, [1024], DType::F32, value).unwrap();
        let (x, y) = (tensor(0.5), tensor(0.25));
        let (mut step, batch) = (capture(step(queue, TINY)), batch(queue, TINY, 4));
        let mut op = capture(|x: &Tensor| x * 2.0);
        let chain = || jit(|t: &[&Tensor]| &(&(&(t[0] * t[1])? + 1.0)?.tanh()? * &t[0].sigmoid()?)? + &t[1].relu()?);
        let (compiled, inside) = (chain(), chain());
        let mut launch = capture(move |(x, y): &(Tensor, Tensor)| inside.call(&[x, y]));
        let pair = (x.clone(), y.clone());
        launch.call(&pair).unwrap();
        let given = x.clone();
        Small {
            queue: queue.clone(),
            step: Box::new(move || drop(step.call(&batch).unwrap())),
            op: Box::new(move || drop(op.call(&given).unwrap())),
            chain: Box::new(move || drop(compiled.call(&[&x, &y]).unwrap())),
            launch: Box::new(move || drop(launch.replay().unwrap())),
        }
    }
}

/// Both kinds of step, ready to be timed.
struct Pair {
    queue: Queue,
    batch: Batch,
    eager: Step,
    /// Launches of an eager step.
    eager_launches: usize,
    replay: Box<dyn FnMut(&Batch)>,
    stats: CaptureStats,
}

impl Pair {
    fn new(queue: &Queue) -> Pair {
        let mut captured = capture(step(queue, MLP));
        let batch = batch(queue, MLP, 32);
        captured.call(&batch).unwrap();
        let stats = captured.stats().unwrap().clone();
        let replay = Box::new(move |batch: &Batch| drop(captured.call(batch).unwrap()));
        let (mut eager, counter) = (step(queue, MLP), Rc::new(Counter::default()));
        eager(&batch).unwrap();
        with_sink(counter.clone(), || eager(&batch)).unwrap();
        Pair { queue: queue.clone(), batch, eager, eager_launches: counter.launches(), replay, stats }
    }

    fn seconds(&mut self, replayed: bool) -> (f64, f64) {
        let Pair { queue, batch, eager, replay, .. } = self;
        match replayed {
            true => seconds(queue, &mut || replay(batch)),
            false => seconds(queue, &mut || drop(eager(batch).unwrap())),
        }
    }
}

fn print_step(handle: &DeviceHandle) {
    let mut pair = Pair::new(&handle.queue);
    let mut rounds: Vec<_> = (0..5).map(|_| (pair.seconds(false).0, pair.seconds(true))).collect();
    rounds.sort_by(|a, b| (a.0 / a.1.0).total_cmp(&(b.0 / b.1.0)));
    let (eager, (replay, host)) = rounds[rounds.len() / 2];
    let stats = &pair.stats;
    println!(
        "{}: MLP step {:.1} us eager, {:.1} us replayed ({:.2}x; the host needs {:.1}); {} launches instead of {}, {} bytes planned in {} blocks ({} at \
         once, {} in all eagerly)",
        handle.device_name,
        eager * 1e6,
        replay * 1e6,
        eager / replay,
        host * 1e6,
        stats.launches,
        pair.eager_launches,
        stats.planned_bytes,
        stats.blocks,
        stats.eager_bytes,
        stats.requested_bytes
    );
    print_launches(&mut pair);
}

/// Waits for every launch and adds up its time.
struct Timer {
    queue: Queue,
    times: RefCell<Vec<(String, f64)>>,
}

impl Sink for Timer {
    fn launch(&self, launch: Launch) -> netcl::core::Result<()> {
        let start = Instant::now();
        launch.run()?;
        self.queue.finish()?;
        self.times.borrow_mut().push((launch.name.to_string(), start.elapsed().as_secs_f64()));
        Ok(())
    }
}

/// The microseconds of each launch of a step, alone: the median over a hundred steps.
fn print_launches(pair: &mut Pair) {
    let timer = Rc::new(Timer { queue: pair.queue.clone(), times: RefCell::default() });
    let mut steps: Vec<Vec<(String, f64)>> = Vec::new();
    for _ in 0..100 {
        with_sink(timer.clone(), || (pair.replay)(&pair.batch));
        steps.push(timer.times.take());
    }
    let median = |at: usize| {
        let mut times: Vec<f64> = steps.iter().map(|step| step[at].1).collect();
        times.sort_by(f64::total_cmp);
        format!("{} {:.1}", steps[0][at].0, times[times.len() / 2] * 1e6)
    };
    println!("    {}", (0..steps[0].len()).map(median).collect::<Vec<_>>().join(", "));
}

/// A copy to the device and a kernel that takes as long, alone and beside each other.
fn print_overlap(handle: &DeviceHandle) {
    let queue = &handle.queue;
    let data: Vec<f32> = (0..4 << 20).map(|i| i as f32).collect();
    let array = || [HostArray::f32(&data, [data.len()])];
    // Launches long enough that the device, not the host that sends them, is what takes the time.
    let elements = if handle.device_type == netcl::core::device::DeviceType::Gpu { 1 << 24 } else { 1 << 20 };
    let x = Tensor::full(queue, [elements], DType::F32, 1.0).unwrap();
    let work = |n: usize| (0..n).for_each(|_| drop(netcl::raw_ops::tanh(&x).unwrap()));
    let median = |run: &mut dyn FnMut()| {
        run();
        let mut times: Vec<f64> = (0..9)
            .map(|_| {
                let start = Instant::now();
                run();
                start.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let mut scheduler = Scheduler::new(queue, 2).unwrap();
    scheduler.submit(&array()).unwrap();
    let copy = median(&mut || {
        scheduler.next().unwrap();
        scheduler.submit(&array()).unwrap();
        queue.finish().unwrap();
    });
    let one = median(&mut || {
        work(20);
        queue.finish().unwrap();
    }) / 20.0;
    let n = (copy / one).ceil() as usize;
    let kernels = median(&mut || {
        work(n);
        queue.finish().unwrap();
    });
    let both = median(&mut || {
        scheduler.next().unwrap();
        work(n);
        queue.flush().unwrap();
        scheduler.submit(&array()).unwrap();
        queue.finish().unwrap();
    });
    println!(
        "{}: a copy of 16 MiB {:.2} ms, kernels {:.2} ms, both {:.2} ms: {:.2} of their sum",
        handle.device_name,
        copy * 1e3,
        kernels * 1e3,
        both * 1e3,
        both / (copy + kernels)
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let worker = args.iter().position(|arg| arg == "--worker").map(|i| args.get(i + 1).cloned().unwrap_or_default());
    let mut handles: Vec<DeviceHandle> = vec![manager().cpu()];
    handles.extend(manager().discover().unwrap().iter().map(|device| manager().handle(device).unwrap()));
    if let Some(name) = worker {
        let named = |handle: &&DeviceHandle| handle.platform_name.contains(&name) || handle.device_name.contains(&name);
        let handle = handles.iter().find(named).unwrap();
        let mut pair = Pair::new(&handle.queue);
        let names: Vec<String> = pair.stats.names.iter().map(|name| format!("{name:?}")).collect();
        let (device, eager, names) = (&handle.device_name, pair.eager_launches, names.join(", "));
        println!("{{\"device\": {device:?}, \"eager\": {eager}, \"replayed\": [{names}]}}");
        let mut small = Small::new(&handle.queue);
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let (whole, host) = match line.trim() {
                "tiny" => seconds(&small.queue, &mut small.step),
                "op" => seconds(&small.queue, &mut small.op),
                "chain" => seconds(&small.queue, &mut small.chain),
                "launch" => seconds(&small.queue, &mut small.launch),
                kind => pair.seconds(kind == "replay"),
            };
            println!("{whole:e} {host:e}");
        }
        return;
    }
    for handle in handles {
        print_step(&handle);
        print_overlap(&handle);
    }
}

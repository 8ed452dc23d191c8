//! Milliseconds of whole training steps: forward, loss, backward, update.
//!
//! `cargo bench -p netcl --bench train_step` prints every device; `--worker <part of a device's name>` answers each name of a
//! case on its input with the seconds of a step, for `benches/train_peers.py`.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::io::BufRead;
use std::time::Instant;

use netcl::core::random::Generator;
use netcl::nn::{Conv2d, Conv2dOptions, Depth, Flatten, MaxPool2d, ResNet, ResNetOptions};
use netcl::optim::{Adam, Optimizer};
use netcl::prelude::*;
use netcl::raw_ops::random::normal;

/// A model, a batch of images and how many classes they have.
struct Case {
    name: &'static str,
    images: &'static [usize],
    model: fn(&Queue) -> Box<dyn Module>,
}

const CASES: [Case; 3] = [
    Case { name: "mlp", images: &[32, 784], model: mlp },
    Case { name: "fashion_cnn", images: &[64, 1, 28, 28], model: fashion_cnn },
    Case { name: "resnet18", images: &[16, 3, 32, 32], model: resnet18 },
];

fn mlp(queue: &Queue) -> Box<dyn Module> {
    Box::new(sequential![Linear::new(queue, 784, 128).unwrap(), ReLU, Linear::new(queue, 128, 10).unwrap()])
}

fn fashion_cnn(queue: &Queue) -> Box<dyn Module> {
    let conv = |inputs, outputs| {
        let options = Conv2dOptions { padding: 1.into(), ..Conv2dOptions::new(inputs, outputs, 3) };
        Conv2d::new_with(queue, options).unwrap()
    };
    Box::new(sequential![
        conv(1, 32),
        ReLU,
        MaxPool2d::new(2),
        conv(32, 64),
        ReLU,
        MaxPool2d::new(2),
        Flatten::default(),
        Linear::new(queue, 64 * 7 * 7, 128).unwrap(),
        ReLU,
        Linear::new(queue, 128, 10).unwrap(),
    ])
}

fn resnet18(queue: &Queue) -> Box<dyn Module> {
    Box::new(ResNet::new_with(queue, ResNetOptions::of(Depth::D18)).unwrap())
}

/// The median of as many steps as fit into a second, at least five, after two that compile and fill the pools.
fn seconds(case: &Case, queue: &Queue) -> f64 {
    let mut generator = Generator::new(1);
    let x = Tensor::from(normal(queue, case.images, DType::F32, 0.0, 1.0, Some(&mut generator)).unwrap());
    let labels: Vec<i64> = (0..case.images[0] as i64).map(|i| i * 7 % 10).collect();
    let labels = IndexTensor::from_host(queue, &labels, [labels.len()]).unwrap();
    let model = (case.model)(queue);
    let mut optimizer = Adam::new(model.parameters(), 1e-3).unwrap();
    let mut step = || {
        let start = Instant::now();
        let loss = F::cross_entropy(&model.forward(&x).unwrap(), &labels).unwrap();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        optimizer.zero_grad();
        queue.finish().unwrap();
        start.elapsed().as_secs_f64()
    };
    step();
    step();
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || start.elapsed().as_secs_f64() < 1.0 {
        times.push(step());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let worker = args.iter().position(|arg| arg == "--worker").map(|i| args.get(i + 1).cloned().unwrap_or_default());
    let mut handles: Vec<DeviceHandle> = vec![manager().cpu()];
    handles.extend(manager().discover().unwrap().iter().map(|device| manager().handle(device).unwrap()));
    if let Some(name) = worker {
        let named = |handle: &&DeviceHandle| handle.platform_name.contains(&name) || handle.device_name.contains(&name);
        let handle = handles.iter().find(named).unwrap();
        println!("{}", handle.device_name);
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let case = CASES.iter().find(|case| case.name == line.trim()).unwrap();
            println!("{:e}", seconds(case, &handle.queue));
        }
        return;
    }
    for handle in handles {
        for case in &CASES {
            println!("{:>40} {:>12}: {:9.3} ms", handle.device_name, case.name, seconds(case, &handle.queue) * 1e3);
        }
    }
}

//! Milliseconds of a recurrent network forwards and backwards, eager and replayed.
//!
//! `cargo bench -p netcl-nn --bench recurrent` prints every device; `--worker <part of a device's name>` answers each line on its input
//! (`lstm 2 256 32 64 eager`: layers, width, batch and steps, `eager` or `replay`) with the seconds of a pass, for
//! `benches/recurrent_peers.py`.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::io::BufRead;
use std::time::Instant;

use netcl_nn::autograd::{DType, DeviceHandle, Generator, Queue, Result, Tensor, grad, manager};
use netcl_nn::{GRU, Init, LSTM, Module, RNN, RNNOptions, RecurrentOptions};
use netcl_runtime::capture::capture;

/// What is measured: a kind of network, its layers, width (of inputs, too), batch and steps.
#[derive(Clone, Copy)]
struct Case<'n> {
    kind: &'n str,
    sizes: [usize; 4],
}

impl Case<'_> {
    fn model(&self, queue: &Queue) -> Box<dyn Module> {
        let [num_layers, width, ..] = self.sizes;
        let options = RecurrentOptions { num_layers, ..RecurrentOptions::new(width, width) };
        match self.kind {
            "lstm" => Box::new(LSTM::new_with(queue, options).unwrap()),
            "gru" => Box::new(GRU::new_with(queue, options).unwrap()),
            _ => Box::new(RNN::new_with(queue, RNNOptions { num_layers, ..RNNOptions::new(width, width) }).unwrap()),
        }
    }

    /// The median of as many passes as fit into a second, at least five, after two that compile and fill the pools.
    fn seconds(&self, queue: &Queue, replayed: bool) -> f64 {
        let [_, width, batch, steps] = self.sizes;
        let law = Init::Uniform { low: -1.0, high: 1.0 };
        let make =
            |seed| law.tensor(queue, [steps, batch, width], DType::F32, Some(&mut Generator::new(seed))).unwrap();
        let (x, upstream) = (make(1), make(2));
        let model = self.model(queue);
        let pass = move |(x, upstream): &(Tensor, Tensor)| -> Result<Vec<Option<Tensor>>> {
            let x = x.detach().with_grad();
            let out = model.forward(&x)?;
            let parameters = model.parameters();
            let inputs: Vec<&Tensor> = parameters.iter().chain([&x]).collect();
            grad(&[&out], &inputs, &[Some(upstream)], Default::default())
        };
        let given = (x, upstream);
        let mut captured = replayed.then(|| capture(&pass));
        let mut run = || {
            let start = Instant::now();
            match &mut captured {
                Some(captured) => drop(captured.call(&given).unwrap()),
                None => drop(pass(&given).unwrap()),
            }
            queue.finish().unwrap();
            start.elapsed().as_secs_f64()
        };
        run();
        run();
        let (start, mut times) = (Instant::now(), Vec::new());
        while times.len() < 5 || start.elapsed().as_secs_f64() < 1.0 {
            times.push(run());
        }
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
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
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let sizes = std::array::from_fn(|i| words[1 + i].parse().unwrap());
            println!("{:e}", Case { kind: words[0], sizes }.seconds(&handle.queue, words[5] == "replay"));
        }
        return;
    }
    for handle in handles {
        let processor =
            handle.backend.name() == "cpu" || handle.queue.profile().device_type.eq_ignore_ascii_case("cpu");
        let sizes = if processor { [2, 256, 32, 64] } else { [2, 512, 64, 128] };
        for kind in ["lstm", "gru", "rnn"] {
            let case = Case { kind, sizes };
            let [eager, replay] = [false, true].map(|replayed| case.seconds(&handle.queue, replayed) * 1e3);
            println!("{:>40} {kind:>4} {sizes:?}: {eager:9.3} ms eager, {replay:9.3} ms replayed", handle.device_name);
        }
    }
}

//! What the tests of captured steps share: devices, a small network, batches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netcl::core::backend::cpu::buffer;
use netcl::core::random::manual_seed;
use netcl::optim::Adam;
use netcl::prelude::*;

/// One test at a time: they seed the process-wide generator and look at the process's memory.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The native CPU and every OpenCL device.
pub(crate) fn devices() -> Vec<DeviceHandle> {
    let found = manager().discover().unwrap();
    if found.is_empty() {
        eprintln!("NOT TESTED on OpenCL: there is no device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device: install pocl-opencl-icd");
    }
    let mut handles = vec![manager().cpu()];
    handles.extend(found.iter().map(|device| manager().handle(device).unwrap()));
    handles
}

pub(crate) type Step = Box<dyn FnMut(&(Tensor, IndexTensor)) -> netcl::Result<Tensor> + Send>;

/// A small network and one step of its training, without randomness.
pub(crate) fn mlp(queue: &Queue, seed: u64, widths: [usize; 3]) -> (Arc<Sequential>, Step) {
    manual_seed(seed);
    let model = Arc::new(sequential![
        Linear::new(queue, widths[0], widths[1]).unwrap(),
        ReLU,
        Linear::new(queue, widths[1], widths[2]).unwrap(),
    ]);
    let mut optimizer = Adam::new(model.parameters(), 0.01).unwrap();
    let network = model.clone();
    let step = move |(x, labels): &(Tensor, IndexTensor)| {
        let loss = F::cross_entropy(&network.forward(x)?, labels)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(loss)
    };
    (model, Box::new(step))
}

pub(crate) fn batch(queue: &Queue, rows: usize, width: usize, classes: usize, i: usize) -> (Tensor, IndexTensor) {
    let x: Vec<f32> = (0..rows * width).map(|n| ((n * 37 + i * 101) % 97) as f32 / 48.0 - 1.0).collect();
    let labels: Vec<i64> = (0..rows).map(|n| ((n + i) % classes) as i64).collect();
    (Tensor::from_host(queue, &x, [rows, width]).unwrap(), IndexTensor::from_host(queue, &labels, [rows]).unwrap())
}

pub(crate) fn weights(model: &Sequential) -> Vec<Vec<u32>> {
    let bits = |p: Tensor| p.to_host::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    model.parameters().into_iter().map(bits).collect()
}

/// Bytes in use on a queue's device, and its buffers on the native CPU or the bytes that a pool holds.
pub(crate) fn live_bytes(queue: &Queue) -> (usize, usize) {
    match queue {
        Queue::Cpu(_) => (buffer::stats().live_bytes, buffer::stats().live_buffers),
        Queue::OpenCl(stream) => (stream.pool().stats().bytes_in_use, stream.pool().stats().bytes_allocated),
    }
}

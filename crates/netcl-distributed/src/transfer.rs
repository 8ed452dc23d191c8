//! Bytes of tensors between devices and the host, in chunks: copies down, work on the host and copies up overlap.
//!
//! ```text
//!   device 0 down    c0  c1  c2  c3
//!   device 1 down    c0  c1  c2  c3
//!   host                 c0  c1  c2  c3        reduces
//!   device 0 up              c0  c1  c2  c3
//!   device 1 up              c0  c1  c2  c3
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use netcl_core::kernels::host_work::submit_host;
use netcl_core::tensor::HostLane;
use netcl_nn::autograd::{CoreError, DType, Queue, RawTensor};

use crate::error::Result;
use crate::reduction::{Accumulator, Reduce};

/// Bytes of a chunk: large enough that a copy's own cost does not count, small enough that there are several to overlap. A multiple of
/// every element's size.
const CHUNK: usize = 1 << 20;
/// Chunks of a tensor that are under way at once: two come down while one is reduced and one goes up.
const SLOTS: usize = 4;
const AHEAD: usize = 2;

/// Runs what touches several devices or waits for other ranks as one step of the host, which a captured program repeats.
pub(crate) fn on_host(
    call: &'static str,
    queue: &Queue,
    reads: &[&RawTensor],
    writes: &[&RawTensor],
    work: impl Fn(&[RawTensor], &[RawTensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let failed = Arc::new(Mutex::new(None));
    let kept = failed.clone();
    let done = submit_host(call, queue, reads, writes, move |reads, writes| {
        work(reads, writes).map_err(|error| {
            let told = CoreError::Host { kind: error.kind(), what: error.to_string() };
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            told
        })
    });
    // The work's own error, where it ran just now.
    let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
    done.map_err(|error| failed.unwrap_or_else(|| error.into()))
}

/// Hands all bytes of a tensor to `work` in row-major order, as many at a time as `scratch` has, and overwrites them with what it makes
/// of them if `writes`. The next ones are on their way down meanwhile, and the last ones on their way up.
pub(crate) fn rewrite(
    tensor: &RawTensor,
    scratch: &mut [u8],
    writes: bool,
    mut work: impl FnMut(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let dense = tensor.contiguous()?;
    let mut lane = HostLane::new(&dense, scratch.len(), SLOTS)?;
    for step in Chunks::of(&dense, scratch.len()).steps() {
        if let Some((slot, offset, len)) = step.read {
            lane.start_read(slot, offset, len)?;
        }
        if let Some((slot, offset, len)) = step.work {
            lane.read(slot, offset, len, |bytes| scratch[..len].copy_from_slice(bytes))?;
            work(&mut scratch[..len])?;
            if writes {
                lane.write(slot, offset, len, |out| out.copy_from_slice(&scratch[..len]))?;
            }
        }
    }
    lane.finish()?;
    if writes && !dense.shares_storage(tensor) {
        tensor.assign(&dense)?;
    }
    Ok(())
}

/// Overwrites all targets with the reduction of the sources, in their order. All have as many elements of one dtype; a target may be
/// one of the sources.
pub(crate) fn reduce_into(call: &'static str, sources: &[RawTensor], op: Reduce, targets: &[RawTensor]) -> Result<()> {
    reduce_chunks(call, sources, op, targets, CHUNK)
}

fn reduce_chunks(
    call: &'static str,
    sources: &[RawTensor],
    op: Reduce,
    targets: &[RawTensor],
    chunk: usize,
) -> Result<()> {
    let dense = sources.iter().map(RawTensor::contiguous).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = dense.first() else { return Ok(()) };
    let mut lanes = dense.iter().map(|tensor| HostLane::new(tensor, chunk, SLOTS)).collect::<Result<Vec<_>, _>>()?;
    // Where each target is written: its lane, and the tensor that the lane goes to.
    let mut writes: Vec<(usize, RawTensor)> = Vec::with_capacity(targets.len());
    for target in targets {
        let same = |source: &RawTensor| source.shares_storage(target) && source.layout() == target.layout();
        if let Some(at) = sources.iter().position(same) {
            writes.push((at, dense[at].clone()));
            continue;
        }
        let out = if target.layout().is_contiguous() { target.clone() } else { like(target)? };
        writes.push((lanes.len(), out.clone()));
        lanes.push(HostLane::new(&out, chunk, SLOTS)?);
    }
    // A single source is copied byte for byte.
    let (op, dtype) = if sources.len() == 1 { (Reduce::Max, DType::U8) } else { (op, first.dtype()) };
    let nbytes = first.size() * first.dtype().size();
    let mut sums = Accumulator::new(call, op, dtype, chunk.min(nbytes) / dtype.size())?;
    for step in Chunks::of(first, chunk).steps() {
        if let Some((slot, offset, len)) = step.read {
            lanes[..dense.len()].iter_mut().try_for_each(|lane| lane.start_read(slot, offset, len))?;
        }
        let Some((slot, offset, len)) = step.work else { continue };
        for (at, lane) in lanes[..dense.len()].iter_mut().enumerate() {
            lane.read(slot, offset, len, |bytes| sums.add(at == 0, 0, bytes))?;
        }
        for (lane, _) in &writes {
            lanes[*lane].write(slot, offset, len, |out| sums.write(sources.len(), out))?;
        }
    }
    // Only what was written: a tensor that was read stays as it was for whoever saved it.
    let is_written = |at: &usize| writes.iter().any(|(lane, _)| lane == at);
    let written = lanes.into_iter().enumerate().filter(|(at, _)| is_written(at));
    written.map(|(_, lane)| lane).try_for_each(HostLane::finish)?;
    for (target, (_, written)) in targets.iter().zip(&writes) {
        if !written.shares_storage(target) {
            target.assign(written)?;
        }
    }
    Ok(())
}

fn like(tensor: &RawTensor) -> Result<RawTensor> {
    Ok(RawTensor::uninit(tensor.queue(), tensor.shape().clone(), tensor.dtype())?)
}

/// How a tensor's bytes are cut.
struct Chunks {
    nbytes: usize,
    chunk: usize,
}

/// A slot, where the chunk begins, and how long it is.
type Place = (usize, usize, usize);

/// What happens in one round: a chunk is sent for, another has come.
struct Round {
    read: Option<Place>,
    work: Option<Place>,
}

impl Chunks {
    fn of(tensor: &RawTensor, chunk: usize) -> Chunks {
        Chunks { nbytes: tensor.size() * tensor.dtype().size(), chunk }
    }

    fn count(&self) -> usize {
        self.nbytes.div_ceil(self.chunk)
    }

    fn place(&self, at: usize) -> Option<Place> {
        let offset = at * self.chunk;
        (at < self.count()).then(|| (at % SLOTS, offset, self.chunk.min(self.nbytes - offset)))
    }

    /// Every chunk is sent for [`AHEAD`] rounds before it is worked on.
    fn steps(&self) -> impl Iterator<Item = Round> {
        let rounds = if self.nbytes == 0 { 0 } else { self.count() + AHEAD };
        (0..rounds).map(|at| Round { read: self.place(at), work: at.checked_sub(AHEAD).and_then(|at| self.place(at)) })
    }
}

#[cfg(test)]
mod tests {
    use netcl_nn::autograd::manager;

    use super::*;

    #[test]
    fn chunks_of_any_size_give_the_same_bits() {
        let mut queues = vec![manager().cpu().queue];
        for device in manager().discover().unwrap() {
            queues.push(manager().handle(&device).unwrap().queue);
        }
        let values = |rank: usize| (0..1001).map(|i| (i as f32 * 0.37 + rank as f32).sin()).collect::<Vec<f32>>();
        let expected: Vec<f32> =
            (0..1001).map(|i| (0..queues.len()).map(|rank| values(rank)[i]).reduce(|a, b| a + b).unwrap()).collect();
        for chunk in [8, 64, 1000, 4096, CHUNK] {
            let tensors: Vec<RawTensor> = queues
                .iter()
                .enumerate()
                .map(|(rank, queue)| RawTensor::from_host(queue, &values(rank), [1001]).unwrap())
                .collect();
            reduce_chunks("all_reduce", &tensors, Reduce::Sum, &tensors, chunk).unwrap();
            for tensor in &tensors {
                assert_eq!(tensor.to_host::<f32>().unwrap(), expected, "chunks of {chunk}");
            }
        }
    }

    #[test]
    fn bytes_are_rewritten_in_order() {
        for device in manager().discover().unwrap() {
            let queue = manager().handle(&device).unwrap().queue;
            let bytes: Vec<u8> = (0..100_005).map(|i| (i % 251) as u8).collect();
            let turned = RawTensor::from_host(&queue, &bytes, [3, 33_335]).unwrap().permute(&[1, 0]).unwrap();
            let expected: Vec<u8> = turned.to_host::<u8>().unwrap().iter().map(|byte| byte + 1).collect();
            let mut seen = Vec::new();
            let add = |bytes: &mut [u8]| {
                seen.push(bytes.len());
                bytes.iter_mut().for_each(|byte| *byte += 1);
                Ok(())
            };
            rewrite(&turned, &mut [0; 1 << 14], true, add).unwrap();
            assert_eq!(turned.to_host::<u8>().unwrap(), expected);
            assert_eq!(seen, [&[1 << 14; 6][..], &[100_005 - 6 * (1 << 14)]].concat());
        }
    }
}

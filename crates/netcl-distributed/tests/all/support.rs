//! What the tests share.

use netcl_distributed::{Group, Threads};
use netcl_nn::autograd::Tensor;
use netcl_nn::autograd::manager;

/// Runs a function on so many ranks, each a thread, and returns their results in order.
pub(crate) fn on_ranks<T: Send>(ranks: usize, run: impl Fn(Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            Threads::new(ranks).into_iter().map(|rank| scope.spawn(|| run(Group::new(rank)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A tensor of float64 on the native CPU whose elements look random.
pub(crate) fn numbers(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    let values: Vec<f64> = (0..shape.iter().product::<usize>()).map(next).collect();
    Tensor::from_host(&manager().cpu().queue, &values, shape).unwrap()
}

/// The bits of tensors.
pub(crate) fn bits(tensors: &[Tensor]) -> Vec<Vec<u64>> {
    tensors.iter().map(|tensor| tensor.to_f64_vec().unwrap().into_iter().map(f64::to_bits).collect()).collect()
}

/// The largest difference of two lists of tensors, relative to the largest element.
pub(crate) fn difference(a: &[Tensor], b: &[Tensor]) -> f64 {
    assert_eq!(a.len(), b.len());
    let values = |list: &[Tensor]| list.iter().flat_map(|one| one.to_f64_vec().unwrap()).collect::<Vec<f64>>();
    let (a, b) = (values(a), values(b));
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(1e-300f64, |most, value| most.max(value.abs()));
    a.iter().zip(&b).fold(0.0f64, |most, (a, b)| most.max((a - b).abs())) / scale
}

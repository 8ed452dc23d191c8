//! What a tensor promises: copies, views, versions, errors, threads.

use std::rc::Rc;
use std::sync::Barrier;

use half::{bf16, f16};
use netcl_core::backend::Queue;
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch;
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::{HostOptions, Tensor, reshape};

fn cpu() -> Queue {
    manager().cpu().queue
}

#[test]
fn every_dtype_survives_the_round_trip() {
    let q = cpu();
    let values = [0.0, -1.5, 0.333251953125, 65504.0, 1e-3];
    for dtype in DType::FLOATS {
        let options = HostOptions { dtype: Some(dtype), ..Default::default() };
        let tensor = Tensor::from_host_with(&q, &values, [5], options).unwrap();
        let expected: Vec<f64> = values
            .iter()
            .map(|&v| match dtype {
                DType::F16 => f16::from_f64(v).to_f64(),
                DType::BF16 => bf16::from_f64(v).to_f64(),
                DType::F32 => f64::from(v as f32),
                _ => v,
            })
            .collect();
        assert_eq!(tensor.to_f64_vec().unwrap(), expected, "{dtype}");
        assert_eq!(tensor.dtype(), dtype);
    }
}

#[test]
fn from_host_copies() {
    let mut data = vec![1.0f32; 100_000];
    let tensor = Tensor::from_host(&cpu(), &data, [100_000]).unwrap();
    data.fill(9.0);
    assert!(tensor.to_host::<f32>().unwrap().iter().all(|&v| v == 1.0));
}

#[test]
fn recycled_memory_is_filled_again() {
    let q = cpu();
    for _ in 0..20 {
        let ones = Tensor::full(&q, [4096], DType::F32, 1.0).unwrap();
        drop(ones);
        let zeros = Tensor::from_shape(&q, [4096], DType::F32).unwrap();
        assert!(zeros.to_host::<f32>().unwrap().iter().all(|&v| v == 0.0));
    }
}

#[test]
fn zero_size_tensors_hold_no_memory() {
    let tensor = Tensor::from_shape(&cpu(), [3, 0, 2], DType::F32).unwrap();
    assert_eq!((tensor.size(), tensor.storage().nbytes()), (0, 0));
    assert_eq!(tensor.to_host::<f32>().unwrap(), Vec::<f32>::new());
    assert_eq!(reshape(&tensor, [0, 9]).unwrap().shape(), &Shape::from([0, 9]));
    assert_eq!(tensor.permute(&[1, 0, 2]).unwrap().contiguous().unwrap().size(), 0);
    assert!(Tensor::from_host::<f32>(&cpu(), &[], [0]).unwrap().to_string().starts_with("Tensor([]"));
}

#[test]
fn writes_raise_the_version_of_every_view() {
    let base = Tensor::from_host(&cpu(), &[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
    let view = base.permute(&[1, 0]).unwrap();
    let before = view.version();
    base.fill(7.0).unwrap();
    assert!(view.version() > before);
    assert_eq!(view.to_host::<f32>().unwrap(), [7.0; 4]);
    let row = base.select(0, 1).unwrap();
    row.assign(&Tensor::from_host(&cpu(), &[0.5f32], [1]).unwrap()).unwrap();
    assert_eq!(base.to_host::<f32>().unwrap(), [7.0, 7.0, 0.5, 0.5]);
}

#[test]
fn overlapping_assignment_reads_before_it_writes() {
    let line: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let base = Tensor::from_host(&cpu(), &line, [10]).unwrap();
    let left = base.slice(0, Slice::new(None, Some(9), 1)).unwrap();
    let right = base.slice(0, Slice::new(Some(1), None, 1)).unwrap();
    right.assign(&left).unwrap();
    assert_eq!(base.to_host::<f32>().unwrap(), [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert!(base.expand([3, 10]).unwrap().fill(1.0).unwrap_err().to_string().contains("share memory"));
}

#[test]
fn bad_requests_are_explained() {
    let q = cpu();
    let tensor = Tensor::from_host(&q, &[1.0f32, 2.0], [2]).unwrap();
    let text = Tensor::from_host(&q, &[1.0f32; 3], [2, 2]).unwrap_err().to_string();
    assert_eq!(text, "from_host: 3 values given for shape (2, 2), which has 4 elements");
    assert!(tensor.to_host::<f64>().unwrap_err().to_string().contains("got a tensor of float32"));
    assert!(tensor.item().unwrap_err().to_string().contains("this tensor has 2"));
    assert!(tensor.select(0, 2).unwrap_err().to_string().contains("index 2 is out of range"));
    assert!(Tensor::from_shape(&q, [1 << 40, 1 << 40], DType::F32).is_err());
    assert!(IndexTensor::from_float(&Tensor::from_host(&q, &[0.5f32], [1]).unwrap()).is_err());
    assert!(IndexTensor::from_tensor(tensor).is_err());
}

#[test]
fn printing_shows_values_and_facts() {
    let tensor = Tensor::from_host(&cpu(), &[1.0f32, 0.25, -3.0, 1e-9], [2, 2]).unwrap();
    let text = tensor.to_string();
    assert!(
        text.starts_with("Tensor([[1., 0.25],\n        [-3., 1.0000e-9]], shape=(2, 2), dtype=float32, device="),
        "{text}"
    );
    let long = Tensor::from_shape(&cpu(), [5000], DType::F32).unwrap().to_string();
    assert!(long.contains("0., 0., 0., ..., 0., 0., 0."), "{long}");
}

#[test]
fn recorded_launches_replay_with_the_slots_of_the_moment() {
    let q = cpu();
    let source = Tensor::from_host(&q, &[1.0f32, 2.0, 3.0], [3]).unwrap();
    let target = Tensor::from_shape(&q, [3], DType::F16).unwrap();
    let recorder = Rc::new(launch::Recorder::default());
    launch::with_sink(recorder.clone(), || -> netcl_core::Result<()> {
        target.assign(&source)?;
        let error = target.to_f64_vec().unwrap_err().to_string();
        assert!(error.contains("being recorded"), "{error}");
        Ok(())
    })
    .unwrap();
    assert_eq!(recorder.len(), 1);
    assert_eq!(target.to_f64_vec().unwrap(), [0.0; 3]);
    recorder.replay().unwrap();
    assert_eq!(target.to_f64_vec().unwrap(), [1.0, 2.0, 3.0]);
    source.fill(5.0).unwrap();
    recorder.replay().unwrap();
    assert_eq!(target.to_f64_vec().unwrap(), [5.0; 3]);
}

#[test]
fn counters_see_launches_and_memory() {
    let q = cpu();
    let counter = Rc::new(launch::Counter::default());
    launch::with_sink(counter.clone(), || {
        let tensor = Tensor::from_shape(&q, [8, 8], DType::F32).unwrap();
        tensor.permute(&[1, 0]).unwrap().contiguous().unwrap();
        tensor.cast(DType::F16).unwrap();
    });
    assert_eq!(counter.names(), [("cast".to_owned(), 1), ("copy".to_owned(), 1), ("fill".to_owned(), 1)]);
    assert_eq!(counter.allocations(), (3, 256 + 256 + 128));
}

#[test]
fn tensors_are_shared_and_dropped_from_many_threads() {
    let q = cpu();
    let shared = Tensor::full(&q, [64, 1024], DType::F32, 3.0).unwrap();
    let threads = 8;
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (view, barrier, q) = (shared.permute(&[1, 0]).unwrap(), &barrier, &q);
            scope.spawn(move || {
                barrier.wait();
                for i in 0..40 {
                    let mine = Tensor::full(q, [1024 + 64 * t], DType::F32, f64::from(i)).unwrap();
                    assert!(mine.to_host::<f32>().unwrap().iter().all(|&v| v == i as f32));
                    let column = view.select(1, (t * 7 + i as usize) as isize % 64).unwrap();
                    // Whole writes of one value race with whole reads: every reader sees one value throughout.
                    if i % 5 == 0 {
                        view.fill(f64::from(i)).unwrap();
                    }
                    let seen = column.to_host::<f32>().unwrap();
                    assert!(seen.iter().all(|&v| v == seen[0]), "a torn read: {seen:?}");
                }
            });
        }
    });
    drop(shared);
}

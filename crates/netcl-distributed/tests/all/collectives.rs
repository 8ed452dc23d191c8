//! Collectives over every OpenCL device of this machine and the native CPU, eagerly and inside captured functions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netcl_core::kernels::host_work::submit_host;
use netcl_core::kernels::launch;
use netcl_core::observe::{self, Command, Kind, Observer};
use netcl_distributed::{Reduce, collectives};
use netcl_nn::autograd::{CoreError, DType, Queue, RawTensor, manager};
use netcl_runtime::capture::capture;

/// The native CPU first and last, so that every list mixes devices, and has two tensors of one.
fn queues() -> Vec<Queue> {
    let mut queues = vec![manager().cpu().queue];
    for device in manager().discover().unwrap() {
        queues.push(manager().handle(&device).unwrap().queue);
    }
    queues.push(manager().cpu().queue);
    queues
}

/// Whole numbers, exact in every dtype.
fn values(rank: usize, count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 5 + rank * 3) % 13) as f64).collect()
}

fn tensor(queue: &Queue, values: &[f64], shape: &[usize], dtype: DType) -> RawTensor {
    RawTensor::from_host(queue, values, shape.to_vec()).unwrap().cast(dtype).unwrap()
}

fn list(shape: &[usize], dtype: DType) -> Vec<RawTensor> {
    let count = shape.iter().product();
    queues().iter().enumerate().map(|(rank, queue)| tensor(queue, &values(rank, count), shape, dtype)).collect()
}

const DTYPES: [DType; 7] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::I32, DType::I64];

#[test]
fn every_dtype_on_odd_sizes() {
    for dtype in DTYPES {
        for shape in [&[][..], &[0], &[1], &[7, 3], &[37, 1, 5], &[0, 4]] {
            let count: usize = shape.iter().product();
            let ranks = queues().len();
            let sums: Vec<f64> = (0..count).map(|i| (0..ranks).map(|rank| values(rank, count)[i]).sum()).collect();
            let most: Vec<f64> =
                (0..count).map(|i| (0..ranks).map(|rank| values(rank, count)[i]).fold(0.0, f64::max)).collect();
            for (op, expected) in [(Reduce::Sum, &sums), (Reduce::Max, &most)] {
                let tensors = list(shape, dtype);
                collectives::all_reduce(&tensors, op).unwrap();
                for tensor in &tensors {
                    assert_eq!(&tensor.to_f64_vec().unwrap(), expected, "{dtype} {shape:?}");
                }
                let tensors = list(shape, dtype);
                collectives::reduce(&tensors, op, 1).unwrap();
                assert_eq!(&tensors[1].to_f64_vec().unwrap(), expected);
                assert_eq!(tensors[0].to_f64_vec().unwrap(), values(0, count));
                // What is only read has not changed for those who saved it.
                assert_eq!(tensors[0].version(), list(shape, dtype)[0].version());
            }
            let tensors = list(shape, dtype);
            collectives::broadcast(&tensors, 1).unwrap();
            assert!(tensors.iter().all(|tensor| tensor.to_f64_vec().unwrap() == values(1, count)));

            let all: Vec<f64> = (0..ranks).flat_map(|rank| values(rank, count)).collect();
            let tensors = list(shape, dtype);
            let gathered = collectives::gather(&tensors, tensors[1].queue()).unwrap();
            assert_eq!(gathered.to_f64_vec().unwrap(), all);
            for gathered in collectives::all_gather(&tensors).unwrap() {
                assert_eq!(gathered.to_f64_vec().unwrap(), all);
            }
            if shape.is_empty() {
                assert!(collectives::reduce_scatter(&tensors, Reduce::Sum).is_err());
                continue;
            }
            let parts = collectives::scatter(&gathered, &queues()).unwrap();
            assert_eq!(parts.iter().map(|part| part.shape()[0]).sum::<usize>(), gathered.shape()[0]);
            let back = collectives::gather(&parts, tensors[0].queue()).unwrap();
            assert_eq!(back.to_f64_vec().unwrap(), all);
            let parts = collectives::reduce_scatter(&tensors, Reduce::Sum).unwrap();
            let parts: Vec<f64> = parts.iter().flat_map(|part| part.to_f64_vec().unwrap()).collect();
            assert_eq!(parts, sums);
            // Twice is there and back, where the parts are equal.
            let once = collectives::all_to_all(&tensors).unwrap();
            let total: f64 = once.iter().flat_map(|tensor| tensor.to_f64_vec().unwrap()).sum();
            assert_eq!(total, all.iter().sum::<f64>());
        }
    }
}

#[test]
fn parts_go_where_they_belong() {
    let queues = queues();
    let ranks = queues.len();
    let tensors: Vec<RawTensor> = queues
        .iter()
        .enumerate()
        .map(|(rank, queue)| {
            let rows: Vec<f64> = (0..ranks).map(|to| (10 * rank + to) as f64).collect();
            tensor(queue, &rows, &[ranks], DType::I32)
        })
        .collect();
    for (to, result) in collectives::all_to_all(&tensors).unwrap().iter().enumerate() {
        let expected: Vec<f64> = (0..ranks).map(|from| (10 * from + to) as f64).collect();
        assert_eq!(result.to_f64_vec().unwrap(), expected);
        assert!(result.queue().same_device(&queues[to]));
    }
}

#[test]
fn views_are_written_where_they_lie() {
    let whole = list(&[4, 6], DType::F32);
    let views: Vec<RawTensor> = whole.iter().map(|t| t.permute(&[1, 0]).unwrap()).collect();
    collectives::all_reduce(&views, Reduce::Mean).unwrap();
    let mean: Vec<f64> = (0..24)
        .map(|i| (0..whole.len()).map(|rank| values(rank, 24)[i]).sum::<f64>() as f32 / whole.len() as f32)
        .map(f64::from)
        .collect();
    assert!(whole.iter().all(|tensor| tensor.to_f64_vec().unwrap() == mean));
}

#[test]
fn tensors_of_one_device_meet_there() {
    for queue in queues() {
        let tensors: Vec<RawTensor> =
            (0..3).map(|rank| tensor(&queue, &values(rank, 100), &[100], DType::F32)).collect();
        let counter = std::rc::Rc::new(launch::Counter::default());
        launch::with_sink(counter.clone(), || collectives::all_reduce(&tensors, Reduce::Sum)).unwrap();
        assert_eq!(counter.names(), [("all_reduce".to_owned(), 1), ("copy".to_owned(), 3)]);
        let sums: Vec<f64> = (0..100).map(|i| (0..3).map(|rank| values(rank, 100)[i]).sum()).collect();
        assert!(tensors.iter().all(|tensor| tensor.to_f64_vec().unwrap() == sums));
    }
}

#[test]
fn errors_name_the_place_in_the_list() {
    let queue = manager().cpu().queue;
    let make = |shape: &[usize], dtype| RawTensor::from_shape(&queue, shape.to_vec(), dtype).unwrap();
    let text = |result: netcl_distributed::Result<()>| result.unwrap_err().to_string();
    let (a, b) = (make(&[2, 3], DType::F32), make(&[3, 2], DType::F32));
    let error = text(collectives::all_reduce(&[a.clone(), a.duplicate().unwrap(), b.clone()], Reduce::Sum));
    assert_eq!(
        error,
        "all_reduce: tensor 2 is float32 of shape (3, 2), tensor 0 is float32 of shape (2, 3); they must be alike"
    );
    let whole = make(&[3], DType::I64);
    assert!(text(collectives::all_reduce(&[whole.clone(), whole], Reduce::Mean)).contains("the mean of int64"));
    assert!(text(collectives::broadcast(std::slice::from_ref(&a), 1)).contains("no tensor 1 in a list of 1"));
    let row = make(&[1, 3], DType::F32).expand([2, 3]).unwrap();
    assert!(text(collectives::all_reduce(&[a.clone(), row], Reduce::Sum)).contains("tensor 1 is an expanded view"));
    assert!(collectives::gather(&[], &queue).unwrap_err().to_string().contains("empty"));
    collectives::all_reduce(&[], Reduce::Sum).unwrap();
}

#[test]
fn a_captured_step_over_all_devices_repeats_its_collectives() {
    let homes = list(&[1000], DType::F32);
    let inside = homes.clone();
    let mut step = capture(move |inputs: &Vec<RawTensor>| {
        // Launches on every device, the exchange between them, launches with what came of it.
        let wide = inputs.iter().map(|x| x.cast(DType::F64)).collect::<Result<Vec<_>, _>>()?;
        collectives::all_reduce(&wide, Reduce::Sum).map_err(|error| CoreError::argument("step", error.to_string()))?;
        for (home, wide) in inside.iter().zip(&wide) {
            home.assign(wide)?;
        }
        wide.iter().map(|wide| wide.cast(DType::F32)).collect::<Result<Vec<_>, CoreError>>()
    });
    for round in 0..3 {
        let inputs: Vec<RawTensor> = queues()
            .iter()
            .enumerate()
            .map(|(rank, queue)| tensor(queue, &values(rank + round, 1000), &[1000], DType::F32))
            .collect();
        let expected: Vec<f64> =
            (0..1000).map(|i| (0..inputs.len()).map(|rank| values(rank + round, 1000)[i]).sum()).collect();
        for (result, home) in step.call(&inputs).unwrap().iter().zip(&homes) {
            assert_eq!(result.to_f64_vec().unwrap(), expected, "round {round}");
            assert_eq!(home.to_f64_vec().unwrap(), expected, "round {round}");
        }
    }
    assert_eq!(step.recordings(), 1);
    assert!(step.stats().unwrap().names.contains(&"all_reduce".to_owned()));
    let inputs = list(&[1000], DType::F32);
    step.verify(&inputs).unwrap();
}

#[derive(Default)]
struct Seen(std::sync::Mutex<Vec<(String, Kind)>>);

impl Observer for Seen {
    fn command(&self, command: Command) {
        self.0.lock().unwrap().push((command.name.into_owned(), command.kind));
    }
}

#[test]
fn a_replay_that_fails_on_the_host_can_be_repeated_and_is_observed() {
    for queue in queues() {
        let fails = Arc::new(AtomicBool::new(false));
        let flag = fails.clone();
        let mut step = capture(move |x: &RawTensor| {
            let y = x.duplicate()?;
            let flag = flag.clone();
            submit_host("exchange", y.queue(), &[], &[&y], move |_, writes| {
                if flag.load(Ordering::Relaxed) {
                    return Err(CoreError::argument("exchange", "rank 1 is gone"));
                }
                let doubled: Vec<f32> = writes[0].to_host::<f32>()?.iter().map(|v| v * 2.0).collect();
                writes[0].write_bytes(bytemuck::cast_slice(&doubled), DType::F32)
            })?;
            y.cast(DType::F64)
        });
        let x = RawTensor::from_host(&queue, &[1.0f32, 2.0, 3.0], [3]).unwrap();
        assert_eq!(step.call(&x).unwrap().to_host::<f64>().unwrap(), [2.0, 4.0, 6.0]);
        fails.store(true, Ordering::Relaxed);
        assert!(step.call(&x).unwrap_err().to_string().contains("rank 1 is gone"));
        fails.store(false, Ordering::Relaxed);
        let seen = Arc::new(Seen::default());
        let observing = observe::observe(seen.clone());
        let y = RawTensor::from_host(&queue, &[5.0f32, 6.0, 7.0], [3]).unwrap();
        assert_eq!(step.call(&y).unwrap().to_host::<f64>().unwrap(), [10.0, 12.0, 14.0]);
        drop(observing);
        let seen = seen.0.lock().unwrap();
        assert!(seen.contains(&("exchange".to_owned(), Kind::Host)), "{seen:?}");
        assert!(seen.iter().any(|(_, kind)| *kind == Kind::Download), "{seen:?}");
    }
}

#[test]
fn two_queues_of_one_device_in_a_captured_function_are_refused_by_name() {
    let Some(device) = manager().discover().unwrap().into_iter().next() else { return };
    let first = manager().handle(&device).unwrap().queue;
    let Queue::OpenCl(stream) = &first else { return };
    let other = netcl_core::backend::opencl::Queue::new(stream.context(), stream.device()).unwrap();
    let second = Queue::OpenCl(netcl_core::backend::opencl::Stream::new(&other).unwrap());
    let mut step =
        capture(|pair: &Vec<RawTensor>| pair.iter().map(|x| x.cast(DType::F64)).collect::<Result<Vec<_>, CoreError>>());
    let pair: Vec<RawTensor> =
        [&first, &second].map(|queue| RawTensor::from_host(queue, &[1.0f32], [1]).unwrap()).into();
    let error: CoreError = step.call(&pair).unwrap_err();
    assert!(error.to_string().contains("one queue of each device"), "{error}");
}

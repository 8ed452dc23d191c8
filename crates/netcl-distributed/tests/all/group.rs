use netcl_distributed::{Error, Group, Reduce};
use netcl_nn::autograd::{DType, Queue, RawTensor, Slice, manager};

use crate::on_ranks;

fn queue() -> Queue {
    manager().cpu().queue.clone()
}

/// Small whole numbers that differ from rank to rank, and that every dtype holds.
fn numbers(rank: usize, count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7 + rank * 3) % 11) as f64).collect()
}

fn tensor(values: &[f64], dtype: DType, shape: &[usize]) -> RawTensor {
    RawTensor::from_host(&queue(), values, shape).unwrap().cast(dtype).unwrap()
}

fn values(tensor: &RawTensor) -> Vec<f64> {
    tensor.to_f64_vec().unwrap()
}

fn expected(op: Reduce, ranks: usize, count: usize) -> Vec<f64> {
    let all: Vec<Vec<f64>> = (0..ranks).map(|rank| numbers(rank, count)).collect();
    let column = |i: usize| all.iter().map(move |numbers| numbers[i]);
    let reduced = |i: usize| match op {
        Reduce::Sum => column(i).sum(),
        Reduce::Mean => column(i).sum::<f64>() / ranks as f64,
        Reduce::Max => column(i).fold(f64::MIN, f64::max),
        Reduce::Min => column(i).fold(f64::MAX, f64::min),
    };
    (0..count).map(reduced).collect()
}

const DTYPES: [DType; 7] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::I32, DType::I64];

#[test]
fn every_dtype_and_operation_is_reduced() {
    on_ranks(3, |group| {
        for dtype in DTYPES {
            for op in [Reduce::Sum, Reduce::Max, Reduce::Min] {
                for shape in [&[][..], &[0], &[1], &[5, 3], &[64]] {
                    let count = shape.iter().product();
                    let x = tensor(&numbers(group.rank(), count), dtype, shape);
                    group.all_reduce(&x, op).unwrap();
                    assert_eq!(values(&x), expected(op, 3, count), "{op:?} {dtype} {shape:?}");
                    let x = tensor(&numbers(group.rank(), count), dtype, shape);
                    group.reduce(&x, op, 1).unwrap();
                    let kept = if group.rank() == 1 { expected(op, 3, count) } else { numbers(group.rank(), count) };
                    assert_eq!(values(&x), kept, "reduce {op:?} {dtype} {shape:?}");
                }
            }
        }
        let x = tensor(&numbers(group.rank(), 9), DType::F64, &[9]);
        group.all_reduce(&x, Reduce::Mean).unwrap();
        assert_eq!(values(&x), expected(Reduce::Mean, 3, 9));
        let whole = tensor(&[1.0], DType::I32, &[1]);
        assert!(matches!(group.all_reduce(&whole, Reduce::Mean), Err(Error::Argument { .. })));
    });
}

#[test]
fn long_tensors_travel_in_pieces() {
    // Around the sizes of slots, buffers and windows, and none of them.
    for (ranks, count) in [(1, 100_003), (2, 8192), (2, 8193), (2, 2_500_001), (3, 131_071), (5, 700_001), (64, 30_001)]
    {
        on_ranks(ranks, |group| {
            let x = tensor(&numbers(group.rank(), count), DType::F32, &[count]);
            group.all_reduce(&x, Reduce::Sum).unwrap();
            assert!(values(&x) == expected(Reduce::Sum, ranks, count), "{} {ranks} x {count}", group.kind());
            let x = tensor(&numbers(group.rank(), count), DType::F32, &[count]);
            group.broadcast(&x, ranks - 1).unwrap();
            assert!(values(&x) == numbers(ranks - 1, count), "{} {ranks} x {count}", group.kind());
        });
    }
}

#[test]
fn a_sum_is_the_same_on_every_rank_and_in_every_run() {
    let sums = |_| {
        on_ranks(4, |group| {
            let uneven: Vec<f64> = (0..40_001).map(|i| ((i * 31 + group.rank() * 17) as f64).sin() * 1e3).collect();
            let x = tensor(&uneven, DType::F32, &[40_001]);
            group.all_reduce(&x, Reduce::Sum).unwrap();
            x.to_host::<f32>().unwrap()
        })
    };
    let all: Vec<Vec<f32>> = (0..2).flat_map(sums).flatten().collect();
    assert!(all.iter().all(|sum| *sum == all[0]));
}

#[test]
fn gathered_tensors_may_differ_in_their_first_axes() {
    on_ranks(4, |group| {
        let shape = |rank: usize| [rank * 3001, 2];
        let own = |rank: usize, dtype| tensor(&numbers(rank, rank * 6002), dtype, &shape(rank));
        for dtype in DTYPES {
            let all = group.all_gather(&own(group.rank(), dtype)).unwrap();
            for (rank, found) in all.iter().enumerate() {
                assert_eq!((found.dtype(), &found.shape()[..]), (dtype, &shape(rank)[..]));
                assert_eq!(values(found), numbers(rank, rank * 6002));
            }
            let gathered = group.gather(&own(group.rank(), dtype), 2).unwrap();
            assert_eq!(gathered.map(|all| all.len()), (group.rank() == 2).then_some(4));
        }
        // Without elements the length of the first axis must still arrive, and a number has no axes.
        let empty = group.all_gather(&tensor(&[], DType::F32, &[group.rank(), 0])).unwrap();
        assert!(empty.iter().enumerate().all(|(rank, found)| found.shape()[..] == [rank, 0]));
        let scalars = group.all_gather(&tensor(&[group.rank() as f64], DType::I64, &[])).unwrap();
        assert!(
            scalars.iter().enumerate().all(|(rank, found)| found.item().unwrap() == rank as f64 && found.ndim() == 0)
        );
    });
}

#[test]
fn parts_go_to_their_ranks() {
    on_ranks(3, |group| {
        let (rank, size) = (group.rank(), group.size());
        for (dtype, count) in DTYPES.into_iter().flat_map(|dtype| [(dtype, 0), (dtype, 7), (dtype, 200_003)]) {
            let parts: Vec<RawTensor> =
                (0..size).map(|to| tensor(&numbers(rank * size + to, count), dtype, &[count])).collect();
            let received = group.all_to_all(&parts).unwrap();
            for (from, found) in received.iter().enumerate() {
                assert!(values(found) == numbers(from * size + rank, count), "{dtype} {count}");
            }
            let given = if rank == 1 { &parts[..] } else { &[] };
            assert!(values(&group.scatter(given, &queue(), 1).unwrap()) == numbers(size + rank, count));
            let reduced = group.reduce_scatter(&parts, Reduce::Max).unwrap();
            let column: Vec<Vec<f64>> = (0..size).map(|from| numbers(from * size + rank, count)).collect();
            let best: Vec<f64> = (0..count).map(|i| column.iter().map(|c| c[i]).fold(0.0, f64::max)).collect();
            assert!(values(&reduced) == best, "{dtype} {count}");
        }
    });
}

#[test]
fn parts_of_very_different_lengths_are_summed_in_the_order_of_ranks() {
    // Of 64 ranks rank 5 alone gives short parts to the others: they travel in another way than the long one.
    on_ranks(64, |group| {
        let part = |to: usize| {
            let count = if to == 5 { 7680 } else { 25 };
            let uneven: Vec<f64> = (0..count).map(|i| ((i * 31 + group.rank() * 17) as f64).sin() * 1e3).collect();
            tensor(&uneven, DType::F32, &[count])
        };
        let parts: Vec<RawTensor> = (0..64).map(part).collect();
        let sum = group.reduce_scatter(&parts, Reduce::Sum).unwrap().to_host::<f32>().unwrap();
        let expected = (0..sum.len()).map(|i| {
            let value = |rank: usize| (((i * 31 + rank * 17) as f64).sin() * 1e3) as f32;
            (1..64).fold(value(0), |sum, rank| sum + value(rank))
        });
        assert!(sum == expected.collect::<Vec<f32>>(), "{} {}", group.kind(), group.rank());
    });
}

#[test]
fn views_are_read_and_written_through_their_strides() {
    on_ranks(2, |group| {
        let whole = tensor(&numbers(group.rank(), 12), DType::F32, &[3, 4]);
        let column = whole.slice(1, Slice::new(Some(1), Some(3), 1)).unwrap();
        group.all_reduce(&column, Reduce::Sum).unwrap();
        let (sum, own) = (expected(Reduce::Sum, 2, 12), numbers(group.rank(), 12));
        let mixed: Vec<f64> = (0..12).map(|i| if [1, 2].contains(&(i % 4)) { sum[i] } else { own[i] }).collect();
        assert_eq!(values(&whole), mixed);
        let turned = group.all_gather(&whole.permute(&[1, 0]).unwrap()).unwrap();
        assert_eq!(&turned[0].shape()[..], [4, 3]);
    });
}

#[test]
fn wrong_arguments_are_named_before_anybody_waits() {
    let group = Group::alone();
    let x = tensor(&[1.0, 2.0], DType::F32, &[2]);
    assert_eq!((group.rank(), group.size(), group.kind()), (0, 1, "alone"));
    group.barrier().unwrap();
    group.abort("nobody hears it");
    group.all_reduce(&x, Reduce::Mean).unwrap();
    assert_eq!(values(&group.scatter(std::slice::from_ref(&x), &queue(), 0).unwrap()), [1.0, 2.0]);
    for (error, text) in [
        (group.broadcast(&x, 1).unwrap_err(), "broadcast: there is no rank 1: the ranks are 0 to 0"),
        (group.all_to_all(&[]).unwrap_err(), "all_to_all: 0 tensors for 1 ranks; give one for each"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

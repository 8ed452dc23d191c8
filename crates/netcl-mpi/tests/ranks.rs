//! Every collective over the ranks that `mpirun` started; see the README for the command.

use netcl_core::device::manager;
use netcl_core::tensor::Tensor;
use netcl_distributed::{Error, Reduce};

fn tensor(values: impl Iterator<Item = i64>) -> Tensor {
    let values: Vec<i64> = values.collect();
    Tensor::from_host(&manager().cpu().queue, &values, [values.len()]).unwrap()
}

fn main() {
    let group = netcl_mpi::init().unwrap();
    let (rank, size) = (group.rank() as i64, group.size() as i64);
    let (values, queue) = (|t: &Tensor| t.to_host::<i64>().unwrap(), manager().cpu().queue.clone());
    group.barrier().unwrap();
    for n in [0, 1, 1003, 300_007] {
        let own = || tensor((0..n).map(|i| i * (rank + 1)));
        let sum: Vec<i64> = (0..n).map(|i| i * size * (size + 1) / 2).collect();
        let x = own();
        group.all_reduce(&x, Reduce::Sum).unwrap();
        assert_eq!(values(&x), sum);
        let x = own();
        group.reduce(&x, Reduce::Sum, 0).unwrap();
        assert_eq!(values(&x), if rank == 0 { sum.clone() } else { values(&own()) });
        let x = own();
        group.broadcast(&x, group.size() - 1).unwrap();
        assert_eq!(values(&x), (0..n).map(|i| i * size).collect::<Vec<_>>());
        let all = group.all_gather(&tensor(0..n + rank)).unwrap();
        assert!(all.iter().zip(0..).all(|(found, from)| values(found) == (0..n + from).collect::<Vec<_>>()));
        assert_eq!(group.gather(&own(), 0).unwrap().map(|all| all.len() as i64), (rank == 0).then_some(size));
        let parts: Vec<Tensor> = (0..size).map(|to| tensor((0..n).map(|i| i + 100 * rank + to))).collect();
        let given = if rank == 0 { &parts[..] } else { &[] };
        assert_eq!(values(&group.scatter(given, &queue, 0).unwrap()), (rank..n + rank).collect::<Vec<_>>());
        let all = group.all_to_all(&parts).unwrap();
        let expected = |from: i64| (0..n).map(|i| i + 100 * from + rank).collect::<Vec<_>>();
        assert!(all.iter().zip(0..).all(|(found, from)| values(found) == expected(from)));
        assert_eq!(values(&group.reduce_scatter(&parts, Reduce::Max).unwrap()), expected(size - 1));
    }
    if size > 1 {
        let error = group.all_reduce(&tensor(0..2 + rank.min(1)), Reduce::Sum).unwrap_err();
        assert!(matches!(error, Error::Disagree { .. }), "{error}");
    }
    group.barrier().unwrap();
    println!("rank {rank} of {size}: every collective is right over {}", group.kind());
}

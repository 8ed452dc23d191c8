use std::io::{BufRead, BufReader};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use netcl_distributed::{Error, Group, Reduce, init};
use netcl_nn::autograd::{RawTensor, manager};

use crate::{folder, on_ranks};

fn ones(count: usize) -> RawTensor {
    RawTensor::from_host(&manager().cpu().queue, &vec![1f32; count], [count]).unwrap()
}

#[test]
fn ranks_that_disagree_learn_both_calls_and_may_go_on() {
    on_ranks(3, |group| {
        let error = group.all_reduce(&ones(if group.rank() == 1 { 4 } else { 3 }), Reduce::Sum).unwrap_err();
        let Error::Disagree { rank, own, there, here } = &error else { panic!("{error}") };
        assert_eq!((*rank, *own), (if group.rank() == 1 { 0 } else { 1 }, group.rank()));
        let (odd, even) = ("all_reduce(sum) of float32 (4,)", "all_reduce(sum) of float32 (3,)");
        let expected = if group.rank() == 1 { (even, odd) } else { (odd, even) };
        assert_eq!((there.as_str(), here.as_str()), expected);
        let other = if group.rank() == 2 { group.barrier() } else { group.broadcast(&ones(1), 0) };
        assert!(matches!(other, Err(Error::Disagree { .. })));
        let x = ones(2);
        group.all_reduce(&x, Reduce::Sum).unwrap();
        assert_eq!(x.to_host::<f32>().unwrap(), [3.0, 3.0]);
    });
}

#[test]
fn a_rank_that_gives_up_or_leaves_is_named_to_all() {
    let lost = |group: &Group| match group.barrier() {
        Err(Error::Lost { call: "barrier", rank, what }) => (rank, what),
        other => panic!("{other:?}"),
    };
    for results in on_ranks(4, |group| {
        if group.rank() == 2 {
            group.abort("no more data");
        }
        lost(group)
    }) {
        assert_eq!(results, vec![(2, "gave up: no more data".to_owned()); 4]);
    }
    for results in on_ranks(3, |group| (group.rank() != 1).then(|| lost(group))) {
        for (rank, what) in results.into_iter().flatten() {
            assert!(rank == 1 && what.starts_with("has ended"), "{what}");
        }
    }
}

#[test]
fn a_rank_that_leaves_after_its_last_call_hurts_nobody() {
    for _ in 0..20 {
        on_ranks(4, |group| group.all_reduce(&ones(100_000), Reduce::Sum).unwrap());
    }
}

/// A rank in a process of its own: reduces until something goes wrong, and prints it.
#[test]
#[ignore = "run by the tests below, with ranks in the environment"]
fn child() {
    let group = init().unwrap();
    let x = ones(50_000);
    println!("joined");
    for round in 0.. {
        if let Err(error) = group.all_reduce(&x, Reduce::Max) {
            println!("error after {round}: {error}");
            return;
        }
        if group.rank() == 1 && std::env::var_os("NETCL_TEST_HANG").is_some() && round == 3 {
            std::thread::sleep(Duration::from_secs(4));
        }
    }
}

/// Ends its ranks with the test, however that ends.
struct Ranks(Vec<Option<Child>>);

impl Ranks {
    fn start(size: usize, folder: &std::path::Path, more: &[(&str, &str)]) -> Ranks {
        let rank = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "failures::child", "--ignored", "--nocapture"]).envs(more.iter().copied());
            command.env("NETCL_RANK", rank.to_string()).env("NETCL_RANKS", size.to_string());
            command.env("NETCL_RENDEZVOUS", folder).stdout(std::process::Stdio::piped());
            Some(command.spawn().unwrap())
        };
        Ranks((0..size).map(rank).collect())
    }

    fn output(&mut self, rank: usize) -> String {
        let child = self.0[rank].take().unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.0.iter_mut().flatten().for_each(|child| {
            let _ = (child.kill(), child.wait());
        });
    }
}

#[test]
fn a_killed_rank_is_named_within_a_second() {
    let folder = folder();
    let mut ranks = Ranks::start(4, &folder, &[]);
    let victim = ranks.0[2].as_mut().unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("joined")));
    std::thread::sleep(Duration::from_millis(100));
    let pid = victim.id();
    victim.kill().unwrap();
    let killed = Instant::now();
    for rank in [0, 1, 3] {
        let output = ranks.output(rank);
        assert!(output.contains(&format!("all_reduce: rank 2 has ended (process {pid}); all ranks stop")), "{output}");
    }
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    std::fs::remove_dir(folder).unwrap();
}

#[test]
fn a_rank_that_hangs_is_named_after_the_limit() {
    let folder = folder();
    let mut ranks = Ranks::start(3, &folder, &[("NETCL_RANK_TIMEOUT", "1"), ("NETCL_TEST_HANG", "1")]);
    for rank in [0, 2] {
        let output = ranks.output(rank);
        assert!(output.contains("error after 4: all_reduce: rank 1 did not answer for 1s (process "), "{output}");
    }
    drop(ranks);
    std::fs::remove_dir(folder).unwrap();
}

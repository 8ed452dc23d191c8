use std::cell::RefCell;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::*;
use crate::backend::Queue;
use crate::device::manager;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_selector::{Extra, KernelSelector};

/// A candidate that takes `tile_m` tenths of a millisecond.
fn candidate(tile_m: usize) -> KernelConfig {
    KernelConfig { tile_m, ..KernelConfig::new(KernelVariant::MatmulRegisterTiled) }
}

/// A contest whose candidates sleep; some are wrong, some fail.
#[derive(Default)]
struct Fake {
    wrong: Vec<usize>,
    failing: Vec<usize>,
    /// Fails from this call on.
    fails_later: Option<(usize, usize)>,
    calls: Rc<RefCell<Vec<usize>>>,
}

impl Contest for Fake {
    fn call(&mut self, config: &KernelConfig) -> Result<()> {
        let tile = config.tile_m;
        self.calls.borrow_mut().push(tile);
        let so_far = self.calls.borrow().iter().filter(|call| **call == tile).count();
        if self.failing.contains(&tile) || self.fails_later.is_some_and(|(who, call)| who == tile && so_far >= call) {
            return Err(Error::argument("fake", "it does not run"));
        }
        std::thread::sleep(Duration::from_micros(100 * tile as u64));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn verify(&mut self, config: &KernelConfig) -> Result<Option<String>> {
        Ok(self.wrong.contains(&config.tile_m).then(|| "element 3 is 1 instead of 2".to_owned()))
    }
}

fn quick() -> Limits {
    Limits { warm_up: Duration::from_millis(1), sample: Duration::ZERO, rounds: 4, ..Limits::default() }
}

fn finished((trials, complete): (Vec<Trial>, bool)) -> Tuning {
    let problem = Problem::matmul(64, 64, 64, DType::F32);
    Tuning { problem, device: "fake".to_owned(), flops: 1.0, trials, took: Duration::ZERO, complete }
}

#[test]
fn wrong_and_failing_candidates_are_thrown_away_with_the_reason() {
    let mut fake = Fake { wrong: vec![1], failing: vec![2], fails_later: Some((25, 4)), ..Fake::default() };
    let limits = Limits { behind: 5.0, ..quick() };
    let tuning = finished(tune([1, 2, 25, 30, 800].map(candidate).to_vec(), &mut fake, &limits, &mut |_| true));
    assert_eq!(tuning.trials[0].verdict, Verdict::Wrong("element 3 is 1 instead of 2".to_owned()));
    assert!(matches!(&tuning.trials[1].verdict, Verdict::Failed(reason) if reason.contains("does not run")));
    // One that fails in the middle is no better than one that fails at once.
    assert!(matches!(tuning.trials[2].verdict, Verdict::Failed(_)));
    assert_eq!(tuning.best().map(|trial| trial.config.tile_m), Some(30));
    assert_eq!(tuning.trials[4].verdict, Verdict::Behind);
    assert!(tuning.complete);
    let order: Vec<usize> = tuning.ranking().iter().map(|trial| trial.config.tile_m).collect();
    assert_eq!(order[..2], [30, 800]);
}

#[test]
fn where_nothing_is_right_there_is_no_best() {
    let mut fake = Fake { wrong: vec![1, 2], ..Fake::default() };
    let tuning = finished(tune([1, 2].map(candidate).to_vec(), &mut fake, &quick(), &mut |_| true));
    assert!(tuning.best().is_none() && tuning.trials.iter().all(|trial| trial.median().is_none()));
    assert!(finished(tune(Vec::new(), &mut fake, &quick(), &mut |_| true)).best().is_none());
}

#[test]
fn samples_are_taken_in_turn_and_the_slow_are_not_asked_again() {
    let mut fake = Fake::default();
    let calls = fake.calls.clone();
    // Far apart, so that a busy machine changes nothing.
    let limits = Limits { warm_up: Duration::ZERO, behind: 20.0, ..quick() };
    let (trials, _) = tune([20, 21, 2000].map(candidate).to_vec(), &mut fake, &limits, &mut |_| true);
    assert_eq!([trials[0].samples.len(), trials[1].samples.len()], [4, 4]);
    assert_eq!(trials[2].verdict, Verdict::Behind);
    // Checked twice each, then in turn; the last is out after two rounds at the latest.
    let calls = calls.borrow();
    assert_eq!(calls[..6], [20, 20, 21, 21, 2000, 2000]);
    assert!(calls.iter().filter(|call| **call == 2000).count() <= 4);
    let turns: Vec<usize> = calls[6..].iter().copied().filter(|call| *call != 2000).collect();
    assert_eq!(turns, [20, 21, 20, 21, 20, 21, 20, 21]);
    assert!(trials[2].median().is_some(), "its cold time is in the report");
}

#[test]
fn the_time_is_bounded_and_the_rest_is_said_to_be_unmeasured() {
    let mut fake = Fake::default();
    let limits = Limits { time: Duration::from_millis(60), rounds: 1000, ..quick() };
    let start = Instant::now();
    let (trials, complete) = tune(vec![candidate(100); 40], &mut fake, &limits, &mut |_| true);
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    assert!(!complete);
    assert!(trials[0].is_sound() && trials[0].median().is_some());
    assert_eq!(trials[39].verdict, Verdict::Unmeasured);
    assert!(!trials[39].is_sound() && trials[39].median().is_none());
}

#[test]
fn whoever_watches_may_end_it() {
    let mut fake = Fake::default();
    let mut steps = Vec::new();
    let (trials, complete) = tune([5, 6].map(candidate).to_vec(), &mut fake, &quick(), &mut |step| {
        steps.push((step.phase, step.done, step.total, step.best.is_some()));
        step.phase == Phase::Checking || step.done == 0
    });
    assert!(!complete && trials.iter().all(|trial| trial.median().is_some()));
    assert_eq!(steps[0], (Phase::Checking, 0, 2, false));
    assert_eq!(steps[1], (Phase::Checking, 1, 2, true));
    assert_eq!(steps.last().map(|step| (step.0, step.1)), Some((Phase::Measuring, 1)));
}

#[test]
fn what_cannot_be_beaten_ends_it() {
    let mut fake = Fake::default();
    let limits = Limits { rounds: 500, enough: Some(1.0), ..quick() };
    let (trials, complete) = tune([5, 6].map(candidate).to_vec(), &mut fake, &limits, &mut |_| true);
    assert!(complete && trials[0].samples.len() == 1);
}

#[test]
fn a_configuration_is_forced_on_this_thread_only_and_for_its_operation_only() {
    let is_matmul = |variant| Problem::matmul(1, 1, 1, DType::F32).concerns(variant);
    assert_eq!(forced(is_matmul), None);
    with_forced(&candidate(3), || {
        assert_eq!(forced(is_matmul), Some(candidate(3)));
        assert_eq!(forced(|_| false), None);
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(forced(is_matmul), None)).join()).unwrap();
        with_forced(&candidate(4), || assert_eq!(forced(is_matmul), Some(candidate(4))));
        assert_eq!(forced(is_matmul), Some(candidate(3)));
    });
    assert_eq!(forced(is_matmul), None);
}

/// What is kept and found again: one configuration that no table has.
fn special() -> KernelConfig {
    let mut config = KernelConfig { tile_m: 24, tile_n: 40, tile_k: 2, local_size_2d: (8, 8), ..candidate(24) };
    config.extra.insert("matrix_units".to_owned(), Extra::Bool(true));
    config
}

fn first_opencl() -> Option<Queue> {
    let found = manager().discover().ok()?;
    Some(manager().handle(found.first()?).ok()?.queue)
}

#[test]
#[ignore = "run in children by results_are_found_by_other_processes"]
fn keep_or_find() {
    let Some(queue) = first_opencl() else { return println!("found: no device") };
    let selector = KernelSelector::for_queue(&queue);
    let keeps = std::env::var_os("NETCL_TEST_KEEP").is_some();
    let trial = || Trial { config: special(), samples: vec![0.5, 0.25], verdict: Verdict::Measured };
    if keeps {
        assert!(keep(&selector, &finished((vec![trial()], true))).unwrap());
    }
    let config = selector.select_matmul_kernel(60, 60, 60, DType::F32);
    let other = selector.select_matmul_kernel(60, 60, 60, DType::F16);
    let kept = list().unwrap();
    println!("found: {} {} {}", config == special(), other == special(), kept.len());
    if let Some(kept) = kept.first() {
        // What is exported is what the table reads.
        let fresh = KernelSelector::for_queue(&queue);
        assert_eq!(clear().unwrap(), 1);
        fresh.extend_from_toml(&kept.entry).unwrap();
        assert_eq!(fresh.select_matmul_kernel(64, 64, 64, DType::F32), special());
        assert!(kept.problem.contains("64x64x64") && kept.outcome.contains("375.0000 ms"), "{kept:?}");
        if keeps {
            keep(&selector, &finished((vec![trial()], true))).unwrap();
        }
    }
}

#[test]
fn results_are_found_by_other_processes() {
    let folder = tempfile::tempdir().unwrap();
    let child = |keeps: bool, variable: (&str, &str)| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tuner::tests::keep_or_find", "--ignored", "--nocapture"]);
        command.env("NETCL_CACHE_DIR", folder.path()).env_remove("NETCL_CACHE").env_remove("NETCL_LIMITS");
        command.env(variable.0, variable.1);
        if keeps {
            command.env("NETCL_TEST_KEEP", "1");
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
        text.lines().find_map(|line| line.split_once("found: ")).unwrap().1.to_owned()
    };
    let plain = ("NETCL_TEST_UNUSED", "");
    let first = child(false, plain);
    if first == "no device" {
        eprintln!("NOT TESTED: there is no OpenCL device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device");
        return;
    }
    assert_eq!(first, "false false 0");
    assert_eq!(child(true, plain), "true false 1");
    // Without a cache a process knows what it measured itself.
    assert_eq!(child(true, ("NETCL_CACHE", "0")), "true false 0");
    assert_eq!(child(false, plain), "true false 1");
}

//! `netcl launch` with real processes: output, failures, signals, and training that several ranks share.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::train::command;

/// Nothing here may take longer.
const LIMIT: Duration = Duration::from_secs(60);

/// A launcher that is killed, with its ranks, when a test fails.
struct Launched(Option<Child>);

struct Ended {
    code: i32,
    out: String,
    errors: String,
}

impl Launched {
    fn new(folder: &Path, arguments: &[&str]) -> Launched {
        let mut command = command(folder, &[&["launch"], arguments].concat());
        Launched(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// The processes of its ranks that live.
    fn ranks(&self) -> Vec<u32> {
        let id = self.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        children.split_whitespace().map(|id| id.parse().unwrap()).collect()
    }

    fn end(mut self) -> Ended {
        wait("the launcher ends", || self.0.as_mut().unwrap().try_wait().unwrap().is_some());
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), errors: text(&output.stderr) }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn wait(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(signal: &str, id: u32) {
    assert!(Command::new("kill").args([signal, &id.to_string()]).status().unwrap().success());
}

fn lives(id: u32) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Runs a line of shell on some ranks.
fn shell(ranks: &str, options: &[&str], line: &str) -> Ended {
    let place = tempfile::tempdir().unwrap();
    let arguments = [&["-n", ranks, "--grace", "1"], options, &["--", "sh", "-c", line]].concat();
    Launched::new(place.path(), &arguments).end()
}

#[test]
fn every_line_has_its_rank_and_none_is_torn() {
    let line = r#"i=0; while [ $i -lt 200 ]; do echo "rank $NETCL_RANK of $NETCL_RANKS says $i"; i=$((i+1)); done
        printf '10%%\r20%%\r'; printf 'done\r\n'; printf 'no end'; echo "device $NETCL_DEVICE" >&2"#;
    let ended = shell("3", &["--devices", "cpu,gpu"], line);
    assert_eq!(ended.code, 0, "{}", ended.errors);
    for rank in 0..3 {
        let own: Vec<&str> = ended.out.lines().filter_map(|line| line.strip_prefix(&format!("[{rank}] "))).collect();
        let mut expected: Vec<String> = (0..200).map(|i| format!("rank {rank} of 3 says {i}")).collect();
        expected.extend(["done".to_owned(), "no end".to_owned()]);
        assert_eq!(own, expected);
    }
    assert_eq!(ended.out.lines().count(), 3 * 202, "nothing else");
    for expected in ["[0] device cpu\n", "[1] device gpu\n", "[2] device cpu\n"] {
        assert!(ended.errors.contains(expected), "{}", ended.errors);
    }
}

#[test]
fn a_rank_that_fails_ends_all_and_is_named() {
    let start = Instant::now();
    // Rank 0 does not listen when it is told to end.
    let line = r#"echo "place $NETCL_RENDEZVOUS"; trap '' TERM
        if [ $NETCL_RANK = 1 ]; then sleep 0.2; echo 'last words' >&2; exit 7; fi; sleep 50 & wait; sleep 50"#;
    let ended = shell("3", &[], line);
    assert_eq!(ended.code, 7);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let expected = "netcl: rank 1 ended with exit code 7; all ranks were ended. Its last lines:\n";
    assert!(ended.errors.contains(expected) && ended.errors.contains("    last words"), "{}", ended.errors);
    let place = ended.out.lines().find_map(|line| line.strip_prefix("[0] place ")).unwrap();
    assert!(!Path::new(place).parent().unwrap().exists(), "{place} is removed");

    let ended = shell("2", &[], "[ $NETCL_RANK = 0 ] || kill -9 $$; exec sleep 50");
    assert_eq!(ended.code, 128 + 9);
    assert!(ended.errors.contains("rank 1 was killed by signal 9"), "{}", ended.errors);
}

#[test]
fn all_ranks_are_started_again_as_often_as_asked() {
    let line = r#"echo "start $NETCL_RESTART"; [ $NETCL_RESTART -ge 2 ] || [ $NETCL_RANK = 0 ] || exit 3"#;
    let ended = shell("2", &["--restarts", "1"], line);
    assert_eq!(ended.code, 3, "{}", ended.errors);
    let ended = shell("2", &["--restarts", "5"], line);
    assert_eq!(ended.code, 0, "{}", ended.errors);
    assert!(ended.out.contains("[1] start 2\n") && !ended.out.contains("start 3"), "{}", ended.out);
    assert!(ended.errors.contains("starting all ranks again (restart 2 of 5)"), "{}", ended.errors);
}

#[test]
fn wrong_usage_is_explained() {
    let place = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["-n", "0", "true"][..], "-n 0 is no number of processes; use 1 to 64"),
        (&["-n", "2", "missing.py"], "there is no script missing.py"),
        (&["-n", "2", "--", "no-such-program-here"], "cannot start no-such-program-here"),
        (&["-n", "2", "--grace=-1", "true"], "--grace -1 is no time"),
    ] {
        let ended = Launched::new(place.path(), arguments).end();
        assert!(ended.code != 0 && ended.errors.contains(expected), "{arguments:?}: {}", ended.errors);
    }
}

#[test]
fn ranks_end_with_a_launcher_that_is_killed() {
    let place = tempfile::tempdir().unwrap();
    let mut launched = Launched::new(place.path(), &["-n", "3", "--", "sh", "-c", "echo ready; exec sleep 50"]);
    let mut lines = BufReader::new(launched.0.as_mut().unwrap().stdout.take().unwrap()).lines();
    let ready: Vec<String> = lines.by_ref().take(3).map(Result::unwrap).collect();
    assert_eq!(ready.len(), 3);
    let ranks = launched.ranks();
    assert_eq!(ranks.len(), 3);
    send("-KILL", launched.id());
    wait("ranks end", || !ranks.iter().any(|&rank| lives(rank)));
}

const MLP: [&str; 7] = ["netcl", "train", "--model", "mlp", "--device", "cpu", "--augment"];

/// The losses of all updates, and the figures of the last epoch.
fn metrics(run: &Path) -> (Vec<f64>, Value) {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps = lines.iter().filter(|line| line["kind"] == "step");
    (steps.map(|step| step["loss"].as_f64().unwrap()).collect(), lines.last().unwrap()["values"].clone())
}

#[track_caller]
fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= 1e-4 * expected.abs().max(1e-2), "step {at}: {found} {expected}");
    }
}

/// A batch of 50 is not divided evenly by 4, and the last of the epoch has 37.
#[test]
fn ranks_train_as_one_process_does_and_resume_on_another_number() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let train = |ranks: &str, more: &[&str]| {
        let ended = Launched::new(folder, &[&["-n", ranks, "--"], &MLP[..], more].concat()).end();
        assert_eq!(ended.code, 0, "{}\n{}", ended.out, ended.errors);
        ended
    };
    let options = ["true", "--batch-size", "50", "--epochs", "2", "--clip", "1", "--out"];
    train("1", &[&options[..], &["one"]].concat());
    let ended = train("2", &[&options[..], &["two"]].concat());
    assert!(ended.out.contains("[0] mlp on digits: 1437 images") && !ended.out.contains("[1]"), "{}", ended.out);
    let (one, two) = (metrics(&folder.join("one")), metrics(&folder.join("two")));
    close(&two.0, &one.0);
    for name in ["val_loss", "accuracy", "val_accuracy"] {
        close(&[two.1[name].as_f64().unwrap()], &[one.1[name].as_f64().unwrap()]);
    }
    // Both go on for an epoch more, on four ranks and on one.
    let more = ["netcl", "train", "--device", "cpu", "--epochs", "3", "--resume"];
    for (ranks, run) in [("4", "two"), ("1", "one")] {
        let ended = Launched::new(folder, &[&["-n", ranks, "--"], &more[..], &[run]].concat()).end();
        assert_eq!(ended.code, 0, "{}\n{}", ended.out, ended.errors);
    }
    close(&metrics(&folder.join("two")).0, &metrics(&folder.join("one")).0);
}

/// A network with batch norm and without dropout: the parts of each batch count together, unless told otherwise.
#[test]
fn batch_norm_counts_over_all_ranks() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    // No bias before a norm: its gradient is rounding noise, of which Adam makes whole steps.
    let layers = r#"[
        {"type": "Conv2d", "args": {"in_channels": 1, "out_channels": 4, "kernel_size": 3, "bias": false}},
        {"type": "BatchNorm2d", "args": {"num_features": 4}},
        {"type": "ReLU"}, {"type": "Flatten"}, {"type": "Linear", "args": {"in_features": 144, "out_features": 10, "bias": false}},
        {"type": "BatchNorm1d", "args": {"num_features": 10}}]"#;
    fs::write(folder.join("net.json"), layers).unwrap();
    let train = |ranks: &str, more: &[&str]| {
        let options = ["--augment", "false", "--batch-size", "50", "--epochs", "2", "--limit", "330", "--out"];
        let net = ["-n", ranks, "--", "netcl", "train", "--config", "net.json", "--device", "cpu"];
        let ended = Launched::new(folder, &[&net[..], &options, more].concat()).end();
        assert_eq!(ended.code, 0, "{}\n{}", ended.out, ended.errors);
        assert!(!ended.errors.contains("not captured"), "{}", ended.errors);
        metrics(&folder.join(more[0]))
    };
    let (one, three, local) = (train("1", &["one"]), train("3", &["three"]), train("3", &["local", "--no-sync-norm"]));
    close(&three.0, &one.0);
    for name in ["val_loss", "val_accuracy"] {
        close(&[three.1[name].as_f64().unwrap()], &[one.1[name].as_f64().unwrap()]);
    }
    assert!((local.0[0] - one.0[0]).abs() > 1e-3, "{} {}", local.0[0], one.0[0]);
    // The checkpoint is that of the plain model.
    let output = crate::train::netcl(folder, &["train", "--device", "cpu", "--resume", "three", "--epochs", "3"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Launches a training that takes long, and returns when its first checkpoint is there.
fn long_training(folder: &Path, ranks: &str, options: &[&str]) -> Launched {
    let long = ["false", "--epochs", "4000", "--limit", "200", "--out", "run"];
    let launched = Launched::new(folder, &[&["-n", ranks], options, &["--"], &MLP[..], &long].concat());
    wait("the first checkpoint", || folder.join("run/last.netcl").exists());
    launched
}

/// Goes on with what is left, for an epoch.
fn resumes(folder: &Path) {
    let progress = |folder: &Path| {
        let checkpoint = netcl::io::Checkpoint::read(&folder.join("run/last.netcl")).unwrap();
        netcl::trainer::trainer::Progress::of(&checkpoint).unwrap()
    };
    let epochs = (progress(folder).epochs + 1).to_string();
    let output = crate::train::netcl(folder, &["train", "--device", "cpu", "--resume", "run", "--epochs", &epochs]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(progress(folder).epochs.to_string(), epochs);
}

#[test]
fn a_rank_that_is_killed_is_named_by_the_others_and_the_checkpoint_stays_good() {
    // NETCL_TEST_KILLS=20 for a thorough test.
    let kills = std::env::var("NETCL_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(2);
    let mut noise = u64::from(std::process::id());
    for round in 0..kills {
        let place = tempfile::tempdir().unwrap();
        let launched = long_training(place.path(), "3", &[]);
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((noise >> 33) % 300_000));
        let (victim, start) = ((noise >> 20) as usize % 3, Instant::now());
        send("-KILL", launched.ranks()[victim]);
        let ended = launched.end();
        assert!(start.elapsed() < Duration::from_secs(10), "round {round}: {:?}", start.elapsed());
        assert_eq!(ended.code, 128 + 9, "{}", ended.errors);
        assert!(ended.errors.contains(&format!("netcl: rank {victim} was killed by signal 9")), "{}", ended.errors);
        for other in (0..3).filter(|&rank| rank != victim) {
            let named = ended.errors.lines().any(|line| {
                line.starts_with(&format!("[{other}] ")) && line.contains(&format!("rank {victim} has ended"))
            });
            assert!(named, "round {round}: rank {other} does not name rank {victim}: {}", ended.errors);
        }
        resumes(place.path());
    }
}

#[test]
fn ctrl_c_stops_all_ranks_with_a_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let launched = long_training(place.path(), "2", &[]);
    send("-INT", launched.id());
    let ended = launched.end();
    assert_eq!(ended.code, 130, "{}", ended.errors);
    assert!(ended.errors.contains("[0] Stopped in epoch"), "{}", ended.errors);
    assert!(!ended.errors.contains("[1] Stopped"), "{}", ended.errors);
    resumes(place.path());
}

#[test]
fn a_run_that_is_started_again_goes_on_from_its_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let launched = long_training(place.path(), "2", &["--restarts", "1"]);
    let first = launched.ranks();
    send("-KILL", first[1]);
    wait("all ranks start again", || launched.ranks().iter().filter(|id| !first.contains(id)).count() == 2);
    // They catch signals once they train.
    let metrics = || fs::metadata(place.path().join("run/metrics.jsonl")).and_then(|file| file.modified()).ok();
    let before = metrics();
    wait("they train", || metrics() != before);
    send("-INT", launched.id());
    let ended = launched.end();
    assert_eq!(ended.code, 130, "{}", ended.errors);
    assert!(ended.out.contains("[0] resumed after step"), "{}", ended.out);
}

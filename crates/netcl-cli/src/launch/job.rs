//! The processes of a job: started together, and ended together when one of them fails.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::output::{Screen, Stream, Tail, forward};
use super::signals;

/// How often processes are looked at.
const POLL: Duration = Duration::from_millis(5);
/// The others learn through their group that a rank is gone, and say so: they are given time for it before they are told to end.
const LEARN: Duration = Duration::from_secs(2);
/// How long output may come after all ranks have ended: a process that left its rank's group may still hold the pipe.
const DRAIN: Duration = Duration::from_secs(1);

/// How a job ended.
pub(super) enum End {
    /// All ranks did what they should.
    Good,
    /// The launcher was told to end by this signal.
    Signal(i32),
    /// A rank failed before any other.
    Failed { rank: usize, status: ExitStatus, last: String },
}

/// The processes, which end with it.
pub(super) struct Job {
    ranks: Vec<Rank>,
    grace: Duration,
    screen: Arc<Mutex<Screen>>,
}

struct Rank {
    child: Child,
    status: Option<ExitStatus>,
    tail: Tail,
    readers: Vec<JoinHandle<()>>,
}

impl Job {
    pub(super) fn new(grace: Duration) -> Job {
        Job { ranks: Vec::new(), grace, screen: Arc::default() }
    }

    /// Starts the next rank. Called by the main thread: on Linux a child ends with the thread that started it.
    pub(super) fn start(&mut self, rank: usize, mut command: Command) -> io::Result<()> {
        // A process group in the background may not read from the terminal, and several readers would tear the input apart.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        signals::tie(&mut command);
        let mut child = command.spawn()?;
        let tail = Tail::default();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let reader = |stream: Stream, from: Option<Box<dyn io::Read + Send>>| {
            let (screen, tail) = (self.screen.clone(), tail.clone());
            from.map(|from| thread::spawn(move || forward(rank, stream, from, &screen, &tail)))
        };
        let readers = [
            reader(Stream::Out, stdout.map(|from| Box::new(from) as Box<dyn io::Read + Send>)),
            reader(Stream::Error, stderr.map(|from| Box::new(from) as Box<dyn io::Read + Send>)),
        ];
        self.ranks.push(Rank { child, status: None, tail, readers: readers.into_iter().flatten().collect() });
        Ok(())
    }

    /// Returns when all ranks have ended.
    pub(super) fn wait(mut self) -> End {
        // Ranks that failed, in the order in which they did.
        let mut failed: Vec<usize> = Vec::new();
        let (mut signal, mut told) = (None, false);
        let (mut ask_at, mut kill_at): (Option<Instant>, Option<Instant>) = (None, None);
        loop {
            for (number, rank) in self.ranks.iter_mut().enumerate().filter(|(_, rank)| rank.status.is_none()) {
                let Ok(Some(status)) = rank.child.try_wait() else { continue };
                rank.status = Some(status);
                // What it has started and left behind.
                signals::send(&mut rank.child, signals::KILL);
                if !status.success() && !told && signal.is_none() {
                    failed.push(number);
                }
                if !status.success() && ask_at.is_none() {
                    ask_at = Some(Instant::now() + if signal.is_some() { self.grace } else { LEARN });
                }
            }
            if self.ranks.iter().all(|rank| rank.status.is_some()) {
                break;
            }
            while let Some(come) = signals::take() {
                self.send(come);
                // Ctrl+C lets ranks finish their step and keep a checkpoint, however long that takes; anything else does not wait.
                if come != signals::INTERRUPT || signal.is_some() {
                    kill_at.get_or_insert(Instant::now() + self.grace);
                }
                signal.get_or_insert(come);
            }
            if !told && ask_at.is_some_and(|at| Instant::now() > at) {
                told = true;
                self.send(signals::ASK);
                kill_at.get_or_insert(Instant::now() + self.grace);
            }
            if kill_at.is_some_and(|at| Instant::now() > at) {
                self.send(signals::KILL);
            }
            thread::sleep(POLL);
        }
        self.drain();
        match (signal, self.culprit(&failed)) {
            (Some(signal), _) => End::Signal(signal),
            (None, None) => End::Good,
            (None, Some((rank, status))) => End::Failed { rank, status, last: self.ranks[rank].tail.text() },
        }
    }

    /// The rank that failed by itself. Others follow it so soon that the order in which they are found says little: one that was
    /// killed comes first, and one that names another last.
    fn culprit(&self, failed: &[usize]) -> Option<(usize, ExitStatus)> {
        let ended = failed.iter().filter_map(|&rank| Some((rank, self.ranks[rank].status?)));
        ended.min_by_key(|(rank, status)| (status.code().is_some(), self.ranks[*rank].tail.names_another()))
    }

    fn send(&mut self, signal: i32) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.status.is_none()) {
            signals::send(&mut rank.child, signal);
        }
    }

    fn drain(&mut self) {
        let end = Instant::now() + DRAIN;
        let reads = |rank: &Rank| rank.readers.iter().any(|reader| !reader.is_finished());
        while self.ranks.iter().any(reads) && Instant::now() < end {
            thread::sleep(POLL);
        }
    }
}

impl Drop for Job {
    /// Where a later rank could not be started.
    fn drop(&mut self) {
        self.send(signals::KILL);
        for rank in self.ranks.iter_mut().filter(|rank| rank.status.is_none()) {
            let _ = rank.child.wait();
        }
    }
}

//! The line that a run shows while it goes on: loss, figures, throughput, time left, memory, and what is waited for.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netcl_core::backend::opencl::Builder;
use netcl_profiling::gauges;

use crate::error::Result;
use crate::trainer::{Callback, Context, Epoch, Step};

/// Where progress is shown. All three are called with texts of one line.
pub trait Screen: Send {
    /// A line that stays.
    fn line(&mut self, text: &str);

    /// The line of this moment, in the place of the one before; an empty one goes away.
    fn status(&mut self, text: &str);

    /// Something has been waited for since some time: called by a thread of its own about ten times a second, if
    /// [`Screen::wants_waits`].
    fn waiting(&mut self, _what: &str, _since: Duration) {}

    /// Whether [`Screen::waiting`] is wanted. A screen that needs a lock of the thread that trains must not want it.
    fn wants_waits(&self) -> bool {
        false
    }
}

/// How often a long epoch is heard of where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// What takes longer than this is named where there is no terminal.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a terminal's line is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// One line on a terminal that changes in its place, on standard error.
#[derive(Default)]
struct Terminal {
    shown: bool,
    drawn: Option<Instant>,
}

impl Terminal {
    fn draw(&mut self, text: &str) {
        let width = usize::from(console::Term::stderr().size().1);
        let text: String = text.chars().take(width.saturating_sub(1)).collect();
        // A line that nobody sees is no reason to stop a training.
        let _ = write!(std::io::stderr(), "\r\x1b[2K{text}").and_then(|()| std::io::stderr().flush());
        self.shown = !text.is_empty();
    }
}

impl Screen for Terminal {
    fn line(&mut self, text: &str) {
        if self.shown {
            self.draw("");
        }
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    fn status(&mut self, text: &str) {
        if text.is_empty() {
            if self.shown {
                self.draw("");
            }
        } else if self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY) {
            self.drawn = Some(Instant::now());
            self.draw(text);
        }
    }

    fn waiting(&mut self, what: &str, since: Duration) {
        const SPINNER: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
        let at = (since.as_millis() / 100) as usize % SPINNER.len();
        self.draw(&format!("{} {what}", SPINNER[at]));
    }

    fn wants_waits(&self) -> bool {
        true
    }
}

/// Lines on standard output, and what takes long on standard error.
struct Plain {
    said: Instant,
    turn: u64,
}

impl Screen for Plain {
    fn line(&mut self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}").and_then(|()| std::io::stdout().flush());
        self.said = Instant::now();
    }

    fn status(&mut self, text: &str) {
        self.turn = 0;
        if !text.is_empty() && self.said.elapsed() >= LINE_EVERY {
            self.line(text);
        }
    }

    fn waiting(&mut self, what: &str, since: Duration) {
        let turn = since.as_secs() / PATIENCE.as_secs();
        if turn > self.turn {
            self.turn = turn;
            let _ = writeln!(std::io::stderr(), "... {what} ({} s)", since.as_secs());
        }
    }

    fn wants_waits(&self) -> bool {
        true
    }
}

/// What is waited for, and since when.
type Wait = Option<(String, Instant)>;

/// Shows a run: one line that changes on a terminal, plain lines elsewhere.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use netcl_trainer::callbacks::{Progress, Screen};
///
/// #[derive(Clone, Default)]
/// struct Kept(Arc<Mutex<Vec<String>>>);
///
/// impl Screen for Kept {
///     fn line(&mut self, text: &str) {
///         self.0.lock().unwrap().push(text.to_owned());
///     }
///     fn status(&mut self, _text: &str) {}
/// }
///
/// let lines = Kept::default();
/// let progress = Progress::on(lines.clone()).unit("images", 1);
/// ```
pub struct Progress {
    screen: Arc<Mutex<dyn Screen>>,
    wait: Arc<Mutex<Wait>>,
    unit: (String, usize),
    pace: Pace,
}

/// How fast the run goes.
struct Pace {
    epoch: usize,
    /// Updates of this epoch that are known, and samples since the clock was started.
    steps: usize,
    samples: usize,
    /// Samples of all updates that are known, for the mean of one.
    all: (usize, usize),
    start: Instant,
    loss: f64,
}

impl Default for Progress {
    /// On this process's terminal, or as lines on its standard output.
    fn default() -> Progress {
        if std::io::stderr().is_terminal() {
            Progress::on(Terminal::default())
        } else {
            Progress::on(Plain { said: Instant::now(), turn: 0 })
        }
    }
}

impl Progress {
    /// On a screen of one's own.
    pub fn on(screen: impl Screen + 'static) -> Progress {
        let wants_waits = screen.wants_waits();
        let screen: Arc<Mutex<dyn Screen>> = Arc::new(Mutex::new(screen));
        let wait = Arc::new(Mutex::new(None::<(String, Instant)>));
        if wants_waits {
            let (screen, wait) = (Arc::downgrade(&screen), Arc::downgrade(&wait));
            // Without the thread there is less to see, which is no reason to fail. It ends with the progress.
            let _ = std::thread::Builder::new().name("netcl-progress".into()).spawn(move || {
                while let (Some(screen), Some(wait)) = (screen.upgrade(), wait.upgrade()) {
                    {
                        // Held while the screen is written, so that nothing comes after the end of a wait.
                        let wait = lock(&wait);
                        if let Some((what, since)) = &*wait {
                            lock(&screen).waiting(&format!("{what}{}", kernels()), since.elapsed());
                        }
                    }
                    drop((screen, wait));
                    std::thread::sleep(DRAW_EVERY);
                }
            });
        }
        let pace = Pace { epoch: 0, steps: 0, samples: 0, all: (0, 0), start: Instant::now(), loss: f64::NAN };
        Progress { screen, wait, unit: ("samples".to_owned(), 1), pace }
    }

    /// What samples are called, and how many of that are in one.
    pub fn unit(mut self, name: &str, of_sample: usize) -> Progress {
        self.unit = (name.to_owned(), of_sample);
        self
    }

    fn waits_for(&self, what: Option<String>) {
        *lock(&self.wait) = what.map(|what| (what, Instant::now()));
    }

    fn per_second(&self, samples: f64) -> String {
        format!("{:.0} {}/s", samples * self.unit.1 as f64, self.unit.0)
    }

    /// The line of the moment.
    fn now(&self, run: &Context<'_>) -> String {
        let pace = &self.pace;
        let mut line = format!("epoch {}/{}", pace.epoch, run.epochs);
        if let Some(steps) = run.steps_per_epoch {
            line.push_str(&format!(" {} {}/{steps}", bar(pace.steps, steps), pace.steps));
        }
        line.push_str(&format!("  loss {:.4}", pace.loss));
        let last = run.history.epochs.last().map(|epoch| figures(epoch, |name| name.starts_with("val_")));
        line.push_str(&last.unwrap_or_default());
        let speed = pace.samples as f64 / pace.start.elapsed().as_secs_f64().max(1e-9);
        if pace.samples > 0 {
            line.push_str(&format!("  {}", self.per_second(speed)));
        }
        if let Some(left) = pace.left(run, speed) {
            line.push_str(&format!("  {} left", clock(left)));
        }
        line.push_str(&format!("  {}", bytes(gauges::memory(run.queue).in_use)));
        line
    }
}

impl Pace {
    /// The time that the rest takes at this speed, validation left out.
    fn left(&self, run: &Context<'_>, speed: f64) -> Option<Duration> {
        let per_epoch = run.steps_per_epoch?;
        let steps = (run.epochs.saturating_sub(self.epoch)) * per_epoch + per_epoch.saturating_sub(self.steps);
        let samples = steps as f64 * self.all.0 as f64 / self.all.1.max(1) as f64;
        (self.samples > 0 && speed > 0.0).then(|| Duration::try_from_secs_f64(samples / speed).ok())?
    }
}

impl Callback for Progress {
    fn name(&self) -> String {
        "progress".to_owned()
    }

    fn epoch_begins(&mut self, run: &mut Context<'_>, epoch: usize) -> Result<()> {
        let pace = &mut self.pace;
        (pace.epoch, pace.samples, pace.start) = (epoch, 0, Instant::now());
        // Those before a resume are known already.
        pace.steps = run.history.steps.iter().rev().take_while(|step| step.epoch == epoch).count();
        Ok(())
    }

    fn phase(&mut self, run: &mut Context<'_>, name: &str) -> Result<()> {
        if name.starts_with("step by step") {
            self.waits_for(None);
            lock(&self.screen).line(name);
        } else {
            self.waits_for(Some(format!("epoch {}/{}  {name}", self.pace.epoch, run.epochs)));
        }
        Ok(())
    }

    fn step(&mut self, run: &mut Context<'_>, step: &Step) -> Result<()> {
        self.waits_for(None);
        let pace = &mut self.pace;
        pace.steps += 1;
        pace.samples += step.samples;
        pace.all = (pace.all.0 + step.samples, pace.all.1 + 1);
        // A moving mean: single batches jump about.
        pace.loss = if pace.loss.is_nan() { step.loss } else { 0.95 * pace.loss + 0.05 * step.loss };
        if pace.all.1 == 1 {
            // The first step builds kernels and fills caches; it says nothing about the speed.
            (pace.start, pace.samples) = (Instant::now(), 0);
        }
        let line = self.now(run);
        lock(&self.screen).status(&line);
        Ok(())
    }

    fn epoch_ends(&mut self, run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        self.waits_for(None);
        let width = run.epochs.to_string().len();
        let speed = self.per_second(epoch.samples as f64 / epoch.seconds.max(1e-9));
        let line = format!(
            "epoch {:>width$}/{}{}  {:.1} s  {speed}  {}",
            epoch.epoch,
            run.epochs,
            figures(epoch, |_| true),
            epoch.seconds,
            bytes(gauges::memory(run.queue).in_use)
        );
        lock(&self.screen).line(&line);
        Ok(())
    }

    fn fit_ends(&mut self, _run: &mut Context<'_>) -> Result<()> {
        self.waits_for(None);
        lock(&self.screen).status("");
        Ok(())
    }
}

impl Drop for Progress {
    /// Also when the run failed.
    fn drop(&mut self) {
        self.waits_for(None);
        lock(&self.screen).status("");
    }
}

/// The figures of an epoch that are wanted, those of the training before those of the validation.
fn figures(epoch: &Epoch, wanted: impl Fn(&str) -> bool) -> String {
    let is_figure = |name: &str| !matches!(name, "lr" | "samples_per_second") && !name.starts_with("memory");
    let mut names: Vec<&String> = epoch.values.keys().filter(|name| is_figure(name) && wanted(name)).collect();
    // The loss first, then by name.
    names.sort_by_key(|name| (name.starts_with("val_"), !name.ends_with("loss"), *name));
    names.iter().map(|name| format!("  {}", figure(name, epoch.values[*name]))).collect()
}

fn figure(name: &str, value: f64) -> String {
    let shares = ["accuracy", "top", "precision", "recall", "f1"];
    let plain = name.strip_prefix("val_").unwrap_or(name);
    let name = name.replacen("val_", "val ", 1);
    if shares.iter().any(|share| plain.starts_with(share)) {
        format!("{name} {:5.2} %", value * 100.0)
    } else {
        format!("{name} {value:.4}")
    }
}

fn bar(done: usize, all: usize) -> String {
    const WIDTH: usize = 24;
    let filled = (done * WIDTH).checked_div(all).map_or(WIDTH, |filled| filled.min(WIDTH));
    format!("{}{}", "━".repeat(filled), "─".repeat(WIDTH - filled))
}

/// `3:07` or `1:02:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// `40 KiB`, `512 MiB` or `1.5 GiB`.
fn bytes(count: usize) -> String {
    let mib = count as f64 / f64::from(1 << 20);
    match mib {
        ..1.0 => format!("{:.0} KiB", mib * 1024.0),
        ..1000.0 => format!("{mib:.0} MiB"),
        _ => format!("{:.1} GiB", mib / 1024.0),
    }
}

/// What the compiler is at; empty on the native CPU.
fn kernels() -> String {
    let stats = Builder::global().stats();
    match (stats.builds, stats.hits, Builder::global().compiling()) {
        (0, 0, None) => String::new(),
        (builds, hits, Some(name)) => format!(": compiling {name} ({builds} built, {hits} from the cache)"),
        (builds, hits, None) => format!(" ({builds} kernels built, {hits} from the cache)"),
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use netcl_nn::autograd::manager;
    use netcl_nn::{Module, ReLU};

    use super::*;
    use crate::trainer::History;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Screen for Kept {
        fn line(&mut self, text: &str) {
            lock(&self.0).push(text.to_owned());
        }

        fn status(&mut self, text: &str) {
            lock(&self.0).push(format!("~{text}"));
        }
    }

    #[test]
    fn numbers_are_written_for_eyes() {
        assert_eq!(clock(Duration::from_secs(7)), "0:07");
        assert_eq!(clock(Duration::from_secs(187)), "3:07");
        assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
        assert_eq!([bytes(40 << 10), bytes(3 << 20), bytes(1536 << 20)], ["40 KiB", "3 MiB", "1.5 GiB"]);
        assert_eq!(figure("val_accuracy", 0.5), "val accuracy 50.00 %");
        assert_eq!(figure("rmse", 0.5), "rmse 0.5000");
        assert_eq!((bar(0, 2).chars().next(), bar(2, 2)), (Some('─'), "━".repeat(24)));
    }

    #[test]
    fn a_run_is_shown_step_by_step() {
        let queue = manager().cpu().queue;
        let kept = Kept::default();
        let mut progress = Progress::on(kept.clone()).unit("images", 1);
        let step = |step, loss| Step { step, epoch: 1, loss, lr: 0.1, samples: 10 };
        let values = [("loss", 2.0), ("accuracy", 0.25), ("val_loss", 1.5), ("lr", 0.1), ("samples_per_second", 9.0)];
        let values: BTreeMap<String, f64> = values.map(|(name, value)| (name.to_owned(), value)).into();
        let epoch = Epoch { epoch: 1, steps: 3, samples: 30, seconds: 2.0, values };
        let (mut model, history) = (ReLU, History::default());
        let model: &mut dyn Module = &mut model;
        let mut run = Context {
            model,
            groups: &[],
            queue: &queue,
            history: &history,
            epochs: 10,
            steps_per_epoch: Some(3),
            stop: None,
            keep: Vec::new(),
            recapture: false,
        };
        progress.epoch_begins(&mut run, 1).unwrap();
        progress.phase(&mut run, "first step").unwrap();
        progress.step(&mut run, &step(1, 2.0)).unwrap();
        progress.step(&mut run, &step(2, 1.0)).unwrap();
        progress.epoch_ends(&mut run, &epoch).unwrap();
        progress.fit_ends(&mut run).unwrap();
        let lines = lock(&kept.0).clone();
        assert!(lines[0].starts_with("~epoch 1/10 ━━━━━━━━") && lines[0].contains("1/3  loss 2.0000"), "{lines:?}");
        assert!(!lines[0].contains("left"), "the first step does not count for the speed: {lines:?}");
        assert!(lines[1].contains("2/3  loss 1.9500") && lines[1].contains(" left"), "{lines:?}");
        assert!(
            lines[2].starts_with("epoch  1/10  loss 2.0000  accuracy 25.00 %  val loss 1.5000  2.0 s  15 images/s"),
            "{lines:?}"
        );
        assert_eq!(lines[3], "~");
    }
}

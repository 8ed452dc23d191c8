//! What a training run shows while it goes on: a bar on a terminal, lines elsewhere.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use netcl::core::backend::opencl::Builder;
use netcl::trainer::{Epoch, Observer, Step};

use crate::output::{Progress, print};

/// How often a long epoch is heard of where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows a run of a number of epochs, some of which may be done.
pub(crate) fn observer(epochs: usize) -> Box<dyn Observer> {
    let show = Show { epochs, ..Show::new() };
    if std::io::stderr().is_terminal() {
        let bar = ProgressBar::no_length();
        bar.enable_steady_tick(Duration::from_millis(100));
        Box::new(Bar { show, bar })
    } else {
        Box::new(Lines { show, slow: Progress::start(), said: Instant::now() })
    }
}

/// What both ways of showing count.
struct Show {
    epochs: usize,
    epoch: usize,
    /// Steps left in this epoch when it began, and done since.
    steps: usize,
    done: usize,
    images: usize,
    epoch_images: usize,
    start: Instant,
    loss: f64,
    accuracy: f64,
}

impl Show {
    fn new() -> Show {
        Show {
            epochs: 0,
            epoch: 0,
            steps: 0,
            done: 0,
            images: 0,
            epoch_images: 0,
            start: Instant::now(),
            loss: f64::NAN,
            accuracy: f64::NAN,
        }
    }

    fn begin(&mut self, epoch: usize, steps: usize, images: usize) {
        (self.epoch, self.steps, self.epoch_images) = (epoch, steps, images);
        (self.done, self.images, self.start) = (0, 0, Instant::now());
    }

    fn step(&mut self, step: &Step) {
        self.done += 1;
        self.images += step.images;
        // A moving mean: single batches jump about.
        let mixed = |old: f64, new: f64| if old.is_nan() { new } else { 0.95 * old + 0.05 * new };
        (self.loss, self.accuracy) = (mixed(self.loss, step.loss), mixed(self.accuracy, step.accuracy));
        if self.done == 1 && self.steps > 1 {
            // The first step builds kernels and fills caches; it says nothing about the speed.
            (self.start, self.images) = (Instant::now(), 0);
        }
    }

    fn speed(&self) -> f64 {
        self.images as f64 / self.start.elapsed().as_secs_f64().max(1e-9)
    }

    /// The time that the remaining epochs take at this speed, tests left out.
    fn left(&self) -> Option<Duration> {
        let speed = self.speed();
        let todo = (self.epochs - self.epoch.min(self.epochs)) * self.epoch_images;
        let todo = todo as f64 + self.epoch_images as f64 * (1.0 - self.done as f64 / self.steps.max(1) as f64);
        (self.images > 0 && speed > 0.0).then(|| Duration::try_from_secs_f64(todo / speed).ok())?
    }

    fn numbers(&self) -> String {
        let left = self.left().map_or_else(String::new, |left| format!("  ETA {}", clock(left)));
        format!("loss {:.4}  accuracy {:5.2} %  {:.0} images/s{left}", self.loss, self.accuracy * 100.0, self.speed())
    }

    fn summary(&self, epoch: &Epoch) -> String {
        let width = self.epochs.to_string().len();
        let images = self.epoch_images as f64 / epoch.seconds.max(1e-9);
        format!(
            "epoch {:>width$}/{}  loss {:.4}  accuracy {:5.2} %  test {:5.2} %  {:.1} s  {images:.0} images/s",
            epoch.epoch,
            self.epochs,
            epoch.loss,
            epoch.accuracy * 100.0,
            epoch.test_accuracy * 100.0,
            epoch.seconds,
        )
    }
}

/// `3:07` or `1:02:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// What the compiler has done so far; empty on the native CPU.
fn kernels() -> String {
    let stats = Builder::global().stats();
    match (stats.builds, stats.hits) {
        (0, 0) => String::new(),
        (builds, hits) => {
            let name = Builder::global().compiling().unwrap_or_else(|| "kernels".to_owned());
            format!(": compiling {name} ({builds} built, {hits} from the cache)")
        }
    }
}

struct Bar {
    show: Show,
    bar: ProgressBar,
}

impl Bar {
    fn style(&self, template: &str) {
        // A template of ours that does not parse would only cost looks.
        if let Ok(style) = ProgressStyle::with_template(template) {
            let style = style.with_key("kernels", |_: &ProgressState, text: &mut dyn Write| {
                let _ = text.write_str(&kernels());
            });
            self.bar.set_style(style.progress_chars("━╸ "));
        }
    }
}

impl Observer for Bar {
    fn phase(&mut self, name: &str) {
        self.style("{spinner} {prefix}  {msg}");
        self.bar.set_message(name.to_owned());
    }

    fn epoch_begins(&mut self, epoch: usize, steps: usize, images: usize) {
        let first = self.show.epoch == 0;
        self.show.begin(epoch, steps, images);
        self.bar.set_prefix(format!("epoch {epoch}/{}", self.show.epochs));
        self.bar.set_length(steps as u64);
        self.bar.set_position(0);
        if first {
            self.style("{spinner} {prefix}  first step{kernels}");
        }
    }

    fn step(&mut self, step: &Step) {
        self.show.step(step);
        if self.show.done == 1 {
            self.style("{spinner} {prefix} {bar:28} {pos}/{len}  {msg}");
        }
        self.bar.set_message(self.show.numbers());
        self.bar.set_position(self.show.done as u64);
    }

    fn epoch_ends(&mut self, epoch: &Epoch) {
        self.bar.println(self.show.summary(epoch));
        if epoch.epoch >= self.show.epochs {
            self.bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    /// Also when the run was stopped or failed.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

struct Lines {
    show: Show,
    slow: Progress,
    said: Instant,
}

impl Lines {
    /// A line that nobody reads is no reason to stop a training.
    fn say(&mut self, line: &str) {
        let _ = print(line);
        self.said = Instant::now();
    }
}

impl Observer for Lines {
    fn phase(&mut self, name: &str) {
        self.slow.step(name.to_owned());
    }

    fn epoch_begins(&mut self, epoch: usize, steps: usize, images: usize) {
        if self.show.epoch == 0 {
            self.slow.step("first step: compiling kernels, filling caches".to_owned());
        }
        self.show.begin(epoch, steps, images);
    }

    fn step(&mut self, step: &Step) {
        self.show.step(step);
        self.slow.done();
        if self.said.elapsed() >= LINE_EVERY {
            let (epoch, epochs, done, steps) = (self.show.epoch, self.show.epochs, self.show.done, self.show.steps);
            let line = format!("epoch {epoch}/{epochs}  step {done}/{steps}  {}", self.show.numbers());
            self.say(&line);
        }
    }

    fn epoch_ends(&mut self, epoch: &Epoch) {
        self.slow.done();
        let line = self.show.summary(epoch);
        self.say(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_like_clocks() {
        assert_eq!(clock(Duration::from_secs(7)), "0:07");
        assert_eq!(clock(Duration::from_secs(187)), "3:07");
        assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
    }

    #[test]
    fn the_first_step_does_not_count_for_the_speed() {
        let mut show = Show { epochs: 2, ..Show::new() };
        show.begin(1, 3, 30);
        let step = |loss| Step { step: 1, epoch: 1, loss, accuracy: 0.5, lr: 0.1, images: 10 };
        assert_eq!(show.left(), None);
        show.step(&step(2.0));
        assert_eq!((show.images, show.left()), (0, None));
        show.step(&step(1.0));
        assert!(show.images == 10 && show.left().is_some() && (show.loss - 1.95).abs() < 1e-9);
    }
}

//! Progress over a known number of steps: a bar on a terminal, the name of what takes long elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Progress;

/// Shows where a command stands, on standard error.
pub(crate) struct Steps {
    bar: Option<ProgressBar>,
    slow: Progress,
    what: &'static str,
    name: String,
    begun: bool,
}

impl Steps {
    /// So many steps of a command.
    pub(crate) fn new(count: usize, what: &'static str) -> Steps {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(count as u64);
            // A template of ours that does not parse would only cost looks.
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {bar:28} {pos}/{len}  {msg}") {
                bar.set_style(style.progress_chars("━╸ "));
            }
            bar.set_prefix(what);
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Steps { bar, slow: Progress::start(), what, name: String::new(), begun: false }
    }

    /// The step that begins now.
    pub(crate) fn begin(&mut self, name: &str) {
        name.clone_into(&mut self.name);
        if let Some(bar) = &self.bar {
            if self.begun {
                bar.inc(1);
            }
            bar.set_message(name.to_owned());
        } else {
            self.slow.step(format!("{}: {name}", self.what));
        }
        self.begun = true;
    }

    /// What the current step is at.
    pub(crate) fn detail(&mut self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {text}", self.name));
        } else {
            self.slow.rename(format!("{}: {}: {text}", self.what, self.name));
        }
    }

    /// All is done.
    pub(crate) fn finish(&mut self) {
        self.slow.done();
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Steps {
    /// Also when the command failed.
    fn drop(&mut self) {
        self.finish();
    }
}

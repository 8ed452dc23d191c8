//! The full-screen view of a run (`--tui`): curves of loss and metrics, device memory, a log. `q` stops the run in order.
//!
//! Keys are read where the run calls back, so there is no thread and nothing to lock; a first step that compiles kernels for a
//! minute answers `q` after it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netcl::profiling::gauges;
use netcl::trainer::trainer::{Callback, Context, Epoch, Step};
use netcl::trainer::{Error, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::prelude::Backend;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Sparkline};
use ratatui::{DefaultTerminal, Frame, Terminal};

use crate::output::bytes;

/// How often the screen is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// Lines of the log that are kept.
const LOG_LINES: usize = 200;
/// Points of memory that are kept: as wide as screens are.
const MEMORY_POINTS: usize = 400;

/// The screen as a callback: hand it to the trainer. The terminal is given back when the run ends.
pub(crate) struct Screen {
    terminal: Option<DefaultTerminal>,
    quit: Arc<AtomicBool>,
    view: View,
    drawn: Instant,
}

impl Screen {
    /// Takes the terminal over. `title` stands above everything; `quit` is set when `q` is pressed.
    pub(crate) fn open(title: &str, quit: Arc<AtomicBool>) -> std::io::Result<Screen> {
        let terminal = ratatui::try_init()?;
        Ok(Screen { terminal: Some(terminal), quit, view: View::new(title), drawn: Instant::now() })
    }

    /// Gives the terminal back.
    fn close(&mut self) {
        if self.terminal.take().is_some() {
            ratatui::restore();
        }
    }

    /// Reads keys, and draws where it is time.
    fn turn(&mut self, run: &Context<'_>, at_once: bool) -> Result<()> {
        let failed =
            |error: std::io::Error| Error::Setting { what: format!("the terminal failed: {error}; use no --tui") };
        while event::poll(Duration::ZERO).map_err(failed)? {
            if is_quit(&event::read().map_err(failed)?) {
                self.view.log("q: stopping after this update; a checkpoint is kept".to_owned());
                self.quit.store(true, Ordering::Relaxed);
            }
        }
        if !at_once && self.drawn.elapsed() < DRAW_EVERY {
            return Ok(());
        }
        self.drawn = Instant::now();
        self.view.look(gauges::memory(run.queue));
        match &mut self.terminal {
            Some(terminal) => draw(terminal, &self.view).map_err(failed),
            None => Ok(()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

/// `q`, or Ctrl+C, which arrives as a key here.
fn is_quit(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (interrupt || key.code == KeyCode::Char('q'))
}

fn draw<B: Backend<Error = std::io::Error>>(terminal: &mut Terminal<B>, view: &View) -> std::io::Result<()> {
    terminal.draw(|frame| view.render(frame)).map(drop)
}

impl Callback for Screen {
    fn name(&self) -> String {
        "tui".to_owned()
    }

    fn fit_begins(&mut self, run: &mut Context<'_>) -> Result<()> {
        (self.view.epochs, self.view.per_epoch) = (run.epochs, run.steps_per_epoch);
        for step in &run.history.steps {
            self.view.step(step);
        }
        for epoch in &run.history.epochs {
            self.view.epoch(epoch);
        }
        self.turn(run, true)
    }

    fn epoch_begins(&mut self, run: &mut Context<'_>, epoch: usize) -> Result<()> {
        self.view.phase = format!("epoch {epoch} of {}", run.epochs);
        self.turn(run, true)
    }

    fn step(&mut self, run: &mut Context<'_>, step: &Step) -> Result<()> {
        self.view.step(step);
        self.turn(run, false)
    }

    fn phase(&mut self, run: &mut Context<'_>, name: &str) -> Result<()> {
        self.view.phase = name.to_owned();
        self.turn(run, true)
    }

    fn epoch_ends(&mut self, run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        self.view.epoch(epoch);
        self.turn(run, true)
    }

    fn fit_ends(&mut self, _run: &mut Context<'_>) -> Result<()> {
        self.close();
        Ok(())
    }
}

/// What is shown, apart from the terminal.
#[derive(Default)]
struct View {
    title: String,
    phase: String,
    epochs: usize,
    per_epoch: Option<usize>,
    losses: Vec<(f64, f64)>,
    /// Points of the values of epochs by their names.
    curves: Vec<(String, Vec<(f64, f64)>)>,
    memory: VecDeque<u64>,
    peak: u64,
    log: VecDeque<String>,
    last: Option<Step>,
    /// When updates were seen first in this process, and how many there were before.
    began: Option<(Instant, usize)>,
    samples: usize,
}

impl View {
    fn new(title: &str) -> View {
        View { title: title.to_owned(), ..View::default() }
    }

    fn log(&mut self, line: String) {
        self.log.push_back(line);
        if self.log.len() > LOG_LINES {
            self.log.pop_front();
        }
    }

    fn step(&mut self, step: &Step) {
        if step.loss.is_finite() {
            self.losses.push((step.step as f64, step.loss));
        }
        self.samples += step.samples;
        self.began.get_or_insert((Instant::now(), self.samples));
        self.last = Some(*step);
    }

    fn epoch(&mut self, epoch: &Epoch) {
        for (name, &value) in epoch.values.iter().filter(|(_, value)| value.is_finite()) {
            let point = (epoch.steps as f64, value);
            match self.curves.iter_mut().find(|(known, _)| known == name) {
                Some((_, points)) => points.push(point),
                None => self.curves.push((name.clone(), vec![point])),
            }
        }
        let values = epoch.values.iter().filter(|(name, _)| !is_gauge(name));
        let values: Vec<String> = values.map(|(name, value)| format!("{name} {value:.4}")).collect();
        self.log(format!("epoch {}: {} ({:.1} s)", epoch.epoch, values.join(", "), epoch.seconds));
    }

    fn look(&mut self, memory: gauges::Memory) {
        self.memory.push_back(memory.in_use as u64);
        if self.memory.len() > MEMORY_POINTS {
            self.memory.pop_front();
        }
        self.peak = memory.peak as u64;
    }

    /// Updates of the whole run, where that is known.
    fn total(&self) -> Option<usize> {
        self.per_epoch.map(|steps| steps * self.epochs)
    }

    fn render(&self, frame: &mut Frame<'_>) {
        let [head, middle, memory, log, foot] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Min(8),
            Constraint::Length(5),
            Constraint::Length(7),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.progress(), head);
        let others: Vec<&(String, Vec<(f64, f64)>)> =
            self.curves.iter().filter(|(name, _)| !is_gauge(name) && !name.ends_with("loss")).collect();
        let [left, right] =
            Layout::horizontal([Constraint::Ratio(1, if others.is_empty() { 1 } else { 2 }); 2]).areas(middle);
        let validation = self.curves.iter().find(|(name, _)| name == "val_loss").map(|(_, points)| points.clone());
        let losses =
            [("loss".to_owned(), self.losses.clone()), ("val_loss".to_owned(), validation.unwrap_or_default())];
        self.chart(frame, if others.is_empty() { middle } else { left }, "Loss", &losses.iter().collect::<Vec<_>>());
        if !others.is_empty() {
            self.chart(frame, right, "Metrics", &others);
        }
        let newest = self.memory.back().copied().unwrap_or(0);
        let title = format!("Device memory: {} in use, {} at most", bytes(newest), bytes(self.peak));
        // The newest points, as many as are seen; from zero, so that a leak looks as large as it is.
        let width = usize::from(memory.width.saturating_sub(2));
        let points: Vec<u64> = self.memory.iter().copied().skip(self.memory.len().saturating_sub(width)).collect();
        let line = Sparkline::default().data(&points).max(self.peak.max(1)).style(Style::new().fg(Color::Green));
        frame.render_widget(line.block(Block::bordered().title(title)), memory);
        let shown = usize::from(log.height.saturating_sub(2));
        let lines: Vec<&str> = self.log.iter().skip(self.log.len().saturating_sub(shown)).map(String::as_str).collect();
        frame.render_widget(Paragraph::new(lines.join("\n")).block(Block::bordered().title("Log")), log);
        // A paragraph, which a terminal that is too small cuts off.
        frame.render_widget(Paragraph::new("q: stop and keep a checkpoint"), foot);
    }

    fn progress(&self) -> Gauge<'_> {
        let step = self.last.map_or(0, |step| step.step);
        let share = self.total().map_or(0.0, |total| step as f64 / total.max(1) as f64);
        let mut label = self.phase.clone();
        if let Some(last) = self.last {
            label += &format!(", step {}: loss {:.4}, lr {:.2e}", last.step, last.loss, last.lr);
        }
        if let Some((began, before)) = self.began {
            let seconds = began.elapsed().as_secs_f64();
            if seconds > 0.5 {
                label += &format!(", {:.0} samples/s", (self.samples - before) as f64 / seconds);
            }
        }
        Gauge::default().block(Block::bordered().title(self.title.as_str())).ratio(share.clamp(0.0, 1.0)).label(label)
    }

    fn chart(&self, frame: &mut Frame<'_>, area: Rect, title: &str, lines: &[&(String, Vec<(f64, f64)>)]) {
        let points = || lines.iter().flat_map(|(_, points)| points);
        let (low, high) = points().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), p| (l.min(p.1), h.max(p.1)));
        let (low, high) = if low < high { (low, high) } else { (high.clamp(-1.0, 0.0), high.max(0.0) + 1.0) };
        // As far as the run has come: the first minute of a long one would be a dot on the scale of the whole.
        let end = self.last.map_or(1, |step| step.step).max(1) as f64;
        let colours = [Color::Cyan, Color::Yellow, Color::Green, Color::Magenta, Color::Red, Color::Blue];
        let sets = lines.iter().zip(colours.iter().cycle()).filter(|((_, points), _)| !points.is_empty());
        let sets: Vec<Dataset<'_>> = sets
            .map(|((name, points), &colour)| {
                let set = Dataset::default().name(name.as_str()).marker(Marker::Braille).style(Style::new().fg(colour));
                set.graph_type(GraphType::Line).data(points)
            })
            .collect();
        let x = Axis::default().bounds([0.0, end]).labels(["0".to_owned(), format!("{end:.0} steps")]);
        let y = Axis::default().bounds([low, high]).labels([format!("{low:.3}"), format!("{high:.3}")]);
        frame
            .render_widget(Chart::new(sets).block(Block::bordered().title(title.to_owned())).x_axis(x).y_axis(y), area);
    }
}

/// Whether an epoch's value is about the device and not about the model.
fn is_gauge(name: &str) -> bool {
    matches!(name, "lr" | "samples_per_second" | "memory_bytes" | "memory_peak_bytes")
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.render(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_run_is_drawn_from_its_first_update_on() {
        let mut view = View::new("mlp on digits");
        (view.epochs, view.per_epoch) = (2, Some(10));
        assert!(screen(&view, 80, 30).contains("mlp on digits"));
        for step in 1..=10 {
            view.step(&Step { step, epoch: 1, loss: 1.0 / step as f64, lr: 0.01, samples: 32 });
        }
        view.step(&Step { step: 11, epoch: 2, loss: f64::NAN, lr: 0.01, samples: 32 });
        let values = [("loss", 0.5), ("val_accuracy", 0.75), ("memory_bytes", 1e6)];
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        view.epoch(&Epoch { epoch: 1, steps: 10, samples: 320, seconds: 1.5, values });
        view.look(gauges::Memory { in_use: 3 << 20, peak: 5 << 20 });
        let shown = screen(&view, 100, 30);
        for expected in [
            "Loss",
            "Metrics",
            "3 MiB in use, 5 MiB at most",
            "epoch 1: loss 0.5000, val_accuracy 0.7500 (1.5 s)",
            "q: stop",
        ] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
        assert!(shown.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "a curve: {shown}");
        // Whatever the size, nothing panics.
        for (width, height) in [(1, 1), (10, 3), (20, 60), (300, 10)] {
            screen(&view, width, height);
        }
    }

    #[test]
    fn only_q_and_ctrl_c_stop() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert!(is_quit(&key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(is_quit(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!is_quit(&key(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert!(!is_quit(&Event::FocusGained));
    }
}

//! What a run has to say at its end: seconds per stage, failures, and what could not be tested.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::stages::Stage;

/// Something that this machine lacks, and what was not tested for want of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// What is missing, and why it could not be had.
    pub(crate) missing: String,
    /// What was therefore not tested.
    pub(crate) untested: String,
}

/// How a stage ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    /// Nothing ran; the gap says why.
    Skipped(Gap),
    Failed(String),
}

struct Line {
    stage: Stage,
    seconds: Duration,
    outcome: Outcome,
}

/// The record of one run.
pub(crate) struct Report {
    ci: bool,
    lines: Vec<Line>,
    gaps: Vec<Gap>,
    /// Gaps that are nobody's mistake: listed, but no reason for a gate to fail.
    notes: Vec<Gap>,
}

impl Report {
    /// With `ci`, a gap makes the run fail; without, it is a warning.
    pub(crate) fn new(ci: bool) -> Self {
        Self { ci, lines: Vec::new(), gaps: Vec::new(), notes: Vec::new() }
    }

    /// Runs a stage, measures it and remembers how it ended. An error of the stage does not end the run: a formatting
    /// slip must not hide what the tests have to say.
    pub(crate) fn time(&mut self, stage: Stage, body: impl FnOnce(&mut Self) -> Result<Outcome>) {
        let start = Instant::now();
        let outcome = body(self).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        match &outcome {
            Outcome::Passed => {}
            Outcome::Skipped(gap) => {
                println!("not run: {}", gap.missing);
                self.add(gap.clone());
            }
            Outcome::Failed(reason) => eprintln!("{} failed: {reason}", stage.name()),
        }
        self.lines.push(Line { stage, seconds: start.elapsed(), outcome });
    }

    /// Notes something that could not be installed or tested.
    pub(crate) fn gap(&mut self, missing: impl Into<String>, untested: impl Into<String>) {
        let gap = Gap { missing: missing.into(), untested: untested.into() };
        eprintln!("warning: {}; not tested: {}", gap.missing, gap.untested);
        self.add(gap);
    }

    /// Notes something that only some machines have and that none could install.
    pub(crate) fn note(&mut self, missing: impl Into<String>, untested: impl Into<String>) {
        self.notes.push(Gap { missing: missing.into(), untested: untested.into() });
    }

    /// The install stage says why something is missing; the stages that want it later have nothing to add.
    fn add(&mut self, gap: Gap) {
        if !self.gaps.iter().any(|known| known.untested == gap.untested) {
            self.gaps.push(gap);
        }
    }

    /// Whether an earlier stage of this run did not pass.
    pub(crate) fn did_not_pass(&self, stage: Stage) -> bool {
        self.lines.iter().any(|line| line.stage == stage && !matches!(line.outcome, Outcome::Passed))
    }

    /// Whether the run as a whole is good.
    pub(crate) fn succeeded(&self) -> bool {
        let failed = self.lines.iter().any(|line| matches!(line.outcome, Outcome::Failed(_)));
        !failed && (!self.ci || self.gaps.is_empty())
    }

    /// The closing text.
    pub(crate) fn render(&self) -> String {
        let mut text = String::from("\nstage        seconds  result\n-----------  -------  ------\n");
        for Line { stage, seconds, outcome } in &self.lines {
            let result = match outcome {
                Outcome::Passed => "ok".to_owned(),
                Outcome::Skipped(_) => "NOT RUN".to_owned(),
                Outcome::Failed(reason) => format!("FAILED: {}", reason.lines().next().unwrap_or_default()),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:<11}  {:>7.1}  {result}", stage.name(), seconds.as_secs_f64());
        }
        let total: Duration = self.lines.iter().map(|line| line.seconds).sum();
        let _ = writeln!(
            text,
            "{:<11}  {:>7.1}  {}",
            "total",
            total.as_secs_f64(),
            if self.succeeded() { "ok" } else { "FAILED" }
        );
        if !self.gaps.is_empty() {
            let weight =
                if self.ci { "this fails the run, because CI is set" } else { "WARNING: this run is incomplete" };
            let _ = writeln!(text, "\n{weight}. Could not be had, and was therefore not tested:");
        } else if !self.notes.is_empty() {
            let _ = writeln!(text, "\nNot here, and therefore not tested:");
        }
        for gap in self.gaps.iter().chain(&self.notes) {
            let _ = writeln!(text, "  - {}\n      not tested: {}", gap.missing, gap.untested);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap() -> Gap {
        Gap { missing: "no mdbook".into(), untested: "the book".into() }
    }

    #[test]
    fn a_failure_fails_the_run_and_later_stages_still_count() {
        let mut report = Report::new(false);
        report.time(Stage::Fmt, |_| anyhow::bail!("one file differs"));
        report.time(Stage::Rust, |_| Ok(Outcome::Passed));
        assert!(!report.succeeded());
        assert!(report.did_not_pass(Stage::Fmt) && !report.did_not_pass(Stage::Rust));
        let text = report.render();
        assert!(text.contains("FAILED: one file differs"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("rust") && line.ends_with("ok")), "{text}");
    }

    #[test]
    fn a_gap_warns_a_developer_and_fails_a_gate() {
        for (ci, succeeds) in [(false, true), (true, false)] {
            let mut report = Report::new(ci);
            report.time(Stage::Book, |_| Ok(Outcome::Skipped(gap())));
            assert_eq!(report.succeeded(), succeeds, "CI {ci}");
            let text = report.render();
            assert!(text.contains("no mdbook") && text.contains("not tested: the book"), "{text}");
        }
    }

    #[test]
    fn a_note_is_listed_and_fails_nobody() {
        for ci in [false, true] {
            let mut report = Report::new(ci);
            report.note("no pages", "their listings");
            assert!(report.succeeded(), "CI {ci}");
            let text = report.render();
            assert!(text.contains("no pages") && text.contains("not tested: their listings"), "{text}");
            assert!(!text.contains("fails the run"), "{text}");
            report.gap("no mdbook", "the book");
            assert_eq!(report.succeeded(), !ci);
            assert!(report.render().contains("no pages"));
        }
    }

    #[test]
    fn the_first_word_about_a_gap_is_kept() {
        let mut report = Report::new(false);
        report.gap("mdbook: no network", "the book");
        report.time(Stage::Book, |_| Ok(Outcome::Skipped(gap())));
        let text = report.render();
        assert!(text.contains("no network") && !text.contains("no mdbook"), "{text}");
    }

    #[test]
    fn a_clean_run_lists_no_gaps() {
        let mut report = Report::new(true);
        report.time(Stage::Fmt, |_| Ok(Outcome::Passed));
        assert!(report.succeeded());
        assert!(!report.render().contains("not tested"));
    }
}

//! Printing: tables for eyes, plain text for pipes, JSON for programs, and a sign of life for what takes long.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::Table;

/// Text without control characters other than line feeds and tabs, each replaced by `\u001b` and the like, which also JSON
/// understands. What comes from files must not move the cursor, change colours or the direction of text.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| !is_control(c) || matches!(c, '\n' | '\t');
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if is_harmless(c) { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) };
    Cow::Owned(text.chars().map(escape).collect())
}

/// A name from a file on one line, shortened to at most `most` characters.
pub(crate) fn name(text: &str, most: usize) -> String {
    printable(&shortened(text, most)).replace('\n', "\\u000a").replace('\t', "\\u0009")
}

/// Control characters of Unicode, and those that change the direction of text or begin lines.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first characters of a text that has more than `most`.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        text.to_owned()
    } else {
        text.chars().take(most - 3).chain("...".chars()).collect()
    }
}

/// Writes lines to standard output; a closed pipe is an error like any other, not a panic.
pub(crate) fn print(text: &str) -> Result<()> {
    let text = &*printable(text);
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Writes a value as indented JSON.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Whether an error only says that nobody reads the output any more (`netcl devices | head -1`).
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// A table with lines around its cells on a terminal, and aligned columns elsewhere.
pub(crate) fn table(header: &[String]) -> Table {
    let mut table = Table::new();
    let lines = std::io::stdout().is_terminal();
    table.load_style(if lines { comfy_table::presets::UTF8_FULL_CONDENSED } else { comfy_table::presets::NOTHING });
    table.set_header(header);
    table
}

/// Prints a table without trailing blanks.
pub(crate) fn print_table(table: &Table) -> Result<()> {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    print(&lines.join("\n"))
}

/// `12.3 MiB`, with a unit that keeps the number short.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// Reads a count of what there must be some of.
pub(crate) fn positive(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|&count| count > 0).ok_or("must be a whole number, 1 or more")
}

/// Reads `4096`, `512K`, `200M` or `1G`.
pub(crate) fn parse_size(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        other => bail!("{other} is no unit: use K, M or G"),
    };
    let number: u64 = digits.trim().parse().with_context(|| format!("{digits:?} is not a whole number"))?;
    number.checked_mul(unit).context("the size is too large")
}

/// A time since something happened, in its largest unit.
pub(crate) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Steps that take longer than this are named on standard error while they run.
const PATIENCE: Duration = Duration::from_secs(2);

/// Names the current step on standard error whenever another [`PATIENCE`] has passed in it.
pub(crate) struct Progress {
    step: Arc<Mutex<Option<(String, Instant)>>>,
}

impl Progress {
    /// Begins with no step.
    pub(crate) fn start() -> Progress {
        let step = Arc::new(Mutex::new(None::<(String, Instant)>));
        let watched = Arc::downgrade(&step);
        // Without the thread there are no lines, which is no reason to fail. It ends when the progress is dropped.
        let _ = std::thread::Builder::new().name("progress".into()).spawn(move || {
            let mut said: Option<(Instant, u64)> = None;
            loop {
                std::thread::sleep(Duration::from_millis(100));
                let Some(step) = watched.upgrade() else { return };
                let Some((name, since)) = lock(&step).clone() else { continue };
                let turn = since.elapsed().as_secs() / PATIENCE.as_secs();
                if turn > 0 && said != Some((since, turn)) {
                    eprintln!("... {name} ({} s)", since.elapsed().as_secs());
                    said = Some((since, turn));
                }
            }
        });
        Progress { step }
    }

    /// The step that begins now.
    pub(crate) fn step(&self, name: String) {
        *lock(&self.step) = Some((name, Instant::now()));
    }

    /// The step that is under way has another name by now; it has not begun anew.
    pub(crate) fn rename(&self, name: String) {
        if let Some(step) = &mut *lock(&self.step) {
            step.0 = name;
        }
    }

    /// The step is over and no other begins.
    pub(crate) fn done(&self) {
        *lock(&self.step) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_shortened() {
        assert_eq!(shortened("abc", 5), "abc");
        assert_eq!(shortened("abcdef", 5), "ab...");
    }

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(printable("größer 🦀\n\tcat"), "größer 🦀\n\tcat");
        assert_eq!(printable("\u{1b}[31mcat\r\u{9b}2J\u{202e}\u{7f}"), "\\u001b[31mcat\\u000d\\u009b2J\\u202e\\u007f");
        assert_eq!(name("a\n8 (99 %)", 40), "a\\u000a8 (99 %)");
        let json = serde_json::json!({ "class": "\u{1b}\u{9b}\u{2028}" });
        let text = serde_json::to_string_pretty(&json).unwrap();
        assert!(!printable(&text).chars().any(|c| is_control(c) && c != '\n'));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printable(&text)).unwrap(), json);
    }

    #[test]
    fn sizes_and_ages_are_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(8 << 30), "8 GiB");
        assert_eq!(age(Duration::from_secs(59)), "59 s");
        assert_eq!(age(Duration::from_secs(7200)), "2 h");
        assert_eq!(age(Duration::from_secs(200_000)), "2 d");
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("4096").unwrap(), 4096);
        assert_eq!(parse_size("512k").unwrap(), 512 << 10);
        assert_eq!(parse_size("200M").unwrap(), 200 << 20);
        assert_eq!(parse_size("1 GiB").unwrap(), 1 << 30);
        assert!(parse_size("many").is_err() && parse_size("5X").is_err() && parse_size("99999999999G").is_err());
    }
}

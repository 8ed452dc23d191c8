//! What ranks print: whole lines, each with its rank before it.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use console::Style;

/// As many lines of a rank are shown again when it fails.
const LAST: usize = 12;
/// A line that is longer is cut here: whoever prints no end of line must not fill the memory.
const LONGEST: usize = 64 << 10;

/// Where a line goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Error,
}

impl Stream {
    fn is_terminal(self) -> bool {
        match self {
            Stream::Out => io::stdout().is_terminal(),
            Stream::Error => io::stderr().is_terminal(),
        }
    }

    /// Nobody who reads is no reason to stop.
    fn write(self, bytes: &[u8]) {
        let _ = match self {
            Stream::Out => io::stdout().lock().write_all(bytes).and_then(|()| io::stdout().lock().flush()),
            Stream::Error => io::stderr().lock().write_all(bytes),
        };
    }
}

/// The launcher's terminal or files. All ranks write through the one, a whole line at a time.
#[derive(Default)]
pub(super) struct Screen {
    /// Whether the terminal's last line is one that its rank will overwrite.
    open: bool,
}

impl Screen {
    /// A line that stays.
    fn line(&mut self, stream: Stream, prefix: &str, line: &[u8]) {
        self.put(stream, prefix, line, b"\n");
        self.open = false;
    }

    /// A line of the moment, such as a progress bar. Files do not get it.
    fn moment(&mut self, stream: Stream, prefix: &str, line: &[u8]) {
        if stream.is_terminal() && !line.is_empty() {
            self.put(stream, prefix, line, b"");
            self.open = true;
        }
    }

    fn put(&mut self, stream: Stream, prefix: &str, line: &[u8], end: &[u8]) {
        // Clears the line of the moment, of whichever rank.
        let start: &[u8] = if self.open && stream.is_terminal() { b"\r\x1b[K" } else { b"" };
        stream.write(&[start, prefix.as_bytes(), line, end].concat());
    }
}

/// The last lines of a rank.
#[derive(Clone, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: &[u8]) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LAST {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(line).into_owned());
    }

    pub(super) fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
    }

    /// Whether the rank ended because of another one: see `netcl::distributed::Error::Lost`.
    pub(super) fn names_another(&self) -> bool {
        self.text().contains("all ranks stop here")
    }
}

/// The rank before a line, in a colour of its own on terminals.
fn prefix(rank: usize, stream: Stream) -> String {
    // Colours that can be read on dark and on light ground.
    const COLOURS: [u8; 6] = [33, 35, 166, 133, 37, 136];
    let enabled = match stream {
        Stream::Out => console::colors_enabled(),
        Stream::Error => console::colors_enabled_stderr(),
    };
    let style = Style::new().color256(COLOURS[rank % COLOURS.len()]).force_styling(enabled && stream.is_terminal());
    format!("{} ", style.apply_to(format!("[{rank}]")))
}

/// Reads what a rank prints until it ends.
pub(super) fn forward(
    rank: usize,
    stream: Stream,
    mut from: Box<dyn Read + Send>,
    screen: &Mutex<Screen>,
    tail: &Tail,
) {
    let prefix = prefix(rank, stream);
    let mut lines = Lines::default();
    let mut bytes = [0; 8192];
    let mut show = |shown: Shown<'_>| {
        let mut screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
        match shown {
            Shown::Line(line) => {
                tail.push(line);
                screen.line(stream, &prefix, line);
            }
            Shown::Moment(line) => screen.moment(stream, &prefix, line),
        }
    };
    loop {
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => lines.add(&bytes[..count], &mut show),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    lines.end(&mut show);
}

/// What comes of a stream of bytes.
enum Shown<'a> {
    /// A line that stays.
    Line(&'a [u8]),
    /// One that the next overwrites.
    Moment(&'a [u8]),
}

/// Cuts a stream of bytes into lines.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    /// What a carriage return has ended: shown for good if nothing overwrites it.
    returned: Vec<u8>,
}

impl Lines {
    fn add(&mut self, bytes: &[u8], show: &mut impl FnMut(Shown<'_>)) {
        for &byte in bytes {
            match byte {
                b'\n' => self.finish(show),
                b'\r' if self.line.is_empty() => {}
                b'\r' => {
                    self.returned = std::mem::take(&mut self.line);
                    show(Shown::Moment(&self.returned));
                }
                byte => {
                    self.line.push(byte);
                    if self.line.len() == LONGEST {
                        self.finish(show);
                    }
                }
            }
        }
        // A bar that writes its carriage return first would otherwise be shown one step late.
        if !self.returned.is_empty() && !self.line.is_empty() {
            show(Shown::Moment(&self.line));
        }
    }

    fn finish(&mut self, show: &mut impl FnMut(Shown<'_>)) {
        show(Shown::Line(if self.line.is_empty() { &self.returned } else { &self.line }));
        self.line.clear();
        self.returned.clear();
    }

    /// A last line without an end.
    fn end(&mut self, show: &mut impl FnMut(Shown<'_>)) {
        if !self.line.is_empty() || !self.returned.is_empty() {
            self.finish(show);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that stay, and with a star before them those that do not.
    fn shown(parts: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        let mut show = |shown: Shown<'_>| {
            found.push(match shown {
                Shown::Line(line) => String::from_utf8_lossy(line).into_owned(),
                Shown::Moment(line) => format!("*{}", String::from_utf8_lossy(line)),
            });
        };
        let mut lines = Lines::default();
        parts.iter().for_each(|part| lines.add(part.as_bytes(), &mut show));
        lines.end(&mut show);
        found
    }

    #[test]
    fn lines_are_whole_however_the_bytes_come() {
        assert_eq!(shown(&["on", "e\n\ntw", "o\r", "\nend"]), ["one", "", "*two", "two", "end"]);
    }

    #[test]
    fn a_carriage_return_makes_a_line_of_the_moment() {
        assert_eq!(shown(&["10%\r20%\r", "done\n"]), ["*10%", "*20%", "done"]);
        assert_eq!(shown(&["\r10%", "\r20%", "\n"]), ["*10%", "*20%", "20%"]);
        assert_eq!(shown(&["\r50%\r"]), ["*50%", "50%"]);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let lines = shown(&["x".repeat(LONGEST + 3).as_str()]);
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LONGEST, 3]);
    }
}

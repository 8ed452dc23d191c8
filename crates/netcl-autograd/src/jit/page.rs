//! The page of `netcl explain`: for every compiled function the traced operations, the kernels they became, and the kernels'
//! texts side by side, in one HTML file that needs nothing else.
//!
//! `NETCL_EXPLAIN=page.html` makes any program write it; it is complete after every compilation, however the program ends.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::report::{UnitReport, apart, launches_of};

/// What one compilation adds to the page.
pub(super) struct Section<'s> {
    /// The function.
    pub(super) name: &'s str,
    /// What it was called with.
    pub(super) arguments: String,
    /// Forward and backward.
    pub(super) passes: &'s [(&'s str, &'s [UnitReport])],
    /// Why it runs as it is, if it does.
    pub(super) as_it_is: Option<&'s str>,
}

/// Where the page goes, if one is wanted; read once.
fn path() -> Option<&'static Path> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    let asked = || netcl_core::env::EXPLAIN.text().map(PathBuf::from);
    PATH.get_or_init(asked).as_deref()
}

/// Whether a page is wanted.
pub(super) fn wanted() -> bool {
    path().is_some()
}

/// Adds a section and writes the page anew.
pub(super) fn add(section: &Section<'_>) {
    static SECTIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let Some(path) = path() else { return };
    let mut sections = SECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let text = section.html(sections.len());
    sections.push(text);
    // The user's program is not to fail because of a page about it.
    if let Err(why) = write(path, &html(&sections)) {
        netcl_core::debug::print(format_args!("the page {} cannot be written: {why}", path.display()));
    }
}

/// Readers see the old page or the new one, never half of one.
fn write(path: &Path, page: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    std::fs::write(&beside, page)?;
    std::fs::rename(&beside, path)
}

fn html(sections: &[String]) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, \
         initial-scale=1\"><title>netcl explain</title><style>\n{}</style></head>\n<body><main><h1>What the compiler made of \
         it</h1>\n{}</main></body></html>\n",
        include_str!("page.css"),
        sections.concat()
    )
}

impl Section<'_> {
    fn html(&self, number: usize) -> String {
        let mut out =
            format!("<section><h2>{}</h2><p class=\"lead\">{}</p>\n", escaped(self.name), escaped(&self.arguments));
        if let Some(why) = self.as_it_is {
            let _ = writeln!(out, "<p>Runs as it is: {}.</p>", escaped(why));
        }
        for (p, (pass, units)) in self.passes.iter().enumerate().filter(|(_, (_, units))| !units.is_empty()) {
            let ops: usize = units.iter().map(|unit| unit.ops.len()).sum();
            let (bytes, alone) = units.iter().fold((0.0, 0.0), |(b, a), u| (b + u.bytes, a + u.bytes_alone));
            let moved = if bytes < alone {
                format!("{} moved instead of {}", size(bytes), size(alone))
            } else {
                format!("{} moved", size(bytes))
            };
            let anchor = |unit: usize| format!("k{number}-{p}-{unit}");
            let _ = write!(
                out,
                "<h3>{pass}: {ops} operations, {}</h3>\n<p class=\"lead\">{moved}</p><div class=\"pair\"><div class=\"graph\">{}\
                 </div><div class=\"kernels\">",
                launches_of(units),
                drawing(units, &anchor)
            );
            for (u, unit) in units.iter().enumerate() {
                out.push_str(&kernel(u, unit, &anchor(u), &neighbours(u, units)));
            }
            out.push_str("</div></div>\n");
        }
        out.push_str("</section>\n");
        out
    }
}

/// Bytes with a unit.
fn size(bytes: f64) -> String {
    match bytes {
        b if b < 1024.0 => format!("{b} bytes"),
        b if b < 1048576.0 => format!("{:.1} KiB", b / 1024.0),
        b if b < 1073741824.0 => format!("{:.1} MiB", b / 1048576.0),
        b => format!("{:.1} GiB", b / 1073741824.0),
    }
}

/// Which kernels a kernel reads from, and why they are not one with it.
fn neighbours(reader: usize, units: &[UnitReport]) -> String {
    let mut out = String::new();
    for (w, writer) in units[..reader].iter().enumerate() {
        if writer.writes.iter().any(|storage| units[reader].reads.contains(storage))
            && let Some(why) = apart(writer, &units[reader])
        {
            let _ = write!(out, "<p class=\"note\">Apart from {}: {why}.</p>", w + 1);
        }
    }
    out
}

/// A kernel: what it fuses, what it computes, its text.
fn kernel(at: usize, unit: &UnitReport, anchor: &str, apart: &str) -> String {
    let mut out = format!(
        "<article id=\"{anchor}\" class=\"{}\"><h4>{}. {} <small>{} {}</small></h4>",
        class(unit.kind),
        at + 1,
        escaped(&unit.launches.join(", ")),
        unit.kind,
        escaped(&unit.shape)
    );
    let _ = write!(out, "<p>{}</p>", escaped(&unit.ops.join(" → ")));
    if !unit.formula.is_empty() {
        let _ = write!(out, "<p class=\"formula\">{}</p>", escaped(&unit.formula));
    }
    if !unit.note.is_empty() {
        let _ = write!(out, "<p class=\"note\">Not fused: {}.</p>", escaped(unit.note));
    }
    out.push_str(apart);
    match &unit.source {
        Some(text) => {
            let _ = write!(
                out,
                "<details><summary>Source, {} lines</summary><pre>{}</pre></details>",
                text.trim_end().lines().count(),
                escaped(text.trim_end())
            );
        }
        None => out.push_str("<p class=\"note\">A kernel of the library.</p>"),
    }
    out.push_str("</article>\n");
    out
}

fn class(kind: &str) -> &'static str {
    match kind {
        "pointwise" => "map",
        "rows" => "rows",
        "reduction" => "fold",
        "product" => "heavy",
        _ => "opaque",
    }
}

const BOX: f64 = 210.0;
const GAP: (f64, f64) = (24.0, 34.0);
const LINE: f64 = 16.0;
/// More operations than this are counted instead of named.
const MOST_OPS: usize = 12;

/// Kernels as boxes with their operations, in layers: whoever needs a result stands below it.
fn drawing(units: &[UnitReport], anchor: &dyn Fn(usize) -> String) -> String {
    let needs = |reader: usize, writer: usize| {
        writer < reader && units[writer].writes.iter().any(|storage| units[reader].reads.contains(storage))
    };
    let mut layers: Vec<usize> = Vec::with_capacity(units.len());
    for reader in 0..units.len() {
        let above = (0..reader).filter(|&writer| needs(reader, writer)).map(|writer| layers[writer] + 1).max();
        layers.push(above.unwrap_or(0));
    }
    let depth = layers.iter().max().map_or(0, |last| last + 1);
    let height = |unit: &UnitReport| LINE * (2.0 + lines(unit).len() as f64);
    let heights: Vec<f64> = (0..depth)
        .map(|layer| {
            units.iter().zip(&layers).filter(|(_, l)| **l == layer).map(|(u, _)| height(u)).fold(0.0, f64::max)
        })
        .collect();
    let top = |layer: usize| heights[..layer].iter().map(|h| h + GAP.1).sum::<f64>();
    let place = |unit: usize| {
        let column = layers[..unit].iter().filter(|&&layer| layer == layers[unit]).count();
        (column as f64 * (BOX + GAP.0), top(layers[unit]))
    };
    let widest = (0..depth).map(|layer| layers.iter().filter(|&&l| l == layer).count()).max().unwrap_or(1);
    let (width, total) = (widest as f64 * (BOX + GAP.0) - GAP.0 + 4.0, top(depth) - GAP.1 + 4.0);
    let mut svg = format!(
        "<svg viewBox=\"-2 -2 {width:.0} {total:.0}\" width=\"{width:.0}\" role=\"img\" aria-label=\"kernels and what flows \
         between them\">"
    );
    for reader in 0..units.len() {
        for writer in (0..reader).filter(|&writer| needs(reader, writer)) {
            let ((x1, y1), (x2, y2)) = (place(writer), place(reader));
            let (x1, x2, y1) = (x1 + BOX / 2.0, x2 + BOX / 2.0, y1 + height(&units[writer]));
            let bend = (y1 + y2) / 2.0;
            let _ = write!(svg, "<path d=\"M{x1:.1} {y1:.1}C{x1:.1} {bend:.1} {x2:.1} {bend:.1} {x2:.1} {y2:.1}\"/>");
        }
    }
    for (u, unit) in units.iter().enumerate() {
        let (x, y) = place(u);
        let _ = write!(
            svg,
            "<a href=\"#{}\"><rect class=\"{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{BOX}\" height=\"{:.1}\" rx=\"6\"/>\
             <text class=\"head\" x=\"{:.1}\" y=\"{:.1}\">{}. {}</text>",
            anchor(u),
            class(unit.kind),
            height(unit),
            x + 10.0,
            y + LINE + 2.0,
            u + 1,
            unit.kind
        );
        for (l, line) in lines(unit).iter().enumerate() {
            let at = y + LINE * (l as f64 + 2.0) + 4.0;
            let _ = write!(svg, "<text x=\"{:.1}\" y=\"{at:.1}\">{}</text>", x + 10.0, escaped(line));
        }
        svg.push_str("</a>");
    }
    svg.push_str("</svg>");
    svg
}

/// The operations of a box, one to a line.
fn lines(unit: &UnitReport) -> Vec<String> {
    let mut lines: Vec<String> = unit.ops.iter().take(MOST_OPS).cloned().collect();
    if unit.ops.len() > MOST_OPS {
        lines.push(format!("... and {} more", unit.ops.len() - MOST_OPS));
    }
    lines
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

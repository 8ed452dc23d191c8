//! Drawings as SVG: a few shapes, logarithmic axes, and labels that keep out of each other's way.

use std::fmt::Write;

/// Colours that stay apart for most kinds of colour vision, on white.
pub(super) const COLOURS: [&str; 6] = ["#0b61a4", "#d1660f", "#2b8a3e", "#8e44ad", "#c0392b", "#5f6b73"];
/// Text and axes.
pub(super) const INK: &str = "#1f2933";
/// What should not come to the fore.
pub(super) const FAINT: &str = "#d5dbe1";
/// Explanations.
pub(super) const GREY: &str = "#5f6b73";

/// Where a text stands to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing that grows.
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64, dashes: &str) {
        let dashes = if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
        let _ = writeln!(
            self.body,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}/>",
            from.0, from.1, to.0, to.1
        );
    }

    pub(super) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{colour}\"/>"
        );
    }

    pub(super) fn circle(&mut self, (x, y): (f64, f64), radius: f64, colour: &str) {
        let _ = writeln!(self.body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"/>");
    }

    pub(super) fn text(&mut self, at: (f64, f64), text: &str, size: f64, colour: &str, anchor: Anchor) {
        self.turned(at, text, size, colour, anchor, 0.0);
    }

    /// A text turned by degrees around its point.
    pub(super) fn turned(
        &mut self,
        (x, y): (f64, f64),
        text: &str,
        size: f64,
        colour: &str,
        anchor: Anchor,
        turn: f64,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let turn = if turn == 0.0 { String::new() } else { format!(" transform=\"rotate({turn:.1} {x:.1} {y:.1})\"") };
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{colour}\" text-anchor=\"{anchor}\"{turn}>{}</text>",
            escape(text)
        );
    }

    /// A number in a disc.
    pub(super) fn badge(&mut self, at: (f64, f64), number: usize, colour: &str) {
        self.circle(at, 10.0, "#ffffff");
        self.circle(at, 9.0, colour);
        self.text((at.0, at.1 + 3.6), &number.to_string(), 10.5, "#ffffff", Anchor::Middle);
    }

    /// The whole drawing, on white.
    pub(super) fn finish(self) -> String {
        let Svg { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n<rect width=\"{width}\" height=\"{height}\" \
             fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A logarithmic axis of whole decades on a stretch of pixels.
pub(super) struct LogAxis {
    /// The exponents of its ends.
    pub(super) decades: (i32, i32),
    pixels: (f64, f64),
}

impl LogAxis {
    /// An axis that holds all of some positive values.
    pub(super) fn holding(values: impl IntoIterator<Item = f64>, pixels: (f64, f64)) -> LogAxis {
        let mut ends = (f64::MAX, f64::MIN);
        for value in values.into_iter().filter(|value| *value > 0.0 && value.is_finite()) {
            ends = (ends.0.min(value.log10()), ends.1.max(value.log10()));
        }
        let (low, high) = if ends.0 > ends.1 { (0.0, 1.0) } else { ends };
        // A little air: nothing lies on the frame.
        let (low, high) = ((low - 0.1).floor() as i32, (high + 0.15).ceil() as i32);
        LogAxis { decades: (low, high.max(low + 1)), pixels }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let (low, high) = (f64::from(self.decades.0), f64::from(self.decades.1));
        self.pixels.0 + (value.log10() - low) / (high - low) * (self.pixels.1 - self.pixels.0)
    }

    /// The value at the far end.
    pub(super) fn end(&self) -> f64 {
        10_f64.powi(self.decades.1)
    }

    /// The value at the near end.
    pub(super) fn start(&self) -> f64 {
        10_f64.powi(self.decades.0)
    }
}

/// Places for badges: each as near to its point as the others allow.
pub(super) fn spread(points: &[(f64, f64)], distance: f64) -> Vec<(f64, f64)> {
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for &(x, y) in points {
        let free = |&(px, py): &(f64, f64)| taken.iter().all(|&(tx, ty)| (px - tx).hypot(py - ty) >= distance);
        let around = (0..6).flat_map(|ring| {
            (0..if ring == 0 { 1 } else { 8 }).map(move |step| {
                // To the right first, then around.
                let angle = f64::from(step) * std::f64::consts::FRAC_PI_4;
                let radius = f64::from(ring) * distance;
                (x + radius * angle.cos(), y + radius * angle.sin())
            })
        });
        let place = around.into_iter().find(free).unwrap_or((x, y));
        taken.push(place);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_their_values_in_order() {
        let axis = LogAxis::holding([0.25, 700.0], (100.0, 500.0));
        assert_eq!(axis.decades, (-1, 3));
        assert_eq!((axis.at(axis.start()), axis.at(axis.end())), (100.0, 500.0));
        assert_eq!(axis.at(10.0), 300.0);
        assert_eq!(LogAxis::holding([], (0.0, 1.0)).decades, (-1, 2));
    }

    #[test]
    fn badges_keep_apart() {
        let places = spread(&[(0.0, 0.0), (1.0, 0.0), (0.0, 2.0), (300.0, 0.0)], 20.0);
        assert_eq!((places[0], places[3]), ((0.0, 0.0), (300.0, 0.0)));
        for (i, a) in places.iter().enumerate() {
            assert!(places[..i].iter().all(|b| (a.0 - b.0).hypot(a.1 - b.1) >= 19.9), "{places:?}");
        }
    }

    #[test]
    fn texts_cannot_break_the_drawing() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text((1.0, 1.0), "<a & \"b\">", 10.0, INK, Anchor::Start);
        let text = svg.finish();
        assert!(text.contains("&lt;a &amp; &quot;b&quot;&gt;") && text.ends_with("</svg>\n"));
    }
}

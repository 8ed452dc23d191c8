//! Line charts as inline SVG. Colours come from the page's style sheet, so that they follow light and dark.

use std::fmt::Write;

/// A line of a chart.
pub(crate) struct Series {
    /// What the legend calls it.
    pub(crate) name: &'static str,
    /// The class that gives the colour: `"first"` or `"second"`.
    pub(crate) class: &'static str,
    /// Drawn thin and pale, without a place in the legend: what another line is the mean of.
    pub(crate) faint: bool,
    /// Whether each point has a dot.
    pub(crate) dots: bool,
    /// From left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// How the numbers of the vertical axis are written.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Plain,
    Percent,
}

impl Unit {
    fn label(self, value: f64, step: f64) -> String {
        match self {
            Unit::Percent => {
                let digits = if step < 0.0099 { 1 } else { 0 };
                format!("{:.digits$} %", value * 100.0)
            }
            Unit::Plain if value != 0.0 && step < 1e-3 => format!("{value:.1e}"),
            Unit::Plain => {
                let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
                format!("{value:.digits$}")
            }
        }
    }
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 36.0;
/// More points than this are not told apart at this width.
const MOST_POINTS: usize = 360;

/// A chart over epochs.
pub(crate) fn chart(label: &str, unit: Unit, epochs: f64, series: &[Series]) -> String {
    let values = || series.iter().flat_map(|line| &line.points).map(|point| point.1).filter(|y| y.is_finite());
    let (low, high) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), y| (l.min(y), h.max(y)));
    let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
    // Losses and learning rates start at zero; accuracies where they begin to differ.
    let low = if matches!(unit, Unit::Plain) { low.min(0.0) } else { low };
    let step = tick_step(high - low, 5.0);
    let bottom = (low / step).floor() * step;
    let top = ((high / step).ceil() * step).max(bottom + step);
    let top = if matches!(unit, Unit::Percent) { top.min(1.0f64.max(bottom + step)) } else { top };
    let x = |epoch: f64| LEFT + epoch / epochs.max(f64::MIN_POSITIVE) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label} over epochs\">");
    let mut tick = bottom;
    while tick <= top + step * 1e-6 {
        let (at, text) = (y(tick), unit.label(tick, step));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"tick end\" \
             x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
        tick += step;
    }
    let epoch_step = tick_step(epochs, 10.0).max(1.0);
    let mut tick = 0.0;
    while tick <= epochs + 1e-6 {
        let _ = write!(
            svg,
            "<text class=\"tick mid\" x=\"{:.1}\" y=\"{:.1}\">{tick}</text>",
            x(tick),
            HEIGHT - BOTTOM + 16.0
        );
        tick += epoch_step;
    }
    let _ = write!(
        svg,
        "<text class=\"tick mid\" x=\"{:.1}\" y=\"{:.1}\">epoch</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 4.0
    );
    for line in series {
        let points = thinned(&line.points);
        let path: Vec<String> =
            points.iter().map(|&(epoch, value)| format!("{:.1},{:.1}", x(epoch), y(value))).collect();
        let faint = if line.faint { " faint" } else { "" };
        let _ = write!(svg, "<polyline class=\"line {}{faint}\" points=\"{}\"/>", line.class, path.join(" "));
        if line.dots {
            for &(epoch, value) in &points {
                let text = unit.label(value, 1e-3);
                let _ = write!(
                    svg,
                    "<circle class=\"dot {}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>epoch {epoch}: {text}</title></circle>",
                    line.class,
                    x(epoch),
                    y(value)
                );
            }
        }
    }
    svg.push_str("</svg>");
    let shown: Vec<&Series> = series.iter().filter(|line| !line.faint).collect();
    let mut legend = String::new();
    if shown.len() > 1 {
        for line in shown {
            let _ = write!(legend, "<span><i class=\"{}\"></i>{}</span>", line.class, line.name);
        }
    }
    format!("<figure><figcaption>{label}<span class=\"legend\">{legend}</span></figcaption>{svg}</figure>")
}

/// A round distance that divides a range into about `count` parts.
fn tick_step(range: f64, count: f64) -> f64 {
    let rough = (range / count).max(1e-12);
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    factor.unwrap_or(10.0) * power
}

/// As many points as can be seen, each the mean of its neighbours.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let size = points.len().div_ceil(MOST_POINTS).max(1);
    let mean = |part: &[(f64, f64)]| {
        let n = part.len() as f64;
        (part.iter().map(|point| point.0).sum::<f64>() / n, part.iter().map(|point| point.1).sum::<f64>() / n)
    };
    points.chunks(size).map(mean).collect()
}

/// Means over the last steps, so that a trend shows through the noise of single batches.
pub(crate) fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let window = (points.len() / 40).clamp(1, 200);
    let mut sum = 0.0;
    let mut smooth = Vec::with_capacity(points.len());
    for (i, &(x, y)) in points.iter().enumerate() {
        sum += y;
        if i >= window {
            sum -= points[i - window].1;
        }
        smooth.push((x, sum / window.min(i + 1) as f64));
    }
    smooth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(tick_step(10.0, 5.0), 2.0);
        assert!((tick_step(0.9, 5.0) - 0.2).abs() < 1e-12);
        assert_eq!(tick_step(37.0, 10.0), 5.0);
        assert_eq!(Unit::Percent.label(0.985, 0.005), "98.5 %");
        assert_eq!(Unit::Plain.label(1.5, 0.5), "1.5");
        assert_eq!(Unit::Plain.label(0.0002, 0.0001), "2.0e-4");
    }

    #[test]
    fn many_points_become_few_and_keep_their_mean() {
        let points: Vec<(f64, f64)> = (0..10_000).map(|i| (i as f64, (i % 2) as f64)).collect();
        let few = thinned(&points);
        assert!(few.len() <= MOST_POINTS && few.iter().all(|point| (point.1 - 0.5).abs() < 0.05));
        assert!(smoothed(&points)[500..].iter().all(|point| (point.1 - 0.5).abs() < 0.01));
        assert_eq!(smoothed(&[(0.0, 3.0)]), [(0.0, 3.0)]);
    }

    #[test]
    fn a_chart_of_anything_stays_inside_its_frame() {
        for points in [vec![], vec![(0.5, 2.0)], vec![(0.0, 0.0), (1.0, 0.0)], vec![(0.0, 1e-9), (1.0, 1e9)]] {
            let line = Series { name: "loss", class: "first", faint: false, dots: true, points };
            let svg = chart("loss", Unit::Plain, 1.0, &[line]);
            assert!(svg.contains("<polyline") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}

//! The roofline: what each row reaches, by how much it computes for each byte, under what the device can do.

use super::plot::{Anchor, COLOURS, FAINT, GREY, INK, LogAxis, Svg, spread};
use super::rows::Work;
use super::{Measured, Run, bytes_rate, flops_rate, milliseconds, size_text};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 720.0;
const TOP: f64 = 78.0;
const BOTTOM: f64 = 530.0;
/// Ceilings closer than this are drawn as one.
const SAME: f64 = 1.06;

/// Draws a run.
pub(super) fn draw(run: &Run) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let points: Vec<(&Measured, f64, f64)> = run.results.iter().filter_map(point).collect();
    let flats = ceilings(run);
    let bandwidth = run.ceilings.bytes_per_second;
    let ridges = flats.iter().map(|(_, rate)| rate / bandwidth);
    let x = LogAxis::holding(points.iter().map(|(_, x, _)| *x).chain(ridges), (LEFT, RIGHT));
    let y = LogAxis::holding(
        points.iter().map(|(_, _, y)| *y).chain(flats.iter().map(|(_, rate)| *rate)).chain([bandwidth * x.start()]),
        (BOTTOM, TOP),
    );
    let title = format!("Roofline: {}", run.device.device_name);
    svg.text((LEFT, 32.0), &title, 19.0, INK, Anchor::Start);
    let under = format!("netcl {}, driver {}, {}", env!("CARGO_PKG_VERSION"), run.driver, super::record::today());
    svg.text((LEFT, 53.0), &under, 12.0, GREY, Anchor::Start);
    axes(&mut svg, &x, &y);
    roofs(&mut svg, &x, &y, bandwidth, &flats);

    let spots: Vec<(f64, f64)> = points.iter().map(|(_, px, py)| (x.at(*px), y.at(*py))).collect();
    let badges = spread(&spots, 22.0);
    for (&spot, &badge) in spots.iter().zip(&badges) {
        svg.line(spot, badge, GREY, 1.0, "");
        svg.circle(spot, 3.0, INK);
    }
    for (i, ((result, _, _), badge)) in points.iter().zip(badges).enumerate() {
        svg.badge(badge, i + 1, colour(result));
    }
    legend(&mut svg, run, &points);
    svg.finish()
}

/// Operations per byte and per second; rows that compute nothing have no place here.
fn point(result: &Measured) -> Option<(&Measured, f64, f64)> {
    let (timing, _) = result.outcome.as_ref().ok()?;
    let (flops, bytes) = (result.row.flops(result.size), result.row.bytes(result.size));
    (flops > 0.0).then(|| (result, flops / bytes, flops / timing.median))
}

fn colour(result: &Measured) -> &'static str {
    if matches!(result.row.work, Work::Matmul { .. }) { COLOURS[0] } else { COLOURS[2] }
}

/// The flat roofs, the lowest first, those of nearly the same height as one.
fn ceilings(run: &Run) -> Vec<(String, f64)> {
    let mut found = vec![("multiply-adds".to_owned(), run.ceilings.fma_flops)];
    found.extend(run.ceilings.matrix_flops.iter().map(|(kind, rate)| (format!("{kind} units"), *rate)));
    found.retain(|(_, rate)| *rate > 0.0);
    found.sort_by(|a, b| a.1.total_cmp(&b.1));
    found.dedup_by(|next, kept| {
        let same = next.1 / kept.1 < SAME;
        if same {
            kept.0 = format!("{} and {}", kept.0.trim_end_matches(" units"), next.0);
            kept.1 = next.1;
        }
        same
    });
    found
}

fn axes(svg: &mut Svg, x: &LogAxis, y: &LogAxis) {
    for decade in x.decades.0..=x.decades.1 {
        let at = x.at(10_f64.powi(decade));
        svg.line((at, TOP), (at, BOTTOM), FAINT, 1.0, "");
        svg.text((at, BOTTOM + 18.0), &plain(decade), 12.0, INK, Anchor::Middle);
    }
    for decade in y.decades.0..=y.decades.1 {
        let at = y.at(10_f64.powi(decade));
        svg.line((LEFT, at), (RIGHT, at), FAINT, 1.0, "");
        let label = if decade >= 12 { format!("{} T", plain(decade - 12)) } else { format!("{} G", plain(decade - 9)) };
        svg.text((LEFT - 8.0, at + 4.0), &label, 12.0, INK, Anchor::End);
    }
    svg.line((LEFT, BOTTOM), (RIGHT, BOTTOM), INK, 1.5, "");
    svg.line((LEFT, TOP), (LEFT, BOTTOM), INK, 1.5, "");
    svg.text(((LEFT + RIGHT) / 2.0, BOTTOM + 42.0), "operations per byte moved", 13.0, INK, Anchor::Middle);
    svg.turned((26.0, (TOP + BOTTOM) / 2.0), "operations per second", 13.0, INK, Anchor::Middle, -90.0);
}

/// `0.1`, `1000`: a power of ten.
fn plain(decade: i32) -> String {
    if decade < 0 {
        format!("{:.*}", decade.unsigned_abs() as usize, 10_f64.powi(decade))
    } else {
        format!("1{}", "0".repeat(decade as usize))
    }
}

fn roofs(svg: &mut Svg, x: &LogAxis, y: &LogAxis, bandwidth: f64, flats: &[(String, f64)]) {
    let top = flats.last().map_or(y.end(), |(_, rate)| *rate);
    // The slope meets the highest roof or the end of the axis.
    let ridge = (top / bandwidth).min(x.end());
    let from = (x.at(x.start()), y.at(bandwidth * x.start()));
    let to = (x.at(ridge), y.at(bandwidth * ridge));
    svg.line(from, to, INK, 2.0, "");
    let turn = (to.1 - from.1).atan2(to.0 - from.0).to_degrees();
    // Above the slope, two fifths along it: away from its ends and from most rows.
    let at = (from.0 + 0.4 * (to.0 - from.0), from.1 + 0.4 * (to.1 - from.1));
    let (dx, dy) = (turn.to_radians().sin() * 8.0, -turn.to_radians().cos() * 8.0);
    let label = format!("copies, {}", bytes_rate(bandwidth));
    svg.turned((at.0 + dx, at.1 + dy), &label, 12.0, INK, Anchor::Middle, turn);
    for (i, (name, rate)) in flats.iter().enumerate() {
        let colour = COLOURS[(i + 3) % COLOURS.len()];
        let height = y.at(*rate);
        svg.line((x.at((rate / bandwidth).max(x.start())), height), (RIGHT, height), colour, 2.0, "");
        let label = format!("{name}, {}", flops_rate(*rate));
        svg.text((RIGHT - 4.0, height - 6.0), &label, 12.0, colour, Anchor::End);
    }
}

fn legend(svg: &mut Svg, run: &Run, points: &[(&Measured, f64, f64)]) {
    let left = RIGHT + 36.0;
    for (i, (result, _, rate)) in points.iter().enumerate() {
        let top = TOP + 10.0 + 54.0 * i as f64;
        svg.badge((left, top), i + 1, colour(result));
        svg.text((left + 18.0, top + 1.0), result.row.name, 12.5, INK, Anchor::Start);
        if let Ok((timing, _)) = &result.outcome {
            let share = 100.0 * result.row.bound(result.size, &run.ceilings) / timing.median;
            let size = format!("{}: {}", size_text(result.size), milliseconds(timing.median));
            svg.text((left + 18.0, top + 16.0), &size, 11.5, GREY, Anchor::Start);
            let line = format!("{}, {share:.0} % of its limit", flops_rate(*rate));
            svg.text((left + 18.0, top + 30.0), &line, 11.5, GREY, Anchor::Start);
        }
    }
}

//! Bars: the time of each row beside the peers', the goal and the device's limit. Each row has a scale of its own.

use super::plot::{Anchor, COLOURS, FAINT, GREY, INK, Svg};
use super::{Run, milliseconds, size_text};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 250.0;
/// The longest bar of each row ends here; its figure stands behind it.
const RIGHT: f64 = 830.0;
const TOP: f64 = 104.0;
const BAR: f64 = 15.0;
const GAP: f64 = 26.0;
const GOAL: &str = "#2b8a3e";
const OURS: &str = COLOURS[0];
const PEERS: [&str; 3] = ["#d1660f", "#8a949e", "#8e44ad"];

/// Draws a run.
pub(super) fn draw(run: &Run) -> String {
    let groups: Vec<_> = run.results.iter().filter(|result| result.outcome.is_ok()).collect();
    let contenders = 1 + run.peers.len();
    let group_height = contenders as f64 * (BAR + 3.0) + GAP;
    let mut svg = Svg::new(WIDTH, TOP + groups.len() as f64 * group_height + 16.0);
    let title = format!("Time per call: {}", run.device.device_name);
    svg.text((24.0, 32.0), &title, 19.0, INK, Anchor::Start);
    let under = format!("netcl {}, driver {}, {}", env!("CARGO_PKG_VERSION"), run.driver, super::record::today());
    let note = format!("{under}. Medians; shorter is faster; each row has its own scale.");
    svg.text((24.0, 53.0), &note, 12.0, GREY, Anchor::Start);
    key(&mut svg, run);
    for (i, result) in groups.iter().enumerate() {
        let Ok((timing, _)) = &result.outcome else { continue };
        let top = TOP + i as f64 * group_height;
        let bound = result.row.bound(result.size, &run.ceilings);
        let mut bars = vec![(timing.median, OURS)];
        for (peer, colour) in run.peers.iter().zip(PEERS.iter().cycle()) {
            // A peer without this row keeps its place, empty: colours and places mean the same everywhere.
            bars.push((run.peer_row(peer, result).map_or(f64::NAN, |row| row.median_ms / 1e3), *colour));
        }
        let goal = run.goal(result).map(|goal| goal / 1e3);
        let longest = bars.iter().map(|bar| bar.0).chain(goal).filter(|time| time.is_finite()).fold(bound, f64::max);
        let length = |time: f64| (RIGHT - LEFT) * time / longest;
        let height = contenders as f64 * (BAR + 3.0);
        svg.text((LEFT - 12.0, top + 12.0), result.row.name, 13.0, INK, Anchor::End);
        svg.text((LEFT - 12.0, top + 28.0), &size_text(result.size), 11.5, GREY, Anchor::End);
        svg.line((LEFT, top - 3.0), (LEFT, top + height), FAINT, 1.5, "");
        for (k, (time, colour)) in bars.iter().enumerate().filter(|(_, (time, _))| time.is_finite()) {
            let y = top + k as f64 * (BAR + 3.0);
            svg.rect((LEFT, y), (length(*time).max(1.0), BAR), colour);
        }
        mark(&mut svg, LEFT + length(bound), top, height, INK, "2 2");
        if let Some(goal) = goal {
            mark(&mut svg, LEFT + length(goal), top, height, GOAL, "");
        }
        // Figures last: no mark crosses them.
        for (k, (time, _)) in bars.iter().enumerate().filter(|(_, (time, _))| time.is_finite()) {
            let y = top + k as f64 * (BAR + 3.0);
            let ratio = if k == 0 { String::new() } else { format!("  ({:.2}x ours)", time / timing.median) };
            let text = format!("{}{ratio}", milliseconds(*time));
            let marks = [Some(bound), goal].into_iter().flatten().map(|time| LEFT + length(time));
            svg.text((clear(LEFT + length(*time) + 7.0, text.len(), marks), y + 11.5), &text, 11.5, INK, Anchor::Start);
        }
    }
    svg.finish()
}

/// The first place for a text, from `at` to the right, that no mark crosses.
fn clear(at: f64, letters: usize, marks: impl Iterator<Item = f64>) -> f64 {
    let width = letters as f64 * 6.2;
    let mut marks: Vec<f64> = marks.collect();
    marks.sort_by(f64::total_cmp);
    marks.into_iter().fold(at, |at, mark| if mark > at - 3.0 && mark < at + width { mark + 6.0 } else { at })
}

fn mark(svg: &mut Svg, x: f64, top: f64, height: f64, colour: &str, dashes: &str) {
    // A white edge: marks cross dark bars.
    svg.line((x, top - 4.0), (x, top + height + 1.0), "#ffffff", 4.0, "");
    svg.line((x, top - 4.0), (x, top + height + 1.0), colour, 2.0, dashes);
}

fn key(svg: &mut Svg, run: &Run) {
    let mut x = 24.0;
    let y = 78.0;
    let names = std::iter::once(("netcl".to_owned(), OURS))
        .chain(run.peers.iter().map(|peer| peer.tool.clone()).zip(PEERS.iter().copied().cycle()));
    for (name, colour) in names {
        svg.rect((x, y - 11.0), (14.0, 12.0), colour);
        svg.text((x + 20.0, y), &name, 12.0, INK, Anchor::Start);
        x += 46.0 + 7.0 * name.len() as f64;
    }
    for (name, colour, dashes) in [("the device's limit", INK, "2 2"), ("goal", GOAL, "")] {
        if name == "goal" && !run.results.iter().any(|result| run.goal(result).is_some()) {
            continue;
        }
        svg.line((x + 6.0, y - 12.0), (x + 6.0, y + 3.0), colour, 2.0, dashes);
        svg.text((x + 16.0, y), name, 12.0, INK, Anchor::Start);
        x += 42.0 + 7.0 * name.len() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::clear;

    #[test]
    fn figures_keep_clear_of_marks() {
        assert_eq!(clear(100.0, 10, [50.0, 300.0].into_iter()), 100.0);
        assert_eq!(clear(100.0, 10, [120.0].into_iter()), 126.0);
        assert_eq!(clear(100.0, 10, [150.0, 120.0].into_iter()), 156.0);
    }
}

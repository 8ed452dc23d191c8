//! How a convolution becomes shifted products: which planes the images are copied to, and where each tap reads them.
//!
//! ```text
//!     a plane: padded, one row after the other            stride 2: even and odd columns are planes of their own,
//!                                                          so that neighbours in the result read neighbours here
//!     0 0 0 0 0 0
//!     0 a b c d 0     tap (ky, kx) of pixel p reads              a b c d e f  ->  a c e   b d f
//!     0 e f g h 0     p + (ky * pitch + kx)
//!     0 0 0 0 0 0
//! ```
//!
//! Pixels of the result are numbered with the planes' pitch: between two rows of it lie a few numbers that mean nothing. They
//! are computed with the rest, so that a block of pixels may run over the ends of rows, and are never written. Zeros at the end
//! of a row are those at the start of the next, so that there are as few of these numbers as can be.

use netcl_core::conv::ConvGeometry;
use smallvec::SmallVec;

/// As many elements as the widest vector has. Twice as many after each channel may be read: a vector, and shared zeros.
pub(super) const SLACK: usize = 16;

/// One axis of the planes: position q of phase i holds the source's element `starts[i] + q * step`, or zero outside of it.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) starts: SmallVec<[isize; 4]>,
    pub(super) step: usize,
    pub(super) length: usize,
    pub(super) source: usize,
}

impl Axis {
    /// The positions of a phase that lie inside the source.
    pub(super) fn inside(&self, start: isize) -> (usize, usize) {
        let step = self.step as isize;
        let first = if start < 0 { (-start + step - 1) / step } else { 0 };
        let end = if (self.source as isize) > start { (self.source as isize - start + step - 1) / step } else { 0 };
        let end = (end as usize).min(self.length);
        ((first as usize).min(end), end)
    }

    /// Drops as many positions from the end as hold zeros that the start of the next row (or plane) holds as well, and says how
    /// many. At least `extent` positions stay, and at most `most` go.
    fn share(&mut self, extent: usize, most: usize) -> usize {
        let zeros = self.starts.iter().map(|&start| {
            let (first, end) = self.inside(start);
            first.min(self.length - end)
        });
        let shared = zeros.min().unwrap_or(0).min(self.length - extent).min(most);
        self.length -= shared;
        shared
    }
}

/// The planes of one channel, phases of rows and columns side by side.
#[derive(Clone, Debug)]
pub(super) struct Planes {
    pub(super) rows: Axis,
    pub(super) cols: Axis,
}

impl Planes {
    /// The distance between rows.
    pub(super) fn pitch(&self) -> usize {
        self.cols.length
    }

    /// Elements of a plane.
    pub(super) fn plane(&self) -> usize {
        self.rows.length * self.cols.length
    }

    /// Planes of a channel.
    pub(super) fn phases(&self) -> usize {
        self.rows.starts.len() * self.cols.starts.len()
    }

    /// Elements of all planes of a channel.
    pub(super) fn used(&self) -> usize {
        self.phases() * self.plane()
    }

    /// The distance between channels: whole vectors, so that none that starts with a channel lies across cache lines.
    pub(super) fn channel(&self) -> usize {
        self.used().next_multiple_of(SLACK) + 2 * SLACK
    }
}

/// A filter's tap: where it reads for pixel 0, and which element of the filter it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    /// Which of the channel's planes.
    pub(super) phase: usize,
    /// Where in that plane.
    pub(super) at: usize,
    pub(super) weight: usize,
}

/// Pixels that all have the same taps: all of a forward convolution, one phase of a data gradient.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) taps: Vec<Tap>,
    /// Rows and columns of the part.
    pub(super) extent: [usize; 2],
    /// Where in the result its first pixel lies, and how far apart its pixels are.
    pub(super) first: [usize; 2],
    pub(super) step: [usize; 2],
}

impl Part {
    /// Pixels from the first to the last, meaningless ones included.
    pub(super) fn span(&self, pitch: usize, rows: usize) -> usize {
        (rows - 1) * pitch + self.extent[1]
    }
}

/// Planes of the input, and the pixels of the output in one part.
pub(super) fn forward(g: &ConvGeometry) -> (Planes, Part) {
    let axis = |i: usize| {
        let (stride, offsets) = (g.stride[i], (0..g.kernel[i]).map(|k| k * g.dilation[i]).collect::<Vec<_>>());
        let mut phases: Vec<usize> = offsets.iter().map(|o| o % stride).collect();
        phases.sort_unstable();
        phases.dedup();
        let taps: Vec<(usize, usize)> =
            offsets.iter().map(|o| (phases.binary_search(&(o % stride)).unwrap_or(0), o / stride)).collect();
        let longest = taps.iter().map(|t| t.1).max().unwrap_or(0);
        let starts = phases.iter().map(|&phase| phase as isize - g.before()[i] as isize).collect();
        let axis = Axis { starts, step: stride, length: g.output[i] + longest, source: g.input[i] };
        (axis, taps)
    };
    let ((rows, row_taps), (mut cols, col_taps)) = (axis(0), axis(1));
    cols.share(g.output[1], SLACK);
    let planes = Planes { rows, cols };
    let mut taps = Vec::with_capacity(g.taps());
    for &(row_phase, y) in &row_taps {
        for &(col_phase, x) in &col_taps {
            let phase = row_phase * planes.cols.starts.len() + col_phase;
            taps.push(Tap { phase, at: y * planes.pitch() + x, weight: taps.len() });
        }
    }
    let part = Part { taps, extent: g.output, first: [0, 0], step: [1, 1] };
    (planes, part)
}

/// One phase of an axis of the data gradient.
struct Phase {
    first: usize,
    count: usize,
    /// The number of the first position, counted in strides.
    start: usize,
    /// Taps and how many positions before their pixel they read.
    taps: Vec<(usize, usize)>,
}

/// Planes of the output's gradient, and the pixels of the input's in one part for each phase of the stride.
pub(super) fn backward(g: &ConvGeometry) -> (Planes, Vec<Part>) {
    let axis = |i: usize| {
        let (stride, before) = (g.stride[i], g.before()[i]);
        let phases: Vec<Phase> = (0..stride.min(g.input[i] + before))
            .filter_map(|phase| {
                let start = before.saturating_sub(phase).div_ceil(stride);
                let first = start * stride + phase - before;
                let taps = (0..g.kernel[i])
                    .map(|k| (k, k * g.dilation[i]))
                    .filter(|(_, at)| at % stride == phase)
                    .map(|(k, at)| (k, (at - phase) / stride))
                    .collect();
                (first < g.input[i]).then(|| Phase { first, count: (g.input[i] - first).div_ceil(stride), start, taps })
            })
            .collect();
        // What the taps reach, in positions of the output; all phases share it.
        let reached = phases.iter().flat_map(|p| {
            p.taps.iter().map(|&(_, back)| {
                let low = p.start as isize - back as isize;
                (low, low + p.count as isize)
            })
        });
        let (low, high) = reached.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0, 0));
        // A phase that no tap reaches still has pixels, whose rows must not run into each other.
        let longest = phases.iter().map(|p| p.count).max().unwrap_or(1);
        let length = ((high - low) as usize).max(longest);
        let axis = Axis { starts: SmallVec::from_elem(low, 1), step: 1, length, source: g.output[i] };
        (axis, phases, low)
    };
    let ((rows, row_phases, top), (mut cols, col_phases, left)) = (axis(0), axis(1));
    cols.share(col_phases.iter().map(|phase| phase.count).max().unwrap_or(0), SLACK);
    let planes = Planes { rows, cols };
    let mut parts = Vec::with_capacity(row_phases.len() * col_phases.len());
    for r in &row_phases {
        for c in &col_phases {
            let mut taps = Vec::with_capacity(r.taps.len() * c.taps.len());
            for &(ky, up) in &r.taps {
                for &(kx, back) in &c.taps {
                    let y = (r.start as isize - up as isize - top) as usize;
                    let x = (c.start as isize - back as isize - left) as usize;
                    taps.push(Tap { phase: 0, at: y * planes.pitch() + x, weight: ky * g.kernel[1] + kx });
                }
            }
            parts.push(Part { taps, extent: [r.count, c.count], first: [r.first, c.first], step: g.stride });
        }
    }
    (planes, parts)
}

/// For the weight gradient: the planes of the input, of which one image's follow the other's and share the zeros between them, those
/// of the output's gradient of the same size, and how many shared zeros follow the last image.
pub(super) fn one_after_the_other(g: &ConvGeometry) -> (Planes, Planes, Part, usize) {
    let (mut planes, part) = forward(g);
    let shared = planes.rows.share(g.output[0], usize::MAX);
    let one = |length: usize, source: usize| Axis { starts: SmallVec::from_elem(0, 1), step: 1, length, source };
    let under = Planes { rows: one(planes.rows.length, g.output[0]), cols: one(planes.pitch(), g.output[1]) };
    let after = shared * planes.pitch() + 2 * SLACK;
    (planes, under, part, after)
}

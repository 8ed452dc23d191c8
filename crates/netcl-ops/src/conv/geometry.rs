//! The lengths of a convolution, checked once: everything after this file may rely on them.

use netcl_core::kernel_selector::ConvShape;
use netcl_core::kernels::launch::Cost;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::ConvOptions;

/// A convolution of `[n, groups * channels, ..input]` with filters `[groups * filters, channels, ..kernel]` to
/// `[n, groups * filters, ..output]`. Only `n` may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) n: usize,
    pub(super) groups: usize,
    /// Channels of one group.
    pub(super) channels: usize,
    /// Filters of one group.
    pub(super) filters: usize,
    pub(super) input: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) output: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) dilation: [usize; 2],
    /// Zeros before the first row and column.
    pub(super) before: [usize; 2],
    /// Zeros after the last row and column.
    pub(super) after: [usize; 2],
}

impl Geometry {
    /// Checks that an input of a shape can be convolved with a weight of a shape.
    pub(super) fn new(op: &'static str, x: &Shape, weight: &Shape, options: &ConvOptions<'_>) -> Result<Geometry> {
        let wrong = |shape: &Shape, why: String| Err(Error::Shape { op, shape: shape.clone(), why });
        let [n, channels, h, w] = **x else {
            return wrong(x, "the input must have four axes: (batch, channels, height, width)".to_owned());
        };
        let [filters, depth, kh, kw] = **weight else {
            let why = "the weight must have four axes: (filters, channels / groups, height, width)".to_owned();
            return wrong(weight, why);
        };
        let groups = options.groups;
        let argument = |what: String| Err(Error::argument(op, what));
        if options.stride.contains(&0) || options.dilation.contains(&0) || groups == 0 {
            return argument(format!(
                "stride {:?}, dilation {:?} and groups {groups} must all be at least 1",
                options.stride, options.dilation
            ));
        }
        if channels == 0 || h == 0 || w == 0 {
            return wrong(x, "only the batch may be empty; channels, height and width must be at least 1".to_owned());
        }
        if filters == 0 || depth == 0 || kh == 0 || kw == 0 {
            return wrong(weight, "no axis of a weight may be empty".to_owned());
        }
        if !channels.is_multiple_of(groups) || !filters.is_multiple_of(groups) {
            return argument(format!(
                "{channels} channels and {filters} filters cannot be shared by {groups} groups; both must be multiples of \
                 the number of groups"
            ));
        }
        if depth != channels / groups {
            let why = format!(
                "an input of {channels} channels in {groups} group(s) needs filters of {} channels, these have {depth}",
                channels / groups
            );
            return wrong(weight, why);
        }
        let [top, bottom, left, right] = options.padding;
        let (before, after) = ([top, left], [bottom, right]);
        let (input, kernel) = ([h, w], [kh, kw]);
        let mut output = [0; 2];
        for axis in 0..2 {
            let name = ["height", "width"][axis];
            let lengths = reach(kernel[axis], options.dilation[axis])
                .zip(input[axis].checked_add(before[axis]).and_then(|sum| sum.checked_add(after[axis])));
            let Some((reach, padded)) = lengths.filter(|&(_, padded)| isize::try_from(padded).is_ok()) else {
                return argument(format!("padding or dilation along the {name} is larger than can be addressed"));
            };
            let Some(left) = padded.checked_sub(reach) else {
                let why = format!(
                    "the {name} is {} and {padded} with padding, but a kernel of {} with dilation {} reaches over {reach}; pad \
                     more or take a smaller kernel",
                    input[axis], kernel[axis], options.dilation[axis]
                );
                return wrong(x, why);
            };
            output[axis] = left / options.stride[axis] + 1;
        }
        Ok(Geometry {
            n,
            groups,
            channels: depth,
            filters: filters / groups,
            input,
            kernel,
            output,
            stride: options.stride,
            dilation: options.dilation,
            before,
            after,
        })
    }

    pub(super) fn input_shape(&self) -> Shape {
        [self.n, self.groups * self.channels, self.input[0], self.input[1]].into()
    }

    pub(super) fn weight_shape(&self) -> Shape {
        [self.groups * self.filters, self.channels, self.kernel[0], self.kernel[1]].into()
    }

    pub(super) fn output_shape(&self) -> Shape {
        [self.n, self.groups * self.filters, self.output[0], self.output[1]].into()
    }

    /// Taps of a filter.
    pub(super) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Pixels of an output plane.
    pub(super) fn pixels(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Each output pixel is one input pixel: the convolution is a product of matrices as they lie.
    pub(super) fn is_product(&self) -> bool {
        self.kernel == [1, 1] && self.stride == [1, 1] && self.before == [0, 0] && self.after == [0, 0]
    }

    /// The stride-1 convolution that computes the data gradient of this stride-1 convolution from its output gradient and the
    /// flipped filters; `None` where there is none (a stride, or more padding than the kernel reaches).
    pub(super) fn flipped(&self) -> Option<Geometry> {
        if self.stride != [1, 1] {
            return None;
        }
        let around = |axis: usize, zeros: usize| (self.dilation[axis] * (self.kernel[axis] - 1)).checked_sub(zeros);
        let before = [around(0, self.before[0])?, around(1, self.before[1])?];
        let after = [around(0, self.after[0])?, around(1, self.after[1])?];
        let (channels, filters, input, output) = (self.filters, self.channels, self.output, self.input);
        Some(Geometry { channels, filters, input, output, before, after, ..*self })
    }

    /// What the selector asks about. Padding that differs between the sides is rounded down.
    pub(super) fn selector_shape(&self) -> ConvShape {
        let [h, w] = self.input;
        ConvShape::new([self.n, self.groups * self.channels, h, w], self.groups * self.filters, self.kernel)
            .stride(self.stride)
            .pad([self.before[0].min(self.after[0]), self.before[1].min(self.after[1])])
            .dilation(self.dilation)
            .groups(self.groups)
    }

    /// The work that no way of computing it avoids (but Winograd's).
    pub(super) fn cost(&self, tensors: &[&Tensor]) -> Cost {
        let terms = (self.channels * self.taps()) as f64;
        let sums = (self.n * self.groups * self.filters * self.pixels()) as f64;
        let bytes: usize = tensors.iter().map(|t| t.size() * t.dtype().size()).sum();
        Cost { flops: 2.0 * sums * terms, bytes: bytes as f64 }
    }
}

/// How many positions a kernel covers; `None` beyond all addresses.
fn reach(kernel: usize, dilation: usize) -> Option<usize> {
    (kernel - 1).checked_mul(dilation)?.checked_add(1)
}

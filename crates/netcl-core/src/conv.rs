//! The parameters of a convolution as users write them, and its geometry: the same with the operands' lengths, checked once.
//!
//! Everything above works with these two: layers and recorded operations with [`ConvParams`]; kernels, the selector and the
//! tuner with [`ConvGeometry`].

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::launch::Cost;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// How filters move over images.
///
/// ```
/// use netcl_core::conv::{ConvParams, symmetric};
///
/// let halving = ConvParams { stride: [2, 2], padding: symmetric([1, 1]), ..Default::default() };
/// assert_eq!((halving.padding, halving.dilation, halving.groups), ([1; 4], [1, 1], 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvParams {
    /// Steps down and to the right.
    pub stride: [usize; 2],
    /// Zeros at the top, bottom, left and right; [`symmetric`] makes it from one number per axis.
    pub padding: [usize; 4],
    /// Distance between the taps of a filter.
    pub dilation: [usize; 2],
    /// Independent groups of channels.
    pub groups: usize,
}

impl Default for ConvParams {
    fn default() -> Self {
        ConvParams { stride: [1, 1], padding: [0; 4], dilation: [1, 1], groups: 1 }
    }
}

impl ConvParams {
    /// Zeros before the first row and column.
    pub const fn before(&self) -> [usize; 2] {
        [self.padding[0], self.padding[2]]
    }

    /// Zeros after the last row and column.
    pub const fn after(&self) -> [usize; 2] {
        [self.padding[1], self.padding[3]]
    }
}

/// The padding (top, bottom, left, right) with as many zeros on both sides of the rows, and of the columns.
pub const fn symmetric([rows, columns]: [usize; 2]) -> [usize; 4] {
    [rows, rows, columns, columns]
}

/// A convolution of `[n, groups * channels, ..input]` with filters `[groups * filters, channels, ..kernel]` to
/// `[n, groups * filters, ..output]`. Only `n` may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvGeometry {
    /// Images.
    pub n: usize,
    /// Channels of one group.
    pub channels: usize,
    /// Filters of one group.
    pub filters: usize,
    /// Height and width of an image.
    pub input: [usize; 2],
    /// Height and width of a filter.
    pub kernel: [usize; 2],
    /// Height and width of a result.
    pub output: [usize; 2],
    /// How the filters move.
    pub params: ConvParams,
}

impl std::ops::Deref for ConvGeometry {
    type Target = ConvParams;

    fn deref(&self) -> &ConvParams {
        &self.params
    }
}

impl ConvGeometry {
    /// Checks that an input of a shape can be convolved with a weight of a shape.
    ///
    /// ```
    /// use netcl_core::conv::{ConvGeometry, ConvParams, symmetric};
    ///
    /// let params = ConvParams { padding: symmetric([1, 1]), ..Default::default() };
    /// let geometry = ConvGeometry::new("conv2d", &[8, 16, 32, 32].into(), &[64, 16, 3, 3].into(), &params)?;
    /// assert_eq!((geometry.output, geometry.pixels(), geometry.taps()), ([32, 32], 1024, 9));
    /// # Ok::<(), netcl_core::Error>(())
    /// ```
    pub fn new(op: &'static str, x: &Shape, weight: &Shape, params: &ConvParams) -> Result<ConvGeometry> {
        let wrong = |shape: &Shape, why: String| Err(Error::Shape { op, shape: shape.clone(), why });
        let [n, channels, h, w] = **x else {
            return wrong(x, "the input must have four axes: (batch, channels, height, width)".to_owned());
        };
        let [filters, depth, kh, kw] = **weight else {
            let why = "the weight must have four axes: (filters, channels / groups, height, width)".to_owned();
            return wrong(weight, why);
        };
        let groups = params.groups;
        let argument = |what: String| Err(Error::argument(op, what));
        if params.stride.contains(&0) || params.dilation.contains(&0) || groups == 0 {
            return argument(format!(
                "stride {:?}, dilation {:?} and groups {groups} must all be at least 1",
                params.stride, params.dilation
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
        let (before, after) = (params.before(), params.after());
        let (input, kernel) = ([h, w], [kh, kw]);
        let mut output = [0; 2];
        for axis in 0..2 {
            let name = ["height", "width"][axis];
            let lengths = reach(kernel[axis], params.dilation[axis])
                .zip(input[axis].checked_add(before[axis]).and_then(|sum| sum.checked_add(after[axis])));
            let Some((reach, padded)) = lengths.filter(|&(_, padded)| isize::try_from(padded).is_ok()) else {
                return argument(format!("padding or dilation along the {name} is larger than can be addressed"));
            };
            let Some(left) = padded.checked_sub(reach) else {
                let why = format!(
                    "the {name} is {} and {padded} with padding, but a kernel of {} with dilation {} reaches over {reach}; pad \
                     more or take a smaller kernel",
                    input[axis], kernel[axis], params.dilation[axis]
                );
                return wrong(x, why);
            };
            output[axis] = left / params.stride[axis] + 1;
        }
        Ok(ConvGeometry { n, channels: depth, filters: filters / groups, input, kernel, output, params: *params })
    }

    /// The same from lengths: the input's four, the number of filters, and height and width of one.
    pub fn of(
        op: &'static str,
        input: [usize; 4],
        filters: usize,
        [height, width]: [usize; 2],
        params: &ConvParams,
    ) -> Result<ConvGeometry> {
        let depth = input[1] / params.groups.max(1);
        ConvGeometry::new(op, &input.into(), &[filters, depth, height, width].into(), params)
    }

    /// The shape of the images.
    pub fn input_shape(&self) -> Shape {
        [self.n, self.groups * self.channels, self.input[0], self.input[1]].into()
    }

    /// The shape of the filters.
    pub fn weight_shape(&self) -> Shape {
        [self.groups * self.filters, self.channels, self.kernel[0], self.kernel[1]].into()
    }

    /// The shape of the result.
    pub fn output_shape(&self) -> Shape {
        [self.n, self.groups * self.filters, self.output[0], self.output[1]].into()
    }

    /// Taps of a filter.
    pub fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Pixels of an output plane.
    pub fn pixels(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Each output pixel is one input pixel: the convolution is a product of matrices as they lie.
    pub fn is_product(&self) -> bool {
        self.kernel == [1, 1] && self.stride == [1, 1] && self.padding == [0; 4]
    }

    /// Whether Winograd's F(2x2, 3x3) computes it.
    pub fn fits_winograd(&self, dtype: DType) -> bool {
        let moves = (self.stride, self.dilation, self.groups) == ([1, 1], [1, 1], 1);
        self.kernel == [3, 3] && moves && dtype == DType::F32
    }

    /// Whether NVIDIA's tensor copy engine reads its channels-last images: the channels of a pixel begin at multiples of 16 bytes.
    pub fn fits_units(&self, dtype: DType) -> bool {
        let whole = |channels: usize| (channels * dtype.size()).is_multiple_of(16);
        let step = |step: &usize| *step <= 8;
        // Their kernels count pixels and places in 32 bits.
        let shapes = [self.input_shape(), self.output_shape()];
        let small =
            shapes.iter().all(|shape| shape.size() < 1 << 31) && self.padding.iter().all(|&zeros| zeros < 1 << 16);
        matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
            && self.groups == 1
            && whole(self.channels)
            && whole(self.filters)
            && self.stride.iter().all(step)
            && small
    }

    /// The stride-1 convolution that computes the data gradient of this stride-1 convolution from its output gradient and the
    /// flipped filters; `None` where there is none (a stride, or more padding than the kernel reaches).
    pub fn flipped(&self) -> Option<ConvGeometry> {
        if self.stride != [1, 1] {
            return None;
        }
        let around = |axis: usize, zeros: usize| (self.dilation[axis] * (self.kernel[axis] - 1)).checked_sub(zeros);
        let [top, bottom, left, right] = self.padding;
        let padding = [around(0, top)?, around(0, bottom)?, around(1, left)?, around(1, right)?];
        Some(ConvGeometry { params: ConvParams { padding, ..self.params }, ..self.swapped() })
    }

    /// Multiply-adds.
    pub fn multiply_adds(&self) -> usize {
        let sums = [self.groups, self.filters, self.pixels(), self.channels, self.taps()];
        sums.into_iter().fold(self.n, usize::saturating_mul)
    }

    /// The same with input and output, and channels and filters, exchanged: of a 1x1 convolution its data gradient.
    pub fn swapped(&self) -> ConvGeometry {
        ConvGeometry { channels: self.filters, filters: self.channels, input: self.output, output: self.input, ..*self }
    }

    /// The work that no way of computing it avoids (but Winograd's).
    pub fn cost(&self, tensors: &[&Tensor]) -> Cost {
        let bytes: usize = tensors.iter().map(|t| t.size() * t.dtype().size()).sum();
        Cost { flops: 2.0 * self.multiply_adds() as f64, bytes: bytes as f64 }
    }
}

/// How many positions a kernel covers; `None` beyond all addresses.
fn reach(kernel: usize, dilation: usize) -> Option<usize> {
    (kernel - 1).checked_mul(dilation)?.checked_add(1)
}

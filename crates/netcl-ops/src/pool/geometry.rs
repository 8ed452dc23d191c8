//! Windows along an axis: where they lie, which of them cover an element, how many elements they count.

use std::ops::Range;

use netcl_core::shape::Shape;
use netcl_core::{Error, Result};

/// The windows of a pooling over `N` axes.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::pool::{Window, max_pool2d};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1, 3, 3])?;
/// let window = Window { stride: [1, 1], ..Window::new([2, 2]) };
/// assert_eq!(max_pool2d(&x, &window)?.output.to_host::<f32>()?, [5.0, 6.0, 8.0, 9.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window<const N: usize> {
    /// Elements of a window along each axis.
    pub kernel: [usize; N],
    /// The distance between windows.
    pub stride: [usize; N],
    /// Elements added on both sides: minus infinity to a maximum, zero to an average. At most half a window.
    pub padding: [usize; N],
    /// The distance between the elements of a window.
    pub dilation: [usize; N],
    /// Whether a last window that reaches beyond the end counts, as long as it begins inside.
    pub ceil_mode: bool,
}

impl<const N: usize> Window<N> {
    /// Windows side by side, without padding.
    pub fn new(kernel: [usize; N]) -> Self {
        Window { kernel, stride: kernel, padding: [0; N], dilation: [1; N], ceil_mode: false }
    }
}

impl Window<1> {
    /// The same for planes of height 1.
    pub(super) fn flat(&self) -> Window<2> {
        Window {
            kernel: [1, self.kernel[0]],
            stride: [1, self.stride[0]],
            padding: [0, self.padding[0]],
            dilation: [1, self.dilation[0]],
            ceil_mode: self.ceil_mode,
        }
    }
}

/// Windows along one axis. Adaptive ones have only lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) dilation: usize,
}

/// Windows over a plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plane {
    /// Height and width.
    pub(super) axes: [Axis; 2],
    pub(super) adaptive: bool,
}

impl Plane {
    /// Fixed windows over planes of a shape; its last two lengths are `lengths`.
    pub(super) fn fixed(op: &'static str, shape: &Shape, lengths: [usize; 2], window: &Window<2>) -> Result<Plane> {
        let axis = |a: usize| {
            let Window { kernel, stride, padding, dilation, ceil_mode } = *window;
            Axis::fixed(op, shape, lengths[a], [kernel[a], stride[a], padding[a], dilation[a]], ceil_mode)
        };
        Ok(Plane { axes: [axis(0)?, axis(1)?], adaptive: false })
    }

    /// So many windows that cover planes evenly.
    pub(super) fn adaptive(op: &'static str, shape: &Shape, lengths: [usize; 2], outputs: [usize; 2]) -> Result<Plane> {
        for (input, output) in lengths.into_iter().zip(outputs) {
            if output == 0 {
                return Err(Error::argument(op, format!("an output of {outputs:?} has no elements; use at least 1")));
            }
            check_length(op, shape, input)?;
        }
        let axis =
            |a: usize| Axis { input: lengths[a], output: outputs[a], kernel: 1, stride: 1, padding: 0, dilation: 1 };
        Ok(Plane { axes: [axis(0), axis(1)], adaptive: true })
    }

    /// Height and width of the results.
    pub(super) fn outputs(&self) -> [usize; 2] {
        self.axes.map(|axis| axis.output)
    }
}

fn check_length(op: &'static str, shape: &Shape, length: usize) -> Result<()> {
    // Positions inside a plane are 32-bit numbers.
    if length == 0 || length > 1 << 30 {
        let why = format!("an axis of length {length} cannot be pooled");
        return Err(Error::Shape { op, shape: shape.clone(), why });
    }
    Ok(())
}

impl Axis {
    fn fixed(
        op: &'static str,
        shape: &Shape,
        input: usize,
        [kernel, stride, padding, dilation]: [usize; 4],
        ceil_mode: bool,
    ) -> Result<Axis> {
        check_length(op, shape, input)?;
        for (what, value) in [("kernel", kernel), ("stride", stride), ("dilation", dilation)] {
            if value == 0 || value > 1 << 30 {
                return Err(Error::argument(op, format!("the {what} is {value}; use at least 1")));
            }
        }
        let reach = kernel.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        if padding > reach / 2 {
            let what =
                format!("the padding {padding} is more than half of the window, which reaches over {reach} elements");
            return Err(Error::argument(op, what));
        }
        let room = input + 2 * padding;
        if reach > room {
            let why = format!("a window over {reach} elements does not fit {input} padded by {padding} on both sides");
            return Err(Error::Shape { op, shape: shape.clone(), why });
        }
        let left = room - reach;
        let mut output = left / stride + 1;
        // One more window for what is left, if it begins inside the input or the padding before it.
        if ceil_mode && !left.is_multiple_of(stride) && output * stride < input + padding {
            output += 1;
        }
        Ok(Axis { input, output, kernel, stride, padding, dilation })
    }

    /// The elements of window `o` that exist, for windows without dilation.
    pub(super) fn covered(&self, o: usize, adaptive: bool) -> Range<usize> {
        if adaptive {
            return o * self.input / self.output..((o + 1) * self.input).div_ceil(self.output);
        }
        let start = o * self.stride;
        start.saturating_sub(self.padding)..(start + self.kernel).saturating_sub(self.padding).min(self.input)
    }

    /// How many elements a window counts.
    pub(super) fn counted(&self, o: usize, adaptive: bool, include_padding: bool) -> usize {
        if adaptive || !include_padding {
            return self.covered(o, adaptive).len();
        }
        // Beyond the padding there is nothing, not even zeros.
        self.kernel.min(self.input + 2 * self.padding - o * self.stride)
    }

    /// Element `k` of windows: which windows have it, and where it lies for the first of them.
    pub(super) fn tap(&self, k: usize) -> (Range<usize>, usize) {
        let at = k * self.dilation;
        let first = self.padding.saturating_sub(at).div_ceil(self.stride);
        let end = (self.input + self.padding).saturating_sub(at).div_ceil(self.stride).min(self.output);
        (first..end.max(first), (first * self.stride + at).saturating_sub(self.padding))
    }
}

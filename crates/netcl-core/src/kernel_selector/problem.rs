//! Problems sorted by their lengths: what is measured for one of a class serves all of it.

use std::fmt;

use super::config::KernelVariant;
use crate::conv::{ConvGeometry, ConvParams, symmetric};
use crate::dtype::DType;

/// Lengths below this are one class.
const SHORTEST: usize = 16;
/// Lengths above this are one class.
const LONGEST: usize = 1 << 14;

/// An operation, a class of lengths, and a dtype: what a tuner's result is kept by.
///
/// Lengths are rounded up to powers of two, between 16 and 16384; the geometry of a filter counts as it is.
///
/// ```
/// use netcl_core::dtype::DType;
/// use netcl_core::kernel_selector::Problem;
///
/// let problem = Problem::matmul(1000, 700, 64, DType::F32);
/// assert_eq!(problem.to_string(), "matmul 1024x1024x64 float32");
/// assert_eq!(problem, Problem::matmul(1024, 513, 60, DType::F32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    lengths: Lengths,
    dtype: DType,
}

/// Rounded lengths. Looked up before every launch, so nothing here is text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lengths {
    Matmul([usize; 3]),
    Conv2d { input: [usize; 4], filters: usize, kernel: [usize; 2], params: ConvParams },
}

impl Problem {
    /// A product of `m` x `k` by `k` x `n`.
    pub fn matmul(m: usize, n: usize, k: usize, dtype: DType) -> Problem {
        Problem { lengths: Lengths::Matmul([m, n, k].map(class)), dtype }
    }

    /// A convolution. Padding that differs between the sides is rounded down.
    pub fn conv2d(g: &ConvGeometry, dtype: DType) -> Problem {
        let input = [g.n, g.groups * g.channels, g.input[0], g.input[1]].map(class);
        let (before, after) = (g.before(), g.after());
        let padding = symmetric([before[0].min(after[0]), before[1].min(after[1])]);
        let params = ConvParams { padding, ..g.params };
        let lengths = Lengths::Conv2d { input, filters: class(g.groups * g.filters), kernel: g.kernel, params };
        Problem { lengths, dtype }
    }

    /// `"matmul"` or `"conv2d"`.
    pub fn op(&self) -> &'static str {
        match self.lengths {
            Lengths::Matmul(_) => "matmul",
            Lengths::Conv2d { .. } => "conv2d",
        }
    }

    /// The class of lengths: `1024x1024x64`.
    pub fn shapes(&self) -> String {
        match &self.lengths {
            Lengths::Matmul([m, n, k]) => format!("{m}x{n}x{k}"),
            Lengths::Conv2d { input: [n, c, h, w], filters, kernel, params } => {
                let [kernel, stride, pad, dilation] =
                    [*kernel, params.stride, params.before(), params.dilation].map(|[y, x]| format!("{y}x{x}"));
                let groups = params.groups;
                format!(
                    "{n}x{c}x{h}x{w} {filters} filters {kernel} stride {stride} pad {pad} dilation {dilation} groups {groups}"
                )
            }
        }
    }

    /// The operands' dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether a variant computes this operation.
    pub fn concerns(&self, variant: KernelVariant) -> bool {
        variant.op() == self.op()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.op(), self.shapes(), self.dtype)
    }
}

fn class(length: usize) -> usize {
    length.clamp(SHORTEST, LONGEST).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two_within_bounds() {
        assert_eq!([0, 1, 16, 17, 1000, 16384, 1 << 20].map(class), [16, 16, 16, 32, 1024, 16384, 16384]);
        let conv = |stride| {
            let params = ConvParams { stride, padding: symmetric([1, 1]), ..Default::default() };
            ConvGeometry::of("conv2d", [30, 64, 32, 32], 100, [3, 3], &params).unwrap()
        };
        let halving = Problem::conv2d(&conv([2, 2]), DType::F16);
        let conv = Problem::conv2d(&conv([1, 1]), DType::F16);
        let text = "conv2d 32x64x32x32 128 filters 3x3 stride 1x1 pad 1x1 dilation 1x1 groups 1 float16";
        assert_eq!(conv.to_string(), text);
        assert_ne!(conv, halving);
        assert!(conv.concerns(KernelVariant::Conv2dWinograd));
        assert!(!Problem::matmul(8, 8, 8, DType::F32).concerns(KernelVariant::Conv2dWinograd));
    }
}

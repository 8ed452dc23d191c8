//! Problems sorted by their lengths: what is measured for one of a class serves all of it.

use std::fmt;

use super::ConvShape;
use super::config::KernelVariant;
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    op: &'static str,
    shapes: String,
    dtype: DType,
}

impl Problem {
    /// A product of `m` x `k` by `k` x `n`.
    pub fn matmul(m: usize, n: usize, k: usize, dtype: DType) -> Problem {
        Problem { op: "matmul", shapes: format!("{}x{}x{}", class(m), class(n), class(k)), dtype }
    }

    /// A convolution.
    pub fn conv2d(shape: ConvShape, dtype: DType) -> Problem {
        let [n, c, h, w] = shape.input.map(class);
        let pair = |[a, b]: [usize; 2]| format!("{a}x{b}");
        let shapes = format!(
            "{n}x{c}x{h}x{w} {} filters {} stride {} pad {} dilation {} groups {}",
            class(shape.filters),
            pair(shape.kernel),
            pair(shape.stride),
            pair(shape.pad),
            pair(shape.dilation),
            shape.groups
        );
        Problem { op: "conv2d", shapes, dtype }
    }

    /// `"matmul"` or `"conv2d"`.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// The class of lengths: `1024x1024x64`.
    pub fn shapes(&self) -> &str {
        &self.shapes
    }

    /// The operands' dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether a variant computes this operation.
    pub fn concerns(&self, variant: KernelVariant) -> bool {
        op_of(variant) == self.op
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.op, self.shapes, self.dtype)
    }
}

fn class(length: usize) -> usize {
    length.clamp(SHORTEST, LONGEST).next_power_of_two()
}

/// The operation that a variant computes.
pub(super) fn op_of(variant: KernelVariant) -> &'static str {
    use KernelVariant::*;
    match variant {
        MatmulNaive | MatmulTiled | MatmulRegisterTiled | MatmulVectorized => "matmul",
        Conv2dNaive | Conv2dIm2col | Conv2dImplicitGemm | Conv2dTiledLocal | Conv2dWinograd => "conv2d",
        ElementwiseScalar | ElementwiseVectorized => "elementwise",
        ReductionSequential | ReductionParallel | ReductionWorkgroup => "reduction",
        BatchnormNaive | BatchnormFused => "batchnorm",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two_within_bounds() {
        assert_eq!([0, 1, 16, 17, 1000, 16384, 1 << 20].map(class), [16, 16, 16, 32, 1024, 16384, 16384]);
        let conv = ConvShape::new([30, 64, 32, 32], 100, [3, 3]).pad([1, 1]);
        let text = "conv2d 32x64x32x32 128 filters 3x3 stride 1x1 pad 1x1 dilation 1x1 groups 1 float16";
        assert_eq!(Problem::conv2d(conv, DType::F16).to_string(), text);
        assert_ne!(Problem::conv2d(conv, DType::F16), Problem::conv2d(conv.stride([2, 2]), DType::F16));
        assert!(Problem::conv2d(conv, DType::F16).concerns(KernelVariant::Conv2dWinograd));
        assert!(!Problem::matmul(8, 8, 8, DType::F32).concerns(KernelVariant::Conv2dWinograd));
    }
}

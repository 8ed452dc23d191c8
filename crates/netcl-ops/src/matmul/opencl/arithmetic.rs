//! Which numbers matrix units multiply.

use netcl_core::backend::opencl::tensor_map::MapElement;
use netcl_core::dtype::DType;
use netcl_core::precision::MatmulPrecision;

use super::super::Variant;

/// Which numbers the matrix units multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    /// float16 operands as they are.
    F16,
    /// bfloat16 operands as they are.
    BF16,
    /// float32 operands, rounded to 11 bits on their way.
    Tf32,
    /// float32 operands, rounded to bfloat16.
    Rounded,
    /// float32 operands as three bfloat16 parts, six products of which add up to a float32 product.
    Split,
}

impl Arithmetic {
    /// What a kernel does with operands of a dtype; `None` where it takes no such operands.
    pub(crate) fn of(variant: Variant, dtype: DType, precision: MatmulPrecision) -> Option<Arithmetic> {
        match (variant, dtype) {
            (Variant::Wgmma | Variant::Mma, DType::F16) => Some(Arithmetic::F16),
            (Variant::Wgmma | Variant::Mma, DType::BF16) => Some(Arithmetic::BF16),
            (Variant::Wgmma | Variant::Mma, DType::F32) if precision == MatmulPrecision::Medium => {
                Some(Arithmetic::Rounded)
            }
            (Variant::Wgmma | Variant::Mma, DType::F32) => Some(Arithmetic::Tf32),
            (Variant::WgmmaSplit | Variant::MmaSplit, DType::F32) => Some(Arithmetic::Split),
            _ => None,
        }
    }

    /// The elements that are copied to local memory.
    pub(crate) fn element(self) -> MapElement {
        match self {
            Arithmetic::F16 => MapElement::F16,
            Arithmetic::Tf32 => MapElement::Tf32,
            Arithmetic::BF16 | Arithmetic::Rounded | Arithmetic::Split => MapElement::BF16,
        }
    }

    /// Bytes of such an element.
    pub(crate) fn size(self) -> usize {
        self.element().size()
    }

    /// Parts of each operand.
    pub(crate) fn parts(self) -> usize {
        if self == Arithmetic::Split { 3 } else { 1 }
    }

    /// The name of the elements in a matrix instruction.
    pub(super) fn name(self) -> &'static str {
        match self.element() {
            MapElement::F16 => "f16",
            MapElement::BF16 => "bf16",
            MapElement::F32 | MapElement::Tf32 => "tf32",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dtype_has_its_numbers() {
        let of = Arithmetic::of;
        let [highest, high, medium] = MatmulPrecision::ALL;
        for (whole, split) in [(Variant::Wgmma, Variant::WgmmaSplit), (Variant::Mma, Variant::MmaSplit)] {
            assert_eq!(of(whole, DType::F32, high), Some(Arithmetic::Tf32));
            assert_eq!(of(whole, DType::F32, medium), Some(Arithmetic::Rounded));
            assert_eq!(of(split, DType::F32, highest), Some(Arithmetic::Split));
            assert_eq!(of(whole, DType::BF16, medium), Some(Arithmetic::BF16));
            assert_eq!(of(whole, DType::F64, high), None);
            assert_eq!(of(split, DType::F16, highest), None);
        }
        assert_eq!(of(Variant::RegisterTiled, DType::F32, high), None);
    }
}

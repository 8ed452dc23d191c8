//! Variants and their tile and launch parameters.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! variants {
    ($($op:literal: $($variant:ident = $name:literal, $doc:literal;)*)*) => {
        /// Every implementation the selector knows about. In tables they are written in lower case (`matmul_tiled`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum KernelVariant {
            $($(#[doc = $doc] $variant,)*)*
        }

        impl KernelVariant {
            /// All variants, in the order of the documentation.
            pub const ALL: &'static [KernelVariant] = &[$($(KernelVariant::$variant),*),*];

            /// The documented name: `"MATMUL_TILED"`.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(KernelVariant::$variant => $name,)*)*
                }
            }

            /// The operation that it computes: `"matmul"`.
            pub const fn op(self) -> &'static str {
                match self {
                    $($(KernelVariant::$variant => $op,)*)*
                }
            }
        }
    };
}

variants! {
    "matmul":
    MatmulNaive = "MATMUL_NAIVE", "One result per work-item, no local memory.";
    MatmulTiled = "MATMUL_TILED", "Tiles of both factors in local memory.";
    MatmulRegisterTiled = "MATMUL_REGISTER_TILED", "Tiles in local memory, and a block of results in registers.";
    MatmulVectorized = "MATMUL_VECTORIZED", "Vector loads of rows, no local memory.";
    MatmulStrip = "MATMUL_STRIP", "A few rows or columns: the larger operand is read once, in vectors.";
    MatmulMma = "MATMUL_MMA", "NVIDIA's matrix units since Ampere, on operands as they are (float32 as tf32).";
    MatmulMmaSplit = "MATMUL_MMA_SPLIT", "The same on float32 operands in three bfloat16 parts: as exact as float32.";
    MatmulWgmma = "MATMUL_WGMMA", "Hopper's matrix units, on operands as they are (float32 as tf32).";
    MatmulWgmmaSplit = "MATMUL_WGMMA_SPLIT", "The same on float32 operands in three bfloat16 parts.";
    "conv2d":
    Conv2dNaive = "CONV2D_NAIVE", "One result per work-item.";
    Conv2dIm2col = "CONV2D_IM2COL", "Patches written out as a matrix, then a product.";
    Conv2dImplicitGemm = "CONV2D_IMPLICIT_GEMM", "A product whose loader finds the patches.";
    Conv2dTiledLocal = "CONV2D_TILED_LOCAL", "An input tile in local memory, for small outputs.";
    Conv2dWinograd = "CONV2D_WINOGRAD", "3x3 filters with fewer multiplications.";
    Conv2dDepthwise = "CONV2D_DEPTHWISE", "Filters that see one channel each: every pixel is read once.";
    Conv2dUnits = "CONV2D_UNITS", "Hopper's matrix units read windows of channels-last images where they are.";
    "elementwise":
    ElementwiseScalar = "ELEMENTWISE_SCALAR", "One element per work-item.";
    ElementwiseVectorized = "ELEMENTWISE_VECTORIZED", "A vector of elements per work-item.";
    "reduction":
    ReductionSequential = "REDUCTION_SEQUENTIAL", "One work-item per result.";
    ReductionParallel = "REDUCTION_PARALLEL", "One work-group per result.";
    ReductionWorkgroup = "REDUCTION_WORKGROUP", "Several work-groups per result, in stages.";
    "batchnorm":
    BatchnormNaive = "BATCHNORM_NAIVE", "Statistics and normalisation, each on its own.";
    BatchnormFused = "BATCHNORM_FUSED", "Normalisation and ReLU in one pass, for inference.";
}

impl fmt::Display for KernelVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A further parameter of one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Extra {
    /// A switch.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A float.
    Float(f64),
    /// A word.
    Text(String),
}

/// The tile and launch parameters of a chosen kernel.
///
/// Where tiles are used, `tile_m * tile_n` results are made by `local_size_2d` work-items with `work_per_thread` results each.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelConfig {
    /// The implementation.
    pub variant: KernelVariant,
    /// Rows of a work-group's tile.
    pub tile_m: usize,
    /// Columns of a work-group's tile.
    pub tile_n: usize,
    /// Depth of a tile: how much of the sum is in local memory at once.
    pub tile_k: usize,
    /// Results per work-item.
    pub work_per_thread: usize,
    /// Work-group size of one-dimensional launches.
    pub local_size_1d: usize,
    /// Work-group size of two-dimensional launches.
    pub local_size_2d: (usize, usize),
    /// Tiles go through local memory.
    pub use_local_memory: bool,
    /// Loads are vectors.
    pub use_vectorization: bool,
    /// Elements per vector load.
    pub vector_width: usize,
    /// Further parameters of the variant.
    pub extra: BTreeMap<String, Extra>,
}

impl KernelConfig {
    /// The documented defaults for a variant.
    pub fn new(variant: KernelVariant) -> KernelConfig {
        KernelConfig {
            variant,
            tile_m: 32,
            tile_n: 32,
            tile_k: 8,
            work_per_thread: 4,
            local_size_1d: 256,
            local_size_2d: (16, 16),
            use_local_memory: true,
            use_vectorization: true,
            vector_width: 4,
            extra: BTreeMap::new(),
        }
    }
}

/// `MATMUL_REGISTER_TILED 128x64x16, 32 each, groups of 16x16`: the variant and what makes it differ from others of its kind.
impl fmt::Display for KernelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use KernelVariant::*;
        f.write_str(self.variant.name())?;
        let (x, y) = self.local_size_2d;
        match self.variant {
            MatmulRegisterTiled | Conv2dImplicitGemm => {
                let (m, n, k) = (self.tile_m, self.tile_n, self.tile_k);
                write!(f, " {m}x{n}x{k}, {} each, groups of {x}x{y}", self.work_per_thread)?;
            }
            MatmulTiled => write!(f, " {0}x{0}", self.tile_m)?,
            MatmulVectorized => write!(f, " {}x{}, vectors of {}", self.tile_m, self.tile_n, self.vector_width)?,
            _ => {}
        }
        for (name, value) in &self.extra {
            match value {
                Extra::Bool(true) => write!(f, ", {name}")?,
                Extra::Bool(false) => {}
                Extra::Int(value) => write!(f, ", {name} {value}")?,
                Extra::Float(value) => write!(f, ", {name} {value}")?,
                Extra::Text(value) => write!(f, ", {name} {value}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_defaults_are_those_of_the_documentation() {
        let names: Vec<&str> = KernelVariant::ALL.iter().map(|variant| variant.name()).collect();
        let expected = [
            "MATMUL_NAIVE",
            "MATMUL_TILED",
            "MATMUL_REGISTER_TILED",
            "MATMUL_VECTORIZED",
            "MATMUL_STRIP",
            "MATMUL_MMA",
            "MATMUL_MMA_SPLIT",
            "MATMUL_WGMMA",
            "MATMUL_WGMMA_SPLIT",
            "CONV2D_NAIVE",
            "CONV2D_IM2COL",
            "CONV2D_IMPLICIT_GEMM",
            "CONV2D_TILED_LOCAL",
            "CONV2D_WINOGRAD",
            "CONV2D_DEPTHWISE",
            "CONV2D_UNITS",
            "ELEMENTWISE_SCALAR",
            "ELEMENTWISE_VECTORIZED",
            "REDUCTION_SEQUENTIAL",
            "REDUCTION_PARALLEL",
            "REDUCTION_WORKGROUP",
            "BATCHNORM_NAIVE",
            "BATCHNORM_FUSED",
        ];
        assert_eq!(names, expected);
        let config = KernelConfig::new(KernelVariant::MatmulTiled);
        assert_eq!((config.tile_m, config.tile_n, config.tile_k, config.work_per_thread), (32, 32, 8, 4));
        assert_eq!((config.local_size_1d, config.local_size_2d, config.vector_width), (256, (16, 16), 4));
        assert!(config.use_local_memory && config.use_vectorization && config.extra.is_empty());
    }
}

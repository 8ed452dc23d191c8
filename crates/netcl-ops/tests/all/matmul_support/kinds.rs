//! The kernels of matrix units with the operands that they take, how far each may be off, and numbers to try them with.

use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;
use netcl_ops::matmul::{MatmulOptions, Variant};

use crate::support::{epsilon, random};

/// A kernel with operands that it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kind {
    pub(crate) variant: Variant,
    pub(crate) dtype: DType,
    pub(crate) precision: MatmulPrecision,
}

const fn kind(variant: Variant, dtype: DType, precision: MatmulPrecision) -> Kind {
    Kind { variant, dtype, precision }
}

const KINDS: [Kind; 10] = [
    kind(Variant::Wgmma, DType::F16, MatmulPrecision::Highest),
    kind(Variant::Wgmma, DType::BF16, MatmulPrecision::Highest),
    kind(Variant::Wgmma, DType::F32, MatmulPrecision::High),
    kind(Variant::Wgmma, DType::F32, MatmulPrecision::Medium),
    kind(Variant::WgmmaSplit, DType::F32, MatmulPrecision::Highest),
    kind(Variant::Mma, DType::F16, MatmulPrecision::Highest),
    kind(Variant::Mma, DType::BF16, MatmulPrecision::Highest),
    kind(Variant::Mma, DType::F32, MatmulPrecision::High),
    kind(Variant::Mma, DType::F32, MatmulPrecision::Medium),
    kind(Variant::MmaSplit, DType::F32, MatmulPrecision::Highest),
];

/// The kinds that a device runs.
pub(crate) fn kinds(device: &DeviceHandle) -> Vec<Kind> {
    KINDS.into_iter().filter(|kind| kind.variant.runs_on(&device.queue, kind.dtype)).collect()
}

/// Those of them that multiply float32 operands in parts.
pub(crate) fn splits(device: &DeviceHandle) -> Vec<Kind> {
    kinds(device).into_iter().filter(|kind| kind.by_parts()).collect()
}

impl Kind {
    pub(crate) fn by_parts(self) -> bool {
        matches!(self.variant, Variant::WgmmaSplit | Variant::MmaSplit)
    }

    pub(crate) fn options<'e>(self) -> MatmulOptions<'e> {
        MatmulOptions { variant: Some(self.variant), precision: Some(self.precision), ..Default::default() }
    }

    /// How far a sum of `k` terms may be off, as a part of the sum of the terms' magnitudes.
    fn bound(self, k: usize) -> f64 {
        // Matrix units cut low bits off when they add: up to one unit for every 16 terms.
        let adding = (k / 16 + 8) as f64 * 2f64.powi(-23);
        match self.precision {
            _ if self.by_parts() => (k / 32 + 8) as f64 * 2f64.powi(-24),
            _ if self.dtype != DType::F32 => adding,
            // Both operands are rounded, by half a unit of their 8 or 11 bits.
            MatmulPrecision::Medium => 2f64.powi(-7) + adding,
            _ => 2f64.powi(-10) + adding,
        }
    }

    /// Every element within the bound and the rounding of the result's own type.
    pub(crate) fn check(self, got: &Tensor, sums: &[f64], sizes: &[f64], k: usize) -> Result<(), String> {
        let values = got.to_f64_vec().map_err(|e| e.to_string())?;
        if values.len() != sums.len() {
            return Err(format!("shape {} instead of {} elements", got.shape(), sums.len()));
        }
        let out = epsilon(got.dtype());
        for (i, ((&g, &e), &size)) in values.iter().zip(sums).zip(sizes).enumerate() {
            let bound = self.bound(k) * size + out * e.abs() + 1e-7 * f64::from(u8::from(out > 1e-4));
            if g.is_nan() || (g - e).abs() > bound {
                return Err(format!("element {i} is {g:e}, expected {e:e} within {bound:e}"));
            }
        }
        Ok(())
    }
}

/// Operands in the three ways that matter to sums: of either sign, all positive, of widely different sizes.
pub(crate) fn numbers(n: usize, seed: u64, way: &str) -> Vec<f64> {
    let values = random(n, seed, (-1.0, 1.0));
    let exponents = random(n, seed + 100, (-20.0, 20.0));
    let number = |(x, e): (f64, f64)| match way {
        "positive" => x.abs(),
        "wide" => x * e.floor().exp2(),
        _ => x,
    };
    values.into_iter().zip(exponents).map(number).collect()
}

/// The product by one fused multiply-add in float32 after the other.
pub(crate) fn plain_float32(a: &Tensor, b: &Tensor) -> Vec<f32> {
    let (n, k) = (b.shape()[1], b.shape()[0]);
    let (va, vb) = (a.to_host::<f32>().unwrap(), b.to_host::<f32>().unwrap());
    let mut sums = vec![0.0f32; va.len() / k * n];
    for (sums, row) in sums.chunks_mut(n).zip(va.chunks(k)) {
        for (x, line) in row.iter().zip(vb.chunks(n)) {
            for (sum, y) in sums.iter_mut().zip(line) {
                *sum = (f64::from(*x) * f64::from(*y) + f64::from(*sum)) as f32;
            }
        }
    }
    sums
}

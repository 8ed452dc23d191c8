//! Start values that are computed on the host, from the native CPU's random numbers: the same bits for every device.

use netcl_autograd::host::norm_cdf;
use netcl_autograd::ops::random::{normal, uniform};
use netcl_autograd::{DType, Error, Generator, Result, manager};

/// Normal numbers of which only those between two bounds exist.
pub(super) fn truncated(
    n: usize,
    (mean, std): (f64, f64),
    (low, high): (f64, f64),
    generator: Option<&mut Generator>,
) -> Result<Vec<f64>> {
    let sensible = mean.is_finite() && std.is_finite() && std >= 0.0 && low < high;
    if !sensible {
        let what = format!(
            "a normal distribution of mean {mean} and deviation {std} cannot be cut to [{low}, {high}]; use finite numbers, a \
             deviation that is not negative and bounds in order"
        );
        return Err(Error::argument("init", what));
    }
    let shares = uniform(&manager().cpu().queue, [n], DType::F64, 0.0, 1.0, generator)?.to_host::<f64>()?;
    if std == 0.0 {
        return Ok(vec![mean.clamp(low, high); n]);
    }
    // Far in the upper tail probabilities are too close to 1 to be told apart: the lower tail is its mirror image.
    let sign = if low > mean { -1.0 } else { 1.0 };
    let below = |bound: f64| norm_cdf(sign * (bound - mean) / std);
    let (first, last) = if sign > 0.0 { (below(low), below(high)) } else { (below(high), below(low)) };
    if first >= last {
        let what = format!(
            "the numbers from {low} to {high} are too far from the mean {mean} of a normal distribution of deviation {std}"
        );
        return Err(Error::argument("init", what));
    }
    let value = |share: f64| mean + sign * std * quantile((first + share * (last - first)).clamp(first, last));
    Ok(shares.into_iter().map(|share| value(share).clamp(low, high)).collect())
}

/// Where the standard normal distribution reaches a probability (Wichura's algorithm AS 241, to 16 digits).
fn quantile(p: f64) -> f64 {
    let ratio = |x: f64, above: [f64; 8], below: [f64; 8]| {
        let polynomial = |factors: [f64; 8]| factors.into_iter().rev().fold(0.0, |sum, factor| sum * x + factor);
        polynomial(above) / polynomial(below)
    };
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * ratio(0.180625 - q * q, CENTRE[0], CENTRE[1]);
    }
    let tail = (-p.min(1.0 - p).ln()).sqrt();
    let size = if tail <= 5.0 { ratio(tail - 1.6, TAIL[0], TAIL[1]) } else { ratio(tail - 5.0, FAR[0], FAR[1]) };
    size.copysign(q)
}

const CENTRE: [[f64; 8]; 2] = [
    [
        3.387_132_872_796_366_5,
        133.141_667_891_784_38,
        1_971.590_950_306_551_3,
        13_731.693_765_509_46,
        45_921.953_931_549_87,
        67_265.770_927_008_7,
        33_430.575_583_588_13,
        2_509.080_928_730_122_7,
    ],
    [
        1.0,
        42.313_330_701_600_91,
        687.187_007_492_057_9,
        5_394.196_021_424_751,
        21_213.794_301_586_597,
        39_307.895_800_092_71,
        28_729.085_735_721_943,
        5_226.495_278_852_854,
    ],
];
const TAIL: [[f64; 8]; 2] = [
    [
        1.423_437_110_749_683_5,
        4.630_337_846_156_546,
        5.769_497_221_460_691,
        3.647_848_324_763_204_5,
        1.270_458_252_452_368_4,
        0.241_780_725_177_450_6,
        0.022_723_844_989_269_184,
        7.745_450_142_783_414e-4,
    ],
    [
        1.0,
        2.053_191_626_637_759,
        1.676_384_830_183_803_8,
        0.689_767_334_985_1,
        0.148_103_976_427_480_08,
        0.015_198_666_563_616_457,
        5.475_938_084_995_345e-4,
        1.050_750_071_644_416_9e-9,
    ],
];
const FAR: [[f64; 8]; 2] = [
    [
        6.657_904_643_501_103,
        5.463_784_911_164_114,
        1.784_826_539_917_291_3,
        0.296_560_571_828_504_87,
        0.026_532_189_526_576_124,
        0.001_242_660_947_388_078_4,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288_1e-7,
    ],
    [
        1.0,
        0.599_832_206_555_888,
        0.136_929_880_922_735_8,
        0.014_875_361_290_850_615,
        7.868_691_311_456_133e-4,
        1.846_318_317_510_054_7e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ],
];

/// A matrix with orthonormal rows, or columns where there are fewer of them, uniformly among all of those; times a factor.
pub(super) fn orthogonal(
    rows: usize,
    columns: usize,
    factor: f64,
    generator: Option<&mut Generator>,
) -> Result<Vec<f64>> {
    let (count, length) = (rows.min(columns), rows.max(columns));
    let mut values =
        normal(&manager().cpu().queue, [count, length], DType::F64, 0.0, 1.0, generator)?.to_host::<f64>()?;
    for row in 0..count {
        let (done, rest) = values.split_at_mut(row * length);
        let own = &mut rest[..length];
        // Twice, for what rounding leaves of the other directions the first time.
        for _ in 0..2 {
            for other in done.chunks_exact(length) {
                let along: f64 = own.iter().zip(other).map(|(a, b)| a * b).sum();
                own.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
            }
        }
        let norm = own.iter().map(|a| a * a).sum::<f64>().sqrt();
        own.iter_mut().for_each(|a| *a /= norm);
    }
    let at = |row: usize, column: usize| {
        if rows <= columns { values[row * length + column] } else { values[column * length + row] }
    };
    Ok((0..rows * columns).map(|i| factor * at(i / columns, i % columns)).collect())
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_known() {
        for (p, expected) in [
            (0.5, 0.0),
            (0.975, 1.959_963_984_540_054),
            (0.001, -3.090_232_306_167_813_6),
            (1e-12, -7.034_483_825_301_131),
            (0.2, -0.841_621_233_572_914_2),
        ] {
            let got = quantile(p);
            assert!((got - expected).abs() <= 1e-14 * (1.0 + expected.abs()), "{p}: {got} for {expected}");
        }
    }
}

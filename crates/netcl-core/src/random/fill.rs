//! Filling slices with random numbers, in parallel.

use super::{Generator, Philox};
use crate::backend::cpu::threads::parallel_chunks_mut;
use crate::error::{Error, Result};
use crate::host;

/// Blocks computed side by side: enough that a round need not wait for the products of the same round.
const LANES: usize = 16;
/// Words made at a time before they are converted; they stay in the first-level cache.
const STAGE: usize = 1024;
/// Elements a thread takes at least: a multiple of the stage, so that every part starts with a whole block.
const GRAIN: usize = 16 * STAGE;

crate::simd! {
    fn write_bits(out: &mut [u32], philox: Philox, first: u64) {
        let mut at = first;
        let (groups, rest) = out.as_chunks_mut::<{ 4 * LANES }>();
        for group in groups {
            let words = philox.blocks::<LANES>(at);
            for (i, block) in group.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *block = [words[0][i] as u32, words[1][i] as u32, words[2][i] as u32, words[3][i] as u32];
            }
            at = at.wrapping_add(LANES as u64);
        }
        for block in rest.chunks_mut(4) {
            block.copy_from_slice(&philox.block(at)[..block.len()]);
            at = at.wrapping_add(1);
        }
    }

    fn uniforms_f32(words: &[u32], out: &mut [f32]) {
        for (out, &word) in out.iter_mut().zip(words) {
            *out = uniform_f32(word);
        }
    }

    fn uniforms_f64(words: &[u32], out: &mut [f64]) {
        for (out, &word) in out.iter_mut().zip(words.as_chunks::<2>().0) {
            *out = (join(word) >> 11) as f64 * (-53f64).exp2();
        }
    }

    fn normals_f32(words: &[u32], out: &mut [f32]) {
        let words = words.as_chunks::<2>().0;
        let (pairs, last) = out.as_chunks_mut::<2>();
        // Words come in whole blocks: there may be more of them than the slice needs.
        let next = words.get(pairs.len());
        for (out, &[a, b]) in pairs.iter_mut().zip(words) {
            *out = box_muller_f32(a, b);
        }
        if let ([out], Some(&[a, b])) = (last, next) {
            *out = box_muller_f32(a, b)[0];
        }
    }
}

#[inline(always)]
fn uniform_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// Two words as one number, the low half first.
#[inline(always)]
fn join([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Two independent normals from two words, computed in f64 and rounded once, so that they are as exact as f32 can be.
#[inline(always)]
fn box_muller_f32(a: u32, b: u32) -> [f32; 2] {
    const STEP: f64 = 1.0 / (1 << 24) as f64;
    // In (0, 1]: the logarithm of zero never comes up.
    let radius = (-2.0 * ln(f64::from((a >> 8) + 1) * STEP)).sqrt();
    // A full turn in quarters: the nearest quarter and the rest in [-1/2, 1/2] of one.
    let turn = f64::from(b >> 8) * (4.0 * STEP);
    let quarter = (turn + 0.5) as u32;
    let (sin, cos) = sin_cos((turn - f64::from(quarter)) * std::f64::consts::FRAC_PI_2);
    let (sin, cos) = if quarter & 1 == 1 { (cos, -sin) } else { (sin, cos) };
    let sign = if quarter & 2 == 2 { -radius } else { radius };
    [(sign * cos) as f32, (sign * sin) as f32]
}

/// The logarithm of a number in [2^-24, 1], to about 2^-44 of its value, without branches.
#[inline(always)]
fn ln(x: f64) -> f64 {
    // x = m * 2^e with m between about sqrt(1/2) and sqrt(2); ln m = 2 atanh((m - 1) / (m + 1)).
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    let shifted = x.to_bits().wrapping_sub(SQRT_HALF);
    let exponent = (shifted as i64 >> 52) as i32;
    let mantissa = f64::from_bits((shifted & ((1 << 52) - 1)).wrapping_add(SQRT_HALF));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let q = s * s;
    let series = 1.0 / 13.0 + q * (1.0 / 15.0 + q * (1.0 / 17.0));
    let series = 1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q * series));
    let series = q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * series));
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * (s + s * series)
}

/// Sine and cosine of an angle in [-pi/4, pi/4], to about 2^-44.
#[inline(always)]
fn sin_cos(x: f64) -> (f64, f64) {
    let q = x * x;
    let sin = -1.0 / 5040.0 + q * (1.0 / 362_880.0 + q * (-1.0 / 39_916_800.0 + q * (1.0 / 6_227_020_800.0)));
    let sin = x + x * q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * sin));
    let cos = -1.0 / 720.0 + q * (1.0 / 40_320.0 + q * (-1.0 / 3_628_800.0 + q * (1.0 / 479_001_600.0)));
    let cos = cos + q * q * q * q * (-1.0 / 87_178_291_200.0);
    let cos = 1.0 + q * (-0.5 + q * (1.0 / 24.0 + q * cos));
    (sin, cos)
}

fn box_muller_f64(a: u64, b: u64) -> [f64; 2] {
    let step = (-53f64).exp2();
    let radius = (-2.0 * (((a >> 11) + 1) as f64 * step).ln()).sqrt();
    let turn = (b >> 11) as f64 * (4.0 * step);
    let quarter = (turn + 0.5).floor();
    let (sin, cos) = ((turn - quarter) * std::f64::consts::FRAC_PI_2).sin_cos();
    match quarter as u64 & 3 {
        0 => [radius * cos, radius * sin],
        1 => [-radius * sin, radius * cos],
        2 => [-radius * cos, -radius * sin],
        _ => [radius * sin, -radius * cos],
    }
}

/// Fills a slice by converting `words` words per element; `convert` gets the words of whole blocks.
fn staged<T: Send>(
    op: &'static str,
    out: &mut [T],
    generator: &Generator,
    words: usize,
    convert: impl Fn(&[u32], &mut [T]) + Sync,
) -> Result<()> {
    let philox = generator.philox();
    parallel_chunks_mut(op, out, GRAIN, |start, part| {
        let mut stage = [0u32; STAGE];
        let mut block = generator.offset.wrapping_add((start * words / 4) as u64);
        for part in part.chunks_mut(STAGE / words) {
            let stage = &mut stage[..(part.len() * words).next_multiple_of(4)];
            write_bits(stage, philox, block);
            block = block.wrapping_add((stage.len() / 4) as u64);
            convert(stage, part);
        }
    })
}

/// Raw bits: one word per element.
pub fn fill_bits(out: &mut [u32], generator: &Generator) -> Result<()> {
    let philox = generator.philox();
    parallel_chunks_mut("random bits", out, GRAIN, |start, part| {
        write_bits(part, philox, generator.offset.wrapping_add((start / 4) as u64));
    })
}

/// Uniform in [0, 1), multiples of 2^-24: one word per element.
pub fn fill_uniform_f32(out: &mut [f32], generator: &Generator) -> Result<()> {
    staged("uniform", out, generator, 1, uniforms_f32)
}

/// Uniform in [0, 1), multiples of 2^-53: two words per element.
pub fn fill_uniform_f64(out: &mut [f64], generator: &Generator) -> Result<()> {
    staged("uniform", out, generator, 2, uniforms_f64)
}

/// Normal with mean 0 and deviation 1: one word per element, in pairs (Box-Muller).
pub fn fill_normal_f32(out: &mut [f32], generator: &Generator) -> Result<()> {
    staged("normal", out, generator, 1, normals_f32)
}

/// Normal with mean 0 and deviation 1: two words per element, in pairs (Box-Muller).
pub fn fill_normal_f64(out: &mut [f64], generator: &Generator) -> Result<()> {
    staged("normal", out, generator, 2, |words, out| {
        for (out, &[a, b, c, d]) in out.chunks_mut(2).zip(words.as_chunks::<4>().0) {
            out.copy_from_slice(&box_muller_f64(join([a, b]), join([c, d]))[..out.len()]);
        }
    })
}

/// Ones with probability `p`, otherwise zeros: one word per element, 1 where its uniform f32 is below `p`.
///
/// # Errors
/// [`Error::Argument`] unless `p` is in [0, 1].
pub fn fill_bernoulli_u8(out: &mut [u8], p: f32, generator: &Generator) -> Result<()> {
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::argument("bernoulli", format!("{p} is not a probability; use a number from 0 to 1")));
    }
    staged("bernoulli", out, generator, 1, |words, out| {
        for (out, &word) in out.iter_mut().zip(words) {
            *out = u8::from(uniform_f32(word) < p);
        }
    })
}

/// Whole numbers in [0, n): two words per element; each number's probability differs from 1/n by less than 2^-64.
///
/// # Errors
/// [`Error::Argument`] unless `n` is positive.
pub fn fill_below_i64(out: &mut [i64], n: i64, generator: &Generator) -> Result<()> {
    let bound = u64::try_from(n).ok().filter(|&n| n > 0);
    let bound =
        bound.ok_or_else(|| Error::argument("randint", format!("no numbers below {n}; use a positive bound")))?;
    staged("randint", out, generator, 2, |words, out| {
        for (out, &word) in out.iter_mut().zip(words.as_chunks::<2>().0) {
            *out = ((u128::from(join(word)) * u128::from(bound)) >> 64) as i64;
        }
    })
}

/// The numbers `0..n` in random order: sorted by a 64-bit key each (two words, as for the other 64-bit fills), equal
/// keys by number. Uses the blocks of `2 * n` words.
pub fn permutation(n: usize, generator: &Generator) -> Result<Vec<usize>> {
    let mut keyed = host::filled("permutation", n, (0u64, 0usize))?;
    let philox = generator.philox();
    parallel_chunks_mut("permutation", &mut keyed, GRAIN, |start, part| {
        for (i, pair) in part.chunks_mut(2).enumerate() {
            let index = start + 2 * i;
            let [a, b, c, d] = philox.block(generator.offset.wrapping_add(index as u64 / 2));
            for (k, (slot, key)) in pair.iter_mut().zip([join([a, b]), join([c, d])]).enumerate() {
                *slot = (key, index + k);
            }
        }
    })?;
    keyed.sort_unstable();
    Ok(keyed.into_iter().map(|(_, index)| index).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::set_num_threads;

    const N: usize = 200_003;

    fn words(n: usize, generator: &Generator) -> Vec<u32> {
        (0..n.div_ceil(4) as u64).flat_map(|i| generator.philox().block(generator.offset + i)).take(n).collect()
    }

    #[test]
    fn fills_are_the_same_on_any_number_of_threads_and_continue_at_offsets() {
        let generator = Generator { seed: 0xdead_beef_1234, offset: 77 };
        let expected = words(N, &generator);
        for threads in [1, 2, 5] {
            set_num_threads(threads);
            for n in [0, 1, 3, 4, 31, 33, 1025, N] {
                let mut bits = vec![0; n];
                fill_bits(&mut bits, &generator).unwrap();
                assert!(bits == expected[..n], "{n} words, {threads} threads");
                let mut floats = vec![0.0; n];
                fill_uniform_f32(&mut floats, &generator).unwrap();
                assert!(floats.iter().zip(&bits).all(|(f, b)| *f == (b >> 8) as f32 / 16_777_216.0));
            }
        }
        let (mut whole, mut later) = (vec![0f64; 100], vec![0f64; 60]);
        fill_uniform_f64(&mut whole, &generator).unwrap();
        fill_uniform_f64(&mut later, &Generator { offset: 77 + 20, ..generator }).unwrap();
        assert_eq!(whole[40..], later);
        let pairs = words(200, &generator);
        let exact = |i: usize| (u64::from(pairs[2 * i + 1]) << 32 | u64::from(pairs[2 * i])) >> 11;
        assert!(whole.iter().enumerate().all(|(i, &u)| u == exact(i) as f64 / 2f64.powi(53)));
    }

    #[test]
    fn normals_are_exact_to_an_ulp() {
        // The extremes of the radius, and turns at and around every quarter.
        let mut pairs: Vec<[u32; 2]> = words(400_000, &Generator::new(3)).as_chunks().0.to_vec();
        for a in [0, 0x100, 0x7fff_ff00, 0xffff_fe00, 0xffff_ff00, u32::MAX] {
            for b in
                (0..8u32).flat_map(|eighth| [0u32.wrapping_sub(256), 0, 256].map(|d| (eighth << 29).wrapping_add(d)))
            {
                pairs.push([a, b]);
            }
        }
        for [a, b] in pairs {
            let radius = (-2.0 * ((f64::from(a >> 8) + 1.0) / 16_777_216.0).ln()).sqrt();
            let turn = f64::from(b >> 8) / 16_777_216.0;
            // Exact at quarters, where sin(2 pi turn) in floating point is not.
            let quarter = (turn * 4.0).round();
            let (s, c) = ((turn * 4.0 - quarter) * std::f64::consts::FRAC_PI_2).sin_cos();
            let (sin, cos) = [(s, c), (c, -s), (-s, -c), (-c, s)][quarter as usize % 4];
            for (got, exact) in box_muller_f32(a, b).into_iter().zip([radius * cos, radius * sin]) {
                let ulp = f64::from(f32::from_bits((exact.abs() as f32).to_bits() + 1)) - f64::from(exact.abs() as f32);
                assert!((f64::from(got) - exact).abs() <= 0.51 * ulp, "{a:#x} {b:#x}: {got} for {exact}");
            }
        }
    }

    #[test]
    fn moments_are_right() {
        let generator = Generator::new(11);
        let (mut single, mut double) = (vec![0f32; N], vec![0f64; N]);
        fill_normal_f32(&mut single, &generator).unwrap();
        fill_normal_f64(&mut double, &generator).unwrap();
        for values in [single.iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), double] {
            let mean = |power: i32| values.iter().map(|v| v.powi(power)).sum::<f64>() / N as f64;
            let tolerance = 5.0 / (N as f64).sqrt();
            assert!(mean(1).abs() < tolerance, "{}", mean(1));
            assert!((mean(2) - 1.0).abs() < 1.5 * tolerance, "{}", mean(2));
            assert!(mean(3).abs() < 4.0 * tolerance && (mean(4) - 3.0).abs() < 10.0 * tolerance);
            let lag: f64 = values.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / N as f64;
            assert!(lag.abs() < tolerance);
        }
    }

    #[test]
    fn coins_dice_and_their_errors() {
        let generator = Generator::new(5);
        let mut coins = vec![0u8; N];
        for p in [0.0f32, 0.1, 0.5, 1.0] {
            fill_bernoulli_u8(&mut coins, p, &generator).unwrap();
            let share = coins.iter().map(|&c| f64::from(c)).sum::<f64>() / N as f64;
            let slack = 5.0 * (f64::from(p) * (1.0 - f64::from(p)) / N as f64).sqrt();
            assert!((share - f64::from(p)).abs() <= slack, "{p}: {share}");
        }
        assert!(fill_bernoulli_u8(&mut coins, 1.5, &generator).is_err());
        assert!(fill_bernoulli_u8(&mut coins, f32::NAN, &generator).is_err());
        let mut dice = vec![0i64; N];
        fill_below_i64(&mut dice, 7, &generator).unwrap();
        let mut counts = [0f64; 7];
        dice.iter().for_each(|&d| counts[d as usize] += 1.0);
        let expected = N as f64 / 7.0;
        let chi_squared: f64 = counts.iter().map(|c| (c - expected).powi(2) / expected).sum();
        assert!(chi_squared < 30.0, "{chi_squared}");
        fill_below_i64(&mut dice, i64::MAX, &generator).unwrap();
        assert!(dice.iter().all(|&d| d >= 0));
        assert!(fill_below_i64(&mut dice, 0, &generator).is_err());
    }

    #[test]
    fn permutations_hold_every_number_once_sorted_by_key() {
        let generator = Generator { seed: 1, offset: 10 };
        for n in [0usize, 1, 2, 7, 40_001] {
            let order = permutation(n, &generator).unwrap();
            let bits = words(2 * n, &generator);
            let key = |i: usize| (u64::from(bits[2 * i + 1]) << 32 | u64::from(bits[2 * i]), i);
            assert!(order.windows(2).all(|w| key(w[0]) < key(w[1])));
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..n));
        }
    }
}

//! A small generator of random numbers for orders and augmentation.

/// SplitMix64 (Steele, Lea and Flood, 2014): a counter whose values are mixed until they look random.
///
/// Orders and augmentation are functions of a seed and of what they are for (an epoch, an image), so there is no state to save:
/// a run that goes on later asks for the same numbers again. Not for secrets.
///
/// ```
/// use netcl_data::Random;
///
/// assert_eq!(Random::new(7).permutation(5), Random::new(7).permutation(5));
/// assert_ne!(Random::new(7).permutation(100), Random::new(8).permutation(100));
/// ```
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

/// What random numbers are for: one word for each purpose, so that none of them is another's copy.
pub(crate) mod purpose {
    pub(crate) const ORDER: u64 = 1;
    pub(crate) const CHANGES: u64 = 2;
    pub(crate) const SPLIT: u64 = 3;
    pub(crate) const BATCH: u64 = 4;
}

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Random {
        Random { state: mix(seed.wrapping_add(STEP)) }
    }

    /// The numbers of a seed for one purpose: `Random::keyed(seed, &[epoch, image])`.
    pub fn keyed(seed: u64, key: &[u64]) -> Random {
        let mut random = Random::new(seed);
        for &part in key {
            random.state = mix(random.state ^ mix(part.wrapping_add(STEP)));
        }
        random
    }

    /// The numbers that change a sample in an epoch: those which a loader hands to a transform.
    pub fn of_sample(seed: u64, epoch: u64, index: usize) -> Random {
        Random::keyed(seed, &[purpose::CHANGES, epoch, index as u64])
    }

    /// The numbers for a batch as a whole, which is known by its first sample: those which a loader hands to a collate function.
    pub fn of_batch(seed: u64, epoch: u64, first: usize) -> Random {
        Random::keyed(seed, &[purpose::BATCH, epoch, first as u64])
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A number below `limit`, each equally likely; 0 where the limit is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // Multiplication instead of a remainder (Lemire, 2019); numbers that would be too likely are drawn again.
        loop {
            let product = u128::from(self.bits()) * u128::from(limit);
            if product as u64 >= limit.wrapping_neg().checked_rem(limit).unwrap_or(0) {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number of at least 0 and below 1, of 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number between two others, evenly.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Whether something of a probability happens.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    /// A number of the normal distribution (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// A number of the gamma distribution with scale 1 (Marsaglia and Tsang, 2000); 0 where the shape is not above 0.
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            // Their trick for small shapes.
            return if shape > 0.0 { self.gamma(shape + 1.0) * self.uniform().powf(1.0 / shape) } else { 0.0 };
        }
        let d = shape - 1.0 / 3.0;
        loop {
            let x = self.normal();
            let v = (1.0 + x / (9.0 * d).sqrt()).powi(3);
            if v > 0.0 && (1.0 - self.uniform()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }

    /// A number of the beta distribution: between 0 and 1.
    pub fn beta(&mut self, a: f64, b: f64) -> f64 {
        let (x, y) = (self.gamma(a), self.gamma(b));
        // Both are 0 where the shapes are so small that no number of their size can be held: all mass is at the ends then.
        if x + y > 0.0 { x / (x + y) } else { f64::from(u8::from(self.chance(a / (a + b)))) }
    }

    /// The numbers below `n` in a random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_paper() {
        // The reference implementation's first numbers for the seed 1234567.
        let mut random = Random { state: 1_234_567 };
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.bits(), random.bits(), random.bits()], expected);
    }

    #[test]
    fn every_order_has_every_number_once_and_every_place_is_likely() {
        let mut seen = [0u32; 6];
        for seed in 0..6000 {
            let order = Random::new(seed).permutation(6);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4, 5]);
            seen[order[0]] += 1;
        }
        assert!(seen.iter().all(|&count| (880..1120).contains(&count)), "{seen:?}");
    }

    #[test]
    fn keys_matter_in_order() {
        let first = |key: &[u64]| Random::keyed(1, key).bits();
        let all = [first(&[]), first(&[0]), first(&[1]), first(&[0, 1]), first(&[1, 0]), first(&[0, 0])];
        for (i, a) in all.iter().enumerate() {
            assert!(!all[..i].contains(a), "{all:?}");
        }
    }

    #[test]
    fn distributions_have_their_means_and_deviations() {
        let mut random = Random::new(5);
        let mut check = |draw: &mut dyn FnMut(&mut Random) -> f64, mean: f64, variance: f64| {
            let numbers: Vec<f64> = (0..20_000).map(|_| draw(&mut random)).collect();
            let m = numbers.iter().sum::<f64>() / numbers.len() as f64;
            let v = numbers.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / numbers.len() as f64;
            assert!((m - mean).abs() < 0.03 && (v - variance).abs() < 0.05, "{m} {v}, expected {mean} {variance}");
        };
        check(&mut |random| random.uniform(), 0.5, 1.0 / 12.0);
        check(&mut |random| random.between(-1.0, 1.0), 0.0, 1.0 / 3.0);
        check(&mut |random| random.normal(), 0.0, 1.0);
        check(&mut |random| f64::from(u8::from(random.chance(0.25))), 0.25, 0.1875);
        // Mean a / (a + b), variance ab / ((a + b)^2 (a + b + 1)).
        for (a, b) in [(1.0, 1.0), (0.2, 0.2), (2.0, 5.0)] {
            let sum: f64 = a + b;
            check(&mut |random| random.beta(a, b), a / sum, a * b / (sum * sum * (sum + 1.0)));
        }
        let ends: Vec<f64> = (0..20).map(|_| random.beta(1e-300, 1e-300)).collect();
        assert!(ends.iter().all(|x| *x == 0.0 || *x == 1.0), "{ends:?}");
    }

    #[test]
    fn numbers_stay_below_their_limit() {
        let mut random = Random::new(3);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
        assert!((0..1000).all(|_| random.below(10) < 10));
    }
}

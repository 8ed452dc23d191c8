//! Random numbers that depend on a seed and a position only: not on the device, the number of threads or the order of calls.
//!
//! The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a keyed bijection
//! turns a counter into a *block* of four 32-bit words. A [`Generator`] is a seed and an offset in blocks; whoever draws
//! reserves the blocks it needs with [`Generator::reserve`] and computes them in any order.
//!
//! Bits and uniforms are the same on every device ([`PHILOX_CL`] is the OpenCL side). Element `i` of a fill takes word
//! `i % 4` of block `offset + i / 4`; 64-bit elements take two words each, the low half first.

mod fill;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::kernels::launch::{self, Slot};

pub use fill::{
    fill_below_i64, fill_bernoulli_u8, fill_bits, fill_normal_f32, fill_normal_f64, fill_uniform_f32, fill_uniform_f64,
    permutation,
};

/// The generator in OpenCL C: `netcl_philox4x32`, `netcl_random_block`, `netcl_uniform_f32`, `netcl_uniform_f64` (where the
/// device has doubles) and `netcl_random_below`, to be put in front of a kernel's source.
pub const PHILOX_CL: &str = include_str!("random/philox.cl");

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The words of one block: a bijection of the counter for each key.
///
/// ```
/// use netcl_core::random::philox4x32;
///
/// assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
/// ```
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_lanes(counter.map(|word| [u64::from(word)]), key).map(|[word]| word as u32)
}

/// `L` blocks side by side, word by word, as vector units like it.
///
/// Words are the low halves of 64 bits, and what lies above them is anything: vector units multiply low halves to 64 bits in one step,
/// and nothing has to be moved between lanes of different widths.
#[inline(always)]
fn philox_lanes<const L: usize>(counter: [[u64; L]; 4], mut key: [u32; 2]) -> [[u64; L]; 4] {
    const LOW: u64 = u32::MAX as u64;
    let [mut x, mut y, mut z, mut w] = counter;
    for _ in 0..ROUNDS {
        for i in 0..L {
            let a = u64::from(MULTIPLIERS[0]) * (x[i] & LOW);
            let b = u64::from(MULTIPLIERS[1]) * (z[i] & LOW);
            x[i] = (b >> 32) ^ y[i] ^ u64::from(key[0]);
            y[i] = b;
            z[i] = (a >> 32) ^ w[i] ^ u64::from(key[1]);
            w[i] = a;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    [x, y, z, w]
}

/// A seed and a stream: an endless row of blocks. Different streams of one seed never share a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Philox {
    seed: u64,
    stream: u64,
}

impl Philox {
    /// The blocks of a seed and a stream.
    pub fn new(seed: u64, stream: u64) -> Self {
        Philox { seed, stream }
    }

    /// The words of the block at an index.
    pub fn block(self, index: u64) -> [u32; 4] {
        self.blocks::<1>(index).map(|[word]| word as u32)
    }

    /// The words of neighbouring blocks, in the low halves.
    #[inline(always)]
    fn blocks<const L: usize>(self, first: u64) -> [[u64; L]; 4] {
        let index: [u64; L] = std::array::from_fn(|i| first.wrapping_add(i as u64));
        let counter = [index, index.map(|i| i >> 32), [self.stream; L], [self.stream >> 32; L]];
        philox_lanes(counter, [self.seed as u32, (self.seed >> 32) as u32])
    }
}

/// A place in the random numbers of a seed.
///
/// ```
/// use netcl_core::random::{Generator, fill_uniform_f32};
///
/// let mut generator = Generator::new(42);
/// let mut values = [0.0f32; 6];
/// let here = generator.reserve_words(6);
/// fill_uniform_f32(&mut values, &here)?;
/// assert!(values.iter().all(|x| (0.0..1.0).contains(x)));
/// assert_eq!(generator.offset, 2); // six words are two blocks of four
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generator {
    /// What makes two runs equal or different.
    pub seed: u64,
    /// The next block.
    pub offset: u64,
}

impl Generator {
    /// The beginning of a seed's numbers.
    pub fn new(seed: u64) -> Self {
        Generator { seed, offset: 0 }
    }

    /// Sets `blocks` blocks aside: returns the place where they start and moves on behind them.
    pub fn reserve(&mut self, blocks: u64) -> Generator {
        let here = *self;
        self.offset = self.offset.wrapping_add(blocks);
        here
    }

    /// Sets aside the blocks that hold `words` 32-bit words (two per 64-bit number).
    pub fn reserve_words(&mut self, words: usize) -> Generator {
        self.reserve(blocks_for(words))
    }

    /// The blocks of this seed.
    pub fn philox(&self) -> Philox {
        Philox::new(self.seed, 0)
    }
}

/// An error if a step is being recorded: a generator of the caller's own would stand still, and every replay would draw the
/// same numbers.
pub fn check_own_generator(op: &'static str) -> Result<()> {
    if !launch::is_repeating() {
        return Ok(());
    }
    REFUSED.set(REFUSED.get() + 1);
    let what = "a generator of one's own stands still while a step is recorded, so that every replay would draw the same \
                numbers; draw from the process-wide generator (manual_seed) inside the recorded function";
    Err(Error::State { op, what: what.to_owned() })
}

thread_local! {
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// How often [`check_own_generator`] has refused on this thread: who only tries to record a function, and gets an error from it,
/// may run it as it is instead.
pub fn own_generators_refused() -> u64 {
    REFUSED.get()
}

/// How many blocks hold this many 32-bit words.
pub fn blocks_for(words: usize) -> u64 {
    words.div_ceil(4) as u64
}

static SEED: AtomicU64 = AtomicU64::new(0);
static OFFSET: AtomicU64 = AtomicU64::new(0);

/// Restarts the process-wide generator with a seed; it is 0 at the start of the program, so that runs are repeatable.
/// Seed before starting threads that draw: what they draw meanwhile may come from the old seed or the new one.
pub fn manual_seed(seed: u64) {
    SEED.store(seed, Ordering::SeqCst);
    OFFSET.store(0, Ordering::SeqCst);
}

/// Sets aside blocks of the process-wide generator and returns where they start. Threads that draw at the same time get
/// different blocks; which thread gets which is up to the scheduler.
pub fn reserve_default(blocks: u64) -> Generator {
    Generator { seed: SEED.load(Ordering::SeqCst), offset: OFFSET.fetch_add(blocks, Ordering::SeqCst) }
}

/// [`reserve_default`] for a program that is being recorded: at every run new blocks are set aside, and the slots hold their
/// seed and their start while the launches behind this call run.
///
/// ```
/// use std::rc::Rc;
/// use netcl_core::kernels::{launch, recording::{Recording, Step}};
/// use netcl_core::random::{default_generator, reserve_each_run};
///
/// let recording = Rc::new(Recording::new());
/// let (_seed, offset) = launch::with_sink(recording.clone(), || reserve_each_run(3));
/// let before = default_generator().offset;
/// for step in recording.take().steps {
///     if let Step::Host(mut action) = step {
///         action()?; // one run
///     }
/// }
/// assert_eq!(offset.get_integer(), before);
/// assert_eq!(default_generator().offset, before + 3);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn reserve_each_run(blocks: u64) -> (Arc<Slot>, Arc<Slot>) {
    let slots = (Slot::integer(0), Slot::integer(0));
    let (seed, offset) = slots.clone();
    // The action cannot fail, whoever does it.
    let _ = launch::each_run(move || {
        let here = reserve_default(blocks);
        seed.set_integer(here.seed);
        offset.set_integer(here.offset);
        Ok(())
    });
    slots
}

/// Where the process-wide generator stands: what a checkpoint saves.
pub fn default_generator() -> Generator {
    Generator { seed: SEED.load(Ordering::SeqCst), offset: OFFSET.load(Ordering::SeqCst) }
}

/// Puts the process-wide generator back to where a checkpoint found it.
pub fn set_default_generator(generator: Generator) {
    SEED.store(generator.seed, Ordering::SeqCst);
    OFFSET.store(generator.offset, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the Random123 distribution.
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox4x32([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let digits_of_pi = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
        assert_eq!(
            philox4x32(digits_of_pi, [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn blocks_put_index_stream_and_seed_where_the_kernel_does() {
        let block = Philox::new(0x2222_2222_1111_1111, 0x6666_6666_5555_5555).block(0x4444_4444_3333_3333);
        let counter = [0x3333_3333, 0x4444_4444, 0x5555_5555, 0x6666_6666];
        assert_eq!(block, philox4x32(counter, [0x1111_1111, 0x2222_2222]));
        // What `netcl_random_block(42, 0, 5)` of PHILOX_CL gave on an OpenCL device (PoCL).
        assert_eq!(Philox::new(42, 0).block(5), [0x5099d809, 0x4b20b5d2, 0x0d41b5e2, 0x0a653407]);
        // Lanes carry into the upper half of the index.
        let lanes = Philox::new(1, 0).blocks::<4>(u64::from(u32::MAX) - 1);
        for i in 0..4u64 {
            let expected = Philox::new(1, 0).block(u64::from(u32::MAX) - 1 + i);
            assert_eq!(lanes.map(|words| words[i as usize] as u32), expected);
        }
    }

    #[test]
    fn the_default_generator_restarts_and_resumes() {
        manual_seed(7);
        assert_eq!(reserve_default(3), Generator { seed: 7, offset: 0 });
        assert_eq!(default_generator(), Generator { seed: 7, offset: 3 });
        set_default_generator(Generator { seed: 9, offset: 5 });
        assert_eq!(reserve_default(1), Generator { seed: 9, offset: 5 });
        assert_eq!(blocks_for(0) + blocks_for(1) + blocks_for(4) + blocks_for(5), 4);
    }
}

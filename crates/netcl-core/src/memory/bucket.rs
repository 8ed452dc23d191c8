//! Which block size serves a request, and how much may be cached.

/// Block sizes that are spaced like floating-point numbers: every power of two is split into `2^mantissa_bits` equal steps.
///
/// A request takes the smallest bucket that holds it. With no mantissa bits the sizes are the powers of two and a block may
/// be nearly twice as large as asked; with four bits the waste stays below 1/16 of the request (above the smallest
/// bucket). Requests above the largest bucket are *exact*: the block has the size asked for.
///
/// The table of [`PersistentBufferPool`](super::PersistentBufferPool), 289 buckets:
///
/// | requests | step | buckets |
/// |---|---|---|
/// | 1 B .. 1 KB | | 1024 |
/// | 1 KB .. 2 KB | 64 B | 1088, 1152, 1216, ..., 2048 |
/// | 2 KB .. 4 KB | 128 B | 2176, 2304, ..., 4096 |
/// | ... | 1/16 of the power of two below | ... |
/// | 128 MB .. 256 MB | 8 MB | 136 MB, 144 MB, ..., 256 MB |
///
/// ```
/// use netcl_core::memory::BucketTable;
///
/// assert_eq!(BucketTable::PERSISTENT.len(), 289);
/// assert_eq!(BucketTable::PERSISTENT.block_size(1025), 1088);
/// assert_eq!(BucketTable::PERSISTENT.block_size(300 << 20), 300 << 20); // exact
/// assert_eq!(BucketTable::POWERS_OF_TWO.block_size(1025), 2048);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTable {
    mantissa_bits: u32,
    /// Logarithms of the smallest and the largest size.
    smallest: u32,
    largest: u32,
}

/// The free list that serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A bucket of the table.
    Bucket(u32),
    /// Larger than the table: cached by exact size.
    Exact,
    /// Never cached: a block that had to be cut to measure because the bucket's full size was not to be had.
    Unpooled,
}

impl BucketTable {
    /// Powers of two from 256 bytes, the alignment that devices give blocks anyway.
    pub const POWERS_OF_TWO: Self = BucketTable { mantissa_bits: 0, smallest: 8, largest: usize::BITS - 2 };

    /// Powers of two from 4 KB: page-locked memory comes in pages.
    pub const PINNED: Self = BucketTable { mantissa_bits: 0, smallest: 12, largest: usize::BITS - 2 };

    /// 1 KB to 256 MB in steps of 1/16.
    pub const PERSISTENT: Self = BucketTable { mantissa_bits: 4, smallest: 10, largest: 28 };

    /// The number of buckets.
    #[expect(clippy::len_without_is_empty, reason = "no table is empty")]
    pub const fn len(&self) -> usize {
        (((self.largest - self.smallest) << self.mantissa_bits) + 1) as usize
    }

    /// The block size of one bucket, smallest first; `None` past the end.
    pub const fn size(&self, bucket: usize) -> Option<usize> {
        if bucket >= self.len() {
            return None;
        }
        Some(self.size_of(bucket as u32))
    }

    /// All block sizes, smallest first.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let table = *self;
        (0..table.len() as u32).map(move |bucket| table.size_of(bucket))
    }

    /// The size of the block that serves a request.
    #[inline]
    pub const fn block_size(&self, bytes: usize) -> usize {
        match self.class(bytes) {
            Class::Bucket(bucket) => self.size_of(bucket),
            Class::Exact | Class::Unpooled => bytes,
        }
    }

    /// The free list that serves a request: the exponent and leading mantissa bits of `bytes - 1`, plus one.
    #[inline]
    pub(super) const fn class(&self, bytes: usize) -> Class {
        if bytes > 1 << self.largest {
            return Class::Exact;
        }
        if bytes <= 1 << self.smallest {
            return Class::Bucket(0);
        }
        let below = bytes - 1;
        let exponent = below.ilog2();
        let mantissa = (below >> (exponent - self.mantissa_bits)) as u32 & ((1 << self.mantissa_bits) - 1);
        Class::Bucket(((exponent - self.smallest) << self.mantissa_bits) + mantissa + 1)
    }

    #[inline]
    const fn size_of(&self, bucket: u32) -> usize {
        let exponent = self.smallest + (bucket >> self.mantissa_bits);
        let mantissa = bucket & ((1 << self.mantissa_bits) - 1);
        (((1 << self.mantissa_bits) + mantissa) as usize) << (exponent - self.mantissa_bits)
    }
}

/// How much a pool may cache. Blocks in use are never limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes that released blocks may occupy together. Blocks above the bucket table are freed first (largest
    /// first), then those that were released longest ago. With 0, blocks are never reused and have exactly the size asked for.
    pub max_cached_bytes: usize,
    /// The most blocks that one bucket may hold; a fuller one frees its oldest. Exact blocks are not counted.
    pub max_blocks_per_bucket: usize,
}

impl Limits {
    /// No limits at all.
    pub const NONE: Self = Limits { max_cached_bytes: usize::MAX, max_blocks_per_bucket: usize::MAX };

    /// At most this many cached bytes, and 1024 blocks per bucket: enough for the activations of deep networks, few enough
    /// that a burst of tiny tensors does not leave an endless list behind.
    pub const fn bytes(max_cached_bytes: usize) -> Self {
        Limits { max_cached_bytes, max_blocks_per_bucket: 1024 }
    }
}

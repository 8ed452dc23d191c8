//! NVIDIA's tensor maps: 128 bytes that tell the tensor copy engine of Hopper how an array lies in memory.
//!
//! ```text
//!   memory                                 local memory
//!   +---------------------------+          one box, its rows one after the other; the 16-byte pieces of
//!   |        +-------+          |          a row change places (swizzle) so that a matrix unit that reads
//!   |        |  box  |          |   ->     a column of pieces meets every bank once. What lies outside of
//!   |        +-------+          |          the array is filled with zeros.
//!   +---------------------------+
//! ```
//!
//! CUDA's driver has a call that encodes such maps; OpenCL has none. So they are encoded here, from what comparing many of that
//! call's encodings showed:
//!
//! | 32-bit word | meaning |
//! |---|---|
//! | 0, 1 | the address, which the kernel fills in |
//! | 2 | (rank - 1) << 4, element type << 7, swizzle << 13, tf32 rounding << 16, fetch into L2 << 17 |
//! | 3 to 6, 7 | strides of axes 1 to 4 in units of 16 bytes: 32 bits each, then 4 more bits each |
//! | 8 to 12 | lengths less one, the dense axis first |
//! | 13, 14 | the box: axis 0 less one << 24; axes 1 to 4 less one, 8 bits each |
//! | 13 | steps from element to element less one, 3 bits for each axis from bit 0 on ([`TensorMap::stepped`]) |
//! | 16, 18 | bytes of the box; bytes after which the swizzle repeats |
//!
//! Where a box begins is the kernel's to say, also before the array or past its end, where it gets zeros; but along the dense axis it
//! must begin at a multiple of 16 bytes. The engine takes anything else for an illegal instruction parameter and the context is lost.
//! And its rows must be as long as the swizzle: the pieces of shorter ones do not lie where the matrix units look for them.

/// The most axes a map can have.
pub const MAX_RANK: usize = 5;
/// Bytes of a map; it must be aligned to half as many.
pub const MAP_BYTES: usize = 128;

/// Fetches whole lines of 128 bytes into the second-level cache.
const FETCH_LINES: u32 = 2;
/// The longest box along an axis, and the longest step from element to element.
pub const LONGEST_BOX: u32 = 256;
/// See [`LONGEST_BOX`].
pub const LONGEST_STEP: usize = 8;
/// Strides are held in 36 bits of 16-byte units.
const STRIDE_LIMIT: u64 = 1 << 40;

/// What an array's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapElement {
    /// 16-bit floats with 5 bits of exponent.
    F16,
    /// 16-bit floats with 8 bits of exponent.
    BF16,
    /// 32-bit floats.
    F32,
    /// 32-bit floats, rounded to the 19 bits of tf32 as they are copied.
    Tf32,
}

impl MapElement {
    /// Bytes of an element in memory.
    pub const fn size(self) -> usize {
        match self {
            MapElement::F16 | MapElement::BF16 => 2,
            MapElement::F32 | MapElement::Tf32 => 4,
        }
    }

    const fn bits(self) -> u32 {
        match self {
            MapElement::F16 => 6 << 7,
            MapElement::F32 => 7 << 7,
            MapElement::BF16 => 10 << 7,
            MapElement::Tf32 => 7 << 7 | 1 << 16,
        }
    }
}

/// Over how many bytes the 16-byte pieces of a box change places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Not at all.
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

impl Swizzle {
    /// The code, the longest row of a box, and the period of the pattern.
    const fn parts(self) -> (u32, usize, u32) {
        match self {
            Swizzle::None => (0, LONGEST_BOX as usize * 4, 16),
            Swizzle::Bytes32 => (1, 32, 256),
            Swizzle::Bytes64 => (2, 64, 512),
            Swizzle::Bytes128 => (3, 128, 1024),
        }
    }
}

/// One axis of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapAxis {
    /// Elements along it.
    pub length: u64,
    /// Bytes from one to the next; of no meaning along the dense axis.
    pub stride: u64,
    /// Elements of a box along it.
    pub box_length: u32,
}

/// Why an array has no map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorMapError {
    /// Too few or too many axes.
    #[error("a tensor map has 1 to {MAX_RANK} axes, not {0}")]
    Rank(usize),
    /// An axis is empty or too long.
    #[error("axis {axis} has {length} elements; a tensor map takes 1 to 2^32")]
    Length {
        /// Which.
        axis: usize,
        /// Its length.
        length: u64,
    },
    /// A distance that the copy engine cannot go.
    #[error("axis {axis} has a stride of {stride} bytes; a tensor map takes multiples of 16 below 2^40")]
    Stride {
        /// Which.
        axis: usize,
        /// Its stride.
        stride: u64,
    },
    /// Steps that the copy engine cannot take.
    #[error(
        "every {step}th of {box_length} elements along axis {axis}: a tensor map takes steps of 1 to {LONGEST_STEP} over at most {LONGEST_BOX} elements"
    )]
    Step {
        /// Which.
        axis: usize,
        /// From element to element.
        step: usize,
        /// The elements of a box.
        box_length: u32,
    },
    /// A box that the copy engine cannot copy.
    #[error(
        "a box of {box_length} elements along axis {axis}: a tensor map takes 1 to {LONGEST_BOX}, along axis 0 whole multiples of 16 bytes within the swizzle"
    )]
    Box {
        /// Which.
        axis: usize,
        /// The box's length along it.
        box_length: u32,
    },
}

/// An encoded map without its address.
///
/// ```
/// use netcl_core::backend::opencl::tensor_map::{MapAxis, MapElement, Swizzle, TensorMap};
/// let columns = MapAxis { length: 8192, stride: 0, box_length: 64 };
/// let rows = MapAxis { length: 4096, stride: 16384, box_length: 128 };
/// let map = TensorMap::new(MapElement::BF16, &[columns, rows], Swizzle::Bytes128)?;
/// assert_eq!(map.box_bytes(), 64 * 128 * 2);
/// # Ok::<(), netcl_core::backend::opencl::tensor_map::TensorMapError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    words: [u32; MAP_BYTES / 4],
}

impl TensorMap {
    /// The map of an array, its dense axis first. The array's address, which the kernel fills in, must be a multiple of 16.
    pub fn new(element: MapElement, axes: &[MapAxis], swizzle: Swizzle) -> Result<TensorMap, TensorMapError> {
        let rank = axes.len();
        if rank == 0 || rank > MAX_RANK {
            return Err(TensorMapError::Rank(rank));
        }
        let (code, longest_row, period) = swizzle.parts();
        let mut words = [0u32; MAP_BYTES / 4];
        words[2] = (rank as u32 - 1) << 4 | element.bits() | code << 13 | FETCH_LINES << 17;
        let mut box_bytes = element.size() as u32;
        for (axis, &MapAxis { length, stride, box_length }) in axes.iter().enumerate() {
            if length == 0 || length > 1 << 32 {
                return Err(TensorMapError::Length { axis, length });
            }
            words[8 + axis] = (length - 1) as u32;
            let row = box_length as usize * element.size();
            let fits = axis > 0 || (row.is_multiple_of(16) && row <= longest_row);
            if box_length == 0 || box_length > LONGEST_BOX || !fits {
                return Err(TensorMapError::Box { axis, box_length });
            }
            box_bytes *= box_length;
            let Some(outer) = axis.checked_sub(1) else {
                words[13] = (box_length - 1) << 24;
                continue;
            };
            words[14] |= (box_length - 1) << (8 * outer);
            if !stride.is_multiple_of(16) || stride >= STRIDE_LIMIT {
                return Err(TensorMapError::Stride { axis, stride });
            }
            words[3 + outer] = (stride >> 4) as u32;
            words[7] |= ((stride >> 36) as u32) << (4 * outer);
        }
        words[16] = box_bytes;
        words[18] = period;
        Ok(TensorMap { words })
    }

    /// The same with boxes that take every `step`th element along an axis other than the dense one: as many elements as before, from a
    /// stretch `step` times as long.
    pub fn stepped(mut self, axis: usize, step: usize) -> Result<TensorMap, TensorMapError> {
        let Some(outer) = axis.checked_sub(1).filter(|outer| *outer < MAX_RANK - 1) else {
            return Err(TensorMapError::Rank(axis));
        };
        let box_length = ((self.words[14] >> (8 * outer)) & 0xff) + 1;
        if step == 0 || step > LONGEST_STEP || box_length as usize * step > LONGEST_BOX as usize {
            return Err(TensorMapError::Step { axis, step, box_length });
        }
        let stretch = box_length * step as u32;
        self.words[13] |= (step as u32 - 1) << (3 * axis);
        self.words[14] = self.words[14] & !(0xff << (8 * outer)) | (stretch - 1) << (8 * outer);
        Ok(self)
    }

    /// The words, of which the first two are for the address.
    pub fn words(&self) -> &[u32; MAP_BYTES / 4] {
        &self.words
    }

    /// Bytes that one copied box takes in local memory.
    pub fn box_bytes(&self) -> usize {
        self.words[16] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(length: u64, stride: u64, box_length: u32) -> MapAxis {
        MapAxis { length, stride, box_length }
    }

    /// The words that CUDA's own encoding has, but for the address and the fetches into L2.
    fn encoded(element: MapElement, axes: &[MapAxis], swizzle: Swizzle) -> [u32; 32] {
        let mut words = *TensorMap::new(element, axes, swizzle).unwrap().words();
        words[2] &= !(3 << 17);
        words
    }

    fn expected(words: &[(usize, u32)]) -> [u32; 32] {
        let mut all = [0; 32];
        for &(at, word) in words {
            all[at] = word;
        }
        all
    }

    #[test]
    fn matrices_are_encoded_as_by_the_driver() {
        let axes = [axis(8192, 0, 64), axis(4096, 16384, 128)];
        let rest = [(3, 0x400), (8, 0x1fff), (9, 0xfff), (13, 0x3f00_0000), (14, 0x7f), (16, 0x4000), (18, 0x400)];
        let with = |two: u32| expected(&[&rest[..], &[(2, two)]].concat());
        assert_eq!(encoded(MapElement::BF16, &axes, Swizzle::Bytes128), with(0x6510));
        assert_eq!(encoded(MapElement::F16, &axes, Swizzle::Bytes128), with(0x6310));
    }

    #[test]
    fn batches_are_encoded_as_by_the_driver() {
        let axes = [axis(8192, 0, 64), axis(4096, 16384, 128), axis(16, 67_108_864, 1)];
        let words = [
            (2, 0x6520),
            (3, 0x400),
            (4, 0x40_0000),
            (8, 0x1fff),
            (9, 0xfff),
            (10, 0xf),
            (13, 0x3f00_0000),
            (14, 0x7f),
            (16, 0x4000),
            (18, 0x400),
        ];
        assert_eq!(encoded(MapElement::BF16, &axes, Swizzle::Bytes128), expected(&words));
    }

    #[test]
    fn long_strides_boxes_and_rounding_have_their_places() {
        let far = [axis(64, 0, 32), axis(8, (1 << 36) + 16, 256)];
        let words = TensorMap::new(MapElement::Tf32, &far, Swizzle::Bytes128).unwrap();
        assert_eq!((words.words()[3], words.words()[7]), (1, 1));
        assert_eq!(words.words()[14], 0xff);
        assert_eq!(words.words()[2], 1 << 4 | 7 << 7 | 3 << 13 | 1 << 16 | 2 << 17);
        assert_eq!(words.box_bytes(), 32 * 256 * 4);
    }

    #[test]
    fn steps_are_encoded_as_by_the_driver() {
        let axes = [axis(64, 0, 64), axis(56, 128, 8), axis(56, 7168, 16), axis(64, 401_408, 1)];
        let map = TensorMap::new(MapElement::BF16, &axes, Swizzle::Bytes128).unwrap();
        let words = *map.stepped(1, 2).unwrap().stepped(2, 2).unwrap().words();
        assert_eq!((words[13], words[14], words[16]), (0x3f00_0048, 0x1f0f, 0x4000));
        assert_eq!(map.stepped(1, 1), Ok(map));
        assert!(map.stepped(0, 2).is_err() && map.stepped(1, 9).is_err() && map.stepped(5, 2).is_err());
        assert_eq!(map.stepped(2, 0), Err(TensorMapError::Step { axis: 2, step: 0, box_length: 16 }));
    }

    #[test]
    fn what_the_engine_cannot_copy_is_refused() {
        let map = |axes: &[MapAxis], swizzle| TensorMap::new(MapElement::BF16, axes, swizzle).unwrap_err();
        let dense = axis(64, 0, 64);
        assert_eq!(map(&[], Swizzle::None), TensorMapError::Rank(0));
        assert_eq!(map(&[axis(0, 0, 64)], Swizzle::None), TensorMapError::Length { axis: 0, length: 0 });
        assert_eq!(map(&[dense, axis(4, 24, 1)], Swizzle::Bytes128), TensorMapError::Stride { axis: 1, stride: 24 });
        assert_eq!(map(&[dense], Swizzle::Bytes64), TensorMapError::Box { axis: 0, box_length: 64 });
        assert_eq!(
            map(&[dense, axis(4, 128, 257)], Swizzle::Bytes128),
            TensorMapError::Box { axis: 1, box_length: 257 }
        );
        assert_eq!(map(&[axis(64, 0, 7)], Swizzle::None), TensorMapError::Box { axis: 0, box_length: 7 });
    }
}

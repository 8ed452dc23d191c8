//! Strided copies and casts against a plain loop over `Layout::offsets`.

use half::{bf16, f16};
use netcl_core::backend::cpu::copy::{cast, cast_strided, copy, copy_strided, fill};
use netcl_core::backend::cpu::set_num_threads;
use netcl_core::dtype::{DType, Element};
use netcl_core::shape::{Layout, Shape, Slice};
use netcl_core::{half, with_element};
use proptest::prelude::*;

const ALL: [DType; 7] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::I32, DType::I64];

/// A layout of `shape` in a storage of its own: permuted, flipped, with gaps; for a source perhaps broadcast.
fn layout(shape: &[usize], order: &[usize], steps: &[isize], broadcast: &[bool]) -> Layout {
    let steps: Vec<isize> = steps[..shape.len()].to_vec();
    let stored: Vec<usize> =
        order.iter().map(|&axis| if broadcast[axis] { 1 } else { shape[axis] * steps[axis].unsigned_abs() }).collect();
    let mut back = vec![0isize; order.len()];
    for (at, &axis) in order.iter().enumerate() {
        back[axis] = at as isize;
    }
    let mut out = Layout::contiguous(Shape::from(stored)).permute("test", &back).unwrap();
    for axis in (0..shape.len()).filter(|&axis| !broadcast[axis]) {
        out = out.slice(axis, Slice::new(None, None, steps[axis])).unwrap();
    }
    out.expand("test", &Shape::from(shape)).unwrap().shifted(3)
}

/// Shape and the two layouts of a copy.
fn layouts(longest: usize) -> impl Strategy<Value = (Layout, Layout)> {
    prop::collection::vec(prop_oneof![4 => 1..=longest, 1 => Just(1usize)], 0..5).prop_flat_map(|shape| {
        let n = shape.len();
        let order = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
        let steps =
            || prop::collection::vec(prop_oneof![4 => Just(1isize), 1 => Just(-1), 1 => Just(2), 1 => Just(-3)], 5);
        let broadcast = prop::collection::vec(prop::bool::weighted(0.15), 5);
        (Just(shape), order.clone(), order, steps(), steps(), broadcast).prop_map(
            |(shape, o1, o2, s1, s2, broadcast)| {
                (layout(&shape, &o1, &s1, &broadcast), layout(&shape, &o2, &s2, &[false; 5]))
            },
        )
    })
}

fn check_copy<T: Copy + PartialEq + std::fmt::Debug>(src: &Layout, dst: &Layout, value: impl Fn(usize) -> T) {
    let from: Vec<T> = (0..src.end()).map(&value).collect();
    let background = value(usize::MAX);
    let mut expected = vec![background; dst.end()];
    let mut got = expected.clone();
    for (s, d) in src.offsets().zip(dst.offsets()) {
        expected[d] = from[s];
    }
    // SAFETY: both vectors reach to their layout's end, and the destination's layout does not overlap itself.
    unsafe { copy_strided(from.as_ptr().cast(), src, got.as_mut_ptr().cast(), dst, size_of::<T>()).unwrap() };
    assert!(expected == got, "{src:?} -> {dst:?}");
}

fn check_all_sizes(src: &Layout, dst: &Layout) {
    check_copy(src, dst, |i| i as u8);
    check_copy(src, dst, |i| (i as u16).wrapping_mul(7));
    check_copy(src, dst, |i| (i as u32).wrapping_mul(77_777));
    check_copy(src, dst, |i| (i as u64).wrapping_mul(7_777_777_777));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn strided_copies_equal_the_plain_loop((src, dst) in layouts(9), threads in 1usize..4) {
        set_num_threads(threads);
        check_all_sizes(&src, &dst);
    }

    #[test]
    fn strided_casts_equal_the_dense_cast((src, dst) in layouts(8), from in 0..7usize, to in 0..7usize) {
        let (from, to) = (ALL[from], ALL[to]);
        with_element!(from, S => with_element!(to, D => {
            let values: Vec<S> = (0..src.end()).map(|i| S::from_f64((i % 251) as f64 * 0.37)).collect();
            let gathered: Vec<S> = src.offsets().map(|i| values[i]).collect();
            let mut dense = vec![D::default(); gathered.len()];
            let mut got = vec![D::from_f64(99.0); dst.end()];
            let mut expected = got.clone();
            // SAFETY: all vectors hold what the layouts and lengths reach.
            unsafe {
                cast(gathered.as_ptr().cast(), from, dense.as_mut_ptr().cast(), to, dense.len()).unwrap();
                cast_strided(values.as_ptr().cast(), &src, from, got.as_mut_ptr().cast(), &dst, to).unwrap();
            }
            for (d, &v) in dst.offsets().zip(&dense) {
                expected[d] = v;
            }
            prop_assert!(expected == got, "{from} {src:?} -> {to} {dst:?}");
        }));
    }
}

#[test]
fn large_permutations_in_parallel() {
    set_num_threads(3);
    for (shape, axes) in [
        (vec![300, 517], vec![1, 0]),
        (vec![64, 1024], vec![1, 0]),
        (vec![7, 3, 61, 67], vec![0, 2, 3, 1]),
        (vec![5, 61, 67, 3], vec![0, 3, 1, 2]),
        (vec![33, 17, 9, 31], vec![3, 2, 1, 0]),
        (vec![40_000, 2], vec![1, 0]),
        (vec![2, 40_000], vec![1, 0]),
        (vec![100, 1000], vec![0, 1]),
    ] {
        let src = Layout::contiguous(Shape::from(shape)).permute("test", &axes).unwrap();
        let dst = Layout::contiguous(src.shape().clone());
        check_all_sizes(&src, &dst);
        check_all_sizes(&dst, &src);
    }
}

#[test]
fn shapes_and_element_sizes_are_checked() {
    let (a, b) = (Layout::contiguous(Shape::from([2, 3])), Layout::contiguous(Shape::from([3, 2])));
    let (src, mut dst) = ([0u8; 6], [0u8; 6]);
    // SAFETY: the arrays hold both layouts; the calls are refused anyway.
    unsafe {
        let error = copy_strided(src.as_ptr(), &a, dst.as_mut_ptr(), &b, 1).unwrap_err();
        assert!(error.to_string().contains("(2, 3)") && error.to_string().contains("(3, 2)"), "{error}");
        assert!(copy_strided(src.as_ptr(), &a, dst.as_mut_ptr(), &a, 3).is_err());
        assert!(fill(dst.as_mut_ptr(), 6, &[1, 2, 3]).is_err());
        assert!(fill(dst.as_mut_ptr(), 5, &[1, 2]).is_err());
        assert!(fill(dst.as_mut_ptr(), 5, &[]).is_err());
    }
}

#[test]
fn fills_and_copies_of_any_size() {
    set_num_threads(3);
    for n in [0usize, 1, 5, 64, 1000, 131_072, 131_073, 1_000_003] {
        for width in [1, 2, 4, 8] {
            let pattern: Vec<u8> = (1..=width as u8).collect();
            let nbytes = n / width * width;
            let mut got = vec![0u8; nbytes + 1];
            // SAFETY: the vectors have at least `nbytes` bytes.
            unsafe { fill(got.as_mut_ptr(), nbytes, &pattern).unwrap() };
            assert!(got[..nbytes].chunks(width).all(|c| c == pattern) && got[nbytes] == 0);
            let mut copied = vec![0u8; nbytes + 1];
            // SAFETY: as above.
            unsafe { copy(got.as_ptr(), copied.as_mut_ptr(), nbytes).unwrap() };
            assert_eq!(got, copied);
        }
    }
}

fn cast_all<S: Element, D: Element>(values: &[S]) -> Vec<D> {
    let mut out = vec![D::default(); values.len()];
    // SAFETY: both slices have the same number of elements.
    unsafe { cast(values.as_ptr().cast(), S::DTYPE, out.as_mut_ptr().cast(), D::DTYPE, values.len()).unwrap() };
    out
}

/// Values where rounding, saturation and special cases show.
fn awkward() -> Vec<f64> {
    let mut values =
        vec![0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 65504.0, 65520.0, 65519.999999, 1e300, 5e-324];
    // Near ties of f16 and bf16, which rounding twice (through f32) would get wrong.
    for base in [1.0, 1.5, 1024.0, 6.1e-5, 3e-8, 1e-40, 3e38] {
        for bits in [8, 9, 11, 12, 24, 25] {
            let half_step = 0.5f64.powi(bits);
            for tiny in [0.0, 1e-12, -1e-12] {
                values.push(base * (1.0 + half_step + tiny));
                values.push(-base * (1.0 + 3.0 * half_step + tiny));
            }
        }
    }
    values.extend((-300..300).map(|i| i as f64 * 7.3));
    values.extend([2147483647.0, 2147483648.0, -2147483649.0, 9.3e18, -9.3e18, 255.5, 256.0]);
    values
}

fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// The nearest 16-bit float, ties to even, found by search: `half`'s own conversions from f64 drop bits that break ties.
/// `infinity` is its bit pattern, `beyond` the number that would follow the largest finite one.
fn nearest(value: f64, infinity: u16, beyond: f64, decode: impl Fn(u16) -> f64) -> f64 {
    if value.is_nan() {
        return value;
    }
    let at = |bits: u16| if bits == infinity { beyond } else { decode(bits) };
    let size = value.abs();
    let above = (0..=infinity).collect::<Vec<_>>().partition_point(|&bits| at(bits) <= size) as u16;
    if above > infinity {
        return f64::INFINITY.copysign(value);
    }
    let below = above - 1;
    let up = match (size - at(below)).total_cmp(&(at(above) - size)) {
        std::cmp::Ordering::Less => below,
        std::cmp::Ordering::Greater => above,
        std::cmp::Ordering::Equal => below + (below & 1),
    };
    decode(up).copysign(value)
}

#[test]
fn floats_round_once_and_integers_follow_as() {
    let values = awkward();
    for (v, got) in values.iter().zip(cast_all::<f64, f16>(&values)) {
        let exact = nearest(*v, 0x7c00, 65536.0, |bits| f16::from_bits(bits).to_f64());
        assert!(same(got.to_f64(), exact), "f16 {v:e}: {got:e} for {exact:e}");
    }
    for (v, got) in values.iter().zip(cast_all::<f64, bf16>(&values)) {
        let exact = nearest(*v, 0x7f80, 2f64.powi(128), |bits| bf16::from_bits(bits).to_f64());
        assert!(same(got.to_f64(), exact), "bf16 {v:e}: {got:e} for {exact:e}");
    }
    let singles: Vec<f32> = values.iter().map(|&v| v as f32).collect();
    macro_rules! primitive {
        ($($t:ty)*) => {$(
            assert_eq!(cast_all::<f64, $t>(&values), values.iter().map(|&v| v as $t).collect::<Vec<_>>());
            assert_eq!(cast_all::<f32, $t>(&singles), singles.iter().map(|&v| v as $t).collect::<Vec<_>>());
        )*};
    }
    primitive!(u8 i32 i64);
    let back: Vec<f64> = cast_all(&singles);
    assert!(back.iter().zip(&singles).all(|(&a, &b)| same(a, f64::from(b))));
    let integers = [i64::MIN, -1, 0, 255, 256, 16_777_217, 1 << 40, i64::MAX];
    assert_eq!(cast_all::<i64, i32>(&integers), integers.map(|v| v as i32));
    assert_eq!(cast_all::<i64, u8>(&integers), integers.map(|v| v as u8));
    assert_eq!(cast_all::<i64, f32>(&integers), integers.map(|v| v as f32));
    // 2^24 + 2^16 is a tie of bf16 that goes to even; one more must go up, though f32 cannot tell the two apart.
    assert_eq!(cast_all::<i32, bf16>(&[16_842_752, 16_842_753]), [16_777_216.0, 16_908_288.0].map(bf16::from_f64));
}

#[test]
fn every_sixteen_bit_float_survives_and_rounds_as_half_does() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = bits.iter().map(|&b| f16::from_bits(b)).collect();
    let brains: Vec<bf16> = bits.iter().map(|&b| bf16::from_bits(b)).collect();
    let (from_half, from_brain) = (cast_all::<f16, f32>(&halves), cast_all::<bf16, f32>(&brains));
    assert!(from_half.iter().zip(&halves).all(|(&a, b)| same(a.into(), b.to_f64())));
    assert!(from_brain.iter().zip(&brains).all(|(&a, b)| same(a.into(), b.to_f64())));
    assert!(cast_all::<f32, f16>(&from_half).iter().zip(&halves).all(|(a, b)| same(a.to_f64(), b.to_f64())));
    assert!(
        cast_all::<f16, bf16>(&halves)
            .iter()
            .zip(&halves)
            .all(|(a, b)| same(a.to_f64(), bf16::from_f32(b.to_f32()).to_f64()))
    );
    // All f32 around every bf16, ties included.
    let near: Vec<f32> = bits
        .iter()
        .flat_map(|&b| [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| f32::from_bits(u32::from(b) << 16 | low)))
        .collect();
    assert!(cast_all::<f32, bf16>(&near).iter().zip(&near).all(|(a, &b)| same(a.to_f64(), bf16::from_f32(b).to_f64())));
    assert!(cast_all::<f32, f16>(&near).iter().zip(&near).all(|(a, &b)| same(a.to_f64(), f16::from_f32(b).to_f64())));
}

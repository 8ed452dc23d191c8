//! Transposing small tiles: rows of the source become columns of the destination.

#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::simd::{self, Level};

/// Writes `dst[j * dst_row + k] = src[k * src_row + j]` for `j < nj`, `k < nk`.
///
/// # Safety
/// All those places must be valid for reading and writing and the destination must not overlap the source; `T` has 1, 2, 4
/// or 8 bytes.
pub unsafe fn transpose<T: Copy>(src: *const T, src_row: isize, dst: *mut T, dst_row: isize, nj: usize, nk: usize) {
    // 16 x 16 elements at a time: whole cache lines on both sides are used up before others push them out.
    const BLOCK: usize = 16;
    let (whole_j, whole_k) = (nj / BLOCK * BLOCK, nk / BLOCK * BLOCK);
    if whole_j > 0 && whole_k > 0 {
        for k in 0..nk as isize {
            // SAFETY: the row is inside what the caller vouched for.
            unsafe { prefetch(src.offset(k * src_row), nj) };
        }
        for j in 0..nj as isize {
            // SAFETY: as above.
            unsafe { prefetch(dst.offset(j * dst_row), nk) };
        }
    }
    for j in (0..whole_j).step_by(BLOCK) {
        for k in (0..whole_k).step_by(BLOCK) {
            // SAFETY: `j + BLOCK <= nj` and `k + BLOCK <= nk`, so the block is inside what the caller vouched for.
            unsafe {
                let from = src.offset(k as isize * src_row + j as isize);
                let to = dst.offset(j as isize * dst_row + k as isize);
                block(from, src_row, to, dst_row);
            }
        }
    }
    // SAFETY: the two strips that are left, inside the same bounds.
    unsafe {
        simple(src, src_row, dst, dst_row, 0..whole_j, whole_k..nk);
        simple(src, src_row, dst, dst_row, whole_j..nj, 0..nk);
    }
}

/// Asks for a row ahead of its use: rows lie too far apart for the processor to guess the next one.
///
/// # Safety
/// `row` must point to `n` elements.
#[inline]
unsafe fn prefetch<T>(row: *const T, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // The last element may lie on a line of its own.
    for at in (0..n).step_by(64 / size_of::<T>()).chain([n.saturating_sub(1)]) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: inside the row; a prefetch changes nothing but the caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(row.add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (row, n);
}

/// # Safety
/// As for [`transpose`], restricted to the ranges.
#[inline]
unsafe fn simple<T: Copy>(
    src: *const T,
    src_row: isize,
    dst: *mut T,
    dst_row: isize,
    js: std::ops::Range<usize>,
    ks: std::ops::Range<usize>,
) {
    for j in js {
        for k in ks.clone() {
            let (j, k) = (j as isize, k as isize);
            // SAFETY: the caller's promise.
            unsafe { *dst.offset(j * dst_row + k) = *src.offset(k * src_row + j) };
        }
    }
}

/// One block of 16 x 16.
///
/// # Safety
/// As for [`transpose`] with `nj = nk = 16`.
#[inline]
unsafe fn block<T: Copy>(src: *const T, src_row: isize, dst: *mut T, dst_row: isize) {
    // SAFETY: the caller's promise; the x86 kernels are used for elements of the size they move, at the level they need.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        match size_of::<T>() {
            8 if simd::level() == Level::Avx2 => {
                for (j, k) in (0..16).map(|i| (i / 4 * 4, i % 4 * 4)) {
                    let from = src.offset(k * src_row + j).cast::<f64>();
                    x86::block_4x4_avx(from, src_row, dst.offset(j * dst_row + k).cast(), dst_row);
                }
                return;
            }
            4 if simd::level() == Level::Avx2 => {
                for (j, k) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
                    let from = src.offset(k * src_row + j).cast::<f32>();
                    x86::block_8x8_avx(from, src_row, dst.offset(j * dst_row + k).cast(), dst_row);
                }
                return;
            }
            2 => {
                for (j, k) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
                    let from = src.offset(k * src_row + j).cast::<u16>();
                    x86::block_8x8_sse2(from, src_row, dst.offset(j * dst_row + k).cast(), dst_row);
                }
                return;
            }
            _ => {}
        }
        // Through registers or the stack, so that each destination row is one run.
        let mut columns = [std::mem::MaybeUninit::<[T; 16]>::uninit(); 16];
        for (k, column) in columns.iter_mut().enumerate() {
            column.write(src.offset(k as isize * src_row).cast::<[T; 16]>().read_unaligned());
        }
        for j in 0..16 {
            let row: [T; 16] = std::array::from_fn(|k| columns[k].assume_init_ref()[j]);
            dst.offset(j as isize * dst_row).cast::<[T; 16]>().write_unaligned(row);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// 8 x 8 elements of 4 bytes.
    ///
    /// # Safety
    /// Rows `src + k * src_row` are readable and rows `dst + j * dst_row` writable, 8 elements each, for `j, k < 8`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn block_8x8_avx(src: *const f32, src_row: isize, dst: *mut f32, dst_row: isize) {
        // SAFETY: the caller's promise.
        let row = |k: isize| unsafe { _mm256_loadu_ps(src.offset(k * src_row)) };
        // Pairs of rows interleaved, then pairs of pairs, then the halves exchanged.
        let (a0, a1) = (_mm256_unpacklo_ps(row(0), row(1)), _mm256_unpackhi_ps(row(0), row(1)));
        let (a2, a3) = (_mm256_unpacklo_ps(row(2), row(3)), _mm256_unpackhi_ps(row(2), row(3)));
        let (a4, a5) = (_mm256_unpacklo_ps(row(4), row(5)), _mm256_unpackhi_ps(row(4), row(5)));
        let (a6, a7) = (_mm256_unpacklo_ps(row(6), row(7)), _mm256_unpackhi_ps(row(6), row(7)));
        let (b0, b1) = (_mm256_shuffle_ps::<0x44>(a0, a2), _mm256_shuffle_ps::<0xee>(a0, a2));
        let (b2, b3) = (_mm256_shuffle_ps::<0x44>(a1, a3), _mm256_shuffle_ps::<0xee>(a1, a3));
        let (b4, b5) = (_mm256_shuffle_ps::<0x44>(a4, a6), _mm256_shuffle_ps::<0xee>(a4, a6));
        let (b6, b7) = (_mm256_shuffle_ps::<0x44>(a5, a7), _mm256_shuffle_ps::<0xee>(a5, a7));
        // SAFETY: the caller's promise.
        let store = |j: isize, v: __m256| unsafe { _mm256_storeu_ps(dst.offset(j * dst_row), v) };
        store(0, _mm256_permute2f128_ps::<0x20>(b0, b4));
        store(1, _mm256_permute2f128_ps::<0x20>(b1, b5));
        store(2, _mm256_permute2f128_ps::<0x20>(b2, b6));
        store(3, _mm256_permute2f128_ps::<0x20>(b3, b7));
        store(4, _mm256_permute2f128_ps::<0x31>(b0, b4));
        store(5, _mm256_permute2f128_ps::<0x31>(b1, b5));
        store(6, _mm256_permute2f128_ps::<0x31>(b2, b6));
        store(7, _mm256_permute2f128_ps::<0x31>(b3, b7));
    }

    /// 4 x 4 elements of 8 bytes.
    ///
    /// # Safety
    /// As for [`block_8x8_avx`], with 4 for 8.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn block_4x4_avx(src: *const f64, src_row: isize, dst: *mut f64, dst_row: isize) {
        // SAFETY: the caller's promise.
        let row = |k: isize| unsafe { _mm256_loadu_pd(src.offset(k * src_row)) };
        let (a0, a1) = (_mm256_unpacklo_pd(row(0), row(1)), _mm256_unpackhi_pd(row(0), row(1)));
        let (a2, a3) = (_mm256_unpacklo_pd(row(2), row(3)), _mm256_unpackhi_pd(row(2), row(3)));
        // SAFETY: the caller's promise.
        let store = |j: isize, v: __m256d| unsafe { _mm256_storeu_pd(dst.offset(j * dst_row), v) };
        store(0, _mm256_permute2f128_pd::<0x20>(a0, a2));
        store(1, _mm256_permute2f128_pd::<0x20>(a1, a3));
        store(2, _mm256_permute2f128_pd::<0x31>(a0, a2));
        store(3, _mm256_permute2f128_pd::<0x31>(a1, a3));
    }

    /// 8 x 8 elements of 2 bytes, with what every x86-64 processor has.
    ///
    /// # Safety
    /// As for [`block_8x8_avx`].
    #[target_feature(enable = "sse2")]
    pub(super) unsafe fn block_8x8_sse2(src: *const u16, src_row: isize, dst: *mut u16, dst_row: isize) {
        // SAFETY: the caller's promise.
        let row = |k: isize| unsafe { _mm_loadu_si128(src.offset(k * src_row).cast()) };
        let (a0, a1) = (_mm_unpacklo_epi16(row(0), row(1)), _mm_unpackhi_epi16(row(0), row(1)));
        let (a2, a3) = (_mm_unpacklo_epi16(row(2), row(3)), _mm_unpackhi_epi16(row(2), row(3)));
        let (a4, a5) = (_mm_unpacklo_epi16(row(4), row(5)), _mm_unpackhi_epi16(row(4), row(5)));
        let (a6, a7) = (_mm_unpacklo_epi16(row(6), row(7)), _mm_unpackhi_epi16(row(6), row(7)));
        // Columns 0 and 1 of rows 0..4, columns 2 and 3, and so on.
        let (b0, b1) = (_mm_unpacklo_epi32(a0, a2), _mm_unpackhi_epi32(a0, a2));
        let (b2, b3) = (_mm_unpacklo_epi32(a1, a3), _mm_unpackhi_epi32(a1, a3));
        let (b4, b5) = (_mm_unpacklo_epi32(a4, a6), _mm_unpackhi_epi32(a4, a6));
        let (b6, b7) = (_mm_unpacklo_epi32(a5, a7), _mm_unpackhi_epi32(a5, a7));
        // SAFETY: the caller's promise.
        let store = |j: isize, v: __m128i| unsafe { _mm_storeu_si128(dst.offset(j * dst_row).cast(), v) };
        store(0, _mm_unpacklo_epi64(b0, b4));
        store(1, _mm_unpackhi_epi64(b0, b4));
        store(2, _mm_unpacklo_epi64(b1, b5));
        store(3, _mm_unpackhi_epi64(b1, b5));
        store(4, _mm_unpacklo_epi64(b2, b6));
        store(5, _mm_unpackhi_epi64(b2, b6));
        store(6, _mm_unpacklo_epi64(b3, b7));
        store(7, _mm_unpackhi_epi64(b3, b7));
    }
}

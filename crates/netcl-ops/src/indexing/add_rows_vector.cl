// Adding at indices on processors: work-item g has the elements g * per, ... of the result and walks through the sorted keys.
//
//        keys    0  0  2  2  2  5            row 2 is summed from its three sources, a tile of vectors at a time;
//        rows    ++ 00 ++ 00 00 ++           rows 3 and 4, which have none, are filled as one stretch
//
// Tensors and sums are those of add_rows.cl.
//
// Compiled with: TYPE, COMPUTE             the element in memory and in sums
//                LOAD(p, i), STORE(v, p, i)
//                WIDTH, VCOMPUTE, LOADV(p), STOREV(v, p)   vectors that may begin at any element
//                KEYS, PLACES              the types of sorted destinations and of sources: int or long
//                UINT                      the type that counts elements

#ifndef UINT
#define UINT uint
#endif
#ifndef TYPE
#define TYPE float
#define COMPUTE float
#define LOAD(p, i) ((p)[i])
#define STORE(v, p, i) ((p)[i] = (v))
#define WIDTH 16
#define VCOMPUTE float16
#define LOADV(p) vload16(0, p)
#define STOREV(v, p) vstore16(v, 0, p)
#endif
#ifndef KEYS
#define KEYS int
#define PLACES int
#endif

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#define UNROLL _Pragma("unroll")
#define LOAD1(p) LOAD(p, 0)
#define STORE1(v, p) STORE(v, p, 0)

// The first of the keys from `low` on that does not lie before one.
uint first_key(__global const KEYS *keys, uint low, uint high, KEYS own) {
    while (low < high) {
        const uint middle = low + (high - low) / 2;
        if (keys[middle] < own) low = middle + 1;
        else high = middle;
    }
    return low;
}

// K vectors (or elements) of type T, from element e of the piece on: the sources low to next, each `inner` elements long. What
// each addition rounds off is carried along (Knuth's two-sum); an infinite sum has lost nothing (the formula says NaN).
#define SUM(T, K, width, load, store)                                                              \
    {                                                                                              \
        T sum[K], lost[K];                                                                         \
        UNROLL for (uint c = 0; c < K; ++c) sum[c] = lost[c] = (T)(0);                             \
        for (uint s = low; s < next; ++s) {                                                        \
            __global const TYPE *from = source + (UINT)order[s] * inner + i + e;                   \
            UNROLL for (uint c = 0; c < K; ++c) {                                                  \
                const T v = load(from + c * width), sum_ = sum[c] + v, part = sum_ - sum[c];       \
                lost[c] += (sum[c] - (sum_ - part)) + (v - part);                                  \
                sum[c] = sum_;                                                                     \
            }                                                                                      \
        }                                                                                          \
        UNROLL for (uint c = 0; c < K; ++c) {                                                      \
            sum[c] += isfinite(sum[c]) ? lost[c] : (T)(0);                                         \
            if (has_x) sum[c] += load(x + e + c * width);                                          \
            store(sum[c], y + e + c * width);                                                      \
        }                                                                                          \
    }

// Vectors of a tile.
#define TILE 4

__kernel void add_rows_vector(__global const TYPE *source, const ulong source_at, __global const KEYS *keys,
                              const ulong keys_at, __global const PLACES *order, const ulong order_at, __global TYPE *y,
                              const ulong y_at, const UINT total, const UINT n, const UINT k, const UINT inner,
                              const uint count, __global const TYPE *x, const ulong x_at, const uint has_x,
                              const UINT per) {
    const UINT first = (UINT)get_global_id(0) * per;
    if (first >= total) return;
    UINT left = total - first < per ? total - first : per;
    keys += keys_at;
    order += order_at;
    x += x_at + first;
    y += y_at + first;
    // Element i of destination `own`, at the outer place whose sources begin at `source`.
    UINT i = first % inner, own = first / inner % n;
    source += source_at + first / inner / n * k * inner;
    uint low = first_key(keys, 0, count, (KEYS)own);
    while (left > 0) {
        UINT stretch, e = 0, after = own + 1;
        if (low < count && keys[low] == (KEYS)own) {
            uint next = low + 1;
            while (next < count && keys[next] == (KEYS)own) ++next;
            stretch = inner - i < left ? inner - i : left;
            for (; stretch - e >= TILE * WIDTH; e += TILE * WIDTH) SUM(VCOMPUTE, TILE, WIDTH, LOADV, STOREV)
            for (; stretch - e >= WIDTH; e += WIDTH) SUM(VCOMPUTE, 1, WIDTH, LOADV, STOREV)
            for (; e < stretch; ++e) SUM(COMPUTE, 1, 1, LOAD1, STORE1)
            low = next;
        } else {
            // Up to the next destination that has sources, or the last.
            after = low < count && keys[low] < (KEYS)n ? (UINT)keys[low] : n;
            const UINT gap = (after - own) * inner - i;
            stretch = gap < left ? gap : left;
            for (; stretch - e >= WIDTH; e += WIDTH) {
                const VCOMPUTE v = has_x ? (VCOMPUTE)(0) + LOADV(x + e) : (VCOMPUTE)(0);
                STOREV(v, y + e);
            }
            for (; e < stretch; ++e) {
                const COMPUTE v = has_x ? (COMPUTE)(0) + LOAD1(x + e) : (COMPUTE)(0);
                STORE1(v, y + e);
            }
        }
        x += stretch;
        y += stretch;
        left -= stretch;
        i = 0;
        own = after;
        if (own == n) {
            own = 0;
            low = first_key(keys, 0, count, 0);
            source += k * inner;
        }
    }
}

// Reading and adding at indices. Tensors are dense and seen as [outer, axis, inner].
//
//   take         x [outer, n, inner], k indices               ->  [outer, k, inner]     work-item g: element g of the result
//   take_along   x [outer, n, inner], [outer, k, inner] ones  ->  [outer, k, inner]
//   add_rows     source [outer, k, inner]                     ->  [outer, n, inner]     work-item g: element g of the result
//
//        keys    0  0  2  2  2  5            destinations, sorted
//        order   3  7  0  1  9  4            their sources, in the order of the indices
//                      ^--------^            the owner of row 2 finds its first key by bisection and sums up to the next
//
//   one_hot      indices                                      ->  [count, classes]
//
// An index outside its range is never followed: reads give `outside` (bits), additions have no destination that finds them.
//
// Compiled with: BITS            an unsigned integer of the element's size (take, take_along)
//                INDEX           int or long
//                UINT            the type that counts elements
//                TYPE, COMPUTE   the element in memory and in sums (add_rows, one_hot)
//                LOAD(p, i), STORE(v, p, i)
//                WITH_BASE       1 where there is something to add to
//                KEYS, PLACES    the types of sorted destinations and their sources: int or long

#ifndef BITS
#define BITS uint
#endif
#ifndef INDEX
#define INDEX long
#endif
#ifndef UINT
#define UINT uint
#endif
#ifndef TYPE
#define TYPE float
#define COMPUTE float
#define LOAD(p, i) ((p)[i])
#define STORE(v, p, i) ((p)[i] = (v))
#endif
#ifndef WITH_BASE
#define WITH_BASE 1
#endif
#ifndef KEYS
#define KEYS int
#define PLACES int
#endif

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

__kernel void take(__global const BITS *x, const ulong x_at, __global const INDEX *indices, const ulong indices_at,
                   __global BITS *y, const ulong y_at, const UINT total, const UINT n, const UINT k, const UINT inner,
                   const ulong outside) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const UINT row = g / inner, i = g % inner, o = row / k;
    const INDEX v = indices[indices_at + row % k];
    const bool inside = v >= 0 && (ulong)v < n;
    y[y_at + g] = inside ? x[x_at + (o * n + (UINT)v) * inner + i] : (BITS)outside;
}

__kernel void take_along(__global const BITS *x, const ulong x_at, __global const INDEX *indices, const ulong indices_at,
                         __global BITS *y, const ulong y_at, const UINT total, const UINT n, const UINT k, const UINT inner,
                         const ulong outside) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const UINT i = g % inner, o = g / inner / k;
    const INDEX v = indices[indices_at + g];
    const bool inside = v >= 0 && (ulong)v < n;
    y[y_at + g] = inside ? x[x_at + (o * n + (UINT)v) * inner + i] : (BITS)outside;
}

// Where every place has indices of its own: the element that each source is added to, or -1.
__kernel void destinations(__global const INDEX *indices, const ulong indices_at, __global long *y, const ulong y_at,
                           const UINT total, const UINT n, const UINT k, const UINT inner) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const INDEX v = indices[indices_at + g];
    const bool inside = v >= 0 && (ulong)v < n;
    y[y_at + g] = inside ? ((long)(g / inner / k) * n + (long)v) * inner + g % inner : -1L;
}

__kernel void add_rows(__global const TYPE *source, const ulong source_at, __global const KEYS *keys, const ulong keys_at,
                       __global const PLACES *order, const ulong order_at, __global TYPE *y, const ulong y_at, const UINT total, const UINT n,
                       const UINT k, const UINT inner, const uint count
#if WITH_BASE
                       , __global const TYPE *x, const ulong x_at
#endif
) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const UINT row = g / inner, i = g % inner, o = row / n;
    const KEYS own = (KEYS)(row % n);
    keys += keys_at;
    order += order_at;
    uint low = 0, high = count;
    while (low < high) {
        const uint middle = low + (high - low) / 2;
        if (keys[middle] < own) low = middle + 1;
        else high = middle;
    }
    // What each addition rounds off is carried along (Knuth's two-sum).
    COMPUTE sum = 0, lost = 0;
    for (; low < count && keys[low] == own; ++low) {
        const COMPUTE v = LOAD(source, source_at + (o * k + (UINT)order[low]) * inner + i);
        const COMPUTE next = sum + v, part = next - sum;
        lost += (sum - (next - part)) + (v - part);
        sum = next;
    }
    // An infinite sum has lost nothing (the formula above says NaN).
    if (isfinite(sum)) sum += lost;
#if WITH_BASE
    sum += LOAD(x, x_at + g);
#endif
    STORE(sum, y, y_at + g);
}

__kernel void one_hot(__global const INDEX *indices, const ulong indices_at, __global TYPE *y, const ulong y_at,
                      const UINT total, const UINT classes) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const COMPUTE v = indices[indices_at + g / classes] == (INDEX)(g % classes) ? 1 : 0;
    STORE(v, y, y_at + g);
}

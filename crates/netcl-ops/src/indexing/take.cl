// Reading at indices. Tensors are dense and seen as [outer, axis, inner].
//
//   take           x [outer, n, inner], k indices               ->  [outer, k, inner]     work-item g: element g of the result
//         (along)  x [outer, n, inner], [outer, k, inner] ones  ->  [outer, k, inner]
//   destinations   [outer, k, inner] indices                    ->  where in [outer, n, inner] each of them leads
//
// An index outside its range is never followed: reads give `outside` (bits).
//
// Compiled with: BITS    an unsigned integer of the element's size, or 16 bytes of elements that lie together (inner counts these)
//                OUTSIDE(bits)   what is read outside, from a pattern of 8 bytes

#ifndef OUTSIDE
#define OUTSIDE(bits) (BITS)(bits)
#endif

__kernel void take(__global const BITS *x, const ulong x_at, __global const INDEX *indices, const ulong indices_at,
                   __global BITS *y, const ulong y_at, const UINT total, const UINT n, const UINT k, const UINT inner,
                   const uint along, const ulong outside) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const UINT row = g / inner, i = g % inner, o = row / k;
    const INDEX v = indices[indices_at + (along ? g : row % k)];
    const bool inside = v >= 0 && (ulong)v < n;
    y[y_at + g] = inside ? x[x_at + (o * n + (UINT)v) * inner + i] : OUTSIDE(outside);
}

// -1 for an index that leads nowhere.
__kernel void destinations(__global const INDEX *indices, const ulong indices_at, __global long *y, const ulong y_at,
                           const UINT total, const UINT n, const UINT k, const UINT inner) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const INDEX v = indices[indices_at + g];
    const bool inside = v >= 0 && (ulong)v < n;
    y[y_at + g] = inside ? ((long)(g / inner / k) * n + (long)v) * inner + g % inner : -1L;
}

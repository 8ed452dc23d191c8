// Writing at indices, and indices of several axes as positions. Tensors are dense and seen as [outer, axis, inner].
//
//   put_rows    source [outer, k, inner]  ->  rows of y [outer, n, inner]   work-item g: element i of row order[p] of place o
//
//        keys    0  0  2  2  2  5            destinations, sorted
//        order   3  7  0  1  9  4            their sources, in the order of the indices
//                   ^        ^  ^            the last of each destination is written
//
//   positions   base [count], indices [count]  ->  base * length + index, where an index below 0 counts from the end
//
// An index outside its range is never followed: put_rows leaves it out, and its position is -1.
//
// Compiled with: KEYS, PLACES   the types of sorted destinations and of sources: int or long

#ifndef KEYS
#define KEYS int
#define PLACES int
#endif

__kernel void put_rows(__global const BITS *source, const ulong source_at, __global const KEYS *keys, const ulong keys_at,
                       __global const PLACES *order, const ulong order_at, __global BITS *y, const ulong y_at,
                       const UINT total, const UINT n, const UINT k, const UINT inner, const UINT count) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const UINT row = g / inner, i = g % inner, o = row / count, p = row % count;
    const KEYS own = keys[keys_at + p];
    if (own < 0 || (ulong)own >= n || (p + 1 < count && keys[keys_at + p + 1] == own)) return;
    y[y_at + (o * n + (UINT)own) * inner + i] = source[source_at + (o * k + (UINT)order[order_at + p]) * inner + i];
}

__kernel void positions(__global const long *base, const ulong base_at, __global const INDEX *indices,
                        const ulong indices_at, __global long *y, const ulong y_at, const ulong total,
                        const ulong length) {
    const ulong g = get_global_id(0);
    if (g >= total) return;
    const long n = (long)length, before = base[base_at + g], v = indices[indices_at + g];
    const bool inside = before >= 0 && v >= -n && v < n;
    y[y_at + g] = inside ? before * n + (v < 0 ? v + n : v) : -1L;
}

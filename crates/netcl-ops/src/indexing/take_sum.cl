// Rows of two dense tables [n, inner] and [m, inner], added: work-item g makes element g of the result.
//
//   x [n, inner], one index a row   +   y [m, inner], `places` indices, one or one a row   ->   [rows, inner]
//
// An index outside its range is never followed: it makes its row NaN.
//
// Compiled with: PLACE   the type of the second table's indices

#ifndef PLACE
#define PLACE long
#endif

__kernel void take_sum(__global const ELEMENT *x, const ulong x_at, __global const INDEX *indices, const ulong indices_at,
                       __global const ELEMENT *y, const ulong y_at, __global const PLACE *place, const ulong place_at,
                       __global ELEMENT *out, const ulong out_at, const UINT total, const UINT n, const UINT m,
                       const UINT inner, const UINT places) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const UINT row = g / inner, i = g % inner;
    const INDEX v = indices[indices_at + row];
    const PLACE w = place[place_at + row % places];
    const bool inside = v >= 0 && (ulong)v < n && w >= 0 && (ulong)w < m;
    const COMPUTE sum = inside ? LOAD(x, x_at + (UINT)v * inner + i) + LOAD(y, y_at + (UINT)w * inner + i) : (COMPUTE)NAN;
    STORE(sum, out, out_at + g);
}

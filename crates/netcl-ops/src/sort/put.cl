// The gradient of sorting: element g of a line of k goes to its position in a line of n. Positions are distinct in each line;
// one outside it is left out.
//
// Compiled with: INDEX  int or long

__kernel void put(__global const BITS *x, const ulong x_at, __global const INDEX *indices, const ulong indices_at,
                  __global BITS *y, const ulong y_at, const UINT total, const UINT n, const UINT k) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const INDEX at = indices[indices_at + g];
    if (at >= 0 && (ulong)at < n) y[y_at + g / k * n + (UINT)at] = x[x_at + g];
}

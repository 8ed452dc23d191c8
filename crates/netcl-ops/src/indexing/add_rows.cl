// Adding at indices, and their one-hot form. Tensors are dense and seen as [outer, axis, inner].
//
//   add_rows     source [outer, k, inner]  ->  [outer, n, inner]     work-item g: vector g of the result, inner counts vectors
//
//        keys    0  0  2  2  2  5            destinations, sorted
//        order   3  7  0  1  9  4            their sources, in the order of the indices
//                      ^--------^            the owner of row 2 finds its first key by bisection and sums up to the next
//
//   one_hot      indices                   ->  [count, classes]
//
// Compiled with: KEYS, PLACES              the types of sorted destinations (or indices) and of sources: int or long

// What is added to: vector g of x, or nothing.
__kernel void add_rows(__global const ELEMENT *source, const ulong source_at, __global const KEYS *keys, const ulong keys_at,
                       __global const PLACES *order, const ulong order_at, __global ELEMENT *y, const ulong y_at,
                       const UINT total, const UINT n, const UINT k, const UINT inner, const uint count,
                       __global const ELEMENT *x, const ulong x_at, const uint has_x) {
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
    VCOMPUTE sum = (VCOMPUTE)(0), lost = (VCOMPUTE)(0);
    for (; low < count && keys[low] == own; ++low) {
        const VCOMPUTE v = LOADV(source + source_at + ((o * k + (UINT)order[low]) * inner + i) * WIDTH);
        FOLD(VCOMPUTE, sum, lost, v)
    }
    // An infinite sum has lost nothing (the formula above says NaN).
    sum += isfinite(sum) ? lost : (VCOMPUTE)(0);
    if (has_x) sum += LOADV(x + x_at + g * WIDTH);
    STOREV(sum, y + y_at + g * WIDTH);
}

__kernel void one_hot(__global const KEYS *indices, const ulong indices_at, __global ELEMENT *y, const ulong y_at,
                      const UINT total, const UINT classes) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const COMPUTE v = indices[indices_at + g / classes] == (KEYS)(g % classes) ? 1 : 0;
    STORE(v, y, y_at + g);
}

// Sums and maxima of stretches of the rows of [rows, width]: stretch b lies from offsets[b] to offsets[b + 1], the last to the end.
//
//   segment_sum      work-item g -> column g % width of stretch g / width
//   segment_argmax   the row of its largest element

// Offsets are whatever the device holds: rows outside are left out.
UINT bound(__global const long *offsets, UINT at, UINT count, UINT rows) {
    return at < count ? (UINT)clamp(offsets[at], 0L, (long)rows) : rows;
}

#define STRETCH                                         \
    const UINT g = get_global_id(0);                    \
    if (g >= count * width) return;                     \
    const UINT column = g % width, at = g / width;      \
    const UINT end = bound(offsets + offsets_at, at + 1, count, rows); \
    UINT row = bound(offsets + offsets_at, at, count, rows);

#ifdef KERNEL_segment_sum
__kernel void segment_sum(__global const ELEMENT *x, const ulong x_at, __global const long *offsets, const ulong offsets_at,
                          __global ELEMENT *y, const ulong y_at, const UINT count, const UINT width, const UINT rows) {
    STRETCH
    COMPUTE sum = 0, lost = 0;
    for (; row < end; ++row) {
        const COMPUTE v = LOAD(x, x_at + (ulong)row * width + column);
        FOLD(COMPUTE, sum, lost, v)
    }
    // An infinite sum has lost nothing (the formula of FOLD says NaN).
    STORE(isfinite(sum) ? sum + lost : sum, y, y_at + g);
}
#endif

#ifdef KERNEL_segment_argmax
__kernel void segment_argmax(__global const ELEMENT *x, const ulong x_at, __global const long *offsets, const ulong offsets_at,
                             __global long *y, const ulong y_at, const UINT count, const UINT width, const UINT rows) {
    STRETCH
    UINT best = row < end ? row : 0;
    COMPUTE most = LOAD(x, x_at + (ulong)best * width + column);
    for (++row; row < end; ++row) {
        const COMPUTE v = LOAD(x, x_at + (ulong)row * width + column);
        if (v > most || (isnan(v) && !isnan(most))) {
            most = v;
            best = row;
        }
    }
    y[y_at + g] = (long)best;
}
#endif

// A matrix product of few elements and many terms: a work-group shares out the terms of 4 x 4 elements.
//
//            k                      k
//    +----------------+     +----------------+            n
//    |0123..01|23..   |     |0123..01|23..   |        +-------+
//  4 |0123..01|23..   |   4 |0123..01|23..   |   -> m | 4 x 4 |     work-item i takes terms i, i + ITEMS, ...;
//    +----------------+     +----------------+        +-------+     then the group adds up, always in the same order
//      rows of a              columns of b
//
// The launch needs no second one to add partial results. Made for operands that lie densely along k; right for all.
// z counts matrices of the batch (two axes, the inner one of length batch1); splits is 1.
//
// Compiled with: ITEMS   the size of a work-group, a multiple of 16;   the others as in matmul_naive.cl
// The defaults make this file compile alone.

#ifndef T
#define T float
#endif
#ifndef SUM
#define SUM float
#endif
#ifndef OUT
#define OUT float
#endif
#ifndef INDEX
#define INDEX long
#endif
#ifndef LOAD
#define LOAD(p, i) ((p)[i])
#endif
#ifndef STORE
#define STORE(v, p, i) ((p)[i] = (v))
#endif
#ifndef EPILOGUE
#define EPILOGUE_PARAMS
#define EPILOGUE(sum, row, col, i0, i1) (sum)
#endif
#ifndef ITEMS
#define ITEMS 256
#endif
#define LANES (ITEMS / 16)

#pragma OPENCL FP_CONTRACT OFF

kernel void matmul_dots(
    global const T *a, ulong a_at, global const T *b, ulong b_at, global OUT *c, ulong c_at,
    INDEX m, INDEX n, INDEX k, INDEX batch1, INDEX splits, INDEX depth,
    INDEX a_rs, INDEX a_cs, INDEX a_b0, INDEX a_b1, INDEX b_rs, INDEX b_cs, INDEX b_b0, INDEX b_b1,
    INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1, INDEX c_split EPILOGUE_PARAMS) {
    local SUM parts[16 * ITEMS];
    const INDEX item = get_local_id(0), z = get_global_id(2);
    const INDEX col0 = (INDEX)get_group_id(0) * 4, row0 = (INDEX)get_group_id(1) * 4;
    const INDEX i1 = z % batch1, i0 = z / batch1;
    a += a_at + i0 * a_b0 + i1 * a_b1;
    b += b_at + i0 * b_b0 + i1 * b_b1;
    c += c_at + i0 * c_b0 + i1 * c_b1;
    INDEX rows[4], cols[4];
    SUM sums[16];
    // Beyond the edge the last line is computed again, and not stored.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        rows[i] = min(row0 + i, m - 1) * a_rs;
        cols[i] = min(col0 + i, n - 1) * b_cs;
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) sums[i] = 0;
    for (INDEX at = item; at < k; at += ITEMS) {
        SUM x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = LOAD(a, rows[i] + at * a_cs);
            y[i] = LOAD(b, cols[i] + at * b_rs);
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) sums[i] = fma(x[i / 4], y[i % 4], sums[i]);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) parts[i * ITEMS + item] = sums[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    // LANES work-items for each element, then one.
    const INDEX element = item / LANES, lane = item % LANES;
    SUM sum = 0;
    for (int i = 0; i < 16; ++i) sum += parts[element * ITEMS + i * LANES + lane];
    barrier(CLK_LOCAL_MEM_FENCE);
    parts[element * ITEMS + lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    const INDEX row = row0 + item / 4, col = col0 + item % 4;
    if (item >= 16 || row >= m || col >= n) return;
    sum = 0;
    for (int i = 0; i < LANES; ++i) sum += parts[item * ITEMS + i];
    STORE(EPILOGUE(sum, row, col, i0, i1), c, row * c_rs + col * c_cs);
}

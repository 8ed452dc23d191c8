// A matrix product, one element per work-item.
//
//        k                n                    n
//    +-------+        +---|---+            +-------+
//  m |=======|  x   k |   |   |   ->     m |   +   |   work-item (col, row, z): one row times one column
//    +-------+        +---|---+            +-------+
//
// z counts matrices of the batch (two axes, the inner one of length batch1) and, within each, parts of k: a launch with
// splits > 1 writes one partial result per part, c_split apart, for matmul_splitk_reduce.cl to add.

kernel void matmul_naive(
    global const T *a, ulong a_at, global const T *b, ulong b_at, global OUT *c, ulong c_at,
    INDEX m, INDEX n, INDEX k, INDEX batch1, INDEX splits, INDEX depth,
    INDEX a_rs, INDEX a_cs, INDEX a_b0, INDEX a_b1, INDEX b_rs, INDEX b_cs, INDEX b_b0, INDEX b_b1,
    INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1, INDEX c_split EPILOGUE_PARAMS PROLOGUE_PARAMS) {
    const INDEX col = get_global_id(0), row = get_global_id(1), z = get_global_id(2);
    if (row >= m || col >= n) return;
    const INDEX split = z % splits, i1 = z / splits % batch1, i0 = z / splits / batch1;
    const INDEX first = split * depth, last = min(k, first + depth);
    a += a_at + i0 * a_b0 + i1 * a_b1;
    b += b_at + i0 * b_b0 + i1 * b_b1;
    c += c_at + i0 * c_b0 + i1 * c_b1 + split * c_split;
    SUM sum = 0;
    for (INDEX i = first; i < last; ++i)
        sum = fma((SUM)A_VALUE(LOAD(a, row * a_rs + i * a_cs), row, i), (SUM)B_VALUE(LOAD(b, i * b_rs + col * b_cs), col, i), sum);
    STORE(EPILOGUE(sum, row, col, i0, i1), c, row * c_rs + col * c_cs);
}

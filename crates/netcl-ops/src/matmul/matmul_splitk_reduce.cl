// Adds the partial results of a product whose terms were split among work-groups, always in the same order.
//
//      part 0      part 1      part 2               c
//    +-------+   +-------+   +-------+          +-------+
//  m |   +   | + |   +   | + |   +   |   ->   m |   +   |     work-item (col, row, matrix): the sum over the parts,
//    +-------+   +-------+   +-------+          +-------+     then the epilogue
//        n
//
// Many parts of few results are shared by SLICES work-items, each of which takes every SLICES-th part.
//
// Compiled with: WIDTH, SLICES  where slices are more than one: columns of a work-group, work-items of a column

kernel void matmul_splitk_reduce(
    global const SUM *parts, global OUT *c, ulong c_at, INDEX m, INDEX n, INDEX batch1, INDEX splits, INDEX part,
    INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1 EPILOGUE_PARAMS) {
    const INDEX col = get_global_id(0), z = get_global_id(2);
#if SLICES > 1
    const INDEX row = get_group_id(1);
    const int slice = (int)get_local_id(1);
#else
    const INDEX row = get_global_id(1);
    const int slice = 0;
#endif
    const bool inside = row < m && col < n;
    SUM sum = 0;
    if (inside) {
        parts += (z * m + row) * n + col;
#pragma unroll 4
        for (INDEX i = slice; i < splits; i += SLICES) sum += parts[i * part];
    }
#if SLICES > 1
    local SUM sums[SLICES][WIDTH];
    const int place = (int)get_local_id(0);
    sums[slice][place] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0) return;
    for (int i = 1; i < SLICES; ++i) sum += sums[i][place];
#endif
    if (!inside) return;
    const INDEX i1 = z % batch1, i0 = z / batch1;
    c += c_at + i0 * c_b0 + i1 * c_b1;
    STORE(EPILOGUE(sum, row, col, i0, i1), c, row * c_rs + col * c_cs);
}

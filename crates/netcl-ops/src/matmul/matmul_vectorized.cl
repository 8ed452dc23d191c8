// A matrix product for CPU devices: a block of vectors per work-item, no local memory and no barriers.
//
//                               VECTORS * WIDTH
//                              +-------+-------+
//                            k |   b   |       |      each step along k loads one row of the panel of b (VECTORS vectors)
//           k                  +-------+-------+      and multiplies it by ROWS single values of a
//    +-------------+           +-------+-------+
//  R |  a          |     ->    | sums  |       | R
//    +-------------+           +-------+-------+
//
//   a panel in memory:   a packed panel of a:  a00 a10 a20 .. | a01 a11 a21 .. | ...   ROWS values for each term
//                        a packed panel of b:  b00 b01 b02 .. | b10 b11 b12 .. | ...   VECTORS * WIDTH values for each term
//
// matmul_pack.cl writes such panels, padded with zeros and already of type SUM. An unpacked b must have rows that lie
// densely and a whole number of panels; an unpacked a may have any strides. Work-items along the rows share a panel of b,
// which stays in the cache. Batches and splits of k: see matmul_naive.cl.
//
// Compiled with: A, SUM, OUT    the types of a in memory, of b and the sums, of the result in memory
//                LOAD_A(p, i), STORE(v, p, i)   an element of a as a SUM; a value as the result's element
//                VEC, VLOAD, VSTORE, WIDTH      the vector type of SUM, its functions and length
//                ROWS, VECTORS  the block
//                PACKED_A, PACKED_B   1 where the operand was packed
//                PLAIN          1 where sums are stored as they are, as vectors if the columns of c lie densely

#define COLS (WIDTH * VECTORS)

kernel void matmul_vectorized(
    global const A *a, ulong a_at, global const SUM *b, ulong b_at, global OUT *c, ulong c_at,
    INDEX m, INDEX n, INDEX k, INDEX batch1, INDEX splits, INDEX depth,
    INDEX a_rs, INDEX a_cs, INDEX a_b0, INDEX a_b1, INDEX b_rs, INDEX b_cs, INDEX b_b0, INDEX b_b1,
    INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1, INDEX c_split EPILOGUE_PARAMS) {
    const INDEX row0 = (INDEX)get_global_id(0) * ROWS, col0 = (INDEX)get_global_id(1) * COLS, z = get_global_id(2);
    const INDEX split = z % splits, i1 = z / splits % batch1, i0 = z / splits / batch1;
    const INDEX first = split * depth, last = min(k, first + depth);
    a += a_at + i0 * a_b0 + i1 * a_b1;
    b += b_at + i0 * b_b0 + i1 * b_b1;
    c += c_at + i0 * c_b0 + i1 * c_b1 + split * c_split;
#if PACKED_A
    a += row0 * k + first * ROWS;
#else
    // Rows past the end read the last one; what becomes of them is not stored.
    INDEX row_at[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) row_at[r] = min(row0 + r, m - 1) * a_rs + first * a_cs;
#endif
#if PACKED_B
    b += col0 * k + first * COLS;
    const INDEX step = COLS;
#else
    b += col0 + first * b_rs;
    const INDEX step = b_rs;
#endif
    VEC sums[ROWS][VECTORS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = (VEC)(0);
    for (INDEX i = 0; i < last - first; ++i) {
        VEC right[VECTORS];
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) right[v] = VLOAD(0, b + v * WIDTH);
        b += step;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#if PACKED_A
            const VEC left = (VEC)(a[r]);
#else
            const VEC left = (VEC)(LOAD_A(a, row_at[r] + i * a_cs));
#endif
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = fma(left, right[v], sums[r][v]);
        }
#if PACKED_A
        a += ROWS;
#endif
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const INDEX row = row0 + r;
        if (row >= m) continue;
#if PLAIN
        if (c_cs == 1 && col0 + COLS <= n) {
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) VSTORE(sums[r][v], 0, c + row * c_rs + col0 + v * WIDTH);
            continue;
        }
#endif
        SUM lanes[COLS];
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) VSTORE(sums[r][v], 0, lanes + v * WIDTH);
        for (int s = 0; s < COLS && col0 + s < n; ++s) {
            const INDEX col = col0 + s;
            STORE(EPILOGUE(lanes[s], row, col, i0, i1), c, row * c_rs + col * c_cs);
        }
    }
}

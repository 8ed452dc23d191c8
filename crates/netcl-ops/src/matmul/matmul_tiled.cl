// A matrix product with square tiles in local memory, one element per work-item.
//
//          k                    n                      n
//    +---+---+---+        +---+---+---+          +---+---+---+
//    |   |   |   |        |   | v |   |          |   |   |   |
//  m +---+---+---+      k +---+---+---+   ->   m +---+---+---+     a work-group owns one TILE x TILE tile of c and
//    | > | > | > |        |   | v |   |          |   | c |   |     walks along k: each step copies one tile of a and
//    +---+---+---+        +---+---+---+          +---+---+---+     one of b to local memory, where they are used TILE times
//                         |   | v |   |
//                         +---+---+---+
//
// Tiles at the edges are filled up with zeros, so that all work-items pass all barriers. Batches and splits of k: see
// matmul_naive.cl.
//
// Compiled with: TILE           the side of a tile: TILE * TILE work-items in a group

kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void matmul_tiled(
    global const T *a, ulong a_at, global const T *b, ulong b_at, global OUT *c, ulong c_at,
    INDEX m, INDEX n, INDEX k, INDEX batch1, INDEX splits, INDEX depth,
    INDEX a_rs, INDEX a_cs, INDEX a_b0, INDEX a_b1, INDEX b_rs, INDEX b_cs, INDEX b_b0, INDEX b_b1,
    INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1, INDEX c_split EPILOGUE_PARAMS PROLOGUE_PARAMS) {
    local SUM a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1];
    const INDEX x = get_local_id(0), y = get_local_id(1), z = get_group_id(2);
    const INDEX col = get_group_id(0) * TILE + x, row = get_group_id(1) * TILE + y;
    const INDEX split = z % splits, i1 = z / splits % batch1, i0 = z / splits / batch1;
    const INDEX first = split * depth, last = min(k, first + depth);
    a += a_at + i0 * a_b0 + i1 * a_b1;
    b += b_at + i0 * b_b0 + i1 * b_b1;
    c += c_at + i0 * c_b0 + i1 * c_b1 + split * c_split;
    SUM sum = 0;
    for (INDEX start = first; start < last; start += TILE) {
        const INDEX across = start + x, down = start + y;
        a_tile[y][x] = row < m && across < last ? A_VALUE(LOAD(a, row * a_rs + across * a_cs), row, across) : (SUM)0;
        b_tile[y][x] = down < last && col < n ? B_VALUE(LOAD(b, down * b_rs + col * b_cs), col, down) : (SUM)0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < TILE; ++i) sum = fma(a_tile[y][i], b_tile[i][x], sum);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (row < m && col < n) STORE(EPILOGUE(sum, row, col, i0, i1), c, row * c_rs + col * c_cs);
}

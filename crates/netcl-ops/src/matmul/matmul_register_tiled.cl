// A matrix product with tiles in local memory and a block of results in each work-item's registers.
//
//          DEPTH                  COLS                     COLS
//         +-----+              +---------+          +----+----+----+
//         |  a  |              |    b    | DEPTH    | 0  | 1  | 0 1|   work-group: a ROWS x COLS tile of c
//    ROWS |     |      x       +---------+    ->    +----+----+----+   work-item (x, y): rows y, y + ROWS/R, ...
//         |     |                              ROWS | 2  | 3  | 2 3|                   columns x, x + COLS/C, ...
//         +-----+                                   +----+----+----+   R x C sums, interleaved as the digits show
//
// Per step along k a group copies ROWS x DEPTH of a and DEPTH x COLS of b to local memory, and each work-item does R * C
// multiply-adds for every R + C values it reads from there. Interleaved rows and columns keep neighbouring work-items on
// neighbouring addresses. Edges are filled up with zeros; batches and splits of k: see matmul_naive.cl.
//
// Compiled with: T, SUM, OUT    the types of the operands in memory, of the sums, of the result in memory
//                INDEX          int where all positions fit, else long
//                LOAD(p, i), STORE(v, p, i)   an operand's element as a SUM; a value as the result's element
//                EPILOGUE(sum, row, col, i0, i1), EPILOGUE_PARAMS   what becomes of a sum, and the arguments it needs
//                ROWS, COLS, DEPTH, R, C   the tile; (ROWS / R) * (COLS / C) work-items in a group
//                GUARDED                   1 where a flag in memory says whether there is anything to do
//                A_BY_ROWS, B_BY_COLS      1 where neighbours in memory lie along m in a, along k in b
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
#ifndef ROWS
#define ROWS 64
#define COLS 64
#define DEPTH 16
#define R 4
#define C 4
#endif
#ifndef A_BY_ROWS
#define A_BY_ROWS 0
#define B_BY_COLS 0
#endif

#ifndef GUARDED
#define GUARDED 0
#endif
#if GUARDED
#define GUARD_PARAM , global const uint *guard
#else
#define GUARD_PARAM
#endif

#define Y (ROWS / R)
#define X (COLS / C)

#pragma OPENCL FP_CONTRACT OFF

kernel __attribute__((reqd_work_group_size(X, Y, 1))) void matmul_register_tiled(
    global const T *a, ulong a_at, global const T *b, ulong b_at, global OUT *c, ulong c_at,
    INDEX m, INDEX n, INDEX k, INDEX batch1, INDEX splits, INDEX depth,
    INDEX a_rs, INDEX a_cs, INDEX a_b0, INDEX a_b1, INDEX b_rs, INDEX b_cs, INDEX b_b0, INDEX b_b1,
    INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1, INDEX c_split EPILOGUE_PARAMS GUARD_PARAM) {
    local SUM a_tile[DEPTH][ROWS + 1], b_tile[DEPTH][COLS + 1];
#if GUARDED
    if (*guard == 0) return;
#endif
    const int x = get_local_id(0), y = get_local_id(1), item = y * X + x;
    const INDEX z = get_group_id(2), row0 = (INDEX)get_group_id(1) * ROWS, col0 = (INDEX)get_group_id(0) * COLS;
    const INDEX split = z % splits, i1 = z / splits % batch1, i0 = z / splits / batch1;
    const INDEX first = split * depth, last = min(k, first + depth);
    a += a_at + i0 * a_b0 + i1 * a_b1;
    b += b_at + i0 * b_b0 + i1 * b_b1;
    c += c_at + i0 * c_b0 + i1 * c_b1 + split * c_split;
    SUM sums[R][C];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int s = 0; s < C; ++s) sums[r][s] = 0;
    for (INDEX start = first; start < last; start += DEPTH) {
        for (int at = item; at < ROWS * DEPTH; at += X * Y) {
            const int row = A_BY_ROWS ? at % ROWS : at / DEPTH, i = A_BY_ROWS ? at / ROWS : at % DEPTH;
            a_tile[i][row] = row0 + row < m && start + i < last ? LOAD(a, (row0 + row) * a_rs + (start + i) * a_cs) : (SUM)0;
        }
        for (int at = item; at < DEPTH * COLS; at += X * Y) {
            const int col = B_BY_COLS ? at / DEPTH : at % COLS, i = B_BY_COLS ? at % DEPTH : at / COLS;
            b_tile[i][col] = start + i < last && col0 + col < n ? LOAD(b, (start + i) * b_rs + (col0 + col) * b_cs) : (SUM)0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < DEPTH; ++i) {
            SUM left[R], right[C];
#pragma unroll
            for (int r = 0; r < R; ++r) left[r] = a_tile[i][y + r * Y];
#pragma unroll
            for (int s = 0; s < C; ++s) right[s] = b_tile[i][x + s * X];
#pragma unroll
            for (int r = 0; r < R; ++r)
#pragma unroll
                for (int s = 0; s < C; ++s) sums[r][s] = fma(left[r], right[s], sums[r][s]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int s = 0; s < C; ++s) {
            const INDEX row = row0 + y + r * Y, col = col0 + x + s * X;
            if (row < m && col < n) STORE(EPILOGUE(sums[r][s], row, col, i0, i1), c, row * c_rs + col * c_cs);
        }
    }
}

// What the kernels of matrix units share: the order of tiles, and how a warp's results reach memory.
//
//    columns:  0 1   2 3   4 5   6 7         lane 4 r + q of a warp holds, of every block of 16 rows and 8 columns, the results
//            +-----+-----+-----+-----+       (r, 2 q), (r, 2 q + 1), (r + 8, 2 q), (r + 8, 2 q + 1)
//    row r   | q=0 | q=1 | q=2 | q=3 |
//            +-----+-----+-----+-----+
//
// Stands before a kernel that names its arguments m, n, c_rs, c_cs and dense, and has i0, i1 (the indices of the matrix), out
// (its first result) and lane.
//
// Compiled with: INDEX, OUT, STORE, EPILOGUE, EPILOGUE_PARAMS   as in matmul_naive.cl;   VALUE   what the epilogue gives
//                PARTS          parts of an operand; where there are three, `flag` is raised for sums that are no numbers
//                BAND           rows of tiles that are walked over together
//                DENSE          how four results are written at once: 0 not at all, 1 float, 2 half, 3 bfloat16

#ifndef EPILOGUE
#define EPILOGUE_PARAMS
#define EPILOGUE(sum, row, col, i0, i1) (sum)
#endif
#if PARTS == 3
#define FLAG_PARAM , global uint *flag
#else
#define FLAG_PARAM
#endif

#ifndef BAND
#define BAND 8
#endif

#pragma OPENCL FP_CONTRACT OFF

uint shared_address(local void *p) { return (uint)(ulong)p; }

// Matrix, row and column of tile number t: bands of rows, so that tiles that run together share what they read in the cache,
// every other one walked along backwards, so that a band begins with the columns that the one before ended with.
int3 tile_at(int t, int tiles_m, int tiles_n) {
    const int matrix = t / (tiles_m * tiles_n), place = t % (tiles_m * tiles_n), band = place / (BAND * tiles_n);
    const int height = min(tiles_m - band * BAND, BAND), within = place - band * BAND * tiles_n;
    const int along = within / height;
    return (int3)(matrix, band * BAND + within % height, band & 1 ? tiles_n - 1 - along : along);
}

// Writes four neighbours' results of a row, `offset` (a constant) columns after `at`, where column `left` + `offset` and those after it
// belong to the matrix. Past the caches: results would push out what other tiles still read. PLACE_OF_FOUR: where a work-item's four
// begin, as seen from its own column.
#if DENSE == 1
#define PLACE_OF_FOUR 0
#define STORE_FOUR(at, offset, inside, left, n, v0, v1, v2, v3)                                                         \
    if (inside && left + (offset) < n)                                                                                   \
        asm volatile("st.global.cs.v2.f32 [%0+%3], {%1, %2};" ::"l"(at), "f"(v0), "f"(v1), "n"((offset) * 4) : "memory"); \
    if (inside && left + (offset) + 8 < n)                                                                               \
        asm volatile("st.global.cs.v2.f32 [%0+%3], {%1, %2};" ::"l"(at), "f"(v2), "f"(v3), "n"((offset) * 4 + 32) : "memory");
#elif DENSE != 0
#if DENSE == 2
#define PACK "cvt.rn.f16x2.f32"
#else
#define PACK "cvt.rn.bf16x2.f32"
#endif
// A work-item has two results of each block of 8 columns. Neighbours swap, so that one has four in a row of the left
// block and the other four of the right one: four work-items then fill a whole sector of 32 bytes.
#define PLACE_OF_FOUR (lane & 1 ? 6 : 0)
#define STORE_FOUR(at, offset, inside, left, n, v0, v1, v2, v3)                                                         \
    {                                                                                                                   \
        uint low_, high_, other_;                                                                                       \
        asm(PACK " %0, %2, %1;" : "=r"(low_) : "f"(v0), "f"(v1));                                                        \
        asm(PACK " %0, %2, %1;" : "=r"(high_) : "f"(v2), "f"(v3));                                                       \
        const bool odd_ = lane & 1;                                                                                     \
        const uint give_ = odd_ ? low_ : high_;                                                                         \
        asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;" : "=r"(other_) : "r"(give_));                       \
        if (inside && left + PLACE_OF_FOUR + (offset) < n)                                                               \
            asm volatile("st.global.cs.v2.b32 [%0+%3], {%1, %2};"                                                        \
                         ::"l"(at), "r"(odd_ ? other_ : low_), "r"(odd_ ? high_ : other_), "n"((offset) * 2)             \
                         : "memory");                                                                                   \
    }
#endif

// What a row of tiles is: conv_units.cl has rows of its own.
#ifndef ROW_INSIDE
#define ROW_INSIDE(r) ((r) < m)
#define ROW_AT(r) ((r) * c_rs)
#define FINISHED(sum, r, s) EPILOGUE(sum, (r), (s), i0, i1)
#endif

#define RESULT(sum, r, s) (ROW_INSIDE(r) && (s) < n ? FINISHED(sum, r, s) : (VALUE)0)
#define STORE_ONE(v, r, s)                                                                                              \
    if (ROW_INSIDE(r) && (s) < n) STORE(v, out, ROW_AT(r) + (s) * c_cs);
// Writes a work-item's results of one row in two neighbouring blocks, the left one's from column `left` on: one by one, or four at once.
#define WRITE_SINGLE(r, left, x0, x1, x2, x3)                                                                           \
    {                                                                                                                   \
        STORE_ONE(RESULT(x0, r, left), r, left)                                                                         \
        STORE_ONE(RESULT(x1, r, left + 1), r, left + 1)                                                                 \
        STORE_ONE(RESULT(x2, r, left + 8), r, left + 8)                                                                 \
        STORE_ONE(RESULT(x3, r, left + 9), r, left + 9)                                                                 \
    }
#if DENSE != 0
#define WRITE(r, left, x0, x1, x2, x3)                                                                                  \
    if (dense) {                                                                                                        \
        const VALUE v0 = RESULT(x0, r, left), v1 = RESULT(x1, r, left + 1);                                              \
        const VALUE v2 = RESULT(x2, r, left + 8), v3 = RESULT(x3, r, left + 9);                                          \
        STORE_FOUR(out + ROW_AT(r) + left + PLACE_OF_FOUR, 0, ROW_INSIDE(r), left, n, v0, v1, v2, v3)                     \
    } else {                                                                                                            \
        WRITE_SINGLE(r, left, x0, x1, x2, x3)                                                                            \
    }
#else
#define WRITE WRITE_SINGLE
#endif

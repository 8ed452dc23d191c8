// A matrix product on the matrix units of NVIDIA's Ampere family and later: a work-group computes one tile of c.
//
//           BK                  BN                           BN
//         +-----+          +-----------+           +-----+-----+-----+-----+
//         |  a  | BM       |     b     | BK        | w 0 | w 1 | w 2 | w 3 |  WM rows      a warp (32 work-items) computes
//         |     |    x     +-----------+     ->    +-----+-----+-----+-----+               WM x WN results, in blocks of
//         |     |                                  | w 4 | w 5 | w 6 | w 7 |               16 x 8: four in each work-item
//         +-----+                                  +-----+-----+-----+-----+
//                                                    WN
//   time ->   local memory   copy 2 | copy 3 | copy 4 | ...           cp.async, into one of STAGES places
//             registers      load 1 | load 2 | load 3 | ...           ldmatrix, 32 bytes of every line ahead
//             matrix units    mma 0 |  mma 1 |  mma 2 | ...
//
// Copies run STAGES - 1 tiles ahead of the products, in pieces of 16 bytes; zeros stand for what lies outside the matrices. A tile
// keeps the order that its operand has in memory, and pieces are swapped within a row so that eight lines' pieces (or eight
// terms') lie in eight different groups of banks:
//
//    along k: a line is a row of 64 or 128 bytes              across k: a term is a row of all the tile's lines
//      line 0   0 1 2 3 | line 1   0 1 2 3    (64 bytes)        term 0   0 1 2 3 4 5 6 7 ...
//      line 2   1 0 3 2 | line 3   1 0 3 2                      term 1   1 0 3 2 5 4 7 6 ...     piece p of row r lies at
//      line 4   2 3 0 1 | ...                                   ...                              p ^ swap(r)
//
// With PARTS == 3 the operands are float32 numbers in three bfloat16 parts (matmul_split.cl), of whose products the six that
// matter to float32 are added, the smallest first. Matrix units cut off low bits when they add, so their sums start anew
// every BK terms and are added up outside, rounded. A sum that is no finite number raises `flag`, and the caller multiplies
// again without parts.
//
// Compiled with: KERNEL         the name
//                BM, BN, BK     the tile;   STAGES   places for tiles in local memory
//                WM, WN         what one warp computes
//                SIZE, PARTS    bytes of an element, parts of an operand
//                TYPES          the matrix instruction's operand types, as ".bf16.bf16"
//                A_ALONG_K, B_ALONG_K   1 where neighbours in memory lie along k, 0 where they lie along m or n
// and with what matmul_units.cl, which stands before, asks for.

#define WARPS_N (BN / WN)
#define ITEMS (BM / WM * WARPS_N * 32)
#define ROW_BYTES (BK * SIZE)
#define A_PART (BM * ROW_BYTES)
#define B_PART (BN * ROW_BYTES)
#define STAGE_BYTES (PARTS * (A_PART + B_PART))
// One instruction takes 32 bytes along k of every line.
#define STEPS (ROW_BYTES / 32)
// Blocks of 16 lines that a warp takes from each operand.
#define MT (WM / 16)
#define NT (WN / 16)
// Elements in 16 bytes.
#define PIECE (16 / SIZE)

#define COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT_FOR_ALL_BUT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

// What pieces of a row in local memory are swapped by.
uint swap(uint row, int along_k) {
    return along_k ? (ROW_BYTES == 64 ? row >> 1 & 3 : row & 7) : SIZE == 2 ? row & 7 : (row & 3) << 1;
}

// A work-item's share in copying an operand's tiles: the same piece of every so many rows, where a row in memory is a line of
// terms or a term of lines.
typedef struct {
    global const uchar *from;
    // Bytes from one row to the next of this work-item, from one tile to the next, from one part to the next.
    long hop, advance, part;
    // The first piece's place in local memory, counted from the tile.
    uint to;
    // Elements from the piece to the end of its row, and rows from the first to the last.
    int along, rows;
} Share;

Share share_of(global const uchar *from, long pitch, ulong part, int along_k, int lines, int first_line, int count,
               int k) {
    const uint item = (uint)get_local_id(0), pieces = (along_k ? BK : lines) / PIECE;
    const uint row = item / pieces, piece = item % pieces;
    const long line = first_line + (along_k ? (long)row : (long)(piece * PIECE)), term = along_k ? piece * PIECE : row;
    Share share;
    share.from = from + (along_k ? line * pitch + term : term * pitch + line) * SIZE;
    share.hop = ITEMS / pieces * pitch * SIZE;
    share.advance = BK * (along_k ? 1 : pitch) * SIZE;
    share.part = part * SIZE;
    share.to = (row * pieces + (piece ^ swap(row, along_k))) * 16;
    share.along = (along_k ? k : count) - (int)(along_k ? term : line);
    share.rows = (along_k ? count : k) - (int)(along_k ? line : term);
    return share;
}

// Begins to copy the next tile, which may lie wholly inside its matrix.
void copy_tile(Share *share, uint to, int along_k, int lines, bool whole) {
    const int pieces = (along_k ? BK : lines) / PIECE, bytes = clamp(share->along, 0, PIECE) * SIZE;
#define EACH_PIECE                                                                                                      \
    _Pragma("unroll") for (int p = 0; p < PARTS; ++p)                                                                    \
        _Pragma("unroll") for (int i = 0; i < lines * ROW_BYTES / 16 / ITEMS; ++i)
#define PIECE_TO "r"(to + share->to + p * lines * ROW_BYTES + i * ITEMS * 16)
#define PIECE_FROM "l"(share->from + p * share->part + i * share->hop)
    if (whole) {
        EACH_PIECE asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::PIECE_TO, PIECE_FROM : "memory");
    } else {
        EACH_PIECE asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                                ::PIECE_TO, PIECE_FROM, "r"(share->rows > i * (ITEMS / pieces) ? bytes : 0)
                                : "memory");
    }
    share->from += share->advance;
    if (along_k)
        share->along -= BK;
    else
        share->rows -= BK;
}

// Where this lane's piece of a block of 16 lines lies in a tile. A block is four squares of 8 lines and 16 bytes along k, and every
// eight lanes point to the rows of one: those of a (`left`) first go on along m, those of b along k.
uint corner_of(uint line, int along_k, int lines, int left) {
    const uint lane = (uint)get_local_id(0) & 31, odd = lane >> 3 & 1, high = lane >> 4;
    const uint down = left ? odd : high, along = left ? high : odd;
    if (along_k) {
        const uint row = line + (lane & 7) + down * 8;
        return row * ROW_BYTES + (along ^ swap(row, 1)) * 16;
    }
#if SIZE == 2
    const uint term = (lane & 7) + along * 8;
    return term * (lines * 2) + ((line / 8 + down) ^ swap(term, 0)) * 16;
#else
    // Squares of 32-bit numbers cannot be turned as they are loaded: here is this lane's own number.
    const uint term = lane & 3, mine = line + (lane >> 2);
    return term * (lines * 4) + ((mine / 4) ^ swap(term, 0)) * 16 + mine % 4 * 4;
#endif
}

// Loads 32 bytes along k of 16 lines, as the matrix units want them: four squares in the order of `corner_of`.
void load_block(uint *x, uint tile, uint corner, int along_k, int lines, int left, int block, int step) {
    if (along_k) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(tile + (corner ^ step * 32) + block * 16 * ROW_BYTES)
                     : "memory");
    } else {
#if SIZE == 2
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(tile + (corner ^ block * 32) + step * 16 * lines * 2)
                     : "memory");
#else
        const uint at = tile + step * 8 * lines * 4;
        const uint near = at + (corner ^ block * 64), down = at + (corner ^ block * 64 ^ 32), along = 4 * lines * 4;
#define LOAD_WORD(x, at) asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory")
        LOAD_WORD(x[0], near);
        LOAD_WORD(x[left ? 1 : 2], down);
        LOAD_WORD(x[left ? 2 : 1], near + along);
        LOAD_WORD(x[3], down + along);
#endif
    }
#if SIZE == 4
    // The matrix units cut to 11 bits: half a unit more and they round to nearest, ties away from zero. Unlike cvt.rna.tf32 this
    // leaves the bits that are cut as they are, which is an instruction less for every number. Inf and NaN stay.
#pragma unroll
    for (int i = 0; i < 4; ++i)
        asm("{ .reg .pred p; .reg .f32 t; mov.b32 t, %0; abs.f32 t, t; setp.lt.f32 p, t, 0f7f800000; "
            "@p add.u32 %0, %0, 4096; }"
            : "+r"(x[i]));
#endif
}

#if SIZE == 2
#define INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32" TYPES ".f32 "
#else
#define INSTRUCTION "mma.sync.aligned.m16n8k8.row.col.f32" TYPES ".f32 "
#endif
#define OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])

// d += a b over 32 bytes along k.
void multiply(float *d, const uint *a, const uint *b) {
    asm volatile(INSTRUCTION "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : OPERANDS);
}

// d = a b
void multiply_first(float *d, const uint *a, const uint *b) {
    asm volatile(INSTRUCTION "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : OPERANDS, "f"(0.0f));
}

// Strides are in elements; parts lie `a_part` and `b_part` apart.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void KERNEL(
    global const uchar *a, ulong a_at, global const uchar *b, ulong b_at, global OUT *c, ulong c_at, INDEX m, INDEX n,
    INDEX k, int batch1, INDEX a_pitch, INDEX a_b0, INDEX a_b1, ulong a_part, INDEX b_pitch, INDEX b_b0, INDEX b_b1,
    ulong b_part, INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1, int dense FLAG_PARAM EPILOGUE_PARAMS) {
    local uchar tiles[STAGES * STAGE_BYTES] __attribute__((aligned(128)));
    const uint item = (uint)get_local_id(0), lane = item & 31, warp = item >> 5;
    const uint base = shared_address(tiles), b_base = base + PARTS * A_PART;
    const int tiles_m = (int)((m + BM - 1) / BM), tiles_n = (int)((n + BN - 1) / BN), chunks = (int)((k + BK - 1) / BK);
    const int3 tile = tile_at((int)get_group_id(0), tiles_m, tiles_n);
    const INDEX i0 = tile.x / batch1, i1 = tile.x % batch1;
    Share share_a = share_of(a + (a_at + (ulong)(i0 * a_b0 + i1 * a_b1)) * SIZE, a_pitch, a_part, A_ALONG_K, BM,
                             tile.y * BM, (int)m, (int)k);
    Share share_b = share_of(b + (b_at + (ulong)(i0 * b_b0 + i1 * b_b1)) * SIZE, b_pitch, b_part, B_ALONG_K, BN,
                             tile.z * BN, (int)n, (int)k);
    const uint row_in_tile = warp / WARPS_N * WM, col_in_tile = warp % WARPS_N * WN;
    const uint corner_a = corner_of(row_in_tile, A_ALONG_K, BM, 1), corner_b = corner_of(col_in_tile, B_ALONG_K, BN, 0);
    // How many tiles of each operand lie wholly inside it.
    const int whole_a = m - (INDEX)tile.y * BM >= BM ? (int)(k / BK) : 0;
    const int whole_b = n - (INDEX)tile.z * BN >= BN ? (int)(k / BK) : 0;
    float sums[MT][2 * NT][4];
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < 2 * NT; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;
#define COPY(chunk, at)                                                                                                 \
    copy_tile(&share_a, base + (at), A_ALONG_K, BM, (chunk) < whole_a);                                                  \
    copy_tile(&share_b, b_base + (at), B_ALONG_K, BN, (chunk) < whole_b);
#define NEXT(at) ((at) == (STAGES - 1) * STAGE_BYTES ? 0 : (at) + STAGE_BYTES)
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        COPY(s, s * STAGE_BYTES)
        COMMIT();
    }
    // Places in local memory that are read and written next.
    uint here = 0, there = (STAGES - 1) * STAGE_BYTES;
#if PARTS == 3
    for (int chunk = 0; chunk < chunks; ++chunk) {
        WAIT_FOR_ALL_BUT(STAGES - 2);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (chunk + STAGES - 1 < chunks) {
            COPY(chunk + STAGES - 1, there)
        }
        COMMIT();
        uint right[3][STEPS][NT][4];
#pragma unroll
        for (int p = 0; p < 3; ++p)
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int j = 0; j < NT; ++j)
                    load_block(right[p][step][j], b_base + here + p * B_PART, corner_b, B_ALONG_K, BN, 0, j, step);
#pragma unroll
        for (int i = 0; i < MT; ++i) {
            uint left[3][STEPS][4];
            float d[2 * NT][4];
#pragma unroll
            for (int p = 0; p < 3; ++p)
#pragma unroll
                for (int step = 0; step < STEPS; ++step)
                    load_block(left[p][step], base + here + p * A_PART, corner_a, A_ALONG_K, BM, 1, i, step);
#define MULTIPLY_PARTS(p, q)                                                                           \
    _Pragma("unroll") for (int step = 0; step < STEPS; ++step)                                                       \
        _Pragma("unroll") for (int j = 0; j < 2 * NT; ++j)                                                               \
            if ((p) == 2 && step == 0) multiply_first(d[j], left[p][step], right[q][step][j / 2] + j % 2 * 2);            \
            else multiply(d[j], left[p][step], right[q][step][j / 2] + j % 2 * 2);
            MULTIPLY_PARTS(2, 0)
            MULTIPLY_PARTS(0, 2)
            MULTIPLY_PARTS(1, 1)
            MULTIPLY_PARTS(1, 0)
            MULTIPLY_PARTS(0, 1)
            MULTIPLY_PARTS(0, 0)
#pragma unroll
            for (int j = 0; j < 2 * NT; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[i][j][e] += d[j][e];
        }
        here = NEXT(here);
        there = NEXT(there);
    }
    int strange = 0;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < 2 * NT; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) strange |= !isfinite(sums[i][j][e]);
    if (strange) *flag = 1;
#else
    // Two sets of operands in registers: one is multiplied while the other is loaded.
    uint left[2][MT][4], right[2][NT][4];
#define LOAD(set, step)                                                                                                 \
    _Pragma("unroll") for (int i = 0; i < MT; ++i)                                                                       \
        load_block(left[set][i], base + here, corner_a, A_ALONG_K, BM, 1, i, step);                                      \
    _Pragma("unroll") for (int j = 0; j < NT; ++j)                                                                       \
        load_block(right[set][j], b_base + here, corner_b, B_ALONG_K, BN, 0, j, step);
    WAIT_FOR_ALL_BUT(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);
    LOAD(0, 0)
    for (int chunk = 0; chunk < chunks; ++chunk) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) {
                // All have loaded what they need of this tile, and the next one is there.
                WAIT_FOR_ALL_BUT(STAGES - 2);
                barrier(CLK_LOCAL_MEM_FENCE);
                here = NEXT(here);
            }
            LOAD((step + 1) % 2, (step + 1) % STEPS)
            if (step == 0) {
                if (chunk + STAGES - 1 < chunks) {
                    COPY(chunk + STAGES - 1, there)
                }
                COMMIT();
                there = NEXT(there);
            }
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int j = 0; j < 2 * NT; ++j)
                    multiply(sums[i][j], left[step % 2][i], right[step % 2][j / 2] + j % 2 * 2);
        }
    }
#endif
    const INDEX row0 = (INDEX)tile.y * BM + row_in_tile + (lane >> 2);
    const INDEX col0 = (INDEX)tile.z * BN + col_in_tile + (lane & 3) * 2;
    global OUT *out = c + c_at + i0 * c_b0 + i1 * c_b1;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int half_block = 0; half_block < 2; ++half_block)
#pragma unroll
            for (int j = 0; j < 2 * NT; j += 2) {
                const INDEX row = row0 + 16 * i + 8 * half_block, col = col0 + 8 * j;
                const int e = 2 * half_block;
                WRITE(row, col, sums[i][j][e], sums[i][j][e + 1], sums[i][j + 1][e], sums[i][j + 1][e + 1])
            }
}

// A product of a few rows. Memory bounds it: the second operand is read once, four neighbours at a time, by as many work-items
// as it takes to keep many reads under way.
//
//      b lies along n (B_LINES)                    b lies along k
//
//          4 columns of each of COLS                   4 columns of each of COLS
//         +----+----+----+                            +--------------+
//         |====|====|====|  4 terms of each           | |  |  |  |   |  4 terms of each of TERMS
//         |----+----+----|  of TERMS slices           | |  |  |  |   |  slices, which are neighbours
//         |    |    |    |                            |--------------|
//         +----+----+----+                            +--------------+
//
// A work-item of either has a block of 4 terms and 4 columns at a time, and sums of ROWS rows and these columns. Neighbouring
// work-items read neighbouring memory. At the end the slices' sums are added up in local memory, halves to halves.
//
// z counts matrices of the batch and, where there are PARTS, parts of k. The groups of a part leave their sums in memory; the one
// that finds by the counter that it is the last adds them up, always in the same order, and sets the counter back.
//
// With NORM the rows of the first operand are normalised first, by every group for itself: they lie in local memory then. A launch less
// gains more than that costs where rows are few.
//
// Compiled with: SUM4, LOAD4(p, i)  four sums; four neighbours, which lie on a boundary of four
//                ROWS, COLS, TERMS  the work-group's share; TERMS is a power of two
//                A_WIDTH, B_WIDTH   4 where neighbours can be loaded together, else 1
//                UNROLLED           1 where loops over rows are written out and two blocks are read at a time
//                PARTS, FENCE       1 where k is split; makes what was written visible to all groups
//                NORM               1 where rows are normalised: row_moments.cl is put before this text, with
//                NORM_K, LANES      their length, and the work-items of each
//                NORMED(p, i), NORMED4(p, i), STORE_NORMED(v, p)   LOAD, LOAD4 and STOREV for local memory

#if PARTS
#define PARTS_PARAMS , volatile global SUM4 *parts, volatile global uint *counters
#else
#define PARTS_PARAMS
#endif

// Beyond the last row or column the last is read once more; nobody writes what becomes of it.
#define ROW(r) min(row0 + (r), m - 1)
#define COL(s) min(col + (s), n - 1)
#define A_ONE(r, t) (SUM)A_VALUE(LOAD(a, ROW(r) * a_rs + (term + (t)) * a_cs), ROW(r), term + (t))
#define B_ONE(t, s) (SUM)B_VALUE(LOAD(b, (term + (t)) * b_rs + COL(s) * b_cs), COL(s), term + (t))
// Terms beyond the last are zeros, whatever an expression makes of a zero.
#define INSIDE(t, v) (term + (t) < last ? (v) : (SUM)0)
#define A_INSIDE(r, t) INSIDE(t, A_ONE(r, t))
#define B_INSIDE(t, s) INSIDE(t, B_ONE(t, s))

#if NORM
#undef A_ONE
#define A_ONE(r, t) (SUM)NORMED(rows + (r) * NORM_K, term + (t))
#define NORM_PARAMS , global const SUM *weight, ulong weight_at, global const SUM *bias, ulong bias_at, SUM eps, uint centred
#else
#define NORM_PARAMS
#endif

// Four terms of row r.
#define A_EACH(one, r) (SUM4)(one(r, 0), one(r, 1), one(r, 2), one(r, 3))
#if NORM && NORM_K % 4 == 0
#define A_FOUR(r) const SUM4 factors = NORMED4(rows + (r) * NORM_K, term);
#elif NORM
#define A_FOUR(r) const SUM4 factors = A_EACH(A_ONE, r);
#elif A_WIDTH == 4
#define A_AT(four, r, t) (SUM)A_VALUE(four, ROW(r), term + (t))
#define A_FOUR(r)                                                                                                       \
    const SUM4 read = LOAD4(a, ROW(r) * a_rs + term);                                                                   \
    const SUM4 factors = (SUM4)(A_AT(read.s0, r, 0), A_AT(read.s1, r, 1), A_AT(read.s2, r, 2), A_AT(read.s3, r, 3));
#else
#define A_FOUR(r) const SUM4 factors = A_EACH(A_ONE, r);
#endif

// Four columns of term t.
#define B_EACH(one, t) (SUM4)(one(t, 0), one(t, 1), one(t, 2), one(t, 3))
#define B_AT(v, t, s) (SUM)B_VALUE(v, COL(s), term + (t))
#if B_WIDTH == 4 && B_LINES
#define B_READ(t) LOAD4(b, (term + (t)) * b_rs + min(col, n - 4))
#define B_FOUR(t) (SUM4)(B_AT(read##t.s0, t, 0), B_AT(read##t.s1, t, 1), B_AT(read##t.s2, t, 2), B_AT(read##t.s3, t, 3))
#elif B_WIDTH == 4
#define B_READ(s) LOAD4(b, term + COL(s) * b_cs)
#define B_FOUR(t) (SUM4)(B_AT(read0.s##t, t, 0), B_AT(read1.s##t, t, 1), B_AT(read2.s##t, t, 2), B_AT(read3.s##t, t, 3))
#endif
#if B_WIDTH == 4
#define B_BLOCK                                                                                                         \
    const SUM4 read0 = B_READ(0), read1 = B_READ(1), read2 = B_READ(2), read3 = B_READ(3);                              \
    const SUM4 block[4] = {B_FOUR(0), B_FOUR(1), B_FOUR(2), B_FOUR(3)};
#else
#define B_BLOCK const SUM4 block[4] = {B_EACH(B_ONE, 0), B_EACH(B_ONE, 1), B_EACH(B_ONE, 2), B_EACH(B_ONE, 3)};
#endif

#define ADD(r)                                                                                                          \
    sums[r] = fma((SUM4)factors.s0, block[0], sums[r]);                                                                  \
    sums[r] = fma((SUM4)factors.s1, block[1], sums[r]);                                                                  \
    sums[r] = fma((SUM4)factors.s2, block[2], sums[r]);                                                                  \
    sums[r] = fma((SUM4)factors.s3, block[3], sums[r]);

#if UNROLLED
#define EACH_ROW _Pragma("unroll") for (int r = 0; r < ROWS; ++r)
#else
#define EACH_ROW for (int r = 0; r < ROWS; ++r)
#endif

// Adds the sums of all slices to those of the first.
#if B_LINES
#define LEFT(r, s) left[((r) * (TERMS / 2) + (s)) * COLS + place]
#else
#define LEFT(r, s) left[((r) * COLS + place) * (TERMS / 2) + (s)]
#endif
#define ADD_PARTS                                                                                                       \
    for (int upper = TERMS / 2; upper > 0; upper /= 2) {                                                                 \
        if (slice >= upper && slice < 2 * upper) EACH_ROW LEFT(r, slice - upper) = sums[r];                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                   \
        if (slice < upper) EACH_ROW sums[r] += LEFT(r, slice);                                                           \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                   \
    }

kernel __attribute__((reqd_work_group_size(COLS * TERMS, 1, 1))) void matmul_strip(
    global const T *a, ulong a_at, global const T *b, ulong b_at, global OUT *c, ulong c_at,
    INDEX m, INDEX n, INDEX k, INDEX batch1, INDEX splits, INDEX depth,
    INDEX a_rs, INDEX a_cs, INDEX a_b0, INDEX a_b1, INDEX b_rs, INDEX b_cs, INDEX b_b0, INDEX b_b1,
    INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1, INDEX c_split EPILOGUE_PARAMS PROLOGUE_PARAMS NORM_PARAMS PARTS_PARAMS) {
    local SUM4 left[(ROWS * COLS * TERMS + 1) / 2];
    const int item = (int)get_local_id(0);
#if B_LINES
    const int place = item % COLS, slice = item / COLS;
#else
    const int place = item / TERMS, slice = item % TERMS;
#endif
    const INDEX z = get_group_id(2), split = z % splits, i1 = z / splits % batch1, i0 = z / splits / batch1;
    const INDEX first = split * depth, last = min(k, first + depth);
    const INDEX row0 = (INDEX)get_group_id(1) * ROWS, col = ((INDEX)get_group_id(0) * COLS + place) * 4;
    a += a_at + i0 * a_b0 + i1 * a_b1;
    b += b_at + i0 * b_b0 + i1 * b_b1;
    c += c_at + i0 * c_b0 + i1 * c_b1;
#if NORM
    local BITS normed[ROWS * NORM_K] __attribute__((aligned(64)));
    local SUM tile[2 * GROUP];
    local T *rows = (local T *)normed;
    for (int r0 = 0; r0 < ROWS; r0 += GROUP / LANES) {
        const uint lid = item, lanes = LANES, lane = lid % lanes;
        const int r = r0 + (int)(lid / lanes);
        const UINT end = r < ROWS ? NORM_K : 0;
        global const T *x = a + ROW(r) * a_rs;
        VCOMPUTE v[VECTORS];
        EACH(j) {
            v[j] = (VCOMPUTE)(0);
            if (AT(j) < end) v[j] = LOADV(x + AT(j));
        }
        ROW_MOMENTS(k)
        EACH(j) {
            if (AT(j) < end) {
                VCOMPUTE value = (v[j] - middle) * by;
                if (weight) value *= LOADC(weight + weight_at + AT(j));
                if (bias) value += LOADC(bias + bias_at + AT(j));
                STORE_NORMED(value, rows + r * NORM_K + AT(j));
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    SUM4 sums[ROWS];
    EACH_ROW sums[r] = (SUM4)0;
    INDEX term = first + slice * 4;
#if UNROLLED
#pragma unroll 2
#endif
    for (; term + 4 <= last; term += 4 * TERMS) {
        B_BLOCK
        EACH_ROW {
            A_FOUR(r)
            ADD(r)
        }
    }
    if (term < last) {
        const SUM4 block[4] = {B_EACH(B_INSIDE, 0), B_EACH(B_INSIDE, 1), B_EACH(B_INSIDE, 2), B_EACH(B_INSIDE, 3)};
        EACH_ROW {
            const SUM4 factors = A_EACH(A_INSIDE, r);
            ADD(r)
        }
    }
    ADD_PARTS
#if PARTS
    local int is_last;
    const INDEX group = (z / splits * get_num_groups(1) + get_group_id(1)) * get_num_groups(0) + get_group_id(0);
    parts += group * splits * ROWS * COLS + place;
    if (slice == 0) {
        EACH_ROW parts[(split * ROWS + r) * COLS] = sums[r];
        FENCE;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (item == 0) is_last = atomic_inc(counters + group) == (uint)splits - 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    // No group leaves here: not every compiler copes with that before a barrier.
    EACH_ROW sums[r] = (SUM4)0;
    if (is_last) {
        FENCE;
        if (item == 0) counters[group] = 0;
        for (INDEX i = slice; i < splits; i += TERMS) EACH_ROW sums[r] += parts[(i * ROWS + r) * COLS];
    }
    ADD_PARTS
    if (!is_last) return;
#endif
    if (slice > 0) return;
#define WRITE(r, s, sum)                                                                                                \
    if (row0 + (r) < m && col + (s) < n)                                                                                \
        STORE(EPILOGUE(sum, row0 + (r), col + (s), i0, i1), c, (row0 + (r)) * c_rs + (col + (s)) * c_cs);
    EACH_ROW {
        WRITE(r, 0, sums[r].s0)
        WRITE(r, 1, sums[r].s1)
        WRITE(r, 2, sums[r].s2)
        WRITE(r, 3, sums[r].s3)
    }
}

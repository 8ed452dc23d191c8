// A matrix product with tiles in local memory and a block of results in each work-item's registers.
//
//          DEPTH                  COLS                     COLS
//         +-----+              +---------+          +----+----+----+
//         |  a  |              |    b    | DEPTH    | 0  | 1  | 0 1|   work-group: a ROWS x COLS tile of c
//    ROWS |     |      x       +---------+    ->    +----+----+----+   work-item (x, y): RUN rows from y * RUN, and so on
//         |     |                              ROWS | 2  | 3  | 2 3|                   every Y * RUN; columns alike: R x C sums
//         +-----+                                   +----+----+----+
//
// Per step along k a group copies ROWS x DEPTH of a and DEPTH x COLS of b to local memory, and each work-item does R * C
// multiply-adds for every R + C values it reads from there, RUN at a time. There are two such pairs of tiles: what the next step
// needs is fetched into registers before this one's sums, and put into the other pair before the last of its terms, whose sums
// then hide the barrier and the first reads behind it.
//
// NVIDIA's registers lie in two banks, the even and the odd ones, and a multiply-add that reads all of its three
// from one waits. Where a work-item has many sums, they are visited along a line that turns at each end: of the two factors one
// is that of the sum before, which need not be read again (H200: 4 % faster). Sums that are stored together lie in consecutive
// registers, and so do factors that are read together: lines are swapped in pairs in local memory, so that the other factor is
// never in its sum's bank (another 2 %).
//
// Small products leave most work-items without results. There SLICES sets of work-items share the terms of a step, and
// their sums are added, in the order of the slices, when all terms are done.
//
// The tail wave of tiles would leave units idle (SHARED_TAIL). The first `whole` tiles have a group each; each tile of the tail
// wave is split along k among `splits` groups. The last of these to arrive adds up the partial sums in memory, in the order of
// the terms, so that the result does not depend on which group it is.
//
// Lines beyond the edges repeat the last one, since nothing is made of them; terms beyond the last are zeros. Batches and splits
// of k: see matmul_naive.cl.
//
// Compiled with: ROWS, COLS, DEPTH, R, C, RUN, SLICES   the tile; (ROWS / R) * (COLS / C) * SLICES work-items in a group
//                A_LINES, B_LINES     1 where neighbours in memory lie along a's rows m, along b's columns n
//                A_WIDTH, B_WIDTH     elements that are loaded at once, 1 or 4: neighbours in memory, all inside or all outside
//                C_WIDTH              results that are stored at once, 1 or 4
//                UNROLLED             1 where the loop over a step's terms is written out, and there is one of its own for whole
//                                     steps; compilers for CPU devices take long for it
//                GUARDED              1 where a flag in memory says whether there is anything to do
//                SHARED_TAIL          1 where tiles of the tail wave are split along k; FENCE is needed then

#if GUARDED
#define GUARD_PARAM , global const uint *guard
#else
#define GUARD_PARAM
#endif
#ifndef SHARED_TAIL
#define SHARED_TAIL 0
#endif
#if SHARED_TAIL
#define TAIL_PARAMS , global SUM *parts, global uint *arrivals, INDEX whole
// Tells the whole group what its first work-item hears when all are here.
#define ARRIVE(heard)                                                                                                           \
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);                                                                        \
    if (item == 0) arrived = heard;                                                                                             \
    barrier(CLK_LOCAL_MEM_FENCE);
#define EACH_FOUR(statements)                                                                                                   \
    _Pragma("unroll") for (int r = 0; r < R; ++r)                                                                               \
        _Pragma("unroll") for (int s = 0; s < C; s += 4) {                                                                      \
            statements;                                                                                                         \
        }
#else
#define TAIL_PARAMS
#endif

// Zeros in place of terms beyond the last stay zeros, whatever an expression makes of a zero.
#ifdef HAS_PROLOGUE
#define INSIDE(there, v) ((there) ? (v) : (SUM)0)
#else
#define INSIDE(there, v) (v)
#endif

#define Y (ROWS / R)
#define X (COLS / C)
#define ITEMS (X * Y * SLICES)
// Terms of a tile for each slice.
#define STEPS (DEPTH / SLICES)
// What a work-item copies per step. A pitch that is a multiple of four keeps runs on their boundaries.
#define A_LOADS ((ROWS * DEPTH / A_WIDTH + ITEMS - 1) / ITEMS)
#define B_LOADS ((COLS * DEPTH / B_WIDTH + ITEMS - 1) / ITEMS)
#define A_PITCH (ROWS + 4)
#define B_PITCH (COLS + 4)

#define TURNING (R * C >= 64)
// Where a line of a tile lies in local memory, and its factor among those of a work-item.
#define SWAPPED(line) ((line) ^ (TURNING && RUN > 1))

#define JOINED(a, b) a##b
#define VECTOR(type, width) JOINED(type, width)
#define SUM4 VECTOR(SUM, 4)

// Where a work-item's `j`th piece lies in a tile of so many lines: neighbouring work-items are neighbours in memory. Lines beyond
// the last repeat it.
#define PIECE(width, along_lines, lines, line0, line_end)                                                                       \
    const int at = (item + j * ITEMS) * width;                                                                                  \
    const int line = along_lines ? at % lines : at / DEPTH, term = along_lines ? at / lines : at % DEPTH;                       \
    const bool mine = lines * DEPTH % (ITEMS * width) == 0 || at < lines * DEPTH;                                               \
    const INDEX l = min((INDEX)(line0 + line), (INDEX)(line_end - (along_lines ? width : 1)))

// Where they begin in memory.
#define BEGIN(from, width, along_lines, lines, loads, line0, line_end, line_step, term_step)                                    \
    _Pragma("unroll") for (int j = 0; j < loads; ++j) {                                                                         \
        PIECE(width, along_lines, lines, line0, line_end);                                                                      \
        from[j] = l * line_step + (first + term) * term_step;                                                                   \
    }

// Reads a work-item's pieces of the tile that begins at a term, and goes on to the next; `whole` where it ends before the last
// term does.
#define FETCH(value, kept, p, from, width, along_lines, lines, loads, line0, line_end, start, term_step, whole)                 \
    _Pragma("unroll") for (int j = 0; j < loads; ++j) {                                                                         \
        PIECE(width, along_lines, lines, line0, line_end);                                                                      \
        const INDEX t = start + term;                                                                                           \
        const bool there = mine && (whole || t < last);                                                                         \
        if (width == 4) {                                                                                                       \
            const SUM4 four = there ? LOAD4(p, from[j]) : (SUM4)0;                                                              \
            kept[4 * j] = INSIDE(there, value(four.x, l, t));                                                                   \
            kept[4 * j + 1] = INSIDE(there, value(four.y, l + along_lines, t + !along_lines));                                  \
            kept[4 * j + 2] = INSIDE(there, value(four.z, l + 2 * along_lines, t + 2 * !along_lines));                          \
            kept[4 * j + 3] = INSIDE(there, value(four.w, l + 3 * along_lines, t + 3 * !along_lines));                          \
        } else {                                                                                                                \
            kept[j] = there ? value(LOAD(p, from[j]), l, t) : (SUM)0;                                                           \
        }                                                                                                                       \
        from[j] += DEPTH * term_step;                                                                                           \
    }

#define FETCH_BOTH(start, whole)                                                                                                \
    FETCH(A_VALUE, a_kept, a, a_from, A_WIDTH, A_LINES, ROWS, A_LOADS, row0, m, start, a_cs, whole)                             \
    FETCH(B_VALUE, b_kept, b, b_from, B_WIDTH, B_LINES, COLS, B_LOADS, col0, n, start, b_rs, whole)

// Where a piece lies in a tile in local memory.
#define SPOT(at, width, along_lines, lines, pitch)                                                                              \
    (!along_lines ? (at) % DEPTH * pitch + SWAPPED((at) / DEPTH)                                                                \
                  : (at) / lines * pitch + (width == 4 ? (at) % lines : SWAPPED((at) % lines)))

// Puts a work-item's pieces there. Where pieces lie evenly they are so far behind the first, which costs nothing to add to an
// address.
#define KEEP(tile, first_spot, pitch, kept, width, along_lines, lines, loads)                                                   \
    _Pragma("unroll") for (int j = 0; j < loads; ++j) {                                                                         \
        if (lines * DEPTH % (ITEMS * width) != 0 && (item + j * ITEMS) * width >= lines * DEPTH) continue;                      \
        const bool evenly = ITEMS * width % (along_lines ? lines : 2 * DEPTH) == 0;                                             \
        const int behind = j * (along_lines ? ITEMS * width / lines * pitch : ITEMS * width / DEPTH);                           \
        const int other = SPOT((item + j * ITEMS) * width, width, along_lines, lines, pitch);                                   \
        local SUM *spot = tile + (evenly ? first_spot + behind : other);                                                        \
        if (width == 4 && along_lines)                                                                                          \
            *(local SUM4 *)spot = (SUM4)(kept[4 * j + SWAPPED(0)], kept[4 * j + SWAPPED(1)],                                    \
                                         kept[4 * j + SWAPPED(2)], kept[4 * j + SWAPPED(3)]);                                   \
        else                                                                                                                    \
            _Pragma("unroll") for (int w = 0; w < width; ++w) spot[w * pitch] = kept[width * j + w];                            \
    }

#define KEEP_BOTH(pair)                                                                                                         \
    KEEP(a_tile + (pair) * (DEPTH * A_PITCH), a_spot, A_PITCH, a_kept, A_WIDTH, A_LINES, ROWS, A_LOADS)                         \
    KEEP(b_tile + (pair) * (DEPTH * B_PITCH), b_spot, B_PITCH, b_kept, B_WIDTH, B_LINES, COLS, B_LOADS)

// Reads the factors of a work-item's sums, RUN neighbours at a time.
#if RUN == 1
#define TAKE(factors, n, line, step)                                                                                            \
    _Pragma("unroll") for (int f = 0; f < n; ++f) factors[f] = (line)[f * step];
#else
#define TAKE(factors, n, line, step)                                                                                            \
    _Pragma("unroll") for (int f = 0; f < n; f += RUN)                                                                          \
        *(VECTOR(SUM, RUN) *)&factors[f] = *(local const VECTOR(SUM, RUN) *)&(line)[f / RUN * step];
#endif

#define TAKE_BOTH(set, i)                                                                                                       \
    TAKE(left[set], R, a_tile + pair * (DEPTH * A_PITCH) + ((i) * SLICES + slice) * A_PITCH + y * RUN, Y * RUN)                 \
    TAKE(right[set], C, b_tile + pair * (DEPTH * B_PITCH) + ((i) * SLICES + slice) * B_PITCH + x * RUN, X * RUN)

#define MULTIPLY(set)                                                                                                           \
    _Pragma("unroll") for (int r = 0; r < R; ++r)                                                                               \
        _Pragma("unroll") for (int at = 0; at < C; ++at) {                                                                      \
            const int s = TURNING && r & 1 ? C - 1 - at : at;                                                                   \
            sums[r][s] = fma(left[set][SWAPPED(r)], right[set][SWAPPED(s)], sums[r][s]);                                        \
        }

// A step's sums. One of two sets of factors is being used, the other on its way; that of the step's first term is here already.
#if UNROLLED
#define EACH_TERM _Pragma("unroll")
#else
#define EACH_TERM
#endif
#define STEP                                                                                                                    \
    EACH_TERM for (int i = 0; i < STEPS; ++i) {                                                                                 \
        if (i == STEPS - 1) {                                                                                                   \
            KEEP_BOTH(1 - pair)                                                                                                 \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                                       \
            pair = 1 - pair;                                                                                                    \
        }                                                                                                                       \
        if (STEPS % 2 == 0 || i < STEPS - 1) { TAKE_BOTH((i + 1) & 1, (i + 1) % STEPS) }                                        \
        MULTIPLY(i & 1)                                                                                                         \
    }                                                                                                                           \
    if (STEPS % 2 == 1) { TAKE_BOTH(0, 0) }

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void matmul_register_tiled(
    global const T *a, ulong a_at, global const T *b, ulong b_at, global OUT *c, ulong c_at,
    INDEX m, INDEX n, INDEX k, INDEX batch1, INDEX splits, INDEX depth,
    INDEX a_rs, INDEX a_cs, INDEX a_b0, INDEX a_b1, INDEX b_rs, INDEX b_cs, INDEX b_b0, INDEX b_b1,
    INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1, INDEX c_split EPILOGUE_PARAMS PROLOGUE_PARAMS GUARD_PARAM TAIL_PARAMS) {
    local SUM a_tile[2 * DEPTH * A_PITCH] __attribute__((aligned(32)));
    local SUM b_tile[2 * DEPTH * B_PITCH] __attribute__((aligned(32)));
#if SHARED_TAIL
    local uint arrived;
#endif
#if SLICES > 1
    local SUM added[SLICES][ROWS][COLS];
#endif
#if GUARDED
    if (*guard == 0) return;
#endif
    const int item = get_local_id(0), slice = item / (X * Y), place = item % (X * Y);
#if X % 8 == 0 && Y % 4 == 0
    // Blocks of 8 x 4 work-items, which read few different factors at a time.
    const int block = place / 32, x = block % (X / 8) * 8 + place % 8, y = block / (X / 8) * 4 + place % 32 / 8;
#else
    const int x = place % X, y = place / X;
#endif
#if SHARED_TAIL
    const INDEX across = (n + COLS - 1) / COLS, down = (m + ROWS - 1) / ROWS, group = get_group_id(0);
    const INDEX shared = ((INDEX)get_num_groups(0) - whole) / splits, split = group < whole ? 0 : (group - whole) / shared;
    const INDEX tile = group - split * shared, row0 = tile / across % down * ROWS, col0 = tile % across * COLS;
    const INDEX matrix = tile / (across * down), i1 = matrix % batch1, i0 = matrix / batch1;
    const INDEX first = split * depth, last = group < whole ? k : min(k, first + depth);
#else
    const INDEX z = get_group_id(2), row0 = (INDEX)get_group_id(1) * ROWS, col0 = (INDEX)get_group_id(0) * COLS;
    const INDEX split = z % splits, i1 = z / splits % batch1, i0 = z / splits / batch1;
    const INDEX first = split * depth, last = min(k, first + depth);
#endif
    a += a_at + i0 * a_b0 + i1 * a_b1;
    b += b_at + i0 * b_b0 + i1 * b_b1;
    c += c_at + i0 * c_b0 + i1 * c_b1 + (SHARED_TAIL ? 0 : split * c_split);
    SUM sums[R][C];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int s = 0; s < C; ++s) sums[r][s] = 0;

    SUM a_kept[A_LOADS * A_WIDTH], b_kept[B_LOADS * B_WIDTH];
    INDEX a_from[A_LOADS], b_from[B_LOADS];
    BEGIN(a_from, A_WIDTH, A_LINES, ROWS, A_LOADS, row0, m, a_rs, a_cs)
    BEGIN(b_from, B_WIDTH, B_LINES, COLS, B_LOADS, col0, n, b_cs, b_rs)
    const int a_spot = SPOT(item * A_WIDTH, A_WIDTH, A_LINES, ROWS, A_PITCH);
    const int b_spot = SPOT(item * B_WIDTH, B_WIDTH, B_LINES, COLS, B_PITCH);
    FETCH_BOTH(first, false)
    KEEP_BOTH(0)
    barrier(CLK_LOCAL_MEM_FENCE);
    int pair = 0;
    SUM left[2][R] __attribute__((aligned(32))), right[2][C] __attribute__((aligned(32)));
    TAKE_BOTH(0, 0)
    INDEX next = first + DEPTH;
#if UNROLLED
    for (; next + DEPTH <= last; next += DEPTH) {
        FETCH_BOTH(next, true)
        STEP
    }
#endif
    // The last one or two steps. What the last puts into local memory nobody uses.
    for (; next < last + DEPTH; next += DEPTH) {
        if (next < last) {
            FETCH_BOTH(next, false)
        }
        STEP
    }

#if SHARED_TAIL
    if (group >= whole) {
        global SUM4 *of_tile = (global SUM4 *)parts + (tile - whole) * splits * (R * C / 4 * ITEMS) + item;
        // The first part's group most often comes last, and need not leave its own sums then.
        ARRIVE(split == 0 ? atomic_add(arrivals + (tile - whole), 0) : 0)
        INDEX other = 1;
        if (arrived != (uint)splits - 1) {
            global SUM4 *mine = of_tile + split * (R * C / 4 * ITEMS);
            EACH_FOUR(mine[(r * C + s) / 4 * ITEMS] = (SUM4)(sums[r][s], sums[r][s + 1], sums[r][s + 2], sums[r][s + 3]))
            FENCE;
            ARRIVE(atomic_inc(arrivals + (tile - whole)))
            if (arrived != (uint)splits - 1) return;
            EACH_FOUR((sums[r][s] = 0, sums[r][s + 1] = 0, sums[r][s + 2] = 0, sums[r][s + 3] = 0))
            other = 0;
        }
        FENCE;
        if (item == 0) arrivals[tile - whole] = 0;
        for (; other < splits; ++other) {
            volatile global SUM4 *theirs = of_tile + other * (R * C / 4 * ITEMS);
            EACH_FOUR(const SUM4 four = theirs[(r * C + s) / 4 * ITEMS];
                      (sums[r][s] += four.x, sums[r][s + 1] += four.y, sums[r][s + 2] += four.z, sums[r][s + 3] += four.w))
        }
    }
#endif
#if SLICES > 1
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int s = 0; s < C; ++s)
            added[slice][r / RUN * (Y * RUN) + y * RUN + r % RUN][s / RUN * (X * RUN) + x * RUN + s % RUN] = sums[r][s];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int at = item; at < ROWS * COLS; at += ITEMS) {
        const INDEX row = row0 + at / COLS, col = col0 + at % COLS;
        SUM sum = added[0][at / COLS][at % COLS];
#pragma unroll
        for (int s = 1; s < SLICES; ++s) sum += added[s][at / COLS][at % COLS];
        if (row < m && col < n) STORE(EPILOGUE(sum, row, col, i0, i1), c, row * c_rs + col * c_cs);
    }
#else
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const INDEX row = row0 + r / RUN * (Y * RUN) + y * RUN + r % RUN;
#pragma unroll
        for (int s = 0; s < C; s += C_WIDTH) {
            const INDEX col = col0 + s / RUN * (X * RUN) + x * RUN + s % RUN;
            if (row >= m || col >= n) continue;
#if C_WIDTH == 4
            *(global SUM4 *)(c + row * c_rs + col) = (SUM4)(
                EPILOGUE(sums[r][s], row, col, i0, i1), EPILOGUE(sums[r][s + 1], row, col + 1, i0, i1),
                EPILOGUE(sums[r][s + 2], row, col + 2, i0, i1), EPILOGUE(sums[r][s + 3], row, col + 3, i0, i1));
#else
            STORE(EPILOGUE(sums[r][s], row, col, i0, i1), c, row * c_rs + col * c_cs);
#endif
        }
    }
#endif
}

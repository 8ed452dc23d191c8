// Attention of a few queries, as in decoding, forward: the work-groups of a matrix share its keys.
//
//               part 0      part 1      ...        a part is `depth` keys, KEYS at a time
//            +-----------+-----------+-----+
//   ROWS     | scores, P |           |     |       scores: LANES work-items for each of KEYS keys, for all rows
//   queries  +-----------+-----------+-----+       P V:    COLS work-items for the columns, SLICES of them for every SLICES-th key
//
//   1. LANES sums for each score; added up, scaled and masked in local memory
//   2. one work-item of each row: the maximum so far, and what the sums so far shrink by; P = exp(score - maximum)
//   3. sums of the output, in registers, from values that were read before 1.
//
// A group leaves the maximum, the total and the sums of each row in memory. The one that finds by the counter that it is the last of
// its rows combines the parts, always in the same order, and sets the counter back.
//
// With APPEND the key and value of one place are not in `k` and `v` yet: they are read from where they were made, and the group to
// whose part the place belongs writes them. Later keys are not looked at.
//
// Compiled with: ROWS                  queries of a group
//                TX, KEYS, LANES       work-items of a group; TX = KEYS * LANES
//                COLS, SLICES          TX = COLS * SLICES; SLICES divides KEYS
//                D, DV                 the width of queries and keys, and of values
//                WIDTH, VCOMPUTE, LOADV(p)   elements that are read at once, which divide D and DV
//                PARTS, FENCE          1 where keys are split; makes what was written visible to all groups
//                APPEND, PLACE, BITS   1 where a key and a value are written; the type of their place, and one of an element's size
// attention.cl is put before this text.

#if APPEND
#define APPEND_PARAMS , TENSOR(new_k), TENSOR(new_v), __global const PLACE *place, const ulong place_at
#else
#define APPEND_PARAMS
#endif
#if PARTS
#define PARTS_PARAMS , volatile __global VCOMPUTE *parts, volatile __global COMPUTE *stats, volatile __global uint *counters
#else
#define PARTS_PARAMS
#endif

#define D_VECTORS (D / WIDTH)
#define DV_VECTORS (DV / WIDTH)
// Vectors of the output that a work-item has.
#define OWN ((DV_VECTORS + COLS - 1) / COLS)
#define OWN_COLUMN(c) (column + (c) * COLS)
#define EACH_ROW for (uint r = 0; r < ROWS; ++r)
#define EACH_OWN for (uint c = 0; c < OWN; ++c)

// The first element of a key's or value's row.
#if APPEND
#define FIRST(name, key) ((long)(key) == own ? new_##name + ROW(new_##name, 0) : name + ROW(name, key))
#else
#define FIRST(name, key) (name + ROW(name, key))
#endif

// Writes a row that `k` or `v` does not have yet.
#define COPY(name, width)                                                                        \
    for (uint d = lid; d < width; d += TX)                                                       \
        ((__global BITS *)name)[ROW(name, own) + d] = ((__global const BITS *)new_##name)[ROW(new_##name, 0) + d];

// Adds the sums of all slices to those of the first.
#define ADD_SLICES                                                                               \
    EACH_ROW {                                                                                   \
        EACH_OWN left[c * TX + lid] = acc[r][c];                                                 \
        barrier(CLK_LOCAL_MEM_FENCE);                                                            \
        if (slice == 0)                                                                          \
            for (uint s = 1; s < SLICES; ++s) EACH_OWN acc[r][c] += left[c * TX + s * COLS + lid]; \
        barrier(CLK_LOCAL_MEM_FENCE);                                                            \
    }

// Where everything is hidden, any finite number turns minus infinity into 0.
#define SHIFT(top) ((top) == -INFINITY ? (COMPUTE)0 : (top))

__kernel __attribute__((reqd_work_group_size(TX, 1, 1)))
void attention_split(PROBLEM, __global ELEMENT *out, const ulong out_at, __global COMPUTE *logsumexp, const ulong logsumexp_at,
                     const uint depth APPEND_PARAMS PARTS_PARAMS) {
    __local VCOMPUTE qs[ROWS * D_VECTORS], left[OWN * TX];
    __local COMPUTE dots[ROWS * TX], ps[ROWS * KEYS], tops[ROWS], totals[ROWS], shrinks[ROWS];
    const uint lid = get_local_id(0), lane = lid % LANES, column = lid % COLS, slice = lid / COLS;
    const uint part = get_group_id(0), first = get_group_id(1) * ROWS, matrix = get_group_id(2);
    uint seen = causal ? min(keys, first + ROWS) : keys;
#if APPEND
    const long own = place[place_at];
    seen = own < 0 ? 0 : (uint)min((long)seen, own + 1);
#endif
    const uint begin = part * depth, end = min(seen, begin + depth);
    for (uint i = lid; i < ROWS * D; i += TX) {
        const uint r = i / D, d = i % D;
        ((__local COMPUTE *)qs)[i] = first + r < queries ? LOAD(q, ROW(q, first + r) + d) : (COMPUTE)0;
    }
    if (lid < ROWS) {
        tops[lid] = -INFINITY;
        totals[lid] = 0;
    }
#if APPEND
    if (first == 0 && own >= (long)begin && own < (long)end) {
        // Not every device has half-precision variables.
        COPY(k, D)
        COPY(v, DV)
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);

    VCOMPUTE acc[ROWS][OWN];
    EACH_ROW EACH_OWN acc[r][c] = (VCOMPUTE)(0);
    for (uint at = begin; at < end; at += KEYS) {
        VCOMPUTE values[KEYS / SLICES][OWN];
        for (uint j = 0; j < KEYS / SLICES; ++j) {
            const uint key = at + slice + j * SLICES;
            EACH_OWN values[j][c] = (VCOMPUTE)(0);
            if (key < end) {
                __global const ELEMENT *row = FIRST(v, key);
                EACH_OWN if (OWN_COLUMN(c) < DV_VECTORS) values[j][c] = LOADV(row + OWN_COLUMN(c) * WIDTH);
            }
        }
        VCOMPUTE score[ROWS];
        EACH_ROW score[r] = (VCOMPUTE)(0);
        if (at + lid / LANES < end) {
            __global const ELEMENT *row = FIRST(k, at + lid / LANES);
            for (uint d = lane; d < D_VECTORS; d += LANES) {
                const VCOMPUTE right = LOADV(row + d * WIDTH);
                EACH_ROW score[r] = fma(qs[r * D_VECTORS + d], right, score[r]);
            }
        }
        EACH_ROW dots[r * TX + lid] = ALL(PLUS, score[r]);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = lid; i < ROWS * KEYS; i += TX) {
            const uint query = first + i / KEYS, key = at + i % KEYS;
            COMPUTE sum = 0;
            for (uint l = 0; l < LANES; ++l) sum += dots[i * LANES + l];
            ps[i] = key < end ? SEEN(sum * scale, query, key) : (COMPUTE)-INFINITY;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < ROWS) {
            COMPUTE top = tops[lid];
            for (uint i = 0; i < KEYS; ++i) top = LARGER(top, ps[lid * KEYS + i]);
            shrinks[lid] = exp(tops[lid] - SHIFT(top));
            tops[lid] = top;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = lid; i < ROWS * KEYS; i += TX) ps[i] = exp(ps[i] - SHIFT(tops[i / KEYS]));
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < ROWS) {
            COMPUTE sum = 0;
            for (uint i = 0; i < KEYS; ++i) sum += ps[lid * KEYS + i];
            totals[lid] = totals[lid] * shrinks[lid] + sum;
        }
        EACH_ROW {
            EACH_OWN acc[r][c] *= shrinks[r];
            for (uint j = 0; j < KEYS / SLICES; ++j) {
                const COMPUTE p = ps[r * KEYS + slice + j * SLICES];
                EACH_OWN acc[r][c] = fma((VCOMPUTE)(p), values[j][c], acc[r][c]);
            }
        }
    }
    ADD_SLICES

#if PARTS
    __local int is_last;
    const uint count = get_num_groups(0), rows = matrix * get_num_groups(1) + get_group_id(1);
    parts += (ulong)rows * count * ROWS * OWN * COLS;
    stats += (ulong)rows * count * ROWS * 2;
    if (slice == 0) {
        EACH_ROW EACH_OWN parts[((ulong)(part * ROWS + r) * OWN + c) * COLS + column] = acc[r][c];
        FENCE;
    }
    if (lid < ROWS) {
        stats[(part * ROWS + lid) * 2] = tops[lid];
        stats[(part * ROWS + lid) * 2 + 1] = totals[lid];
        FENCE;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (lid == 0) is_last = atomic_inc(counters + rows) == count - 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    // No group leaves here: not every compiler copes with that before a barrier.
    EACH_ROW EACH_OWN acc[r][c] = (VCOMPUTE)(0);
    if (is_last) {
        FENCE;
        if (lid == 0) counters[rows] = 0;
        if (lid < ROWS) {
            COMPUTE top = -INFINITY, total = 0;
            for (uint i = 0; i < count; ++i) top = LARGER(top, stats[(i * ROWS + lid) * 2]);
            for (uint i = 0; i < count; ++i)
                total += stats[(i * ROWS + lid) * 2 + 1] * exp(stats[(i * ROWS + lid) * 2] - SHIFT(top));
            tops[lid] = top;
            totals[lid] = total;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (is_last) {
        for (uint i = slice; i < count; i += SLICES) {
            EACH_ROW {
                const COMPUTE share = exp(stats[(i * ROWS + r) * 2] - SHIFT(tops[r]));
                EACH_OWN acc[r][c] = fma((VCOMPUTE)(share), parts[((ulong)(i * ROWS + r) * OWN + c) * COLS + column], acc[r][c]);
            }
        }
    }
    ADD_SLICES
    if (!is_last) return;
#endif
    // Columns of a work-item pass through local memory, from which they are written one by one.
    __local COMPUTE *row = (__local COMPUTE *)left;
    EACH_ROW {
        const uint query = first + r;
        // A query that sees nothing gives zeros.
        const COMPUTE share = totals[r] == 0 ? (COMPUTE)0 : 1 / totals[r];
        if (slice == 0) EACH_OWN left[OWN_COLUMN(c)] = acc[r][c] * share;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (query < queries) {
            const ulong line = (ulong)matrix * queries + query;
            for (uint d = lid; d < DV; d += TX) STORE(row[d], out, out_at + line * DV + d);
            if (lid == 0) logsumexp[logsumexp_at + line] = tops[r] + log(totals[r]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

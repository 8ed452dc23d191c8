// Attention, forward: a work-group owns QUERIES rows of one batch and head and walks over the keys, KEYS at a time.
//
//                    KEYS                  work-items: TX along keys and value columns, TY along queries
//            +-----------------+
//    QUERIES | scores -> P     |           item (tx, ty) has the queries ty, ty + TY, ... and the keys tx, tx + TX, ...
//            +-----------------+
//
//   1. K tile into local memory; scores of the item's queries and keys in registers
//   2. maxima of each query through local memory; P = exp(score - maximum); sums likewise; P into local memory
//   3. V tile over the K tile; sums of the output, in registers: sum * shrink + P V
//
// On CPU devices a group is one work-item (TX = TY = 1), whose loops over keys and columns the compiler vectorises: what is
// read for many keys at one column lies transposed there.
//
// Maximum and total of a query live in registers of all its TX items, which compute them in one order: the same bits.
//
// Compiled with: QUERIES, KEYS, TX, TY   the tile; TX divides KEYS, TY divides QUERIES
//                D, DV                   the width of queries and keys, and of values
//                DROPOUT                 1: philox.cl is put before this text
// What every kernel of the two files takes is in PROBLEM.

// A tensor: memory, first element, distances of batches, heads and rows.
#define TENSOR(name) __global const ELEMENT *name, const ulong name##_at, const long name##_b, const long name##_h, const long name##_r

#define PROBLEM                                                                                                   \
    TENSOR(q), TENSOR(k), TENSOR(v), TENSOR(mask), const long mask_c, const uint has_mask, const uint causal,     \
        const uint heads, const uint queries, const uint keys, const COMPUTE scale, const ulong seed,             \
        const ulong block, const uint below, const COMPUTE drop_scale

#define THREADS (TX * TY)
#define ROW_ITEMS(rows) ((rows) / TY)
#define COLUMN_ITEMS(columns) (((columns) + TX - 1) / TX)

// A work-item alone waits for nobody.
#if THREADS == 1
#define MEET
#else
#define MEET barrier(CLK_LOCAL_MEM_FENCE)
#endif

// The item's column c of a matrix; one that exists where the matrix is narrower than the items.
#if TX == 1
#define COLUMN(c, width) (c)
#else
#define COLUMN(c, width) (tx + (c) * TX < (width) ? tx + (c) * TX : 0)
#endif

// The first element of a row of a tensor.
#define ROW(name, row) (name##_at + (long)(matrix / heads) * name##_b + (long)(matrix % heads) * name##_h + (long)(row) * name##_r)

// Copies `rows` rows of `width` elements into a tile with rows `pitch` apart; rows from `end` on are zeros.
#define FETCH(tile, pitch, name, first, rows, end, width)                                        \
    for (uint i_ = lid; i_ < (rows) * (width); i_ += THREADS) {                                  \
        const uint r_ = i_ / (width), c_ = i_ % (width);                                         \
        (tile)[r_ * (pitch) + c_] = (first) + r_ < (end) ? LOAD(name, ROW(name, (first) + r_) + c_) : (COMPUTE)0; \
    }

// The same transposed, for scores: their place is ACROSS.
#if TX == 1
#define ACROSS(row, column, rows, pitch) ((column) * (rows) + (row))
#define FETCH_ACROSS(tile, pitch, name, first, rows, end, width)                                 \
    for (uint r_ = 0; r_ < (rows); ++r_)                                                         \
        for (uint c_ = 0; c_ < (width); ++c_)                                                    \
            (tile)[c_ * (rows) + r_] = (first) + r_ < (end) ? LOAD(name, ROW(name, (first) + r_) + c_) : (COMPUTE)0;
#else
#define ACROSS(row, column, rows, pitch) ((row) * (pitch) + (column))
#define FETCH_ACROSS FETCH
#endif

// The score of a query and a key after scaling: mask added, minus infinity where the key is not seen.
#define SEEN(score, query, key)                                                                  \
    (((key) < keys && (query) < queries && !(causal && (key) > (query)))                         \
         ? (score) + (has_mask ? LOAD(mask, ROW(mask, query) + (long)(key) * mask_c) : (COMPUTE)0) \
         : (COMPUTE)-INFINITY)

#if DROPOUT
// What a probability is multiplied by. Every row of the mask starts with a random block of its own.
COMPUTE dropped(ulong seed, ulong block, ulong row, uint key, uint keys, uint below, COMPUTE drop_scale) {
    const uint4 w = netcl_random_block(seed, 0, block + row * ((keys + 3) / 4) + key / 4);
    const uint half_ = key & 3;
    const uint word = half_ < 2 ? (half_ == 0 ? w.x : w.y) : (half_ == 2 ? w.z : w.w);
    return word >> 8 < below ? drop_scale : (COMPUTE)0;
}
#define DROP(query, key) dropped(seed, block, (ulong)matrix * queries + (query), key, keys, below, drop_scale)
#else
#define DROP(query, key) ((COMPUTE)1)
#endif

#if !defined(BACKWARD) && !defined(SPLIT)
COMPUTE larger(COMPUTE a, COMPUTE b) { return ((a >= b) | (a != a)) ? a : b; }

#define PITCH ((D > DV ? D : DV) + 1)

__kernel __attribute__((reqd_work_group_size(TX, TY, 1)))
void attention_forward(PROBLEM, __global ELEMENT *out, const ulong out_at, __global COMPUTE *logsumexp, const ulong logsumexp_at) {
    __local COMPUTE qs[QUERIES * D], kv[KEYS * PITCH], ps[QUERIES * KEYS], tops[QUERIES * TX], sums[QUERIES * TX];
    const uint tx = get_local_id(0), ty = get_local_id(1), lid = ty * TX + tx;
    const uint matrix = get_group_id(1);
    // The last queries of a causal matrix see most keys: they come first.
    const uint first = (get_num_groups(0) - 1 - get_group_id(0)) * QUERIES;
    FETCH(qs, D, q, first, QUERIES, queries, D)

    COMPUTE acc[ROW_ITEMS(QUERIES)][COLUMN_ITEMS(DV)], top[ROW_ITEMS(QUERIES)], total[ROW_ITEMS(QUERIES)];
    for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
        top[r] = -INFINITY;
        total[r] = 0;
        for (uint c = 0; c < COLUMN_ITEMS(DV); ++c) acc[r][c] = 0;
    }
    const uint end = causal ? min(keys, first + QUERIES) : keys;
    for (uint at = 0; at < end; at += KEYS) {
        FETCH_ACROSS(kv, PITCH, k, at, KEYS, keys, D)
        MEET;

        COMPUTE score[ROW_ITEMS(QUERIES)][KEYS / TX];
        for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r)
            for (uint c = 0; c < KEYS / TX; ++c) score[r][c] = 0;
        for (uint d = 0; d < D; ++d) {
            for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
                const COMPUTE left = qs[(ty + r * TY) * D + d];
                for (uint c = 0; c < KEYS / TX; ++c)
                    score[r][c] = fma(left, kv[ACROSS(tx + c * TX, d, KEYS, PITCH)], score[r][c]);
            }
        }
        for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
            const uint query = first + ty + r * TY;
            COMPUTE own = -INFINITY;
            for (uint c = 0; c < KEYS / TX; ++c) {
                const uint key = at + tx + c * TX;
                score[r][c] = SEEN(score[r][c] * scale, query, key);
                own = larger(own, score[r][c]);
            }
            tops[(ty + r * TY) * TX + tx] = own;
        }
        MEET;

        COMPUTE shrink[ROW_ITEMS(QUERIES)];
        for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
            const uint row = ty + r * TY;
            COMPUTE next = top[r];
            for (uint t = 0; t < TX; ++t) next = larger(next, tops[row * TX + t]);
            // Where everything is hidden so far, any finite number turns minus infinity into 0.
            const COMPUTE shift = next == -INFINITY ? (COMPUTE)0 : next;
            shrink[r] = exp(top[r] - shift);
            top[r] = next;
            COMPUTE sum = 0;
            for (uint c = 0; c < KEYS / TX; ++c) {
                const uint key = tx + c * TX;
                const COMPUTE p = exp(score[r][c] - shift);
                sum += p;
                ps[row * KEYS + key] = p * DROP(first + row, at + key);
            }
            sums[row * TX + tx] = sum;
        }
        FETCH(kv, PITCH, v, at, KEYS, keys, DV)
        MEET;

        for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
            COMPUTE sum = 0;
            for (uint t = 0; t < TX; ++t) sum += sums[(ty + r * TY) * TX + t];
            total[r] = total[r] * shrink[r] + sum;
            for (uint c = 0; c < COLUMN_ITEMS(DV); ++c) acc[r][c] *= shrink[r];
        }
        for (uint j = 0; j < KEYS; ++j) {
            for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
                const COMPUTE left = ps[(ty + r * TY) * KEYS + j];
                for (uint c = 0; c < COLUMN_ITEMS(DV); ++c) acc[r][c] = fma(left, kv[j * PITCH + COLUMN(c, DV)], acc[r][c]);
            }
        }
        MEET;
    }
    for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
        const uint query = first + ty + r * TY;
        if (query >= queries) continue;
        const ulong row = (ulong)matrix * queries + query;
        // A query that sees nothing gives zeros.
        const COMPUTE share = total[r] == 0 ? (COMPUTE)0 : 1 / total[r];
        for (uint c = 0; c < COLUMN_ITEMS(DV); ++c) {
            const uint column = tx + c * TX;
            if (column < DV) STORE(acc[r][c] * share, out, out_at + row * DV + column);
        }
        if (tx == 0) logsumexp[logsumexp_at + row] = top[r] + log(total[r]);
    }
}
#endif

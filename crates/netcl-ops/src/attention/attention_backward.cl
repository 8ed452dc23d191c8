// Attention, backward. What the kernels share (PROBLEM, FETCH, SEEN, DROP) is in attention.cl, which is put before this text.
//
//   P = exp(q k^T * scale + mask - logsumexp)     dP = (grad v^T) * drop     dS = P * (dP - delta)
//   delta = sum over columns of output * gradient, one for each query
//
//   attention_backward_q    a work-group owns QUERIES queries and walks over the keys:       dq = scale * dS k; writes delta
//   attention_backward_kv   a work-group owns KEYS keys and walks over the queries:          dk = scale * dS^T q,  dv = (P * drop)^T grad
//
// In the first, items have queries ty, ty + TY, ... and keys tx, tx + TX, ...; in the second keys and queries change places.

#define QD (D + 1)
#define QV (DV + 1)

// A tile that is read for scores and for gradients: both forms where they differ.
#if TX == 1
#define FETCH_BOTH(tile, across, pitch, name, first, rows, end, width)   \
    FETCH(tile, pitch, name, first, rows, end, width)                    \
    FETCH_ACROSS(across, pitch, name, first, rows, end, width)
#else
#define FETCH_BOTH(tile, across, pitch, name, first, rows, end, width) FETCH(tile, pitch, name, first, rows, end, width)
#endif

// Two products of one row of registers with one column at a time: queries times keys, gradients times values.
#define SCORES(rows, columns, left_q, left_q_pitch, left_v, left_v_pitch, right_q, right_q_pitch, right_v, right_v_pitch) \
    COMPUTE s[ROW_ITEMS(rows)][(columns) / TX], g[ROW_ITEMS(rows)][(columns) / TX];                      \
    for (uint r = 0; r < ROW_ITEMS(rows); ++r)                                                           \
        for (uint c = 0; c < (columns) / TX; ++c) s[r][c] = g[r][c] = 0;                                 \
    for (uint d = 0; d < D; ++d)                                                                         \
        for (uint r = 0; r < ROW_ITEMS(rows); ++r) {                                                     \
            const COMPUTE left = (left_q)[(ty + r * TY) * (left_q_pitch) + d];                           \
            for (uint c = 0; c < (columns) / TX; ++c)                                                    \
                s[r][c] = fma(left, (right_q)[ACROSS(tx + c * TX, d, columns, right_q_pitch)], s[r][c]); \
        }                                                                                                \
    for (uint d = 0; d < DV; ++d)                                                                        \
        for (uint r = 0; r < ROW_ITEMS(rows); ++r) {                                                     \
            const COMPUTE left = (left_v)[(ty + r * TY) * (left_v_pitch) + d];                           \
            for (uint c = 0; c < (columns) / TX; ++c)                                                    \
                g[r][c] = fma(left, (right_v)[ACROSS(tx + c * TX, d, columns, right_v_pitch)], g[r][c]); \
        }

// acc += tile x matrix, for the item's rows of the tile (rows `pitch` apart) and its columns of the matrix.
#define ACCUMULATE(acc, rows, depth, tile, pitch, matrix_, matrix_pitch, width)                          \
    for (uint j = 0; j < (depth); ++j)                                                                   \
        for (uint r = 0; r < ROW_ITEMS(rows); ++r) {                                                     \
            const COMPUTE left = (tile)[(ty + r * TY) * (pitch) + j];                                    \
            for (uint c = 0; c < COLUMN_ITEMS(width); ++c)                                               \
                (acc)[r][c] = fma(left, (matrix_)[j * (matrix_pitch) + COLUMN(c, width)], (acc)[r][c]);  \
        }

__kernel __attribute__((reqd_work_group_size(TX, TY, 1)))
void attention_backward_q(PROBLEM, TENSOR(grad), TENSOR(out), __global const COMPUTE *logsumexp, const ulong logsumexp_at,
                          __global COMPUTE *delta, const ulong delta_at, __global ELEMENT *dq, const ulong dq_at) {
    __local COMPUTE qs[QUERIES * D], gs[QUERIES * DV], ks[KEYS * QD], vs[KEYS * QV], ds[QUERIES * KEYS], parts[QUERIES * TX];
#if TX == 1
    __local COMPUTE k_across[KEYS * D];
#else
    __local COMPUTE *k_across = ks;
#endif
    const uint tx = get_local_id(0), ty = get_local_id(1), lid = ty * TX + tx;
    const uint matrix = get_group_id(1);
    const uint first = (get_num_groups(0) - 1 - get_group_id(0)) * QUERIES;
    FETCH(qs, D, q, first, QUERIES, queries, D)
    FETCH(gs, DV, grad, first, QUERIES, queries, DV)

    COMPUTE acc[ROW_ITEMS(QUERIES)][COLUMN_ITEMS(D)], lse[ROW_ITEMS(QUERIES)], own[ROW_ITEMS(QUERIES)];
    for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
        const uint query = first + ty + r * TY;
        for (uint c = 0; c < COLUMN_ITEMS(D); ++c) acc[r][c] = 0;
        COMPUTE part = 0;
        if (query < queries) {
            for (uint d = tx; d < DV; d += TX) {
                part = fma(LOAD(out, ROW(out, query) + d), LOAD(grad, ROW(grad, query) + d), part);
            }
        }
        lse[r] = query < queries ? logsumexp[logsumexp_at + (ulong)matrix * queries + query] : (COMPUTE)-INFINITY;
        parts[(ty + r * TY) * TX + tx] = part;
    }
    MEET;
    for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
        const uint query = first + ty + r * TY;
        own[r] = 0;
        for (uint t = 0; t < TX; ++t) own[r] += parts[(ty + r * TY) * TX + t];
        if (tx == 0 && query < queries) delta[delta_at + (ulong)matrix * queries + query] = own[r];
    }

    const uint end = causal ? min(keys, first + QUERIES) : keys;
    for (uint at = 0; at < end; at += KEYS) {
        FETCH_BOTH(ks, k_across, QD, k, at, KEYS, keys, D)
        FETCH_ACROSS(vs, QV, v, at, KEYS, keys, DV)
        MEET;
        SCORES(QUERIES, KEYS, qs, D, gs, DV, k_across, QD, vs, QV)
        for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
            const uint query = first + ty + r * TY;
            for (uint c = 0; c < KEYS / TX; ++c) {
                const uint key = at + tx + c * TX;
                const COMPUTE score = SEEN(s[r][c] * scale, query, key);
                const COMPUTE p = lse[r] == -INFINITY ? (COMPUTE)0 : exp(score - lse[r]);
                ds[(ty + r * TY) * KEYS + tx + c * TX] = p * (g[r][c] * DROP(query, key) - own[r]);
            }
        }
        MEET;
        ACCUMULATE(acc, QUERIES, KEYS, ds, KEYS, ks, QD, D)
        MEET;
    }
    for (uint r = 0; r < ROW_ITEMS(QUERIES); ++r) {
        const uint query = first + ty + r * TY;
        for (uint c = 0; c < COLUMN_ITEMS(D); ++c) {
            const uint column = tx + c * TX;
            if (query < queries && column < D) {
                STORE(acc[r][c] * scale, dq, dq_at + ((ulong)matrix * queries + query) * D + column);
            }
        }
    }
}

__kernel __attribute__((reqd_work_group_size(TX, TY, 1)))
void attention_backward_kv(PROBLEM, TENSOR(grad), __global const COMPUTE *logsumexp, const ulong logsumexp_at,
                           __global const COMPUTE *delta, const ulong delta_at, __global ELEMENT *dk, const ulong dk_at,
                           __global ELEMENT *dv, const ulong dv_at) {
    __local COMPUTE ks[KEYS * D], vs[KEYS * DV], qs[QUERIES * QD], gs[QUERIES * QV], ps[KEYS * QUERIES], ds[KEYS * QUERIES];
#if TX == 1
    __local COMPUTE q_across[QUERIES * D], g_across[QUERIES * DV];
#else
    __local COMPUTE *q_across = qs, *g_across = gs;
#endif
    const uint tx = get_local_id(0), ty = get_local_id(1), lid = ty * TX + tx;
    const uint matrix = get_group_id(1);
    const uint first = get_group_id(0) * KEYS;
    FETCH(ks, D, k, first, KEYS, keys, D)
    FETCH(vs, DV, v, first, KEYS, keys, DV)
    COMPUTE to_k[ROW_ITEMS(KEYS)][COLUMN_ITEMS(D)], to_v[ROW_ITEMS(KEYS)][COLUMN_ITEMS(DV)];
    for (uint r = 0; r < ROW_ITEMS(KEYS); ++r) {
        for (uint c = 0; c < COLUMN_ITEMS(D); ++c) to_k[r][c] = 0;
        for (uint c = 0; c < COLUMN_ITEMS(DV); ++c) to_v[r][c] = 0;
    }
    // The first block of queries that see one of the keys.
    const uint start = causal ? first / QUERIES * QUERIES : 0;
    for (uint at = start; at < queries; at += QUERIES) {
        FETCH_BOTH(qs, q_across, QD, q, at, QUERIES, queries, D)
        FETCH_BOTH(gs, g_across, QV, grad, at, QUERIES, queries, DV)
        MEET;
        SCORES(KEYS, QUERIES, ks, D, vs, DV, q_across, QD, g_across, QV)
        for (uint c = 0; c < QUERIES / TX; ++c) {
            const uint query = at + tx + c * TX;
            const ulong row = (ulong)matrix * queries + query;
            const COMPUTE lse = query < queries ? logsumexp[logsumexp_at + row] : (COMPUTE)-INFINITY;
            const COMPUTE own = query < queries ? delta[delta_at + row] : (COMPUTE)0;
            for (uint r = 0; r < ROW_ITEMS(KEYS); ++r) {
                const uint key = first + ty + r * TY, place = (ty + r * TY) * QUERIES + tx + c * TX;
                const COMPUTE score = SEEN(s[r][c] * scale, query, key);
                const COMPUTE p = lse == -INFINITY ? (COMPUTE)0 : exp(score - lse), drop = DROP(query, key);
                ps[place] = p * drop;
                ds[place] = p * (g[r][c] * drop - own);
            }
        }
        MEET;
        ACCUMULATE(to_k, KEYS, QUERIES, ds, QUERIES, qs, QD, D)
        ACCUMULATE(to_v, KEYS, QUERIES, ps, QUERIES, gs, QV, DV)
        MEET;
    }
    for (uint r = 0; r < ROW_ITEMS(KEYS); ++r) {
        const uint key = first + ty + r * TY;
        if (key >= keys) continue;
        const ulong row = (ulong)matrix * keys + key;
        for (uint c = 0; c < COLUMN_ITEMS(D); ++c) {
            const uint column = tx + c * TX;
            if (column < D) STORE(to_k[r][c] * scale, dk, dk_at + row * D + column);
        }
        for (uint c = 0; c < COLUMN_ITEMS(DV); ++c) {
            const uint column = tx + c * TX;
            if (column < DV) STORE(to_v[r][c], dv, dv_at + row * DV + column);
        }
    }
}

// Reductions: each result combines n elements. Three variants, and a second stage for the third.
//
//   reduce_sequential   work-item o     -> result o, elements 0, 1, 2, ..., n-1
//
//   reduce_parallel     a work-group    -> COLS neighbouring results:
//
//                  results ->                            elements of a column go to the lanes in turn:
//            +-----+-----+-----+-----+                   lane l takes l, l + lanes, l + 2 lanes, ...
//     lane 0 |  0  |  1  |  2  | ... |  work-items       With COLS = 1 neighbouring work-items read neighbouring
//     lane 1 | COLS|     |     |     |                   elements; with more they read neighbouring results, which is
//       ...  |     |     |     |     |                   what lies together when the reduced axis is not the last.
//            +-----+-----+-----+-----+                   Then a tree in local memory adds the lanes up.
//
//   reduce_workgroup    the same for elements `part` s of n, s = group id 1: partial[s][result]
//   reduce_finish       the same for the partial results
//
// Every work-item takes eight elements at a time, combines them as a tree and adds that to its own value; sums carry what
// each addition rounds off. No order depends on timing. Barriers stand in uniform control flow only.
//
// Compiled with: OP               0 sum, 1 product, 2 maximum, 3 minimum, 4 first maximum's position, 5 first minimum's
//                INPUT_PARAMS     parameters of the inputs, KEPT_PARAMS of the results' axes, OUTPUT_PARAMS of the output and
//                                 what the epilogue reads; each ends with a comma or is empty
//                KEPT(o)          declares where the elements of result o lie
//                VALUE(v, r)      sets v to the prologue's value of element r
//                RESULT(a, o)     writes the epilogue's value of the combined a to result o
//                VARIANT          one of the variants 1, 2, 3, or 0 for all

#define UNROLL 8

#if OP < 4
typedef COMPUTE ACC;
#define LIFT(v, r) (v)
#else
// A value and where it was found.
typedef struct { COMPUTE value; long at; } ACC;
ACC lift(COMPUTE value, long at) { ACC a; a.value = value; a.at = at; return a; }
#define LIFT(v, r) lift(v, (long)(r))
#endif

#if OP == 0
#define IDENTITY ((COMPUTE)0)
ACC join(ACC a, ACC b) { return a + b; }
#elif OP == 1
#define IDENTITY ((COMPUTE)1)
ACC join(ACC a, ACC b) { return a * b; }
#elif OP == 2
#define IDENTITY ((COMPUTE)(-INFINITY))
ACC join(ACC a, ACC b) { return ((a >= b) | (a != a)) ? a : b; }
#elif OP == 3
#define IDENTITY ((COMPUTE)INFINITY)
ACC join(ACC a, ACC b) { return ((a <= b) | (a != a)) ? a : b; }
#else
#if OP == 4
#define IDENTITY lift(-INFINITY, LONG_MAX)
#define BETTER >
#else
#define IDENTITY lift(INFINITY, LONG_MAX)
#define BETTER <
#endif
// The better value, a NaN before any other, the first of equals.
ACC join(ACC a, ACC b) {
    const int a_nan = a.value != a.value, b_nan = b.value != b.value;
    const int equal = (a_nan & b_nan) | (a.value == b.value);
    const int b_wins = equal ? (b.at < a.at) : ((b_nan | (b.value BETTER a.value)) & !a_nan);
    return b_wins ? b : a;
}
#endif

#if OP == 0
#define COMBINE(acc, lost, v) FOLD(ACC, acc, lost, v)
// An infinite sum has lost nothing (the formula of FOLD says NaN).
#define SETTLE(acc, lost) if (isfinite(acc)) acc += lost
#else
#define COMBINE(acc, lost, v) acc = join(acc, v)
#define SETTLE(acc, lost)
#endif

#define TAKE(a, r)            \
    {                         \
        COMPUTE value_;       \
        VALUE(value_, r);     \
        a = LIFT(value_, r);  \
    }

// Combines the elements first, first + step, ... before end into acc. KEPT must have been declared.
#define FOLD_RANGE(acc, first, end, step)                                                              \
    {                                                                                                  \
        COMPUTE lost = 0;                                                                              \
        UINT r_ = (first);                                                                             \
        for (; r_ + (UNROLL - 1) * (step) < (end); r_ += UNROLL * (step)) {                            \
            ACC v[UNROLL];                                                                             \
            for (uint j = 0; j < UNROLL; ++j) TAKE(v[j], r_ + j * (step))                              \
            COMBINE(acc, lost, join(join(join(v[0], v[1]), join(v[2], v[3])),                          \
                                    join(join(v[4], v[5]), join(v[6], v[7]))));                           \
        }                                                                                              \
        for (; r_ < (end); r_ += (step)) {                                                             \
            ACC v;                                                                                     \
            TAKE(v, r_)                                                                                \
            COMBINE(acc, lost, v);                                                                     \
        }                                                                                              \
        SETTLE(acc, lost);                                                                             \
    }

// Adds up the lanes of each column in local memory; the totals stand in lane 0. The group size is a power of two.
#define TREE(tile, acc)                                                                  \
    tile[lid] = acc;                                                                     \
    barrier(CLK_LOCAL_MEM_FENCE);                                                        \
    for (uint half_ = lanes / 2; half_ > 0; half_ /= 2) {                                \
        if (lane < half_) tile[lid] = join(tile[lid], tile[lid + half_ * cols]);         \
        barrier(CLK_LOCAL_MEM_FENCE);                                                    \
    }

#define LANES                                                                                       \
    const uint lid = get_local_id(0), lanes = (uint)get_local_size(0) / cols;                       \
    const uint col = lid % cols, lane = lid / cols;                                                 \
    const UINT o = (UINT)get_group_id(0) * cols + col;                                              \
    ACC acc = IDENTITY;

#if VARIANT == 0 || VARIANT == 1
__kernel void reduce_sequential(INPUT_PARAMS KEPT_PARAMS OUTPUT_PARAMS const UINT results, const UINT n) {
    const UINT o = get_global_id(0);
    if (o >= results) return;
    KEPT(o);
    ACC acc = IDENTITY;
    FOLD_RANGE(acc, 0, n, 1)
    RESULT(acc, o);
}
#endif

#if VARIANT == 0 || VARIANT == 2
__kernel void reduce_parallel(INPUT_PARAMS KEPT_PARAMS OUTPUT_PARAMS const UINT results, const UINT n, const uint cols,
                              __local ACC *tile) {
    LANES
    if (o < results) {
        KEPT(o);
        FOLD_RANGE(acc, lane, n, lanes)
    }
    TREE(tile, acc)
    if (lane == 0 && o < results) RESULT(tile[lid], o);
}
#endif

#if VARIANT == 0 || VARIANT == 3
__kernel void reduce_workgroup(INPUT_PARAMS KEPT_PARAMS __global ACC *partial, const UINT results, const UINT n,
                               const uint cols, const UINT part, __local ACC *tile) {
    LANES
    const UINT from = (UINT)get_group_id(1) * part;
    const UINT to = from + part < n ? from + part : n;
    if (o < results) {
        KEPT(o);
        FOLD_RANGE(acc, from + lane, to, lanes)
    }
    TREE(tile, acc)
    if (lane == 0 && o < results) partial[(size_t)get_group_id(1) * results + o] = tile[lid];
}

__kernel void reduce_finish(__global const ACC *partial, KEPT_PARAMS OUTPUT_PARAMS const UINT results, const uint parts,
                            const uint cols, __local ACC *tile) {
    LANES
    if (o < results) {
        for (uint s = lane; s < parts; s += lanes) acc = join(acc, partial[(size_t)s * results + o]);
    }
    TREE(tile, acc)
    if (lane == 0 && o < results) RESULT(tile[lid], o);
}
#endif

// Reductions on GPUs: groups of many work-items, each with a vector of 16 bytes at a time.
//
//   COLUMNS 0   the reduced axis is dense             a group has `together` rows, each with lanes = GROUP / together
//
//      row 0   [l0 l1 l2 ... | l0 l1 l2 ... | t]      lane l takes the vectors l, l + lanes * parts, ...; what is left
//      row 1   [l0 l1 l2 ... | l0 l1 l2 ... | t]      beside whole vectors (t) goes in single elements
//
//   COLUMNS 1   the results are dense                 a group has `together` neighbouring vectors of results
//
//                 V    V    V   (together)
//      lane 0   +----+----+----+                      lane l takes the elements l, l + lanes * parts, ... of each
//      lane 1   |    |    |    |
//        ...    +----+----+----+
//
// Then the lanes meet in local memory. With PARTIAL the N groups (g, 0), (g, 1), ... have every Nth round each and leave
// their results in partial[part][unit]; the one that finds by the counter that it is the last combines them, in order, and sets
// the counter back. Which group that is makes no difference to the result: no order depends on timing.
//
// Sums carry what each addition rounds off. Barriers stand in uniform control flow only.
//
// Compiled with: COMPUTE, UINT, OP (0 to 3), INPUT_PARAMS, KEPT_PARAMS, OUTPUT_PARAMS, KEPT(o), RESULT(a, o): see reduce.cl
//                VCOMPUTE, WIDTH  a vector of COMPUTE and its length, which may be 1
//                PLACE(r)         declares where element r of the inputs lies
//                VALUE(v, d)      sets v to the prologue's value of the element d places further; VVALUE(v, d) of a vector
//                UNROLL           vectors under way at once

// For scalars and vectors alike.
#if OP == 0
#define IDENTITY ((COMPUTE)0)
#define JOIN(a, b) ((a) + (b))
#define COMBINE FOLD
// An infinite sum has lost nothing (the formula of FOLD says NaN).
#define SETTLE(T, acc, lost) acc += isfinite(acc) ? lost : (T)(0)
#else
#if OP == 1
#define IDENTITY ((COMPUTE)1)
#define JOIN(a, b) ((a) * (b))
#elif OP == 2
#define IDENTITY ((COMPUTE)(-INFINITY))
#define JOIN(a, b) ((((a) >= (b)) | ((a) != (a))) ? (a) : (b))
#else
#define IDENTITY ((COMPUTE)INFINITY)
#define JOIN(a, b) ((((a) <= (b)) | ((a) != (a))) ? (a) : (b))
#endif
#define COMBINE(T, acc, lost, v)       \
    {                                  \
        const T v_ = (v);              \
        acc = JOIN(acc, v_);           \
    }
#define SETTLE(T, acc, lost)
#endif

COMPUTE join(COMPUTE a, COMPUTE b) { return JOIN(a, b); }
VCOMPUTE vjoin(VCOMPUTE a, VCOMPUTE b) { return JOIN(a, b); }

#if COLUMNS
typedef VCOMPUTE ACC;
#define LINK vjoin
#define EACH WIDTH
#define STRIDE 1
#else
typedef COMPUTE ACC;
#define LINK join
#define EACH 1
#define STRIDE WIDTH
#endif

#if COLUMNS && WIDTH > 1
// Component by component: of a private array that a loop reads, PoCL 1.6 (Debian 11) gets only the first element right.
#define RESULTS2(v, o) RESULT((v).s0, o); RESULT((v).s1, (o) + 1);
#define RESULTS4(v, o) RESULTS2((v).lo, o) RESULTS2((v).hi, (o) + 2)
#define RESULTS8(v, o) RESULTS4((v).lo, o) RESULTS4((v).hi, (o) + 4)
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define FINISH(acc, o)                  \
    {                                   \
        const ACC all_ = acc;           \
        PASTE(RESULTS, WIDTH)(all_, o)  \
    }
#else
#define FINISH(acc, o) RESULT(acc, o)
#endif

// Combines the lanes of every unit; the result stands in lane 0.
#define TREE(value)                                                                          \
    tile[lid] = value;                                                                       \
    barrier(CLK_LOCAL_MEM_FENCE);                                                            \
    for (uint half_ = lanes / 2; half_ > 0; half_ /= 2) {                                    \
        if (lane < half_) tile[lid] = LINK(tile[lid], tile[lid + half_ * lane_step]);        \
        barrier(CLK_LOCAL_MEM_FENCE);                                                        \
    }

#if PARTIAL
#define PARTIAL_PARAMS volatile __global ACC *partial, volatile __global uint *counters,
#else
#define PARTIAL_PARAMS
#endif

__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void reduce_groups(INPUT_PARAMS KEPT_PARAMS OUTPUT_PARAMS PARTIAL_PARAMS const UINT units, const UINT n,
                            const uint together, __local ACC *tile) {
    const uint lid = get_local_id(0), lanes = GROUP / together;
#if COLUMNS
    const uint own = lid % together, lane = lid / together, lane_step = together;
#else
    const uint own = lid / lanes, lane = lid % lanes, lane_step = 1;
#endif
    const UINT unit = (UINT)get_group_id(0) * together + own, o = unit * EACH;
#if PARTIAL
    const uint part = get_group_id(1), parts = get_num_groups(1);
#else
    const uint part = 0, parts = 1;
#endif
    VCOMPUTE vacc = (VCOMPUTE)(IDENTITY), vlost = (VCOMPUTE)(0);
#if !COLUMNS && WIDTH > 1
    COMPUTE rest = IDENTITY, rest_lost = 0;
#endif
    if (unit < units) {
        KEPT(o);
        const UINT step = (UINT)parts * lanes * STRIDE;
        UINT r = ((UINT)part * lanes + lane) * STRIDE;
        for (; r + (UNROLL - 1) * step + STRIDE <= n; r += UNROLL * step) {
            VCOMPUTE v[UNROLL];
            #pragma unroll
            for (uint j = 0; j < UNROLL; ++j) {
                PLACE(r + j * step);
                VVALUE(v[j], 0);
            }
            #pragma unroll
            for (uint half_ = UNROLL / 2; half_ > 0; half_ /= 2)
                #pragma unroll
                for (uint j = 0; j < half_; ++j) v[j] = vjoin(v[j], v[j + half_]);
            COMBINE(VCOMPUTE, vacc, vlost, v[0])
        }
        for (; r + STRIDE <= n; r += step) {
            PLACE(r);
            VCOMPUTE v;
            VVALUE(v, 0);
            COMBINE(VCOMPUTE, vacc, vlost, v)
        }
#if !COLUMNS && WIDTH > 1
        if (part == 0) {
            for (UINT s = n - n % WIDTH + lane; s < n; s += lanes) {
                PLACE(s);
                COMPUTE v;
                VALUE(v, 0);
                COMBINE(COMPUTE, rest, rest_lost, v)
            }
        }
#endif
    }
    SETTLE(VCOMPUTE, vacc, vlost);
#if COLUMNS
    ACC acc = vacc;
#elif WIDTH > 1
    SETTLE(COMPUTE, rest, rest_lost);
    ACC acc = join(rest, ALL(join, vacc));
#else
    ACC acc = vacc;
#endif
    TREE(acc)
#if PARTIAL
    __local uint last;
    if (lane == 0 && unit < units) {
        partial[(size_t)part * units + unit] = tile[lid];
        FENCE;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (lid == 0) last = atomic_inc(counters + get_group_id(0)) == parts - 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    // The others go through the rest with nothing to do: no barrier depends on who is last.
    const uint all = last && unit < units ? parts : 0;
    FENCE;
    acc = (ACC)(IDENTITY);
    for (uint s = lane; s < all; s += lanes) acc = LINK(acc, partial[(size_t)s * units + unit]);
    TREE(acc)
    if (lid == 0 && last) counters[get_group_id(0)] = 0;
    if (lane == 0 && all > 0) FINISH(tile[lid], o);
#else
    if (lane == 0 && unit < units) FINISH(tile[lid], o);
#endif
}

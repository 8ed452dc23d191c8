// Softmax on GPUs, along a dense axis: a line is held in the registers of its lanes.
//
//      line 0   [l0 l1 l2 ... | l0 l1 l2 ... | ...]      lane l has the vectors l, l + lanes, ...: VECTORS of them
//      line 1   [l0 l1 l2 ... | l0 l1 l2 ... | ...]      a group has GROUP / lanes lines
//
//   softmax_registers   1. maximum     2. exponentials and their sum     3. scaling; each element is read once
//   softmax_long        for lines that are too long: a group passes over its line twice. In the first pass every lane keeps its
//                       maximum so far and its sum beside that, which it scales anew when the maximum grows
//
// A NaN among the elements needs no care in maxima: it makes the sum NaN.
//
// Compiled with: KEPT_PARAMS, KEPT(o)   where line o lies: x_o and y_o
//                LOG              1 for the logarithm

// Combines the lanes of every line; all of them get the result.
#define JOIN(join, value)                                                               \
    {                                                                                   \
        tile[lid] = value;                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                   \
        for (uint half_ = lanes / 2; half_ > 0; half_ /= 2) {                           \
            if (lane < half_) tile[lid] = join(tile[lid], tile[lid + half_]);           \
            barrier(CLK_LOCAL_MEM_FENCE);                                               \
        }                                                                               \
        value = tile[lid - lane];                                                       \
        barrier(CLK_LOCAL_MEM_FENCE);                                                   \
    }

#ifdef KERNEL_softmax_registers
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void softmax_registers(KEPT_PARAMS const UINT count, const UINT n, const uint lanes, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid % lanes;
    const UINT o = (UINT)get_group_id(0) * (GROUP / lanes) + lid / lanes;
    // Lines beyond the last read nothing and write nothing, but meet the others at the barriers.
    const UINT at = o < count ? o : 0, end = o < count ? n : 0;
    KEPT(at);
    VCOMPUTE v[VECTORS], most = (VCOMPUTE)(-INFINITY);
    #pragma unroll
    for (uint j = 0; j < VECTORS; ++j) {
        const UINT d = (j * lanes + lane) * WIDTH;
        v[j] = (VCOMPUTE)(-INFINITY);
        if (d < end) v[j] = LOADV(x_o + d);
    }
    #pragma unroll
    for (uint j = 0; j < VECTORS; ++j) most = fmax(most, v[j]);
    COMPUTE top = ALL(fmax, most);
    JOIN(fmax, top)
    VCOMPUTE sums = (VCOMPUTE)(0);
    #pragma unroll
    for (uint j = 0; j < VECTORS; ++j) {
        v[j] -= top;
#if LOG
        sums += exp(v[j]);
#else
        v[j] = exp(v[j]);
        sums += v[j];
#endif
    }
    COMPUTE total = ALL(PLUS, sums);
    JOIN(PLUS, total)
    const COMPUTE last = LOG ? log(total) : 1 / total;
    #pragma unroll
    for (uint j = 0; j < VECTORS; ++j) {
        const UINT d = (j * lanes + lane) * WIDTH;
#if LOG
        v[j] -= last;
#else
        v[j] *= last;
#endif
        if (d < end) STOREV(v[j], y_o + d);
    }
}
#endif

#ifdef KERNEL_softmax_long
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void softmax_long(KEPT_PARAMS const UINT count, const UINT n, const uint lanes, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid;
    KEPT((UINT)get_group_id(0));
    COMPUTE top = -INFINITY, total = 0;
    for (UINT first = lane * WIDTH; first < n; first += GROUP * VECTORS * WIDTH) {
        VCOMPUTE v[VECTORS], most = (VCOMPUTE)(top);
        #pragma unroll
        for (uint j = 0; j < VECTORS; ++j) {
            const UINT d = first + j * GROUP * WIDTH;
            v[j] = (VCOMPUTE)(-INFINITY);
            if (d < n) v[j] = LOADV(x_o + d);
        }
        #pragma unroll
        for (uint j = 0; j < VECTORS; ++j) most = fmax(most, v[j]);
        const COMPUTE higher = ALL(fmax, most);
        // As long as all is -inf there is nothing to take from it.
        const COMPUTE from = higher == -INFINITY ? 0 : higher;
        VCOMPUTE sums = (VCOMPUTE)(0);
        #pragma unroll
        for (uint j = 0; j < VECTORS; ++j) sums += exp(v[j] - from);
        total = total * exp(top - from) + ALL(PLUS, sums);
        top = higher;
    }
    const COMPUTE own = top;
    JOIN(fmax, top)
    total *= exp(own - (top == -INFINITY ? 0 : top));
    JOIN(PLUS, total)
    const COMPUTE last = LOG ? log(total) : 1 / total;
    for (UINT d = lane * WIDTH; d < n; d += GROUP * WIDTH) {
        const VCOMPUTE v = LOADV(x_o + d) - top;
#if LOG
        STOREV(v - last, y_o + d);
#else
        STOREV(exp(v) * last, y_o + d);
#endif
    }
}
#endif

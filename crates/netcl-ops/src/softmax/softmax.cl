// Softmax: a work-group handles a few whole lines (the elements along the axis for one index of the others).
//
//            lines ->                       work-item (line, lane): lid = line * line_step + lane * lane_step
//          +----+----+----+----+            lane l takes the elements l, l + lanes, l + 2 lanes, ...
//   lane 0 |    |    |    |    |
//   lane 1 |    |    |    |    |            Lanes are neighbours where a line lies densely (line_step = lanes), lines are
//    ...   |    |    |    |    |            where the axis is not the last (lane_step = lines): reads are coalesced.
//          +----+----+----+----+
//
//   1. maximum of each line, and the elements into local memory if the lines fit (cached)
//   2. exponentials and their sum     3. scaling
//
// Compiled with: COMPUTE, UINT, KEPT_PARAMS, KEPT(o), LOAD(r), STORE(v, r): see reduce.cl; here KEPT also places the output
//                LOG              1 for the logarithm
// The defaults make this file compile alone: rows of a dense matrix.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#ifndef COMPUTE
#define COMPUTE float
#define UINT uint
#define LOG 0
#define KEPT_PARAMS __global const float *x, __global float *y,
#define KEPT(o) __global const float *x_o = x + (o) * n; __global float *y_o = y + (o) * n
#define LOAD(r) x_o[r]
#define STORE(v, r) y_o[r] = (v)
#endif

COMPUTE larger(COMPUTE a, COMPUTE b) { return ((a >= b) | (a != a)) ? a : b; }
COMPUTE plus(COMPUTE a, COMPUTE b) { return a + b; }

// Combines the lanes of every line; the result stands in lane 0.
#define TREE(join, value)                                                                       \
    tile[lid] = value;                                                                          \
    barrier(CLK_LOCAL_MEM_FENCE);                                                               \
    for (uint half_ = lanes / 2; half_ > 0; half_ /= 2) {                                       \
        if (lane < half_) tile[lid] = join(tile[lid], tile[lid + half_ * lane_step]);           \
        barrier(CLK_LOCAL_MEM_FENCE);                                                           \
    }

__kernel void softmax_group(KEPT_PARAMS const UINT count, const UINT n, const uint lines, const uint line_step,
                            const uint lane_step, const uint cached, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lanes = (uint)get_local_size(0) / lines;
    const uint line = (lid / line_step) % lines, lane = (lid / lane_step) % lanes;
    const UINT o = (UINT)get_group_id(0) * lines + line;
    const UINT end = o < count ? n : 0;
    // Lines beyond the last read nothing and write nothing, but meet the others at the barriers.
    const UINT at = o < count ? o : 0;
    KEPT(at);
    // The elements this work-item keeps: every group-size-th one behind the tile.
    const uint group = get_local_size(0);
    __local COMPUTE *kept = tile + group + lid;

    COMPUTE top = -INFINITY;
    for (UINT r = lane, s = 0; r < end; r += lanes, s += group) {
        const COMPUTE v = LOAD(r);
        if (cached) kept[s] = v;
        top = larger(top, v);
    }
    TREE(larger, top)
    top = tile[line * line_step];
    barrier(CLK_LOCAL_MEM_FENCE);

    // What each addition rounds off is carried along (Knuth's two-sum).
    COMPUTE total = 0, lost = 0;
    for (UINT r = lane, s = 0; r < end; r += lanes, s += group) {
        const COMPUTE shifted = (cached ? kept[s] : LOAD(r)) - top;
        const COMPUTE v = exp(shifted), sum = total + v, part = sum - total;
        lost += (total - (sum - part)) + (v - part);
        total = sum;
        if (cached) kept[s] = LOG ? shifted : v;
    }
    total += lost;
    TREE(plus, total)
    total = tile[line * line_step];

    const COMPUTE last = LOG ? log(total) : 1 / total;
    for (UINT r = lane, s = 0; r < end; r += lanes, s += group) {
        COMPUTE v = cached ? kept[s] : LOAD(r) - top;
#if LOG
        STORE(v - last, r);
#else
        if (!cached) v = exp(v);
        STORE(v * last, r);
#endif
    }
}

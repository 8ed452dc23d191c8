// Gradients of softmax, y * (g - sum(g * y)), and of its logarithm, g - exp(y) * sum(g).
//
//   softmax_backward_rows      a group takes local size / lanes rows; the lanes of a row meet in local memory
//
//      row 0   [l l l l | l l l l | ...]        1. the sum      2. the result; the row is still in the cache
//      row 1   [l l l l | l l l l | ...]
//
//   softmax_backward_columns   a work-item per line of a tensor outer x n x inner: neighbours read neighbours
//
// Compiled with: ELEMENT            the type in memory
//                COMPUTE            float, or double for itself
//                UINT               indices
//                LOAD(p, i), STORE(v, p, i)
//                KERNEL_name        for the kernel that is wanted: some drivers compile all there are, at length
// The defaults make this file compile alone.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#ifndef COMPUTE
#define ELEMENT float
#define COMPUTE float
#define UINT uint
#define LOAD(p, i) (p)[i]
#define STORE(v, p, i) (p)[i] = (v)
#define KERNEL_softmax_backward_rows
#define KERNEL_softmax_backward_columns
#endif

// What each addition rounds off is carried along (Knuth's two-sum).
#define FOLD(total, lost, v)                                                  \
    {                                                                         \
        const COMPUTE v_ = (v), sum_ = total + v_, part_ = sum_ - total;      \
        lost += (total - (sum_ - part_)) + (v_ - part_);                      \
        total = sum_;                                                         \
    }
#define TERM(i) (log ? LOAD(g, i) : LOAD(g, i) * LOAD(y, i))
#define RESULT(i) (log ? LOAD(g, i) - exp(LOAD(y, i)) * total : LOAD(y, i) * (LOAD(g, i) - total))

#ifdef KERNEL_softmax_backward_rows
__kernel void softmax_backward_rows(__global const ELEMENT *g, const ulong g_at, __global const ELEMENT *y,
                                    const ulong y_at, __global ELEMENT *out, const ulong out_at, const UINT rows,
                                    const UINT n, const uint log, const uint lanes, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid % lanes;
    const UINT row = (UINT)get_group_id(0) * ((uint)get_local_size(0) / lanes) + lid / lanes;
    // Rows beyond the last read nothing and write nothing, but meet the others at the barriers.
    const UINT at = row < rows ? row : 0, end = row < rows ? n : 0;
    g += g_at + at * n;
    y += y_at + at * n;
    out += out_at + at * n;

    COMPUTE total = 0, lost = 0;
    for (UINT i = lane; i < end; i += lanes) FOLD(total, lost, TERM(i))
    // Every 16th lane, then the 16 sums: no barrier stands in a loop, which compilers for processors take long over.
    __local COMPUTE *line = tile + (lid - lane);
    line[lane] = total + lost;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 16)
        for (uint j = lane + 16; j < lanes; j += 16) line[lane] += line[j];
    barrier(CLK_LOCAL_MEM_FENCE);
    total = line[0];
    for (uint j = 1; j < 16 && j < lanes; ++j) total += line[j];

    for (UINT i = lane; i < end; i += lanes) STORE(RESULT(i), out, i);
}
#endif

#ifdef KERNEL_softmax_backward_columns
__kernel void softmax_backward_columns(__global const ELEMENT *g, const ulong g_at, __global const ELEMENT *y,
                                       const ulong y_at, __global ELEMENT *out, const ulong out_at, const UINT lines,
                                       const UINT n, const UINT inner, const uint log) {
    const UINT o = get_global_id(0);
    if (o >= lines) return;
    const UINT first = o / inner * n * inner + o % inner;
    g += g_at + first;
    y += y_at + first;
    out += out_at + first;
    COMPUTE total = 0, lost = 0;
    for (UINT r = 0; r < n; ++r) FOLD(total, lost, TERM(r * inner))
    total += lost;
    for (UINT r = 0; r < n; ++r) STORE(RESULT(r * inner), out, r * inner);
}
#endif

// Gradients of softmax, y * (g - sum(g * y)), and of its logarithm, g - exp(y) * sum(g).
//
//   softmax_backward_rows      a group takes local size / lanes rows; the lanes of a row meet in local memory
//
//      row 0   [l l l l | l l l l | ...]        1. the sum      2. the result; the row is still in the cache
//      row 1   [l l l l | l l l l | ...]
//
//   softmax_backward_registers the same on GPUs: lane l holds the vectors l, l + lanes, ... of both inputs in registers
//
//   softmax_backward_columns   a work-item per line of a tensor outer x n x inner: neighbours read neighbours
//
// Compiled with: ELEMENT            the type in memory
//                COMPUTE            float, or double for itself
//                UINT               indices
//                LOAD(p, i), STORE(v, p, i)
//                GROUP, WIDTH, VECTORS, VCOMPUTE, LOADV(p), STOREV(v, p), ALL(join, v): vectors of 16 bytes, or elements
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
#define KERNEL_softmax_backward_registers
#define VCOMPUTE float4
#define GROUP 256
#define WIDTH 4
#define VECTORS 4
#define LOADV(p) (*(__global const float4 *)(p))
#define STOREV(v, p) *(__global float4 *)(p) = (v)
#define ALL(j, v) j(j((v).s0, (v).s1), j((v).s2, (v).s3))
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
    // Every 16th lane, then the 16 sums: no barrier stands in a loop, which compilers for CPUs take long over.
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

#ifdef KERNEL_softmax_backward_registers
#define PLUS(a, b) ((a) + (b))
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void softmax_backward_registers(__global const ELEMENT *g, const ulong g_at, __global const ELEMENT *y,
                                         const ulong y_at, __global ELEMENT *out, const ulong out_at, const UINT rows,
                                         const UINT n, const uint log, const uint lanes, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid % lanes;
    const UINT row = (UINT)get_group_id(0) * (GROUP / lanes) + lid / lanes;
    const UINT at = row < rows ? row : 0, end = row < rows ? n : 0;
    g += g_at + at * n;
    y += y_at + at * n;
    out += out_at + at * n;
    VCOMPUTE up[VECTORS], of[VECTORS], sums = (VCOMPUTE)(0);
    #pragma unroll
    for (uint j = 0; j < VECTORS; ++j) {
        const UINT d = (j * lanes + lane) * WIDTH;
        up[j] = of[j] = (VCOMPUTE)(0);
        if (d < end) {
            up[j] = LOADV(g + d);
            of[j] = LOADV(y + d);
        }
    }
    #pragma unroll
    for (uint j = 0; j < VECTORS; ++j) sums += log ? up[j] : up[j] * of[j];
    COMPUTE total = ALL(PLUS, sums);
    tile[lid] = total;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_ = lanes / 2; half_ > 0; half_ /= 2) {
        if (lane < half_) tile[lid] += tile[lid + half_];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    total = tile[lid - lane];
    #pragma unroll
    for (uint j = 0; j < VECTORS; ++j) {
        const UINT d = (j * lanes + lane) * WIDTH;
        const VCOMPUTE v = log ? up[j] - exp(of[j]) * total : of[j] * (up[j] - total);
        if (d < end) STOREV(v, out + d);
    }
}
#endif

// Gradients of softmax, y * (g - sum(g * y)), and of its logarithm, g - exp(y) * sum(g), for rows that fit registers.
//
//      row 0   [l0 l1 l2 ... | l0 l1 l2 ... | ...]      lane l holds the vectors l, l + lanes, ... of both inputs
//      row 1   [l0 l1 l2 ... | l0 l1 l2 ... | ...]      a group has GROUP / lanes rows

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

// The gradients of a fully connected layer's weight and bias in one launch, for few rows.
//
//       outputs              features                 features
//     +--------+           +----------+             +----------+   +-+
//   r |  grad  |    with r |    x     |   ->      o |  weight  |   |b|      weight = grad' x,  b = sums of grad's columns
//     +--------+           +----------+             +----------+   +-+
//
// A group of SIDE x SIDE work-items computes (TALL * SIDE) x (WIDE * SIDE) elements of the weight's gradient; those of the first
// column of groups have all of grad's rows at hand and add them up as well. Rows are added in their order, DEPTH of them at a
// time; rows that are not there are zeros, so that all loops have fixed lengths and all loads are on their way together.
//
// Compiled with: SIDE   the side of a work-group

#define TALL 2
#define WIDE 4
#define DEPTH 32

kernel void linear_gradients(global const COMPUTE *grad, ulong grad_at, long grad_rs, long grad_cs, global const COMPUTE *x, ulong x_at,
                             long x_rs, long x_cs, global COMPUTE *weight, global COMPUTE *bias, uint rows, uint outputs,
                             uint features) {
    local COMPUTE grads[DEPTH][TALL * SIDE], xs[DEPTH][WIDE * SIDE];
    const uint lx = get_local_id(0), ly = get_local_id(1), item = ly * SIDE + lx;
    const uint i0 = get_group_id(0) * SIDE * WIDE, o0 = get_group_id(1) * SIDE * TALL;
    grad += grad_at;
    x += x_at;
    COMPUTE sums[TALL][WIDE], totals[TALL];
#pragma unroll
    for (uint t = 0; t < TALL; ++t) {
        totals[t] = 0;
#pragma unroll
        for (uint w = 0; w < WIDE; ++w) sums[t][w] = 0;
    }
    for (uint from = 0; from < rows; from += DEPTH) {
#pragma unroll
        for (uint j = 0; j < DEPTH * TALL / SIDE; ++j) {
            const uint at = item + j * SIDE * SIDE, k = at / (SIDE * TALL), r = from + k, o = o0 + at % (SIDE * TALL);
            grads[k][at % (SIDE * TALL)] = r < rows && o < outputs ? grad[r * grad_rs + o * grad_cs] : 0;
        }
#pragma unroll
        for (uint j = 0; j < DEPTH * WIDE / SIDE; ++j) {
            const uint at = item + j * SIDE * SIDE, k = at / (SIDE * WIDE), r = from + k, i = i0 + at % (SIDE * WIDE);
            xs[k][at % (SIDE * WIDE)] = r < rows && i < features ? x[r * x_rs + i * x_cs] : 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint k = 0; k < DEPTH; ++k) {
#pragma unroll
            for (uint t = 0; t < TALL; ++t) {
                const COMPUTE g = grads[k][t * SIDE + ly];
                totals[t] += g;
#pragma unroll
                for (uint w = 0; w < WIDE; ++w) sums[t][w] = fma(g, xs[k][w * SIDE + lx], sums[t][w]);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (uint t = 0; t < TALL; ++t) {
        const uint o = o0 + t * SIDE + ly;
        if (o >= outputs) continue;
#pragma unroll
        for (uint w = 0; w < WIDE; ++w) {
            const uint i = i0 + w * SIDE + lx;
            if (i < features) weight[(ulong)o * features + i] = sums[t][w];
        }
        if (get_group_id(0) == 0 && lx == 0) bias[o] = totals[t];
    }
}

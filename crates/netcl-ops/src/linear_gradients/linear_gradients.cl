// The gradients of a fully connected layer's weight and bias in one launch, for few rows.
//
//       outputs              features                 features
//     +--------+           +----------+             +----------+   +-+
//   r |  grad  |    with r |    x     |   ->      o |  weight  |   |b|      weight = grad' x,  b = sums of grad's columns
//     +--------+           +----------+             +----------+   +-+
//
// A group of SIDE x SIDE work-items computes SIDE x (EACH * SIDE) elements of the weight's gradient; those of the first column of
// groups have all of grad's rows at hand and add them up as well. Rows are added in their order.
//
// Compiled with: REAL   float or double;   SIDE   the side of a work-group
// The defaults make this file compile alone.

#ifndef REAL
#define REAL float
#endif
#ifndef SIDE
#define SIDE 16
#endif
#define EACH 4
#define DEPTH 32

#pragma OPENCL FP_CONTRACT OFF

kernel void linear_gradients(global const REAL *grad, ulong grad_at, long grad_rs, long grad_cs, global const REAL *x, ulong x_at,
                             long x_rs, long x_cs, global REAL *weight, global REAL *bias, uint rows, uint outputs,
                             uint features) {
    local REAL grads[DEPTH * SIDE], xs[DEPTH * SIDE * EACH];
    const uint lx = get_local_id(0), ly = get_local_id(1), item = ly * SIDE + lx;
    const uint i0 = get_group_id(0) * SIDE * EACH, o0 = get_group_id(1) * SIDE;
    grad += grad_at;
    x += x_at;
    REAL sums[EACH], total = 0;
    for (uint e = 0; e < EACH; ++e) sums[e] = 0;
    for (uint from = 0; from < rows; from += DEPTH) {
        const uint depth = min((uint)DEPTH, rows - from);
        for (uint at = item; at < depth * SIDE; at += SIDE * SIDE) {
            const uint r = from + at / SIDE, o = o0 + at % SIDE;
            grads[at] = o < outputs ? grad[r * grad_rs + o * grad_cs] : 0;
        }
        for (uint at = item; at < depth * SIDE * EACH; at += SIDE * SIDE) {
            const uint r = from + at / (SIDE * EACH), i = i0 + at % (SIDE * EACH);
            xs[at] = i < features ? x[r * x_rs + i * x_cs] : 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint k = 0; k < depth; ++k) {
            const REAL g = grads[k * SIDE + ly];
            total += g;
            for (uint e = 0; e < EACH; ++e) sums[e] = fma(g, xs[k * SIDE * EACH + e * SIDE + lx], sums[e]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const uint o = o0 + ly;
    if (o >= outputs) return;
    for (uint e = 0; e < EACH; ++e) {
        const uint i = i0 + e * SIDE + lx;
        if (i < features) weight[(ulong)o * features + i] = sums[e];
    }
    if (get_group_id(0) == 0 && lx == 0) bias[o] = total;
}

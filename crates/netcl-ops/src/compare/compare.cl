// Indices compared element by element: y[g] = x[g] OPERATOR z[g], as 1 or 0. All three are dense.
//
// Compiled with: OPERATOR   a comparison of C

#ifndef OPERATOR
#define OPERATOR ==
#endif

__kernel void compare(__global const long *x, const ulong x_at, __global const long *z, const ulong z_at,
                      __global float *y, const ulong y_at, const ulong total) {
    const ulong g = get_global_id(0);
    if (g >= total) return;
    y[y_at + g] = x[x_at + g] OPERATOR z[z_at + g] ? 1.0f : 0.0f;
}

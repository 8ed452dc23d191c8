// Adds partial sums of squares up and decides what becomes of the gradients: one work-group, a power of two wide.
//
//   sums[0 .. count)  ->  work-item l adds l, l + lanes, l + 2 lanes, ...  ->  a tree in local memory  ->  work-item 0 writes
//
//   controls[at + 0]  the factor of every gradient
//   controls[at + 1]  1 if the update is skipped
//   controls[at + 2]  how many updates were skipped so far
//   controls[at + 3]  the gradients' norm, after unscaling
//
// Compiled with: REAL   the type of the controls
//                SUM    the type of the partial sums

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#ifndef REAL
#define REAL float
#endif
#ifndef SUM
#define SUM float
#endif

#define HAS_NORM 1
#define HAS_SCALE 2
#define HAS_FOUND 4
#define HAS_MAX 8
#define SKIP_NON_FINITE 16

kernel void verdict(global REAL *controls, const ulong at, global const SUM *sums, const uint count,
                    global const float *scale, const ulong scale_at, global const float *found, const ulong found_at,
                    const REAL inverse, const REAL max_norm, const uint flags, local SUM *scratch) {
    const uint lane = get_local_id(0);
    SUM sum = 0;
    if (flags & HAS_NORM) {
        for (uint i = lane; i < count; i += get_local_size(0)) sum += sums[i];
    }
    scratch[lane] = sum;
    for (uint half = get_local_size(0) / 2; half > 0; half /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half) scratch[lane] += scratch[lane + half];
    }
    if (lane > 0) return;
    const SUM unscale = (SUM)inverse / (flags & HAS_SCALE ? (SUM)scale[scale_at] : (SUM)1);
    const SUM norm = sqrt(scratch[0]) * unscale;
    SUM factor = unscale;
    if (flags & HAS_MAX) {
        const SUM limit = (SUM)max_norm / (norm + (SUM)1e-6f);
        // A NaN is not >= 1: it stays, and shows.
        if (!(limit >= (SUM)1)) factor *= limit;
    }
    const int found_one = (flags & HAS_FOUND) && found[found_at] != 0.0f;
    const int skip = found_one || ((flags & SKIP_NON_FINITE) && !isfinite(norm));
    controls[at] = (REAL)factor;
    controls[at + 1] = (REAL)skip;
    controls[at + 2] += (REAL)skip;
    controls[at + 3] = (REAL)norm;
}

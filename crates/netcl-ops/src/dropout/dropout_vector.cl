// Dropout on processors: work-item g has the elements g * per, ..., eight Philox blocks at a time. The mask is that of dropout.cl.
//
// Compiled with: TYPE, COMPUTE, LOAD(p, i), STORE(v, p, i), WIDTH, VCOMPUTE, LOADV(p), STOREV(v, p): see add_rows_vector.cl.
// Philox in vectors (philox_vector.cl) is put before this text.

#ifndef TYPE
#define TYPE float
#define COMPUTE float
#define LOAD(p, i) ((p)[i])
#define STORE(v, p, i) ((p)[i] = (v))
#define WIDTH 16
#define VCOMPUTE float16
#define LOADV(p) vload16(0, p)
#define STOREV(v, p) vstore16(v, 0, p)
#endif

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

// Sixteen elements from i on, by their words. A dropped element is zero whatever it was, also where it was infinite.
#if WIDTH == 16
#define PUT16(w, i) STOREV(((w) >> 8) < below ? LOADV(x + (i)) * scale : (VCOMPUTE)(0), y + (i))
#else
#define PUT8(w, i) STOREV(convert_long8(((w) >> 8) < below) ? LOADV(x + (i)) * scale : (VCOMPUTE)(0), y + (i))
#define PUT16(w, i) { PUT8((w).lo, i); PUT8((w).hi, (i) + 8); }
#endif

// `per` is a multiple of PHILOX_WORDS.
__kernel void dropout_vector(__global const TYPE *x, const ulong x_at, __global TYPE *y, const ulong y_at, const ulong n,
                             const ulong seed, const ulong block, const uint below, const COMPUTE scale, const ulong per) {
    const ulong first = get_global_id(0) * per, end = min(first + per, n);
    x += x_at;
    y += y_at;
    for (ulong at = first; at < end; at += PHILOX_WORDS) {
        uint16 w[2];
        philox_vector(seed, block + at / 4, w);
        if (n - at >= PHILOX_WORDS) {
            PUT16(w[0], at);
            PUT16(w[1], at + 16);
        } else {
            const uint *words = (const uint *)w;
            for (uint j = 0; j < n - at; ++j) {
                const COMPUTE v = words[j] >> 8 < below ? LOAD(x, at + j) * scale : (COMPUTE)0;
                STORE(v, y, at + j);
            }
        }
    }
}

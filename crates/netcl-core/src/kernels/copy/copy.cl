// Filling, copying and casting, dense and strided.
//
//   work-item i  ->  element i of the row-major order  ->  offset + sum over axes of index * stride
//
//   copy_strided:   n = N0*N1*...*N5 elements; lengths and strides are arguments, so one program serves every shape
//
// Compiled with: SRC, DST     the element types in memory
//                LOAD(p, i)   reads a source element as a value
//                STORE(v, p, i) writes a value as a destination element
//                BITS         an unsigned integer of the destination's size
// The defaults make this file compile alone.

#ifndef SRC
#define SRC float
#endif
#ifndef DST
#define DST float
#endif
#ifndef LOAD
#define LOAD(p, i) ((p)[i])
#endif
#ifndef STORE
#define STORE(v, p, i) ((p)[i] = (v))
#endif
#ifndef BITS
#define BITS uint
#endif

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

// bfloat16 is the upper half of a float.
float from_bf16(ushort bits) { return as_float((uint)bits << 16); }

// Rounds to nearest even; a NaN stays a (quiet) NaN.
ushort to_bf16(float value) {
    uint bits = as_uint(value);
    return isnan(value) ? (ushort)((bits >> 16) | 0x40) : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Where element i of the row-major order lies.
ulong position(ulong i, ulong n1, ulong n2, ulong n3, ulong n4, ulong n5, long s0, long s1, long s2, long s3, long s4, long s5) {
    long at = (long)(i % n5) * s5; i /= n5;
    at += (long)(i % n4) * s4; i /= n4;
    at += (long)(i % n3) * s3; i /= n3;
    at += (long)(i % n2) * s2; i /= n2;
    at += (long)(i % n1) * s1; i /= n1;
    return (ulong)(at + (long)i * s0);
}

__kernel void fill_dense(__global BITS *dst, ulong offset, ulong n, ulong value) {
    ulong i = get_global_id(0);
    if (i < n) dst[offset + i] = (BITS)value;
}

__kernel void fill_strided(__global BITS *dst, ulong offset, ulong n, ulong value,
                           ulong n1, ulong n2, ulong n3, ulong n4, ulong n5,
                           long d0, long d1, long d2, long d3, long d4, long d5) {
    ulong i = get_global_id(0);
    if (i < n) dst[offset + position(i, n1, n2, n3, n4, n5, d0, d1, d2, d3, d4, d5)] = (BITS)value;
}

__kernel void copy_strided(__global const SRC *src, ulong src_offset, __global DST *dst, ulong dst_offset, ulong n,
                           ulong n1, ulong n2, ulong n3, ulong n4, ulong n5,
                           long s0, long s1, long s2, long s3, long s4, long s5,
                           long d0, long d1, long d2, long d3, long d4, long d5) {
    ulong i = get_global_id(0);
    if (i >= n) return;
    ulong from = src_offset + position(i, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, s5);
    ulong to = dst_offset + position(i, n1, n2, n3, n4, n5, d0, d1, d2, d3, d4, d5);
    STORE(LOAD(src, from), dst, to);
}

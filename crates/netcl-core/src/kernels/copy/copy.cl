// Filling, copying and casting what is strided; copy_groups.cl has the rest.
//
//   work-item i  ->  element i of the row-major order  ->  offset + sum over axes of index * stride
//
//   copy_strided:   n = N0*N1*...*N5 elements; lengths and strides are arguments, so one program serves every shape
//
// Compiled with: SRC, DST             unsigned integers or types that can be declared: 16-bit floats are their bits
//                convert_element(v)   a DST for a SRC
//                BITS                 an unsigned integer of the destination's size
// The defaults make this file compile alone.

#ifndef SRC
#define SRC uint
#define DST uint
uint convert_element(uint v) { return v; }
#endif
#ifndef BITS
#define BITS uint
#endif

// Where element i of the row-major order lies.
ulong position(ulong i, ulong n1, ulong n2, ulong n3, ulong n4, ulong n5, long s0, long s1, long s2, long s3, long s4, long s5) {
    long at = (long)(i % n5) * s5; i /= n5;
    at += (long)(i % n4) * s4; i /= n4;
    at += (long)(i % n3) * s3; i /= n3;
    at += (long)(i % n2) * s2; i /= n2;
    at += (long)(i % n1) * s1; i /= n1;
    return (ulong)(at + (long)i * s0);
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
    dst[to] = convert_element(src[from]);
}

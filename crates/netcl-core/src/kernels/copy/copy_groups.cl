// Fills, copies and casts: 16 bytes for each work-item, side by side.
//
//   fill_vectors   dense                       work-item i -> vector i; the first ones also take what is left beside whole
//   copy_vectors   dense to dense              vectors of the destination, in front (head) and behind
//
//       dst   |..hh|VVVV|VVVV|VVVV|t...|
//
//   copy_units     strided                     work-item i -> unit i of the row-major order. A unit is an element, or as many of
//                                              them as make 16 bytes and lie together on both sides
//
//   copy_tiles     two axes exchanged          a group -> a tile of TILE x TILE elements, through local memory
//
//                  q: dense in the source                 p: dense in the destination
//               +------------------+                    +------------------+
//            p  | vector | vector  |   tile[p][q]   q   | vector | vector  |
//               |        |         |  ------------->    |        |         |
//               +------------------+                    +------------------+
//
// Compiled with: SRC, DST             unsigned integers or types that can be declared: 16-bit floats are their bits
//                convert_element(v)   a DST for a SRC
//                WIDTH                elements of a vector; may be 1
//                LOADV(v, p)          reads WIDTH elements of the source into an array; STOREV(p, v) writes an aligned vector
//                UNIT                 what copy_units moves
//                INDEX, SIGNED        the types of indices and of steps
//                AXES                 parameters of the axes: lengths n1, ...; steps s0, ... of the source, d0, ...
//                PLACES(i)            declares `from` and `to`: where unit i of these axes lies
//                TILE, PITCH          the side of a tile, and the distance of its rows in local memory
//                KERNEL_name          for the kernel that is wanted
// The defaults make this file compile alone.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#ifndef SRC
#define SRC uint
#define DST uint
#define WIDTH 4
#define UNIT uint4
#define LOADV(v, p) vstore4(*(__global const uint4 *)(p), 0, v)
#define STOREV(p, v) *(__global uint4 *)(p) = vload4(0, v)
#define INDEX uint
#define SIGNED int
#define AXES const uint n1, const int s0, const int s1, const int d0, const int d1,
#define PLACES(i) const int from = (i) / n1 * s0 + (i) % n1 * s1, to = (i) / n1 * d0 + (i) % n1 * d1;
#define TILE 64
#define PITCH 65
#define KERNEL_fill_vectors
#define KERNEL_copy_vectors
#define KERNEL_copy_units
#define KERNEL_copy_tiles
uint convert_element(uint v) { return v; }
#endif

#ifdef KERNEL_fill_vectors
__kernel void fill_vectors(__global DST *dst, ulong offset, ulong n, uint head, ulong vectors, ulong value) {
    dst += offset;
    const ulong i = get_global_id(0), tail = head + vectors * WIDTH + i;
    if (i < vectors) {
        DST each[WIDTH];
        #pragma unroll
        for (uint j = 0; j < WIDTH; ++j) each[j] = (DST)value;
        STOREV(dst + head + i * WIDTH, each);
    }
    if (i < head) dst[i] = (DST)value;
    if (i < WIDTH && tail < n) dst[tail] = (DST)value;
}
#endif

#ifdef KERNEL_copy_vectors
__kernel void copy_vectors(__global const SRC *src, ulong src_offset, __global DST *dst, ulong dst_offset, ulong n,
                           uint head, ulong vectors) {
    src += src_offset;
    dst += dst_offset;
    const ulong i = get_global_id(0), tail = head + vectors * WIDTH + i;
    if (i < vectors) {
        // A vector each way; what becomes of its elements happens in registers.
        SRC in[WIDTH];
        DST out[WIDTH];
        LOADV(in, src + head + i * WIDTH);
        #pragma unroll
        for (uint j = 0; j < WIDTH; ++j) out[j] = convert_element(in[j]);
        STOREV(dst + head + i * WIDTH, out);
    }
    if (i < head) dst[i] = convert_element(src[i]);
    if (i < WIDTH && tail < n) dst[tail] = convert_element(src[tail]);
}
#endif

#ifdef KERNEL_copy_units
__kernel void copy_units(__global const UNIT *src, ulong src_offset, __global UNIT *dst, ulong dst_offset, AXES INDEX n) {
    const INDEX i = get_global_id(0);
    if (i >= n) return;
    PLACES(i)
    dst[(SIGNED)dst_offset + to] = src[(SIGNED)src_offset + from];
}
#endif

#ifdef KERNEL_copy_tiles
// The group has a power of two of work-items: `beside` of them make a row of a tile.
__kernel void copy_tiles(__global const SRC *src, ulong src_offset, __global DST *dst, ulong dst_offset, AXES
                         INDEX p_n, INDEX q_n, SIGNED p_step, SIGNED q_step) {
    __local SRC tile[TILE * PITCH];
    const uint beside = TILE / WIDTH, at = get_local_id(0) % beside * WIDTH;
    const uint first = get_local_id(0) / beside, rows = (uint)get_local_size(0) / beside;
    const INDEX q_tiles = (q_n + TILE - 1) / TILE, p_tiles = (p_n + TILE - 1) / TILE;
    INDEX group = get_group_id(0);
    const INDEX q0 = group % q_tiles * TILE;
    group /= q_tiles;
    const INDEX p0 = group % p_tiles * TILE;
    PLACES(group / p_tiles)
    src += (SIGNED)src_offset + from;
    dst += (SIGNED)dst_offset + to;
    for (uint row = first; row < TILE; row += rows) {
        if (p0 + row < p_n && q0 + at < q_n) {
            SRC in[WIDTH];
            LOADV(in, src + (SIGNED)(p0 + row) * p_step + (q0 + at));
            #pragma unroll
            for (uint j = 0; j < WIDTH; ++j) tile[row * PITCH + at + j] = in[j];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint row = first; row < TILE; row += rows) {
        if (q0 + row < q_n && p0 + at < p_n) {
            DST out[WIDTH];
            #pragma unroll
            for (uint j = 0; j < WIDTH; ++j) out[j] = tile[(at + j) * PITCH + row];
            STOREV(dst + (SIGNED)(q0 + row) * q_step + (p0 + at), out);
        }
    }
}
#endif

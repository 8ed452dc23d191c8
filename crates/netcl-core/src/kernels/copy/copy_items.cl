// Copying and casting on processors: work-items that need nobody else, each with blocks of two axes.
//
//   along  the axis that is dense (or nearly) in the destination: the inner loop writes neighbours
//   across the axis that is dense in the source, so that lines which were read for one element still serve the next ones; where both
//          sides agree on what is dense, the next axis of the destination
//
//        source             destination
//      +---+---+---+      +---+---+---+
//      | a | b |   |      | a | c |   |         blocks across, then blocks along, then the outer axes (OUTER of them);
//      +---+---+---+      +---+---+---+         work-item i -> blocks i * per, ...
//      | c | d |   |      | b | d |   |
//      +---+---+---+      +---+---+---+
//
// Compiled with: SRC, DST, LOAD(p, i), STORE(v, p, i): see copy.cl, whose text stands before this one

#define LINE(from_step, to_step) \
    for (ulong i = 0; i < rows; ++i) STORE(LOAD(p, (long)i * (from_step)), q, (long)i * (to_step))

__kernel void copy_blocks(__global const SRC *src, ulong src_offset, __global DST *dst, ulong dst_offset,
                          ulong n1, ulong n2, ulong n3, long s0, long s1, long s2, long s3, long d0, long d1, long d2, long d3,
                          ulong along, long along_from, long along_to, ulong block_along,
                          ulong across, long across_from, long across_to, ulong block_across, ulong blocks, ulong per) {
    const ulong in_along = (along + block_along - 1) / block_along, in_across = (across + block_across - 1) / block_across;
    const ulong begin = get_global_id(0) * per, end = blocks - begin < per ? blocks : begin + per;
    for (ulong block = begin; block < end; ++block) {
        const ulong column = block % in_across * block_across;
        ulong rest = block / in_across;
        const ulong row = rest % in_along * block_along;
        rest /= in_along;
        const long i3 = rest % n3;
        rest /= n3;
        const long i2 = rest % n2;
        rest /= n2;
        const long i1 = rest % n1, i0 = rest / n1;
        __global const SRC *from = src + src_offset + (i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3);
        __global DST *to = dst + dst_offset + (i0 * d0 + i1 * d1 + i2 * d2 + i3 * d3);
        const ulong columns = across - column < block_across ? across - column : block_across;
        const ulong rows = along - row < block_along ? along - row : block_along;
        for (ulong j = column; j < column + columns; ++j) {
            __global const SRC *p = from + ((long)j * across_from + (long)row * along_from);
            __global DST *q = to + ((long)j * across_to + (long)row * along_to);
            // Steps that the compiler knows make vectors.
            if (along_from == 1 && along_to == 1) LINE(1, 1);
            else if (along_to == 1) LINE(along_from, 1);
            else LINE(along_from, along_to);
        }
    }
}

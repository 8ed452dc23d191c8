// Copies an operand to even rows, from which matrix units' kernels can copy tiles, cutting numbers into parts on the way if
// asked to.
//
//      lines                             part 0              part 1              part 2
//    +--------+                        +--------+--+       +--------+--+       +--------+--+
//    | 1.2345 |           ->           | 1.23   |  |       | 0.004  |  |       | 0.0005 |  |      rows of `pitch` elements,
//    +--------+                        +--------+--+       +--------+--+       +--------+--+      zeros at their ends
//      length
//
// Each part is the bfloat16 number nearest to what the parts before it left over: three of them hold the 24 bits of a float.
// An Inf leaves a NaN over, so that products with it show. Work-item (eight elements, line, matrix); the memory behind may have
// any strides, and elements that lie densely on 16-byte boundaries are read as vectors.
//
// Compiled with: T, VECTOR     the elements in memory and eight of them;   PART   those of the copy
//                PARTS         how many parts; 0 copies elements as they are
//                ALIGNED       1 where eight elements can be read at once

#if PARTS > 0
// The upper half of the nearest bfloat16 numbers, as floats; a NaN stays one.
float8 nearest(float8 x) {
    const uint8 bits = as_uint8(x);
    const uint8 rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return as_float8(select(rounded, bits | 0x400000, isnan(x)) & 0xffff0000);
}
#endif

kernel void matmul_split(global const T *from, ulong from_at, global PART *to, INDEX length, INDEX lines, INDEX pitch,
                         INDEX batch1, INDEX step, INDEX line_step, INDEX b0, INDEX b1, ulong part, global uint *flag PROLOGUE_PARAMS) {
    const INDEX at = (INDEX)get_global_id(0) * 8, line = get_global_id(1), z = get_global_id(2);
#if PARTS == 3
    // The product that follows raises it when a sum is no finite number.
    if (at == 0 && line == 0 && z == 0) *flag = 0;
#endif
    if (at >= length) return;
    const INDEX i0 = z / batch1, i1 = z % batch1;
    from += from_at + i0 * b0 + i1 * b1 + line * line_step;
    to += (z * lines + line) * pitch + at;
    VECTOR x;
    if (ALIGNED && at + 8 <= length) {
#if ALIGNED && PARTS == 0
        x = *(global const VECTOR *)(from + at);
#elif ALIGNED
        x = (VECTOR)(*(global const float4 *)(from + at), *(global const float4 *)(from + at + 4));
#endif
    } else {
#define NEXT(i) (at + (i) < length ? from[(at + (i)) * step] : (T)0)
        x = (VECTOR)(NEXT(0), NEXT(1), NEXT(2), NEXT(3), NEXT(4), NEXT(5), NEXT(6), NEXT(7));
    }
#ifdef HAS_PROLOGUE
    // Zeros behind the end stay zeros.
#define COMPUTED(i) (at + (i) < length ? (T)PROLOGUE(numbers[i], at + (i), line, i0, i1) : (T)0)
    T numbers[8];
    vstore8(x, 0, numbers);
    x = (VECTOR)(COMPUTED(0), COMPUTED(1), COMPUTED(2), COMPUTED(3), COMPUTED(4), COMPUTED(5), COMPUTED(6), COMPUTED(7));
#endif
#if PARTS == 0
    *(global VECTOR *)to = x;
#else
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        const float8 piece = nearest(x);
        const uint8 bits = as_uint8(piece);
        // Eight upper halves as one store of 16 bytes.
        *(global uint4 *)(to + i * part) = bits.even >> 16 | bits.odd;
        x -= piece;
    }
#endif
}

// Reading at indices on processors: work-item g has the elements g * per, ... of the result and walks through their rows.
//
//        row 5           row 6           row 7               a row is copied in vectors, then in elements; an index is
//   ..oooooooo][oooooooooooooooo][oooooo..                   looked at once for a row, and nothing is divided on the way
//     ^ first                          end ^
//
// For one row of indices for all places; where each has its own, the work-items of take.cl do as well. Tensors, indices outside their
// range and macros are those of take.cl; BITS is an unsigned integer of the element's size.

#ifndef BITS
#define BITS uint
#endif
#ifndef INDEX
#define INDEX long
#endif
#ifndef UINT
#define UINT uint
#endif

// 64 bytes that may lie wherever an element does.
typedef uint16 LOOSE __attribute__((aligned(sizeof(BITS))));
#define WIDTH (64 / (UINT)sizeof(BITS))

__kernel void take_rows(__global const BITS *x, const ulong x_at, __global const INDEX *indices, const ulong indices_at,
                        __global BITS *y, const ulong y_at, const UINT total, const UINT n, const UINT k, const UINT inner,
                        const ulong outside, const UINT per) {
    const UINT first = (UINT)get_global_id(0) * per;
    if (first >= total) return;
    UINT left = total - first < per ? total - first : per;
    // Element i of row j of those that share the outer place whose rows begin at x.
    UINT i = first % inner, j = first / inner % k;
    x += x_at + first / inner / k * n * inner;
    y += y_at + first;
    indices += indices_at;
    while (left > 0) {
        const UINT count = inner - i < left ? inner - i : left;
        const INDEX v = indices[j];
        UINT e = 0;
        if (v >= 0 && (ulong)v < n) {
            __global const BITS *from = x + (UINT)v * inner + i;
            for (; count - e >= WIDTH; e += WIDTH) *(__global LOOSE *)(y + e) = *(__global const LOOSE *)(from + e);
            for (; e < count; ++e) y[e] = from[e];
        } else {
            for (; e < count; ++e) y[e] = (BITS)outside;
        }
        y += count;
        left -= count;
        i = 0;
        if (++j == k) {
            j = 0;
            x += n * inner;
        }
    }
}

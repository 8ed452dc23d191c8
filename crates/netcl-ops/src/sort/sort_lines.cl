// Sorting lines on processors: work-item g has the lines g * per, ... and sorts each alone, digit by digit from the lowest.
//
//   keys and positions   ->   by digit 0   ->   by digit 1   -> ..       between two memories of a line each; the order of equal
//                                                                        digits stays, and so that of equal keys
//
// The digits of all passes are counted at once, and a digit that is the same everywhere needs no pass. Short lines are sorted by
// insertion. Keys are those of sort.cl, whose text (or its defaults) is put before this one.

#define DIGITS ((uint)sizeof(KEY))
// Lines up to this length are not worth the counting.
#define SHORT_LINE 32

__kernel void sort_lines(__global const BITS *x, const ulong x_at, __global KEY *keys, __global uint *places,
                         __global BITS *values, const ulong values_at, __global long *indices, const ulong indices_at,
                         const UINT lines, const UINT n, const UINT k, const UINT per, const uint descending) {
    const UINT first = (UINT)get_global_id(0) * per, end = first + per < lines ? first + per : lines;
    keys += (size_t)get_global_id(0) * 2 * n;
    places += (size_t)get_global_id(0) * 2 * n;
    for (UINT line = first; line < end; ++line) {
        __global const BITS *from = x + x_at + line * n;
        __global KEY *own = keys, *other = keys + n;
        __global uint *own_places = places, *other_places = places + n;
        uint counts[sizeof(KEY)][256];
        if (n > SHORT_LINE)
            for (uint d = 0; d < DIGITS; ++d)
                for (uint b = 0; b < 256; ++b) counts[d][b] = 0;
        for (UINT i = 0; i < n; ++i) {
            const BITS bits = from[i];
            const KEY up = TO_KEY(bits), key = IS_NAN(bits) ? ~(KEY)0 : descending ? ~up : up;
            UINT at = i;
            if (n > SHORT_LINE) {
                for (uint d = 0; d < DIGITS; ++d) ++counts[d][(uint)(key >> (8 * d)) & 255];
            } else {
                for (; at > 0 && own[at - 1] > key; --at) {
                    own[at] = own[at - 1];
                    own_places[at] = own_places[at - 1];
                }
            }
            own[at] = key;
            own_places[at] = (uint)i;
        }
        for (uint d = 0; n > SHORT_LINE && d < DIGITS; ++d) {
            if (counts[d][(uint)(own[0] >> (8 * d)) & 255] == n) continue;
            uint total = 0;
            for (uint b = 0; b < 256; ++b) {
                const uint here = counts[d][b];
                counts[d][b] = total;
                total += here;
            }
            for (UINT i = 0; i < n; ++i) {
                const KEY key = own[i];
                const uint to = counts[d][(uint)(key >> (8 * d)) & 255]++;
                other[to] = key;
                other_places[to] = own_places[i];
            }
            __global KEY *keys_before = own;
            __global uint *places_before = own_places;
            own = other;
            own_places = other_places;
            other = keys_before;
            other_places = places_before;
        }
        for (UINT i = 0; i < k; ++i) {
            const uint place = own_places[i];
            values[values_at + line * k + i] = from[place];
            indices[indices_at + line * k + i] = place;
        }
    }
}

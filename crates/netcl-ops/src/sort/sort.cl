// Sorting lines: pieces in registers and local memory by a bitonic network, pieces into lines by merging, a few of many by keeping the best.
//
//   line   |  piece 0  |  piece 1  |  piece 2  | .. |      a piece has at most `slots` elements, a power of two
//          sort_pieces: every piece in order               a group sorts several short pieces at once
//          |  in order             |  in order      |      merge_runs, again and again
//          |  in order                              |      sort_finish: positions into values and indices
//
//   few of many:   sort_pieces keeps the first `keep` of each piece, then sorts what was kept, until one piece is left
//
// An element becomes a key, a whole number that grows with it (NaN the largest); equal keys are ordered by position. Slots
// without an element hold the largest key and position and so come last.
//
// Compiled with: KEY           uint or ulong
//                TO_KEY(bits)  the key of an element, ascending; DESCENDING turns it round
//                IS_NAN(bits)

#define NOWHERE 0xffffffffu

// Of the bits of a float, not its value: devices may take tiny numbers for 0. But -0 is 0.
uint float_key(uint bits) {
    if ((bits & 0x7fffffffu) == 0) bits = 0;
    return (bits >> 31) ? ~bits : bits | 0x80000000u;
}

// The same for double.
ulong double_key(ulong bits) {
    if ((bits & 0x7fffffffffffffffUL) == 0) bits = 0;
    return (bits >> 63) ? ~bits : bits | 0x8000000000000000UL;
}

// Slots that a work-item holds in registers, and the steps of the network that it does with them.
#define HELD 16
#define STEPS 4
// Where a slot is in local memory: work-items of a warp meet different banks, whichever four bits of the slot they hold.
#define AT(slot) ((slot) ^ (((slot) >> 4) & 31))

// A step of the network: held slots that differ in bit `step` are put in order, or out of order where `turn` says so of them.
void exchange(KEY *key, uint *place, const int step, const uint base, const uint shift, const uint turn) {
#pragma unroll
    for (int i = 0; i < HELD / 2; ++i) {
        const int low = (i >> step << (step + 1)) | (i & ((1 << step) - 1)), high = low | 1 << step;
        const KEY a = key[low], b = key[high];
        const uint a_place = place[low], b_place = place[high];
        const bool later = a > b || (a == b && a_place > b_place);
        const bool swap = later != (((base | (uint)low << shift) & turn) != 0);
        key[low] = swap ? b : a;
        key[high] = swap ? a : b;
        place[low] = swap ? b_place : a_place;
        place[high] = swap ? a_place : b_place;
    }
}

// Sorts pieces of lines of `n` elements, `span` to a piece, and writes the first `keep` of each: as keys and positions, or
// (`last`) as values and indices of lines of `keep` elements. Elements come from x, or as keys and positions.
//
// A bitonic network: rows of 2, 4, 8, .. slots become ordered, up and down by turns, so that each pair of them is a bitonic row; whole
// pieces are ascending. A work-item holds the 16 slots that differ in four bits and does four steps between two visits to local memory.
__kernel void sort_pieces(__global const BITS *x, const ulong x_at, __global const KEY *in_keys, __global const uint *in_places,
                          __global KEY *out_keys, __global uint *out_places, __global BITS *values, const ulong values_at,
                          __global long *indices, const ulong indices_at, const UINT lines, const UINT n, const UINT span,
                          const UINT keep, const UINT whole, const uint slots, const uint piece, const uint from_pairs,
                          const uint last, const uint descending, __local KEY *keys, __local uint *places) {
    const uint lid = get_local_id(0), group = get_local_size(0);
    const UINT per_line = (n + span - 1) / span, pieces = lines * per_line;
    const UINT first = (UINT)get_group_id(0) * (slots / piece);
    for (uint item = lid; item < slots / HELD; item += group) {
        KEY key[HELD];
        uint place[HELD];
        // Neighbouring work-items load neighbouring elements: it does not matter which slot of a piece an element begins in.
        const uint sharers = piece / HELD, own = item % sharers;
        const UINT p = first + item / sharers, line = p / per_line, from = p % per_line * span;
#pragma unroll
        for (int e = 0; e < HELD; ++e) {
            const UINT within = e * sharers + own, at = from + within;
            key[e] = ~(KEY)0;
            place[e] = NOWHERE;
            if (p < pieces && within < span && at < n) {
                if (from_pairs) {
                    key[e] = in_keys[line * n + at];
                    place[e] = in_places[line * n + at];
                } else {
                    const BITS bits = x[x_at + line * n + at];
                    const KEY up = TO_KEY(bits);
                    if (!IS_NAN(bits)) key[e] = descending ? ~up : up;
                    place[e] = (uint)at;
                }
            }
        }
        for (int size = 1; size <= STEPS; ++size) {
#pragma unroll
            for (int step = STEPS - 1; step >= 0; --step)
                if (step < size) exchange(key, place, step, item * HELD, 0, 1u << size & (piece - 1));
        }
#pragma unroll
        for (int e = 0; e < HELD; ++e) {
            const uint slot = item * HELD + e;
            keys[AT(slot)] = key[e];
            places[AT(slot)] = place[e];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint size = STEPS + 1; 1u << size <= piece; ++size) {
        const uint turn = 1u << size & (piece - 1);
        // The highest bit that is still to be done, and the lowest that is held.
        for (int top = (int)size - 1; top >= 0; top -= STEPS) {
            const uint shift = max(top - (STEPS - 1), 0);
            for (uint item = lid; item < slots / HELD; item += group) {
                KEY key[HELD];
                uint place[HELD];
                const uint base = (item >> shift << (shift + STEPS)) | (item & ((1u << shift) - 1));
#pragma unroll
                for (uint e = 0; e < HELD; ++e) {
                    const uint slot = base | e << shift;
                    key[e] = keys[AT(slot)];
                    place[e] = places[AT(slot)];
                }
#pragma unroll
                for (int step = STEPS - 1; step >= 0; --step)
                    if ((int)shift + step <= top) exchange(key, place, step, base, shift, turn);
#pragma unroll
                for (uint e = 0; e < HELD; ++e) {
                    const uint slot = base | e << shift;
                    keys[AT(slot)] = key[e];
                    places[AT(slot)] = place[e];
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
    for (uint s = lid; s < slots; s += group) {
        const UINT p = first + s / piece, line = p / per_line, i = s % piece;
        if (p >= pieces || i >= keep) continue;
        const UINT to = p * keep + i;
        if (last) {
            const uint place = places[AT(s)];
            values[values_at + to] = x[x_at + line * whole + place];
            indices[indices_at + to] = place;
        } else {
            out_keys[to] = keys[AT(s)];
            out_places[to] = places[AT(s)];
        }
    }
}

// Merges neighbouring runs of `run` pairs in lines of `n`: every pair finds its place by bisection in the other run.
__kernel void merge_runs(__global const KEY *in_keys, __global const uint *in_places, __global KEY *out_keys,
                         __global uint *out_places, const UINT total, const UINT n, const UINT run) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const UINT line = g / n * n, at = g % n, start = at / (2 * run) * (2 * run);
    const UINT middle = min(start + run, n), end = min(start + 2 * run, n);
    const KEY key = in_keys[g];
    const uint place = in_places[g];
    const bool left = at < middle;
    UINT low = left ? middle : start, high = left ? end : middle;
    const UINT base = low;
    while (low < high) {
        const UINT half_ = low + (high - low) / 2;
        const KEY other = in_keys[line + half_];
        const uint other_place = in_places[line + half_];
        // Empty slots are all equal: those of the left run go first.
        const bool before = other < key || (other == key && (other_place < place || (!left && other_place == place)));
        if (before) low = half_ + 1;
        else high = half_;
    }
    const UINT to = line + start + (left ? at - start : at - middle) + (low - base);
    out_keys[to] = key;
    out_places[to] = place;
}

// The first k positions of sorted lines (`pitch` apart) as values and indices.
__kernel void sort_finish(__global const BITS *x, const ulong x_at, __global const uint *places, __global BITS *values,
                          const ulong values_at, __global long *indices, const ulong indices_at, const UINT total,
                          const UINT n, const UINT k, const UINT pitch) {
    const UINT g = get_global_id(0);
    if (g >= total) return;
    const uint place = places[g / k * pitch + g % k];
    values[values_at + g] = x[x_at + g / k * n + place];
    indices[indices_at + g] = place;
}

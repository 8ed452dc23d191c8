// Running sums along lines (the elements along the axis for one index of the others).
//
//   scan_sequential   work-item o  -> line o, element after element. Neighbouring work-items read neighbouring lines.
//
//   scan_group        work-group o -> line o, tile after tile:
//
//      | item 0      | item 1      | item 2      | ...           |   a tile: group size x ITEMS elements
//      | s0 s1 s2 s3 | s0 s1 s2 s3 | s0 s1 s2 s3 |               |   1. running sums inside each work-item
//               s3 ---------> +s3 ---------> +s3                     2. running sums of their totals, in local memory
//      carry + total of the items before + own running sum           3. results; the tile's total goes to the carry
//
// Carries keep what their additions round off. Barriers stand in uniform control flow only.
// Compiled with: COMPUTE, UINT, KEPT_PARAMS, KEPT(o), LOAD(r), STORE(v, r): see softmax_registers.cl.

#define ITEMS 4

// An infinite total has lost nothing (the formula of FOLD says NaN).
#define SETTLED(total, lost) (isfinite(total) ? (total) + (lost) : (total))

__kernel void scan_sequential(KEPT_PARAMS const UINT count, const UINT n) {
    const UINT o = get_global_id(0);
    if (o >= count) return;
    KEPT(o);
    COMPUTE total = 0, lost = 0;
    for (UINT r = 0; r < n; ++r) {
        const COMPUTE v = LOAD(r);
        FOLD(COMPUTE, total, lost, v)
        STORE(SETTLED(total, lost), r);
    }
}

__kernel void scan_group(KEPT_PARAMS const UINT count, const UINT n, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), group = get_local_size(0);
    const UINT o = get_group_id(0);
    KEPT(o);
    COMPUTE carry = 0, lost = 0;
    for (UINT base = 0; base < n; base += group * ITEMS) {
        const UINT first = base + lid * ITEMS;
        COMPUTE own[ITEMS], total = 0;
        for (uint j = 0; j < ITEMS; ++j) {
            total += first + j < n ? LOAD(first + j) : 0;
            own[j] = total;
        }
        tile[lid] = total;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint distance = 1; distance < group; distance *= 2) {
            const COMPUTE before = lid >= distance ? tile[lid - distance] : 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            tile[lid] += before;
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        const COMPUTE start = SETTLED(carry, lost), before = lid > 0 ? tile[lid - 1] : 0;
        for (uint j = 0; j < ITEMS; ++j) {
            if (first + j < n) STORE(start + (before + own[j]), first + j);
        }
        const COMPUTE all = tile[group - 1];
        FOLD(COMPUTE, carry, lost, all)
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

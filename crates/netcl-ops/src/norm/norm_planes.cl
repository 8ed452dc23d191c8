// Normalisation of channels on GPUs, where a channel's elements (span of them for each sample) make whole vectors of 16 bytes.
//
//   norm_moments_planes    a group takes part p of channel c, one pass: every lane merges the moments of what it reads, VECTORS
//                          vectors at a time, into its own; then the lanes merge theirs
//                                                      -> partial[c][p] = (mean, sum of squared deviations)
//   norm_sums_vectors      a group takes part p of channel c: samples p * per ..
//                                                      -> partial[p][0][c] = sum of g * h, partial[p][1][c] = sum of g

// Merges moments of `more` values into those of `have`.
#define MERGE(have, middle, squares, more, other, spread)                     \
    {                                                                         \
        const COMPUTE all_ = have + (more), share_ = all_ > 0 ? (more) / all_ : 0; \
        const COMPUTE step_ = (other) - middle;                               \
        middle += step_ * share_;                                             \
        squares += (spread) + step_ * step_ * have * share_;                  \
        have = all_;                                                          \
    }

#ifdef KERNEL_norm_moments_planes
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void norm_moments_planes(__global const ELEMENT *x, const ulong x_at, __global COMPUTE *partial,
                                  const ulong partial_at, const UINT channels, const UINT span, const UINT count,
                                  const UINT parts, const UINT per, __local COMPUTE *tile) {
    const uint lid = get_local_id(0);
    const UINT c = (UINT)get_group_id(0) / parts, part = (UINT)get_group_id(0) % parts;
    const UINT first = part * per, last = first + per < count ? first + per : count;
    x += x_at;
    // Values are taken from the channel's first one on: means that are large beside the deviations would be rounded in every merge.
    const COMPUTE base = LOAD(x, c * span);
    COMPUTE have = 0, middle = 0, squares = 0;
    for (UINT i = first + lid * WIDTH; i < last; i += GROUP * VECTORS * WIDTH) {
        VCOMPUTE v[VECTORS], sums = (VCOMPUTE)(0), spread = (VCOMPUTE)(0);
        uint found = 0;
        #pragma unroll
        for (uint j = 0; j < VECTORS; ++j) {
            const UINT at = i + j * GROUP * WIDTH;
            v[j] = (VCOMPUTE)(0);
            if (at < last) {
                v[j] = LOADV(x + (at / span * channels + c) * span + at % span) - base;
                found += WIDTH;
            }
        }
        #pragma unroll
        for (uint j = 0; j < VECTORS; ++j) sums += v[j];
        const COMPUTE own = ALL(PLUS, sums) / found;
        #pragma unroll
        for (uint j = 0; j < VECTORS; ++j) {
            const VCOMPUTE d = i + j * GROUP * WIDTH < last ? v[j] - own : (VCOMPUTE)(0);
            spread += d * d;
        }
        const COMPUTE spread_all = ALL(PLUS, spread);
        MERGE(have, middle, squares, (COMPUTE)found, own, spread_all)
    }
    __local COMPUTE *haves = tile, *middles = tile + GROUP, *spreads = tile + 2 * GROUP;
    haves[lid] = have;
    middles[lid] = middle;
    spreads[lid] = squares;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_ = GROUP / 2; half_ > 0; half_ /= 2) {
        if (lid < half_) {
            MERGE(have, middle, squares, haves[lid + half_], middles[lid + half_], spreads[lid + half_])
            haves[lid] = have;
            middles[lid] = middle;
            spreads[lid] = squares;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lid == 0) {
        partial[partial_at + (c * parts + part) * 2] = base + middle;
        partial[partial_at + (c * parts + part) * 2 + 1] = squares;
    }
}
#endif

#define SAVED                                                                                             \
    __global const ELEMENT *grad, const ulong grad_at, __global const ELEMENT *x, const ulong x_at,       \
    __global const COMPUTE *weight, const ulong weight_at, __global const COMPUTE *mean, const ulong mean_at, \
    __global const COMPUTE *rstd, const ulong rstd_at

#ifdef KERNEL_norm_sums_vectors
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void norm_sums_vectors(SAVED, __global COMPUTE *partial, const ulong partial_at, const UINT samples,
                                const UINT channels, const UINT span, const UINT parts, const UINT per,
                                const UINT by_sample, const UINT per_line, const UINT by_line, __local COMPUTE *tile) {
    const uint lid = get_local_id(0);
    const UINT c = (UINT)get_group_id(0) % channels, part = (UINT)get_group_id(0) / channels;
    const UINT first = part * per, last = first + per < samples ? first + per : samples;
    VCOMPUTE plain = (VCOMPUTE)(0), plain_lost = plain, mixed = plain, mixed_lost = plain;
    // The channel's elements of these samples, one after the other.
    for (UINT i = lid * WIDTH; i < (last - first) * span; i += GROUP * WIDTH) {
        const UINT n = first + i / span, line = n * by_sample + c / per_line * by_line;
        const COMPUTE middle = mean ? mean[mean_at + line] : 0, by = rstd[rstd_at + line];
        const UINT s = (n * channels + c) * span + i % span;
        const VCOMPUTE g = LOADV(grad + grad_at + s);
        FOLD(VCOMPUTE, plain, plain_lost, g)
        FOLD(VCOMPUTE, mixed, mixed_lost, g * ((LOADV(x + x_at + s) - middle) * by))
    }
    plain += plain_lost;
    mixed += mixed_lost;
    tile[lid] = ALL(PLUS, plain);
    tile[GROUP + lid] = ALL(PLUS, mixed);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_ = GROUP / 2; half_ > 0; half_ /= 2) {
        if (lid < half_) {
            tile[lid] += tile[lid + half_];
            tile[GROUP + lid] += tile[GROUP + lid + half_];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lid == 0) {
        partial[partial_at + 2 * part * channels + c] = tile[GROUP];
        partial[partial_at + (2 * part + 1) * channels + c] = tile[0];
    }
}
#endif

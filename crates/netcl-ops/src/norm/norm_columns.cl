// Normalisation of channels that are neighbours in memory, on GPUs: x is samples x channels, in whole vectors of 16 bytes.
//
//               vector of channels v
//                  |
//      row 0    [ l0 l1 | l0 l1 | ...         a group has `lanes` neighbouring vectors of a part of the rows: GROUP / lanes
//      row 1    [ l2 l3 | l2 l3 | ...         rows at a time, VECTORS of them for each work-item; then the work-items
//      row 2    [ l4 l5 | l4 l5 | ...         of a vector meet in local memory
//
//   norm_moments_columns     partial[c][p] = (mean, sum of squared deviations) of part p of channel c
//   norm_sums_columns_wide   partial[p][0][c] = sum of g * h, partial[p][1][c] = sum of g
//   norm_finish_group        a group for each channel merges its parts -> mean, rstd, running averages (norm.cl's norm_finish)
//   norm_sums_group          a group for each channel adds up its parts -> gradients of weight and bias

// Elements of 16 bits carry so few digits that plain sums of a part lose nothing, and the arithmetic of careful ones would take longer
// than reading: sums of bfloat16 ran at 1.4 of 4.2 TB/s on an H200.
#define NARROW (sizeof(ELEMENT) == 2)

// Merges moments of `more` values into those of `have`; T is the type of means, numbers of values are scalars.
#define MERGE(T, have, middle, squares, more, other, spread)                  \
    {                                                                         \
        const COMPUTE all_ = have + (more), share_ = all_ > 0 ? (more) / all_ : 0; \
        const T step_ = (other) - middle;                                     \
        middle += step_ * share_;                                             \
        squares += (spread) + step_ * step_ * (have * share_);                \
        have = all_;                                                          \
    }

// The rows of a group's part, and where a work-item begins.
#define PLACE                                                                                      \
    const uint lid = get_local_id(0), rows = GROUP / lanes, row = lid / lanes;                     \
    const UINT blocks = channels / (lanes * WIDTH), part = (UINT)get_group_id(0) / blocks;         \
    const UINT c = ((UINT)get_group_id(0) % blocks * lanes + lid % lanes) * WIDTH;                 \
    const UINT first = part * per, last = first + per < samples ? first + per : samples;

#ifdef KERNEL_norm_moments_columns
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void norm_moments_columns(__global const ELEMENT *x, const ulong x_at, __global COMPUTE *partial,
                                   const ulong partial_at, const UINT samples, const UINT channels, const UINT parts,
                                   const UINT per, const uint lanes) {
    __local VCOMPUTE middles[GROUP], spreads[GROUP];
    __local COMPUTE haves[GROUP];
    PLACE
    x += x_at + c;
    // Values are taken from the channel's first one on: means that are large beside the deviations would be rounded in every merge.
    const VCOMPUTE base = LOADV(x);
    VCOMPUTE middle = (VCOMPUTE)(0), squares = (VCOMPUTE)(0);
    COMPUTE have = 0;
    for (UINT i = first + row; i < last; i += rows * VECTORS) {
        VCOMPUTE v[VECTORS], own = (VCOMPUTE)(0), spread = (VCOMPUTE)(0);
        COMPUTE found = 0;
        #pragma unroll
        for (uint j = 0; j < VECTORS; ++j) {
            v[j] = (VCOMPUTE)(0);
            if (i + j * rows < last) {
                v[j] = LOADV(x + (i + j * rows) * channels) - base;
                found += 1;
            }
        }
        #pragma unroll
        for (uint j = 0; j < VECTORS; ++j) own += v[j];
        if (NARROW) {
            #pragma unroll
            for (uint j = 0; j < VECTORS; ++j) spread = fma(v[j], v[j], spread);
            middle += own;
            squares += spread;
            have += found;
            continue;
        }
        own /= found;
        #pragma unroll
        for (uint j = 0; j < VECTORS; ++j) {
            const VCOMPUTE d = i + j * rows < last ? v[j] - own : (VCOMPUTE)(0);
            spread += d * d;
        }
        MERGE(VCOMPUTE, have, middle, squares, found, own, spread)
    }
    if (NARROW && have > 0) {
        middle /= have;
        squares = fmax(squares - middle * middle * have, (VCOMPUTE)(0));
    }
    haves[lid] = have;
    middles[lid] = middle;
    spreads[lid] = squares;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_ = GROUP / 2; half_ >= lanes; half_ /= 2) {
        if (lid < half_) {
            MERGE(VCOMPUTE, have, middle, squares, haves[lid + half_], middles[lid + half_], spreads[lid + half_])
            haves[lid] = have;
            middles[lid] = middle;
            spreads[lid] = squares;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lid < lanes) {
        // Means and deviations stand in pairs.
        __local COMPUTE *own = (__local COMPUTE *)(middles + lid), *spread = (__local COMPUTE *)(spreads + lid);
        for (uint j = 0; j < WIDTH; ++j) {
            __global COMPUTE *to = partial + partial_at + ((c + j) * parts + part) * 2;
            to[0] = LOAD(x, j) + own[j];
            to[1] = spread[j];
        }
    }
}
#endif

#ifdef KERNEL_norm_sums_columns_wide
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void norm_sums_columns_wide(__global const ELEMENT *grad, const ulong grad_at, __global const ELEMENT *x,
                                     const ulong x_at, __global const COMPUTE *weight, const ulong weight_at,
                                     __global const COMPUTE *mean, const ulong mean_at, __global const COMPUTE *rstd,
                                     const ulong rstd_at, __global COMPUTE *partial, const ulong partial_at,
                                     const UINT samples, const UINT channels, const UINT per, const uint lanes) {
    __local VCOMPUTE plains[GROUP], mixeds[GROUP];
    PLACE
    const VCOMPUTE middle = mean ? LOADC(mean + mean_at + c) : (VCOMPUTE)(0), by = LOADC(rstd + rstd_at + c);
    VCOMPUTE plain = (VCOMPUTE)(0), plain_lost = plain, mixed = plain, mixed_lost = plain;
    #pragma unroll 4
    for (UINT i = first + row; i < last; i += rows) {
        const VCOMPUTE g = LOADV(grad + grad_at + i * channels + c);
        const VCOMPUTE h = LOADV(x + x_at + i * channels + c) - middle;
        if (NARROW) {
            plain += g;
            mixed = fma(g, h, mixed);
        } else {
            FOLD(VCOMPUTE, plain, plain_lost, g)
            FOLD(VCOMPUTE, mixed, mixed_lost, g * h)
        }
    }
    plains[lid] = plain + plain_lost;
    mixeds[lid] = (mixed + mixed_lost) * by;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_ = GROUP / 2; half_ >= lanes; half_ /= 2) {
        if (lid < half_) {
            plains[lid] += plains[lid + half_];
            mixeds[lid] += mixeds[lid + half_];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lid < lanes) {
        STOREC(mixeds[lid], partial + partial_at + 2 * part * channels + c);
        STOREC(plains[lid], partial + partial_at + (2 * part + 1) * channels + c);
    }
}
#endif

#ifdef KERNEL_norm_finish_group
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void norm_finish_group(__global const COMPUTE *partial, const ulong partial_at, __global COMPUTE *mean,
                                const ulong mean_at, __global COMPUTE *rstd, const ulong rstd_at,
                                __global COMPUTE *running_mean, const ulong running_mean_at,
                                __global COMPUTE *running_var, const ulong running_var_at, __global long *batches,
                                const ulong batches_at, const UINT channels, const UINT count, const UINT parts,
                                const UINT per, const COMPUTE eps, const COMPUTE momentum, const uint average) {
    __local COMPUTE haves[GROUP], middles[GROUP], spreads[GROUP];
    const uint lid = get_local_id(0);
    const UINT c = get_group_id(0);
    partial += partial_at + c * parts * 2;
    COMPUTE have = 0, middle = 0, squares = 0;
    for (UINT p = lid; p < parts; p += GROUP) {
        const COMPUTE more = (p + 1) * per < count ? per : count - p * per;
        MERGE(COMPUTE, have, middle, squares, more, partial[2 * p], partial[2 * p + 1])
    }
    haves[lid] = have;
    middles[lid] = middle;
    spreads[lid] = squares;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_ = GROUP / 2; half_ > 0; half_ /= 2) {
        if (lid < half_) {
            MERGE(COMPUTE, have, middle, squares, haves[lid + half_], middles[lid + half_], spreads[lid + half_])
            haves[lid] = have;
            middles[lid] = middle;
            spreads[lid] = squares;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lid > 0) return;
    mean[mean_at + c] = middle;
    rstd[rstd_at + c] = 1 / sqrt(squares / have + eps);
    if (running_mean) {
        __global COMPUTE *m = running_mean + running_mean_at + c, *v = running_var + running_var_at + c;
        COMPUTE share = momentum;
        if (average) share = (COMPUTE)1 / (COMPUTE)batches[batches_at];
        else if (batches && c == 0) ++batches[batches_at];
        *m = (1 - share) * *m + share * middle;
        *v = (1 - share) * *v + share * (squares / (have - 1));
    }
}
#endif

#ifdef KERNEL_norm_sums_group
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void norm_sums_group(__global const COMPUTE *partial, const ulong partial_at, __global COMPUTE *d_weight,
                              const ulong d_weight_at, __global COMPUTE *d_bias, const ulong d_bias_at,
                              const UINT channels, const UINT parts) {
    __local COMPUTE plains[GROUP], mixeds[GROUP];
    const uint lid = get_local_id(0);
    const UINT c = get_group_id(0);
    partial += partial_at + c;
    COMPUTE plain = 0, plain_lost = 0, mixed = 0, mixed_lost = 0;
    for (UINT p = lid; p < parts; p += GROUP) {
        FOLD(COMPUTE, mixed, mixed_lost, partial[2 * p * channels])
        FOLD(COMPUTE, plain, plain_lost, partial[(2 * p + 1) * channels])
    }
    plains[lid] = plain + plain_lost;
    mixeds[lid] = mixed + mixed_lost;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_ = GROUP / 2; half_ > 0; half_ /= 2) {
        if (lid < half_) {
            plains[lid] += plains[lid + half_];
            mixeds[lid] += mixeds[lid + half_];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lid > 0) return;
    d_weight[d_weight_at + c] = mixeds[0];
    d_bias[d_bias_at + c] = plains[0];
}
#endif

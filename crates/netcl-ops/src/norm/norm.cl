// Normalisation, forward.
//
//   norm_rows      a group takes local size / lanes rows; the lanes of a row meet in local memory
//
//      row 0   [l l l l | l l l l | ...]        1. mean      2. squared deviations from it      3. result
//      row 1   [l l l l | l l l l | ...]
//
//   norm_moments   x is samples x channels x span; a group takes part p of channel c: elements p * per .. of its
//                  samples * span -> partial[c][p] = (mean, sum of squared deviations)
//   norm_merge     a work-item merges `take` parts of a channel, in order: for channels in many parts
//   norm_finish    a work-item merges the parts of a channel, in order -> mean, rstd, running averages; the first work-item
//                  raises the number of batches, unless all of them read it (`average`: the share is 1 / batches)
//   norm_count     raises the number of batches, before norm_finish reads it
//
// A parameter that is not there is a null pointer.

#define JOIN(value) JOIN_LANES(value, PLUS, lane, lanes)

#ifdef KERNEL_norm_rows
__kernel void norm_rows(__global const ELEMENT *x, const ulong x_at, __global const COMPUTE *weight,
                        const ulong weight_at, __global const COMPUTE *bias, const ulong bias_at, __global ELEMENT *y,
                        const ulong y_at, __global COMPUTE *mean, const ulong mean_at, __global COMPUTE *rstd,
                        const ulong rstd_at, const UINT rows, const UINT n, const UINT groups, const UINT channels,
                        const UINT span, const COMPUTE eps, const uint centred, const uint lanes,
                        __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid % lanes;
    const UINT row = (UINT)get_group_id(0) * ((uint)get_local_size(0) / lanes) + lid / lanes;
    // Rows beyond the last read nothing and write nothing, but meet the others at the barriers.
    const UINT at = row < rows ? row : 0, end = row < rows ? n : 0;
    x += x_at + at * n;
    y += y_at + at * n;
    const UINT first = at % groups * channels;

    COMPUTE middle = 0;
    if (centred) {
        COMPUTE lost = 0;
        for (UINT r = lane; r < end; r += lanes) FOLD(COMPUTE, middle, lost, LOAD(x, r))
        middle += lost;
        JOIN(middle)
        middle /= n;
    }
    COMPUTE squares = 0, rest = 0;
    for (UINT r = lane; r < end; r += lanes) {
        const COMPUTE d = LOAD(x, r) - middle;
        FOLD(COMPUTE, squares, rest, d * d)
    }
    squares += rest;
    JOIN(squares)
    const COMPUTE by = 1 / sqrt(squares / n + eps);
    for (UINT r = lane; r < end; r += lanes) {
        const UINT c = first + r / span;
        COMPUTE v = (LOAD(x, r) - middle) * by;
        if (weight) v *= weight[weight_at + c];
        if (bias) v += bias[bias_at + c];
        STORE(v, y, r);
    }
    if (lane == 0 && row < rows) {
        mean[mean_at + row] = middle;
        rstd[rstd_at + row] = by;
    }
}
#endif

#ifdef KERNEL_norm_moments
__kernel void norm_moments(__global const ELEMENT *x, const ulong x_at, __global COMPUTE *partial,
                           const ulong partial_at, const UINT channels, const UINT span, const UINT count,
                           const UINT parts, const UINT per, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid, lanes = get_local_size(0);
    const UINT c = (UINT)get_group_id(0) / parts, part = (UINT)get_group_id(0) % parts;
    const UINT first = part * per, last = first + per < count ? first + per : count;
    x += x_at;
#define AT(i) (((i) / span * channels + c) * span + (i) % span)
    COMPUTE middle = 0, lost = 0;
    for (UINT i = first + lane; i < last; i += lanes) FOLD(COMPUTE, middle, lost, LOAD(x, AT(i)))
    middle += lost;
    JOIN(middle)
    middle /= last - first;
    COMPUTE squares = 0, rest = 0;
    for (UINT i = first + lane; i < last; i += lanes) {
        const COMPUTE d = LOAD(x, AT(i)) - middle;
        FOLD(COMPUTE, squares, rest, d * d)
    }
    squares += rest;
    JOIN(squares)
    if (lane == 0) {
        partial[partial_at + (c * parts + part) * 2] = middle;
        partial[partial_at + (c * parts + part) * 2 + 1] = squares;
    }
}
#endif

// Adds part p of (mean, squared deviations) pairs, all of `per` values but the last, to those of n values.
#define MERGE(p)                                                              \
    {                                                                         \
        const UINT first_ = (p) * per;                                        \
        const COMPUTE more_ = first_ + per < count ? per : count - first_;    \
        const COMPUTE step_ = partial[2 * (p)] - middle, share_ = more_ / (n + more_); \
        middle += step_ * share_;                                             \
        squares += partial[2 * (p) + 1] + step_ * step_ * n * share_;         \
        n += more_;                                                           \
    }

#ifdef KERNEL_norm_merge
__kernel void norm_merge(__global const COMPUTE *partial, const ulong partial_at, __global COMPUTE *merged,
                         const ulong merged_at, const UINT channels, const UINT count, const UINT parts, const UINT per,
                         const UINT take) {
    const UINT at = get_global_id(0), fewer = (parts + take - 1) / take, c = at / fewer, begin = at % fewer * take;
    if (c >= channels) return;
    const UINT end = begin + take < parts ? begin + take : parts;
    partial += partial_at + c * parts * 2;
    COMPUTE middle = 0, squares = 0, n = 0;
    for (UINT p = begin; p < end; ++p) MERGE(p)
    merged[merged_at + 2 * at] = middle;
    merged[merged_at + 2 * at + 1] = squares;
}
#endif

#ifdef KERNEL_norm_finish
__kernel void norm_finish(__global const COMPUTE *partial, const ulong partial_at, __global COMPUTE *mean,
                          const ulong mean_at, __global COMPUTE *rstd, const ulong rstd_at,
                          __global COMPUTE *running_mean, const ulong running_mean_at, __global COMPUTE *running_var,
                          const ulong running_var_at, __global long *batches, const ulong batches_at,
                          const UINT channels, const UINT count, const UINT parts, const UINT per, const COMPUTE eps,
                          const COMPUTE momentum, const uint average) {
    const UINT c = get_global_id(0);
    if (c >= channels) return;
    partial += partial_at + c * parts * 2;
    COMPUTE middle = partial[0], squares = partial[1], n = per < count ? per : count;
    for (UINT p = 1; p < parts; ++p) MERGE(p)
    mean[mean_at + c] = middle;
    rstd[rstd_at + c] = 1 / sqrt(squares / n + eps);
    if (running_mean) {
        __global COMPUTE *m = running_mean + running_mean_at + c, *v = running_var + running_var_at + c;
        COMPUTE share = momentum;
        if (average) share = (COMPUTE)1 / (COMPUTE)batches[batches_at];
        else if (batches && c == 0) ++batches[batches_at];
        *m = (1 - share) * *m + share * middle;
        *v = (1 - share) * *v + share * (squares / (n - 1));
    }
}
#endif

#ifdef KERNEL_norm_count
__kernel void norm_count(__global long *batches, const ulong batches_at) {
    if (get_global_id(0) == 0) ++batches[batches_at];
}
#endif

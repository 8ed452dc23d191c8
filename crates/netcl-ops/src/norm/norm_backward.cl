// Normalisation, backward. g is the gradient of the output, h = (x - mean) * rstd the normalised input.
//
//   norm_rows_backward    a group takes local size / lanes rows:  sums of g * w and g * w * h, then the input's gradient
//   norm_rows_and_columns, norm_rows_and_planes
//                         the same in the first `rows_groups` groups; the others do what the kernels below do, since neither
//                         needs what the other writes
//
//   norm_sums_columns     few elements to a channel: a work-item takes part p of channel c, samples p * per ..
//   norm_sums_planes      many: a group does            -> partial[p][0][c] = sum of g * h, partial[p][1][c] = sum of g
//   norm_sums_finish      a work-item adds up the parts of a channel, in order -> gradients of weight and bias
//
// x is samples x channels x span. The statistics of a channel stand at sample * by_sample + channel / per_line * by_line.
//
// A weight that is not there is a null pointer, and so is a mean that is zero everywhere.

#define JOIN(value) JOIN_LANES(value, PLUS, lane, lanes)

#define SAVED                                                                                             \
    __global const ELEMENT *grad, const ulong grad_at, __global const ELEMENT *x, const ulong x_at,       \
    __global const COMPUTE *weight, const ulong weight_at, __global const COMPUTE *mean, const ulong mean_at, \
    __global const COMPUTE *rstd, const ulong rstd_at

#define SAVED_ARGUMENTS grad, grad_at, x, x_at, weight, weight_at, mean, mean_at, rstd, rstd_at

// Where the parts of channels and their statistics stand.
#define CUT                                                                                                         \
    __global COMPUTE *partial, const ulong partial_at, const UINT samples, const UINT channels, const UINT span,    \
    const UINT parts, const UINT per, const UINT by_sample, const UINT per_line, const UINT by_line
#define CUT_ARGUMENTS partial, partial_at, samples, channels, span, parts, per, by_sample, per_line, by_line

// How a tensor is cut into rows, of `row_channels` channels each.
#define ROWS const UINT rows, const UINT n, const UINT groups, const UINT row_channels, const uint centred, const uint lanes
#define ROWS_ARGUMENTS rows, n, groups, row_channels, centred, lanes

#if defined(KERNEL_norm_rows_backward) || defined(KERNEL_norm_rows_and_columns) || defined(KERNEL_norm_rows_and_planes)
void rows_backward(SAVED, __global ELEMENT *to, const ulong to_at, const UINT span, ROWS, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid % lanes;
    const UINT row = (UINT)get_group_id(0) * ((uint)get_local_size(0) / lanes) + lid / lanes;
    const UINT at = row < rows ? row : 0, end = row < rows ? n : 0;
    grad += grad_at + at * n;
    x += x_at + at * n;
    to += to_at + at * n;
    const UINT first = at % groups * row_channels;
    const COMPUTE middle = mean ? mean[mean_at + at] : 0, by = rstd[rstd_at + at];
#define G(r) (weight ? LOAD(grad, r) * weight[weight_at + first + (r) / span] : LOAD(grad, r))
#define H(r) ((LOAD(x, r) - middle) * by)
    COMPUTE plain = 0, plain_lost = 0, mixed = 0, mixed_lost = 0;
    for (UINT r = lane; r < end; r += lanes) {
        const COMPUTE g = G(r);
        FOLD(COMPUTE, plain, plain_lost, g)
        FOLD(COMPUTE, mixed, mixed_lost, g * H(r))
    }
    plain += plain_lost;
    mixed += mixed_lost;
    JOIN(plain)
    JOIN(mixed)
    plain = centred ? plain / n : 0;
    mixed /= n;
    for (UINT r = lane; r < end; r += lanes) STORE((G(r) - plain - H(r) * mixed) * by, to, r);
}
#endif

#if defined(KERNEL_norm_sums_columns) || defined(KERNEL_norm_rows_and_columns)
void sums_columns(SAVED, CUT, const UINT item) {
    const UINT c = item % channels, part = item / channels;
    if (part >= parts) return;
    const UINT first = part * per, last = first + per < samples ? first + per : samples;
    COMPUTE plain = 0, plain_lost = 0, mixed = 0, mixed_lost = 0;
    for (UINT n = first; n < last; ++n) {
        const UINT line = n * by_sample + c / per_line * by_line;
        const COMPUTE middle = mean ? mean[mean_at + line] : 0, by = rstd[rstd_at + line];
        const UINT at = (n * channels + c) * span;
        for (UINT s = at; s < at + span; ++s) {
            const COMPUTE g = LOAD(grad, grad_at + s);
            FOLD(COMPUTE, plain, plain_lost, g)
            FOLD(COMPUTE, mixed, mixed_lost, g * ((LOAD(x, x_at + s) - middle) * by))
        }
    }
    partial[partial_at + 2 * part * channels + c] = mixed + mixed_lost;
    partial[partial_at + (2 * part + 1) * channels + c] = plain + plain_lost;
}
#endif

#if defined(KERNEL_norm_sums_planes) || defined(KERNEL_norm_rows_and_planes)
void sums_planes(SAVED, CUT, const UINT group, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid, lanes = get_local_size(0);
    const UINT c = group % channels, part = group / channels;
    const UINT first = part * per, end = part < parts ? first + per : 0, last = end < samples ? end : samples;
    COMPUTE plain = 0, plain_lost = 0, mixed = 0, mixed_lost = 0;
    for (UINT n = first; n < last; ++n) {
        const UINT line = n * by_sample + c / per_line * by_line;
        const COMPUTE middle = mean ? mean[mean_at + line] : 0, by = rstd[rstd_at + line];
        const UINT at = (n * channels + c) * span;
        for (UINT s = at + lane; s < at + span; s += lanes) {
            const COMPUTE g = LOAD(grad, grad_at + s);
            FOLD(COMPUTE, plain, plain_lost, g)
            FOLD(COMPUTE, mixed, mixed_lost, g * ((LOAD(x, x_at + s) - middle) * by))
        }
    }
    plain += plain_lost;
    mixed += mixed_lost;
    JOIN(plain)
    JOIN(mixed)
    if (lane == 0 && part < parts) {
        partial[partial_at + 2 * part * channels + c] = mixed;
        partial[partial_at + (2 * part + 1) * channels + c] = plain;
    }
}
#endif

#ifdef KERNEL_norm_rows_backward
__kernel void norm_rows_backward(SAVED, __global ELEMENT *to, const ulong to_at, const UINT span, ROWS,
                                 __local COMPUTE *tile) {
    rows_backward(SAVED_ARGUMENTS, to, to_at, span, ROWS_ARGUMENTS, tile);
}
#endif

#ifdef KERNEL_norm_rows_and_columns
__kernel void norm_rows_and_columns(SAVED, __global ELEMENT *to, const ulong to_at, CUT, ROWS, const UINT rows_groups,
                                    __local COMPUTE *tile) {
    // Groups beyond the rows find none, but no barrier may stand in a branch: some compilers for CPUs get it wrong.
    rows_backward(SAVED_ARGUMENTS, to, to_at, span, ROWS_ARGUMENTS, tile);
    if ((UINT)get_group_id(0) >= rows_groups)
        sums_columns(SAVED_ARGUMENTS, CUT_ARGUMENTS, (UINT)get_global_id(0) - rows_groups * (UINT)get_local_size(0));
}
#endif

#ifdef KERNEL_norm_rows_and_planes
__kernel void norm_rows_and_planes(SAVED, __global ELEMENT *to, const ulong to_at, CUT, ROWS, const UINT rows_groups,
                                   __local COMPUTE *tile) {
    // As above; groups of the rows have no part of a channel.
    rows_backward(SAVED_ARGUMENTS, to, to_at, span, ROWS_ARGUMENTS, tile);
    const UINT group = get_group_id(0);
    sums_planes(SAVED_ARGUMENTS, CUT_ARGUMENTS, group >= rows_groups ? group - rows_groups : parts * channels, tile);
}
#endif

#ifdef KERNEL_norm_sums_columns
__kernel void norm_sums_columns(SAVED, CUT) {
    sums_columns(SAVED_ARGUMENTS, CUT_ARGUMENTS, (UINT)get_global_id(0));
}
#endif

#ifdef KERNEL_norm_sums_planes
__kernel void norm_sums_planes(SAVED, CUT, __local COMPUTE *tile) {
    sums_planes(SAVED_ARGUMENTS, CUT_ARGUMENTS, (UINT)get_group_id(0), tile);
}
#endif

#ifdef KERNEL_norm_sums_finish
__kernel void norm_sums_finish(__global const COMPUTE *partial, const ulong partial_at, __global COMPUTE *d_weight,
                               const ulong d_weight_at, __global COMPUTE *d_bias, const ulong d_bias_at,
                               const UINT channels, const UINT parts) {
    const UINT c = get_global_id(0);
    if (c >= channels) return;
    partial += partial_at + c;
    COMPUTE plain = 0, plain_lost = 0, mixed = 0, mixed_lost = 0;
    for (UINT p = 0; p < parts; ++p) {
        FOLD(COMPUTE, mixed, mixed_lost, partial[2 * p * channels])
        FOLD(COMPUTE, plain, plain_lost, partial[(2 * p + 1) * channels])
    }
    d_weight[d_weight_at + c] = mixed + mixed_lost;
    d_bias[d_bias_at + c] = plain + plain_lost;
}
#endif

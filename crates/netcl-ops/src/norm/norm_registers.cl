// Normalisation of rows on GPUs: a row is held in the registers of its lanes, so that memory is read once and written once.
//
//      row 0   [l0 l1 l2 ... | l0 l1 l2 ... | ...]      lane l has the vectors l, l + lanes, ...: VECTORS of them
//      row 1   [l0 l1 l2 ... | l0 l1 l2 ... | ...]      a group has GROUP / lanes rows
//
//   norm_rows_registers      1. mean      2. squared deviations from it, and what it was off by      3. result
//   norm_back_registers      the input's gradient: sums of g * w and g * w * h, then the result
//   norm_back_sums           the same, and the parameters' gradients. Slot s takes every Nth row, N slots in all; each lane adds up
//                            g * h and g of its places over its slot's rows -> partial[slot] = (sums of g * h, sums of g)
//
// A vector has elements of one channel, or span is 1. row_moments.cl is put before this text.

// A parameter's values for the vector at place d of a row whose channels begin with `first`.
#define PARAMETER(p, d) (span == 1 ? LOADC(p + p##_at + first + (d)) : (VCOMPUTE)(p[p##_at + first + (d) / span]))

#ifdef KERNEL_norm_rows_registers
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void norm_rows_registers(__global const ELEMENT *x, const ulong x_at, __global const COMPUTE *weight,
                                  const ulong weight_at, __global const COMPUTE *bias, const ulong bias_at,
                                  __global ELEMENT *y, const ulong y_at, __global COMPUTE *mean, const ulong mean_at,
                                  __global COMPUTE *rstd, const ulong rstd_at, const UINT rows, const UINT n,
                                  const UINT groups, const UINT channels, const UINT span, const COMPUTE eps,
                                  const uint centred, const uint lanes, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid % lanes;
    const UINT row = (UINT)get_group_id(0) * (GROUP / lanes) + lid / lanes;
    // Rows beyond the last read nothing and write nothing, but meet the others at the barriers.
    const UINT at = row < rows ? row : 0, end = row < rows ? n : 0;
    x += x_at + at * n;
    y += y_at + at * n;
    const UINT first = at % groups * channels;
    VCOMPUTE v[VECTORS];
    #pragma unroll
    EACH(j) {
        v[j] = (VCOMPUTE)(0);
        if (AT(j) < end) v[j] = LOADV(x + AT(j));
    }
    ROW_MOMENTS(n)
    #pragma unroll
    EACH(j) {
        if (AT(j) < end) {
            VCOMPUTE r = (v[j] - middle) * by;
            if (weight) r *= PARAMETER(weight, AT(j));
            if (bias) r += PARAMETER(bias, AT(j));
            STOREV(r, y + AT(j));
        }
    }
    if (lane == 0 && row < rows) {
        mean[mean_at + row] = middle;
        rstd[rstd_at + row] = by;
    }
}
#endif

#if defined(KERNEL_norm_back_registers) || defined(KERNEL_norm_back_sums)
#ifdef KERNEL_norm_back_sums
#define NAME norm_back_sums
#define PARTIAL __global COMPUTE *partial, const ulong partial_at,
#else
#define NAME norm_back_registers
#define PARTIAL
#endif
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
__kernel void NAME(__global const ELEMENT *grad, const ulong grad_at, __global const ELEMENT *x, const ulong x_at,
                   __global const COMPUTE *weight, const ulong weight_at, __global const COMPUTE *mean,
                   const ulong mean_at, __global const COMPUTE *rstd, const ulong rstd_at, __global ELEMENT *to,
                   const ulong to_at, PARTIAL const UINT rows, const UINT n, const UINT groups, const UINT channels,
                   const UINT span, const uint centred, const uint lanes, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), lane = lid % lanes, together = GROUP / lanes;
    const UINT slot = (UINT)get_group_id(0) * together + lid / lanes, slots = (UINT)get_num_groups(0) * together;
    grad += grad_at;
    x += x_at;
    to += to_at;
#ifdef KERNEL_norm_back_sums
    VCOMPUTE mixes[VECTORS], plains[VECTORS];
    #pragma unroll
    EACH(j) mixes[j] = plains[j] = (VCOMPUTE)(0);
#endif
    // As many rounds for every group: all meet at the barriers.
    for (UINT round = 0; round < rows; round += slots) {
        const UINT row = round + slot, end = row < rows ? n : 0;
        const UINT line = row < rows ? row : 0, begin = line * n, first = line % groups * channels;
        const COMPUTE middle = mean ? mean[mean_at + line] : 0, by = rstd[rstd_at + line];
        VCOMPUTE g[VECTORS], h[VECTORS], plain_all = (VCOMPUTE)(0), mixed_all = (VCOMPUTE)(0);
        #pragma unroll
        EACH(j) {
            g[j] = h[j] = (VCOMPUTE)(0);
            if (AT(j) < end) {
                g[j] = LOADV(grad + begin + AT(j));
                h[j] = LOADV(x + begin + AT(j));
            }
        }
        #pragma unroll
        EACH(j) {
            if (AT(j) < end) {
                h[j] = (h[j] - middle) * by;
#ifdef KERNEL_norm_back_sums
                mixes[j] += g[j] * h[j];
                plains[j] += g[j];
#endif
                if (weight) g[j] *= PARAMETER(weight, AT(j));
            }
            plain_all += g[j];
            mixed_all += g[j] * h[j];
        }
        COMPUTE plain = ALL(PLUS, plain_all), mixed = ALL(PLUS, mixed_all);
        JOIN(plain, mixed)
        plain = centred ? plain / n : 0;
        mixed /= n;
        #pragma unroll
        EACH(j) {
            if (AT(j) < end) STOREV((g[j] - plain - h[j] * mixed) * by, to + begin + AT(j));
        }
    }
#ifdef KERNEL_norm_back_sums
    partial += partial_at + slot * 2 * n;
    #pragma unroll
    EACH(j) {
        if (AT(j) < n) {
            STOREC(mixes[j], partial + AT(j));
            STOREC(plains[j], partial + n + AT(j));
        }
    }
#endif
}
#endif

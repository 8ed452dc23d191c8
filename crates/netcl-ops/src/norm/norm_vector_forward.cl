// Normalisation on processors, forward: work-items that need nobody else, and vectors along what lies densely in memory.
//
//   norm_rows_vector       work-item i -> rows i * per, ...        1. mean   2. squared deviations from it   3. result
//
//   norm_moments_vector    x is samples x channels x span; a work-item takes part p of channel c: samples p * per, ...
//                                                                  -> partial[c][p] = (mean, sum of squared deviations)
//
//        sample 0   [...|cccc|...]      runs of RUN elements, of one sample or of several, stay in the first-level cache for
//        sample 1   [...|cccc|...]      the mean and then the deviations; runs are merged
//
//   norm_moments_columns   a channel has fewer elements than a vector: a work-item takes vectors of neighbouring elements, all
//                          samples                                 -> partial[c][place] = the same
//   norm_apply_vector      work-item i -> planes i * per, ...: the channels of samples
//   norm_apply_columns     the same for channels of fewer elements than a vector: work-item i -> samples i * per, ...
//
// Compiled with: see vector_sums.cl, whose text stands before this one. A parameter that is not there is a null pointer, and so is a mean
// that is zero everywhere.

#ifdef ALONE
#define KERNEL_norm_rows_vector
#define KERNEL_norm_moments_vector
#define KERNEL_norm_moments_columns
#define KERNEL_norm_apply_vector
#define KERNEL_norm_apply_columns
#endif

// Reads `more` elements twice: `own` becomes their mean, to which `off` has still to be added, `spread` their squared deviations
// from it. `all` goes over the elements, given what to do with vectors and with single ones.
#define DEVIATIONS(all, more)                                                                       \
    COMPUTE own, off, spread;                                                                       \
    {                                                                                               \
        SUMS(sum_)                                                                                  \
        all(ADD_VECTOR, ADD_ONE)                                                                    \
        own = TOTAL(sum_) / (more);                                                                 \
        SUMS(off_)                                                                                  \
        SUMS(spread_)                                                                               \
        all(DEVIATE_VECTOR, DEVIATE_ONE)                                                            \
        off = TOTAL(off_) / (more);                                                                 \
        spread = TOTAL(spread_) - off * off * (more);                                               \
        /* Not max, which would lose a NaN. */                                                      \
        spread = spread < 0 ? 0 : spread;                                                           \
    }
#define ADD_VECTOR(p, j) sum_[j] += LOADV(p);
#define ADD_ONE(p) sum_one += LOAD(p, 0);
#define DEVIATE_VECTOR(p, j) { const VCOMPUTE gap_ = LOADV(p) - own; off_[j] += gap_; spread_[j] += gap_ * gap_; }
#define DEVIATE_ONE(p) { const COMPUTE gap_ = LOAD(p, 0) - own; off_one += gap_; spread_one += gap_ * gap_; }

// Merges moments of `more` values, whose mean is own + off, into those of `have`.
#define MERGE(T, more)                                                                              \
    {                                                                                               \
        const COMPUTE all_ = have + (more), share_ = (more) / all_;                                 \
        const T step_ = ((own - middle) - middle_lost) + off;                                       \
        FOLD(T, middle, middle_lost, step_ * share_)                                                \
        FOLD(T, squares, squares_lost, spread + step_ * step_ * have * share_)                      \
        have = all_;                                                                                \
    }

// The result for the n elements of one channel at p.
#define SCALE(p, to, n, w, b)                                                                       \
    {                                                                                               \
        UINT d_ = 0;                                                                                \
        for (; (n) - d_ >= WIDTH; d_ += WIDTH) STOREV((LOADV(p + d_) - middle) * by * w + b, to + d_); \
        for (; d_ < (n); ++d_) STORE((LOAD(p, d_) - middle) * by * w + b, to, d_);                  \
    }

#ifdef KERNEL_norm_rows_vector
__kernel void norm_rows_vector(__global const ELEMENT *x, const ulong x_at, __global const COMPUTE *weight,
                               const ulong weight_at, __global const COMPUTE *bias, const ulong bias_at,
                               __global ELEMENT *y, const ulong y_at, __global COMPUTE *mean, const ulong mean_at,
                               __global COMPUTE *rstd, const ulong rstd_at, const UINT rows, const UINT n,
                               const UINT groups, const UINT channels, const UINT span, const COMPUTE eps,
                               const uint centred, const UINT per) {
    const UINT begin = (UINT)get_global_id(0) * per, end = rows - begin < per ? rows : begin + per;
    for (UINT row = begin; row < end; ++row) {
        __global const ELEMENT *x_row = x + x_at + row * n;
        __global ELEMENT *y_row = y + y_at + row * n;
        COMPUTE have = 0, middle = 0, middle_lost = 0, squares = 0, squares_lost = 0;
        for (UINT from = 0; from < n; from += RUN) {
            const UINT length = n - from < RUN ? n - from : RUN;
            __global const ELEMENT *p = x_row + from;
#define ROW_RUN(vector, one) OVER(p, length, vector, one)
            if (centred) {
                DEVIATIONS(ROW_RUN, (COMPUTE)length)
                MERGE(COMPUTE, (COMPUTE)length)
            } else {
                const COMPUTE own = 0;
                SUMS(off_)
                SUMS(spread_)
                ROW_RUN(DEVIATE_VECTOR, DEVIATE_ONE)
                FOLD(COMPUTE, squares, squares_lost, TOTAL(spread_))
            }
        }
        const COMPUTE by = 1 / sqrt((squares + squares_lost) / n + eps);
        mean[mean_at + row] = middle;
        rstd[rstd_at + row] = by;
        const UINT first = row % groups * channels;
        if (span == 1) {
            __global const COMPUTE *w = weight + weight_at + first, *b = bias + bias_at + first;
            UINT d = 0;
            for (; n - d >= WIDTH; d += WIDTH) {
                VCOMPUTE v = (LOADV(x_row + d) - middle) * by;
                if (weight) v *= LOADC(w + d);
                if (bias) v += LOADC(b + d);
                ASK(x_row + n + d);
                STOREV(v, y_row + d);
            }
            for (; d < n; ++d) {
                COMPUTE v = (LOAD(x_row, d) - middle) * by;
                if (weight) v *= w[d];
                if (bias) v += b[d];
                STORE(v, y_row, d);
            }
        } else {
            for (UINT c = 0; c < channels; ++c) {
                __global const ELEMENT *p = x_row + c * span;
                __global ELEMENT *to = y_row + c * span;
                const COMPUTE w = weight ? weight[weight_at + first + c] : 1, b = bias ? bias[bias_at + first + c] : 0;
                SCALE(p, to, span, w, b)
            }
        }
    }
}
#endif

#ifdef KERNEL_norm_moments_vector
__kernel void norm_moments_vector(__global const ELEMENT *x, const ulong x_at, __global COMPUTE *partial,
                                  const ulong partial_at, const UINT channels, const UINT span, const UINT samples,
                                  const UINT parts, const UINT per) {
    const UINT c = (UINT)get_global_id(0) / parts, part = (UINT)get_global_id(0) % parts;
    const UINT begin = part * per, end = samples - begin < per ? samples : begin + per;
    const UINT together = span < RUN ? RUN / span : 1;
    COMPUTE have = 0, middle = 0, middle_lost = 0, squares = 0, squares_lost = 0;
    x += x_at + c * span;
    for (UINT sample = begin; sample < end; sample += together) {
        const UINT beyond = end - sample < together ? end : sample + together;
        for (UINT from = 0; from < span; from += RUN) {
            const UINT length = span - from < RUN ? span - from : RUN;
            const COMPUTE more = (beyond - sample) * length;
#define CHANNEL_RUN(vector, one)                                                        \
    for (UINT s_ = sample; s_ < beyond; ++s_) {                                         \
        __global const ELEMENT *p_ = x + s_ * channels * span + from;                   \
        OVER(p_, length, vector, one)                                                   \
    }
            DEVIATIONS(CHANNEL_RUN, more)
            MERGE(COMPUTE, more)
        }
    }
    partial += partial_at + (c * parts + part) * 2;
    partial[0] = middle;
    partial[1] = squares + squares_lost;
}
#endif

#ifdef KERNEL_norm_moments_columns
// Samples of a run of columns: few enough that they stay in a cache, where rows far apart have little room.
#define TOGETHER 8
#define COLUMNS(T, load, at, put)                                                                   \
    {                                                                                               \
        T middle = (T)(0), middle_lost = middle, squares = middle, squares_lost = middle;           \
        COMPUTE have = 0;                                                                           \
        for (UINT sample = 0; sample < samples; sample += TOGETHER) {                               \
            const UINT beyond = samples - sample < TOGETHER ? samples : sample + TOGETHER;          \
            const COMPUTE more = beyond - sample;                                                   \
            T own = (T)(0), off = own, spread = own;                                                \
            for (UINT s_ = sample; s_ < beyond; ++s_) own += load(x + s_ * all + (at));             \
            own /= more;                                                                            \
            for (UINT s_ = sample; s_ < beyond; ++s_) {                                             \
                const T d_ = load(x + s_ * all + (at)) - own;                                       \
                off += d_;                                                                          \
                spread += d_ * d_;                                                                  \
            }                                                                                       \
            off /= more;                                                                            \
            MERGE(T, more)                                                                          \
        }                                                                                           \
        squares += squares_lost;                                                                    \
        put                                                                                         \
    }
#define LOAD_ONE(p) LOAD(p, 0)

__kernel void norm_moments_columns(__global const ELEMENT *x, const ulong x_at, __global COMPUTE *partial,
                                   const ulong partial_at, const UINT samples, const UINT all, const UINT per) {
    const UINT begin = (UINT)get_global_id(0) * per * WIDTH;
    const UINT end = all - begin < per * WIDTH ? all : begin + per * WIDTH;
    UINT at = begin;
    x += x_at;
    partial += partial_at;
    for (; end - at >= WIDTH; at += WIDTH)
        COLUMNS(VCOMPUTE, LOADV, at, {
            COMPUTE middles[WIDTH];
            COMPUTE spreads[WIDTH];
            PASTE(vstore, WIDTH)(middle, 0, middles);
            PASTE(vstore, WIDTH)(squares, 0, spreads);
            for (uint j = 0; j < WIDTH; ++j) {
                partial[(at + j) * 2] = middles[j];
                partial[(at + j) * 2 + 1] = spreads[j];
            }
        })
    for (; at < end; ++at)
        COLUMNS(COMPUTE, LOAD_ONE, at, {
            partial[at * 2] = middle;
            partial[at * 2 + 1] = squares;
        })
}
#endif

#define APPLIED                                                                                                  \
    __global const ELEMENT *x, const ulong x_at, __global const COMPUTE *weight, const ulong weight_at,          \
    __global const COMPUTE *bias, const ulong bias_at, __global ELEMENT *y, const ulong y_at,                    \
    __global const COMPUTE *mean, const ulong mean_at, __global const COMPUTE *rstd, const ulong rstd_at

#ifdef KERNEL_norm_apply_vector
__kernel void norm_apply_vector(APPLIED, const UINT planes, const UINT channels, const UINT span, const UINT per) {
    const UINT begin = (UINT)get_global_id(0) * per, end = planes - begin < per ? planes : begin + per;
    for (UINT plane = begin; plane < end; ++plane) {
        const UINT c = plane % channels;
        __global const ELEMENT *p = x + x_at + plane * span;
        __global ELEMENT *to = y + y_at + plane * span;
        const COMPUTE middle = mean[mean_at + c], by = rstd[rstd_at + c];
        const COMPUTE w = weight ? weight[weight_at + c] : 1, b = bias ? bias[bias_at + c] : 0;
        SCALE(p, to, span, w, b)
    }
}
#endif

#ifdef KERNEL_norm_apply_columns
__kernel void norm_apply_columns(APPLIED, const UINT samples, const UINT channels, const UINT span, const UINT per) {
    const UINT begin = (UINT)get_global_id(0) * per, end = samples - begin < per ? samples : begin + per;
    weight += weight ? weight_at : 0;
    bias += bias ? bias_at : 0;
    mean += mean_at;
    rstd += rstd_at;
    for (UINT sample = begin; sample < end; ++sample) {
        __global const ELEMENT *p = x + x_at + sample * channels * span;
        __global ELEMENT *to = y + y_at + sample * channels * span;
        UINT c = 0;
        for (; span == 1 && channels - c >= WIDTH; c += WIDTH) {
            VCOMPUTE v = (LOADV(p + c) - LOADC(mean + c)) * LOADC(rstd + c);
            if (weight) v *= LOADC(weight + c);
            if (bias) v += LOADC(bias + c);
            STOREV(v, to + c);
        }
        for (; c < channels; ++c)
            for (UINT d = c * span; d < (c + 1) * span; ++d) {
                COMPUTE v = (LOAD(p, d) - mean[c]) * rstd[c];
                if (weight) v *= weight[c];
                if (bias) v += bias[c];
                STORE(v, to, d);
            }
    }
}
#endif

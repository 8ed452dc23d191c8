// Normalisation on processors, backward: work-items that need nobody else. g is the gradient of the output, h = (x - mean) * rstd.
//
//   norm_rows_back_vector  work-item i -> rows i * per, ...: sums of g * w and g * w * h, then the input's gradient; where they are
//                          wanted, also the sums of g * h and of g over its rows -> partial[i]
//   norm_sums_vector       a work-item takes part p of channel c: samples p * per, ...
//                                                                  -> partial[p][0][c] = sum of g * h, partial[p][1][c] = sum of g
//   norm_sums_places       a channel has fewer elements than a vector -> the same for each place of a channel instead of each part
//   norm_batch_vector, norm_batch_columns
//                          the input's gradient from its channel's sums, by planes and by samples as above
//
// Compiled with: see vector_sums.cl, whose text stands before this one. A parameter that is not there is a null pointer, and so is a mean
// that is zero everywhere.

#ifdef ALONE
#define KERNEL_norm_rows_back_vector
#define KERNEL_norm_sums_vector
#define KERNEL_norm_sums_places
#define KERNEL_norm_batch_vector
#define KERNEL_norm_batch_columns
#endif

// A channel's value for each of the elements from place `at` of a sample on.
#define VALUES(name, from)                                                                          \
    VCOMPUTE name;                                                                                  \
    {                                                                                               \
        COMPUTE each_[WIDTH];                                                                       \
        for (uint j_ = 0; j_ < WIDTH; ++j_) each_[j_] = (from)[(at + j_) / span];                   \
        name = PASTE(vload, WIDTH)(0, each_);                                                       \
    }

#define SAVED                                                                                             \
    __global const ELEMENT *grad, const ulong grad_at, __global const ELEMENT *x, const ulong x_at,       \
    __global const COMPUTE *weight, const ulong weight_at, __global const COMPUTE *mean, const ulong mean_at, \
    __global const COMPUTE *rstd, const ulong rstd_at

#ifdef KERNEL_norm_rows_back_vector
// Rows that are added up for the parameters' gradients while they are still in a cache.
#define ROWS 8

// Adds sums over some rows to those of the rows before: `total` at p, what it lost at p + lost_at.
#define GATHER(T, v, load, store, p)                                                                \
    {                                                                                               \
        T total_ = (v), lost_ = (T)(0);                                                             \
        if (row > begin) {                                                                          \
            const T more_ = total_;                                                                 \
            total_ = load(p);                                                                       \
            lost_ = load((p) + lost_at);                                                            \
            FOLD(T, total_, lost_, more_)                                                           \
        }                                                                                           \
        if (beyond == end) total_ += lost_;                                                         \
        store(total_, p);                                                                           \
        store(lost_, (p) + lost_at);                                                                \
    }
#define LOAD_HERE(p) (*(p))
#define STORE_HERE(v, p) *(p) = (v)
#define PARAMETERS(T, value, at, load, store)                                                       \
    {                                                                                               \
        T plain = (T)(0), mixed = (T)(0);                                                           \
        for (UINT r_ = row; r_ < beyond; ++r_) {                                                    \
            const COMPUTE middle_ = mean ? mean[r_] : 0;                                            \
            const T g_ = value(grad + r_ * n + (at));                                               \
            plain += g_;                                                                            \
            mixed += g_ * ((value(x + r_ * n + (at)) - middle_) * rstd[r_]);                        \
        }                                                                                           \
        GATHER(T, mixed, load, store, partial + (at))                                               \
        GATHER(T, plain, load, store, partial + n + (at))                                           \
    }
#define ELEMENT_AT(p) LOAD(p, 0)

__kernel void norm_rows_back_vector(SAVED, __global ELEMENT *to, const ulong to_at, __global COMPUTE *partial,
                                    const ulong partial_at, const UINT rows, const UINT n, const UINT groups,
                                    const UINT channels, const UINT span, const uint centred, const UINT per) {
    const UINT slot = get_global_id(0), begin = slot * per, end = rows - begin < per ? rows : begin + per;
    const UINT lost_at = (UINT)get_global_size(0) * 2 * n;
    grad += grad_at;
    x += x_at;
    to += to_at;
    weight += weight ? weight_at : 0;
    mean += mean ? mean_at : 0;
    rstd += rstd_at;
    partial += partial ? partial_at + slot * 2 * n : 0;
    for (UINT row = begin; row < end; row += ROWS) {
        const UINT beyond = end - row < ROWS ? end : row + ROWS;
        for (UINT r = row; r < beyond; ++r) {
            const COMPUTE middle = mean ? mean[r] : 0, by = rstd[r];
            const UINT first = r % groups * channels;
            const UINT pieces = span == 1 ? 1 : channels, piece = span == 1 ? n : span;
            VCOMPUTE plain = (VCOMPUTE)(0), plain_lost = plain, mixed = plain, mixed_lost = plain;
            COMPUTE plain_rest = 0, mixed_rest = 0;
            // w is one channel's weight, or the weights of all channels begin at ws.
#define PIECES(body)                                                                                \
    for (UINT c = 0; c < pieces; ++c) {                                                             \
        const UINT base = r * n + c * piece;                                                        \
        const COMPUTE w = weight && span > 1 ? weight[first + c] : 1;                               \
        __global const COMPUTE *ws = weight && span == 1 ? weight + first : 0;                      \
        body                                                                                        \
    }
#define G_VECTOR(d) (ws ? LOADV(grad + base + (d)) * LOADC(ws + (d)) : LOADV(grad + base + (d)) * w)
#define G_ONE(d) (ws ? LOAD(grad, base + (d)) * ws[d] : LOAD(grad, base + (d)) * w)
#define H_VECTOR(d) ((LOADV(x + base + (d)) - middle) * by)
#define H_ONE(d) ((LOAD(x, base + (d)) - middle) * by)
#define BOTH_VECTOR(d, j) { const VCOMPUTE g_ = G_VECTOR(d); plain_[j] += g_; mixed_[j] += g_ * H_VECTOR(d); }
#define BOTH_ONE(d) { const COMPUTE g_ = G_ONE(d); plain_one += g_; mixed_one += g_ * H_ONE(d); }
            PIECES(
                for (UINT from = 0; from < piece; from += RUN) {
                    const UINT length = piece - from < RUN ? piece - from : RUN;
                    SUMS(plain_)
                    SUMS(mixed_)
                    OVER(from, length, BOTH_VECTOR, BOTH_ONE)
                    FOLD(VCOMPUTE, plain, plain_lost, JOINED(plain_))
                    FOLD(VCOMPUTE, mixed, mixed_lost, JOINED(mixed_))
                    plain_rest += plain_one;
                    mixed_rest += mixed_one;
                })
            const COMPUTE shift = centred ? (lanes(plain + plain_lost) + plain_rest) / n : 0;
            const COMPUTE slope = (lanes(mixed + mixed_lost) + mixed_rest) / n;
#define BACK_VECTOR(d, j) STOREV((G_VECTOR(d) - shift - H_VECTOR(d) * slope) * by, to + base + (d));
#define BACK_ONE(d) STORE((G_ONE(d) - shift - H_ONE(d) * slope) * by, to, base + (d));
            PIECES(OVER((UINT)0, piece, BACK_VECTOR, BACK_ONE))
        }
        if (partial) {
            UINT d = 0;
            for (; n - d >= WIDTH; d += WIDTH) PARAMETERS(VCOMPUTE, LOADV, d, LOADC, STOREC)
            for (; d < n; ++d) PARAMETERS(COMPUTE, ELEMENT_AT, d, LOAD_HERE, STORE_HERE)
        }
    }
}
#endif

#ifdef KERNEL_norm_sums_vector
__kernel void norm_sums_vector(SAVED, __global COMPUTE *partial, const ulong partial_at, const UINT samples,
                               const UINT channels, const UINT span, const UINT parts, const UINT per,
                               const UINT by_sample, const UINT per_line, const UINT by_line) {
    const UINT c = (UINT)get_global_id(0) % channels, part = (UINT)get_global_id(0) / channels;
    const UINT begin = part * per, end = samples - begin < per ? samples : begin + per;
    VCOMPUTE plain = (VCOMPUTE)(0), plain_lost = plain, mixed = plain, mixed_lost = plain;
    COMPUTE plain_rest = 0, plain_rest_lost = 0, mixed_rest = 0, mixed_rest_lost = 0;
    for (UINT sample = begin; sample < end; ++sample) {
        const UINT line = sample * by_sample + c / per_line * by_line, base = (sample * channels + c) * span;
        const COMPUTE middle = mean ? mean[mean_at + line] : 0, by = rstd[rstd_at + line];
#define PAIR_VECTOR(d, j)                                                                           \
    {                                                                                               \
        const VCOMPUTE g_ = LOADV(grad + grad_at + (d));                                            \
        plain_[j] += g_;                                                                            \
        mixed_[j] += g_ * ((LOADV(x + x_at + (d)) - middle) * by);                                  \
    }
#define PAIR_ONE(d)                                                                                 \
    {                                                                                               \
        const COMPUTE g_ = LOAD(grad, grad_at + (d));                                               \
        plain_one += g_;                                                                            \
        mixed_one += g_ * ((LOAD(x, x_at + (d)) - middle) * by);                                    \
    }
        for (UINT from = 0; from < span; from += RUN) {
            const UINT length = span - from < RUN ? span - from : RUN;
            SUMS(plain_)
            SUMS(mixed_)
            OVER(base + from, length, PAIR_VECTOR, PAIR_ONE)
            FOLD(VCOMPUTE, plain, plain_lost, JOINED(plain_))
            FOLD(VCOMPUTE, mixed, mixed_lost, JOINED(mixed_))
            FOLD(COMPUTE, plain_rest, plain_rest_lost, plain_one)
            FOLD(COMPUTE, mixed_rest, mixed_rest_lost, mixed_one)
        }
    }
    partial += partial_at + 2 * part * channels + c;
    partial[0] = lanes(mixed + mixed_lost) + (mixed_rest + mixed_rest_lost);
    partial[channels] = lanes(plain + plain_lost) + (plain_rest + plain_rest_lost);
}
#endif

#ifdef KERNEL_norm_sums_places
// Samples that are added up without a look at what that rounds off.
#define TOGETHER 16
#define PLACES(T, load, middle, by, put)                                                            \
    {                                                                                               \
        T plain = (T)(0), plain_lost = plain, mixed = plain, mixed_lost = plain;                    \
        for (UINT sample = 0; sample < samples; sample += TOGETHER) {                               \
            const UINT beyond = samples - sample < TOGETHER ? samples : sample + TOGETHER;          \
            T plain_ = (T)(0), mixed_ = (T)(0);                                                     \
            for (UINT s_ = sample; s_ < beyond; ++s_) {                                             \
                const T g_ = load(grad + s_ * all + at);                                            \
                plain_ += g_;                                                                       \
                mixed_ += g_ * ((load(x + s_ * all + at) - middle) * by);                           \
            }                                                                                       \
            FOLD(T, plain, plain_lost, plain_)                                                      \
            FOLD(T, mixed, mixed_lost, mixed_)                                                      \
        }                                                                                           \
        plain += plain_lost;                                                                        \
        mixed += mixed_lost;                                                                        \
        put                                                                                         \
    }
#define ELEMENT_AT(p) LOAD(p, 0)
// The sums of place `at` of a sample.
#define SUMS_OF(place) partial[2 * ((place) % span) * channels + (place) / span]

__kernel void norm_sums_places(SAVED, __global COMPUTE *partial, const ulong partial_at, const UINT samples,
                               const UINT channels, const UINT span, const UINT per) {
    const UINT all = channels * span, begin = (UINT)get_global_id(0) * per * WIDTH;
    const UINT end = all - begin < per * WIDTH ? all : begin + per * WIDTH;
    UINT at = begin;
    grad += grad_at;
    x += x_at;
    mean += mean_at;
    rstd += rstd_at;
    partial += partial_at;
    for (; end - at >= WIDTH; at += WIDTH) {
        VALUES(middle, mean)
        VALUES(by, rstd)
        PLACES(VCOMPUTE, LOADV, middle, by, {
            COMPUTE plains[WIDTH];
            COMPUTE mixes[WIDTH];
            PASTE(vstore, WIDTH)(plain, 0, plains);
            PASTE(vstore, WIDTH)(mixed, 0, mixes);
            for (uint j = 0; j < WIDTH; ++j) {
                (&SUMS_OF(at + j))[0] = mixes[j];
                (&SUMS_OF(at + j))[channels] = plains[j];
            }
        })
    }
    for (; at < end; ++at)
        PLACES(COMPUTE, ELEMENT_AT, mean[at / span], rstd[at / span], {
            (&SUMS_OF(at))[0] = mixed;
            (&SUMS_OF(at))[channels] = plain;
        })
}
#endif

#define GIVEN_SUMS                                                                                        \
    __global const COMPUTE *d_weight, const ulong d_weight_at, __global const COMPUTE *d_bias,            \
    const ulong d_bias_at, __global ELEMENT *to, const ulong to_at

#ifdef KERNEL_norm_batch_vector
__kernel void norm_batch_vector(SAVED, GIVEN_SUMS, const UINT planes, const UINT channels, const UINT span,
                                const COMPUTE count, const uint training, const UINT per) {
    const UINT begin = (UINT)get_global_id(0) * per, end = planes - begin < per ? planes : begin + per;
    for (UINT plane = begin; plane < end; ++plane) {
        const UINT c = plane % channels, base = plane * span;
        const COMPUTE middle = mean[mean_at + c], by = rstd[rstd_at + c], w = weight ? weight[weight_at + c] : 1;
        const COMPUTE shift = d_bias[d_bias_at + c] / count, slope = d_weight[d_weight_at + c] / count;
#define BATCH_VECTOR(d, j)                                                                          \
    STOREV((LOADV(grad + grad_at + (d)) - (shift + (LOADV(x + x_at + (d)) - middle) * by * slope)) * w * by, to + to_at + (d));
#define BATCH_ONE(d)                                                                                \
    STORE((LOAD(grad, grad_at + (d)) - (shift + (LOAD(x, x_at + (d)) - middle) * by * slope)) * w * by, to, to_at + (d));
#define GIVEN_VECTOR(d, j) STOREV(LOADV(grad + grad_at + (d)) * w * by, to + to_at + (d));
#define GIVEN_ONE(d) STORE(LOAD(grad, grad_at + (d)) * w * by, to, to_at + (d));
        if (training) OVER(base, span, BATCH_VECTOR, BATCH_ONE)
        else OVER(base, span, GIVEN_VECTOR, GIVEN_ONE)
    }
}
#endif

#ifdef KERNEL_norm_batch_columns
__kernel void norm_batch_columns(SAVED, GIVEN_SUMS, const UINT samples, const UINT channels, const UINT span,
                                 const COMPUTE count, const uint training, const UINT per) {
    const UINT begin = (UINT)get_global_id(0) * per, end = samples - begin < per ? samples : begin + per;
    weight += weight ? weight_at : 0;
    mean += mean_at;
    rstd += rstd_at;
    d_weight += d_weight_at;
    d_bias += d_bias_at;
    for (UINT sample = begin; sample < end; ++sample) {
        const UINT base = sample * channels * span;
        UINT c = 0;
        for (; span == 1 && channels - c >= WIDTH; c += WIDTH) {
            const VCOMPUTE by = LOADC(rstd + c);
            VCOMPUTE v = LOADV(grad + grad_at + base + c);
            if (training) {
                const VCOMPUTE h = (LOADV(x + x_at + base + c) - LOADC(mean + c)) * by;
                v -= LOADC(d_bias + c) / count + h * (LOADC(d_weight + c) / count);
            }
            if (weight) v *= LOADC(weight + c);
            STOREV(v * by, to + to_at + base + c);
        }
        for (; c < channels; ++c) {
            const COMPUTE by = rstd[c], shift = d_bias[c] / count, slope = d_weight[c] / count, w = weight ? weight[c] : 1;
            for (UINT d = base + c * span; d < base + (c + 1) * span; ++d) {
                COMPUTE v = LOAD(grad, grad_at + d);
                if (training) v -= shift + (LOAD(x, x_at + d) - mean[c]) * by * slope;
                STORE(v * w * by, to, to_at + d);
            }
        }
    }
}
#endif

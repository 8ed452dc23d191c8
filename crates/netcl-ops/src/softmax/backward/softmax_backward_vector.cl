// Gradients of softmax, y * (g - sum(g * y)), and of its logarithm, g - exp(y) * sum(g), on processors.
//
//   softmax_backward_vector    work-item i -> rows i * per, ...      1. the sum      2. the result; the row is still in the cache
//
// Compiled with: see vector_sums.cl, whose text stands before this one

#ifdef ALONE
#define KERNEL_softmax_backward_vector
#endif

#ifdef KERNEL_softmax_backward_vector
__kernel void softmax_backward_vector(__global const ELEMENT *g, const ulong g_at, __global const ELEMENT *y,
                                      const ulong y_at, __global ELEMENT *out, const ulong out_at, const UINT rows,
                                      const UINT n, const uint log, const UINT per) {
    const UINT begin = (UINT)get_global_id(0) * per, end = rows - begin < per ? rows : begin + per;
    g += g_at;
    y += y_at;
    out += out_at;
    for (UINT row = begin; row < end; ++row) {
        VCOMPUTE total = (VCOMPUTE)(0), lost = total;
        COMPUTE rest = 0;
#define PRODUCT_VECTOR(d, j) run_[j] += LOADV(g + (d)) * LOADV(y + (d));
#define PRODUCT_ONE(d) run_one += LOAD(g, d) * LOAD(y, d);
#define PLAIN_VECTOR(d, j) run_[j] += LOADV(g + (d));
#define PLAIN_ONE(d) run_one += LOAD(g, d);
        for (UINT from = 0; from < n; from += RUN) {
            const UINT length = n - from < RUN ? n - from : RUN, at = row * n + from;
            SUMS(run_)
            if (log) OVER(at, length, PLAIN_VECTOR, PLAIN_ONE)
            else OVER(at, length, PRODUCT_VECTOR, PRODUCT_ONE)
            FOLD(VCOMPUTE, total, lost, JOINED(run_))
            rest += run_one;
        }
        const COMPUTE all = lanes(total + lost) + rest;
#define RESULT_VECTOR(d, j) { ASK(g + (d) + n); ASK(y + (d) + n); STOREV(LOADV(y + (d)) * (LOADV(g + (d)) - all), out + (d)); }
#define RESULT_ONE(d) STORE(LOAD(y, d) * (LOAD(g, d) - all), out, d);
#define LOG_VECTOR(d, j) STOREV(LOADV(g + (d)) - exp(LOADV(y + (d))) * all, out + (d));
#define LOG_ONE(d) STORE(LOAD(g, d) - exp(LOAD(y, d)) * all, out, d);
        if (log) OVER(row * n, n, LOG_VECTOR, LOG_ONE)
        else OVER(row * n, n, RESULT_VECTOR, RESULT_ONE)
    }
}
#endif

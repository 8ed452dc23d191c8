// Pooling over the last two axes.
//
//   max_pool, avg_pool             work-item i -> result i:          plane, row oh, column ow
//   max_pool_backward, ...         work-item i -> input element i:   plane, row ih, column iw
//
//        input row   . . [x . x . x] . .      window o: elements first, first + step, ... below end
//                          \  ih  /           windows that may cover ih: lo .. hi, a fixed one only if ih is one of its
//                                             elements; gradients are gathered from them in order
//
// Compiled with: ELEMENT, COMPUTE, UINT, INT, LOAD(p, i), STORE(v, p, i): see norm.cl. The defaults make this file compile
// alone.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#ifndef COMPUTE
#define ELEMENT float
#define COMPUTE float
#define UINT uint
#define INT int
#define LOAD(p, i) (p)[i]
#define STORE(v, p, i) (p)[i] = (v)
#define KERNEL_max_pool
#define KERNEL_max_pool_backward
#define KERNEL_avg_pool
#define KERNEL_avg_pool_backward
#endif

typedef struct {
    INT in, out, kern, stride, pad, step;
} Axis;

#define GEOMETRY                                                                                              \
    const UINT items, const INT h_in, const INT h_out, const INT h_kern, const INT h_stride, const INT h_pad, \
    const INT h_step, const INT w_in, const INT w_out, const INT w_kern, const INT w_stride, const INT w_pad, \
    const INT w_step, const uint adaptive
#define AXES                                                            \
    const Axis h = {h_in, h_out, h_kern, h_stride, h_pad, h_step};      \
    const Axis w = {w_in, w_out, w_kern, w_stride, w_pad, w_step};

INT ceil_div(INT a, INT b) { return a > 0 ? (a + b - 1) / b : 0; }

INT window_first(Axis a, INT o, uint adaptive) {
    if (adaptive) return (INT)((long)o * a.in / a.out);
    const INT first = o * a.stride - a.pad;
    return first < 0 ? first + ceil_div(-first, a.step) * a.step : first;
}

INT window_end(Axis a, INT o, uint adaptive) {
    if (adaptive) return (INT)(((long)(o + 1) * a.in + a.out - 1) / a.out);
    return min(a.in, o * a.stride - a.pad + (a.kern - 1) * a.step + 1);
}

INT cover_first(Axis a, INT i, uint adaptive) {
    if (adaptive) return (INT)((long)i * a.out / a.in);
    return ceil_div(i + a.pad - (a.kern - 1) * a.step, a.stride);
}

INT cover_last(Axis a, INT i, uint adaptive) {
    if (adaptive) return (INT)(((long)(i + 1) * a.out + a.in - 1) / a.in) - 1;
    return min(a.out - 1, (i + a.pad) / a.stride);
}

// How many elements a window counts.
INT counted(Axis a, INT o, uint adaptive, uint include_pad) {
    if (adaptive || !include_pad) return window_end(a, o, adaptive) - window_first(a, o, adaptive);
    return min(a.kern, a.in + 2 * a.pad - o * a.stride);
}

#define WINDOW(oh, ow)                                                                             \
    const INT top = window_first(h, oh, adaptive), bottom = window_end(h, oh, adaptive);           \
    const INT left = window_first(w, ow, adaptive), right = window_end(w, ow, adaptive);

#define MAXIMUM(x, oh, ow, o)                                               \
    WINDOW(oh, ow)                                                          \
    COMPUTE best = -INFINITY;                                               \
    INT at = -1;                                                            \
    for (INT r = top; r < bottom; r += h.step)                              \
        for (INT c = left; c < right; c += w.step) {                        \
            const COMPUTE v = LOAD(x, r * w.in + c);                        \
            /* The first of equals; a NaN beats everything. No branch: which one wins cannot be foreseen. */  \
            const int wins = (at < 0) | (v > best) | (v != v);              \
            best = wins ? v : best;                                         \
            at = wins ? r * w.in + c : at;                                  \
        }                                                                   \
    STORE(best, y, y_at + o);                                               \
    place[place_at + o] = (int)at;

#ifdef KERNEL_max_pool
__kernel void max_pool(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, const ulong y_at,
                       __global int *place, const ulong place_at, GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT plane = i / (UINT)(h.out * w.out);
    const INT oh = (INT)(i / (UINT)w.out % (UINT)h.out), ow = (INT)(i % (UINT)w.out);
    x += x_at + (ulong)plane * (ulong)(h.in * w.in);
    MAXIMUM(x, oh, ow, i)
}
#endif

#ifdef KERNEL_max_pool_backward
__kernel void max_pool_backward(__global const ELEMENT *grad, const ulong grad_at, __global const int *place,
                                const ulong place_at, __global ELEMENT *to, const ulong to_at, GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT plane = i / (UINT)(h.in * w.in);
    const INT ih = (INT)(i / (UINT)w.in % (UINT)h.in), iw = (INT)(i % (UINT)w.in);
    const ulong first = (ulong)plane * (ulong)(h.out * w.out);
    const INT bottom = cover_last(h, ih, adaptive), left = cover_first(w, iw, adaptive);
    const INT right = cover_last(w, iw, adaptive);
    const int here = (int)(ih * w.in + iw);
    COMPUTE total = 0;
    for (INT r = cover_first(h, ih, adaptive); r <= bottom; ++r)
        for (INT c = left; c <= right; ++c)
            if (place[place_at + first + r * w.out + c] == here) total += LOAD(grad, grad_at + first + r * w.out + c);
    STORE(total, to, to_at + i);
}
#endif

// The divisor of a window; `divisor` itself unless it is 0.
#define SHARE(r, c) \
    (divisor > 0 ? divisor : (COMPUTE)(counted(h, r, adaptive, include_pad) * counted(w, c, adaptive, include_pad)))

#define AVERAGE(x, oh, ow, o)                                                  \
    WINDOW(oh, ow)                                                             \
    COMPUTE total = 0;                                                         \
    for (INT r = top; r < bottom; ++r) {                                       \
        /* Row by row: sums of sums round less than one long one. */           \
        COMPUTE row = 0;                                                       \
        for (INT c = left; c < right; ++c) row += LOAD(x, r * w.in + c);       \
        total += row;                                                          \
    }                                                                          \
    STORE(total / SHARE(oh, ow), y, y_at + o);

#ifdef KERNEL_avg_pool
__kernel void avg_pool(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, const ulong y_at, GEOMETRY,
                       const uint include_pad, const COMPUTE divisor) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT plane = i / (UINT)(h.out * w.out);
    const INT oh = (INT)(i / (UINT)w.out % (UINT)h.out), ow = (INT)(i % (UINT)w.out);
    x += x_at + (ulong)plane * (ulong)(h.in * w.in);
    AVERAGE(x, oh, ow, i)
}
#endif

#ifdef KERNEL_avg_pool_backward
__kernel void avg_pool_backward(__global const ELEMENT *grad, const ulong grad_at, __global ELEMENT *to,
                                const ulong to_at, GEOMETRY, const uint include_pad, const COMPUTE divisor) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT plane = i / (UINT)(h.in * w.in);
    const INT ih = (INT)(i / (UINT)w.in % (UINT)h.in), iw = (INT)(i % (UINT)w.in);
    const ulong first = grad_at + (ulong)plane * (ulong)(h.out * w.out);
    const INT bottom = cover_last(h, ih, adaptive), left = cover_first(w, iw, adaptive);
    const INT right = cover_last(w, iw, adaptive);
    COMPUTE total = 0;
    for (INT r = cover_first(h, ih, adaptive); r <= bottom; ++r)
        for (INT c = left; c <= right; ++c) total += LOAD(grad, first + r * w.out + c) / SHARE(r, c);
    STORE(total, to, to_at + i);
}
#endif


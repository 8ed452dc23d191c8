// Pooling over the last two axes.
//
//   max_pool, avg_pool             work-item i -> result i:          plane, row oh, column ow
//   max_pool_backward, ...         work-item i -> input element i:   plane, row ih, column iw
//   ..._planes                     work-item i -> plane i, for processors: no divisions to find a place, and gradients are
//                                  spread instead of gathered; the sums are the same to the bit
//   max_pool_vector                max_pool_planes for fixed windows, eight windows of a row at a time where they lie inside it
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
#define KERNEL_max_pool_planes
#define KERNEL_max_pool_vector
#define KERNEL_max_pool_backward_planes
#define KERNEL_avg_pool_planes
#define KERNEL_avg_pool_backward_planes
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

#ifdef KERNEL_max_pool_planes
__kernel void max_pool_planes(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, const ulong y_at,
                              __global int *place, const ulong place_at, GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    x += x_at + (ulong)i * (ulong)(h.in * w.in);
    const ulong first = (ulong)i * (ulong)(h.out * w.out);
    for (INT oh = 0; oh < h.out; ++oh)
        for (INT ow = 0; ow < w.out; ++ow) {
            MAXIMUM(x, oh, ow, first + oh * w.out + ow)
        }
}
#endif

#ifdef KERNEL_max_pool_vector
#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
#define PLAIN_float 1
#define EIGHT(first, by)                                                                                            \
    (float8)(LOAD(x, first), LOAD(x, (first) + (by)), LOAD(x, (first) + 2 * (by)), LOAD(x, (first) + 3 * (by)),     \
             LOAD(x, (first) + 4 * (by)), LOAD(x, (first) + 5 * (by)), LOAD(x, (first) + 6 * (by)),                 \
             LOAD(x, (first) + 7 * (by)))

// COMPUTE is float.
__kernel void max_pool_vector(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, ulong y_at,
                              __global int *place, ulong place_at, GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    x += x_at + (ulong)i * (ulong)(h.in * w.in);
    y_at += (ulong)i * (ulong)(h.out * w.out);
    place_at += (ulong)i * (ulong)(h.out * w.out);
    // The windows that lie inside a row, if there are eight of them.
    const INT from = (w.pad + w.stride - 1) / w.stride, room = w.in + w.pad - (w.kern - 1) * w.step - 1;
    const INT last = room < 0 ? 0 : min(w.out, room / w.stride + 1);
    const INT to = last - from >= 8 ? last : from;
    for (INT oh = 0; oh < h.out; ++oh) {
        const INT top = window_first(h, oh, adaptive), bottom = window_end(h, oh, adaptive);
        for (INT next = from; next < to; next += 8) {
            // The last eight may overlap those before.
            const INT ow = min(next, to - 8);
            float8 best = (float8)(-INFINITY);
            int8 at = (int8)(-1);
            for (INT r = top; r < bottom; r += h.step)
                for (INT k = 0; k < w.kern; ++k) {
                    const INT first = r * w.in + ow * w.stride - w.pad + k * w.step;
                    float8 v;
#if JOINED(PLAIN_, ELEMENT)
                    if (w.stride == 1) v = vload8(0, x + first);
                    // Sixteen elements that all lie in the row: more windows or another element follow, or one lies before.
                    else if (w.stride == 2 && (ow + 8 < to || k + 1 < w.kern)) v = vload16(0, x + first).even;
                    else if (w.stride == 2 && k > 0) v = vload16(0, x + first - 1).odd;
                    else v = EIGHT(first, w.stride);
#else
                    v = EIGHT(first, w.stride);
#endif
                    const int8 wins = (at < 0) | (v > best) | (v != v);
                    best = wins ? v : best;
                    at = wins ? (int)first + (int)w.stride * (int8)(0, 1, 2, 3, 4, 5, 6, 7) : at;
                }
            const ulong o = (ulong)(oh * w.out + ow);
#if JOINED(PLAIN_, ELEMENT)
            vstore8(best, 0, y + y_at + o);
#else
            const float *found = (const float *)&best;
            for (uint j = 0; j < 8; ++j) STORE(found[j], y, y_at + o + j);
#endif
            vstore8(at, 0, place + place_at + o);
        }
        for (INT ow = 0; ow < w.out; ++ow) {
            if (ow == from) ow = to;
            if (ow >= w.out) break;
            MAXIMUM(x, oh, ow, oh * w.out + ow)
        }
    }
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

#ifdef KERNEL_max_pool_backward_planes
__kernel void max_pool_backward_planes(__global const ELEMENT *grad, const ulong grad_at, __global const int *place,
                                       const ulong place_at, __global ELEMENT *to, const ulong to_at, GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const INT area = h.in * w.in, results = h.out * w.out;
    grad += grad_at + (ulong)i * (ulong)results;
    place += place_at + (ulong)i * (ulong)results;
    to += to_at + (ulong)i * (ulong)area;
    for (INT e = 0; e < area; ++e) STORE((COMPUTE)0, to, e);
    for (INT o = 0; o < results; ++o) {
        const INT at = (INT)place[o];
        // Places may be the user's: none of them is followed out of the plane.
        if (at >= 0 && at < area) STORE(LOAD(to, at) + LOAD(grad, o), to, at);
    }
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

#ifdef KERNEL_avg_pool_planes
__kernel void avg_pool_planes(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, const ulong y_at,
                              GEOMETRY, const uint include_pad, const COMPUTE divisor) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    x += x_at + (ulong)i * (ulong)(h.in * w.in);
    const ulong first = (ulong)i * (ulong)(h.out * w.out);
    for (INT oh = 0; oh < h.out; ++oh)
        for (INT ow = 0; ow < w.out; ++ow) {
            AVERAGE(x, oh, ow, first + oh * w.out + ow)
        }
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

#ifdef KERNEL_avg_pool_backward_planes
__kernel void avg_pool_backward_planes(__global const ELEMENT *grad, const ulong grad_at, __global ELEMENT *to,
                                       const ulong to_at, GEOMETRY, const uint include_pad, const COMPUTE divisor) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const INT area = h.in * w.in;
    grad += grad_at + (ulong)i * (ulong)(h.out * w.out);
    to += to_at + (ulong)i * (ulong)area;
    for (INT e = 0; e < area; ++e) STORE((COMPUTE)0, to, e);
    for (INT oh = 0; oh < h.out; ++oh)
        for (INT ow = 0; ow < w.out; ++ow) {
            WINDOW(oh, ow)
            const COMPUTE share = LOAD(grad, oh * w.out + ow) / SHARE(oh, ow);
            for (INT r = top; r < bottom; ++r)
                for (INT c = left; c < right; ++c) STORE(LOAD(to, r * w.in + c) + share, to, r * w.in + c);
        }
}
#endif

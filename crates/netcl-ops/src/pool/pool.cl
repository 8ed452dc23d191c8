// Pooling over the last two axes.
//
//   max_pool, avg_pool             work-item i -> result i:          plane, row oh, column ow
//   max_pool_backward, ...         work-item i -> input element i:   plane, row ih, column iw
//
//        input row   . . [x . x . x] . .      window o: elements first, first + step, ... below end
//                          \  ih  /           windows that may cover ih: lo .. hi, a fixed one only if ih is one of its
//                                             elements; gradients are gathered from them in order
//
// `beside` planes lie side by side, element by element: 1, or the channels of channels-last images. Planes are then those of an image.

typedef struct {
    INT in, out, kern, stride, pad, step;
} Axis;

#define GEOMETRY                                                                                              \
    const UINT items, const INT h_in, const INT h_out, const INT h_kern, const INT h_stride, const INT h_pad, \
    const INT h_step, const INT w_in, const INT w_out, const INT w_kern, const INT w_stride, const INT w_pad, \
    const INT w_step, const uint adaptive, const UINT beside
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
    INT found = -1;                                                         \
    for (INT r = top; r < bottom; r += h.step)                              \
        for (INT c = left; c < right; c += w.step) {                        \
            const COMPUTE v = LOAD(x, (UINT)(r * w.in + c) * beside);         \
            /* The first of equals; a NaN beats everything. No branch: which one wins cannot be foreseen. */  \
            const int wins = (found < 0) | (v > best) | (v != v);              \
            best = wins ? v : best;                                         \
            found = wins ? r * w.in + c : found;                            \
        }                                                                   \
    STORE(best, y, y_at + o);                                               \
    place[place_at + o] = (int)found;

#ifdef KERNEL_max_pool
__kernel void max_pool(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, const ulong y_at,
                       __global int *place, const ulong place_at, GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT at = i / beside, lane = i % beside, plane = at / (UINT)(h.out * w.out);
    const INT oh = (INT)(at / (UINT)w.out % (UINT)h.out), ow = (INT)(at % (UINT)w.out);
    x += x_at + (ulong)plane * (ulong)(h.in * w.in) * beside + lane;
    MAXIMUM(x, oh, ow, i)
}
#endif

#ifdef KERNEL_max_pool_backward
__kernel void max_pool_backward(__global const ELEMENT *grad, const ulong grad_at, __global const int *place,
                                const ulong place_at, __global ELEMENT *to, const ulong to_at, GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT at = i / beside, lane = i % beside, plane = at / (UINT)(h.in * w.in);
    const INT ih = (INT)(at / (UINT)w.in % (UINT)h.in), iw = (INT)(at % (UINT)w.in);
    const ulong first = (ulong)plane * (ulong)(h.out * w.out) * beside + lane;
    const INT bottom = cover_last(h, ih, adaptive), left = cover_first(w, iw, adaptive);
    const INT right = cover_last(w, iw, adaptive);
    const int here = (int)(ih * w.in + iw);
    COMPUTE total = 0;
    for (INT r = cover_first(h, ih, adaptive); r <= bottom; ++r)
        for (INT c = left; c <= right; ++c) {
            const ulong from = first + (ulong)(r * w.out + c) * beside;
            if (place[place_at + from] == here) total += LOAD(grad, grad_at + from);
        }
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
        for (INT c = left; c < right; ++c) row += LOAD(x, (UINT)(r * w.in + c) * beside); \
        total += row;                                                          \
    }                                                                          \
    STORE(total / SHARE(oh, ow), y, y_at + o);

#ifdef KERNEL_avg_pool
__kernel void avg_pool(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, const ulong y_at, GEOMETRY,
                       const uint include_pad, const COMPUTE divisor) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT at = i / beside, lane = i % beside, plane = at / (UINT)(h.out * w.out);
    const INT oh = (INT)(at / (UINT)w.out % (UINT)h.out), ow = (INT)(at % (UINT)w.out);
    x += x_at + (ulong)plane * (ulong)(h.in * w.in) * beside + lane;
    AVERAGE(x, oh, ow, i)
}
#endif

#ifdef KERNEL_avg_pool_backward
__kernel void avg_pool_backward(__global const ELEMENT *grad, const ulong grad_at, __global ELEMENT *to,
                                const ulong to_at, GEOMETRY, const uint include_pad, const COMPUTE divisor) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT at = i / beside, lane = i % beside, plane = at / (UINT)(h.in * w.in);
    const INT ih = (INT)(at / (UINT)w.in % (UINT)h.in), iw = (INT)(at % (UINT)w.in);
    const ulong first = grad_at + (ulong)plane * (ulong)(h.out * w.out) * beside + lane;
    const INT bottom = cover_last(h, ih, adaptive), left = cover_first(w, iw, adaptive);
    const INT right = cover_last(w, iw, adaptive);
    COMPUTE total = 0;
    for (INT r = cover_first(h, ih, adaptive); r <= bottom; ++r)
        for (INT c = left; c <= right; ++c) total += LOAD(grad, first + (ulong)(r * w.out + c) * beside) / SHARE(r, c);
    STORE(total, to, to_at + i);
}
#endif


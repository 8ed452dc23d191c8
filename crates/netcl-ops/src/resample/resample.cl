// Resampling of the last two axes.
//
//   resample            work-item i -> result i
//   resample_backward   work-item i -> input element i, which gathers from the results it went into:
//
//       input     |    0    |    1    |    2    |
//                        \   /   \   /              each result lies between two neighbours; `source` is the first of them
//       results   | 0 | 1 | 2 | 3 | 4 | 5 |         and never falls, so the results of an element are neighbours as well
//
// MODE 0: nearest, 1: bilinear by centres, 2: bilinear by corners. Positions are computed as on the native CPU, rounding for
// rounding.

typedef struct {
    INT in, out;
    COMPUTE scale;
} Axis;

#define GEOMETRY                                                                                                    \
    const UINT items, const INT h_in, const INT h_out, const COMPUTE h_scale, const INT w_in, const INT w_out,      \
    const COMPUTE w_scale, const uint mode
#define AXES                                    \
    const Axis h = {h_in, h_out, h_scale};      \
    const Axis w = {w_in, w_out, w_scale};

// The first of the two elements a result lies between, and its distance from it.
INT source(Axis a, INT o, uint mode, COMPUTE *share) {
    COMPUTE at = (COMPUTE)o;
    if (mode == 1) {
        const COMPUTE scaled = (at + 0.5f) * a.scale;
        at = scaled - 0.5f;
        if (at < 0) at = 0;
    } else {
        at = at * a.scale;
    }
    const COMPUTE whole = mode == 0 ? (COMPUTE)floor((float)at) : floor(at);
    const INT first = min((INT)whole, a.in - 1);
    const COMPUTE rest = at - (COMPUTE)first;
    *share = mode == 0 ? 0 : rest > 1 ? 1 : rest;
    return first;
}

// The first result whose source is not before `i`.
INT first_result(Axis a, INT i, uint mode) {
    COMPUTE share;
    if (i <= 0) return 0;
    const COMPUTE guess = a.scale > 0 ? (COMPUTE)i / a.scale : 0;
    INT o = guess < (COMPUTE)a.out ? (INT)guess : a.out;
    while (o > 0 && source(a, o - 1, mode, &share) >= i) --o;
    while (o < a.out && source(a, o, mode, &share) < i) ++o;
    return o;
}

#ifdef KERNEL_resample
__kernel void resample(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, const ulong y_at, GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT plane = i / (UINT)(h.out * w.out);
    const INT oh = (INT)(i / (UINT)w.out % (UINT)h.out), ow = (INT)(i % (UINT)w.out);
    x += x_at + (ulong)plane * (ulong)(h.in * w.in);
    COMPUTE down, right;
    const INT r0 = source(h, oh, mode, &down), c0 = source(w, ow, mode, &right);
    COMPUTE v = LOAD(x, r0 * w.in + c0);
    if (mode != 0) {
        const INT r1 = min(r0 + 1, h.in - 1), c1 = min(c0 + 1, w.in - 1);
        const COMPUTE left = v * (1 - down) + LOAD(x, r1 * w.in + c0) * down;
        const COMPUTE next = LOAD(x, r0 * w.in + c1) * (1 - down) + LOAD(x, r1 * w.in + c1) * down;
        v = left * (1 - right) + next * right;
    }
    STORE(v, y, y_at + i);
}
#endif

// The part of element i in a result between `first` and its neighbour.
COMPUTE part_of(Axis a, INT i, INT first, COMPUTE share) {
    COMPUTE part = 0;
    if (first == i) part += 1 - share;
    if (min(first + 1, a.in - 1) == i) part += share;
    return part;
}

#ifdef KERNEL_resample_backward
__kernel void resample_backward(__global const ELEMENT *grad, const ulong grad_at, __global ELEMENT *to,
                                const ulong to_at, GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    const UINT plane = i / (UINT)(h.in * w.in);
    const INT ih = (INT)(i / (UINT)w.in % (UINT)h.in), iw = (INT)(i % (UINT)w.in);
    const ulong first = grad_at + (ulong)plane * (ulong)(h.out * w.out);
    // A result's source is the element itself or, between two, the one before it.
    const INT before = mode == 0 ? 0 : 1;
    const INT left = first_result(w, iw - before, mode);
    COMPUTE total = 0, down, right;
    for (INT r = first_result(h, ih - before, mode); r < h.out; ++r) {
        const INT r0 = source(h, r, mode, &down);
        if (r0 > ih) break;
        COMPUTE row = 0;
        for (INT c = left; c < w.out; ++c) {
            const INT c0 = source(w, c, mode, &right);
            if (c0 > iw) break;
            row += LOAD(grad, first + r * w.out + c) * part_of(w, iw, c0, right);
        }
        total += row * part_of(h, ih, r0, down);
    }
    STORE(total, to, to_at + i);
}
#endif

// Softmax on processors: work-items that need nobody else, and vectors along the axis that lies densely in memory.
//
//   softmax_rows      a line lies densely             work-item i -> lines i * per, ...
//
//      [VVVV VVVV VVVV vv t]                          four vectors at a time, then single ones (v), then elements (t)
//
//   softmax_columns   lines lie side by side          work-item i -> tiles i * per, ...
//
//        WIDTH  WIDTH  (TILE of them)                 vectors across neighbouring lines; what is left beside whole
//      +------+------+                                tiles goes in single vectors, then in single lines
//      |  |   |  |   |
//      |  v   |  v   |
//      +------+------+
//
//   1. maximum     2. exponentials and their sum     3. scaling
//
// Step 2 is the only one that computes more than it moves, so blocks of four vectors go through one loop that does all three:
//
//      row o - 1: step 3     o: step 2     o + 1: step 1     o + 2 and the result of o + 1: asked for
//
// No step then waits for the sum or the maximum of a line that has just ended. Loops over a few vectors are unrolled by order: their
// arrays would live in memory otherwise.
// A NaN among the elements needs no care in step 1: it makes the sum NaN.
//
// Compiled with: COMPUTE, UINT, KEPT_PARAMS, KEPT(o), LOG: see softmax.cl
//                VCOMPUTE, WIDTH            a vector of COMPUTE and its length
//                OWN_EXP                    1: floats, with VINT as many 32-bit integers as a vector has lanes
//                LOAD1(d), LOADV(d)         the element or vector that begins d elements behind the line's first
//                STORE1(v, d), STOREV(v, d) the same of the output
//                X_STEP, Y_STEP             the distance between the elements of a line, of type STEP
//                KEEP                       1: exponentials wait in the output for their scaling. 0: computed again, where
//                                           the output would round them
// The defaults make this file compile alone: rows of a dense matrix.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#ifndef COMPUTE
#define COMPUTE float
#define VCOMPUTE float16
#define WIDTH 16
#define VINT int16
#define OWN_EXP 1
#define UINT uint
#define LOG 0
#define KEEP 1
#define KEPT_PARAMS __global const float *x, __global float *y,
#define KEPT(o) __global const float *x_o = x + (o) * n; __global float *y_o = y + (o) * n
#define LOAD1(d) x_o[d]
#define LOADV(d) vload16(0, x_o + (d))
#define STORE1(v, d) y_o[d] = (v)
typedef float16 LOOSE __attribute__((aligned(4)));
#define STOREV(v, d) *(__global LOOSE *)(y_o + (d)) = (v)
#define X_STEP 1
#define Y_STEP 1
#define STEP int
#endif

#define UNROLL _Pragma("unroll")
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

#if OWN_EXP
// Fused where the device does that fast: the polynomial is exact enough either way.
#pragma OPENCL FP_CONTRACT ON
// 2^64 exp(x) of x <= 0, within a few ulp: x = k ln 2 + r, a polynomial for exp(r), and k in the exponent. Whatever is not 0 after
// the scaling is a normal number before it. Built-in functions of vectors are often loops over their lanes.
#define EXP_UNIT 18446744073709551616.0f
// x - k ln 2. A fused product is exact, and what the constant lacks is 3 % of an ulp of the result for each k; a rounded one needs a
// constant that leaves room for k, and its rest.
#ifdef __FMA__
#define REDUCED(x, k) (k * -0.69314718f + x)
#else
#define REDUCED(x, k) (k * 2.12194440e-4f + (k * -0.693359375f + x))
#endif
#define DEFINE_EXP(name, T, I)                                                                                     \
    T name(T x) {                                                                                                  \
        /* The low bits of `shifted` are k + 64 as an exponent is written. */                                      \
        const T magic = (T)(12582912.0f + 127 + 64), c = (x < -105.0f) ? (T)(-105.0f) : x;                         \
        const T shifted = c * 1.44269504f + magic, k = shifted - magic;                                            \
        const T r = REDUCED(c, k);                                                                                 \
        const T p = (((0.008290273f * r + 0.04189816f) * r + 0.16667639f) * r + 0.49999148f) * r + 0.9999997f;     \
        return (p * r + 1.0f) * PASTE(as_, T)(PASTE(as_, I)(shifted) << 23);                                       \
    }
DEFINE_EXP(exp1, COMPUTE, int)
DEFINE_EXP(expv, VCOMPUTE, VINT)
#pragma OPENCL FP_CONTRACT OFF
#else
#define EXP_UNIT 1
#define exp1(x) exp(x)
#define expv(x) exp(x)
#endif

#define HIGHER(a, b) ((b) > (a) ? (b) : (a))
COMPUTE higher(COMPUTE a, COMPUTE b) { return HIGHER(a, b); }
VCOMPUTE vhigher(VCOMPUTE a, VCOMPUTE b) { return HIGHER(a, b); }

// What each addition rounds off is carried along (Knuth's two-sum).
#define FOLD(T, total, lost, v)                                    \
    {                                                              \
        const T v_ = (v), sum_ = total + v_, part_ = sum_ - total; \
        lost += (total - (sum_ - part_)) + (v_ - part_);           \
        total = sum_;                                              \
    }

// The lanes of a vector are joined by halves: four steps, where a loop over them has sixteen, each of which waits for the one before.
#define EIGHT PASTE(COMPUTE, 8)
#define FOUR PASTE(COMPUTE, 4)
#define TWO PASTE(COMPUTE, 2)
COMPUTE highest(VCOMPUTE v) {
#if WIDTH == 16
    const EIGHT eight = HIGHER(v.lo, v.hi);
#else
    const EIGHT eight = v;
#endif
    const FOUR four = HIGHER(eight.lo, eight.hi);
    const TWO two = HIGHER(four.lo, four.hi);
    return HIGHER(two.lo, two.hi);
}

// The same of sums and of what they lost.
#define JOIN(T, name, of)                                      \
    T name = of.lo, name##_lost = of##_lost.lo + of##_lost.hi; \
    FOLD(T, name, name##_lost, of.hi)

// Nothing that the language has asks processors for memory: its own prefetch is empty in the drivers that were looked at. (NVIDIA's
// compiler knows the function, but not for pointers of this version of the language.)
#if defined(__has_builtin) && !defined(__NV_CL_C_VERSION)
#if __has_builtin(__builtin_prefetch)
#define ASK(p, to_write) __builtin_prefetch((const void *)(size_t)(p), to_write)
#endif
#endif
#ifndef ASK
#define ASK(p, to_write)
#endif

// The last step for one element or vector.
#if LOG
#define SCALED(exp_, x, kept, top, last) (((x) - (top)) - (last))
#define DIVISOR(total) log((total) / EXP_UNIT)
#elif KEEP
#define SCALED(exp_, x, kept, top, last) ((kept) * (last))
#define DIVISOR(total) (1 / (total))
#else
#define SCALED(exp_, x, kept, top, last) (exp_((x) - (top)) * (last))
#define DIVISOR(total) (1 / (total))
#endif
#if KEEP
#define PUT1(v, d) STORE1(v, d)
#define PUTV(v, d) STOREV(v, d)
#define KEPT1(d) y_o[d]
#define KEPTV(d) PASTE(vload, WIDTH)(0, y_o + (d))
#else
#define PUT1(v, d)
#define PUTV(v, d)
#endif

// Elements whose exponentials are added up without a look at what that rounds off.
#define RUN (32 * WIDTH)

// Step 1 for four vectors, which begin `at` elements behind x_o, ...
#define LOOK4(tops, at) UNROLL for (uint j = 0; j < 4; ++j) tops[j] = vhigher(tops[j], LOADV((at) + (STEP)(j * WIDTH)))
// ... for what they leave over of a line, ...
#define TOP(top, tops, at)                                                                        \
    for (UINT r = fours; r < ones; r += WIDTH) tops[0] = vhigher(tops[0], LOADV((at) + (STEP)r)); \
    top = highest(vhigher(vhigher(tops[0], tops[1]), vhigher(tops[2], tops[3])));                 \
    for (UINT r = ones; r < n; ++r) top = higher(top, LOAD1((at) + (STEP)r))
// ... and step 3.
#define SCALE(at_x, at_y, top, last) STOREV(SCALED(expv, LOADV(at_x), KEPTV(at_y), top, last), at_y)
#define SCALE4(at_x, at_y, top, last) \
    UNROLL for (uint j = 0; j < 4; ++j) SCALE((at_x) + (STEP)(j * WIDTH), (at_y) + (STEP)(j * WIDTH), top, last)
#define LOWEST {(VCOMPUTE)(-INFINITY), (VCOMPUTE)(-INFINITY), (VCOMPUTE)(-INFINITY), (VCOMPUTE)(-INFINITY)}

__kernel void softmax_rows(KEPT_PARAMS const UINT count, const UINT n, const UINT per) {
    const UINT first = (UINT)get_global_id(0) * per, end = first + per < count ? first + per : count;
    const UINT fours = n / (4 * WIDTH) * (4 * WIDTH), ones = n / WIDTH * WIDTH;
    if (first >= end) return;
    COMPUTE top, top_before = 0, last_before = 0;
    STEP x_before = 0, y_before = 0;
    {
        KEPT(first);
        VCOMPUTE tops[4] = LOWEST;
        for (UINT r = 0; r < fours; r += 4 * WIDTH) LOOK4(tops, (STEP)r);
        TOP(top, tops, 0);
    }
    for (UINT o = first; o < end; ++o) {
        size_t x_next, y_next;
        {
            KEPT((o + 1 < end ? o + 1 : o));
            x_next = (size_t)x_o, y_next = (size_t)y_o;
        }
        KEPT(o);
        const STEP to_x = (STEP)((ptrdiff_t)(x_next - (size_t)x_o) / (ptrdiff_t)sizeof(*x_o));
        const STEP to_y = (STEP)((ptrdiff_t)(y_next - (size_t)y_o) / (ptrdiff_t)sizeof(*y_o));
        VCOMPUTE tops[4] = LOWEST, all = (VCOMPUTE)(0), all_lost = (VCOMPUTE)(0);
        for (UINT run = 0; run < fours; run += RUN) {
            const UINT run_end = fours - run < RUN ? fours : run + RUN;
            VCOMPUTE sum = (VCOMPUTE)(0);
            for (UINT r = run; r < run_end; r += 4 * WIDTH) {
                VCOMPUTE e[4];
                UNROLL for (uint j = 0; j < 4; ++j) {
                    e[j] = expv(LOADV(r + j * WIDTH) - top);
                    PUTV(e[j], r + j * WIDTH);
                    ASK(x_next + (to_x + (STEP)(r + j * WIDTH)) * sizeof(*x_o), 0);
                    ASK(y_next + (r + j * WIDTH) * sizeof(*y_o), 1);
                }
                LOOK4(tops, to_x + (STEP)r);
                if (o > first) SCALE4(x_before + (STEP)r, y_before + (STEP)r, top_before, last_before);
                sum += (e[0] + e[1]) + (e[2] + e[3]);
            }
            FOLD(VCOMPUTE, all, all_lost, sum)
        }
        for (UINT r = fours; r < ones; r += WIDTH) {
            const VCOMPUTE e = expv(LOADV(r) - top);
            PUTV(e, r);
            FOLD(VCOMPUTE, all, all_lost, e)
        }
#if WIDTH == 16
        JOIN(EIGHT, eight, all)
#else
        const EIGHT eight = all, eight_lost = all_lost;
#endif
        JOIN(FOUR, four, eight)
        JOIN(TWO, two, four)
        JOIN(COMPUTE, total, two)
        for (UINT r = ones; r < n; ++r) {
            const COMPUTE e = exp1(LOAD1(r) - top);
            PUT1(e, r);
            FOLD(COMPUTE, total, total_lost, e)
        }
        total += total_lost;

        // The fours wait for the next line's loop.
        const COMPUTE last = DIVISOR(total);
        for (UINT r = fours; r < ones; r += WIDTH) SCALE((STEP)r, (STEP)r, top, last);
        for (UINT r = ones; r < n; ++r) STORE1(SCALED(exp1, LOAD1(r), KEPT1(r), top, last), r);
        x_before = -to_x, y_before = -to_y;
        top_before = top, last_before = last;
        TOP(top, tops, to_x);
    }
    KEPT((end - 1));
    for (UINT r = 0; r < fours; r += 4 * WIDTH) SCALE4((STEP)r, (STEP)r, top_before, last_before);
}

// K vectors (or lines) of type T, each across `width` lines, from line c of the tile on.
#define COLUMNS(T, K, width, load, store, put, kept, exp_, c)                                                          \
    {                                                                                                                  \
        T top[K], total[K], lost[K];                                                                                   \
        UNROLL for (uint k = 0; k < K; ++k) { top[k] = (T)(-INFINITY); total[k] = lost[k] = (T)(0); }                  \
        for (UINT r = 0; r < n; ++r)                                                                                   \
            UNROLL for (uint k = 0; k < K; ++k) {                                                                      \
                const T v = load((STEP)r * X_STEP + (STEP)((c) + k * width));                                          \
                top[k] = HIGHER(top[k], v);                                                                            \
            }                                                                                                          \
        for (UINT r = 0; r < n; ++r)                                                                                   \
            UNROLL for (uint k = 0; k < K; ++k) {                                                                      \
                const T e = exp_(load((STEP)r * X_STEP + (STEP)((c) + k * width)) - top[k]);                           \
                put(e, (STEP)r * Y_STEP + (STEP)((c) + k * width));                                                    \
                FOLD(T, total[k], lost[k], e)                                                                          \
            }                                                                                                          \
        UNROLL for (uint k = 0; k < K; ++k) total[k] = DIVISOR(total[k] + lost[k]);                                    \
        for (UINT r = 0; r < n; ++r)                                                                                   \
            UNROLL for (uint k = 0; k < K; ++k) {                                                                      \
                const STEP to = (STEP)r * Y_STEP + (STEP)((c) + k * width);                                            \
                store(SCALED(exp_, load((STEP)r * X_STEP + (STEP)((c) + k * width)), kept(to), top[k], total[k]), to); \
            }                                                                                                          \
    }

// Vectors of a tile.
#define TILE 4

__kernel void softmax_columns(KEPT_PARAMS const UINT count, const UINT n, const UINT per, const UINT dense) {
    const UINT tiles = (dense + TILE * WIDTH - 1) / (TILE * WIDTH), all = count / dense * tiles;
    const UINT first = (UINT)get_global_id(0) * per;
    const UINT last = first + per < all ? first + per : all;
    for (UINT b = first; b < last; ++b) {
        const UINT column = b % tiles * (TILE * WIDTH);
        const UINT o = b / tiles * dense + column;
        const UINT width = dense - column < TILE * WIDTH ? dense - column : TILE * WIDTH;
        KEPT(o);
        UINT c = 0;
        if (width == TILE * WIDTH) {
            COLUMNS(VCOMPUTE, TILE, WIDTH, LOADV, STOREV, PUTV, KEPTV, expv, 0)
            c = TILE * WIDTH;
        }
        for (; width - c >= WIDTH; c += WIDTH) COLUMNS(VCOMPUTE, 1, WIDTH, LOADV, STOREV, PUTV, KEPTV, expv, c)
        for (; c < width; ++c) COLUMNS(COMPUTE, 1, 1, LOAD1, STORE1, PUT1, KEPT1, exp1, c)
    }
}

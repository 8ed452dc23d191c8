// Reductions on processors: work-items that need nobody else, and vectors along the axis that lies densely in memory.
//
//   reduce_rows      the reduced axis is dense        work-item (i, s) -> results i * per, ..., part s of their elements
//
//            part 0              part 1               one vector accumulator; eight vectors at a time are added up as
//      o   [VVVVVVVV VVVVVVVV|VVVVVVVV VVVV vvv t]    a tree first, then single vectors (v), then single elements (t)
//      o+1 [VVVVVVVV VVVVVVVV|VVVVVVVV VVVV vvv t]
//
//   reduce_columns   the results are dense            work-item (i, s) -> tiles i * per, ..., part s of their elements
//
//               WIDTH  WIDTH  WIDTH  WIDTH  (TILE of them)
//             +------+------+------+------+           an accumulator per vector of neighbouring results; eight rows at a
//      part 0 |  |   |  |   |  |   |  |   |           time are added up first. What is left of a line of results beside
//             |  v   |  v   |  v   |  v   |           whole tiles goes in single vectors, then in single columns.
//             +------+------+------+------+
//      part 1 |      |      |      |      |
//
//   reduce_join      combines the parts, if there are several (PARTIAL): partial[s][result]
//
// Sums carry what each addition rounds off. No order depends on timing.
//
// Compiled with: COMPUTE, UINT, OP (0 to 3), INPUT_PARAMS, KEPT_PARAMS, OUTPUT_PARAMS, KEPT(o), RESULT(a, o): see reduce.cl
//                VCOMPUTE, WIDTH  a vector of COMPUTE and its length
//                PLACE(r)         declares where element r of the result lies
//                VALUE(v, d)      sets v to the prologue's value d elements further along the dense axis
//                VVALUE(v, d)     the same for a vector
//                PARTIAL          1 where several parts are combined by reduce_join
// The defaults make this file compile alone: the sums of the rows of a matrix.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#ifndef COMPUTE
#define COMPUTE float
#define VCOMPUTE float16
#define WIDTH 16
#define UINT uint
#define OP 0
#define PARTIAL 0
#define INPUT_PARAMS __global const float *x,
#define KEPT_PARAMS
#define OUTPUT_PARAMS __global float *y,
#define KEPT(o) __global const float *x_o = x + (o) * n
#define PLACE(r) __global const float *x_p = x_o + (r)
#define VALUE(v, d) v = x_p[d]
#define VVALUE(v, d) v = vload16(0, x_p + (d))
#define RESULT(a, o) y[o] = (a)
#endif

// For scalars and vectors alike.
#if OP == 0
#define IDENTITY ((COMPUTE)0)
#define JOIN(a, b) ((a) + (b))
#define FOLD(T, acc, lost, v)                                         \
    {                                                                 \
        const T v_ = (v), sum_ = acc + v_, part_ = sum_ - acc;        \
        lost += (acc - (sum_ - part_)) + (v_ - part_);                \
        acc = sum_;                                                   \
    }
// An infinite sum has lost nothing (the formula above says NaN).
#define SETTLE(T, acc, lost) acc += isfinite(acc) ? lost : (T)(0)
#else
#if OP == 1
#define IDENTITY ((COMPUTE)1)
#define JOIN(a, b) ((a) * (b))
#elif OP == 2
#define IDENTITY ((COMPUTE)(-INFINITY))
#define JOIN(a, b) ((((a) >= (b)) | ((a) != (a))) ? (a) : (b))
#else
#define IDENTITY ((COMPUTE)INFINITY)
#define JOIN(a, b) ((((a) <= (b)) | ((a) != (a))) ? (a) : (b))
#endif
#define FOLD(T, acc, lost, v)          \
    {                                  \
        const T v_ = (v);              \
        acc = JOIN(acc, v_);           \
    }
#define SETTLE(T, acc, lost)
#endif

COMPUTE join(COMPUTE a, COMPUTE b) { return JOIN(a, b); }
VCOMPUTE vjoin(VCOMPUTE a, VCOMPUTE b) { return JOIN(a, b); }

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define LANES(array, v) PASTE(vstore, WIDTH)(v, 0, array)

#if PARTIAL
#define TARGET_PARAMS __global COMPUTE *partial,
#define FINISH(acc, o) partial[(size_t)get_global_id(1) * results + (o)] = (acc)
#else
#define TARGET_PARAMS OUTPUT_PARAMS
#define FINISH(acc, o) RESULT(acc, o)
#endif

// What this work-item does: units first to last, elements from to to.
#define SHARE(units)                                                                          \
    const UINT first = (UINT)get_global_id(0) * per;                                          \
    const UINT last = first + per < (units) ? first + per : (units);                          \
    const UINT from = (UINT)get_global_id(1) * part;                                          \
    const UINT to = n - from < part ? n : from + part;

__kernel void reduce_rows(INPUT_PARAMS KEPT_PARAMS TARGET_PARAMS const UINT results, const UINT n, const UINT dense,
                          const UINT part, const UINT per) {
    SHARE(results)
    for (UINT o = first; o < last; ++o) {
        KEPT(o);
        VCOMPUTE vacc = (VCOMPUTE)(IDENTITY), vlost = (VCOMPUTE)(0);
        COMPUTE acc = IDENTITY, lost = 0;
        // Runs of `dense` elements lie densely; a part may begin and end inside one.
        for (UINT r = from, run; r < to; r += run) {
            PLACE(r);
            const UINT rest = dense - r % dense;
            run = rest < to - r ? rest : to - r;
            UINT d = 0;
            for (; d + 8 * WIDTH <= run; d += 8 * WIDTH) {
                VCOMPUTE v[8];
                for (uint j = 0; j < 8; ++j) VVALUE(v[j], d + j * WIDTH);
                FOLD(VCOMPUTE, vacc, vlost, vjoin(vjoin(vjoin(v[0], v[1]), vjoin(v[2], v[3])),
                                                  vjoin(vjoin(v[4], v[5]), vjoin(v[6], v[7]))))
            }
            for (; d + WIDTH <= run; d += WIDTH) {
                VCOMPUTE v;
                VVALUE(v, d);
                FOLD(VCOMPUTE, vacc, vlost, v)
            }
            for (; d < run; ++d) {
                COMPUTE v;
                VALUE(v, d);
                FOLD(COMPUTE, acc, lost, v)
            }
        }
        SETTLE(VCOMPUTE, vacc, vlost);
        SETTLE(COMPUTE, acc, lost);
        COMPUTE lanes[WIDTH];
        LANES(lanes, vacc);
        for (uint half_ = WIDTH / 2; half_ > 0; half_ /= 2)
            for (uint j = 0; j < half_; ++j) lanes[j] = join(lanes[j], lanes[j + half_]);
        acc = join(acc, lanes[0]);
        FINISH(acc, o);
    }
}

// K accumulators of type T, each for `width` columns, from column d of the tile on; they end up in acc.
#define COLUMNS(T, K, width, value, d)                                                        \
    T acc[K], lost[K];                                                                        \
    for (uint k = 0; k < K; ++k) { acc[k] = (T)(IDENTITY); lost[k] = (T)(0); }                \
    UINT r = from;                                                                            \
    for (; to - r >= 8; r += 8) {                                                             \
        T eight[K];                                                                           \
        for (uint k = 0; k < K; ++k) eight[k] = (T)(IDENTITY);                                \
        for (uint j = 0; j < 8; ++j) {                                                        \
            PLACE(r + j);                                                                     \
            for (uint k = 0; k < K; ++k) {                                                    \
                T v;                                                                          \
                value(v, (d) + k * width);                                                    \
                eight[k] = JOIN(eight[k], v);                                                 \
            }                                                                                 \
        }                                                                                     \
        for (uint k = 0; k < K; ++k) FOLD(T, acc[k], lost[k], eight[k])                       \
    }                                                                                         \
    for (; r < to; ++r) {                                                                     \
        PLACE(r);                                                                             \
        for (uint k = 0; k < K; ++k) {                                                        \
            T v;                                                                              \
            value(v, (d) + k * width);                                                        \
            FOLD(T, acc[k], lost[k], v)                                                       \
        }                                                                                     \
    }                                                                                         \
    for (uint k = 0; k < K; ++k) { SETTLE(T, acc[k], lost[k]); }

// Vectors of a tile.
#define TILE 8

__kernel void reduce_columns(INPUT_PARAMS KEPT_PARAMS TARGET_PARAMS const UINT results, const UINT n, const UINT dense,
                             const UINT part, const UINT per) {
    const UINT tiles = (dense + TILE * WIDTH - 1) / (TILE * WIDTH);
    SHARE(results / dense * tiles)
    for (UINT b = first; b < last; ++b) {
        const UINT column = b % tiles * (TILE * WIDTH);
        const UINT o = b / tiles * dense + column;
        const UINT width = dense - column < TILE * WIDTH ? dense - column : TILE * WIDTH;
        KEPT(o);
        COMPUTE lanes[WIDTH];
        UINT c = 0;
        if (width == TILE * WIDTH) {
            COLUMNS(VCOMPUTE, TILE, WIDTH, VVALUE, 0)
            for (; c < TILE * WIDTH; ++c) {
                if (c % WIDTH == 0) LANES(lanes, acc[c / WIDTH]);
                FINISH(lanes[c % WIDTH], o + c);
            }
        }
        for (; width - c >= WIDTH; c += WIDTH) {
            COLUMNS(VCOMPUTE, 1, WIDTH, VVALUE, c)
            LANES(lanes, acc[0]);
            for (uint j = 0; j < WIDTH; ++j) FINISH(lanes[j], o + c + j);
        }
        for (; c < width; ++c) {
            COLUMNS(COMPUTE, 1, 1, VALUE, c)
            FINISH(acc[0], o + c);
        }
    }
}

#if PARTIAL
__kernel void reduce_join(__global const COMPUTE *partial, KEPT_PARAMS OUTPUT_PARAMS const UINT results,
                          const UINT parts, const UINT per) {
    const UINT first = (UINT)get_global_id(0) * per;
    const UINT last = first + per < results ? first + per : results;
    for (UINT o = first; o < last; ++o) {
        COMPUTE acc = IDENTITY, lost = 0;
        for (UINT s = 0; s < parts; ++s) FOLD(COMPUTE, acc, lost, partial[(size_t)s * results + o])
        SETTLE(COMPUTE, acc, lost);
        RESULT(acc, o);
    }
}
#endif

// Random tensors on processors: work-item g has the elements g * per, ..., eight Philox blocks at a time. The numbers are those of
// random.cl, to the bit.
//
// Compiled with: TYPE, COMPUTE, STORE(v, p, i), WIDTH, VCOMPUTE, STOREV(v, p): see add_rows_vector.cl; WIDTH is 8 for double, else 16
// Philox in vectors (philox_vector.cl) is put before this text.

#ifndef TYPE
#define TYPE float
#define COMPUTE float
#define STORE(v, p, i) ((p)[i] = (v))
#define WIDTH 16
#define VCOMPUTE float16
#define STOREV(v, p) vstore16(v, 0, p)
#endif

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

// A vector of results for place i, of which only those below n exist.
#define PUT(v, i)                                                                        \
    {                                                                                    \
        const VCOMPUTE v_ = (v);                                                         \
        if (n >= (i) + WIDTH) {                                                          \
            STOREV(v_, out + (i));                                                       \
        } else {                                                                         \
            const COMPUTE *one_ = (const COMPUTE *)&v_;                                  \
            for (uint j_ = 0; (i) + j_ < n; ++j_) STORE(one_[j_], out, (i) + j_);        \
        }                                                                                \
    }

// Calls put(w, i) with sixteen words and the first place that they belong to; a block is for `of_block` elements.
#define DRAW(of_block, put)                                                              \
    const ulong first = get_global_id(0) * per, end = min(first + per, n);               \
    out += offset;                                                                       \
    for (ulong at = first; at < end; at += 8 * of_block) {                               \
        uint16 w[2];                                                                     \
        philox_vector(seed, block + at / of_block, w);                                   \
        put(w[0], at);                                                                   \
        put(w[1], at + 4 * of_block);                                                    \
    }

#if WIDTH == 16
#define OF_BLOCK 4
#define UNIFORM(w) (convert_float16((w) >> 8) * 0x1.0p-24f)
#define PUT_BERNOULLI(w, i) PUT(UNIFORM(w) < p ? (float16)(1) : (float16)(0), i)
#else
#define OF_BLOCK 2
#define UNIFORM(w) (convert_double8(as_ulong8(w) >> 11) * 0x1.0p-53)
#define BERNOULLI8(w) convert_double8(convert_float8((w) >> 8) * 0x1.0p-24f < p ? (float8)(1) : (float8)(0))
#define PUT_BERNOULLI(w, i) PUT(BERNOULLI8((w).lo), i) PUT(BERNOULLI8((w).hi), (i) + 8)
#endif
#define PUT_UNIFORM(w, i) PUT(UNIFORM(w) * scale + shift, i)

__kernel void random_uniform_vector(__global TYPE *out, ulong offset, ulong n, ulong seed, ulong block, COMPUTE scale,
                                    COMPUTE shift, ulong per) {
    DRAW(OF_BLOCK, PUT_UNIFORM)
}

// 1 where a uniform float is below the probability, else 0.
__kernel void random_bernoulli_vector(__global TYPE *out, ulong offset, ulong n, ulong seed, ulong block, float p, ulong per) {
    DRAW(4, PUT_BERNOULLI)
}

#if WIDTH == 16 && defined(cl_khr_fp64)
// netcl_ln and netcl_normals of random.cl for eight pairs of words, step by step.
double8 ln8(double8 x) {
    const ulong sqrt_half = 0x3fe6a09e667f3bcdUL;
    const ulong8 shifted = as_ulong8(x) - sqrt_half;
    const int8 exponent = convert_int8(as_long8(shifted) >> 52);
    const double8 mantissa = as_double8((shifted & ((1UL << 52) - 1)) + sqrt_half);
    const double8 s = (mantissa - 1.0) / (mantissa + 1.0), q = s * s;
    double8 series = 1.0 / 13.0 + q * (1.0 / 15.0 + q * (1.0 / 17.0));
    series = 1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q * series));
    series = q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * series));
    return convert_double8(exponent) * 0.693147180559945309417 + 2.0 * (s + s * series);
}

float16 normals16(uint16 w) {
    const uint8 a = w.even, b = w.odd;
    const double8 radius = sqrt(-2.0 * ln8(convert_double8((a >> 8) + 1u) * 0x1.0p-24));
    const double8 turn = convert_double8(b >> 8) * 0x1.0p-22;
    const int8 quarter = convert_int8(turn + 0.5);
    const double8 x = (turn - convert_double8(quarter)) * 1.57079632679489661923, q = x * x;
    double8 sine = -1.0 / 5040.0 + q * (1.0 / 362880.0 + q * (-1.0 / 39916800.0 + q * (1.0 / 6227020800.0)));
    sine = x + x * q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * sine));
    double8 cosine = -1.0 / 720.0 + q * (1.0 / 40320.0 + q * (-1.0 / 3628800.0 + q * (1.0 / 479001600.0)));
    cosine = cosine + q * q * q * q * (-1.0 / 87178291200.0);
    cosine = 1.0 + q * (-0.5 + q * (1.0 / 24.0 + q * cosine));
    const long8 odd = convert_long8((quarter & 1) != 0), back = convert_long8((quarter & 2) != 0);
    const double8 sign = back ? -radius : radius;
    const float8 c = convert_float8(sign * (odd ? -sine : cosine)), s = convert_float8(sign * (odd ? cosine : sine));
    return (float16)(c.s0, s.s0, c.s1, s.s1, c.s2, s.s2, c.s3, s.s3, c.s4, s.s4, c.s5, s.s5, c.s6, s.s6, c.s7, s.s7);
}
#define PUT_NORMAL(w, i) PUT(normals16(w) * scale + shift, i)

__kernel void random_normal_vector(__global TYPE *out, ulong offset, ulong n, ulong seed, ulong block, COMPUTE scale,
                                   COMPUTE shift, ulong per) {
    DRAW(4, PUT_NORMAL)
}
#endif

// Random tensors. Work-item g computes Philox block `block + g` and writes the elements that belong to it:
//
//   float, half, bfloat16   4 to a block:   out[4g .. 4g+3]      word 0, 1, 2, 3
//   double                  2 to a block:   out[2g .. 2g+1]      words (0, 1), (2, 3)
//
// so the numbers depend on the seed and the element's place alone. Philox itself (philox.cl) is put before this text.
//
// Compiled with: WIDE           defined where OUT is double
//                STEPS          how many numbers of [0, 1) a 16-bit type has at equal distances, or nothing: rounding would make 1

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable

// The logarithm of a number in [2^-24, 1]: the host's own polynomial, so that normals are equal bit for bit.
double netcl_ln(double x) {
    const ulong sqrt_half = 0x3fe6a09e667f3bcdUL;
    ulong shifted = as_ulong(x) - sqrt_half;
    int exponent = (int)(as_long(shifted) >> 52);
    double mantissa = as_double((shifted & ((1UL << 52) - 1)) + sqrt_half);
    double s = (mantissa - 1.0) / (mantissa + 1.0);
    double q = s * s;
    double series = 1.0 / 13.0 + q * (1.0 / 15.0 + q * (1.0 / 17.0));
    series = 1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q * series));
    series = q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * series));
    return (double)exponent * 0.693147180559945309417 + 2.0 * (s + s * series);
}

// Two normals from two words, computed in double and rounded once.
float2 netcl_normals(uint a, uint b) {
    double radius = sqrt(-2.0 * netcl_ln((double)((a >> 8) + 1) * 0x1.0p-24));
    double turn = (double)(b >> 8) * 0x1.0p-22;
    uint quarter = (uint)(turn + 0.5);
    double x = (turn - (double)quarter) * 1.57079632679489661923;
    double q = x * x;
    double sine = -1.0 / 5040.0 + q * (1.0 / 362880.0 + q * (-1.0 / 39916800.0 + q * (1.0 / 6227020800.0)));
    sine = x + x * q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * sine));
    double cosine = -1.0 / 720.0 + q * (1.0 / 40320.0 + q * (-1.0 / 3628800.0 + q * (1.0 / 479001600.0)));
    cosine = cosine + q * q * q * q * (-1.0 / 87178291200.0);
    cosine = 1.0 + q * (-0.5 + q * (1.0 / 24.0 + q * cosine));
    double first = (quarter & 1) ? -sine : cosine, second = (quarter & 1) ? cosine : sine;
    double sign = (quarter & 2) ? -radius : radius;
    return (float2)((float)(sign * first), (float)(sign * second));
}
#else
// Without double precision: the built-in functions, a few units in the last place away from the host's.
float2 netcl_normals(uint a, uint b) {
    float radius = sqrt(-2.0f * log((float)((a >> 8) + 1) * 0x1.0p-24f));
    float turn = (float)(b >> 8) * 0x1.0p-23f;
    return (float2)(radius * cospi(turn), radius * sinpi(turn));
}
#endif

#ifdef WIDE
typedef double real;
#define PER_BLOCK 2
#else
typedef float real;
#define PER_BLOCK 4
#endif

__kernel void random_uniform(__global OUT *out, ulong offset, ulong n, ulong seed, ulong block, real scale, real shift) {
    ulong g = get_global_id(0);
    if (g * PER_BLOCK >= n) return;
    uint4 w = netcl_random_block(seed, 0, block + g);
#ifdef WIDE
    real values[PER_BLOCK] = {netcl_uniform_f64(w.x, w.y), netcl_uniform_f64(w.z, w.w)};
#else
    real values[PER_BLOCK] = {netcl_uniform_f32(w.x), netcl_uniform_f32(w.y), netcl_uniform_f32(w.z), netcl_uniform_f32(w.w)};
#endif
    for (int j = 0; j < PER_BLOCK; ++j) {
        ulong i = g * PER_BLOCK + j;
#ifdef STEPS
        values[j] = floor(values[j] * STEPS) / STEPS;
#endif
        if (i < n) STORE(values[j] * scale + shift, out, offset + i);
    }
}

__kernel void random_normal(__global OUT *out, ulong offset, ulong n, ulong seed, ulong block, real scale, real shift) {
    ulong g = get_global_id(0);
    if (g * PER_BLOCK >= n) return;
    uint4 w = netcl_random_block(seed, 0, block + g);
#ifdef WIDE
    double radius = sqrt(-2.0 * log((double)((((ulong)w.y << 32 | w.x) >> 11) + 1) * 0x1.0p-53));
    double turn = (double)(((ulong)w.w << 32 | w.z) >> 11) * 0x1.0p-52;
    real values[PER_BLOCK] = {radius * cospi(turn), radius * sinpi(turn)};
#else
    float2 first = netcl_normals(w.x, w.y), second = netcl_normals(w.z, w.w);
    real values[PER_BLOCK] = {first.x, first.y, second.x, second.y};
#endif
    for (int j = 0; j < PER_BLOCK; ++j) {
        ulong i = g * PER_BLOCK + j;
        if (i < n) STORE(values[j] * scale + shift, out, offset + i);
    }
}

// 1 where a uniform float is below the probability, else 0.
__kernel void random_bernoulli(__global OUT *out, ulong offset, ulong n, ulong seed, ulong block, float p) {
    ulong g = get_global_id(0);
    if (g * 4 >= n) return;
    uint4 w = netcl_random_block(seed, 0, block + g);
    uint words[4] = {w.x, w.y, w.z, w.w};
    for (int j = 0; j < 4; ++j) {
        ulong i = g * 4 + j;
        if (i < n) STORE((real)(netcl_uniform_f32(words[j]) < p ? 1 : 0), out, offset + i);
    }
}

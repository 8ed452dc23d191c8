// Exact arithmetic of whole numbers in 64 bits. All operands are dense; work-item g computes one result.
//
//   elements   y[g] = EXPRESSION(a[g], b[g], c[g])
//   fold       y[g] = a piece of `length` neighbours of a line of `n`, combined:  (outer, n) -> (outer, ceil(n / length))
//   scan       line g of (outer, n, inner): each element combined with all before it
//
// Compiled with: EXPRESSION  of x, y and z, all long

// Arithmetic wraps around, as Rust's and PyTorch's does: unsigned numbers do that in C.
long wrap_add(long x, long y) { return (long)((ulong)x + (ulong)y); }
long wrap_sub(long x, long y) { return (long)((ulong)x - (ulong)y); }
long wrap_mul(long x, long y) { return (long)((ulong)x * (ulong)y); }

// Division by 0 gives 0, and by -1 does not overflow: both would be undefined.
long floor_divide(long x, long y) {
    if (y == 0) return 0;
    if (y == -1) return wrap_sub(0, x);
    const long q = x / y;
    return q - (x % y != 0 && ((x < 0) != (y < 0)));
}
long remainder_of(long x, long y) {
    if (y == 0 || y == -1) return 0;
    const long r = x % y;
    return r + (r != 0 && ((r < 0) != (y < 0)) ? y : 0);
}
long power(long x, long y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? ((y & 1) ? -1 : 1) : 0;
    long result = 1;
    for (; y > 0; y >>= 1, x = wrap_mul(x, x)) {
        if (y & 1) result = wrap_mul(result, x);
    }
    return result;
}

long combine(long x, long y, long z) { return EXPRESSION; }

__kernel void elements(__global const long *a, const ulong a_at, __global const long *b, const ulong b_at,
                       __global const long *c, const ulong c_at, __global OUT *out, const ulong out_at, const ulong total) {
    const ulong g = get_global_id(0);
    if (g < total) out[out_at + g] = (OUT)combine(a[a_at + g], b[b_at + g], c[c_at + g]);
}

__kernel void fold(__global const long *a, const ulong a_at, __global OUT *out, const ulong out_at, const ulong total,
                   const ulong n, const ulong length) {
    const ulong g = get_global_id(0);
    if (g >= total) return;
    const ulong pieces = (n + length - 1) / length;
    const ulong first = g % pieces * length, end = min(first + length, n);
    __global const long *line = a + a_at + g / pieces * n;
    long sum = line[first];
    for (ulong i = first + 1; i < end; ++i) sum = combine(sum, line[i], 0);
    out[out_at + g] = (OUT)sum;
}

__kernel void scan(__global const long *a, const ulong a_at, __global OUT *out, const ulong out_at, const ulong total,
                   const ulong n, const ulong inner) {
    const ulong g = get_global_id(0);
    if (g >= total) return;
    const ulong start = g / inner * n * inner + g % inner;
    long sum = 0;
    for (ulong i = 0; i < n; ++i) {
        const long value = a[a_at + start + i * inner];
        sum = i == 0 ? value : combine(sum, value, 0);
        out[out_at + start + i * inner] = (OUT)sum;
    }
}

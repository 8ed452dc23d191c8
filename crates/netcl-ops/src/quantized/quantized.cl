// Weights of 8 or 4 bits, W (n, k): a product with a few rows of x, and W as it is without quantisation.
//
//               k                              k (words of a row lie side by side)
//        +-------------+                +---+---+---+---+
//    m   |      x      | ROWS           | i | i | i | i |  COLS rows of W
//        +-------------+                +---+---+---+---+
//                                         0   1   2  ...   work-item
//
//   quantized_linear   group g -> COLS columns and ROWS rows of y = x W' + bias. A work-item takes every GROUPth word of each of COLS rows of
//                      W, and the inputs of x that belong to it, which its neighbours' follow. Sums of the work-items are added in local
//                      memory, halves to halves.
//   dequantize         work-item g -> element g of W
//
// A value is stored with OFFSET added, as the BITS of a word from the lowest on. Put into the last bits of 2^23 as a float it is that much more
// than 2^23, exactly: no integer is converted.
//
// Compiled with: COMPUTE4, LOAD4(p, i)   four neighbours
//                BITS   8 or 4;   ROWS   rows of x that a group has

#define COLS 4
#define PER_WORD (32 / BITS)
#define MASK ((1u << BITS) - 1)
#define OFFSET (1 << (BITS - 1))

#define VALUE(word, i) (COMPUTE)(as_float(0x4B000000u | (((word) >> (BITS * (i))) & MASK)) - (8388608.0f + OFFSET))

#ifdef KERNEL_quantized_linear

// Adds the products of one word of each of COLS rows.
#define ADD_FOUR(i, load)                                                                                               \
    {                                                                                                                   \
        COMPUTE4 xs[ROWS];                                                                                              \
        for (int r = 0; r < ROWS; ++r) xs[r] = load(r, i);                                                              \
        for (int c = 0; c < COLS; ++c) {                                                                                \
            const COMPUTE4 w = (COMPUTE4)(VALUE(word[c], i), VALUE(word[c], i + 1), VALUE(word[c], i + 2),              \
                                          VALUE(word[c], i + 3));                                                       \
            for (int r = 0; r < ROWS; ++r)                                                                              \
                part[c][r] = fma(xs[r].s3, w.s3, fma(xs[r].s2, w.s2, fma(xs[r].s1, w.s1, fma(xs[r].s0, w.s0, part[c][r])))); \
        }                                                                                                               \
    }
#if BITS == 8
#define ADD(load) ADD_FOUR(0, load)
// The scale of a row is for all its sum.
#define part sums
#define SCALED
#else
#define ADD(load) ADD_FOUR(0, load) ADD_FOUR(4, load)
#define SCALED                                                                                                          \
    for (int c = 0; c < COLS; ++c) {                                                                                    \
        const COMPUTE by = LOAD(scale, scale_row[c] + (first >> shift));                                                \
        for (int r = 0; r < ROWS; ++r) {                                                                                \
            sums[c][r] = fma(by, part[c][r], sums[c][r]);                                                               \
            part[c][r] = 0;                                                                                             \
        }                                                                                                               \
    }
#endif
#define X(r, i) LOAD4(x, x_row[r] + first + (i))
#define X_ONE(r, i) (first + (i) < k ? LOAD(x, x_row[r] + first + (i)) : 0)
#define X_INSIDE(r, i) (COMPUTE4)(X_ONE(r, i), X_ONE(r, i + 1), X_ONE(r, i + 2), X_ONE(r, i + 3))

kernel void quantized_linear(global const ELEMENT *x, ulong x_at, global const uint *weight, ulong weight_at, global const ELEMENT *scale,
                             ulong scale_at, global const ELEMENT *bias, ulong bias_at, global ELEMENT *y, ulong y_at, ulong m, ulong n,
                             ulong k, uint words, uint scales, uint shift, local COMPUTE *shared) {
    const uint item = get_local_id(0), items = get_local_size(0);
    const ulong tiles = (n + COLS - 1) / COLS, col0 = get_group_id(0) % tiles * COLS, row0 = get_group_id(0) / tiles * ROWS;
    ulong x_row[ROWS], weight_row[COLS], scale_row[COLS];
    COMPUTE sums[COLS][ROWS];
#if BITS == 4
    COMPUTE part[COLS][ROWS];
#endif
    // Past the last row or column the last is read once more; nobody writes what becomes of it.
    for (int r = 0; r < ROWS; ++r) x_row[r] = x_at + min(row0 + r, m - 1) * k;
    for (int c = 0; c < COLS; ++c) {
        const ulong col = min(col0 + c, n - 1);
        weight_row[c] = weight_at + col * words;
        scale_row[c] = scale_at + col * scales;
        for (int r = 0; r < ROWS; ++r) sums[c][r] = part[c][r] = 0;
    }
    const uint whole = (uint)(k / PER_WORD);
    uint at = item;
    for (; at < whole; at += items) {
        const ulong first = (ulong)at * PER_WORD;
        uint word[COLS];
        for (int c = 0; c < COLS; ++c) word[c] = weight[weight_row[c] + at];
        ADD(X)
        SCALED
    }
    // The last word is not full: one work-item has it.
    if (at < words) {
        const ulong first = (ulong)at * PER_WORD;
        uint word[COLS];
        for (int c = 0; c < COLS; ++c) word[c] = weight[weight_row[c] + at];
        ADD(X_INSIDE)
        SCALED
    }
    for (int c = 0; c < COLS; ++c)
        for (int r = 0; r < ROWS; ++r) shared[(c * ROWS + r) * items + item] = sums[c][r];
    for (uint half_ = items / 2; half_ > 0; half_ /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < half_)
            for (int i = 0; i < COLS * ROWS; ++i) shared[i * items + item] += shared[i * items + item + half_];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = item; i < COLS * ROWS; i += items) {
        const ulong col = col0 + i / ROWS, row = row0 + i % ROWS;
        if (row >= m || col >= n) continue;
        COMPUTE sum = shared[i * items];
#if BITS == 8
        sum *= LOAD(scale, scale_at + col);
#endif
        if (bias) sum += LOAD(bias, bias_at + col);
        STORE(sum, y, y_at + row * n + col);
    }
}
#endif

#ifdef KERNEL_dequantize
kernel void dequantize(global const uint *weight, ulong weight_at, global const ELEMENT *scale, ulong scale_at, global ELEMENT *to, ulong to_at,
                       ulong n, ulong k, uint words, uint scales, uint shift) {
    const ulong g = get_global_id(0);
    if (g >= n * k) return;
    const ulong row = g / k, i = g % k;
    const uint word = weight[weight_at + row * words + i / PER_WORD];
    const ulong group = BITS == 8 ? 0 : i >> shift;
    STORE(VALUE(word, i % PER_WORD) * LOAD(scale, scale_at + row * scales + group), to, to_at + g);
}
#endif

// Convolutions as one matrix product whose second operand is read through the geometry: windows are never written
// out. Images may have any strides; weights and results lie densely.
//
//          DEPTH                  COLS                       COLS
//         +-----+              +---------+            +----+----+----+
//         |  a  |              |    b    | DEPTH      | 0  | 1  | 0 1|   work-group: a ROWS x COLS tile of the product
//    ROWS |     |      x       +---------+    ->      +----+----+----+   work-item (x, y): rows y, y + ROWS/R, ...
//         |     |                                ROWS | 2  | 3  | 2 3|                   columns x, x + COLS/C, ...
//         +-----+                                     +----+----+----+   R x C sums, interleaved as the digits show
//
//   MODE 0, forward:          filters x (channel, tap)   times   (channel, tap) x (image, output pixel)
//   MODE 1, data gradient:    channels x (filter, tap)   times   (filter, tap) x (image, input pixel)
//   MODE 2, weight gradient:  filters x (image, pixel)   times   (image, pixel) x (channel, tap)
//
// Group z of the grid is a group of channels and, in the weight gradient, one of `parts` parts of the sum, which lie one after the
// other in the result. In each column of the tile the geometry is divided out once, in each row of it once per step.
//
// Compiled with: MODE           which of the three
//                ROWS, COLS, DEPTH, R, C   the tile; (ROWS / R) * (COLS / C) work-items in a group
//                STATISTICS     1 to write (mean, squared deviations) of each row of a tile as well: of its channel's values in
//                               columns tile * COLS and following; KEPT(p, i) is a stored result as a SUM

#if MODE == 2
#define IMAGES STRIDES(first), STRIDES(second)
#else
#define IMAGES STRIDES(first)
#endif

#if STATISTICS
#define STATISTICS_PARAM global SUM *statistics,
#else
#define STATISTICS_PARAM
#endif

#define Y (ROWS / R)
#define X (COLS / C)

// `first` is x, or the gradient of the output; `second` is the weight, or x in the weight gradient.
kernel __attribute__((reqd_work_group_size(X, Y, 1))) void conv_implicit_gemm(
    global const T *first, ulong first_at, global const T *second, ulong second_at, global OUT *out, ulong out_at, INDEX parts,
    INDEX depth, STATISTICS_PARAM IMAGES, GEOMETRY EPILOGUE_PARAMS PROLOGUE_PARAMS) {
#if STATISTICS
    // One piece of memory, which afterwards holds a sum for each row and work-item, and a value of each row.
    local SUM memory[DEPTH * (ROWS + COLS + 2) > ROWS * (X + 1) ? DEPTH * (ROWS + COLS + 2) : ROWS * (X + 1)];
    local SUM(*a_tile)[ROWS + 1] = (local SUM(*)[ROWS + 1])memory;
    local SUM(*b_tile)[COLS + 1] = (local SUM(*)[COLS + 1])(memory + DEPTH * (ROWS + 1));
#else
    local SUM a_tile[DEPTH][ROWS + 1], b_tile[DEPTH][COLS + 1];
#endif
    const int x = get_local_id(0), y = get_local_id(1), item = y * X + x;
    const INDEX z = get_group_id(2), group = z / parts, part = z % parts;
    const INDEX row0 = (INDEX)get_group_id(1) * ROWS, col0 = (INDEX)get_group_id(0) * COLS;
    const INDEX taps = kh * kw;
#if MODE == 0
    const INDEX rows = filters, cols = images * oh * ow, terms = channels * taps;
    first += first_at;
    const INDEX from = group * channels * first_c;
    second += second_at + group * filters * channels * taps;
#elif MODE == 1
    const INDEX rows = channels, cols = images * h * w, terms = filters * taps;
    first += first_at;
    const INDEX from = group * filters * first_c;
    second += second_at + group * filters * channels * taps;
#else
    const INDEX rows = filters, cols = channels * taps, terms = images * oh * ow;
    first += first_at;
    second += second_at;
    const INDEX over = group * filters * first_c, from = group * channels * second_c;
#endif
    const INDEX begin = part * depth, end = min(terms, begin + depth);
    SUM sums[R][C];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int s = 0; s < C; ++s) sums[r][s] = 0;
    for (INDEX start = begin; start < end; start += DEPTH) {
        for (int at = item; at < ROWS * DEPTH; at += X * Y) {
            // Neighbouring work-items on neighbouring addresses: terms of a filter, or pixels of a gradient.
            const int i = at % DEPTH, r = at / DEPTH;
            const INDEX row = row0 + r, term = start + i;
            SUM value = 0;
            if (row < rows && term < end) {
#if MODE == 0
                value = LOAD(second, row * terms + term);
#elif MODE == 1
                value = LOAD(second, (term / taps * channels + row) * taps + term % taps);
#else
                const INDEX image = term / (oh * ow), oy = term / ow % oh, ox = term % ow;
                value = LOAD(first, over + image * first_n + row * first_c + oy * first_y + ox * first_x);
#endif
            }
            a_tile[i][r] = value;
        }
        for (int at = item; at < DEPTH * COLS; at += X * Y) {
#if MODE == 2
            const int i = at % DEPTH, s = at / DEPTH;
#else
            const int i = at / COLS, s = at % COLS;
#endif
            const INDEX col = col0 + s, term = start + i;
            SUM value = 0;
            if (col < cols && term < end) {
#if MODE == 0
                const INDEX image = col / (oh * ow), oy = col / ow % oh, ox = col % ow;
                const INDEX channel = term / taps, ky = term / kw % kh, kx = term % kw;
                const INDEX down = oy * sh + ky * dh - top, right = ox * sw + kx * dw - left;
                if (down >= 0 && down < h && right >= 0 && right < w) {
                    value = LOAD(first, from + image * first_n + channel * first_c + down * first_y + right * first_x);
                    value = PROLOGUE(value, image, group * channels + channel, down, right);
                }
#elif MODE == 1
                const INDEX image = col / (h * w), iy = col / w % h, ix = col % w;
                const INDEX filter = term / taps, ky = term / kw % kh, kx = term % kw;
                const INDEX down = iy + top - ky * dh, right = ix + left - kx * dw;
                const INDEX oy = OVER(down, sh), ox = OVER(right, sw);
                if (down >= 0 && right >= 0 && WHOLE(down, sh) && WHOLE(right, sw) && oy < oh && ox < ow)
                    value = LOAD(first, from + image * first_n + filter * first_c + oy * first_y + ox * first_x);
#else
                const INDEX image = term / (oh * ow), oy = term / ow % oh, ox = term % ow;
                const INDEX channel = col / taps, ky = col / kw % kh, kx = col % kw;
                const INDEX down = oy * sh + ky * dh - top, right = ox * sw + kx * dw - left;
                if (down >= 0 && down < h && right >= 0 && right < w)
                    value = LOAD(second, from + image * second_n + channel * second_c + down * second_y + right * second_x);
#endif
            }
            b_tile[i][s] = value;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < DEPTH; ++i) {
            SUM above[R], beside[C];
#pragma unroll
            for (int r = 0; r < R; ++r) above[r] = a_tile[i][y + r * Y];
#pragma unroll
            for (int s = 0; s < C; ++s) beside[s] = b_tile[i][x + s * X];
#pragma unroll
            for (int r = 0; r < R; ++r)
#pragma unroll
                for (int s = 0; s < C; ++s) sums[r][s] = fma(above[r], beside[s], sums[r][s]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    out += out_at;
#pragma unroll
    for (int s = 0; s < C; ++s) {
        const INDEX col = col0 + x + s * X;
        if (col >= cols) continue;
#if MODE == 2
        const INDEX base = part * groups * filters * cols + group * filters * cols + col, step = cols;
#elif MODE == 1
        const INDEX image = col / (h * w), py = col / w % h, px = col % w;
        const INDEX base = ((image * groups + group) * channels * h + py) * w + px, step = h * w;
#else
        const INDEX image = col / (oh * ow), py = col / ow % oh, px = col % ow;
        const INDEX base = ((image * groups + group) * filters * oh + py) * ow + px, step = oh * ow;
#endif
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const INDEX row = row0 + y + r * Y;
            if (row >= rows) continue;
#if MODE == 2
            STORE(sums[r][s], out, base + row * step);
#else
            STORE(EPILOGUE(sums[r][s], image, group * rows + row, py, px), out, base + row * step);
#endif
#if STATISTICS
            sums[r][s] = KEPT(out, base + row * step);
#endif
        }
    }
#if STATISTICS
    // For each row of the tile the mean, then the squared deviations from it, of what was stored. Values far from zero keep
    // their digits, because all are counted from the row's first.
    local SUM *origins = memory + ROWS * X;
    if (x == 0) {
#pragma unroll
        for (int r = 0; r < R; ++r) origins[y + r * Y] = sums[r][0];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const SUM origin = origins[y + r * Y];
#pragma unroll
        for (int s = 0; s < C; ++s) sums[r][s] -= origin;
    }
    const INDEX tiles = get_num_groups(0), tile = get_group_id(0);
    const SUM values = min((INDEX)COLS, cols - col0);
    statistics += ((group * rows + row0) * tiles + tile) * 2;
    for (int pass = 0; pass < 2; ++pass) {
        SUM total[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const SUM middle = pass ? memory[(y + r * Y) * X] : 0;
            total[r] = 0;
#pragma unroll
            for (int s = 0; s < C; ++s) {
                const SUM value = sums[r][s] - middle;
                if (col0 + x + s * X < cols) total[r] += pass ? value * value : value;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int r = 0; r < R; ++r) memory[(y + r * Y) * X + x] = total[r];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int row = item; row < ROWS; row += X * Y) {
            SUM all = 0;
            for (int i = 0; i < X; ++i) all += memory[row * X + i];
            if (!pass) all /= values;
            memory[row * X] = all;
            if (row0 + row < rows) statistics[row * tiles * 2 + pass] = pass ? all : origins[row] + all;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
}

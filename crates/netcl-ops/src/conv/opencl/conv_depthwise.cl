// Convolutions whose filters see one channel each, and their gradients: bound by memory, so every pixel is read once from it.
//
//   depthwise:          work-item (strip and column, channel, image): ROWS results below each other; the pixels of the window are
//                       loaded once for all of them, and neighbours in a warp read neighbouring columns
//   depthwise, DATA:    the gradient of the input, gathered: the same walk, looking back through the stride
//   depthwise_weight:   group (part, filters, taps): LANES work-items for each filter hold TY x TX taps in registers and go through
//                       strips of all images; one pass over both operands, then the lanes are added up, in order
//   depthwise_sum:      the parts of a weight gradient, added up in order
//
//        x                      results of a work-item
//     +-----------------+
//     |   a b c         |           o   sums over (a b c, d e f, g h i)
//     |   d e f         |    ->     o   sums over (d e f, g h i, j k l)
//     |   g h i         |
//     |   j k l         |       ROWS = 2, a window of 3 x 3
//     +-----------------+
//
// Images may have any strides; weights and results lie densely. Loads outside an image go to its border and are not added: no branches.
//
// Compiled with: ROWS           results of a work-item
//                KH, KW, SH, SW, DH, DW, TOP, LEFT   window, strides, dilation, padding: numbers, or the arguments kh, kw, ..
//                DATA           1 for the gradient of the input
//                ALIGNED        1 where ROWS is a multiple of SH and both are numbers, so that DATA knows which rows meet
//                LANES, TY, TX  for the weight gradient

#ifndef ROWS
#define ROWS 4
#define KH kh
#define KW kw
#define SH sh
#define SW sw
#define DH dh
#define DW dw
#define TOP top
#define LEFT left
#define DATA 0
#define ALIGNED 0
#endif
#ifndef LANES
#define LANES 8
#define TY 3
#define TX 3
#endif

// `h` x `w` is the image that is read, `oh` x `ow` the one that is written; `multiple` filters see the same channel.
#define GEOMETRY                                                                                                      \
    INDEX images, INDEX channels, INDEX multiple, INDEX h, INDEX w, INDEX oh, INDEX ow, INDEX kh, INDEX kw, INDEX sh, \
        INDEX sw, INDEX dh, INDEX dw, INDEX top, INDEX left

#define STRIDES(t) INDEX t##_n, INDEX t##_c, INDEX t##_y, INDEX t##_x

#if DATA
// Position v of the padded image in steps of s: which one it is, and whether it is one. v may be as low as -reach.
#define OVER(v, s, reach) (((v) + (reach) * (s)) / (s) - (reach))
#define WHOLE(v, s, reach) (((v) + (reach) * (s)) % (s) == 0)
#if ALIGNED
#define ROW(r, ky) (strip * (ROWS / SH) + OVER((r) + TOP - (ky) * DH, SH, KH * DH))
#define ROW_MEETS(r, ky) WHOLE((r) + TOP - (ky) * DH, SH, KH * DH)
#else
#define ROW(r, ky) OVER(strip * ROWS + (r) + TOP - (ky) * DH, SH, KH * DH)
#define ROW_MEETS(r, ky) WHOLE(strip * ROWS + (r) + TOP - (ky) * DH, SH, KH * DH)
#endif
#define COLUMN(kx) OVER(column + LEFT - (kx) * DW, SW, KW * DW)
#define COLUMN_MEETS(kx) WHOLE(column + LEFT - (kx) * DW, SW, KW * DW)
#else
#define ROW(r, ky) ((strip * ROWS + (r)) * SH + (ky) * DH - TOP)
#define ROW_MEETS(r, ky) 1
#define COLUMN(kx) (column * SW + (kx) * DW - LEFT)
#define COLUMN_MEETS(kx) 1
#endif

#define INSIDE(v, length) ((v) >= 0 && (v) < (length))
#define NEAREST(v, length) clamp((INDEX)(v), (INDEX)0, (INDEX)((length) - 1))

kernel void depthwise(
    global const T *restrict x, ulong x_at, global const T *restrict weight, ulong weight_at, global OUT *restrict out,
    ulong out_at, STRIDES(x), GEOMETRY EPILOGUE_PARAMS PROLOGUE_PARAMS) {
    const INDEX pixel = get_global_id(0), channel = get_global_id(1);
    const INDEX strip = pixel / ow, column = pixel % ow;
    if (strip * ROWS >= oh || channel >= channels) return;
    x += x_at;
    weight += weight_at;
    out += out_at;
    for (INDEX image = get_global_id(2); image < images; image += get_global_size(2)) {
        SUM sums[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sums[r] = 0;
#if DATA
        for (INDEX filter = channel * multiple; filter < (channel + 1) * multiple; ++filter) {
            const INDEX source = filter;
#else
        {
            const INDEX filter = channel, source = channel / multiple;
#endif
            const INDEX from = image * x_n + source * x_c, taps = filter * KH * KW;
#pragma unroll
            for (INDEX ky = 0; ky < KH; ++ky) {
#pragma unroll
                for (INDEX kx = 0; kx < KW; ++kx) {
                    const INDEX across = COLUMN(kx), at = NEAREST(across, w);
                    const bool meets = COLUMN_MEETS(kx) && INSIDE(across, w);
                    const SUM tap = LOAD(weight, taps + ky * KW + kx);
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        if (!ROW_MEETS(r, ky)) continue;
                        const INDEX down = ROW(r, ky), row = NEAREST(down, h);
                        const SUM value = PROLOGUE(LOAD(x, from + row * x_y + at * x_x), image, source, row, at);
                        const SUM sum = fma(tap, value, sums[r]);
                        sums[r] = meets && INSIDE(down, h) ? sum : sums[r];
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const INDEX y = strip * ROWS + r;
            if (y < oh)
                STORE(
                    EPILOGUE(sums[r], image, channel, y, column), out,
                    ((image * channels + channel) * oh + y) * ow + column);
        }
    }
}

#if !DATA
// `oh` x `ow` is the gradient, whose channels are the filters; parts are interleaved.
kernel void depthwise_weight(
    global const T *restrict grad, ulong grad_at, global const T *restrict x, ulong x_at, global OUT *restrict out,
    ulong out_at, local SUM *room, STRIDES(grad), STRIDES(x), GEOMETRY) {
    const INDEX across = (KW + TX - 1) / TX, block = get_group_id(2), part = get_group_id(0), parts = get_num_groups(0);
    const INDEX first_y = block / across * TY, first_x = block % across * TX;
    // A group's last filters may not be there: they meet at the barrier all the same.
    const INDEX own = get_global_id(1), filter = min(own, channels - 1);
    const int lane = get_local_id(0);
    grad += grad_at;
    x += x_at;
    SUM sums[TY * TX];
#pragma unroll
    for (int tap = 0; tap < TY * TX; ++tap) sums[tap] = 0;
    const INDEX strips = (oh + ROWS - 1) / ROWS, tiles = images * strips * ow;
    for (INDEX tile = part * LANES + lane; tile < tiles; tile += parts * LANES) {
        const INDEX column = tile % ow, line = tile / ow, strip = line % strips, image = line / strips;
        const INDEX over = image * grad_n + filter * grad_c + column * grad_x;
        const INDEX from = image * x_n + filter / multiple * x_c;
        SUM given[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) given[r] = LOAD(grad, over + NEAREST(strip * ROWS + r, oh) * grad_y);
#pragma unroll
        for (int kx = 0; kx < TX; ++kx) {
            const INDEX beside = COLUMN(first_x + kx), at = NEAREST(beside, w);
            const bool meets = INSIDE(beside, w);
#pragma unroll
            for (int ky = 0; ky < TY; ++ky) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const INDEX down = ROW(r, first_y + ky);
                    const SUM value = LOAD(x, from + NEAREST(down, h) * x_y + at * x_x);
                    const SUM sum = fma(given[r], value, sums[ky * TX + kx]);
                    const bool counts = meets && INSIDE(down, h) && strip * ROWS + r < oh;
                    sums[ky * TX + kx] = counts ? sum : sums[ky * TX + kx];
                }
            }
        }
    }
    // A column more than there are lanes: work-items that add up different taps meet different banks.
    room += get_local_id(1) * (TY * TX * (LANES + 1));
#pragma unroll
    for (int tap = 0; tap < TY * TX; ++tap) room[tap * (LANES + 1) + lane] = sums[tap];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int tap = lane; tap < TY * TX; tap += LANES) {
        const INDEX ky = first_y + tap / TX, kx = first_x + tap % TX;
        if (own >= channels || ky >= KH || kx >= KW) continue;
        SUM sum = 0;
        for (int i = 0; i < LANES; ++i) sum += room[tap * (LANES + 1) + i];
        STORE(sum, out, out_at + ((part * channels + filter) * KH + ky) * KW + kx);
    }
}
#endif

kernel void depthwise_sum(global const SUM *partial, global OUT *out, ulong out_at, INDEX size, INDEX parts) {
    const INDEX i = get_global_id(0);
    if (i >= size) return;
    SUM sum = 0;
    for (INDEX part = 0; part < parts; ++part) sum += partial[part * size + i];
    STORE(sum, out, out_at + i);
}

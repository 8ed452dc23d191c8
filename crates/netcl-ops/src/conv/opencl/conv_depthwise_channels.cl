// Depthwise convolutions of channels-last images, and their gradients: neighbouring work-items read neighbouring channels, four each.
//
//   depthwise_channels:         work-item (vector of channels, tile of pixels): HIGH x WIDE results; each row of pixels under the tile is
//                               loaded once and added to every result whose window it belongs to
//   depthwise_channels, DATA:   the gradient of the images: the same walk over the gradient, looking back through the stride
//   depthwise_channels_weight:  work-item (vector of channels): all taps in registers, tiles of all images; then the group's
//                               work-items with the same channels are added up, in order. A part of the sum for each group along y
//
//        channels ->            group: LANES vectors of channels x TILES tiles of pixels
//     +---+---+---+---+         filters wait in local memory, tap by tap: room[tap][channel]
//     |   |   |   |   |  tile
//     +---+---+---+---+
//
// Images and results: channels side by side, whole vectors of four, at multiples of four elements. Filters lie densely.
//
// Compiled with: SUM4, STORE4(v, p, i)   vectors of four sums
//                HIGH, WIDE     results of a work-item: multiples of the stride for DATA
//                KH, KW, SH, SW, DH, DW, TOP, LEFT   window, strides, dilation, padding
//                DATA           1 for the gradient of the images
//                LANES, TILES   the work-group

#ifndef SUM4
#define SUM4 float4
#define STORE4(v, p, i) (*(global float4 *)((p) + (i)) = (v))
#define HIGH 4
#define WIDE 4
#define KH 3
#define KW 3
#define SH 1
#define SW 1
#define DH 1
#define DW 1
#define TOP 1
#define LEFT 1
#define DATA 0
#define LANES 8
#define TILES 2
#endif

// An expression of each of four neighbouring channels.
#define FOUR(f, v, n, c, y, x) \
    ((SUM4)(f((v).s0, n, c, y, x), f((v).s1, n, (c) + 1, y, x), f((v).s2, n, (c) + 2, y, x), f((v).s3, n, (c) + 3, y, x)))

#define TAPS (KH * KW)
#define SIDE (LANES * 4)

// `h` x `w` is the image that is read, `oh` x `ow` the one that is written, for the weight's gradient that of the gradient. Strides are
// those of images, rows and pixels.
#define GEOMETRY INDEX images, INDEX channels, INDEX h, INDEX w, INDEX oh, INDEX ow
#define STRIDES(t) INDEX t##_n, INDEX t##_y, INDEX t##_x

// v / s rounded down and up; v may be as low as -1024 s.
#define OVER(v, s) (((v) + 1024 * (s)) / (s) - 1024)
#define ABOVE(v, s) OVER((v) + (s) - 1, s)

// Of the pixels that are read, counted from the tile's first: the first and last that matter along an axis, the one that lies under tap
// k of result r, and whether there is one.
#if DATA
#define FIRST(k, s, d, before) ABOVE((before) - ((k) - 1) * (d), s)
#define LAST(n, k, s, d, before) OVER((n) - 1 + (before), s)
#define UNDER_TAP(k, r, s, d, before) OVER((r) + (before) - (k) * (d), s)
#define MEETS(k, r, s, d, before) (UNDER_TAP(k, r, s, d, before) * (s) == (r) + (before) - (k) * (d))
#define BASE(tile, n, s) ((tile) * ((n) / (s)))
#else
#define FIRST(k, s, d, before) (-(before))
#define LAST(n, k, s, d, before) (((n) - 1) * (s) + ((k) - 1) * (d) - (before))
#define UNDER_TAP(k, r, s, d, before) ((r) * (s) + (k) * (d) - (before))
#define MEETS(k, r, s, d, before) 1
#define BASE(tile, n, s) ((tile) * ((n) * (s)))
#endif

#define FIRST_Y FIRST(KH, SH, DH, TOP)
#define LAST_Y LAST(HIGH, KH, SH, DH, TOP)
#define FIRST_X FIRST(KW, SW, DW, LEFT)
#define LAST_X LAST(WIDE, KW, SW, DW, LEFT)

#define INSIDE(v, length) ((v) >= 0 && (v) < (length))

__attribute__((reqd_work_group_size(LANES, TILES, 1)))
kernel void depthwise_channels(
    global const T *restrict x, ulong x_at, global const T *restrict weight, ulong weight_at, global OUT *restrict out,
    ulong out_at, STRIDES(x), GEOMETRY EPILOGUE_PARAMS PROLOGUE_PARAMS) {
    local SUM room[TAPS * SIDE];
    const int lane = get_local_id(0) * 4;
    const INDEX block = get_group_id(0) * SIDE, channel = block + lane;
    for (int i = get_local_id(1) * LANES + get_local_id(0); i < TAPS * SIDE; i += LANES * TILES)
        room[i % TAPS * SIDE + i / TAPS] = block + i / TAPS < channels ? LOAD(weight, weight_at + block * TAPS + i) : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    const INDEX across = (ow + WIDE - 1) / WIDE, down = (oh + HIGH - 1) / HIGH, tile = get_global_id(1);
    const INDEX image = tile / (across * down);
    if (channel >= channels || image >= images) return;
    const INDEX tile_y = tile / across % down, tile_x = tile % across;
    const INDEX base_y = BASE(tile_y, HIGH, SH), base_x = BASE(tile_x, WIDE, SW);
    x += x_at + image * x_n + channel;
    SUM4 sums[HIGH * WIDE];
#pragma unroll
    for (int r = 0; r < HIGH * WIDE; ++r) sums[r] = (SUM4)(0);
#pragma unroll
    for (int iy = FIRST_Y; iy <= LAST_Y; ++iy) {
        const INDEX py = base_y + iy;
        if (!INSIDE(py, h)) continue;
        SUM4 row[LAST_X - FIRST_X + 1];
#pragma unroll
        for (int ix = FIRST_X; ix <= LAST_X; ++ix) {
            const INDEX px = base_x + ix;
            row[ix - FIRST_X] = (SUM4)(0);
            if (INSIDE(px, w)) {
                const SUM4 v = LOAD4(x, py * x_y + px * x_x);
                row[ix - FIRST_X] = FOUR(PROLOGUE, v, image, channel, py, px);
            }
        }
#pragma unroll
        for (int r = 0; r < HIGH; ++r) {
#pragma unroll
            for (int ky = 0; ky < KH; ++ky) {
                if (UNDER_TAP(ky, r, SH, DH, TOP) != iy || !MEETS(ky, r, SH, DH, TOP)) continue;
#pragma unroll
                for (int kx = 0; kx < KW; ++kx) {
                    const SUM4 tap = vload4(0, room + (ky * KW + kx) * SIDE + lane);
#pragma unroll
                    for (int c = 0; c < WIDE; ++c)
                        if (MEETS(kx, c, SW, DW, LEFT))
                            sums[r * WIDE + c] =
                                fma(tap, row[UNDER_TAP(kx, c, SW, DW, LEFT) - FIRST_X], sums[r * WIDE + c]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < HIGH; ++r) {
#pragma unroll
        for (int c = 0; c < WIDE; ++c) {
            const INDEX oy = tile_y * HIGH + r, ox = tile_x * WIDE + c;
            if (oy < oh && ox < ow)
                STORE4(FOUR(EPILOGUE, sums[r * WIDE + c], image, channel, oy, ox), out,
                       out_at + ((image * oh + oy) * ow + ox) * channels + channel);
        }
    }
}

#if !DATA
__attribute__((reqd_work_group_size(LANES, TILES, 1)))
kernel void depthwise_channels_weight(
    global const T *restrict grad, ulong grad_at, global const T *restrict x, ulong x_at, global OUT *restrict out,
    ulong out_at, STRIDES(grad), STRIDES(x), GEOMETRY) {
    local SUM room[TAPS * TILES * SIDE];
    const int lane = get_local_id(0) * 4, own = get_local_id(1);
    const INDEX block = get_group_id(0) * SIDE, part = get_group_id(1), parts = get_num_groups(1);
    // A group's last channels may not be there: their work-items meet at the barrier all the same.
    const INDEX channel = min(block + lane, channels - 4);
    const INDEX across = (ow + WIDE - 1) / WIDE, down = (oh + HIGH - 1) / HIGH;
    grad += grad_at + channel;
    x += x_at + channel;
    SUM4 sums[TAPS];
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) sums[tap] = (SUM4)(0);
    for (INDEX tile = part * TILES + own; tile < images * down * across; tile += parts * TILES) {
        const INDEX image = tile / (across * down), tile_y = tile / across % down, tile_x = tile % across;
        SUM4 given[HIGH * WIDE];
#pragma unroll
        for (int r = 0; r < HIGH; ++r) {
#pragma unroll
            for (int c = 0; c < WIDE; ++c) {
                const INDEX oy = tile_y * HIGH + r, ox = tile_x * WIDE + c;
                given[r * WIDE + c] = (SUM4)(0);
                if (oy < oh && ox < ow) given[r * WIDE + c] = LOAD4(grad, image * grad_n + oy * grad_y + ox * grad_x);
            }
        }
#pragma unroll
        for (int iy = FIRST_Y; iy <= LAST_Y; ++iy) {
            const INDEX py = tile_y * (HIGH * SH) + iy;
            if (!INSIDE(py, h)) continue;
            SUM4 row[LAST_X - FIRST_X + 1];
#pragma unroll
            for (int ix = FIRST_X; ix <= LAST_X; ++ix) {
                const INDEX px = tile_x * (WIDE * SW) + ix;
                row[ix - FIRST_X] = (SUM4)(0);
                if (INSIDE(px, w)) row[ix - FIRST_X] = LOAD4(x, image * x_n + py * x_y + px * x_x);
            }
#pragma unroll
            for (int r = 0; r < HIGH; ++r) {
#pragma unroll
                for (int ky = 0; ky < KH; ++ky) {
                    if (UNDER_TAP(ky, r, SH, DH, TOP) != iy || !MEETS(ky, r, SH, DH, TOP)) continue;
#pragma unroll
                    for (int kx = 0; kx < KW; ++kx) {
#pragma unroll
                        for (int c = 0; c < WIDE; ++c)
                            sums[ky * KW + kx] =
                                fma(given[r * WIDE + c], row[UNDER_TAP(kx, c, SW, DW, LEFT) - FIRST_X],
                                    sums[ky * KW + kx]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) vstore4(sums[tap], 0, room + (tap * TILES + own) * SIDE + lane);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = own * LANES + get_local_id(0); i < TAPS * SIDE; i += LANES * TILES) {
        const int tap = i / SIDE, c = i % SIDE;
        if (block + c >= channels) continue;
        SUM sum = 0;
        for (int t = 0; t < TILES; ++t) sum += room[(tap * TILES + t) * SIDE + c];
        STORE(sum, out, out_at + (part * channels + block + c) * TAPS + tap);
    }
}
#endif

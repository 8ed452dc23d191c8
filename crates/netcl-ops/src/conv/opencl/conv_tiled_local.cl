// A convolution with a part of the image in local memory.
//
//      a part of one channel, in local memory            results
//     +-----------------------------+                   +-------------+
//     |  +---+                      |                   |  . . . .    |   work-group: TY x TX pixels of FILTERS filters
//     |  | o |  (TY - 1) * sh       |        ->         |  . . . .    |   work-item:  one pixel of each of them
//     |  +---+    + (KH - 1) * dh   |                   +-------------+
//     |             + 1 rows        |                    per channel: copy, wait, add up the taps, wait
//     +-----------------------------+
//
// Neighbouring windows overlap, so that each pixel is fetched once and read as often as there are taps; weights are the same for
// the whole group and come from the cache. Group z of the grid counts images and blocks of filters, which never cross a group
// of channels.
//
// Compiled with: TX, TY, FILTERS   the tile

kernel __attribute__((reqd_work_group_size(TX, TY, 1))) void conv_tiled_local(
    global const T *x, ulong x_at, global const T *weight, ulong weight_at, global OUT *out, ulong out_at, local SUM *tile,
    INDEX rows, INDEX cols, STRIDES(x), GEOMETRY EPILOGUE_PARAMS PROLOGUE_PARAMS) {
    const int lx = get_local_id(0), ly = get_local_id(1), item = ly * TX + lx;
    const INDEX ox0 = (INDEX)get_group_id(0) * TX, oy0 = (INDEX)get_group_id(1) * TY, z = get_group_id(2);
    const INDEX blocks = (filters + FILTERS - 1) / FILTERS;
    const INDEX block = z % blocks, group = z / blocks % groups, image = z / blocks / groups;
    const INDEX ox = ox0 + lx, oy = oy0 + ly, y0 = oy0 * sh - top, x0 = ox0 * sw - left;
    const INDEX taps = kh * kw;
    // The tile covers the pixels that exist; work-items past the end of the image help to copy, but must not read it.
    const bool inside = ox < ow && oy < oh;
    x += x_at;
    const INDEX from = image * x_n + group * channels * x_c;
    weight += weight_at + group * filters * channels * taps;
    SUM sums[FILTERS];
    INDEX filter_at[FILTERS];
    for (int f = 0; f < FILTERS; ++f) {
        sums[f] = 0;
        // Filters past the end repeat the last; what becomes of them is not stored.
        filter_at[f] = min(block * FILTERS + f, filters - 1) * channels * taps;
    }
    for (INDEX c = 0; c < channels; ++c) {
        for (INDEX at = item; at < rows * cols; at += TX * TY) {
            const INDEX y = y0 + at / cols, column = x0 + at % cols;
            const bool there = y >= 0 && y < h && column >= 0 && column < w;
            const INDEX place = from + c * x_c + y * x_y + column * x_x;
            tile[at] = there ? PROLOGUE(LOAD(x, place), image, group * channels + c, y, column) : (SUM)0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (INDEX ky = 0; inside && ky < kh; ++ky) {
            for (INDEX kx = 0; kx < kw; ++kx) {
                const SUM pixel = tile[(ly * sh + ky * dh) * cols + lx * sw + kx * dw];
                const INDEX tap = c * taps + ky * kw + kx;
                for (int f = 0; f < FILTERS; ++f) sums[f] = fma(LOAD(weight, filter_at[f] + tap), pixel, sums[f]);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (!inside) return;
    out += out_at;
    for (int f = 0; f < FILTERS; ++f) {
        const INDEX filter = block * FILTERS + f, channel = group * filters + filter;
        if (filter >= filters) break;
        STORE(EPILOGUE(sums[f], image, channel, oy, ox), out, ((image * groups * filters + channel) * oh + oy) * ow + ox);
    }
}

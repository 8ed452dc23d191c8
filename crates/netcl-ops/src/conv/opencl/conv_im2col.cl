// Windows as columns of a matrix, for the matrix product, and back.
//
//      x: one image, C x H x W                cols: K x P                        K = channels * KH * KW rows
//     +-----------------+                  p0  p1  p2 ...                        P = OH * OW columns, one for each window
//     | +-----+         |              k0 | w00 w00 w00 |
//     | | w0  |-> w1 -> |     ->       k1 | w01 w01 w01 |    row (c, ky, kx) of column (oy, ox) is
//     | +-----+         |                 |     ...     |    x[c, oy * sh + ky * dh - top, ox * sw + kx * dw - left], or 0
//     +-----------------+
//
//   im2col:  work-item (p, group and channel, image)   copies bits: one program for all types of a size
//   col2im:  work-item (pixel, channel, image)         adds up what each pixel went into; a gather, so that the order is fixed
//
// Rows of the matrix lie row_step elements apart, the columns of an image image_step behind those of the one before.
//
// Compiled with: BITS           an unsigned integer of the elements' size; for im2col of numbers with a prologue, their type
//                DATA           1 for col2im, 0 for im2col

#ifdef HAS_PROLOGUE
#define COPY(to, i, from, at, n, c, y, x) STORE(PROLOGUE(LOAD(from, at), n, c, y, x), to, i)
#define CLEAR(to, i) STORE((SUM)0, to, i)
#else
#define COPY(to, i, from, at, n, c, y, x) (to)[i] = (from)[at]
#define CLEAR(to, i) (to)[i] = 0
#endif

#if DATA
kernel void col2im(
    global const SUM *cols, global OUT *out, ulong out_at, INDEX first, INDEX row_step, INDEX image_step,
    GEOMETRY EPILOGUE_PARAMS) {
    const INDEX pixel = get_global_id(0), channel = get_global_id(1), image = get_global_id(2);
    if (pixel >= h * w || channel >= groups * channels) return;
    const INDEX y = pixel / w, x = pixel % w;
    cols += image * image_step + channel * kh * kw * row_step;
    SUM sum = 0;
    for (INDEX ky = 0; ky < kh; ++ky) {
        const INDEX down = y + top - ky * dh, oy = OVER(down, sh);
        if (down < 0 || !WHOLE(down, sh) || oy >= oh) continue;
        for (INDEX kx = 0; kx < kw; ++kx) {
            const INDEX right = x + left - kx * dw, ox = OVER(right, sw);
            if (right < 0 || !WHOLE(right, sw) || ox >= ow) continue;
            sum += cols[(ky * kw + kx) * row_step + oy * ow + ox];
        }
    }
    out += out_at;
    // The images of this launch start at `first`.
    const INDEX at = (((first + image) * groups * channels + channel) * h + y) * w + x;
    STORE(EPILOGUE(sum, first + image, channel, y, x), out, at);
}
#else
kernel void im2col(
    global const BITS *x, ulong x_at, global BITS *cols, INDEX first, INDEX row_step, INDEX image_step, STRIDES(x),
    GEOMETRY PROLOGUE_PARAMS) {
    const INDEX p = get_global_id(0), channel = get_global_id(1), image = get_global_id(2);
    if (p >= oh * ow || channel >= groups * channels) return;
    const INDEX down = p / ow * sh - top, right = p % ow * sw - left;
    x += x_at;
    const INDEX from = (first + image) * x_n + channel * x_c;
    INDEX to = image * image_step + channel * kh * kw * row_step + p;
    for (INDEX ky = 0; ky < kh; ++ky) {
        const INDEX y = down + ky * dh;
        for (INDEX kx = 0; kx < kw; ++kx, to += row_step) {
            const INDEX column = right + kx * dw;
            if (y >= 0 && y < h && column >= 0 && column < w)
                COPY(cols, to, x, from + y * x_y + column * x_x, first + image, channel, y, column);
            else
                CLEAR(cols, to);
        }
    }
}
#endif

// Convolutions, one result per work-item: any geometry, no local memory.
//
//   conv_naive:          work-item (pixel, filter, image):    out[image, filter, pixel]     sums over channels and taps
//   conv_naive_data:     work-item (pixel, channel, image):   dx[image, channel, pixel]     sums over filters and taps
//   conv_naive_weight:   work-item (channel and tap, filter): dw[filter, channel, tap]      sums over images and pixels
//
//        x                       out                  the data gradient looks back: output row (i + top - ky * dh) / sh
//     +-------------+         +--------+              for those ky where that is whole and inside
//     |  .   .   .  |   ->    |   o    |
//     |  .   .   .  |         +--------+
//     +-------------+        o = sum of weight[ky, kx] * x[oy * sh + ky * dh - top, ox * sw + kx * dw - left]
//
// Images may have any strides; weights and results lie densely. Channels and filters are counted within one of `groups` groups.

kernel void conv_naive(
    global const T *x, ulong x_at, global const T *weight, ulong weight_at, global OUT *out, ulong out_at, STRIDES(x),
    GEOMETRY EPILOGUE_PARAMS PROLOGUE_PARAMS) {
    const INDEX pixel = get_global_id(0), filter = get_global_id(1), image = get_global_id(2);
    if (pixel >= oh * ow) return;
    const INDEX oy = pixel / ow, ox = pixel % ow, group = filter / filters;
    x += x_at;
    const INDEX from = image * x_n + group * channels * x_c;
    weight += weight_at + filter * channels * kh * kw;
    SUM sum = 0;
    for (INDEX c = 0; c < channels; ++c) {
        for (INDEX ky = 0; ky < kh; ++ky) {
            const INDEX y = oy * sh + ky * dh - top;
            if (y < 0 || y >= h) continue;
            for (INDEX kx = 0; kx < kw; ++kx) {
                const INDEX column = ox * sw + kx * dw - left;
                if (column < 0 || column >= w) continue;
                const SUM value =
                    PROLOGUE(LOAD(x, from + c * x_c + y * x_y + column * x_x), image, group * channels + c, y, column);
                sum = fma(LOAD(weight, (c * kh + ky) * kw + kx), value, sum);
            }
        }
    }
    out += out_at;
    STORE(EPILOGUE(sum, image, filter, oy, ox), out, ((image * groups * filters + filter) * oh + oy) * ow + ox);
}

kernel void conv_naive_data(
    global const T *grad, ulong grad_at, global const T *weight, ulong weight_at, global OUT *out, ulong out_at, STRIDES(grad),
    GEOMETRY EPILOGUE_PARAMS) {
    const INDEX pixel = get_global_id(0), channel = get_global_id(1), image = get_global_id(2);
    if (pixel >= h * w) return;
    const INDEX y = pixel / w, x = pixel % w, group = channel / channels;
    grad += grad_at;
    const INDEX from = image * grad_n + group * filters * grad_c;
    weight += weight_at + (group * filters * channels + channel % channels) * kh * kw;
    SUM sum = 0;
    for (INDEX f = 0; f < filters; ++f) {
        for (INDEX ky = 0; ky < kh; ++ky) {
            const INDEX down = y + top - ky * dh, oy = OVER(down, sh);
            if (down < 0 || !WHOLE(down, sh) || oy >= oh) continue;
            for (INDEX kx = 0; kx < kw; ++kx) {
                const INDEX right = x + left - kx * dw, ox = OVER(right, sw);
                if (right < 0 || !WHOLE(right, sw) || ox >= ow) continue;
                const SUM value = LOAD(grad, from + f * grad_c + oy * grad_y + ox * grad_x);
                sum = fma(LOAD(weight, (f * channels * kh + ky) * kw + kx), value, sum);
            }
        }
    }
    out += out_at;
    STORE(EPILOGUE(sum, image, channel, y, x), out, ((image * groups * channels + channel) * h + y) * w + x);
}

kernel void conv_naive_weight(
    global const T *grad, ulong grad_at, global const T *x, ulong x_at, global OUT *out, ulong out_at, STRIDES(grad),
    STRIDES(x), GEOMETRY) {
    const INDEX element = get_global_id(0), filter = get_global_id(1);
    if (element >= channels * kh * kw) return;
    const INDEX c = element / (kh * kw), ky = element / kw % kh, kx = element % kw, group = filter / filters;
    grad += grad_at;
    x += x_at;
    SUM sum = 0;
    for (INDEX image = 0; image < images; ++image) {
        for (INDEX oy = 0; oy < oh; ++oy) {
            const INDEX y = oy * sh + ky * dh - top;
            if (y < 0 || y >= h) continue;
            const INDEX from = image * x_n + (group * channels + c) * x_c + y * x_y;
            const INDEX over = image * grad_n + filter * grad_c + oy * grad_y;
            // Row by row, so that the error grows with the rows and not with the pixels.
            SUM row = 0;
            for (INDEX ox = 0; ox < ow; ++ox) {
                const INDEX column = ox * sw + kx * dw - left;
                if (column >= 0 && column < w)
                    row = fma(LOAD(grad, over + ox * grad_x), LOAD(x, from + column * x_x), row);
            }
            sum += row;
        }
    }
    STORE(sum, out, out_at + filter * channels * kh * kw + element);
}

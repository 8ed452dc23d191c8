// Random changes of a batch of images.
//
//   table:       for each pass and image, the place of its words
//   words:       head code | old height, old width, height, width | the head's numbers | code, numbers | code, numbers | END
//   statistics:  for each image and channel 256 numbers: what a head has to know of the whole image
//
// A head says how a pixel is taken out of the old image; the codes after it are formulas for one pixel. Floats are words by their
// bits. All arithmetic is that of netcl-data's transforms, in the same order and without contraction: posterize, solarize and
// equalize jump, and would turn a last bit into a visible difference.

#pragma OPENCL FP_CONTRACT OFF

// Work-items of a group that sums up an image; a power of two.
#ifndef GROUP
#define GROUP 64
#endif

// In the order of `Code` in table.rs.
enum {
    END, COPY, WARP, BLUR_ROWS, BLUR_COLUMNS, SHARPNESS, CONTRAST, AUTOCONTRAST, EQUALIZE,
    BRIGHTNESS, SATURATION, HUE, POSTERIZE, SOLARIZE, ERASE, NORMALIZE
};

// In the order of `border` in table.rs.
enum { CONSTANT, EDGE, REFLECT };

// The words before a head's numbers.
#define HEADER 5
#define STATISTICS 256
#define GREY(r, g, b) (0.2989f * (r) + 0.587f * (g) + 0.114f * (b))

float number(long word) { return as_float((int)word); }

// Rounded as the host does it; a device's own division may be off by 2.5 ulp.
float divide(float a, float b)
{
    float quotient = a / b;
    float rest = fma(-quotient, b, a);
    return isnan(rest) ? quotient : quotient + rest / b;
}

float clamped(float x) { return clamp(x, 0.0f, 1.0f); }

float load(global const uchar *images, int bytes, ulong at)
{
    return bytes ? divide((float)images[at], 255.0f) : ((global const float *)images)[at];
}

// Which pixel of an axis has the value at a place; -1 outside of a constant border.
long place(long at, long length, int border)
{
    if (at >= 0 && at < length) return at;
    if (border == CONSTANT) return -1;
    if (border == REFLECT) {
        long period = max(2 * (length - 1), 1L);
        at %= period;
        at += at < 0 ? period : 0;
        at = min(at, period - at);
    }
    return clamp(at, 0L, length - 1);
}

int step_of(float x) { return min((int)(clamped(x) * (256.0f - 1e-3f)), 255); }

// HSV's hue turned by a share of the circle; see color.rs.
float3 turned(float3 color, float turn)
{
    float most = fmax(fmax(color.x, color.y), color.z), least = fmin(fmin(color.x, color.y), color.z);
    float range = most - least;
    if (range == 0.0f) return color;
    float sixths = most == color.x ? divide(color.y - color.z, range)
        : most == color.y ? 2.0f + divide(color.z - color.x, range)
        : 4.0f + divide(color.x - color.y, range);
    sixths = fmod(sixths + 6.0f * turn, 6.0f);
    sixths += sixths < 0.0f ? 6.0f : 0.0f;
    float3 distance = fabs((float3)(sixths, sixths - 2.0f, sixths - 4.0f));
    distance = fmin(distance, 6.0f - distance);
    return least + range * clamp(2.0f - distance, 0.0f, 1.0f);
}

// One work-item per pixel of the new images, for all channels: axis 0 is the pixel, axis 1 the image.
kernel void augment(
    global const uchar *images, ulong offset, int bytes, ulong old_stride, global const long *table, uint first,
    global const float *statistics, global float *result, ulong stride, uint channels)
{
    uint image = get_global_id(1);
    global const long *head = table + table[first + image];
    long old_height = head[1], old_width = head[2], height = head[3], width = head[4];
    uint at = get_global_id(0);
    if (at >= height * width) return;
    uint row = at / (uint)width, column = at % (uint)width;
    ulong old_size = old_height * old_width;
    global const long *numbers = head + HEADER, *formulas = numbers;
    ulong first_pixel = offset + image * old_stride;
    result += image * stride + at;
    statistics += (ulong)image * channels * STATISTICS;

    // What a warp needs is the same for all channels: four places, or one where no pixels are mixed.
    long places[4];
    float fx = 0.0f, fy = 0.0f, outside = 0.0f;
    int code = (int)head[0], samples = 1;
    if (code == WARP) {
        long x = numbers[0] * column + numbers[1] * row + numbers[2];
        long y = numbers[3] * column + numbers[4] * row + numbers[5];
        int border = (int)numbers[6];
        outside = number(numbers[7]);
        fx = (float)((x & 0xffffffffL) >> 8) / 16777216.0f;
        fy = (float)((y & 0xffffffffL) >> 8) / 16777216.0f;
        x >>= 32;
        y >>= 32;
        samples = fx == 0.0f && fy == 0.0f ? 1 : 4;
        for (int i = 0; i < samples; i++) {
            long from_row = place(y + i / 2, old_height, border), from_column = place(x + i % 2, old_width, border);
            places[i] = from_row < 0 || from_column < 0 ? -1 : from_row * old_width + from_column;
        }
        formulas += 8;
    } else if (code == BLUR_ROWS || code == BLUR_COLUMNS) {
        formulas += 1 + numbers[0];
    } else if (code == SHARPNESS || code == CONTRAST) {
        formulas += 1;
    }

    for (uint channel = 0; channel < channels; channel += 3) {
        float v[3];
        for (uint c = 0; c < 3; c++) {
            if (channel + c >= channels) {
                v[c] = 0.0f;
                continue;
            }
            ulong plane = first_pixel + (channel + c) * old_size;
            global const float *known = statistics + (channel + c) * STATISTICS;
            if (code == WARP) {
                float p[4];
                for (int i = 0; i < samples; i++) p[i] = places[i] < 0 ? outside : load(images, bytes, plane + places[i]);
                if (samples == 1) {
                    v[c] = p[0];
                } else {
                    float upper = (1.0f - fx) * p[0] + fx * p[1], lower = (1.0f - fx) * p[2] + fx * p[3];
                    v[c] = (1.0f - fy) * upper + fy * lower;
                }
                continue;
            }
            if (code == BLUR_ROWS || code == BLUR_COLUMNS) {
                long taps = numbers[0], reach = taps / 2;
                float sum = 0.0f;
                for (long i = 0; i < taps; i++) {
                    ulong from = code == BLUR_ROWS ? row * width + place(column - reach + i, width, REFLECT)
                                                   : place(row - reach + i, height, REFLECT) * width + column;
                    sum += number(numbers[1 + i]) * load(images, bytes, plane + from);
                }
                v[c] = sum;
                continue;
            }
            float x = load(images, bytes, plane + at);
            if (code == SHARPNESS) {
                float factor = number(numbers[0]);
                if (row > 0 && row + 1 < height && column > 0 && column + 1 < width) {
                    float around[3];
                    for (int y = 0; y < 3; y++) {
                        ulong from = plane + at + y * width - width;
                        around[y] = load(images, bytes, from - 1) + load(images, bytes, from) + load(images, bytes, from + 1);
                    }
                    float smooth = divide(around[0] + around[1] + around[2] + 4.0f * x, 13.0f);
                    x = factor * x + (1.0f - factor) * smooth;
                }
                x = clamped(x);
            } else if (code == CONTRAST) {
                // The mean is that of all channels, kept with the first.
                float factor = number(numbers[0]);
                x = clamped(factor * x + (1.0f - factor) * statistics[0]);
            } else if (code == AUTOCONTRAST && known[1] > known[0]) {
                x = clamped((x - known[0]) * divide(1.0f, known[1] - known[0]));
            } else if (code == EQUALIZE) {
                x = known[step_of(x)];
            }
            v[c] = x;
        }

        for (global const long *word = formulas; *word != END;) {
            int formula = (int)*word++;
            float factor = number(*word);
            if (formula == BRIGHTNESS) {
                for (int c = 0; c < 3; c++) v[c] = clamped(factor * v[c]);
                word += 1;
            } else if (formula == SATURATION) {
                float grey = GREY(v[0], v[1], v[2]);
                for (int c = 0; c < 3; c++) v[c] = clamped(factor * v[c] + (1.0f - factor) * grey);
                word += 1;
            } else if (formula == HUE) {
                float3 color = turned((float3)(v[0], v[1], v[2]), factor);
                v[0] = color.x;
                v[1] = color.y;
                v[2] = color.z;
                word += 1;
            } else if (formula == POSTERIZE) {
                // A power of two: its inverse is exact.
                float inverse = number(word[1]);
                for (int c = 0; c < 3; c++) v[c] = clamp(floor(v[c] * factor), 0.0f, factor - 1.0f) * inverse;
                word += 2;
            } else if (formula == SOLARIZE) {
                for (int c = 0; c < 3; c++) v[c] = v[c] >= factor ? 1.0f - v[c] : v[c];
                word += 1;
            } else if (formula == ERASE) {
                if (row >= word[1] && row - word[1] < word[3] && column >= word[2] && column - word[2] < word[4])
                    for (int c = 0; c < 3; c++) v[c] = factor;
                word += 5;
            } else { // NORMALIZE
                for (uint c = 0; c < 3 && channel + c < channels; c++)
                    v[c] = divide(v[c] - number(word[channel + c]), number(word[channels + channel + c]));
                word += 2 * channels;
            }
        }
        for (uint c = 0; c < 3 && channel + c < channels; c++) result[(channel + c) * (ulong)(height * width)] = v[c];
    }
}

// One work-group per channel (axis 0) and image (axis 1). Images whose head needs nothing are left alone; barriers are outside of
// all branches.
kernel void augment_statistics(
    global const uchar *images, ulong offset, int bytes, ulong old_stride, global const long *table, uint first,
    global float *statistics, uint channels)
{
    local long sums[GROUP];
    local float least[GROUP], most[GROUP];
    local uint counts[STATISTICS];
    uint item = get_local_id(0), channel = get_group_id(0), image = get_global_id(1);
    global const long *head = table + table[first + image];
    int code = (int)head[0];
    uint size = (uint)(head[1] * head[2]);
    ulong plane = offset + image * old_stride + channel * (ulong)size;
    int needed = code == AUTOCONTRAST || code == EQUALIZE || (code == CONTRAST && channel == 0);

    for (uint i = item; i < STATISTICS; i += GROUP) counts[i] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    long sum = 0;
    float low = INFINITY, high = -INFINITY;
    for (uint at = item; needed && at < size; at += GROUP) {
        float x = load(images, bytes, plane + at);
        if (code == EQUALIZE) {
            atomic_inc(&counts[step_of(x)]);
        } else if (code == AUTOCONTRAST) {
            low = fmin(low, x);
            high = fmax(high, x);
        } else {
            float g = channels == 3
                ? GREY(x, load(images, bytes, plane + size + at), load(images, bytes, plane + 2 * (ulong)size + at))
                : x;
            sum += convert_long_sat_rte(clamp(g, -64.0f, 64.0f) * 16777216.0f);
        }
    }
    sums[item] = sum;
    least[item] = low;
    most[item] = high;
    for (uint half_ = GROUP / 2; half_ > 0; half_ /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < half_) {
            sums[item] += sums[item + half_];
            least[item] = fmin(least[item], least[item + half_]);
            most[item] = fmax(most[item], most[item + half_]);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item > 0 || !needed) return;

    global float *known = statistics + ((ulong)image * channels + channel) * STATISTICS;
    if (code == CONTRAST) {
        known[0] = divide((float)sums[0], (float)size) / 16777216.0f;
    } else if (code == AUTOCONTRAST) {
        known[0] = least[0];
        known[1] = most[0];
    } else {
        uint last = 0, below = 0;
        for (uint i = 0; i < STATISTICS; i++) last = counts[i] > 0 ? counts[i] : last;
        uint step = (size - last) / 255;
        for (uint i = 0; i < STATISTICS; i++) {
            // Too few values to spread: only the rounding to bytes stays.
            uint value = step == 0 ? i : min((below + step / 2) / step, 255u);
            known[i] = divide((float)value, 255.0f);
            below += counts[i];
        }
    }
}

// Mixup and CutMix: a share of each item and the rest of the one before it, inside of a rectangle. Axis 0 is the place in an item, axis
// 1 the item.
kernel void augment_mix(
    global const float *items, ulong offset, global float *result, uint count, ulong size, uint height, uint width,
    float lambda, uint top, uint left, uint bottom, uint right)
{
    ulong at = get_global_id(0);
    uint item = get_global_id(1);
    if (at >= size) return;
    uint row = (uint)(at / width % height), column = (uint)(at % width);
    float own = items[offset + item * size + at];
    if (row >= top && row < bottom && column >= left && column < right) {
        float other = items[offset + (item == 0 ? count - 1 : item - 1) * size + at];
        own = lambda * own + (1.0f - lambda) * other;
    }
    result[item * size + at] = own;
}

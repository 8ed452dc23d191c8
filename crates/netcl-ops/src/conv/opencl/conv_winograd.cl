// Winograd's F(2x2, 3x3): 16 multiplications for the 4 results of a tile, instead of 36.
//
//      d: 4 x 4 of the input         V = B' d B          M = sum over channels U * V      2 x 2 of the result = A' M A
//     +--+--+--+--+
//     |  |  |  |  |  tiles overlap   winograd_input:     16 matrix products,              winograd_output:
//     +--+--+--+--+  by 2            work-item           filters x channels times         work-item (tile, filter)
//     |  |  |  |  |                  (tile, channel)     channels x tiles, which the
//     +--+--+--+--+                                      matrix product does
//     |  |  |  |  |                  winograd_filter:    U = G w G'
//     +--+--+--+--+                  work-item (filter and channel)
//
//          | 1  0 -1  0 |            | 1    0    0  |             | 1  1  1  0 |
//     B' = | 0  1  1  0 |        G = | 1/2  1/2  1/2|        A' = | 0  1 -1 -1 |
//          | 0 -1  1  0 |            | 1/2 -1/2  1/2|
//          | 0  1  0 -1 |            | 0    0    1  |
//
// In memory the 16 elements of a transform are far apart: element i of (row, column) at (i * rows + row) * columns + column.
// Tiles are numbered image by image, row by row. float32 only: the transforms double an error at most, but mix neighbours.

// `row_step` and `col_step` say where the filters of a row and column of U lie; `flip` turns them round for the data gradient.
kernel void winograd_filter(
    global const float *weight, ulong weight_at, global float *u, INDEX rows, INDEX cols, INDEX row_step, INDEX col_step,
    INDEX flip) {
    const INDEX at = get_global_id(0);
    if (at >= rows * cols) return;
    weight += weight_at + at / cols * row_step + at % cols * col_step;
    float w[3][3], half_way[4][3];
    for (int i = 0; i < 9; ++i) w[i / 3][i % 3] = weight[flip ? 8 - i : i];
    for (int i = 0; i < 3; ++i) {
        half_way[0][i] = w[0][i];
        half_way[1][i] = 0.5f * (w[0][i] + w[1][i] + w[2][i]);
        half_way[2][i] = 0.5f * (w[0][i] - w[1][i] + w[2][i]);
        half_way[3][i] = w[2][i];
    }
    const INDEX step = rows * cols;
    for (int i = 0; i < 4; ++i) {
        const float a = half_way[i][0], b = half_way[i][1], c = half_way[i][2];
        u[(4 * i + 0) * step + at] = a;
        u[(4 * i + 1) * step + at] = 0.5f * (a + b + c);
        u[(4 * i + 2) * step + at] = 0.5f * (a - b + c);
        u[(4 * i + 3) * step + at] = c;
    }
}

kernel void winograd_input(
    global const float *x, ulong x_at, global float *v, INDEX x_n, INDEX x_c, INDEX x_y, INDEX x_x, INDEX first, INDEX tiles,
    INDEX channels, INDEX h, INDEX w, INDEX down, INDEX right, INDEX top, INDEX left PROLOGUE_PARAMS) {
    const INDEX tile = get_global_id(0), channel = get_global_id(1);
    if (tile >= tiles) return;
    const INDEX image = first + tile / (down * right);
    const INDEX y0 = tile / right % down * 2 - top, x0 = tile % right * 2 - left;
    x += x_at;
    const INDEX from = image * x_n + channel * x_c;
    float d[4][4], half_way[4][4];
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
            const INDEX y = y0 + i, column = x0 + j;
            const bool there = y >= 0 && y < h && column >= 0 && column < w;
            d[i][j] = there ? (float)PROLOGUE(x[from + y * x_y + column * x_x], image, channel, y, column) : 0.0f;
        }
    }
    for (int j = 0; j < 4; ++j) {
        half_way[0][j] = d[0][j] - d[2][j];
        half_way[1][j] = d[1][j] + d[2][j];
        half_way[2][j] = d[2][j] - d[1][j];
        half_way[3][j] = d[1][j] - d[3][j];
    }
    const INDEX step = channels * tiles;
    v += channel * tiles + tile;
    for (int i = 0; i < 4; ++i) {
        v[(4 * i + 0) * step] = half_way[i][0] - half_way[i][2];
        v[(4 * i + 1) * step] = half_way[i][1] + half_way[i][2];
        v[(4 * i + 2) * step] = half_way[i][2] - half_way[i][1];
        v[(4 * i + 3) * step] = half_way[i][1] - half_way[i][3];
    }
}

kernel void winograd_output(
    global const float *m, global OUT *out, ulong out_at, INDEX first, INDEX tiles, INDEX filters, INDEX oh, INDEX ow, INDEX down,
    INDEX right EPILOGUE_PARAMS) {
    const INDEX tile = get_global_id(0), filter = get_global_id(1);
    if (tile >= tiles) return;
    const INDEX image = first + tile / (down * right), y0 = tile / right % down * 2, x0 = tile % right * 2;
    const INDEX step = filters * tiles;
    m += filter * tiles + tile;
    float half_way[2][4];
    for (int j = 0; j < 4; ++j) {
        const float a = m[j * step], b = m[(4 + j) * step], c = m[(8 + j) * step], d = m[(12 + j) * step];
        half_way[0][j] = a + b + c;
        half_way[1][j] = b - c - d;
    }
    out += out_at;
    for (int i = 0; i < 2; ++i) {
        const float a = half_way[i][0], b = half_way[i][1], c = half_way[i][2], d = half_way[i][3];
        const INDEX y = y0 + i;
        if (y >= oh) continue;
        const INDEX at = ((image * filters + filter) * oh + y) * ow + x0;
        STORE(EPILOGUE(a + b + c, image, filter, y, x0), out, at);
        if (x0 + 1 < ow) STORE(EPILOGUE(b - c - d, image, filter, y, x0 + 1), out, at + 1);
    }
}

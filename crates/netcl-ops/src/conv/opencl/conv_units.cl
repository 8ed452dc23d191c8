// What makes the product of matmul_wgmma.cl, before which it stands, a convolution of channels-last images: windows are never
// written out, the tensor copy engine reads them where they are.
//
//   images [n][y][x][c]                  a tile's rows are the pixels of a box;      filters [tap][f][c]
//   +-------------------+                for each tap the box, moved by the tap,     +-----------+
//   |   +-----+ . . .   |   BOX_X x      brings BK channels of all of them           | BK of c   | BN filters
//   |   | box | moved   |   BOX_Y x      (what lies outside is zero)            x    +-----------+
//   +---+-----+ . . .---+   BOX_N pixels
//
// WINDOWS == 1: a result for each pixel and filter, c[pixel][filter]. The data gradient is the same with the gradient for images
// and taps in the other order; with strides, once for each place that a pixel can have between two steps of a filter.
// WINDOWS == 2: the gradient of the filters. Terms are pixels, BK = BOX_X * BOX_Y * BOX_N of them at a time; the rows of c are
// the channels under each tap, one tap's after the other's, and its columns the filters. 16-bit gradients are read where they are, tf32 ones
// from a copy [filter][pixel] whose pixels lie in the order of the boxes (conv_turn).
//
// Compiled with: WINDOWS        see above
//                BOX_X, BOX_Y, BOX_N    pixels of a box along each axis
// Arguments, as w0.s0 to w0.sf and w1.s0 ...:
//   boxes along x, along y; width, height and number of the pixels that are walked over
//   the image's pixel under the first tap of pixel (0, 0): y, x; steps of pixels: y, x; steps of taps: y, x
//   taps along x; chunks of channels (1) or lines of channels padded to BLOCK (2)
//   (1) the first filter tap, and its steps along y and x; taps along y; where pixel (0, 0) is in the result, and the steps of pixels
//   there: what the epilogue reads

#define LOADER_PARAMS , int16 w0, int16 w1
#define BOXES_X w0.s0
#define BOXES_Y w0.s1
#define PIXELS_X w0.s2
#define PIXELS_Y w0.s3
#define IMAGES w0.s4
#define ORIGIN_Y w0.s5
#define ORIGIN_X w0.s6
#define STEP_Y w0.s7
#define STEP_X w0.s8
#define TAP_Y w0.s9
#define TAP_X w0.sa
#define TAPS_X w0.sb
#define CHANNELS w0.sc
#define FILTER_TAP w0.sd
#define FILTER_Y w0.se
#define FILTER_X w0.sf
#define TAPS_Y w1.s0
#define OUT_Y(y) (w1.s1 + (y) * w1.s3)
#define OUT_X(x) (w1.s2 + (x) * w1.s4)

#define BOXES (BOXES_X * BOXES_Y * ((IMAGES + BOX_N - 1) / BOX_N))

// The first pixel of a box: x, y, image.
int3 box_corner(int box, int16 w0) {
    return (int3)(box % BOXES_X * BOX_X, box / BOXES_X % BOXES_Y * BOX_Y, box / (BOXES_X * BOXES_Y) * BOX_N);
}

#if WINDOWS == 1

#define BOX_PIXELS (BOX_X * BOX_Y * BOX_N)
#define ROWS BOX_PIXELS
#define TILES_M BOXES
#define CHUNKS (TAPS_Y * TAPS_X * CHANNELS)
#define FIRST_ROW 0
#define LOADER_TILE                                                                                                     \
    const int3 corner = box_corner(place.y, w0);                                                                         \
    const int x = ORIGIN_X + corner.x * STEP_X, y = ORIGIN_Y + corner.y * STEP_Y;                                        \
    int tap = begin / CHANNELS, channel = begin % CHANNELS, tap_y = tap / TAPS_X, tap_x = tap % TAPS_X;
#define COPY_STAGE                                                                                                      \
    barrier_expect(bar, STAGE_BYTES - (BM - BOX_PIXELS) * ROW_BYTES);                                                    \
    copy_box(to, (ulong)a_map, channel * BK, x + tap_x * TAP_X, y + tap_y * TAP_Y, corner.z, bar);                       \
    copy_box(to + A_BYTES, (ulong)b_map, channel * BK, place.z * BN, FILTER_TAP + tap_y * FILTER_Y + tap_x * FILTER_X,   \
             0, bar);                                                                                                   \
    if (++channel == CHANNELS) {                                                                                         \
        channel = 0;                                                                                                    \
        if (++tap_x == TAPS_X) tap_x = 0, ++tap_y;                                                                       \
    }

#define BEGIN_TILE const int3 corner = box_corner(place.y, w0);
#define ROW_X(r) (corner.x + (r) % BOX_X)
#define ROW_Y(r) (corner.y + (r) / BOX_X % BOX_Y)
#define ROW_N(r) (corner.z + (r) / (BOX_X * BOX_Y))
#define ROW_INSIDE(r) ((r) < BOX_PIXELS && ROW_X(r) < PIXELS_X && ROW_Y(r) < PIXELS_Y && ROW_N(r) < IMAGES)
#define ROW_AT(r) (ROW_N(r) * c_b0 + ROW_Y(r) * c_b1 + ROW_X(r) * c_rs)
#define FINISHED(sum, r, s) EPILOGUE(sum, ROW_N(r), (s), OUT_Y(ROW_Y(r)), OUT_X(ROW_X(r)))

#else

#define ROWS (TAPS_Y * TAPS_X * CHANNELS)
#define TILES_M ((ROWS + BM - 1) / BM)
#define CHUNKS BOXES
#define FIRST_ROW ((INDEX)place.y * BM)
#define LOADER_TILE
// Lines of a tile that lie after the last tap read after the last channel: zeros.
#define COPY_STAGE                                                                                                      \
    const int3 corner = box_corner(chunk, w0);                                                                           \
    barrier_expect(bar, STAGE_BYTES);                                                                                   \
    for (int i = 0; i < BM; i += BLOCK) {                                                                                \
        const int line = place.y * BM + i, tap = line / CHANNELS;                                                        \
        copy_box(to + i * ROW_BYTES, (ulong)a_map, tap < TAPS_Y * TAPS_X ? line % CHANNELS : CHANNELS,                   \
                 ORIGIN_X + corner.x * STEP_X + tap % TAPS_X * TAP_X,                                                    \
                 ORIGIN_Y + corner.y * STEP_Y + tap / TAPS_X * TAP_Y, corner.z, bar);                                    \
    }                                                                                                                   \
    if (B_ALONG_K) {                                                                                                    \
        copy_box(to + A_BYTES, (ulong)b_map, chunk * BK, place.z * BN, 0, 0, bar);                                       \
    } else {                                                                                                            \
        for (int i = 0; i < BN; i += BLOCK)                                                                              \
            copy_box(to + A_BYTES + i * ROW_BYTES, (ulong)b_map, place.z * BN + i, corner.x, corner.y, corner.z, bar);   \
    }

#define BEGIN_TILE
// m is the number of channels; the lines between it and CHANNELS are padding.
#define ROW_TAP(r) ((r) / CHANNELS)
#define ROW_INSIDE(r) ((r) % CHANNELS < m && ROW_TAP(r) < TAPS_Y * TAPS_X)
#define ROW_AT(r) ((r) % CHANNELS * c_rs + ROW_TAP(r) / TAPS_X * c_b0 + ROW_TAP(r) % TAPS_X * c_b1)
#define FINISHED(sum, r, s) (sum)

#endif

// A step of a recurrent layer: the product of some rows with the recurrent weights, and the cell of what comes out.
//
//                        +---------+
//                        | weights | k              work-group: a tile of Y * ROWS rows of the batch and X * 4 columns
//                        +---------+
//          k              X * 4                     work-item (x, y, s): ROWS x 4 sums over the terms of slice s, read where they
//       +-----+          +---------+                                     lie: neighbours read the same rows and columns, so that
//       |  a  | Y * ROWS |  sums   |  -> cells                           most of it comes out of the first-level cache
//       +-----+          +---------+
//
// The sums of SLICES work-items meet in local memory; then every work-item has the cells of some elements of the tile. A product of
// a whole step has few results and many terms, so slices are what keeps a GPU busy.
//
//   recurrent_forward    a: the hidden states before           four columns: the gates of a hidden element, which the host has packed
//                                                              side by side; of a cell with one gate, four hidden elements
//   recurrent_backward   a: gradients of the gates after       four columns: four hidden elements
//
// Rows and columns past the edges repeat the last ones, since nothing is made of them. The first step of a walk has no product.
// States that are null pointers are zeros.
//
// Compiled with: ELEMENT, COMPUTE, COMPUTE4    the types of elements in memory, of sums and memories, of four of these
//                ALIGNED                    1 where rows of a begin on boundaries of four
//                ROWS, X, Y, SLICES         the tile; X * Y * SLICES work-items in a group
//                GATES, SAVED               blocks of the weight; values that forward saves of each hidden element, if it saves
//                MEMORY, CARRIES, APART     1 where the cell has a memory; has something that goes round the weights; has other
//                                           gradients for the recurrent part of the gates
//                CELL(v, y)                 the cell: inputs and outputs in the order of cell.rs

#define ITEMS (X * Y * SLICES)

#if ALIGNED
#define FACTORS(p, i) LOAD4(p, i)
#else
#define FACTORS(p, i) ((COMPUTE4)(LOAD(p, i), LOAD(p, (i) + 1), LOAD(p, (i) + 2), LOAD(p, (i) + 3)))
#endif

// The place of a work-item.
typedef struct {
    uint x, y, slice;
    // The tile's first row, and its first group of four columns.
    uint row, group;
} Place;

Place place(const uint groups) {
    const uint lid = get_local_id(0), tiles = (groups + X - 1) / X, tile = get_group_id(0);
    Place at;
    at.x = lid % X;
    at.y = lid / X % Y;
    at.slice = lid / (X * Y);
    at.row = tile / tiles * (Y * ROWS);
    at.group = tile % tiles * X;
    return at;
}

// Leaves the sums of all slices for the tile in local memory: [slice][row][column].
void multiply(__global const ELEMENT *a, __global const ELEMENT *restrict weights, const Place at, const uint batch, const uint terms,
              const uint groups, __local COMPUTE *sums) {
    __global const ELEMENT *rows[ROWS];
    COMPUTE4 own[ROWS];
    for (uint r = 0; r < ROWS; ++r) {
        rows[r] = a + (size_t)min(at.row + at.y * ROWS + r, batch - 1) * terms;
        own[r] = (COMPUTE4)(0);
    }
    const uint share = (terms + SLICES * 4 - 1) / (SLICES * 4) * 4;
    uint k = min(at.slice * share, terms);
    const uint end = min(k + share, terms);
    const size_t pitch = (size_t)groups * 4;
    __global const ELEMENT *column = weights + (size_t)min(at.group + at.x, groups - 1) * 4 + k * pitch;
    for (; k + 4 <= end; k += 4, column += 4 * pitch) {
        const COMPUTE4 w0 = LOAD4(column, 0), w1 = LOAD4(column, pitch), w2 = LOAD4(column, 2 * pitch),
                       w3 = LOAD4(column, 3 * pitch);
        for (uint r = 0; r < ROWS; ++r) {
            const COMPUTE4 by = FACTORS(rows[r], k);
            own[r] = fma((COMPUTE4)(by.s0), w0, own[r]);
            own[r] = fma((COMPUTE4)(by.s1), w1, own[r]);
            own[r] = fma((COMPUTE4)(by.s2), w2, own[r]);
            own[r] = fma((COMPUTE4)(by.s3), w3, own[r]);
        }
    }
    for (; k < end; ++k, column += pitch) {
        const COMPUTE4 w = LOAD4(column, 0);
        for (uint r = 0; r < ROWS; ++r) own[r] = fma((COMPUTE4)(LOAD(rows[r], k)), w, own[r]);
    }
    for (uint r = 0; r < ROWS; ++r) {
        vstore4(own[r], ((at.slice * Y + at.y) * ROWS + r) * X + at.x, sums);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// A sum of the tile, in the order of the slices.
COMPUTE total(__local const COMPUTE *sums, const uint row, const uint column) {
    COMPUTE sum = 0;
    for (uint slice = 0; slice < SLICES; ++slice) sum += sums[((slice * Y * ROWS) + row) * X * 4 + column];
    return sum;
}

// The state before a step, in the sequence or before it.
#define EARLIER(load, all, before, first, first_at, has_before, element) \
    ((has_before) ? load(all, before + (element)) : (first) ? load(first, (first_at) + (element)) : (COMPUTE)(0))
#define PLAIN(p, i) ((p)[i])

// `now` and `before` count elements of the hidden states of a step. Gates and saved values have a multiple of that.
__kernel void recurrent_forward(
    __global const ELEMENT *input, const ulong input_at, __global const ELEMENT *weights, const ulong weights_at,
    __global const ELEMENT *bias, const ulong bias_at, __global const ELEMENT *first, const ulong first_at,
    __global const COMPUTE *first_memory, const ulong first_memory_at, __global ELEMENT *out, __global COMPUTE *memories,
    __global ELEMENT *saved, const ulong now, const ulong before, const uint has_before, const uint batch, const uint hidden,
    __local COMPUTE *sums) {
    const uint groups = GATES == 1 ? (hidden + 3) / 4 : hidden;
    const Place at = place(groups);
    const bool has_state = has_before || first;
    // The same for all work-items: the barrier inside is met by all or by none.
    if (has_state) {
        multiply(has_before ? out + before : first + first_at, weights + weights_at, at, batch, hidden, groups, sums);
    }
    const uint columns = GATES == 1 ? X * 4 : X;
    for (uint e = get_local_id(0); e < Y * ROWS * columns; e += ITEMS) {
        const uint row = at.row + e / columns, j = at.group * (GATES == 1 ? 4 : 1) + e % columns;
        if (row >= batch || j >= hidden) continue;
        const size_t element = (size_t)row * hidden + j, gates = (now + (size_t)row * hidden) * GATES + j;
        COMPUTE v[3 * GATES + 1], y[2 + SAVED];
        for (uint g = 0; g < GATES; ++g) {
            v[g] = has_state ? total(sums, e / columns, GATES == 1 ? e % columns : e % columns * 4 + g) : (COMPUTE)(0);
            v[GATES + g] = LOAD(input, input_at + gates + g * hidden);
            v[2 * GATES + g] = bias ? LOAD(bias, bias_at + g * hidden + j) : (COMPUTE)(0);
        }
#if MEMORY
        v[3 * GATES] = EARLIER(PLAIN, memories, before, first_memory, first_memory_at, has_before, element);
#else
        v[3 * GATES] = EARLIER(LOAD, out, before, first, first_at, has_before, element);
#endif
        CELL(v, y);
        STORE(y[0], out, now + element);
        for (uint i = 0; i < SAVED; ++i) {
            STORE(y[1 + i], saved, (now + (size_t)row * hidden) * SAVED + i * hidden + j);
        }
#if MEMORY
        memories[now + element] = y[1 + SAVED];
#endif
    }
}

// `after` is the step that the walk has just left.
__kernel void recurrent_backward(
    __global const ELEMENT *weights, const ulong weights_at, __global const ELEMENT *out, const ulong out_at,
    __global const COMPUTE *memories, __global const ELEMENT *saved, __global const ELEMENT *upstream, const ulong upstream_at,
    __global const ELEMENT *last, const ulong last_at, __global const ELEMENT *first, const ulong first_at,
    __global const COMPUTE *first_memory, const ulong first_memory_at, __global ELEMENT *input, __global ELEMENT *apart,
    __global COMPUTE *carried, const ulong now, const ulong before, const ulong after, const uint has_before,
    const uint has_after, const uint batch, const uint hidden, __local COMPUTE *sums) {
    const uint groups = (hidden + 3) / 4;
    const Place at = place(groups);
    __global ELEMENT *recurrent = APART ? apart : input;
    if (has_after) {
        multiply(recurrent + after * GATES, weights + weights_at, at, batch, GATES * hidden, groups, sums);
    }
    for (uint e = get_local_id(0); e < Y * ROWS * X * 4; e += ITEMS) {
        const uint row = at.row + e / (X * 4), j = at.group * 4 + e % (X * 4);
        if (row >= batch || j >= hidden) continue;
        const size_t element = (size_t)row * hidden + j, gates = (now + (size_t)row * hidden) * GATES + j;
        COMPUTE v[5 + SAVED], y[GATES * (1 + APART) + 1];
        v[0] = has_after ? total(sums, e / (X * 4), e % (X * 4)) : last ? LOAD(last, last_at + element) : (COMPUTE)(0);
        v[1] = upstream ? LOAD(upstream, upstream_at + now + element) : (COMPUTE)(0);
        v[2] = CARRIES ? carried[element] : (COMPUTE)(0);
#if MEMORY
        v[3] = EARLIER(PLAIN, memories, before, first_memory, first_memory_at, has_before, element);
        v[4] = memories[now + element];
#else
        v[3] = EARLIER(LOAD, out, out_at + before, first, first_at, has_before, element);
        v[4] = LOAD(out, out_at + now + element);
#endif
        for (uint i = 0; i < SAVED; ++i) {
            v[5 + i] = LOAD(saved, (now + (size_t)row * hidden) * SAVED + i * hidden + j);
        }
        CELL(v, y);
        for (uint g = 0; g < GATES; ++g) {
            STORE(y[g], input, gates + g * hidden);
#if APART
            STORE(y[GATES + g], apart, gates + g * hidden);
#endif
        }
#if CARRIES
        carried[element] = y[GATES * (1 + APART)];
#endif
    }
}

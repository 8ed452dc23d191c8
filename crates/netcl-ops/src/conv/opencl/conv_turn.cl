// Copies the gradient of a convolution's output so that its pixels lie side by side, in the order in which conv_units.cl walks over boxes.
//
//        filters (dense)               pixels of box 0 | box 1 | ...  (dense)
//    +---+---+---+                   +---+---+
//    | 0 | 1 | 2 |  pixels     ->    | 0 | 3 |  filters     a work-group of 32 x 8 moves the 32 pixels of a box and 32
//    +---+---+---+                   +---+---+              filters by way of local memory; pixels outside are zero
//    | 3 | 4 | 5 |                   | 1 | 4 |
//    +---+---+---+                   +---+---+
//
// Compiled with: BOX_X, BOX_Y, BOX_N   pixels of a box along each axis; their product is 32

kernel __attribute__((reqd_work_group_size(32, 8, 1))) void conv_turn(
    global const uint *from, ulong from_at, global uint *to, INDEX filters, INDEX pitch, int boxes_x, int boxes_y,
    int width, int height, int images, INDEX by_n, INDEX by_y, INDEX by_x) {
    local uint tile[32][33];
    const int item = get_local_id(0), line = get_local_id(1);
    const int box = get_group_id(0), first = get_group_id(1) * 32;
    from += from_at;
#pragma unroll
    for (int i = line; i < 32; i += 8) {
        const int x = box % boxes_x * BOX_X + i % BOX_X, y = box / boxes_x % boxes_y * BOX_Y + i / BOX_X % BOX_Y;
        const int n = box / (boxes_x * boxes_y) * BOX_N + i / (BOX_X * BOX_Y);
        const bool inside = x < width && y < height && n < images && first + item < filters;
        tile[i][item] = inside ? from[n * by_n + y * by_y + x * by_x + first + item] : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int i = line; i < 32; i += 8)
        if (first + i < filters) to[(first + i) * pitch + (INDEX)box * 32 + item] = tile[item][i];
}

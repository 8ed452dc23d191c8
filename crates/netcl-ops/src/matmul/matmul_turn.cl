// Copies an operand whose lines lie side by side so that its terms do: a transpose by way of tiles in local memory.
//
//        lines (dense)                 terms (dense)
//    +---+---+---+                   +---+---+
//    | 0 | 1 | 2 |  terms      ->    | 0 | 3 |  lines      a work-group of 32 x 8 moves one tile of 32 x 32, and both its
//    +---+---+---+                   +---+---+             reads and its writes run along memory; the extra column of the
//    | 3 | 4 | 5 |                   | 1 | 4 |             tile keeps a column's elements in different banks
//    +---+---+---+                   +---+---+

kernel __attribute__((reqd_work_group_size(32, 8, 1))) void matmul_turn(
    global const uint *from, ulong from_at, global uint *to, INDEX terms, INDEX lines, INDEX pitch, INDEX batch1,
    INDEX term_step, INDEX b0, INDEX b1) {
    local uint tile[32][33];
    const int x = get_local_id(0), y = get_local_id(1);
    const INDEX line0 = (INDEX)get_group_id(0) * 32, term0 = (INDEX)get_group_id(1) * 32, z = get_group_id(2);
    from += from_at + z / batch1 * b0 + z % batch1 * b1;
    to += z * lines * pitch;
#pragma unroll
    for (int i = 0; i < 32; i += 8)
        if (line0 + x < lines && term0 + y + i < terms) tile[y + i][x] = from[(term0 + y + i) * term_step + line0 + x];
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int i = 0; i < 32; i += 8)
        if (term0 + x < terms && line0 + y + i < lines) to[(line0 + y + i) * pitch + term0 + x] = tile[x][y + i];
}

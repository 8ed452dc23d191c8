// Copies an operand into the panels that matmul_vectorized.cl reads, as values of type SUM.
//
//     lines                                    panel 0            panel 1
//    +--------+                              +---------+        +---------+
//    | 0 1 2  |  PANEL lines    ->   terms   | 0 3     |        | 6 . . . |      PANEL values for each of k terms;
//    | 3 4 5  |                              | 1 4     |        | 7       |      lines past the end are zeros
//    +--------+                              | 2 5     |        | 8       |
//    | 6 7 8  |                              +---------+        +---------+
//    +--------+
//     k terms
//
// Lines are the rows of a or the columns of b: only their stride differs. Work-item (term, panel, matrix).
//
// Compiled with: PANEL   lines of a panel

kernel void matmul_pack(global const T *from, ulong from_at, global SUM *to, INDEX lines, INDEX k, INDEX batch1,
                        INDEX line_stride, INDEX term_stride, INDEX b0, INDEX b1 PROLOGUE_PARAMS) {
    const INDEX term = get_global_id(0), panel = get_global_id(1), z = get_global_id(2);
    if (term >= k) return;
    const INDEX i0 = z / batch1, i1 = z % batch1;
    from += from_at + i0 * b0 + i1 * b1 + term * term_stride;
    to += ((z * (INDEX)get_global_size(1) + panel) * k + term) * PANEL;
    if ((panel + 1) * PANEL <= lines) {
        for (int i = 0; i < PANEL; ++i) {
            const INDEX line = panel * PANEL + i;
            to[i] = PROLOGUE(LOAD(from, line * line_stride), line, term, i0, i1);
        }
    } else {
        for (int i = 0; i < PANEL; ++i) {
            const INDEX line = panel * PANEL + i;
            to[i] = line < lines ? PROLOGUE(LOAD(from, line * line_stride), line, term, i0, i1) : (SUM)0;
        }
    }
}

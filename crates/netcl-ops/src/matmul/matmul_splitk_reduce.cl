// Adds the partial results of a product whose terms were split among work-groups, always in the same order.
//
//      part 0      part 1      part 2               c
//    +-------+   +-------+   +-------+          +-------+
//  m |   +   | + |   +   | + |   +   |   ->   m |   +   |     work-item (col, row, matrix): the sum over the parts,
//    +-------+   +-------+   +-------+          +-------+     then the epilogue
//        n
//
// Compiled with: SUM, OUT, INDEX, STORE, EPILOGUE, EPILOGUE_PARAMS   as in matmul_naive.cl
// The defaults make this file compile alone.

#ifndef SUM
#define SUM float
#endif
#ifndef OUT
#define OUT float
#endif
#ifndef INDEX
#define INDEX long
#endif
#ifndef STORE
#define STORE(v, p, i) ((p)[i] = (v))
#endif
#ifndef EPILOGUE
#define EPILOGUE_PARAMS
#define EPILOGUE(sum, row, col, i0, i1) (sum)
#endif

#pragma OPENCL FP_CONTRACT OFF

kernel void matmul_splitk_reduce(
    global const SUM *parts, global OUT *c, ulong c_at, INDEX m, INDEX n, INDEX batch1, INDEX splits, INDEX part,
    INDEX c_rs, INDEX c_cs, INDEX c_b0, INDEX c_b1 EPILOGUE_PARAMS) {
    const INDEX col = get_global_id(0), row = get_global_id(1), z = get_global_id(2);
    if (row >= m || col >= n) return;
    const INDEX i1 = z % batch1, i0 = z / batch1;
    parts += (z * m + row) * n + col;
    SUM sum = parts[0];
    for (INDEX i = 1; i < splits; ++i) sum += parts[i * part];
    c += c_at + i0 * c_b0 + i1 * c_b1;
    STORE(EPILOGUE(sum, row, col, i0, i1), c, row * c_rs + col * c_cs);
}

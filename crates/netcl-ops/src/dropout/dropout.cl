// Dropout: work-item g computes Philox block `block + g` and keeps or drops the four elements that belong to it.
//
//   x   | 4g  4g+1  4g+2  4g+3 |        kept where the upper 24 bits of the element's word lie below `below`
//   w   |  x    y     z     w  |

__kernel void dropout(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, const ulong y_at, const ulong n,
                      const ulong seed, const ulong block, const uint below, const COMPUTE scale) {
    const ulong g = get_global_id(0);
    if (g * 4 >= n) return;
    const uint4 w = netcl_random_block(seed, 0, block + g);
    const uint words[4] = {w.x, w.y, w.z, w.w};
    for (uint j = 0; j < 4; ++j) {
        const ulong i = g * 4 + j;
        if (i >= n) return;
        const COMPUTE v = words[j] >> 8 < below ? LOAD(x, x_at + i) * scale : (COMPUTE)0;
        STORE(v, y, y_at + i);
    }
}

// Mean and deviation of rows that are held in registers, for every kernel that normalises rows: the same bits in all of them.
//
//      row 0   [l0 l1 l2 ... | l0 l1 l2 ... | ...]      lane l has the vectors l, l + lanes, ...: VECTORS of them
//
// Work-item `lid` of a group of GROUP is `lane` of `lanes` of a row, and `tile` has two slots of local memory for each work-item.

// Adds up over the lanes of every row; all of them get the results.
#define JOIN(a, b)                                                                      \
    {                                                                                   \
        tile[lid] = a;                                                                  \
        tile[GROUP + lid] = b;                                                          \
        barrier(CLK_LOCAL_MEM_FENCE);                                                   \
        for (uint half_ = lanes / 2; half_ > 0; half_ /= 2) {                           \
            if (lane < half_) {                                                         \
                tile[lid] += tile[lid + half_];                                         \
                tile[GROUP + lid] += tile[GROUP + lid + half_];                         \
            }                                                                           \
            barrier(CLK_LOCAL_MEM_FENCE);                                               \
        }                                                                               \
        a = tile[lid - lane];                                                           \
        b = tile[GROUP + lid - lane];                                                   \
        barrier(CLK_LOCAL_MEM_FENCE);                                                   \
    }

#define EACH(j) for (uint j = 0; j < VECTORS; ++j)
#define AT(j) ((UINT)((j) * lanes + lane) * WIDTH)

// From the vectors `v`, of which those from `end` on are zeros: the mean of so many elements, 0 unless `centred`, in `middle`, and one
// divided by the deviation in `by`. The rounded mean is off by a little, which the deviations from it show.
#define ROW_MOMENTS(count)                                                              \
    VCOMPUTE sums = (VCOMPUTE)(0), squares = (VCOMPUTE)(0);                             \
    _Pragma("unroll") EACH(j) sums += v[j];                                             \
    COMPUTE middle = ALL(PLUS, sums), unused = 0;                                       \
    if (centred) JOIN(middle, unused)                                                   \
    middle = centred ? middle / count : 0;                                              \
    sums = (VCOMPUTE)(0);                                                               \
    _Pragma("unroll") EACH(j) {                                                         \
        const VCOMPUTE d = AT(j) < end ? v[j] - middle : (VCOMPUTE)(0);                 \
        sums += d;                                                                      \
        squares += d * d;                                                               \
    }                                                                                   \
    COMPUTE off = ALL(PLUS, sums), total = ALL(PLUS, squares);                          \
    JOIN(off, total)                                                                    \
    off = centred ? off / count : 0;                                                    \
    middle += off;                                                                      \
    const COMPUTE var = total / count - off * off;                                      \
    const COMPUTE by = 1 / sqrt((var < 0 ? 0 : var) + eps);

// The mean cross-entropy of rows of logits, and its gradient: one launch each.
//
//   logits (rows, classes)
//   +---------------+
//   | x0 x1 ... xC  |  label  ->   loss = (m - x[label]) + s      stats[row]        = m = max(x)
//   +---------------+                                             stats[rows + row] = s = log(sum(exp(x - m)))
//                                                                 stats[2 rows]     = rows that count
// The maximum and the rest are kept apart: in their sum large logits would leave the rest no digits.
//
//   cross_entropy_groups    `lanes` work-items share a row, what is left of the group takes further rows
//
// Every group writes the sum of its losses and how many count to partial[group], and counts itself; the group that comes last
// adds up all parts, in their order, so that the result is always the same. It leaves the counter at zero, as it was.
//
// A row with the ignored label counts for nothing; any other label outside 0..classes makes the loss NaN.
//
// Compiled with: REAL    float or double
//                LABEL   int or long
//                FENCE   makes what was written visible to all groups
// The defaults make this file compile alone.

#ifndef REAL
#define REAL float
#define LABEL long
#endif

#ifndef FENCE
#define FENCE mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif

#define INPUTS __global const REAL *logits, ulong logits_at, __global const LABEL *labels, ulong labels_at
#define SIZES uint rows, uint classes, long ignored, uint ignores

// The loss of a row.
#define LOSS(x, largest, rest, label) \
    ((label) >= 0 && (label) < (long)classes ? ((largest) - (x)[label]) + (rest) : (REAL)NAN)

// Whether this is the last group to come here, with its part in memory where the others see it.
uint is_last(__global volatile uint *counter) {
    FENCE;
    const uint before = atomic_inc(counter);
    FENCE;
    return before + 1 == (uint)get_num_groups(0);
}

void write_loss(REAL sum, REAL counted, __global REAL *loss, __global REAL *stats, uint rows,
                __global volatile uint *counter) {
    // No rows give 0 / 0.
    loss[0] = sum / counted;
    stats[2 * (ulong)rows] = counted;
    *counter = 0;
}

// `value` of all work-items of a row, combined: every 16th lane, then the 16 results. No barrier stands in a loop, which
// compilers for CPUs take long over, or in a branch, which some get wrong.
#define ADD(a, b) ((a) + (b))
#define JOIN(value, with, lane, lanes)                                                                       \
    {                                                                                                        \
        __local REAL *row_ = tile + (lid - (lane));                                                          \
        row_[lane] = value;                                                                                  \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        if ((lane) < 16)                                                                                     \
            for (uint j_ = (lane) + 16; j_ < (lanes); j_ += 16) row_[lane] = with(row_[lane], row_[j_]);     \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        value = row_[0];                                                                                     \
        for (uint j_ = 1; j_ < 16 && j_ < (lanes); ++j_) value = with(value, row_[j_]);                      \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
    }

__kernel void cross_entropy_groups(INPUTS, __global REAL *loss, __global REAL *stats, __global volatile REAL *partial,
                                   __global volatile uint *counter, SIZES, uint lanes, __local REAL *tile) {
    const uint lid = get_local_id(0), n = get_local_size(0), lane = lid % lanes;
    const uint row = (uint)get_group_id(0) * (n / lanes) + lid / lanes;
    // Rows beyond the last have no elements, but meet the others at the barriers.
    const uint end = row < rows ? classes : 0;
    __global const REAL *x = logits + logits_at + (ulong)(row < rows ? row : 0) * classes;
    REAL largest = -INFINITY;
    for (uint c = lane; c < end; c += lanes) largest = fmax(largest, x[c]);
    JOIN(largest, fmax, lane, lanes)
    // Where all is -inf, or something +inf: as in log_softmax, no number is taken from them.
    REAL powers = 0;
    for (uint c = lane; c < end; c += lanes) powers += exp(x[c] - largest);
    JOIN(powers, ADD, lane, lanes)
    REAL sum = 0, counted = 0;
    if (lane == 0 && row < rows) {
        const REAL rest = log(powers);
        const long label = labels[labels_at + row];
        stats[row] = largest;
        stats[(ulong)rows + row] = rest;
        if (!(ignores && label == ignored)) {
            sum = LOSS(x, largest, rest, label);
            counted = 1;
        }
    }
    JOIN(sum, ADD, lid, n)
    JOIN(counted, ADD, lid, n)
    __local uint last;
    if (lid == 0) {
        partial[2 * get_group_id(0)] = sum;
        partial[2 * get_group_id(0) + 1] = counted;
        last = is_last(counter);
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const uint parts = last ? (uint)get_num_groups(0) : 0;
    sum = counted = 0;
    for (uint p = lid; p < parts; p += n) {
        sum += partial[2 * (ulong)p];
        counted += partial[2 * (ulong)p + 1];
    }
    JOIN(sum, ADD, lid, n)
    JOIN(counted, ADD, lid, n)
    if (lid == 0 && parts > 0) write_loss(sum, counted, loss, stats, rows, counter);
}

// Work-item g makes element g: (softmax - 1 at the label) * upstream / rows that count.
__kernel void cross_entropy_backward_groups(INPUTS, __global const REAL *stats, __global const REAL *upstream,
                                            ulong upstream_at, __global REAL *grad, SIZES) {
    const ulong g = get_global_id(0);
    if (g >= (ulong)rows * classes) return;
    const uint row = (uint)(g / classes), c = (uint)(g % classes);
    const long label = labels[labels_at + row];
    REAL value = 0;
    if (!(ignores && label == ignored)) {
        const REAL scale = upstream[upstream_at] / stats[2 * (ulong)rows];
        const REAL share = exp((logits[logits_at + g] - stats[row]) - stats[(ulong)rows + row]);
        value = label >= 0 && label < (long)classes ? (share - (label == (long)c ? 1 : 0)) * scale : (REAL)NAN;
    }
    grad[g] = value;
}

// The mean cross-entropy of few, short rows of logits, and its gradient: one launch each.
//
//   logits (rows, classes)         one work-group; work-item i takes rows i, i + n, i + 2n, ...
//   +---------------+
//   | x0 x1 ... xC  |  label  ->   loss = (m - x[label]) + s      stats[row]        = m = max(x)
//   +---------------+                                             stats[rows + row] = s = log(sum(exp(x - m)))
//                                                                 stats[2 rows]     = rows that count
// The maximum and the rest are kept apart: in their sum large logits would leave the rest no digits.
//
// The sums of the work-items are added in halves, so that the order is always the same. A row with the ignored label counts
// for nothing; any other label outside 0..classes makes the loss NaN.
//
// Compiled with: REAL    float or double
//                LABEL   int or long
// The defaults make this file compile alone.

#ifndef REAL
#define REAL float
#endif
#ifndef LABEL
#define LABEL long
#endif

__kernel void cross_entropy(__global const REAL *logits, ulong logits_at, __global const LABEL *labels, ulong labels_at,
                            __global REAL *loss, __global REAL *stats, uint rows, uint classes, long ignored,
                            uint ignores, __local REAL *sums) {
    const uint id = get_local_id(0), n = get_local_size(0);
    REAL sum = 0, counted = 0;
    for (uint row = id; row < rows; row += n) {
        __global const REAL *x = logits + logits_at + (ulong)row * classes;
        REAL largest = x[0];
        for (uint c = 1; c < classes; ++c) largest = fmax(largest, x[c]);
        // Where all is -inf, or something +inf: as in log_softmax, no number is taken from them.
        REAL powers = 0;
        for (uint c = 0; c < classes; ++c) powers += exp(x[c] - largest);
        const REAL rest = log(powers);
        stats[row] = largest;
        stats[rows + row] = rest;
        const long label = labels[labels_at + row];
        if (!(ignores && label == ignored)) {
            sum += label >= 0 && label < (long)classes ? (largest - x[label]) + rest : (REAL)NAN;
            counted += 1;
        }
    }
    sums[id] = sum;
    sums[n + id] = counted;
    for (uint half_n = n / 2; half_n > 0; half_n /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < half_n) {
            sums[id] += sums[id + half_n];
            sums[n + id] += sums[n + id + half_n];
        }
    }
    if (id == 0) {
        // No rows give 0 / 0.
        loss[0] = sums[0] / sums[n];
        stats[2 * rows] = sums[n];
    }
}

// Work-item g makes element g: (softmax - 1 at the label) * upstream / rows that count.
__kernel void cross_entropy_backward(__global const REAL *logits, ulong logits_at, __global const LABEL *labels,
                                     ulong labels_at, __global const REAL *stats, __global const REAL *upstream,
                                     ulong upstream_at, __global REAL *grad, uint rows, uint classes, long ignored,
                                     uint ignores) {
    const ulong g = get_global_id(0);
    if (g >= (ulong)rows * classes) return;
    const uint row = (uint)(g / classes), c = (uint)(g % classes);
    const long label = labels[labels_at + row];
    REAL value = 0;
    if (!(ignores && label == ignored)) {
        const REAL scale = upstream[upstream_at] / stats[2 * rows];
        const REAL share = exp((logits[logits_at + g] - stats[row]) - stats[rows + row]);
        value = label >= 0 && label < (long)classes ? (share - (label == (long)c ? 1 : 0)) * scale : (REAL)NAN;
    }
    grad[g] = value;
}

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
// Compiled with: LABEL   int or long

#define INPUTS __global const COMPUTE *logits, ulong logits_at, __global const LABEL *labels, ulong labels_at
#define SIZES uint rows, uint classes, long ignored, uint ignores

// The loss of a row.
#define LOSS(x, largest, rest, label) \
    ((label) >= 0 && (label) < (long)classes ? ((largest) - (x)[label]) + (rest) : (COMPUTE)NAN)

// Whether this is the last group to come here, with its part in memory where the others see it.
uint is_last(__global volatile uint *counter) {
    FENCE;
    const uint before = atomic_inc(counter);
    FENCE;
    return before + 1 == (uint)get_num_groups(0);
}

void write_loss(COMPUTE sum, COMPUTE counted, __global COMPUTE *loss, __global COMPUTE *stats, uint rows,
                __global volatile uint *counter) {
    // No rows give 0 / 0.
    loss[0] = sum / counted;
    stats[2 * (ulong)rows] = counted;
    *counter = 0;
}

__kernel void cross_entropy_groups(INPUTS, __global COMPUTE *loss, __global COMPUTE *stats, __global volatile COMPUTE *partial,
                                   __global volatile uint *counter, SIZES, uint lanes, __local COMPUTE *tile) {
    const uint lid = get_local_id(0), n = get_local_size(0), lane = lid % lanes;
    const uint row = (uint)get_group_id(0) * (n / lanes) + lid / lanes;
    // Rows beyond the last have no elements, but meet the others at the barriers.
    const uint end = row < rows ? classes : 0;
    __global const COMPUTE *x = logits + logits_at + (ulong)(row < rows ? row : 0) * classes;
    COMPUTE largest = -INFINITY;
    for (uint c = lane; c < end; c += lanes) largest = fmax(largest, x[c]);
    JOIN_LANES(largest, fmax, lane, lanes)
    // Where all is -inf, or something +inf: as in log_softmax, no number is taken from them.
    COMPUTE powers = 0;
    for (uint c = lane; c < end; c += lanes) powers += exp(x[c] - largest);
    JOIN_LANES(powers, PLUS, lane, lanes)
    COMPUTE sum = 0, counted = 0;
    if (lane == 0 && row < rows) {
        const COMPUTE rest = log(powers);
        const long label = labels[labels_at + row];
        stats[row] = largest;
        stats[(ulong)rows + row] = rest;
        if (!(ignores && label == ignored)) {
            sum = LOSS(x, largest, rest, label);
            counted = 1;
        }
    }
    JOIN_LANES(sum, PLUS, lid, n)
    JOIN_LANES(counted, PLUS, lid, n)
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
    JOIN_LANES(sum, PLUS, lid, n)
    JOIN_LANES(counted, PLUS, lid, n)
    if (lid == 0 && parts > 0) write_loss(sum, counted, loss, stats, rows, counter);
}

// Work-item g makes element g: (softmax - 1 at the label) * upstream / rows that count.
__kernel void cross_entropy_backward_groups(INPUTS, __global const COMPUTE *stats, __global const COMPUTE *upstream,
                                            ulong upstream_at, __global COMPUTE *grad, SIZES) {
    const ulong g = get_global_id(0);
    if (g >= (ulong)rows * classes) return;
    const uint row = (uint)(g / classes), c = (uint)(g % classes);
    const long label = labels[labels_at + row];
    COMPUTE value = 0;
    if (!(ignores && label == ignored)) {
        const COMPUTE scale = upstream[upstream_at] / stats[2 * (ulong)rows];
        const COMPUTE share = exp((logits[logits_at + g] - stats[row]) - stats[(ulong)rows + row]);
        value = label >= 0 && label < (long)classes ? (share - (label == (long)c ? 1 : 0)) * scale : (COMPUTE)NAN;
    }
    grad[g] = value;
}

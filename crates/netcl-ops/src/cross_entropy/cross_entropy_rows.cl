// The cross-entropy of each row of logits, and in their place its gradient: one launch, a work-group for each row.
//
//   x (rows, step)                                      top   = max(x)
//   +-------------------+-----+                         rest  = log(sum(exp(x - top)))
//   | x0 x1 ... xC-1    |     |  label  ->   losses[row] = (1 - s) * ((top - x[label]) + rest) + s * ((top - mean(x)) + rest)
//   +-------------------+-----+              x[c]        = (exp(x[c] - top - rest) - s / C - (c == label ? 1 - s : 0)) * scale[row]
//         classes        unused
//
// A work-item reads vectors of WIDTH elements and keeps the maximum and the sum of powers of what it has read, so that logits are
// read twice. A row with the ignored label has the loss and the gradient 0, one with any other label outside 0..classes NaN.

__kernel void cross_entropy_rows(__global ELEMENT *x, ulong x_at, __global const long *labels, ulong labels_at,
                                 __global const COMPUTE *scales, ulong scales_at, __global COMPUTE *losses,
                                 ulong losses_at, UINT classes, UINT step, uint ignored_low, uint ignored_high,
                                 uint ignores, COMPUTE smoothing, uint scaled, uint backward, __local COMPUTE *tile) {
    const uint lid = get_local_id(0);
    const ulong row = get_group_id(0);
    __global ELEMENT *own = x + x_at + row * step;
    const long label = labels[labels_at + row], ignored = (long)(((ulong)ignored_high << 32) | ignored_low);
    const bool counts = !(ignores && label == ignored), known = label >= 0 && label < (long)classes;
    // Read before anybody writes gradients.
    const COMPUTE at_label = known ? LOAD(own, label) : 0;
    const UINT whole = classes / WIDTH * WIDTH;
    COMPUTE largest = -INFINITY, powers = 0, sum = 0;
    for (UINT c = lid * WIDTH; c < whole; c += GROUP * WIDTH) {
        const VCOMPUTE v = LOADV(own + c);
        const COMPUTE before = largest;
        largest = fmax(largest, ALL(fmax, v));
        // Nothing but -inf so far: its powers are 0.
        const COMPUTE base = largest == -INFINITY ? 0 : largest;
        const VCOMPUTE p = exp(v - base);
        powers = powers * exp(before - base) + ALL(PLUS, p);
        sum += ALL(PLUS, v);
    }
    for (UINT c = whole + lid; c < classes; c += GROUP) {
        const COMPUTE v = LOAD(own, c), before = largest;
        largest = fmax(largest, v);
        const COMPUTE base = largest == -INFINITY ? 0 : largest;
        powers = powers * exp(before - base) + exp(v - base);
        sum += v;
    }
    COMPUTE top = largest;
    JOIN_LANES(top, fmax, lid, GROUP)
    powers *= largest == -INFINITY ? (COMPUTE)1 : exp(largest - top);
    JOIN_LANES(powers, PLUS, lid, GROUP)
    JOIN_LANES(sum, PLUS, lid, GROUP)
    const COMPUTE rest = log(powers);
    if (lid == 0) {
        const COMPUTE plain = (top - at_label) + rest, even = (top - sum / classes) + rest;
        const COMPUTE loss = smoothing > 0 ? (1 - smoothing) * plain + smoothing * even : plain;
        losses[losses_at + row] = !counts ? (COMPUTE)0 : known ? loss : (COMPUTE)NAN;
    }
    if (!backward) return;
    const COMPUTE scale = !known ? (COMPUTE)NAN : scaled ? scales[scales_at + row] : (COMPUTE)1;
    const COMPUTE even = smoothing / classes, less = 1 - smoothing;
    for (UINT c = lid * WIDTH; c < whole; c += GROUP * WIDTH) {
        const VCOMPUTE g = (exp((LOADV(own + c) - top) - rest) - even) * scale;
        STOREV(counts ? g : (VCOMPUTE)(0), own + c);
        if (counts && known && label >= (long)c && label < (long)(c + WIDTH))
            STORE((exp((at_label - top) - rest) - even - less) * scale, own, label);
    }
    for (UINT c = whole + lid; c < classes; c += GROUP) {
        const COMPUTE g = (exp((LOAD(own, c) - top) - rest) - even - (label == (long)c ? less : 0)) * scale;
        STORE(counts ? g : (COMPUTE)0, own, c);
    }
}

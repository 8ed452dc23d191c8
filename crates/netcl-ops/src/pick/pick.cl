// One element of every line, chosen by a label, and the adjoint of that.
//
//   full (outer, classes, inner)            small (outer, inner)
//
//        c ->                               pick:    small[o, i]   = full[o, label(o, i), i]
//      +---+---+---+---+                    unpick:  full[o, c, i] = c == label(o, i) ? small[o, i] : 0
//      |   |   | x |   |  label 2  <->  x
//      +---+---+---+---+                    Work-item g writes element g of the result, which is dense, as are the labels;
//      | y |   |   |   |  label 0  <->  y   the source has strides (s_o, s_c, s_i).
//      +---+---+---+---+
//
// The ignored label gives 0, any other label outside 0..classes gives NaN; neither reads the source.
//
// Compiled with: LABEL   int or long

#define PARAMS                                                                                                   \
    __global const BITS *source, ulong source_at, __global const LABEL *labels, ulong labels_at,                 \
        __global BITS *out, long s_o, long s_c, long s_i, ulong outer, ulong classes, ulong inner, long ignored, \
        uint ignores, ulong nan_bits

__kernel void pick(PARAMS) {
    const ulong g = get_global_id(0);
    if (g >= outer * inner) return;
    const long o = (long)(g / inner), i = (long)(g % inner);
    const long label = labels[labels_at + g];
    BITS value = (BITS)nan_bits;
    if (ignores && label == ignored)
        value = 0;
    else if (label >= 0 && (ulong)label < classes)
        value = source[(long)source_at + o * s_o + label * s_c + i * s_i];
    out[g] = value;
}

__kernel void unpick(PARAMS) {
    const ulong g = get_global_id(0);
    if (g >= outer * classes * inner) return;
    const ulong i = g % inner, line = g / inner, c = line % classes, o = line / classes;
    const long label = labels[labels_at + o * inner + i];
    BITS value = 0;
    if (!(ignores && label == ignored)) {
        if (label < 0 || (ulong)label >= classes)
            value = (BITS)nan_bits;
        else if ((ulong)label == c)
            value = source[(long)source_at + (long)o * s_o + (long)i * s_i];
    }
    out[g] = value;
}

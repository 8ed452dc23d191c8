// Padding of three axes: a tensor is outer x (a, b, c) x inner.
//
//   pad            work-item i -> result i:   place o of an axis holds element `source` of the input
//
//        c b [a b c d] c b      reflect           a a [a b c d] d d      replicate           0 0 [a b c d] 0 0    constant
//        c d [a b c d] a b      circular
//
//   pad_backward   work-item i -> input element i, which gathers from the places it was copied to: a run of neighbours, and
//                  one image on either side where the mode mirrors or goes round

typedef struct {
    INT in, out, before;
} Axis;

#define GEOMETRY                                                                                                   \
    const UINT items, const INT a_in, const INT a_out, const INT a_before, const INT b_in, const INT b_out,        \
    const INT b_before, const INT c_in, const INT c_out, const INT c_before, const UINT inner, const uint mode
#define AXES                                          \
    const Axis a = {a_in, a_out, a_before};           \
    const Axis b = {b_in, b_out, b_before};           \
    const Axis c = {c_in, c_out, c_before};

// The element at a place of the result, or -1.
INT source(Axis x, INT o, uint mode) {
    const INT at = o - x.before;
    if (mode == 0) return at >= 0 && at < x.in ? at : -1;
    if (mode == 2) return clamp(at, (INT)0, x.in - 1);
    if (mode == 3) return at < 0 ? at + x.in : at >= x.in ? at - x.in : at;
    return at < 0 ? -at : at >= x.in ? 2 * (x.in - 1) - at : at;
}

#ifdef KERNEL_pad
__kernel void pad(__global const ELEMENT *x, const ulong x_at, __global ELEMENT *y, const ulong y_at, GEOMETRY,
                  const COMPUTE value) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    UINT rest = i / inner;
    const INT oc = source(c, (INT)(rest % (UINT)c.out), mode); rest /= (UINT)c.out;
    const INT ob = source(b, (INT)(rest % (UINT)b.out), mode); rest /= (UINT)b.out;
    const INT oa = source(a, (INT)(rest % (UINT)a.out), mode); rest /= (UINT)a.out;
    COMPUTE v = value;
    if (oa >= 0 && ob >= 0 && oc >= 0) {
        const ulong row = (((ulong)rest * (ulong)a.in + (ulong)oa) * (ulong)b.in + (ulong)ob) * (ulong)c.in + (ulong)oc;
        v = LOAD(x, x_at + row * inner + i % inner);
    }
    STORE(v, y, y_at + i);
}
#endif

// The places of the result that element i was copied to: `run` neighbours from `first` on.
typedef struct {
    INT first, run;
} Places;

Places places(Axis x, INT i, uint mode) {
    Places p = {i + x.before, 1};
    if (mode == 0 && (p.first < 0 || p.first >= x.out)) p.run = 0;
    if (mode == 2) {
        const INT last = i == x.in - 1 ? x.out - 1 : p.first;
        if (i == 0) p.first = 0;
        p.run = last - p.first + 1;
    }
    return p;
}

// Place k of element i: those of the run, then the images; -1 where there is none.
INT place(Axis x, Places p, INT i, INT k, uint mode) {
    if (k < p.run) return p.first + k;
    if (mode == 3) {
        const INT turn = k == p.run ? p.first - x.in : p.first + x.in;
        return turn >= 0 && turn < x.out ? turn : -1;
    }
    const INT image = k == p.run ? x.before - i : x.before + 2 * (x.in - 1) - i;
    if (k == p.run) return i > 0 && image >= 0 ? image : -1;
    return i < x.in - 1 && image < x.out ? image : -1;
}

#ifdef KERNEL_pad_backward
__kernel void pad_backward(__global const ELEMENT *grad, const ulong grad_at, __global ELEMENT *to, const ulong to_at,
                           GEOMETRY) {
    const UINT i = get_global_id(0);
    if (i >= items) return;
    AXES
    UINT rest = i / inner;
    const INT ic = (INT)(rest % (UINT)c.in); rest /= (UINT)c.in;
    const INT ib = (INT)(rest % (UINT)b.in); rest /= (UINT)b.in;
    const INT ia = (INT)(rest % (UINT)a.in); rest /= (UINT)a.in;
    const Places pa = places(a, ia, mode), pb = places(b, ib, mode), pc = places(c, ic, mode);
    const INT images = mode == 1 || mode == 3 ? 2 : 0;
    COMPUTE total = 0;
    for (INT ka = 0; ka < pa.run + images; ++ka) {
        const INT oa = place(a, pa, ia, ka, mode);
        if (oa < 0) continue;
        for (INT kb = 0; kb < pb.run + images; ++kb) {
            const INT ob = place(b, pb, ib, kb, mode);
            if (ob < 0) continue;
            const ulong row = (((ulong)rest * (ulong)a.out + (ulong)oa) * (ulong)b.out + (ulong)ob) * (ulong)c.out;
            for (INT kc = 0; kc < pc.run + images; ++kc) {
                const INT oc = place(c, pc, ic, kc, mode);
                if (oc >= 0) total += LOAD(grad, grad_at + (row + (ulong)oc) * inner + i % inner);
            }
        }
    }
    STORE(total, to, to_at + i);
}
#endif

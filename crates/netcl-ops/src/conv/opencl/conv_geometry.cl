// The parameters of a convolution, as the kernels of conv_naive, conv_tiled_local, conv_implicit_gemm and conv_im2col take them.
//
// Compiled with: STRIDE   both strides where they are 1 or 2, so that looking back needs no long division; else 0

#define GEOMETRY                                                                                                    \
    INDEX images, INDEX groups, INDEX channels, INDEX filters, INDEX h, INDEX w, INDEX oh, INDEX ow, INDEX kh,      \
        INDEX kw, INDEX sh, INDEX sw, INDEX dh, INDEX dw, INDEX top, INDEX left

// How far apart the neighbours of an operand lie along each axis.
#define STRIDES(t) INDEX t##_n, INDEX t##_c, INDEX t##_y, INDEX t##_x

// Position v of the padded input, in steps of s: which output it is, and whether it is one.
#if STRIDE
#define OVER(v, s) ((v) / STRIDE)
#define WHOLE(v, s) ((v) % STRIDE == 0)
#else
#define OVER(v, s) ((v) / (s))
#define WHOLE(v, s) ((v) % (s) == 0)
#endif


// What kernels on processors are made of that add up dense memory: vectors that may lie anywhere, and sums of them. Put before their
// texts.
//
// Compiled with: ELEMENT, COMPUTE           the type in memory and that of sums, parameters and statistics
//                UINT, INT                  indices
//                LOAD(p, i), STORE(v, p, i)
//                VCOMPUTE, WIDTH            a vector of COMPUTE and its length
//                LOADV(p), STOREV(v, p)     the vector of elements at a place
//                LOADC(p), STOREC(v, p)     the same of parameters and statistics
//                KERNEL_name                for the kernel that is wanted: some drivers compile all there are, at length
// The defaults make a text behind this one compile alone.

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#ifndef COMPUTE
#define ELEMENT float
#define COMPUTE float
#define UINT uint
#define INT int
#define VCOMPUTE float16
#define WIDTH 16
#define LOAD(p, i) (p)[i]
#define STORE(v, p, i) (p)[i] = (v)
#define LOADV(p) vload16(0, p)
#define LOADC(p) vload16(0, p)
#define STOREV(v, p) vstore16(v, 0, p)
#define STOREC(v, p) vstore16(v, 0, p)
// The text is compiled alone: all kernels are wanted.
#define ALONE
#endif

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

// Elements that are added up without a look at what that rounds off; they stay in the first-level cache.
#define RUN (64 * WIDTH)

// For scalars and vectors alike: what each addition rounds off is carried along (Knuth's two-sum).
#define FOLD(T, total, lost, v)                                                                     \
    {                                                                                               \
        const T v_ = (v), sum_ = total + v_, part_ = sum_ - total;                                  \
        lost += (total - (sum_ - part_)) + (v_ - part_);                                            \
        total = sum_;                                                                               \
    }

// Does something with each vector of the n elements from a place on, four in turn, and with each element that is left over.
#define OVER(place, n, vector, one)                                                                 \
    {                                                                                               \
        UINT d_ = 0;                                                                                \
        for (; (n) - d_ >= 4 * WIDTH; d_ += 4 * WIDTH) {                                            \
            vector(place + d_, 0)                                                                   \
            vector(place + d_ + WIDTH, 1)                                                           \
            vector(place + d_ + 2 * WIDTH, 2)                                                       \
            vector(place + d_ + 3 * WIDTH, 3)                                                       \
        }                                                                                           \
        for (; (n) - d_ >= WIDTH; d_ += WIDTH) vector(place + d_, 0)                                \
        for (; d_ < (n); ++d_) one(place + d_)                                                      \
    }

// Four sums of vectors, which need not wait for each other, and one of elements.
#define SUMS(name)                                                                                  \
    VCOMPUTE name[4] = {(VCOMPUTE)(0), (VCOMPUTE)(0), (VCOMPUTE)(0), (VCOMPUTE)(0)};                \
    COMPUTE name##one = 0;
#define JOINED(name) ((name[0] + name[1]) + (name[2] + name[3]))
#define TOTAL(name) (lanes(JOINED(name)) + name##one)

// The sum of a vector's lanes, by halves.
COMPUTE lanes(VCOMPUTE v) {
#if WIDTH == 16
    const PASTE(COMPUTE, 8) eight = v.lo + v.hi;
#else
    const PASTE(COMPUTE, 8) eight = v;
#endif
    const PASTE(COMPUTE, 4) four = eight.lo + eight.hi;
    return (four.s0 + four.s2) + (four.s1 + four.s3);
}

// Nothing that the language has asks processors for memory: its own prefetch is empty in the drivers that were looked at. (NVIDIA's
// compiler knows the function, but not for pointers of this version of the language.)
#if defined(__has_builtin) && !defined(__NV_CL_C_VERSION)
#if __has_builtin(__builtin_prefetch)
#define ASK(p) __builtin_prefetch((const void *)(size_t)(p), 0)
#endif
#endif
#ifndef ASK
#define ASK(p)
#endif

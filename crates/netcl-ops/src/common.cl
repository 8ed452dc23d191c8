// What the kernel files of this crate have in common. A source is a launch's definitions, this file, and the kernel's own file:
// what a launch does not define has its default here, so that every file compiles alone behind this one
// (tests/all/kernel_files.rs has the sizes that some need besides).
//
//   ELEMENT, COMPUTE          the type in memory, and the one that is computed in: float, or double for itself
//   UINT, INT                 indices
//   T, SUM, OUT, INDEX        products and convolutions: operands in memory, sums, results in memory, signed indices
//   BITS                      elements that are only moved
//   LOAD(p, i), STORE(v, p, i)   an element as what is computed in, and back
//   EPILOGUE(sum, ...), EPILOGUE_PARAMS   what becomes of a sum at four coordinates, and the arguments it needs
//   PROLOGUE(v, ...), PROLOGUE_PARAMS     an operand's value by what was loaded, at four coordinates; HAS_PROLOGUE where it changes
//   A_VALUE(v, row, term), B_VALUE(v, col, term)   the same for either operand of a product
//   VCOMPUTE, WIDTH, LOADV(p), STOREV(v, p), LOADC(p), STOREC(v, p)   vectors of elements, and of parameters and statistics
//   ALL(join, v)              the elements of a vector, joined
//   GROUP, VECTORS            work-items of a group, and vectors that each holds
//   FENCE                     makes what a work-item wrote visible to other groups
//   KERNEL_name               for the kernel that is wanted: some drivers compile all there are, at length

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef COMPUTE
#define COMPUTE float
#endif
#ifndef UINT
#define UINT uint
#endif
#ifndef INT
#define INT int
#endif
#ifndef T
#define T float
#endif
#ifndef SUM
#define SUM float
#endif
#ifndef OUT
#define OUT float
#endif
#ifndef INDEX
#define INDEX long
#endif
#ifndef BITS
#define BITS uint
#endif
#ifndef LOAD
#define LOAD(p, i) ((p)[i])
#endif
#ifndef LOAD4
#define LOAD4(p, i) (*(__global const float4 *)((p) + (i)))
#endif
#ifndef STORE
#define STORE(v, p, i) ((p)[i] = (v))
#endif
#ifndef EPILOGUE
#define EPILOGUE_PARAMS
#define EPILOGUE(sum, a, b, c, d) (sum)
#endif
#ifdef PROLOGUE
#define HAS_PROLOGUE
#else
#define PROLOGUE_PARAMS
#define PROLOGUE(v, a, b, c, d) (v)
#endif
#ifndef A_VALUE
#define A_VALUE(v, row, term) (v)
#endif
#ifndef B_VALUE
#define B_VALUE(v, col, term) (v)
#endif
#ifndef GROUP
#define GROUP 256
#endif
#ifndef VECTORS
#define VECTORS 4
#endif
#ifndef WIDTH
#define WIDTH 4
#endif
#ifndef VCOMPUTE
#define VCOMPUTE float4
#define LOADV(p) (*(__global const float4 *)(p))
#define STOREV(v, p) *(__global float4 *)(p) = (v)
#define LOADC(p) (*(__global const float4 *)(p))
#define STOREC(v, p) *(__global float4 *)(p) = (v)
#endif
#if WIDTH == 1
#define ALL(j, v) (v)
#elif WIDTH == 2
#define ALL(j, v) j((v).s0, (v).s1)
#elif WIDTH == 4
#define ALL(j, v) j(j((v).s0, (v).s1), j((v).s2, (v).s3))
#else
#define ALL(j, v) j(j(j((v).s0, (v).s1), j((v).s2, (v).s3)), j(j((v).s4, (v).s5), j((v).s6, (v).s7)))
#endif
#ifndef FENCE
#define FENCE mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif

#define PLUS(a, b) ((a) + (b))

// For scalars and vectors alike: what each addition rounds off is carried along (Knuth's two-sum).
#define FOLD(T, total, lost, v)                                               \
    {                                                                         \
        const T v_ = (v), sum_ = total + v_, part_ = sum_ - total;            \
        lost += (total - (sum_ - part_)) + (v_ - part_);                      \
        total = sum_;                                                         \
    }

// The larger value; NaN if the first is one.
#define LARGER(a, b) (((a) >= (b)) | ((a) != (a)) ? (a) : (b))

// `value` of `lanes` neighbouring work-items, of which this is `lane`, combined; all of them get the result. `tile` has a slot of
// local memory for each work-item of the group. Every 16th lane, then the 16 results: no barrier stands in a loop, which
// compilers for CPU devices take long over.
#define JOIN_LANES(value, with, lane, lanes)                                                                 \
    {                                                                                                        \
        __local COMPUTE *row_ = tile + ((uint)get_local_id(0) - (lane));                                     \
        row_[lane] = value;                                                                                  \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        if ((lane) < 16)                                                                                     \
            for (uint j_ = (lane) + 16; j_ < (lanes); j_ += 16) row_[lane] = with(row_[lane], row_[j_]);     \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        value = row_[0];                                                                                     \
        for (uint j_ = 1; j_ < 16 && j_ < (lanes); ++j_) value = with(value, row_[j_]);                      \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
    }

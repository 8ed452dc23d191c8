#ifdef cl_khr_fp16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif
// Stored in 16 bits, computed with in 32: every device can do that, and there is one rounding per result.
#define LOAD(pointer, index) vload_half(index, pointer)
#define STORE(pointer, index, value) vstore_half_rte((float)(value), index, pointer)

// fp16 arithmetic: x * 0.5 + 1 in half, reported as bits.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
__kernel void probe(__global uint* out) {
    const size_t i = get_global_id(0);
    const half x = (half)(float)i;
    const half y = x * (half)0.5f + (half)1.0f;
    out[i] = (uint)as_ushort(y);
}

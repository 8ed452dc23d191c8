// fp16 storage: one work-item stores a float as half and loads it back. Needs no extension.
__kernel void probe(__global half* store, __global uint* out) {
    const size_t i = get_global_id(0);
    vstore_half((float)i * 0.25f - 3.0f, i, store);
    out[i] = as_uint(vload_half(i, store));
}

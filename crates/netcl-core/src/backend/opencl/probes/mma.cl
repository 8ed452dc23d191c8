// Tensor cores through mma.sync: one warp computes C(16x8) = A(16x16) B(16x8) in bf16 with f32 sums.
//   A(i,k) = (3i + 5k) mod 7 - 3, B(k,j) = (2k + 3j) mod 5 - 2: small whole numbers, so the result is exact.
// Fragments: group g = lane / 4 and pair t = lane % 4 hold rows g and g + 8, columns 2t and 2t + 1 (and those plus 8).
uint bf16_bits(int x) { return as_uint((float)x) >> 16; }
uint a_pair(uint i, uint k) {
    return bf16_bits((int)((3 * i + 5 * k) % 7) - 3) | bf16_bits((int)((3 * i + 5 * (k + 1)) % 7) - 3) << 16;
}
uint b_pair(uint k, uint j) {
    return bf16_bits((int)((2 * k + 3 * j) % 5) - 2) | bf16_bits((int)((2 * (k + 1) + 3 * j) % 5) - 2) << 16;
}
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void probe(__global uint* out) {
    const uint lane = (uint)get_local_id(0), g = lane >> 2, t = (lane & 3) * 2;
    const uint a0 = a_pair(g, t), a1 = a_pair(g + 8, t), a2 = a_pair(g, t + 8), a3 = a_pair(g + 8, t + 8);
    const uint b0 = b_pair(t, g), b1 = b_pair(t + 8, g);
    float c0 = 0.0f, c1 = 0.0f, c2 = 0.0f, c3 = 0.0f;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    out[g * 8 + t] = as_uint(c0);
    out[g * 8 + t + 1] = as_uint(c1);
    out[(g + 8) * 8 + t] = as_uint(c2);
    out[(g + 8) * 8 + t + 1] = as_uint(c3);
}

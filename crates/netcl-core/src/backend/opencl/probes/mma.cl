// Tensor cores through mma.sync, fed by cp.async and ldmatrix: one warp computes C(16x8) = A(16x16) B(16x8) in bf16 with f32 sums.
//   A(i,k) = (3i + 5k) mod 7 - 3, B(k,j) = (2k + 3j) mod 5 - 2: small whole numbers, so the result is exact.
// Both lie by rows in `scratch`. Of 32 rows that are copied in place of B the last 16 are to be filled with zeros, and are
// multiplied too: a second product adds nothing if they are.
// Fragments: group g = lane / 4 and pair t = lane % 4 hold rows g and g + 8, columns 2t and 2t + 1 (and those plus 8).
ushort bf16_bits(int x) { return (ushort)(as_uint((float)x) >> 16); }
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void probe(__global ushort* scratch, __global uint* out) {
    __local ushort a[16 * 16] __attribute__((aligned(16))), b[32 * 8] __attribute__((aligned(16)));
    const uint lane = (uint)get_local_id(0), g = lane >> 2, t = (lane & 3) * 2;
    for (uint at = lane; at < 256; at += 32) {
        const uint i = at / 16, k = at % 16;
        scratch[at] = bf16_bits((int)((3 * i + 5 * k) % 7) - 3);
        b[at] = bf16_bits(1);
    }
    for (uint at = lane; at < 128; at += 32) {
        const uint k = at / 8, j = at % 8;
        scratch[256 + at] = bf16_bits((int)((2 * k + 3 * j) % 5) - 2);
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const uint a_at = (uint)(ulong)a, b_at = (uint)(ulong)b;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(a_at + lane * 16), "l"(scratch + lane * 8) : "memory");
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 ::"r"(b_at + lane * 16), "l"(scratch + 256 + lane % 16 * 8), "r"(lane < 16 ? 16 : 0)
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    uint a0, a1, a2, a3, b0, b1, z0, z1;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3)
                 : "r"(a_at + (lane & 15) * 32 + (lane >> 4) * 16)
                 : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b0), "=r"(b1), "=r"(z0), "=r"(z1)
                 : "r"(b_at + lane * 16)
                 : "memory");
    float c0 = 0.0f, c1 = 0.0f, c2 = 0.0f, c3 = 0.0f;
#define MULTIPLY(left, right)                                                                                           \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)                                                               \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(left), "r"(right))
    MULTIPLY(b0, b1);
    MULTIPLY(z0, z1);
    out[g * 8 + t] = as_uint(c0);
    out[g * 8 + t + 1] = as_uint(c1);
    out[(g + 8) * 8 + t] = as_uint(c2);
    out[(g + 8) * 8 + t + 1] = as_uint(c3);
}

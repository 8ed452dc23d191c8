// Hopper's warp-group product: four warps compute C(64x8) = A(64x16) B(16x8) in bf16 with f32 sums, both operands in local
// memory. The instructions are comments for the OpenCL compiler; ptx.rs brings them to life.
//   A(i,k) = (3i + 5k) mod 7 - 3, B(k,j) = (2k + 3j) mod 5 - 2: small whole numbers, so the result is exact.
// Layout without swizzle: core matrices of 8 rows by 8 values (128 bytes, contiguous). Two of them lie side by side along K
// (leading offset 128 bytes); the next 8 rows follow after 256 bytes (stride offset).
ushort bf16_bits(int x) { return (ushort)(as_uint((float)x) >> 16); }
ulong descriptor(uint address) {
    return (ulong)((address & 0x3ffff) >> 4) | (ulong)(128 >> 4) << 16 | (ulong)(256 >> 4) << 32;
}
__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void probe(__global uint* out) {
    __local ushort a[64 * 16] __attribute__((aligned(1024)));
    __local ushort b[8 * 16] __attribute__((aligned(1024)));
    const uint item = (uint)get_local_id(0), lane = item & 31, warp = item >> 5;
    for (uint n = item; n < 64 * 16; n += 128) {
        const uint i = n >> 4, k = n & 15;
        a[(i >> 3) * 128 + (k >> 3) * 64 + (i & 7) * 8 + (k & 7)] = bf16_bits((int)((3 * i + 5 * k) % 7) - 3);
    }
    {
        const uint j = item >> 4, k = item & 15;
        b[(k >> 3) * 64 + (j & 7) * 8 + (k & 7)] = bf16_bits((int)((2 * k + 3 * j) % 5) - 2);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    const ulong da = descriptor((uint)(ulong)a), db = descriptor((uint)(ulong)b);
    float c0 = 0.0f, c1 = 0.0f, c2 = 0.0f, c3 = 0.0f;
    asm volatile("//@@wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("//@@wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                 : "l"(da), "l"(db)
                 : "memory");
    asm volatile("//@@wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("//@@wgmma.wait_group.sync.aligned 0;" : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3) : : "memory");
    const uint row = warp * 16 + (lane >> 2), column = (lane & 3) * 2;
    out[row * 8 + column] = as_uint(c0);
    out[row * 8 + column + 1] = as_uint(c1);
    out[(row + 8) * 8 + column] = as_uint(c2);
    out[(row + 8) * 8 + column + 1] = as_uint(c3);
}

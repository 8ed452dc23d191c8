// Hopper's tensor copy engine: one box of a four-dimensional array of 16-bit numbers, out of range along two axes, is copied
// to local memory, swizzled over 128 bytes, and written out as it lies there.
//   array(x, y, z, w) = 1 + x + 128 * (y + 20 * (z + 3 * w)) mod 65536, rows 104 numbers apart
// The map comes as MAP, its words separated by commas; the kernel fills in the address.
__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void probe(__global ushort* array, __global uint* map, __global uint* out) {
    __local uint tile[512] __attribute__((aligned(1024)));
    __local ulong barriers[1];
    const uint words[32] = {MAP};
    const uint item = (uint)get_local_id(0), to = (uint)(ulong)tile, bar = (uint)(ulong)barriers;
    for (uint i = item; i < 104 * 20 * 6; i += 128) array[i] = (ushort)(1 + i % 104 + 128 * (i / 104));
    if (item == 0) {
        for (int i = 0; i < 32; i++) map[i] = words[i];
        *(__global ulong*)map = (ulong)array;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (item == 0) {
        asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2048;" :: "r"(bar) : "memory");
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
                     :: "r"(to), "l"(map), "r"(48), "r"(8), "r"(2), "r"(1), "r"(bar) : "memory");
    }
    uint done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar) : "memory");
    } while (!done);
    for (uint i = item; i < 512; i += 128) out[i] = tile[i];
}

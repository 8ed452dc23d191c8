// Philox4x32-10: random bits as a pure function of (seed, stream, index).
//
// A block of four 32-bit words belongs to every index; work item g of a kernel that draws one block per item uses index
// offset + g, whatever the work-group size, so the numbers depend neither on the device nor on the number of work items.
// The host (random.rs) computes the same words bit for bit.
//
//   counter   x: index low   y: index high   z: stream low   w: stream high
//   key       x: seed low    y: seed high
//
// Element i of a tensor takes, from block offset + i / n, with n elements to a block:
//   uint, float (n = 4)            word i % 4
//   double, bounded long (n = 2)   words 2 * (i % 2) (low half) and 2 * (i % 2) + 1 (high half)

#ifndef NETCL_PHILOX_ROUNDS
#define NETCL_PHILOX_ROUNDS 10
#endif

// The bijection itself: counter and key in, four words out.
uint4 netcl_philox4x32(uint4 c, uint2 k) {
    for (int round = 0; round < NETCL_PHILOX_ROUNDS; ++round) {
        const uint hi0 = mul_hi(0xD2511F53u, c.x), lo0 = 0xD2511F53u * c.x;
        const uint hi1 = mul_hi(0xCD9E8D57u, c.z), lo1 = 0xCD9E8D57u * c.z;
        c = (uint4)(hi1 ^ c.y ^ k.x, lo1, hi0 ^ c.w ^ k.y, lo0);
        k += (uint2)(0x9E3779B9u, 0xBB67AE85u); // Weyl sequences: golden ratio and sqrt(3) - 1
    }
    return c;
}

// The block of an index.
uint4 netcl_random_block(ulong seed, ulong stream, ulong index) {
    return netcl_philox4x32((uint4)((uint)index, (uint)(index >> 32), (uint)stream, (uint)(stream >> 32)),
                            (uint2)((uint)seed, (uint)(seed >> 32)));
}

// A float in [0, 1): the upper 24 bits, so that every value is exact and 1 never appears.
float netcl_uniform_f32(uint word) {
    return (float)(word >> 8) * 0x1.0p-24f;
}

// A whole number in [0, n): the high half of a 64 x 64 bit product. The bias is below n / 2^64.
long netcl_random_below(uint low, uint high, ulong n) {
    return (long)mul_hi((ulong)high << 32 | (ulong)low, n);
}

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
// A double in [0, 1) from the upper 53 of 64 bits.
double netcl_uniform_f64(uint low, uint high) {
    return (double)(((ulong)high << 32 | (ulong)low) >> 11) * 0x1.0p-53;
}
#endif

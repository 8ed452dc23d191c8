// Philox4x32-10 for eight blocks at once, on processors; philox.cl computes the same words one block at a time.
//
//   lane b of a, b, c, d     word 0, 1, 2, 3 of block first + b, in the low halves of 64 bits
//
// The upper halves hold anything: the products of a round read the low halves only, which processors multiply to 64 bits in one step.
// In the end the lanes are turned into the order of elements, four to a block:
//
//   words[0]   blocks 0 to 3     words[1]   blocks 4 to 7

#define PHILOX_LOW 0xffffffffUL
// Elements of one call that have a word each.
#define PHILOX_WORDS 32

void philox_vector(ulong seed, ulong first, uint16 *words) {
    const ulong8 index = first + (ulong8)(0, 1, 2, 3, 4, 5, 6, 7);
    ulong8 a = index, b = index >> 32, c = (ulong8)(0), d = (ulong8)(0);
    uint key0 = (uint)seed, key1 = (uint)(seed >> 32);
    _Pragma("unroll") for (uint round = 0; round < 10; ++round) {
        const ulong8 p = (a & PHILOX_LOW) * 0xD2511F53UL, q = (c & PHILOX_LOW) * 0xCD9E8D57UL;
        a = (q >> 32) ^ b ^ (ulong)key0;
        b = q;
        c = (p >> 32) ^ d ^ (ulong)key1;
        d = p;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    const ulong8 ab = (a & PHILOX_LOW) | (b << 32), cd = (c & PHILOX_LOW) | (d << 32);
    words[0] = as_uint16((ulong8)(ab.s0, cd.s0, ab.s1, cd.s1, ab.s2, cd.s2, ab.s3, cd.s3));
    words[1] = as_uint16((ulong8)(ab.s4, cd.s4, ab.s5, cd.s5, ab.s6, cd.s6, ab.s7, cd.s7));
}

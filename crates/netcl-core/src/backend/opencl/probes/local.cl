// Static local memory: 128 work-items fill WORDS words, then each sums words that others wrote.
#ifndef WORDS
#define WORDS 4096
#endif
__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void probe(__global uint* out) {
    __local uint tile[WORDS];
    const uint item = (uint)get_local_id(0);
    const uint group = (uint)get_group_id(0);
    for (uint i = item; i < WORDS; i += 128) tile[i] = (i * 2654435761u) ^ group;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint sum = 0;
    for (uint i = item; i < WORDS; i += 128) sum += tile[WORDS - 1 - i] * (i + 1);
    out[get_global_id(0)] = sum;
}

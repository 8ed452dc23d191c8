// Subgroups: each work-item reports (width, lane, sum of all lanes' numbers, number of the neighbour lane ^ 1).
#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
#ifndef SHUFFLE
#define SHUFFLE(x, lane) (lane)
#endif
__kernel void probe(__global uint* out) {
    const uint lane = get_sub_group_local_id();
    const uint width = get_sub_group_size();
    const uint neighbour = min(lane ^ 1u, width - 1u);
    out += 4 * get_global_id(0);
    out[0] = width;
    out[1] = lane;
    out[2] = sub_group_reduce_add(lane);
    out[3] = SHUFFLE(lane, neighbour);
}

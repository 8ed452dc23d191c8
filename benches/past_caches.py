"""Results written past a processor's caches, beside results written as ever: where `STREAM_FROM` comes from.

    python benches/past_caches.py [--device opencl]

Three kernels, each of which reads what the one before wrote: two that move an array, one that adds it up. The arrays are the same
from call to call, so that caches keep what they can; the two ways take turns, and the first calls of a turn do not count.
"""

import argparse
import statistics
import time

import numpy as np

import netcl as nc
from netcl.core.device import manager
from netcl.core.tensor import Tensor

STORES = {"as ever": "*p = v", "past the caches": "__builtin_nontemporal_store(v, p)"}
MOVE = """__kernel void move(__global const float16 *x, __global float16 *y) {{
    const size_t i = get_global_id(0);
    const float16 v = fmax(x[i], (float16)(0.0f));
    __global float16 *p = y + i;
    {};
}}"""
ADD = """__kernel void add(__global const float16 *x, __global float *y, const uint per) {
    const size_t i = get_global_id(0);
    float16 sum = 0;
    for (uint k = 0; k < per; ++k) sum += x[i * per + k];
    y[i] = sum.s0 + sum.sf;
}"""
ITEMS = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    queue = manager.default(arguments.device).queue
    moves = {way: nc.KernelSpec(name="move", src=MOVE.format(store)).build(queue) for way, store in STORES.items()}
    add = nc.KernelSpec(name="add", src=ADD).build(queue)
    print(f"{'MiB each':>8} " + " ".join(f"{way + ' ms':>20}" for way in STORES) + f" {'ratio':>8}")
    for mib in (2, 4, 8, 16, 32, 64):
        n = mib << 18
        values = np.random.default_rng(0).normal(size=n).astype(np.float32)
        a, b, c = (Tensor.from_host(queue, values) for _ in range(3))
        sums = Tensor.from_shape(queue, (ITEMS,))
        times = {way: [] for way in STORES}
        for _ in range(arguments.rounds):
            for way, move in moves.items():
                for call in range(14):
                    start = time.perf_counter()
                    move.run(queue, (n // 16,), (64,), a, b)
                    move.run(queue, (n // 16,), (64,), b, c)
                    add.run(queue, (ITEMS,), (1,), c, sums, np.uint32(n // 16 // ITEMS))
                    queue.finish()
                    if call > 3:
                        times[way].append((time.perf_counter() - start) * 1e3)
        assert np.array_equal(c.to_host(), np.maximum(values, 0))
        medians = [statistics.median(each) for each in times.values()]
        print(f"{mib:>8} " + " ".join(f"{median:>20.3f}" for median in medians) + f" {medians[0] / medians[1]:>8.2f}", flush=True)


if __name__ == "__main__":
    main()

"""The rows of ``netcl bench`` beside PyTorch in one process, seconds of each in turn.

    python benches/turns_peers.py --device gpu --torch-device cuda
    python benches/turns_peers.py --device gpu --torch-device cuda --portable --rows matmul_f32

Rows that take all the power a card may draw depend on how warm it is: two runs one after the other differ by more than the two tools
do. Where samples of a few milliseconds alternate, both are given the clock that their mean power allows, whichever needs more. So each
tool has the card to itself for seconds, first to settle and then to be timed, and then it is the other's turn. A ratio above 1 means
that ours is faster. ``--portable`` leaves the matrix units out (``NETCL_KERNEL_STRATEGY=portable``):
``matmul_f32`` is then plain multiply-adds. The interpreter must have both netcl and PyTorch.
"""

import argparse
import os
import statistics

import bench_peers
from bench_peers import sample


def netcl_rows(device):
    import numpy as np

    import netcl as nc
    from netcl.core.device import manager

    queue = manager.default(device).queue
    random = np.random.default_rng(2026)

    def draw(*shape, dtype="float32", low=-1.0):
        return nc.Tensor.from_host(queue, random.uniform(low, 1.0, shape).astype(np.float32)).to(dtype=dtype)

    def prepare(row, size):
        if row.startswith("matmul"):
            m, n, k = size
            nc.set_matmul_precision("high" if row == "matmul_tf32" else "highest")
            dtype = {"matmul_f16": "float16", "matmul_bf16": "bfloat16"}.get(row, "float32")
            a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype)
            out = nc.matmul(a, b)
            return lambda: nc.matmul(a, b, out=out)
        x = draw(*size, low=0.0 if row == "sum" else -1.0)
        if row == "softmax":
            return lambda: nc.softmax(x)
        return lambda: nc.reduce_sum(x)

    return prepare, queue.finish


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="netcl's device")
    parser.add_argument("--torch-device", default="cuda")
    rows = ["matmul_f32", "matmul_tf32", "matmul_f16", "matmul_bf16", "softmax", "sum"]
    parser.add_argument("--rows", nargs="+", default=rows, choices=rows)
    parser.add_argument("--small", action="store_true", help="the sizes for processors")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--settle", type=float, default=1.0, help="seconds that a tool runs before it is timed")
    parser.add_argument("--seconds", type=float, default=1.2, help="seconds that are timed")
    parser.add_argument("--portable", action="store_true", help="without matrix units")
    options = parser.parse_args()
    if options.portable:
        os.environ["NETCL_KERNEL_STRATEGY"] = "portable"

    about, torch_prepare, torch_finish = bench_peers.torch_rows(options.torch_device)
    netcl_prepare, netcl_finish = netcl_rows(options.device)
    print(f"{about['tool']} {about['version']} and netcl on {about['device']['name']}, {options.rounds} rounds")
    for row in options.rows:
        size = bench_peers.ROWS[row][options.small]
        sides = {
            "PyTorch": (torch_prepare(row, size), torch_finish),
            "netcl": (netcl_prepare(row, size), netcl_finish),
        }
        lengths = {name: min(sample(*side, 3) for _ in range(3)) for name, side in sides.items()}
        times = {name: [] for name in sides}
        for number in range(options.rounds):
            for name in sorted(sides, reverse=number % 2 == 1):
                calls = [max(1, round(1e3 * seconds / lengths[name])) for seconds in (options.settle, options.seconds)]
                times[name].append([sample(*sides[name], count) for count in calls][-1])
        medians = {name: statistics.median(found) for name, found in times.items()}
        found = ", ".join(f"{name} {medians[name]:.4f} ms ({min(t):.4f} to {max(t):.4f})" for name, t in times.items())
        print(f"{row:12} {found}, ratio {medians['PyTorch'] / medians['netcl']:.3f}", flush=True)


if __name__ == "__main__":
    main()

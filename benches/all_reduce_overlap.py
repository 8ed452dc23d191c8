"""How much of the time of an all_reduce's copies passes while others are under way, from a trace.

    python benches/all_reduce_overlap.py [--megabytes 64] [--trace trace.json]

For all OpenCL devices and the native CPU together it prints what all copies take, the time in which at least one is under way, and
the share that overlaps: 0 % if each waited for the one before, 1 - 1/n if n are always under way at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from netcl import Tensor, distributed as dist
from netcl.core.device import manager
from netcl.profiling import profile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--trace", type=Path, default=None, help="where to keep the trace (chrome://tracing, ui.perfetto.dev)")
    options = parser.parse_args()
    queues = [*dist.DeviceManager().get_queues(), manager.default("cpu").queue]
    values = np.ones(options.megabytes * 2**20 // 4, np.float32)
    tensors = [Tensor.from_host(queue, values) for queue in queues]
    dist.all_reduce(tensors)
    with profile(ceilings=False) as found:
        dist.all_reduce(tensors)
    if options.trace:
        found.trace(options.trace)
    copies = sorted(command.device_ms for command in found.commands if command.kind in ("upload", "download"))
    total = sum(end - start for start, end in copies)
    covered, until = 0.0, 0.0
    for start, end in copies:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    span = until - copies[0][0] if copies else 0.0
    moved = 2 * values.nbytes * (len(queues) - 1)
    if not copies:
        print("no copies: there is only the native CPU here")
        return
    print(f"{len(queues)} tensors of {options.megabytes} MB: {len(copies)} copies in {span:.1f} ms, {moved / span / 1e6:.2f} GB/s")
    print(f"copies take {total:.1f} ms, {covered:.1f} ms together: {1 - covered / total:.0%} overlaps")


if __name__ == "__main__":
    main()

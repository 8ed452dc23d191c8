"""all_reduce over processes beside memcpy, gloo (torch.distributed) and MPI (mpi4py), in one run: the sides take turns on each size.

    python benches/all_reduce_peers.py [--torch-python <venv with torch>/bin/python] [--mpi-python <venv with mpi4py>/bin/python]
                                       [--ranks 2,4] [--rounds 7]

The interpreter that runs this file must have our netcl; the peers' need NumPy. Each side is a set of processes that wait for the name of a
size, reduce float32 of that size a number of times, and print the seconds of one call on rank 0 (the median of the round). Printed are
microseconds and GB/s of the tensor's own bytes; memcpy is NumPy's copy of as many bytes in one process. A ratio above 1 means that ours
is faster than gloo.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = [1 << 10, 16 << 10, 256 << 10, 4 << 20, 16 << 20, 64 << 20]


def repeats(nbytes):
    return max(3, min(200, (16 << 20) // nbytes))


def side_netcl():
    import numpy as np

    from netcl import Tensor
    from netcl.core.device import manager
    from netcl.distributed import init

    group = init()
    queue = manager.default("cpu").queue
    make = lambda nbytes: Tensor.from_host(queue, np.ones(nbytes // 4, np.float32))  # noqa: E731
    return group.rank, make, lambda x: group.all_reduce(x, "mean"), group.barrier


def side_gloo():
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, size = int(os.environ["NETCL_RANK"]), int(os.environ["NETCL_RANKS"])
    store = dist.FileStore(os.path.join(os.environ["NETCL_RENDEZVOUS"], "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return rank, lambda nbytes: torch.ones(nbytes // 4), dist.all_reduce, dist.barrier


def side_mpi():
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    make = lambda nbytes: np.ones(nbytes // 4, np.float32)  # noqa: E731
    return world.rank, make, lambda x: world.Allreduce(MPI.IN_PLACE, x), world.Barrier


def side_memcpy():
    import numpy as np

    make = lambda nbytes: (np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32))  # noqa: E731
    return 0, make, lambda pair: np.copyto(pair[1], pair[0]), lambda: None


def worker(side):
    rank, make, call, barrier = {"netcl": side_netcl, "gloo": side_gloo, "MPI": side_mpi, "memcpy": side_memcpy}[side]()
    # Ranks but the first learn the size from a file: mpirun gives the input to rank 0 alone.
    folder, turn = os.environ["NETCL_RENDEZVOUS"], 0
    while True:
        path = os.path.join(folder, f"turn-{turn}")
        while not os.path.exists(path):
            time.sleep(0.002)
        with open(path) as file:
            text = file.read()
        if text == "end":
            return
        x, times = make(int(text)), []
        call(x)
        for _ in range(repeats(int(text))):
            barrier()
            began = time.perf_counter()
            call(x)
            times.append(time.perf_counter() - began)
        if rank == 0:
            print(statistics.median(times), flush=True)
        turn += 1


class Side:
    def __init__(self, side, python, ranks):
        self.folder, self.turn, self.processes = tempfile.mkdtemp(prefix="netcl-bench-", dir="/dev/shm"), 0, []
        command = [python, __file__, "--worker", side]
        environment = {**os.environ, "NETCL_RENDEZVOUS": self.folder, "NETCL_RANKS": str(ranks)}
        if side == "MPI":
            environment = {k: v for k, v in environment.items() if not k.startswith("PYTHON")}
            command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *command]
        for rank in range(1 if side in ("MPI", "memcpy") else ranks):
            if side == "gloo":
                environment.pop("PYTHONPATH", None)
            one = {**environment, "NETCL_RANK": str(rank)}
            self.processes.append(subprocess.Popen(command, env=one, stdout=subprocess.PIPE if rank == 0 else None, text=True))

    def give(self, text):
        path = os.path.join(self.folder, f"turn-{self.turn}")
        with open(path + ".part", "w") as file:
            file.write(text)
        os.rename(path + ".part", path)
        self.turn += 1

    def measure(self, nbytes):
        self.give(str(nbytes))
        line = self.processes[0].stdout.readline()
        if not line:
            raise RuntimeError("a worker ended")
        return float(line)

    def end(self):
        try:
            self.give("end")
            for process in self.processes:
                process.wait(10)
        finally:
            for process in self.processes:
                process.kill()
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python")
    parser.add_argument("--mpi-python")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--worker")
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker)
    pythons = {"memcpy": sys.executable, "netcl": sys.executable, "gloo": args.torch_python, "MPI": args.mpi_python}
    pythons = {side: python for side, python in pythons.items() if python}
    for ranks in map(int, args.ranks.split(",")):
        sides = {side: Side(side, python, ranks) for side, python in pythons.items()}
        try:
            columns = "".join(f"{side + ' us':>12}{'GB/s':>8}" for side in sides)
            print(f"{ranks} ranks{'':>6}{columns}{'ours/gloo':>11}")
            for nbytes in SIZES:
                times = {side: [] for side in sides}
                for _ in range(args.rounds):
                    for side, processes in sides.items():
                        times[side].append(processes.measure(nbytes))
                best = {side: statistics.median(found) for side, found in times.items()}
                row = "".join(f"{t * 1e6:12.1f}{nbytes / t / 1e9:8.2f}" for t in best.values())
                ratio = f"{best['gloo'] / best['netcl']:11.2f}" if "gloo" in best else ""
                print(f"{nbytes >> 10:>8} KiB {row}{ratio}", flush=True)
        finally:
            for side in sides.values():
                side.end()


if __name__ == "__main__":
    main()

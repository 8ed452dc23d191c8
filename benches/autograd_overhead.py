"""What a recorded small operation costs from Python, beside PyTorch where there is one.

    python benches/autograd_overhead.py
    python benches/autograd_overhead.py --peer-python <venv with torch>/bin/python --rust <bench binary>
    python benches/autograd_overhead.py --before <folder or interpreter of an older netcl>

The binary is the one that ``cargo bench -p netcl-autograd --bench overhead --no-run`` names: the same operations without Python.
The interpreter that runs this file must have our netcl; the peer's may also be named by ``NETCL_BENCH_TORCH``. Eight floats on
the CPU, so that what is seen is the bookkeeping. Workers in separate processes take turns on each workload, several rounds;
the best of each round is taken, the median over the rounds is shown. A ratio above 1 means that ours is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import timeit

CHAIN = 20


def workloads_netcl():
    import numpy as np

    import netcl.autograd as ag
    from netcl import ops
    from netcl.core.device import manager

    class Twice(ag.Function):
        @staticmethod
        def forward(ctx, x):
            return x + x

        @staticmethod
        def backward(ctx, grad):
            return grad + grad

    queue = manager.default("cpu").queue
    x, y = (ag.tensor(np.ones(8, np.float32), queue=queue) for _ in range(2))
    plain, other = x.detach(), y.detach()
    return workloads(x, y, plain, other, ops.full((8,), 1.0, queue=queue), lambda t: ag.sum(t), Twice.apply, ag.no_grad)


def workloads_torch():
    import torch

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + x

        @staticmethod
        def backward(ctx, grad):
            return grad + grad

    torch.set_num_threads(1)
    x, y = (torch.ones(8, requires_grad=True) for _ in range(2))
    return workloads(x, y, x.detach(), y.detach(), torch.ones(8), torch.sum, Twice.apply, torch.no_grad)


def workloads(x, y, plain, other, ones, total, twice, no_grad):
    def unrecorded():
        with no_grad():
            return x + y

    def walk():
        x.grad = y.grad = None
        (x + y).backward(ones)

    def accumulate():
        (x + y).backward(ones)

    def chain():
        x.grad = y.grad = None
        t = x
        for _ in range(CHAIN):
            t = t + y
        total(t).backward()

    return {
        "add, nothing to record": lambda: plain + other,
        "add, recorded": lambda: x + y,
        "add inside no_grad()": unrecorded,
        "add and its backward": walk,
        "the same, gradients accumulate": accumulate,
        f"{CHAIN} adds, a sum and backward": chain,
        "method: x.exp()": lambda: plain.exp(),
        "method: x.sum()": lambda: plain.sum(),
        "method: x.reshape(2, 4)": lambda: plain.reshape(2, 4),
        "index: x[3]": lambda: plain[3],
        "index: x[2:6]": lambda: plain[2:6],
        "index: x[None, ..., ::2]": lambda: plain[None, ..., ::2],
        "custom op written in Python": lambda: twice(x),
        "custom op and its backward": lambda: twice(x).backward(ones),
    }


SIDES = {"netcl": workloads_netcl, "torch": workloads_torch}


def worker(side):
    """Answers each workload named on standard input with its best microseconds of a short run."""
    known = SIDES[side]()
    for line in sys.stdin:
        call = known[line.strip()]
        try:
            call()
        except (AttributeError, TypeError):
            print("null", flush=True)  # an older netcl does not have it
            continue
        # Short runs, many of them: on a busy machine some fall between its other work.
        number = 100
        print(json.dumps(min(timeit.repeat(call, number=number, repeat=100)) / number * 1e6), flush=True)


class Worker:
    def __init__(self, *command, path=None):
        environment = os.environ | ({"PYTHONPATH": path} if path else {})
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker for {name!r} ended")
        return json.loads(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", choices=SIDES)
    parser.add_argument("--peer-python", default=os.environ.get("NETCL_BENCH_TORCH"), help="an interpreter that has torch")
    parser.add_argument("--rust", help="the executable of the Rust benchmark")
    parser.add_argument("--before", help="a folder with an older netcl, or an interpreter that has one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    this = os.path.abspath(__file__)
    sides = {"netcl": Worker(sys.executable, this, "--worker", "netcl")}
    if arguments.peer_python:
        sides["torch"] = Worker(arguments.peer_python, this, "--worker", "torch")
    if arguments.before:
        folder = arguments.before if os.path.isdir(arguments.before) else None
        sides["before"] = Worker(sys.executable if folder else arguments.before, this, "--worker", "netcl", path=folder)
    if arguments.rust:
        sides["rust"] = Worker(arguments.rust, "--worker")
    print(f"{'8 floats on the CPU':<34}" + "".join(f"{side + ' us':>10}" for side in sides) + f"{'ratio':>8}")
    figures = {}
    for name in workloads(*[None] * 8):
        rounds = [{side: worker.ask(name) for side, worker in sides.items()} for _ in range(arguments.rounds)]
        medians = {
            side: None if rounds[0][side] is None else statistics.median(times[side] for times in rounds) for side in sides
        }
        figures[name] = {f"{side}_us": value for side, value in medians.items()}
        line = "".join(f"{'-':>10}" if value is None else f"{value:>10.2f}" for value in medians.values())
        if "torch" in sides:
            figures[name]["ratio"] = statistics.median(times["torch"] / times["netcl"] for times in rounds)
            line += f"{figures[name]['ratio']:>8.2f}"
        print(f"{name:<34}{line}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()

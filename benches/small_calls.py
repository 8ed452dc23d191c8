"""What small operations, methods and subscripts cost from Python: netcl beside another netcl and PyTorch, in alternating rounds.

    python benches/small_calls.py [--before <python with another netcl>] [--torch <python with PyTorch>]

Each library runs in a process of its own, on the CPU with one thread. A round times every call in each of them in turn; the figure
is the best of a round, the median over the rounds. A call is written as each library's users would; where an older netcl has no such
method, the function stands for it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable
from typing import Any

# Spellings of each call, of which the first that works is timed.
CALLS = {
    "x + y": ["x + y"],
    "x * 2.0": ["x * 2.0"],
    "x.exp()": ["x.exp()", "ag.exp(x)"],
    "x.sum()": ["x.sum()", "ag.sum(x)"],
    "x.sum(dim=1)": ["x.sum(dim=1)", "ag.sum(x, axis=1)"],
    "x.reshape(16, 4)": ["x.reshape(16, 4)", "ag.reshape(x, (16, 4))"],
    "x.transpose(0, 1)": ["x.transpose(0, 1)", "ag.transpose(x, 0, 1)"],
    "x @ y": ["x @ y"],
    "softmax of rows": ["F.softmax(x, dim=1)", "F.softmax(x, axis=1)", "F.softmax(x)"],
    "x.shape": ["x.shape"],
    "x[1]": ["x[1]"],
    "x[1:3]": ["x[1:3]"],
    "x[:, None, 2]": ["x[:, None, 2]"],
    "x[[0, 2]]": ["x[[0, 2]]"],
    "x[mask]": ["x[mask]"],
    "x[0, 0].item()": ["x[0, 0].item()"],
    "(w * x).sum().backward()": ["(w * x).sum().backward()", "ag.sum(w * x).backward()"],
    "linear(x)": ["linear(x)"],
}


def names(library: str) -> dict[str, Any]:
    """What the calls refer to."""
    import numpy as np

    values = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    if library == "PyTorch":
        import torch

        torch.set_num_threads(1)
        x, y = torch.tensor(values), torch.tensor(values.T.copy())
        w, linear = torch.tensor(values, requires_grad=True), torch.nn.Linear(8, 8)
        return {"x": x, "y": y, "w": w, "linear": linear, "mask": x > 0, "F": torch.nn.functional}
    import netcl
    import netcl.autograd as ag
    from netcl import nn
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor

    queue = manager.default("cpu").queue
    x, y = Tensor.from_host(queue, values), Tensor.from_host(queue, values.T.copy())
    w = ag.tensor(Tensor.from_host(queue, values), requires_grad=True)
    return {"x": x, "y": y, "w": w, "linear": nn.Linear(queue, 8, 8), "mask": values > 0, "F": nn.functional, "ag": ag, "netcl": netcl}


def timed(call: Callable[[], Any]) -> float:
    """Microseconds of a call, the best of a few repeats."""
    timer = timeit.Timer(call)
    number = max(timer.autorange()[0] // 10, 1)
    return min(timer.repeat(repeat=5, number=number)) / number * 1e6


def worker(library: str) -> None:
    scope, calls = names(library), {}
    for name, spellings in CALLS.items():
        for spelling in spellings:
            call = eval(f"lambda: {spelling}", scope)
            try:
                call()
            except Exception:
                continue
            calls[name] = call
            break
    print(json.dumps(list(calls)), flush=True)
    for name in sys.stdin:
        print(timed(calls[name.strip()]), flush=True)


class Worker:
    """A process that times calls in a library."""

    def __init__(self, library: str, python: str) -> None:
        single = dict.fromkeys(("NETCL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [python, __file__, "--worker", library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **single}
        )
        self.calls = json.loads(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def time(self, call: str) -> float | None:
        if call not in self.calls:
            return None
        assert self.process.stdin is not None
        print(call, file=self.process.stdin, flush=True)
        return float(self._answer())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="an interpreter with the netcl to compare with")
    parser.add_argument("--torch", help="an interpreter with PyTorch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    pythons = {"netcl": sys.executable, "before": options.before, "PyTorch": options.torch}
    workers = {name: Worker(name, python) for name, python in pythons.items() if python}
    rounds = [{(call, name): w.time(call) for call in CALLS for name, w in workers.items()} for _ in range(options.rounds)]
    print(f"{'microseconds of a call':26}" + "".join(f"{name:>10}" for name in workers) + "".join(f"  of {name}" for name in list(workers)[1:]))
    for call in CALLS:
        line = f"{call:26}"
        for name in workers:
            found = [times[call, name] for times in rounds]
            line += f"{statistics.median(found):10.2f}" if None not in found else f"{'-':>10}"
        for name in list(workers)[1:]:
            pairs = [(times[call, "netcl"], times[call, name]) for times in rounds]
            ratio = statistics.median(ours / other for ours, other in pairs) if None not in pairs[0] else None
            line += f"{ratio:{len(name) + 5}.2f}" if ratio else " " * (len(name) + 4) + "-"
        print(line)


if __name__ == "__main__":
    main()

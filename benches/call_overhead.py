"""What a replayed or compiled call costs from Python, beside the same from Rust and PyTorch's CUDA graph, in alternating runs.

    python benches/call_overhead.py [--device cpu|gpu|<name>] [--rust <bench binary>]

The binary is the executable that ``cargo bench -p netcl --bench replay --no-run`` names; without it the rows of Rust are left out,
and a replay without arguments stands for them. Where PyTorch sees a GPU and ``--device`` is not the CPU, the step runs there as one
CUDA graph. Calls come in blocks of a hundred, each of which waits for the device at its end: "whole" is a call with its share of that,
"host" is the time until the call comes back. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import netcl.autograd as ag
from netcl import nn, optim
from netcl.core.device import manager
from netcl.core.index import IndexTensor
from netcl.core.tensor import Tensor
from netcl.nn import functional as F
from netcl.runtime import KernelCapture, capture

Times = tuple[float, float]
Way = Callable[[], Times]


def seconds(call: Callable[[], Any], wait: Callable[[], Any], lasting: float) -> Times:
    """Seconds of a call, whole and on the host."""
    for _ in range(3):
        call()
    wait()
    times: list[Times] = []
    start = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < lasting:
        begin = time.perf_counter()
        for _ in range(100):
            call()
        host = time.perf_counter() - begin
        wait()
        times.append(((time.perf_counter() - begin) / 100, host / 100))
    return sorted(times)[len(times) // 2]


def step_of(queue: Any, wide: int, hidden: int, classes: int, count: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A training step of an MLP, captured, and its arguments: as in the Rust benchmark."""
    model = nn.Sequential(nn.Linear(queue, wide, hidden), nn.ReLU(), nn.Linear(queue, hidden, classes))
    # So slow that thousands of steps on one batch do not end in gradients too small to be normal, which are slow to compute with.
    optimizer = optim.Adam(model.parameters(), lr=1e-7)

    def step(x: Tensor, labels: IndexTensor) -> Tensor:
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = Tensor.from_host(queue, np.random.default_rng(1).standard_normal((count, wide)))
    return capture(step), (x, IndexTensor.from_host(queue, np.arange(count) * 7 % classes))


def chain(x: Tensor, y: Tensor) -> Tensor:
    return ag.tanh(x * y + 1) * ag.sigmoid(x) + ag.relu(y)


def double(x: Tensor) -> Tensor:
    return x * 2.0


def our_ways(queue: Any, lasting: float) -> dict[str, dict[str, Way]]:
    """By workload, the ways to call it from Python."""

    def timed(call: Callable[[], Any]) -> Way:
        return lambda: seconds(call, queue.finish, lasting)

    (step, batch), (tiny, few) = step_of(queue, 784, 128, 10, 32), step_of(queue, 16, 8, 4, 4)
    x, y = (Tensor.from_shape(queue, (1024,), fill=fill) for fill in (0.5, 0.25))
    op, compiled = capture(double), ag.jit(chain)
    for call, args in ((step, batch), (tiny, few), (op, (x,)), (compiled, (x, y))):
        call(*args)
    launch = KernelCapture()
    launch.begin()
    out = compiled(x, y)
    launch.end()
    assert launch.num_launches == 1 and out.shape == (1024,)
    return {
        "captured MLP step, 784-128-10, 32 rows": {
            "from Python": timed(lambda: step(*batch)),
            "replay(), no arguments": timed(step.replay),
        },
        "captured MLP step, 16-8-4, 4 rows": {
            "from Python": timed(lambda: tiny(*few)),
            "replay(), no arguments": timed(tiny.replay),
        },
        "captured x * 2, 1024 elements": {
            "from Python": timed(lambda: op(x)),
            "replay(), no arguments": timed(op.replay),
        },
        "compiled chain, 1024 elements": {
            "from Python": timed(lambda: compiled(x, y)),
            "its kernel, launched from Python": timed(launch.replay),
        },
    }


def add_rust(ways: dict[str, dict[str, Way]], binary: str, device: str) -> subprocess.Popen[str]:
    """The same from Rust, by a worker that answers in seconds."""
    worker = subprocess.Popen([binary, "--worker", device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdin is not None and worker.stdout is not None
    asked, answers = worker.stdin, worker.stdout
    json.loads(answers.readline())

    def ask(kind: str) -> Way:
        def way() -> Times:
            asked.write(f"{kind}\n")
            asked.flush()
            whole, host = answers.readline().split()
            return float(whole), float(host)

        return way

    for own, kind in zip(ways.values(), ("replay", "tiny", "op", "chain")):
        own["from Rust"] = ask(kind)
    ways["compiled chain, 1024 elements"]["its kernel, launched from Rust"] = ask("launch")
    return worker


def add_torch(ways: dict[str, Way], lasting: float) -> None:
    """The step as one CUDA graph of PyTorch's, where there is one."""
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        return
    x, labels = torch.randn(32, 784, device="cuda"), torch.arange(32, device="cuda") * 7 % 10
    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-7, capturable=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    ways["PyTorch's CUDA graph"] = lambda: seconds(graph.replay, torch.cuda.synchronize, lasting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, gpu, or what netcl calls a device")
    parser.add_argument("--rust", help="the executable of the Rust benchmark")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each way in each round")
    options = parser.parse_args()
    handle = manager.default("auto" if options.device == "gpu" else options.device)
    print(f"on {handle.device_name}")
    ways = our_ways(handle.queue, options.seconds)
    worker = None
    if options.rust:
        worker = add_rust(ways, options.rust, "netcl" if options.device == "cpu" else handle.device_name)
    if options.device != "cpu":
        add_torch(ways["captured MLP step, 784-128-10, 32 rows"], options.seconds)
    rounds = [{(work, name): way() for work, own in ways.items() for name, way in own.items()} for _ in range(options.rounds)]
    for work, own in ways.items():
        print(f"{work}: microseconds of a call")
        for name in own:
            whole, host = (statistics.median(times[work, name][i] for times in rounds) * 1e6 for i in range(2))
            more = ""
            if name != "from Python":
                differences = [times[work, "from Python"][1] - times[work, name][1] for times in rounds]
                more = f"   from Python {statistics.median(differences) * 1e6:+.1f} on the host"
            print(f"    {name:34} whole {whole:8.2f}   host {host:8.2f}{more}")
    if worker is not None:
        worker.communicate()


if __name__ == "__main__":
    main()

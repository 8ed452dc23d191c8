"""Recurrent networks forwards and backwards beside PyTorch's, in alternating runs.

    python benches/recurrent_peers.py <bench binary> [--device <part of a device's name>] [--cuda]

The interpreter must have PyTorch; the binary is the executable that ``cargo bench -p netcl-nn --bench recurrent --no-run`` names. It
stays alive as a worker, and all are asked in turn, so that a busy machine slows all; ratios are medians over the rounds, and above
1 ours is faster. Where the interpreter has netcl as well, its layers are timed from Python, too. With ``--cuda`` PyTorch runs on
the GPU (cuDNN).
"""

import argparse
import os
import statistics
import subprocess
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("binary", help="the executable of the Rust benchmark")
parser.add_argument("--device", default="netcl", help="part of the device's name; 'netcl' is the native CPU")
parser.add_argument("--python-device", default="cpu", help="the same device as netcl's selector in Python")
parser.add_argument("--cuda", action="store_true", help="PyTorch on the GPU")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--kinds", nargs="+", default=["lstm", "gru", "rnn"], choices=["lstm", "gru", "rnn"])
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--width", type=int, default=256, help="of inputs and of states")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=64)
options = parser.parse_args()

# Every library reads these when it is first imported.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)


def median_seconds(step):
    """The median of as many steps as fit into a second, at least five, after two."""
    step()
    step()
    times, start = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < 1:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def torch_step(kind):
    import torch

    torch.set_num_threads(options.threads)
    device = "cuda" if options.cuda else "cpu"
    model = getattr(torch.nn, kind.upper())(options.width, options.width, options.layers).to(device)
    shape = (options.steps, options.batch, options.width)
    x, upstream = torch.rand(shape, device=device, requires_grad=True), torch.rand(shape, device=device)
    inputs = [*model.parameters(), x]

    def step():
        torch.autograd.grad(model(x)[0], inputs, upstream)
        if options.cuda:
            torch.cuda.synchronize()

    return step


def python_step(kind):
    """The same with netcl's layer in Python; ``None`` where there is none."""
    try:
        import numpy as np

        import netcl.nn
        from netcl import Tensor
        from netcl.core.device import manager
    except ImportError:
        return None
    layer = getattr(netcl.nn, kind.upper(), None)
    if layer is None:
        return None
    queue = manager.default(options.python_device).queue
    model = layer(queue, options.width, options.width, options.layers)
    rng = np.random.default_rng(0)
    shape = (options.steps, options.batch, options.width)
    x, upstream = (Tensor.from_host(queue, rng.random(shape, dtype=np.float32)) for _ in range(2))
    x = x.requires_grad_()

    def step():
        model(x)[0].backward(upstream)
        x.grad = None
        model.zero_grad()
        queue.finish()

    return step


def main():
    command = [options.binary, "--worker", options.device]
    ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    name = ours.stdout.readline().strip()
    sizes = f"{options.layers} {options.width} {options.batch} {options.steps}"
    peer = "PyTorch (cuda)" if options.cuda else "PyTorch"
    print(f"{peer} beside ours on {name}: {options.layers} layers, {options.width} wide, batch {options.batch}, {options.steps} steps")

    def ask(kind, way):
        ours.stdin.write(f"{kind} {sizes} {way}\n")
        ours.stdin.flush()
        return float(ours.stdout.readline())

    for kind in options.kinds:
        theirs, python = torch_step(kind), python_step(kind)
        ways = {peer: lambda: median_seconds(theirs), "eager": lambda: ask(kind, "eager"), "replayed": lambda: ask(kind, "replay")}
        if python:
            ways["from Python"] = lambda: median_seconds(python)
        rounds = [{name: way() for name, way in ways.items()} for _ in range(options.rounds)]
        for name in ways:
            seconds = statistics.median(round[name] for round in rounds)
            ratio = statistics.median(round[peer] / round[name] for round in rounds)
            print(f"{kind:>5} {name:16} {seconds * 1e3:9.3f} ms, ratio {ratio:5.2f}", flush=True)
    ours.stdin.close()
    ours.wait()


if __name__ == "__main__":
    main()

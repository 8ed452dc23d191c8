"""Our operations beside a peer's, in one run: workers in separate processes take turns on each workload.

    python benches/peers.py --peer torch --peer-python <venv with torch>/bin/python
    python benches/peers.py --peer netcl-0.4.4 --peer-python <venv with netcl 0.4.4>/bin/python --device opencl
    python benches/peers.py --peer netcl --peer-python <venv with an earlier build of ours>/bin/python --device opencl

The interpreter that runs this file must have our netcl. Each worker stays alive; for every workload the two are asked in
turn, several rounds, so that whatever else the machine does hits both. A ratio above 1 means that ours is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

N = 1 << 24
WORKLOADS = {
    "matmul 512": ("matmul", (512, 512, 512)),
    "matmul 1024": ("matmul", (1024, 1024, 1024)),
    "matmul 2048": ("matmul", (2048, 2048, 2048)),
    "add 16M": ("add", (N,)),
    "mul 16M": ("mul", (N,)),
    "relu 16M": ("relu", (N,)),
    "exp 16M": ("exp", (N,)),
    "tanh 16M": ("tanh", (N,)),
    "gelu 16M": ("gelu", (N,)),
    "sum 16M": ("sum", (N,)),
    # As many bytes as softmax moves and nothing to compute: what bounds it.
    "relu 4096x1024": ("relu", (4096, 1024)),
    "softmax 4096x1024": ("softmax", (4096, 1024)),
    # Forward and backward.
    "softmax' 4096x1024": ("softmax'", (4096, 1024)),
    "layer_norm' 4096x1024": ("layer_norm'", (4096, 1024)),
    "batch_norm' 32x64x32x32": ("batch_norm'", (32, 64, 32, 32)),
    "embedding' 50000x128": ("embedding'", (50000, 128)),
    "dropout 2M": ("dropout", (1 << 21,)),
    "transpose 1024": ("transpose", (1024, 1024)),
    "add column 1024": ("add column", (1024, 1024)),
}
LOOKED_UP = 20000
ONLY_LARGE_ENOUGH = {"netcl-0.4.4": ("matmul 512", "matmul 1024", "add 16M", "relu 16M", "relu 4096x1024", "softmax 4096x1024", "sum 16M")}


def side_netcl(device):
    import numpy as np

    import netcl as nc
    from netcl import ops
    from netcl.core.device import manager
    from netcl.nn import functional as F

    queue = manager.default(device).queue
    rng = np.random.default_rng(0)

    def make(*shape):
        return nc.Tensor.from_host(queue, rng.normal(size=shape).astype(np.float32))

    def prepare(kind, shape):
        if kind == "matmul":
            m, n, k = shape
            a, b = make(m, k), make(k, n)
            return lambda: nc.matmul(a, b)
        if kind == "softmax":
            x = make(*shape)
            return lambda: nc.softmax(x)
        if kind == "sum":
            x = make(*shape)
            return lambda: nc.reduce_sum(x)
        if kind == "dropout":
            x = make(*shape)
            return lambda: F.dropout(x, 0.5)
        if kind == "transpose":
            x = make(*shape)
            return lambda: ops.contiguous(ops.transpose(x))
        if kind == "add column":
            x, y = make(*shape), make(shape[0], 1)
            return lambda: x + y
        if kind.endswith("'"):
            x = make(*shape).requires_grad_()
            weight, bias = make(shape[1]).requires_grad_(), make(shape[1]).requires_grad_()
            mean, var = make(shape[1]), make(shape[1])
            indices = nc.IndexTensor.from_host(queue, rng.integers(0, shape[0], LOOKED_UP))
            forward = {
                "softmax'": lambda: F.softmax(x),
                "layer_norm'": lambda: F.layer_norm(x, shape[1], weight, bias),
                "batch_norm'": lambda: F.batch_norm(x, mean, var, weight, bias, training=True),
                "embedding'": lambda: F.embedding(indices, x),
            }[kind]
            return both(forward, make(*forward().shape), [x, weight, bias])
        x, y = make(*shape), make(*shape)
        out = nc.Tensor.from_shape(queue, shape)
        function = getattr(ops, kind)
        return (lambda: function(x, y, out=out)) if kind in ("add", "mul") else (lambda: function(x, out=out))

    return prepare, queue.finish


def both(forward, gradient, leaves):
    """Forward and backward, without gradients from before."""

    def call():
        forward().backward(gradient)
        for leaf in leaves:
            leaf.grad = None

    return call


def side_torch(device):
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(int(os.environ.get("NETCL_NUM_THREADS", "2")))
    torch.manual_seed(0)

    def prepare(kind, shape):
        if kind == "matmul":
            m, n, k = shape
            a, b = torch.randn(m, k), torch.randn(k, n)
            return lambda: a @ b
        x, y = torch.randn(*shape), torch.randn(*shape)
        out = torch.empty(*shape)
        if kind == "dropout":
            return lambda: F.dropout(x, 0.5)
        if kind == "transpose":
            return lambda: x.t().contiguous()
        if kind == "add column":
            return lambda: x + y[:, :1]
        if kind.endswith("'"):
            x.requires_grad_()
            weight, bias = torch.randn(shape[1], requires_grad=True), torch.randn(shape[1], requires_grad=True)
            mean, var = torch.randn(shape[1]), torch.rand(shape[1])
            indices = torch.randint(0, shape[0], (LOOKED_UP,))
            forward = {
                "softmax'": lambda: F.softmax(x, -1),
                "layer_norm'": lambda: F.layer_norm(x, shape[1:], weight, bias),
                "batch_norm'": lambda: F.batch_norm(x, mean, var, weight, bias, training=True),
                "embedding'": lambda: F.embedding(indices, x),
            }[kind]
            return both(forward, torch.randn_like(forward()), [x, weight, bias])
        if kind == "gelu":
            return lambda: torch.nn.functional.gelu(x)
        if kind == "relu":
            return lambda: torch.clamp_min(x, 0, out=out)
        if kind == "sum":
            return lambda: x.sum()
        if kind == "softmax":
            return lambda: torch.softmax(x, -1)
        function = getattr(torch, kind)
        return (lambda: function(x, y, out=out)) if kind in ("add", "mul") else (lambda: function(x, out=out))

    return prepare, lambda: None


def side_published(device):
    os.environ.setdefault("NETCL_MATMUL_OPTIMIZED", "1")
    import numpy as np

    import netcl as nc
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor

    queue = manager.default("cpu_cl" if device == "cpu_cl" else "auto").queue
    rng = np.random.default_rng(0)

    def make(*shape):
        return Tensor.from_host(queue, rng.normal(size=shape).astype(np.float32))

    def prepare(kind, shape):
        if kind == "matmul":
            m, n, k = shape
            a, b = make(m, k), make(k, n)
            return lambda: nc.matmul(a, b)
        x, y = make(*shape), make(*shape)
        if kind == "softmax":
            return lambda: nc.softmax(x)
        if kind == "relu":
            return lambda: nc.relu(x)
        if kind == "sum":
            return lambda: nc.reduce_sum(x)
        return lambda: nc.elementwise_binary(x, y, expression="ADD(v0, v1)")

    return prepare, queue.finish


SIDES = {"netcl": side_netcl, "torch": side_torch, "netcl-0.4.4": side_published}


def worker(side, device):
    """Answers each workload named on standard input with the best and median milliseconds of a short run."""
    prepare, finish = SIDES[side](device)
    ready = {}
    for line in sys.stdin:
        name = line.strip()
        try:
            if name not in ready:
                call = prepare(*WORKLOADS[name])
                ready.clear()  # one workload's memory at a time
                ready[name] = call
                call()
                finish()
            call, times = ready[name], []
            until = time.perf_counter() + 0.4
            while len(times) < 3 or (time.perf_counter() < until and len(times) < 200):
                start = time.perf_counter()
                call()
                finish()
                times.append((time.perf_counter() - start) * 1e3)
            answer = {"best": min(times), "median": statistics.median(times)}
        except Exception as error:  # the other side goes on
            answer = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(answer), flush=True)


class Worker:
    def __init__(self, python, side, device):
        command = [python, os.path.abspath(__file__), "--worker", side, "--device", device]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return {"error": "the worker ended"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker")
    parser.add_argument("--peer", choices=sorted(SIDES), default="torch")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--device", default="cpu", help="our device selector")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="part of a workload's name")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.device)
        return
    names = [n for n in WORKLOADS if not arguments.only or arguments.only in n]
    names = [n for n in names if n in ONLY_LARGE_ENOUGH.get(arguments.peer, names)]
    ours, peer = Worker(sys.executable, "netcl", arguments.device), Worker(arguments.peer_python, arguments.peer, arguments.device)
    title = "earlier netcl" if arguments.peer == "netcl" else arguments.peer
    print(f"{'workload':<23} {'netcl ms':>10} {title + ' ms':>16} {'ratio':>8}   (medians of {arguments.rounds} rounds)")
    figures = {}
    for name in names:
        pairs = [(ours.ask(name), peer.ask(name)) for _ in range(arguments.rounds)]
        problems = {a.get("error") or b.get("error") for a, b in pairs} - {None}
        if problems:
            print(f"{name:<23} {problems.pop()}")
            continue
        mine = statistics.median(a["median"] for a, _ in pairs)
        theirs = statistics.median(b["median"] for _, b in pairs)
        ratio = statistics.median(b["median"] / a["median"] for a, b in pairs)
        figures[name] = {"netcl_ms": mine, "peer_ms": theirs, "ratio": ratio}
        print(f"{name:<23} {mine:>10.3f} {theirs:>16.3f} {ratio:>8.2f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"peer": arguments.peer, "device": arguments.device, "workloads": figures}, file, indent=1)


if __name__ == "__main__":
    main()

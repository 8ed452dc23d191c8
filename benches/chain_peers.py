"""The fused chain ``tanh(x * y + 1) * sigmoid(x) + relu(y)``, and fused rows, beside a peer: workers in separate processes
take turns on each workload, so that whatever else the machine does hits both. A ratio above 1 means that ours is faster.

    cargo bench -p netcl-core --bench chain --no-run      # names the executable
    python benches/chain_peers.py <executable> --peer torch --peer-python <venv with torch>/bin/python
    python benches/chain_peers.py <executable> --peer torch-compile --peer-python <venv with torch>/bin/python
    python benches/chain_peers.py <executable> --peer netcl-0.4.4 --peer-python <its venv>/bin/python --device portable
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

CASES = ["chain 1048576", "chain 16777216", "chain 67108864", "softmax 4096 1024", "softmax 65536 64", "layer_norm 4096 768"]


def side_torch(compiled):
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(int(os.environ["NETCL_NUM_THREADS"]))
    torch.manual_seed(0)

    def chain(x, y):
        return torch.tanh(x * y + 1) * torch.sigmoid(x) + torch.relu(y)

    chain = torch.compile(chain, dynamic=False) if compiled else chain

    def prepare(case, *sizes):
        x = torch.randn(*sizes)
        if case == "chain":
            y = torch.randn(*sizes)
            return lambda: chain(x, y)
        if case == "softmax":
            return lambda: torch.softmax(x, -1)
        weight, bias = torch.randn(sizes[-1]), torch.randn(sizes[-1])
        return lambda: F.layer_norm(x, sizes[-1:], weight, bias)

    return prepare, lambda: None


def side_published():
    """The published package on its OpenCL device: the chain takes four of its operations."""
    import numpy as np

    import netcl as nc
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    from netcl.ops.elementwise import elementwise_binary, sigmoid

    queue = manager.default("auto").queue
    rng = np.random.default_rng(0)

    def prepare(case, *sizes):
        x, y = (Tensor.from_host(queue, rng.normal(size=sizes).astype(np.float32)) for _ in range(2))
        if case == "softmax":
            return lambda: nc.softmax(x)
        if case != "chain":
            raise ValueError("the published package has no such operation")

        def chain():
            bent = elementwise_binary(x, y, expression="tanh(v0 * v1 + 1.0f)")
            gated = elementwise_binary(bent, sigmoid(x), expression="v0 * v1")
            return elementwise_binary(gated, y, expression="v0 + fmax(v1, 0.0f)")

        return chain

    return prepare, queue.finish


def worker(side):
    prepare, finish = side_published() if side == "netcl-0.4.4" else side_torch(side == "torch-compile")
    for line in sys.stdin:
        case, *sizes = line.split()
        try:
            call = prepare(case, *map(int, sizes))
            call()
            finish()
            times, until = [], time.perf_counter() + 0.4
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
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, case):
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return {"error": "the worker ended"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the executable of the Rust benchmark, or 'worker' for one of this file's own")
    parser.add_argument("--side")
    parser.add_argument("--peer", choices=["torch", "torch-compile", "netcl-0.4.4"], default="torch")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--device", default="netcl", help="part of our device's name; 'netcl' is the native CPU")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="part of a case's name")
    options = parser.parse_args()
    if options.binary == "worker":
        worker(options.side)
        return
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    ours = Worker([options.binary, "--worker", options.device])
    peer = Worker([options.peer_python, os.path.abspath(__file__), "worker", "--side", options.peer])
    print(f"{'case':<22} {'netcl ms':>10} {options.peer + ' ms':>18} {'ratio':>7} {'of best':>8}")
    for case in CASES:
        if options.only and options.only not in case:
            continue
        pairs = [(ours.ask(case), peer.ask(case)) for _ in range(options.rounds)]
        problems = {a.get("error") or b.get("error") for a, b in pairs} - {None}
        if problems:
            print(f"{case:<22} {problems.pop()}")
            continue
        mine, theirs = (min(pair[i]["best"] for pair in pairs) for i in (0, 1))
        ratio = statistics.median(b["median"] / a["median"] for a, b in pairs)
        print(f"{case:<22} {mine:>10.3f} {theirs:>18.3f} {ratio:>7.2f} {theirs / mine:>8.2f}", flush=True)


if __name__ == "__main__":
    main()

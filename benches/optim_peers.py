"""A step of Adam over ResNet-18's 62 parameters beside PyTorch's, in one run: workers in separate processes take turns.

    python benches/optim_peers.py --peer-python <venv with torch>/bin/python [--device cpu] [--rounds 7]

The interpreter that runs this file must have our netcl. PyTorch runs its fused and its foreach implementation. Each worker
stays alive and is asked in turn, so that whatever else the machine does hits all of them. A ratio above 1 means that ours is
faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SIDES = ("netcl", "torch fused", "torch foreach")
WORKLOADS = ("adam", "adamw+clip", "sgd momentum")


def shapes():
    found = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        for block in range(2):
            inputs = before if block == 0 else channels
            for shape in ((channels, inputs, 3, 3), (channels, channels, 3, 3)):
                found += [shape, (channels,), (channels,)]
            if block == 0 and stage > 0:
                found += [(channels, inputs, 1, 1), (channels,), (channels,)]
        before = channels
    return [*found, (1000, 512), (1000,)]


def side_netcl(device):
    import numpy as np

    from netcl import optim
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor

    queue = manager.default(device).queue
    rng = np.random.default_rng(0)
    params = []
    for shape in shapes():
        parameter = Tensor.from_host(queue, rng.normal(size=shape).astype(np.float32))
        parameter.requires_grad = True
        parameter.grad = Tensor.from_host(queue, rng.normal(size=shape).astype(np.float32))
        params.append(parameter)

    def prepare(name):
        if name == "sgd momentum":
            return optim.SGD(params, lr=1e-5, momentum=0.9).step
        if name == "adamw+clip":
            opt = optim.AdamW(params, lr=1e-5)
            return lambda: opt.step(max_norm=1.0)
        return optim.Adam(params, lr=1e-5).step

    return prepare, queue.finish


def side_torch(implementation):
    import torch

    torch.set_num_threads(int(os.environ["NETCL_NUM_THREADS"]))
    torch.manual_seed(0)
    params = [torch.randn(shape, requires_grad=True) for shape in shapes()]
    for parameter in params:
        parameter.grad = torch.randn_like(parameter)

    def prepare(name):
        how = {implementation: True}
        if name == "sgd momentum":
            return torch.optim.SGD(params, lr=1e-5, momentum=0.9, **how).step
        if name == "adamw+clip":
            opt = torch.optim.AdamW(params, lr=1e-5, **how)

            def step():
                torch.nn.utils.clip_grad_norm_(params, 1.0)
                opt.step()

            return step
        return torch.optim.Adam(params, lr=1e-5, **how).step

    return prepare, lambda: None


def worker(side, device):
    """Answers each workload named on standard input with the median milliseconds of a short run."""
    prepare, finish = side_netcl(device) if side == "netcl" else side_torch(side.split()[1])
    for line in sys.stdin:
        step, times = prepare(line.strip()), []
        step()
        finish()
        while len(times) < 15:
            start = time.perf_counter()
            step()
            finish()
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps({"best": min(times), "median": statistics.median(times)}), flush=True)


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
        raise RuntimeError("a worker ended")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--device", default="cpu", help="our device selector")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.device)
        return
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    workers = [Worker(sys.executable if s == "netcl" else options.peer_python, s, options.device) for s in SIDES]
    assert len(shapes()) == 62
    print(f"62 tensors, medians of {options.rounds} rounds in ms (best in brackets); ratio: peer / netcl")
    for name in WORKLOADS:
        rounds = [[each.ask(name) for each in workers] for _ in range(options.rounds)]
        for at, side in enumerate(SIDES):
            median = statistics.median(answers[at]["median"] for answers in rounds)
            best = min(answers[at]["best"] for answers in rounds)
            ratio = statistics.median(answers[at]["median"] / answers[0]["median"] for answers in rounds)
            of_best = best / min(answers[0]["best"] for answers in rounds)
            print(f"{name:<14} {side:<14} {median:8.3f} [{best:7.3f}]  ratio {ratio:5.2f} [{of_best:5.2f}]", flush=True)
    for each in workers:
        each.process.stdin.close()
        each.process.wait()


if __name__ == "__main__":
    main()

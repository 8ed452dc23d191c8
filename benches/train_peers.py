"""Whole training steps beside a peer's, in alternating runs: forward, loss, backward and Adam.

    python benches/train_peers.py <bench binary> --peer torch
    python benches/train_peers.py <bench binary> --peer netcl-0.4.4 --device "Portable Computing"

The interpreter must have the peer; the binary is the executable that ``cargo bench -p netcl --bench train_step --no-run``
names. It stays alive as a worker, and both sides are asked in turn, so that a busy machine slows both; the ratio of a case is
the median over the rounds, and above 1 ours is faster.
"""

import argparse
import os
import statistics
import subprocess
import time

from resnet_peers import torch_model

CASES = {"mlp": (32, 784), "fashion_cnn": (64, 1, 28, 28), "resnet18": (16, 3, 32, 32)}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("binary", help="the executable of the Rust benchmark")
parser.add_argument("--peer", choices=["torch", "netcl-0.4.4"], default="torch")
parser.add_argument("--device", default="netcl", help="part of the device's name; 'netcl' is the native CPU")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
options = parser.parse_args()

# Every library reads these when it is first imported.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)
os.environ["NETCL_MATMUL_OPTIMIZED"] = "1"


def median_seconds(step):
    """The median of as many steps as fit into a second, at least five (fewer where a step takes seconds), after one."""
    step()
    times, start = [], time.perf_counter()
    while (spent := time.perf_counter() - start) < 1 or (len(times) < 5 and spent < 10):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def torch_step(case):
    import torch
    from torch import nn

    torch.set_num_threads(options.threads)

    models = {
        "mlp": lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
        "fashion_cnn": lambda: nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10)),
        ),
        "resnet18": torch_model,
    }
    model = models[case]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(CASES[case])
    y = torch.arange(len(x)) * 7 % 10

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def published_step(case):
    """The published package (netcl 0.4.4): its own layers, on its first OpenCL device."""
    import numpy as np

    import netcl.autograd as ag
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    from netcl.nn.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential
    from netcl.optim import Adam

    queue = manager.default().queue

    def resnet18():
        from netcl.nn.resnet import ResNet18

        return ResNet18(queue, num_classes=10)

    models = {
        "mlp": lambda: Sequential(Linear(queue, 784, 128), ReLU(), Linear(queue, 128, 10)),
        "fashion_cnn": lambda: Sequential(
            *(Conv2d(queue, 1, 32, 3, pad=1), ReLU(), MaxPool2d(2, 2)),
            *(Conv2d(queue, 32, 64, 3, pad=1), ReLU(), MaxPool2d(2, 2)),
            *(Flatten(), Linear(queue, 64 * 49, 128), ReLU(), Linear(queue, 128, 10)),
        ),
        "resnet18": resnet18,
    }
    model = models[case]()
    optimizer = Adam(model.parameters(), lr=1e-3)
    shape = CASES[case]
    images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    onehot = np.eye(10, dtype=np.float32)[np.arange(shape[0]) * 7 % 10]

    def step():
        x = ag.tensor(Tensor.from_host(queue, images))
        y = Tensor.from_host(queue, onehot)
        tape = ag.Tape()
        with tape:
            loss = ag.cross_entropy(model(x), y)
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        queue.finish()

    return step


def main():
    command = [options.binary, "--worker", options.device]
    ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(f"{options.peer} beside ours on {ours.stdout.readline().strip()}, {options.threads} threads")
    steps = {"torch": torch_step, "netcl-0.4.4": published_step}[options.peer]
    for case in options.cases:
        step, rounds = steps(case), []
        for _ in range(options.rounds):
            ours.stdin.write(case + "\n")
            ours.stdin.flush()
            rounds.append((median_seconds(step), float(ours.stdout.readline())))
        ratio = statistics.median(peer / netcl for peer, netcl in rounds)
        peer, netcl = (statistics.median(times) for times in zip(*rounds))
        print(f"{case:>12}: peer {peer * 1e3:9.3f} ms, netcl {netcl * 1e3:9.3f} ms, ratio {ratio:5.2f}", flush=True)
    ours.stdin.close()
    ours.wait()


if __name__ == "__main__":
    main()

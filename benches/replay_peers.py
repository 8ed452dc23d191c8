"""The replayed step of a small MLP beside our own eager one and PyTorch's, in alternating runs.

    python benches/replay_peers.py <bench binary>

The interpreter must have PyTorch; the binary is the executable that ``cargo bench -p netcl --bench replay --no-run`` names. It
stays alive as a worker, and all three are asked in turn, so that a busy machine slows all; ratios are medians over the rounds,
and above 1 the replay is faster.
"""

import argparse
import os
import statistics
import subprocess
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("binary", help="the executable of the Rust benchmark")
parser.add_argument("--device", default="netcl", help="part of the device's name; 'netcl' is the native CPU")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=7)
options = parser.parse_args()

# Every library reads these when it is first imported.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)


def torch_step():
    import torch
    from torch import nn

    torch.set_num_threads(options.threads)
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    # As slow as ours: gradients that vanish would be slow to compute with.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-7)
    x = torch.randn(32, 784)
    y = torch.arange(32) * 7 % 10

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def median_seconds(step):
    """The median over half a second of blocks of ten steps, as the worker takes it."""
    times, start = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < 0.5:
        begin = time.perf_counter()
        for _ in range(10):
            step()
        times.append((time.perf_counter() - begin) / 10)
    return statistics.median(times)


def main():
    command = [options.binary, "--worker", options.device]
    ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(f"MLP 784-128-10, batch 32, Adam, {options.threads} threads; ours on {ours.stdout.readline().strip()}")

    def ask(kind):
        ours.stdin.write(f"{kind}\n")
        ours.stdin.flush()
        return float(ours.stdout.readline())

    step = torch_step()
    median_seconds(step)
    rounds = [(ask("replay"), ask("eager"), median_seconds(step)) for _ in range(options.rounds)]
    replay, eager, torch = (statistics.median(column) for column in zip(*rounds))
    print(f"replayed {replay * 1e6:.1f} us, eager {eager * 1e6:.1f} us, PyTorch {torch * 1e6:.1f} us")
    for name, column in (("eager", 1), ("PyTorch", 2)):
        ratio = statistics.median(round[column] / round[0] for round in rounds)
        print(f"replay against {name}: {ratio:.2f}x")
    ours.stdin.close()
    ours.wait()


if __name__ == "__main__":
    main()

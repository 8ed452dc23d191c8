"""Matrix products beside PyTorch's or NumPy's, with the same number of threads, in alternating runs.

``python benches/matmul_peers.py <bench binary>`` takes the executable that ``cargo bench -p netcl-ops --bench matmul --no-run``
names. Each round times the peer in this process and netcl in a fresh one, one after the other, so that a busy machine slows
both; the ratio of a size is the median over the rounds. PyTorch is the peer where it can be imported, else NumPy.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("binary", help="the executable of the Rust benchmark")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048])
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--device", default="netcl", help="part of the device's name; 'netcl' is the native CPU")
options = parser.parse_args()

# Both libraries read these when they are first imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)

try:
    import torch

    torch.set_num_threads(options.threads)
    PEER = f"PyTorch {torch.__version__}"

    def operands(n):
        return torch.rand(n, n), torch.rand(n, n)

except ImportError:
    import numpy

    PEER = f"NumPy {numpy.__version__}"

    def operands(n):
        generator = numpy.random.default_rng(0)
        return (generator.random((n, n), dtype="float32") for _ in range(2))


def peer_seconds(n):
    """The best of as many products as fit into half a second, at least five."""
    a, b = operands(n)
    bunch = max(200_000 // n**3, 1)
    best, runs, start = float("inf"), 0, time.perf_counter()
    a @ b
    while runs < 5 or time.perf_counter() - start < 0.5:
        begin = time.perf_counter()
        for _ in range(bunch):
            a @ b
        best = min(best, (time.perf_counter() - begin) / bunch)
        runs += 1
    return best


def netcl_seconds(n):
    command = [options.binary, "--json", "--device", options.device, "--size", str(n)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(lines[0])["seconds"]


def main():
    print(f"{PEER}, {options.threads} threads, median of {options.rounds} alternating rounds")
    for n in options.sizes:
        rounds = [(peer_seconds(n), netcl_seconds(n)) for _ in range(options.rounds)]
        ratio = statistics.median(peer / ours for peer, ours in rounds)
        peer, ours = (statistics.median(times) for times in zip(*rounds))
        gflops = [2e-9 * n**3 / t for t in (peer, ours)]
        print(f"{n:>5}: peer {gflops[0]:8.1f} GFLOP/s, netcl {gflops[1]:8.1f} GFLOP/s, ratio {ratio:5.2f}")


if __name__ == "__main__":
    main()

"""Convolutions beside PyTorch's, with the same number of threads, in alternating runs.

``python benches/conv_peers.py <bench binary>`` takes the executable that ``cargo bench -p netcl-ops --bench conv --no-run`` names. Each
round times PyTorch in this process and netcl in a fresh one, one after the other, so that a busy machine slows both; the ratio
of a case is the median over the rounds. ``all`` is the forward pass and both gradients, which for PyTorch is a forward pass
that autograd follows and its backward pass. A ratio above 1 means that netcl is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

# As in crates/netcl-ops/benches/conv.rs: the input, then filters, kernel, stride, padding, groups.
CASES = {
    "n1_3x3_64_32": ((1, 64, 32, 32), (64, 3, 1, 1, 1)),
    "3x3_64_32": ((16, 64, 32, 32), (64, 3, 1, 1, 1)),
    "3x3_3_32": ((32, 3, 32, 32), (32, 3, 1, 1, 1)),
    "3x3_1_28": ((64, 1, 28, 28), (16, 3, 1, 1, 1)),
    "5x5_16_14": ((64, 16, 14, 14), (32, 5, 1, 2, 1)),
    "3x3_s2_64_32": ((16, 64, 32, 32), (128, 3, 2, 1, 1)),
    "7x7_s2_3_112": ((4, 3, 112, 112), (64, 7, 2, 3, 1)),
    "1x1_128_16": ((16, 128, 16, 16), (256, 1, 1, 0, 1)),
    "3x3_256_8": ((16, 256, 8, 8), (256, 3, 1, 1, 1)),
    "depthwise_64_32": ((16, 64, 32, 32), (64, 3, 1, 1, 64)),
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("binary", help="the executable of the Rust benchmark")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--device", default="netcl", help="part of the device's name; 'netcl' is the native CPU")
options = parser.parse_args()

# Both libraries read these when they are first imported.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)

import torch  # noqa: E402

torch.set_num_threads(options.threads)


def best(body):
    """The best of as many runs as fit into half a second, at least five."""
    body()
    shortest, runs, start = float("inf"), 0, time.perf_counter()
    while runs < 5 or time.perf_counter() - start < 0.5:
        begin = time.perf_counter()
        body()
        shortest = min(shortest, time.perf_counter() - begin)
        runs += 1
    return shortest


def peer_seconds(case):
    shape, (filters, kernel, stride, padding, groups) = CASES[case]
    x = torch.rand(shape, requires_grad=True)
    weight = torch.rand(filters, shape[1] // groups, kernel, kernel, requires_grad=True)

    def convolve():
        return torch.nn.functional.conv2d(x, weight, None, stride, padding, 1, groups)

    grad = torch.rand_like(convolve())

    def forward():
        with torch.no_grad():
            convolve()

    return {"forward": best(forward), "all": best(lambda: torch.autograd.grad(convolve(), (x, weight), grad))}


def netcl_seconds(case):
    command = [options.binary, "--json", "--device", options.device, "--case", case]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    cells = [json.loads(line) for line in lines]
    return {cell["what"]: cell["seconds"] for cell in cells if cell["case"] == case}


def main():
    print(f"PyTorch {torch.__version__}, {options.threads} threads, median of {options.rounds} alternating rounds")
    for case in options.cases:
        rounds = [(peer_seconds(case), netcl_seconds(case)) for _ in range(options.rounds)]
        for what in ("forward", "all"):
            ratio = statistics.median(peer[what] / ours[what] for peer, ours in rounds)
            peer, ours = (1e3 * statistics.median(side[what] for side in sides) for sides in zip(*rounds))
            print(f"{case:<16} {what:<8} PyTorch {peer:8.2f} ms, netcl {ours:8.2f} ms, ratio {ratio:5.2f}")


if __name__ == "__main__":
    main()

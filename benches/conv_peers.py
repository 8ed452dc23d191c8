"""Convolutions beside PyTorch's or the published package's (netcl 0.4.4), in alternating runs.

``python benches/conv_peers.py <bench binary>`` takes the executable that ``cargo bench -p netcl-ops --bench conv --no-run`` names. Each
round times the peer in this process and netcl in a fresh one, one after the other, so that a busy machine slows both; the ratio
of a case is the median over the rounds. ``all`` is the forward pass and both gradients, which for PyTorch is a forward pass
that autograd follows and its backward pass. A ratio above 1 means that netcl is faster.

The interpreter decides about the peer: ``--peer torch`` (with as many threads as netcl) needs PyTorch, ``--peer published`` netcl
0.4.4, which runs on the OpenCL device that it finds first: set OCL_ICD_VENDORS so that there is one, and give its name to
``--device``.
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
    "3x3_128_16": ((16, 128, 16, 16), (128, 3, 1, 1, 1)),
    "3x3_s2_128_16": ((16, 128, 16, 16), (256, 3, 2, 1, 1)),
    "1x1_s2_128_16": ((16, 128, 16, 16), (256, 1, 2, 0, 1)),
    "3x3_256_8": ((16, 256, 8, 8), (256, 3, 1, 1, 1)),
    "3x3_s2_256_8": ((16, 256, 8, 8), (512, 3, 2, 1, 1)),
    "3x3_512_4": ((16, 512, 4, 4), (512, 3, 1, 1, 1)),
    "3x3_1_32_28": ((64, 1, 28, 28), (32, 3, 1, 1, 1)),
    "3x3_32_14": ((64, 32, 14, 14), (64, 3, 1, 1, 1)),
    "depthwise_64_32": ((16, 64, 32, 32), (64, 3, 1, 1, 64)),
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("binary", help="the executable of the Rust benchmark")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--peer", choices=["torch", "published"], default="torch")
parser.add_argument("--device", default="netcl", help="part of the device's name; 'netcl' is the native CPU")
options = parser.parse_args()

# Both libraries read these when they are first imported.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)


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


def torch_seconds(case):
    import torch

    torch.set_num_threads(options.threads)
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


def published_seconds(case):
    import numpy as np
    from netcl.ops.conv2d import conv2d, conv2d_backward

    from netcl.core.device import manager
    from netcl.core.tensor import Tensor

    queue = manager.default("auto").queue
    shape, (filters, kernel, stride, padding, groups) = CASES[case]
    random = np.random.default_rng(0)

    def make(shape):
        return Tensor.from_host(queue, random.random(shape, dtype=np.float32))

    x, weight = make(shape), make((filters, shape[1] // groups, kernel, kernel))
    how = {"stride": stride, "pad": padding, "groups": groups}
    grad = make(conv2d(x, weight, **how).shape)

    def forward():
        conv2d(x, weight, **how)
        queue.finish()

    def everything():
        conv2d(x, weight, **how)
        conv2d_backward(x, weight, grad, **how)
        queue.finish()

    return {"forward": best(forward), "all": best(everything)}


PEERS = {"torch": ("PyTorch", torch_seconds), "published": ("netcl 0.4.4", published_seconds)}


def netcl_seconds(case):
    command = [options.binary, "--json", "--device", options.device, "--case", case]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    cells = [json.loads(line) for line in lines]
    return {cell["what"]: cell["seconds"] for cell in cells if cell["case"] == case}


def main():
    name, peer_seconds = PEERS[options.peer]
    print(f"{name}, {options.threads} threads, median of {options.rounds} alternating rounds")
    for case in options.cases:
        rounds = [(peer_seconds(case), netcl_seconds(case)) for _ in range(options.rounds)]
        for what in ("forward", "all"):
            ratio = statistics.median(peer[what] / ours[what] for peer, ours in rounds)
            peer, ours = (1e3 * statistics.median(side[what] for side in sides) for sides in zip(*rounds))
            print(f"{case:<16} {what:<8} {name} {peer:8.2f} ms, netcl {ours:8.2f} ms, ratio {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()

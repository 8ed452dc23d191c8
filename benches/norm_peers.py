"""Normalisations, softmax and pooling beside PyTorch's, with the same number of threads, in alternating runs.

``python benches/norm_peers.py <bench binary>`` takes the executable that ``cargo bench -p netcl-ops --bench norm --no-run``
names. Each round times PyTorch in this process and netcl in a fresh one, one after the other, so that a busy machine slows
both; the ratio of a case is the median over the rounds. The times are the best of all rounds, and so is the second ratio,
which a busy machine disturbs least.
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
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--cases", nargs="+", help="only these")
parser.add_argument("--device", default="netcl", help="part of the device's name; 'netcl' is the native CPU")
options = parser.parse_args()

# Both libraries read these when they are first imported.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch.set_num_threads(options.threads)

IMAGE, ROWS = (32, 64, 32, 32), (4096, 768)


def batch_norm(training=True):
    state = {}

    def run(x, weight, bias):
        mean = state.setdefault("mean", torch.zeros_like(weight))
        var = state.setdefault("var", torch.ones_like(weight))
        return F.batch_norm(x, mean, var, weight, bias, training=training)

    return run


def pool(function):
    return lambda x, weight, bias: function(x, 3, stride=2, padding=1)


def softmax(function):
    return lambda x, weight, bias: function(x, -1)


NORMS = {
    "batch_norm": (IMAGE, batch_norm()),
    "batch_norm_small": ((32, 512, 4, 4), batch_norm()),
    "batch_norm_1d": ((4096, 256), batch_norm()),
    "layer_norm": (ROWS, lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)),
    "rms_norm": (ROWS, lambda x, w, b: F.rms_norm(x, x.shape[-1:], w, 1e-5)),
    "group_norm": (IMAGE, lambda x, w, b: F.group_norm(x, 32, w, b)),
    "softmax": ((4096, 1024), softmax(F.softmax)),
    "log_softmax": ((4096, 1024), softmax(F.log_softmax)),
    "max_pool_2x2": (IMAGE, lambda x, w, b: F.max_pool2d(x, 2)),
    "max_pool": (IMAGE, pool(F.max_pool2d)),
    "avg_pool": (IMAGE, pool(F.avg_pool2d)),
    "adaptive_avg_pool": ((32, 512, 7, 7), lambda x, w, b: F.adaptive_avg_pool2d(x, 1)),
}
# name: shape, function of (x, weight, bias), whether the backward pass runs as well
CASES = {name: (*case, False) for name, case in NORMS.items()}
CASES |= {f"{name}+backward": (*case, True) for name, case in NORMS.items()}
CASES |= {
    "batch_norm_eval": (IMAGE, batch_norm(training=False), False),
    "nearest": ((8, 64, 32, 32), lambda x, w, b: F.interpolate(x, scale_factor=2), False),
    "bilinear": ((8, 64, 32, 32), lambda x, w, b: F.interpolate(x, scale_factor=2, mode="bilinear"), False),
}


def peer_seconds(name):
    """The best of as many runs as fit into a third of a second, at least five."""
    shape, function, backward = CASES[name]
    channels = shape[-1] if shape == ROWS else shape[1]
    x, weight, bias = (torch.randn(n, requires_grad=backward) for n in (shape, (channels,), (channels,)))
    parameters = {"rms_norm": (weight,)}.get(name.removesuffix("+backward"), (weight, bias) if "norm" in name else ())
    used = (x, *parameters)
    with torch.set_grad_enabled(backward):
        grad = torch.randn_like(function(x, weight, bias))

        def run():
            y = function(x, weight, bias)
            if backward:
                torch.autograd.grad(y, used, grad)

        run()
        best, runs, start = float("inf"), 0, time.perf_counter()
        while runs < 5 or time.perf_counter() - start < 0.33:
            begin = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - begin)
            runs += 1
    return best


def netcl_seconds(name):
    command = [options.binary, "--json", "--device", options.device, "--case", name]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(lines[0])["seconds"]


def main():
    print(f"PyTorch {torch.__version__}, {options.threads} threads, median of {options.rounds} alternating rounds")
    for name in options.cases or CASES:
        rounds = [(peer_seconds(name), netcl_seconds(name)) for _ in range(options.rounds)]
        ratio = statistics.median(peer / ours for peer, ours in rounds)
        peer, ours = (min(times) for times in zip(*rounds))
        times = f"peer {peer * 1e3:8.3f} ms, netcl {ours * 1e3:8.3f} ms"
        print(f"{name:>26}: {times}, ratio {ratio:5.2f}, of the best {peer / ours:5.2f}", flush=True)


if __name__ == "__main__":
    main()

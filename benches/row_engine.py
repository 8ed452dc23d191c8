"""Softmax and the norms of rows: their own kernels beside the same expressions on the row engine, which ``jit`` makes of them.

    python benches/row_engine.py --device gpu
    python benches/row_engine.py --device cpu --shrink 16

A ratio is the time of the operation's own kernel by the row engine's: below 0.95 the kernel earns its place. Forward is the
operation alone, the other a captured forward and backward pass. Both take turns.
"""

import argparse
import statistics
import time

import numpy as np

import netcl as nc
import netcl.autograd as ag
from netcl.core.device import manager
from netcl.nn import functional as F

SHAPES = [(16384, 768), (8192, 4096), (4096, 50257)]
# Nobody normalises longer rows.
LONGEST_NORM = 8192


def softmax(x, _weight, _bias):
    shifted = (x - x.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def log_softmax(x, _weight, _bias):
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def layer_norm(x, weight, bias):
    around = x - x.mean(-1, keepdim=True)
    return around * ((around * around).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + bias


def rms_norm(x, weight, _bias):
    return x * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


CASES = {
    "softmax": (lambda x, _weight, _bias: F.softmax(x, -1), softmax),
    "log_softmax": (lambda x, _weight, _bias: F.log_softmax(x, -1), log_softmax),
    "layer_norm": (lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias), layer_norm),
    "rms_norm": (lambda x, weight, _bias: F.rms_norm(x, weight.shape, weight, 1e-5), rms_norm),
}


def turn(call, finish, seconds):
    """The median of milliseconds of a call."""
    call()
    finish()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) < 3:
        start = time.perf_counter()
        for _ in range(5):
            call()
        finish()
        times.append((time.perf_counter() - start) / 5 * 1e3)
    return statistics.median(times)


def forward(function, x, weight, bias):
    def call():
        with ag.no_grad():
            return function(x, weight, bias)

    return call


def both_ways(function, x, weight, bias, gradient):
    leaves = [ag.tensor(t, requires_grad=True) for t in (x, weight, bias)]

    def step(gradient):
        y = function(*leaves)
        y.backward(gradient)
        for leaf in leaves:
            leaf.grad = None
        return y

    captured = nc.runtime.capture(step)
    return lambda: captured(gradient)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--shrink", type=int, default=1, help="divides the rows, for slow devices")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.15, help="of each way in each round")
    options = parser.parse_args()
    queue = manager.default(options.device).queue
    random = np.random.default_rng(2026)
    for rows, columns in SHAPES:
        shape = (max(1, rows // options.shrink), columns)
        for dtype in ("float32", "bfloat16"):
            lengths = [shape, shape, (columns,), (columns,)]
            made = (nc.Tensor.from_host(queue, random.normal(size=n).astype(np.float32)) for n in lengths)
            x, gradient, weight, bias = (t.to(dtype=dtype) for t in made)
            for name, (own, composed) in CASES.items():
                if name.endswith("norm") and columns > LONGEST_NORM:
                    continue
                pair = own, ag.jit(composed)
                ways = [forward(f, x, weight, bias) for f in pair] + [both_ways(f, x, weight, bias, gradient) for f in pair]
                found, expected = (way().to_host().astype(np.float64) for way in ways[:2])
                apart = np.abs(found - expected).max() / np.abs(expected).max()
                turns = [[turn(way, queue.finish, options.seconds) for way in ways] for _ in range(options.rounds)]
                one, rows_one, both, rows_both = (statistics.median(way) for way in zip(*turns, strict=True))
                print(
                    f"{shape[0]} x {columns} {dtype:<8} {name:<11} forward {one:8.4f} ms, ratio {one / rows_one:4.2f}   "
                    f"both ways {both:8.4f} ms, ratio {both / rows_both:4.2f}   apart {apart:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""Products of small, flat and long shapes beside PyTorch in one process, a few calls of each in turn.

    python benches/shapes_peers.py --device gpu --torch-device cuda
    python benches/shapes_peers.py --dtypes float16 --shapes 16x4096x4096 64x64x65536:tn

A shape is m x n x k; behind a colon stand n or t for each operand, t where it is stored transposed. For each there are two pairs of
times in microseconds: of calls from Python, which the host bounds where the device is done sooner, and of launches that were recorded
once (a CUDA graph there, ``KernelCapture`` here). Results are compared with those of float64 first; the error printed is that of the
largest element in relation to the sum of magnitudes. The interpreter must have both netcl and PyTorch.
"""

import argparse
import statistics

import numpy as np
import torch
from bench_peers import sample

import netcl as nc
from netcl.core.device import manager
from netcl.runtime import KernelCapture

SHAPES = """
    1x4096x4096 1x4096x4096:nt 2x4096x4096 4x4096x4096 8x4096x4096 8x4096x4096:nt 16x4096x4096 32x4096x4096 64x4096x4096 4096x1x4096
    8x50000x768:nt 16x11008x4096:nt 64x64x65536 64x64x65536:tn 64x576x100352:tn 128x1152x25088:tn 256x256x16384:tn 512x512x2048
    768x768x768 1024x1024x1024 2048x2048x2048
""".split()
CALLS, RECORDED = 60, 20


def parse(text):
    lengths, _, stored = text.partition(":")
    return [int(length) for length in lengths.split("x")], [letter == "t" for letter in stored or "nn"]


def graph(call):
    """The launches of several calls as one CUDA graph."""
    call()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for _ in range(RECORDED):
            call()
    return recorded.replay


def capture(call):
    """The same as a list of our own launches."""
    recorded = KernelCapture()
    recorded.begin()
    for _ in range(RECORDED):
        call()
    recorded.end()
    return recorded.replay


def compare(text, dtype, queue, torch_device, rounds):
    (m, n, k), (turned_a, turned_b) = parse(text)
    random = np.random.default_rng(2026)
    a = random.uniform(-1, 1, (k, m) if turned_a else (m, k)).astype(np.float32)
    b = random.uniform(-1, 1, (n, k) if turned_b else (k, n)).astype(np.float32)
    ours = [nc.Tensor.from_host(queue, x).to(dtype=dtype) for x in (a, b)]
    theirs = [torch.from_numpy(x).to(torch_device).to(getattr(torch, dtype)) for x in (a, b)]
    theirs = [x.t() if turned else x for x, turned in zip(theirs, (turned_a, turned_b))]
    our_result, their_result = nc.matmul(*ours, transpose_a=turned_a, transpose_b=turned_b), torch.mm(*theirs)

    exact, sizes = [torch.mm(*(f(x.double()) for x in theirs)).cpu() for f in (lambda x: x, torch.abs)]
    got = torch.from_numpy(np.array(our_result.to(dtype="float32").to_host()).reshape(m, n)).double()
    error = float(((got - exact).abs() / sizes).max())

    finish = torch.cuda.synchronize if torch_device.startswith("cuda") else (lambda: None)
    call = {
        "PyTorch": lambda: torch.mm(*theirs, out=their_result),
        "netcl": lambda: nc.matmul(*ours, transpose_a=turned_a, transpose_b=turned_b, out=our_result),
    }
    wait = {"PyTorch": finish, "netcl": queue.finish}
    recorded = {"netcl": capture(call["netcl"])}
    if torch_device.startswith("cuda"):
        recorded["PyTorch"] = graph(call["PyTorch"])
    times = {}
    for _ in range(rounds):
        for name in call:
            times.setdefault((name, "called"), []).append(1e3 * sample(call[name], wait[name], CALLS))
            if name in recorded:
                replayed = 1e3 * sample(recorded[name], wait[name], CALLS // RECORDED) / RECORDED
                times.setdefault((name, "recorded"), []).append(replayed)
    medians = {key: statistics.median(found) for key, found in times.items()}
    columns = []
    for how in ("called", "recorded"):
        pair = [medians.get((name, how)) for name in ("PyTorch", "netcl")]
        columns.append(f"{how} " + " / ".join("-" if time is None else f"{time:.1f}" for time in pair))
    print(f"{text:20} {dtype:9} {', '.join(columns)}, error {error:.0e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="netcl's device")
    parser.add_argument("--torch-device", default="cuda")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16"])
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    queue = manager.default(options.device).queue
    nc.set_matmul_precision("highest")
    print(f"microseconds, PyTorch {torch.__version__} / netcl, {options.rounds} rounds")
    for dtype in options.dtypes:
        for shape in options.shapes:
            compare(shape, dtype, queue, options.torch_device, options.rounds)


if __name__ == "__main__":
    main()

"""Rows of transformers beside PyTorch's, in turns in one process: attention, losses, embeddings, activations, products, decoding.

    python benches/transformer_rows.py --device gpu --torch-device cuda
    python benches/transformer_rows.py --device cpu --torch-device cpu --shrink 16 --rows gelu embedding

Forward and all gradients of an operation count as one run; netcl replays a captured function, PyTorch runs eagerly. Results are
compared once. ``decode`` is GPT-2 small's time for each further token of one sequence. A ratio above 1 means that ours is faster.
"""

import argparse
import statistics
import time

import numpy as np
from steps import turn

ATTENTION = {
    "attention_64_forward": ((8, 16, 2048, 64), False),
    "attention_64": ((8, 16, 2048, 64), True),
    "attention_128": ((2, 16, 4096, 128), True),
}
ROWS = [*ATTENTION, "cross_entropy", "gelu", "embedding", "batched_product", "decode"]
# The largest difference, as a part of the largest result.
CLOSE = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-4}


def operands(row, shrink):
    """Arrays, their dtype, and which of them want gradients."""
    random = np.random.default_rng(2026)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    if row in ATTENTION:
        (batch, heads, length, width), _ = ATTENTION[row]
        shape = (batch, heads, max(64, length // shrink), width)
        return [normal(*shape) for _ in range(4)], "bfloat16"
    if row == "cross_entropy":
        return [normal(4096 // shrink, 50257), random.integers(0, 50257, 4096 // shrink)], "float32"
    if row == "gelu":
        return [normal((64 << 20) // shrink), normal((64 << 20) // shrink)], "float32"
    if row == "embedding":
        rows = 16384 // shrink
        return [normal(50257, 768), random.integers(0, 50257, rows), normal(rows, 768)], "float32"
    return [normal(256 // shrink or 1, 512, 64), normal(256 // shrink or 1, 64, 512)], "float16"


def torch_row(row, options):
    import torch
    from torch.nn import functional as F

    arrays, dtype = operands(row, options.shrink)
    made = [torch.from_numpy(each).to(options.torch_device) for each in arrays]
    made = [each.to(getattr(torch, dtype)) if each.is_floating_point() else each for each in made]
    for each in made:
        each.requires_grad_(each.is_floating_point())

    def step():
        if row in ATTENTION:
            q, k, v, grad = made
            if not ATTENTION[row][1]:
                with torch.no_grad():
                    return [F.scaled_dot_product_attention(q, k, v, is_causal=True)]
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return [y, *torch.autograd.grad(y, (q, k, v), grad)]
        if row == "cross_entropy":
            y = F.cross_entropy(*made)
            return [y, *torch.autograd.grad(y, made[:1])]
        if row == "gelu":
            y = F.gelu(made[0])
            return [y, *torch.autograd.grad(y, made[:1], made[1])]
        if row == "embedding":
            y = F.embedding(made[1], made[0])
            return [y, *torch.autograd.grad(y, made[:1], made[2])]
        with torch.no_grad():
            return [torch.matmul(*made)]

    return step, lambda found: [each.detach().float().cpu().numpy() for each in found]


def netcl_row(row, options):
    import netcl as nc
    from netcl.nn import functional as F

    arrays, dtype = operands(row, options.shrink)
    made = [
        nc.Tensor.from_host(options.queue, each).to(dtype=dtype)
        if each.dtype == np.float32
        else nc.IndexTensor.from_host(options.queue, each)
        for each in arrays
    ]
    for each, array in zip(made, arrays, strict=True):
        if array.dtype == np.float32:
            each.requires_grad = True
    grad = nc.autograd.grad

    @nc.runtime.capture
    def step():
        if row in ATTENTION:
            q, k, v, upstream = made
            if not ATTENTION[row][1]:
                with nc.no_grad():
                    return [F.scaled_dot_product_attention(q, k, v, is_causal=True)]
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return [y.detach(), *grad(y, (q, k, v), upstream)]
        if row == "cross_entropy":
            y = F.cross_entropy(*made)
            return [y.detach(), *grad(y, made[:1])]
        if row == "gelu":
            y = F.gelu(made[0])
            return [y.detach(), *grad(y, made[:1], made[1])]
        if row == "embedding":
            y = F.embedding(made[1], made[0])
            return [y.detach(), *grad(y, made[:1], made[2])]
        with nc.no_grad():
            return [nc.matmul(*made)]

    return step, lambda found: [each.to(dtype="float32").numpy() for each in found]


def compare(row, options):
    made = {"PyTorch": torch_row(row, options), "netcl": netcl_row(row, options)}
    finish = {"PyTorch": options.torch_finish, "netcl": options.queue.finish}
    expected, found = (values(step()) for step, values in made.values())
    allowed = CLOSE[operands(row, options.shrink)[1]]
    for ours, theirs in zip(found, expected, strict=True):
        difference = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30)
        if not difference <= allowed:
            print(f"{row}: results differ by {difference:.2e} of the largest, {allowed:.0e} is allowed", flush=True)
    turns = {name: [] for name in made}
    for number in range(options.rounds):
        for name in sorted(made, reverse=number % 2 == 1):
            turns[name].append(turn(made[name][0], finish[name], options.seconds))
    theirs, ours = (statistics.median(turns[name]) for name in ("PyTorch", "netcl"))
    print(f"{row:22} PyTorch {theirs:8.3f} ms, netcl {ours:8.3f} ms, ratio {theirs / ours:.2f}", flush=True)


def decode(options):
    """GPT-2 small in bfloat16 goes on from 16 tokens; the first tokens, which compile, are not counted."""
    import netcl as nc
    from netcl.nn.gpt import GPT

    small = {"layers": 12, "heads": 12, "width": 768} if options.shrink == 1 else {"layers": 2, "heads": 4, "width": 64}
    model = GPT(options.queue, 50257 // options.shrink, 1024, *small.values()).to(dtype="bfloat16")
    prompt = nc.IndexTensor.from_host(options.queue, np.arange(16, dtype=np.int64)[None])

    def seconds(tokens):
        begin = time.perf_counter()
        model.generate(prompt, tokens, temperature=0.0)
        options.queue.finish()
        return time.perf_counter() - begin

    seconds(64)
    short, long = 64, 320
    each = min((seconds(long) - seconds(short)) / (long - short) for _ in range(3))
    print(f"{'decode':22} netcl {each * 1e3:8.3f} ms a token", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="netcl's device")
    parser.add_argument("--torch-device", default="cuda")
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--shrink", type=int, default=1, help="divides batches and lengths, for slow devices")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    import torch

    from netcl.core.device import manager

    options.queue = manager.default(options.device).queue
    options.torch_finish = torch.cuda.synchronize if options.torch_device != "cpu" else lambda: None
    for row in options.rows:
        decode(options) if row == "decode" else compare(row, options)


if __name__ == "__main__":
    main()

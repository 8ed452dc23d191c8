"""GPT-2 small's shape trained on a text beside PyTorch, from the same weights on the same batches: the losses of both.

    python benches/gpt_text.py TEXT --device gpu --torch-device cuda
    python benches/gpt_text.py TEXT --device cpu --torch-device cpu --layers 2 --width 64 --heads 2 --batch 2 --length 64 --steps 10

Tokens are bytes, the vocabulary stays GPT-2's. ``highest`` compares float32 step by step; ``amp`` compares the mean of the last tenth
of the steps, beside what two runs of PyTorch (its own attention, and its plain one) are apart. ``--memory`` prints what a step of GPT-2
medium needs at its peak.
"""

import argparse

import numpy as np
from gpt_peers import DECAY, LEARNING_RATE, torch_model


def torch_losses(state, batches, precision, options, plain_attention=False):
    import torch
    from torch.nn import functional as F

    device = options.torch_device
    torch.backends.cuda.matmul.allow_tf32 = precision != "highest"
    if device != "cpu":
        torch.backends.cuda.enable_flash_sdp(not plain_attention)
        torch.backends.cuda.enable_mem_efficient_sdp(not plain_attention)
    model = torch_model(options).to(device)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=DECAY, fused=device != "cpu")
    losses = []
    for tokens, targets in batches:
        x, y = torch.from_numpy(tokens).to(device), torch.from_numpy(targets).to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "amp"):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    if device != "cpu":
        print(f"  PyTorch's peak: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", flush=True)
        torch.cuda.reset_peak_memory_stats()
    return np.array([float(loss) for loss in losses])


def netcl_losses(state, batches, precision, options):
    import netcl as nc
    from netcl import amp
    from netcl.core.device import manager
    from netcl.nn.gpt import GPT
    from netcl.optim import AdamW

    queue = manager.default(options.device).queue
    model = GPT(queue, options.vocabulary, options.length, options.layers, options.heads, options.width)
    model.load_state_dict(state)
    optimizer = AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=DECAY)
    nc.set_matmul_precision("highest" if precision == "highest" else "high")

    @nc.runtime.capture
    def step(x, y):
        with amp.autocast(dtype="bfloat16", enabled=precision == "amp"):
            loss = model(x, targets=y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = []
    for tokens, targets in batches:
        x, y = nc.IndexTensor.from_host(queue, tokens), nc.IndexTensor.from_host(queue, targets.reshape(-1))
        losses.append(step(x, y).item())
    weights = sum(p.size * 4 for p in model.parameters())
    print(f"  ours: {step.stats()['planned_bytes'] / 2**30:.2f} GiB planned, {3 * weights / 2**30:.2f} of weights and moments", flush=True)
    return np.array(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--device", default="gpu", help="netcl's device")
    parser.add_argument("--torch-device", default="cuda")
    for name, default in (("batch", 8), ("length", 1024), ("layers", 12), ("width", 768), ("heads", 12), ("vocabulary", 50257)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=50, help="of float32; AMP runs four times as many")
    parser.add_argument("--precisions", nargs="+", default=["highest", "amp"], choices=["highest", "amp"])
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    text = np.fromfile(options.text, np.uint8).astype(np.int64)
    random = np.random.default_rng(2026)

    def batches(count):
        for starts in np.random.default_rng(7).integers(0, len(text) - options.length - 1, (count, options.batch)):
            parts = np.stack([text[start : start + options.length + 1] for start in starts])
            yield np.ascontiguousarray(parts[:, :-1]), np.ascontiguousarray(parts[:, 1:])

    if options.memory:
        options.layers, options.width, options.heads, options.steps, options.precisions = 24, 1024, 16, 1, ["amp"]
    state = {name: value.numpy().copy() for name, value in torch_model(options).state_dict().items()}
    state = {
        name: value if value.ndim == 1 else random.normal(scale=0.02, size=value.shape).astype(np.float32)
        for name, value in state.items()
    }
    for precision in options.precisions:
        steps = options.steps * (1 if precision == "highest" else 4)
        theirs = torch_losses(state, batches(steps), precision, options)
        ours = netcl_losses(state, batches(steps), precision, options)
        apart = np.abs(ours - theirs) / np.abs(theirs)
        print(f"{precision}: {steps} steps, {theirs[0]:.4f} -> {theirs[-1]:.4f} (PyTorch), {ours[-1]:.4f} (netcl)")
        print(f"  apart: {apart.max():.2e} at most, {apart[-1]:.2e} at the end")
        if precision == "amp" and not options.memory:
            again = torch_losses(state, batches(steps), precision, options, plain_attention=True)
            last = slice(-max(1, steps // 10), None)
            print(f"  mean of the last tenth: {theirs[last].mean():.4f}, {again[last].mean():.4f} (PyTorch), {ours[last].mean():.4f} (netcl)")
            print(f"  PyTorch's two runs are {np.abs(again - theirs).max():.2e} apart at most, ours {np.abs(ours - theirs).max():.2e}")


if __name__ == "__main__":
    main()

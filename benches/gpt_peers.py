"""The training step of GPT-2 small beside PyTorch's, in alternating turns.

    python benches/gpt_peers.py --device gpu --torch-device cuda
    python benches/gpt_peers.py --device cpu --torch-device cpu --layers 4 --width 256 --heads 8 --batch 4 --length 256 --vocabulary 512

Forward, cross-entropy, backward and AdamW. Both begin with the same weights, and their losses over the first steps are compared.
``amp`` is autocast to bfloat16, ``high`` tf32, ``highest`` float32. Each tool has the device to itself for a second at a time; a ratio
above 1 means that ours is faster. ``--compile`` adds torch.compile with CUDA graphs, ``--profile`` prints where our step's time goes.
The interpreter must have both netcl and PyTorch.
"""

import argparse

import numpy as np
from steps import compare, show_profile

LEARNING_RATE, DECAY = 3e-4, 0.1


def torch_model(options):
    import torch
    from torch import nn
    from torch.nn import functional as F

    width, heads = options.width, options.heads

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = (t.view(batch, length, heads, -1).transpose(1, 2) for t in self.c_attn(x).split(width, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(width), Attention(), nn.LayerNorm(width), MLP()

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(options.vocabulary, width), nn.Embedding(options.length, width)
            self.h, self.ln_f = nn.ModuleList(Block() for _ in range(options.layers)), nn.LayerNorm(width)

        def forward(self, tokens):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.h:
                x = block(x)
            return F.linear(self.ln_f(x), self.wte.weight)

    return GPT()


def torch_step(state, tokens, targets, precision, options, compiled):
    import torch
    from torch.nn import functional as F

    device = options.torch_device
    model = torch_model(options).to(device)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    x, y = torch.from_numpy(tokens).to(device), torch.from_numpy(targets).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=DECAY, fused=device != "cpu")

    def loss_of(x, y):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "amp"):
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    forward = torch.compile(loss_of, mode="reduce-overhead") if compiled else loss_of

    def step():
        # The switch is the whole process's.
        torch.backends.cuda.matmul.allow_tf32 = precision != "highest"
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step, (torch.cuda.synchronize if device != "cpu" else lambda: None)


def netcl_step(state, tokens, targets, precision, options, captured):
    import netcl as nc
    from netcl import amp
    from netcl.core.device import manager
    from netcl.nn import functional as F
    from netcl.nn.gpt import GPT
    from netcl.optim import AdamW

    queue = manager.default(options.device).queue
    model = GPT(queue, options.vocabulary, options.length, options.layers, options.heads, options.width)
    model.load_state_dict(state)
    optimizer = AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=DECAY)
    x, y = nc.IndexTensor.from_host(queue, tokens), nc.IndexTensor.from_host(queue, targets.reshape(-1))

    def plain(x, y):
        with amp.autocast(dtype="bfloat16", enabled=precision == "amp"):
            if options.logits:
                loss = F.cross_entropy(nc.reshape(model(x), (targets.size, options.vocabulary)), y)
            else:
                loss = model(x, targets=y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    function = nc.runtime.capture(plain) if captured else plain

    def step():
        nc.set_matmul_precision("highest" if precision == "highest" else "high")
        return function(x, y)

    return step, queue.finish


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="netcl's device")
    parser.add_argument("--torch-device", default="cuda")
    for name, default in (("batch", 8), ("length", 1024), ("layers", 12), ("width", 768), ("heads", 12), ("vocabulary", 50257)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--precisions", nargs="+", default=["amp", "high"], choices=["amp", "high", "highest"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--logits", action="store_true", help="ours keeps all logits, as PyTorch does")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    random = np.random.default_rng(2026)
    tokens = random.integers(0, options.vocabulary, (options.batch, options.length + 1))
    tokens, targets = np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])
    state = {name: value.numpy().copy() for name, value in torch_model(options).state_dict().items()}
    state = {name: value if value.ndim == 1 else value * np.float32(0.02 / value.std()) for name, value in state.items()}
    for precision in options.precisions:
        given = (state, tokens, targets, precision, options)
        made = {"PyTorch eager": torch_step(*given, False)}
        if options.compile:
            made["PyTorch compiled"] = torch_step(*given, True)
        made |= {"netcl eager": netcl_step(*given, False), "netcl captured": netcl_step(*given, True)}
        compare(precision, made, options.rounds, options.seconds)
        if options.profile:
            show_profile(*made["netcl captured"])


if __name__ == "__main__":
    main()

"""Makes layers.json with PyTorch: `python layers.py > layers.json`.

Every layer in float64, with parameters and inputs from `formula.py`: results, gradients of the input and of all parameters for
the gradient "upstream" of the results (of several results, one after the other), buffers after the steps, results in eval mode.
"""

import json

import torch
from formula import fill, short, values
from torch import nn

cases = []


def case(name, module, shape, steps=1, evaluate=False, call=None, integers=None):
    """`call` is what is done with the module and the input instead of the plain call."""
    module = fill(module.double().train())
    call = call or (lambda m, x: m(x))
    flat = lambda outputs: torch.cat([o.reshape(-1) for o in (outputs if isinstance(outputs, tuple) else (outputs,))])
    for step in range(steps):
        module.zero_grad()
        x = values(f"input{step}", shape).requires_grad_() if integers is None else torch.tensor(integers).reshape(shape)
        out = flat(call(module, x))
        (out * values("upstream", out.shape)).sum().backward()
    entry = {"name": name, "shape": list(shape), "steps": steps, "output": short(out)}
    if integers is None:
        entry["input_grad"] = short(x.grad)
    else:
        entry["integers"] = integers
    entry["grads"] = {n: short(p.grad) for n, p in module.named_parameters()}
    entry["buffers"] = {n: short(b.double()) for n, b in module.named_buffers()}
    if evaluate:
        module.eval()
        entry["eval"] = short(flat(call(module, values("input0", shape))))
    cases.append(entry)


case("linear", nn.Linear(3, 4), (2, 3))
case("conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), (2, 4, 9))
case("conv2d", nn.Conv2d(2, 4, 3, padding=1), (2, 2, 5, 4))
case("conv2d_options", nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 2), (1, 2), 2, False), (2, 4, 6, 5))
case("conv_transpose2d", nn.ConvTranspose2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 0), 2), (2, 4, 3, 4))

case("batch_norm1d", nn.BatchNorm1d(3), (4, 3), steps=3, evaluate=True)
case("batch_norm1d_average", nn.BatchNorm1d(3, eps=1e-3, momentum=None), (2, 3, 4), steps=3, evaluate=True)
case("batch_norm2d", nn.BatchNorm2d(3, momentum=0.25), (2, 3, 3, 2), steps=3, evaluate=True)
case("batch_norm2d_plain", nn.BatchNorm2d(3, affine=False, track_running_stats=False), (2, 3, 3, 2), evaluate=True)

case("max_pool1d", nn.MaxPool1d(3, 2, 1, 2), (2, 2, 9))
case("max_pool2d", nn.MaxPool2d(3, 2, 1, ceil_mode=True), (1, 2, 6, 5))
case("avg_pool1d", nn.AvgPool1d(2), (2, 2, 7))
case("avg_pool2d", nn.AvgPool2d((3, 2), (2, 1), (1, 1), count_include_pad=False), (1, 2, 6, 5))
case("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d((3, 2)), (1, 2, 5, 4))
case("adaptive_max_pool2d", nn.AdaptiveMaxPool2d((3, 2)), (1, 2, 5, 4))

case("layer_norm", nn.LayerNorm((3, 4)), (2, 3, 4))
case("layer_norm_plain", nn.LayerNorm(4, eps=1e-3, elementwise_affine=False), (2, 3, 4))
case("layer_norm_unbiased", nn.LayerNorm(4, bias=False), (2, 3, 4))
case("rms_norm", nn.RMSNorm(4, eps=1e-6), (2, 3, 4))
case("rms_norm_default", nn.RMSNorm((3, 4)), (2, 3, 4))
case("group_norm", nn.GroupNorm(2, 4), (2, 4, 3, 2))
case("embedding", nn.Embedding(5, 3, padding_idx=1), (2, 3), integers=[4, 1, 0, 4, 2, 1])

case("zero_pad2d", nn.ZeroPad2d((1, 0, 2, 1)), (1, 2, 3, 4))
case("constant_pad1d", nn.ConstantPad1d((2, -1), 0.5), (2, 2, 4))
case("constant_pad2d", nn.ConstantPad2d(1, -0.25), (1, 2, 3, 4))
case("reflection_pad1d", nn.ReflectionPad1d((1, 2)), (2, 2, 4))
case("reflection_pad2d", nn.ReflectionPad2d((1, 2, 2, 1)), (1, 2, 3, 4))
case("replication_pad1d", nn.ReplicationPad1d((1, 2)), (2, 2, 4))
case("replication_pad2d", nn.ReplicationPad2d((1, 2, 2, 1)), (1, 2, 3, 4))
case("upsample_nearest", nn.Upsample(scale_factor=2), (1, 2, 3, 4))
case("upsample_bilinear", nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 4))
case("upsample_corners", nn.Upsample(size=(5, 3), mode="bilinear", align_corners=True), (1, 2, 3, 4))


def attend(module, x, causal=False, cross=False):
    """Self-attention, or attention to a memory of two steps more, with two masks."""
    if not cross:
        n = x.shape[1 if module.batch_first else 0]
        mask = torch.triu(torch.full((n, n), float("-inf"), dtype=torch.float64), 1) if causal else None
        return module(x, x, x, attn_mask=mask, need_weights=False)[0]
    memory = values("memory", (x.shape[0], x.shape[1] + 2, x.shape[2]))
    scores = values("scores", (x.shape[1], x.shape[1] + 2))
    padding = torch.zeros(memory.shape[:2], dtype=torch.bool)
    padding[0, 1] = padding[1, 4] = True
    padding = torch.where(padding, float("-inf"), 0.0).double()
    return module(x, memory, memory, attn_mask=scores, key_padding_mask=padding, need_weights=False)[0]


case("attention", nn.MultiheadAttention(8, 2), (3, 2, 8), call=attend)
case("attention_causal", nn.MultiheadAttention(8, 2, bias=False, batch_first=True), (2, 3, 8), call=lambda m, x: attend(m, x, causal=True))
case("attention_masked", nn.MultiheadAttention(8, 2, batch_first=True), (2, 3, 8), call=lambda m, x: attend(m, x, cross=True))


def encode(module, x):
    n = x.shape[1]
    mask = torch.triu(torch.full((n, n), float("-inf"), dtype=torch.float64), 1)
    return module(x, src_mask=mask)


case("encoder", nn.TransformerEncoderLayer(8, 2, 12, 0.0), (3, 2, 8), evaluate=True)
case("encoder_first", nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True), (2, 3, 8), call=encode)


def recur(module, x):
    """From given states; the last states are results, too."""
    directions, batch = 2 if module.bidirectional else 1, x.shape[0 if module.batch_first else 1]
    shape = (module.num_layers * directions, batch, module.hidden_size)
    h, c = values("h", shape), values("c", shape)
    if isinstance(module, nn.LSTM):
        out, (h, c) = module(x, (h, c))
        return out, h, c
    return module(x, h)


case("lstm", nn.LSTM(3, 4, 2, bidirectional=True), (5, 2, 3), call=recur)
case("lstm_plain", nn.LSTM(3, 2, bias=False, batch_first=True), (2, 4, 3), call=lambda m, x: m(x)[0])
case("gru", nn.GRU(3, 4, 2, bidirectional=True), (5, 2, 3), call=recur)
case("gru_plain", nn.GRU(3, 2, bias=False, batch_first=True), (2, 4, 3), call=lambda m, x: m(x)[0])


class GPT(nn.Module):
    """Blocks that normalise first and look back only, between token vectors and scores by the same vectors."""

    def __init__(self, vocab, context, width, heads, layers, rotary):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = None if rotary else nn.Embedding(context, width)
        block = lambda: nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.h = nn.ModuleList(block() for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = x + self.turned(block, block.norm1(x)) if self.wpe is None else encode(block, x)
            if self.wpe is None:
                x = x + block.linear2(nn.functional.gelu(block.linear1(block.norm2(x))))
        return nn.functional.linear(self.ln_f(x), self.wte.weight)

    @staticmethod
    def turned(block, x):
        """Self-attention with queries and keys turned by their positions, the first half of a head's width with the second."""
        batch, length, width = x.shape
        heads, half = block.self_attn.num_heads, width // block.self_attn.num_heads // 2
        projected = nn.functional.linear(x, block.self_attn.in_proj_weight, block.self_attn.in_proj_bias)
        q, k, v = (part.reshape(batch, length, heads, -1).transpose(1, 2) for part in projected.chunk(3, -1))
        angles = torch.arange(length)[:, None].double() * 10000.0 ** (-torch.arange(half).double() / half)
        turn = lambda t: torch.cat(
            (t[..., :half] * angles.cos() - t[..., half:] * angles.sin(), t[..., half:] * angles.cos() + t[..., :half] * angles.sin()), -1
        )
        out = nn.functional.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        return block.self_attn.out_proj(out.transpose(1, 2).reshape(batch, length, width))


TOKENS = [1, 4, 4, 0, 6, 3, 1, 2]
case("gpt", GPT(7, 6, 8, 2, 2, False), (2, 4), integers=TOKENS)
case("gpt_rotary", GPT(7, 6, 8, 2, 1, True), (2, 4), integers=TOKENS)

print("[\n" + ",\n".join(json.dumps(entry) for entry in cases) + "\n]")

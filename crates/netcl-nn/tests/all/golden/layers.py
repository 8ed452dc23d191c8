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


def memory_and_masks(x):
    """A memory of two steps more, and two masks of it."""
    memory = values("memory", (x.shape[0], x.shape[1] + 2, x.shape[2]))
    scores = values("scores", (x.shape[1], x.shape[1] + 2))
    padding = torch.zeros(memory.shape[:2], dtype=torch.bool)
    padding[0, 1] = padding[1, 4] = True
    return memory, scores, torch.where(padding, float("-inf"), 0.0).double()


def attend(module, x, causal=False, cross=False):
    """Self-attention, or attention to a memory."""
    if not cross:
        n = x.shape[1 if module.batch_first else 0]
        mask = torch.triu(torch.full((n, n), float("-inf"), dtype=torch.float64), 1) if causal else None
        return module(x, x, x, attn_mask=mask, need_weights=False)[0]
    memory, scores, padding = memory_and_masks(x)
    return module(x, memory, memory, attn_mask=scores, key_padding_mask=padding, need_weights=False)[0]


case("attention", nn.MultiheadAttention(8, 2), (3, 2, 8), call=attend)
case("attention_causal", nn.MultiheadAttention(8, 2, bias=False, batch_first=True), (2, 3, 8), call=lambda m, x: attend(m, x, causal=True))
case("attention_masked", nn.MultiheadAttention(8, 2, batch_first=True), (2, 3, 8), call=lambda m, x: attend(m, x, cross=True))


def causal(n):
    return torch.triu(torch.full((n, n), float("-inf"), dtype=torch.float64), 1)


def encode(module, x):
    return module(x, src_mask=causal(x.shape[1]))


case("encoder", nn.TransformerEncoderLayer(8, 2, 12, 0.0), (3, 2, 8), evaluate=True)
case("encoder_first", nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True), (2, 3, 8), call=encode)


def decode(module, x):
    """Under a causal mask, with both masks of a memory of two steps more."""
    memory, scores, padding = memory_and_masks(x)
    return module(x, memory, causal(x.shape[1]), scores, memory_key_padding_mask=padding)


case("decoder", nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True), (2, 3, 8), call=decode)
case("decoder_first", nn.TransformerDecoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True), (2, 3, 8), call=decode)


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
case("rnn", nn.RNN(3, 4, 2, bidirectional=True), (5, 2, 3), call=recur)
case("rnn_relu", nn.RNN(3, 2, nonlinearity="relu", batch_first=True), (2, 4, 3), call=lambda m, x: m(x)[0])


def step(module, x):
    """Twice: from a given state and from the one after."""
    h, c = values("h", (2, 4)), values("c", (2, 4))
    if isinstance(module, nn.LSTMCell):
        return module(x, module(x, (h, c)))
    return module(x, module(x, h))


case("lstm_cell", nn.LSTMCell(3, 4), (2, 3), call=step)
case("gru_cell", nn.GRUCell(3, 4), (2, 3), call=step)
case("rnn_cell", nn.RNNCell(3, 4, nonlinearity="relu"), (2, 3), call=step)


class SelfAttention(nn.Module):
    """One projection to queries, keys and values, causal attention, one projection of the results; with a base, queries and keys
    are turned by their positions, the first half of a head's width with the second."""

    def __init__(self, width, heads, names, base=None):
        super().__init__()
        self.heads, self.base, self.names = heads, base, names
        self.add_module(names[0], nn.Linear(width, 3 * width))
        self.add_module(names[1], nn.Linear(width, width))

    def forward(self, x):
        batch, length, width = x.shape
        inner, outer = (getattr(self, name) for name in self.names)
        q, k, v = (part.reshape(batch, length, self.heads, -1).transpose(1, 2) for part in inner(x).chunk(3, -1))
        if self.base is not None:
            q, k = self.turned(q), self.turned(k)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return outer(out.transpose(1, 2).reshape(batch, length, width))

    def turned(self, t):
        half = t.shape[-1] // 2
        angles = torch.arange(t.shape[-2])[:, None].double() * self.base ** (-torch.arange(half).double() / half)
        first, second = t[..., :half], t[..., half:]
        return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), SelfAttention(width, heads, ("c_attn", "c_proj"))
        self.ln_2, self.mlp = nn.LayerNorm(width), nn.Module()
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp.c_proj(nn.functional.gelu(self.mlp.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    """Blocks that normalise first and look back only, between token vectors and scores by the same vectors."""

    def __init__(self, vocab, context, width, heads, layers):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.h(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])
        return nn.functional.linear(self.ln_f(x), self.wte.weight)


case("gpt", GPT(7, 6, 8, 2, 2), (2, 4), integers=[1, 4, 4, 0, 6, 3, 1, 2])
case("rotary_attention", SelfAttention(8, 2, ("qkv", "proj"), 10000.0), (2, 4, 8))

print("[\n" + ",\n".join(json.dumps(entry) for entry in cases) + "\n]")

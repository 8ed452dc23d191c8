"""A small GPT learns to write a text letter by letter: ``python char_gpt.py``.

Only the lines of imports and the device differ from PyTorch's.
"""

from __future__ import annotations

import math

import numpy as np

import netcl as torch
from netcl import nn, optim
from netcl.nn import functional as F

DEVICE = "auto"
TEXT = "the quick brown fox jumps over the lazy dog. " * 40
LETTERS = sorted(set(TEXT))
BLOCK = 32


class SelfAttention(nn.Module):
    mask: torch.Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(c, dim=2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.shape[-1]))
        att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(b, t, c)
        out: torch.Tensor = self.proj(y)
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return x


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int = 48, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.pos = nn.Embedding(BLOCK, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        pos = torch.arange(0, idx.shape[1], dtype=torch.long, device=idx.device)
        x = self.tok(idx) + self.pos(pos)
        logits: torch.Tensor = self.head(self.ln(self.blocks(x)))
        return logits


def build() -> nn.Module:
    torch.manual_seed(0)
    return GPT(len(LETTERS)).to(DEVICE)


def train(model: nn.Module, steps: int) -> list[float]:
    """The loss of each step."""
    rng = np.random.default_rng(1)
    data = np.array([LETTERS.index(letter) for letter in TEXT])
    optimizer = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    losses = []
    model.train()
    for _ in range(steps):
        starts = rng.integers(0, len(data) - BLOCK - 1, 16)
        x = torch.tensor(np.stack([data[i : i + BLOCK] for i in starts])).to(DEVICE)
        y = torch.tensor(np.stack([data[i + 1 : i + BLOCK + 1] for i in starts])).to(DEVICE)
        logits = model(x)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def write(model: nn.Module, start: str, length: int) -> str:
    model.eval()
    idx = torch.tensor([[LETTERS.index(letter) for letter in start]]).to(DEVICE)
    for _ in range(length):
        logits = model(idx[:, -BLOCK:])[:, -1, :]
        best = F.softmax(logits, dim=-1).argmax(dim=-1, keepdim=True)
        idx = torch.cat((idx, best), dim=1)
    return "".join(LETTERS[i] for i in idx[0].tolist())


if __name__ == "__main__":
    model = build()
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    losses = train(model, 200)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(write(model, "the quick", 40))

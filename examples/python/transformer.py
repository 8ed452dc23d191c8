"""A transformer of encoder and decoder learns to reverse sequences: ``python transformer.py``.

Only the lines of imports and the device differ
from PyTorch's.
"""

from __future__ import annotations

import math

import numpy as np

import netcl as torch
from netcl import nn, optim
from netcl.nn import functional as F

DEVICE = "auto"
VOCABULARY, LENGTH, START = 12, 8, 0


class PositionalEncoding(nn.Module):
    pe: torch.Tensor

    def __init__(self, width: int, longest: int = 64) -> None:
        super().__init__()
        position = torch.arange(longest).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        pe = torch.zeros(longest, width)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.pe[:, : x.shape[1]]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, causal: bool = False) -> torch.Tensor:
        def split(t: torch.Tensor) -> torch.Tensor:
            return t.reshape(t.shape[0], -1, self.heads, self.head_dim).permute(0, 2, 1, 3)

        out = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(memory)), split(self.v(memory)), is_causal=causal)
        joined: torch.Tensor = self.o(out.transpose(1, 2).flatten(2))
        return joined


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, cross: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads) if cross else None
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        x = self.norms[0](x + self.attention(x, x, causal=memory is not None))
        if self.cross is not None and memory is not None:
            x = self.norms[1](x + self.cross(x, memory))
        out: torch.Tensor = self.norms[2](x + self.mlp(x))
        return out


class Seq2Seq(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = PositionalEncoding(width)
        self.encoder = Layer(width, heads, cross=False)
        self.decoder = Layer(width, heads, cross=True)
        self.generator = nn.Linear(width, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self.encoder(self.position(self.embedding(source)))
        logits: torch.Tensor = self.generator(self.decoder(self.position(self.embedding(target)), memory))
        return logits


def batch(count: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sequences, and their reverse as the decoder's input and output."""
    source = rng.integers(1, VOCABULARY, (count, LENGTH))
    reverse = source[:, ::-1].copy()
    shifted = np.concatenate([np.full((count, 1), START), reverse[:, :-1]], 1)
    return torch.tensor(source).to(DEVICE), torch.tensor(shifted).to(DEVICE), torch.tensor(reverse).to(DEVICE)


def build() -> nn.Module:
    torch.manual_seed(0)
    return Seq2Seq().to(DEVICE)


def train(model: nn.Module, steps: int) -> list[float]:
    """The loss of each step."""
    rng = np.random.default_rng(1)
    optimizer = optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-9)
    losses = []
    model.train()
    for _ in range(steps):
        source, shifted, reverse = batch(32, rng)
        logits = model(source, shifted)
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), reverse.reshape(-1), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    model = build()
    losses = train(model, 300)
    source, shifted, reverse = batch(64, np.random.default_rng(2))
    model.eval()
    with torch.no_grad():
        right = (model(source, shifted).argmax(-1) == reverse).float().mean().item()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {right:.1%} of the letters are right")

"""A small GPT: a transformer that predicts the next token."""

from __future__ import annotations

import math
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import constant_, normal_
from netcl.nn._arguments import positive, queue_first
from netcl.nn.container import ModuleList
from netcl.nn.dropout import Dropout
from netcl.nn.embedding import Embedding
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.normalization import LayerNorm

__all__ = ["GPT", "GPTBlock", "CausalSelfAttention"]


class CausalSelfAttention(Module):
    """Attention of several heads in which a place sees itself and those before it: (batch, length, n_embd) to the same."""

    _settings = ("n_embd", "n_head", "dropout", "bias")

    @queue_first
    def __init__(
        self,
        queue: Any,
        n_embd: int,
        n_head: int,
        dropout: float = 0.0,
        bias: bool = True,
        dtype: str | None = None,
    ) -> None:
        positive("CausalSelfAttention", n_embd=n_embd, n_head=n_head)
        if n_embd % n_head:
            raise ValueError(f"CausalSelfAttention: n_head={n_head} must divide n_embd={n_embd}")
        self.n_embd, self.n_head, self.dropout, self.bias = n_embd, n_head, dropout, bias
        self.c_attn = Linear(queue, n_embd, 3 * n_embd, bias=bias, dtype=dtype)
        self.c_proj = Linear(queue, n_embd, n_embd, bias=bias, dtype=dtype)
        self.resid_dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            ag.permute(ag.reshape(part, (batch, length, self.n_head, width // self.n_head)), (0, 2, 1, 3))
            for part in ag.split(self.c_attn(x), width, -1)
        )
        y = ag.scaled_dot_product_attention(q, k, v, None, self.dropout if self.training else 0.0, True)
        y = ag.reshape(ag.permute(y, (0, 2, 1, 3)), (batch, length, width))
        return self.resid_dropout(self.c_proj(y))


class FeedForward(Module):
    """Two linear layers with a GELU between them; the inner width is four times the outer."""

    def __init__(self, queue: Any, n_embd: int, dropout: float, bias: bool, dtype: str | None) -> None:
        self.c_fc = Linear(queue, n_embd, 4 * n_embd, bias=bias, dtype=dtype)
        self.c_proj = Linear(queue, 4 * n_embd, n_embd, bias=bias, dtype=dtype)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(ag.gelu(self.c_fc(x))))


class GPTBlock(Module):
    """``x + attn(ln_1(x))``, then ``x + mlp(ln_2(x))``."""

    _settings = ("n_embd", "n_head", "dropout", "bias")

    @queue_first
    def __init__(
        self, queue: Any, n_embd: int, n_head: int, dropout: float = 0.0, bias: bool = True, dtype: str | None = None
    ) -> None:
        self.n_embd, self.n_head, self.dropout, self.bias = n_embd, n_head, dropout, bias
        self.ln_1 = LayerNorm(queue, n_embd, bias=bias, dtype=dtype)
        self.attn = CausalSelfAttention(queue, n_embd, n_head, dropout, bias, dtype)
        self.ln_2 = LayerNorm(queue, n_embd, bias=bias, dtype=dtype)
        self.mlp = FeedForward(queue, n_embd, dropout, bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(Module):
    """Predicts the next token: ``GPT(queue, vocab_size=96, block_size=64, n_layer=2, n_head=4, n_embd=64)``.

    Takes token numbers (batch, length) with at most ``block_size`` places and gives logits (batch, length, vocab_size). The head
    is the table of tokens itself. ``generate`` goes on from a beginning.
    """

    _settings = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "dropout", "bias")

    @queue_first
    def __init__(
        self,
        queue: Any,
        vocab_size: int,
        block_size: int,
        n_layer: int = 4,
        n_head: int = 4,
        n_embd: int = 128,
        dropout: float = 0.0,
        bias: bool = True,
        dtype: str | None = None,
    ) -> None:
        positive("GPT", vocab_size=vocab_size, block_size=block_size, n_layer=n_layer)
        self.vocab_size, self.block_size, self.n_layer, self.n_head, self.n_embd = vocab_size, block_size, n_layer, n_head, n_embd
        self.dropout, self.bias = dropout, bias
        self.wte = Embedding(queue, vocab_size, n_embd, dtype=dtype)
        self.wpe = Embedding(queue, block_size, n_embd, dtype=dtype)
        self.drop = Dropout(dropout)
        self.h = ModuleList(GPTBlock(queue, n_embd, n_head, dropout, bias, dtype) for _ in range(n_layer))
        self.ln_f = LayerNorm(queue, n_embd, bias=bias, dtype=dtype)
        self.lm_head = Linear(queue, n_embd, vocab_size, bias=False, dtype=dtype)
        self.lm_head.weight = self.wte.weight
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                constant_(weight, 0.0)
            elif weight.ndim == 2:
                # What is added up along the shortcuts starts smaller, so that the sum keeps its size.
                normal_(weight, 0.0, 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02)

    def forward(self, tokens: Any) -> Tensor:
        """The logits of what comes after each token."""
        shape = tuple(getattr(tokens, "shape", None) or _shape(tokens))
        if len(shape) != 2 or not 1 <= shape[1] <= self.block_size:
            raise ValueError(f"GPT takes tokens (batch, 1 to {self.block_size}); these have shape {shape}")
        x = self.wte(tokens) + self.wpe(list(range(shape[1])))
        x = self.drop(x)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))

    def generate(
        self, tokens: Any, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None, seed: int | None = None
    ) -> Any:
        """An int64 array of the tokens given and those drawn after them, one at a time.

        ``temperature=0`` takes the likeliest token; ``top_k`` draws among the k likeliest; a ``seed`` makes the drawing
        repeatable. The mode (``train`` or ``eval``) is restored afterwards.
        """
        import numpy as np

        known = np.array(tokens, np.int64)
        if known.ndim != 2 or known.shape[1] < 1:
            raise ValueError(f"generate takes tokens (batch, at least 1); these have shape {known.shape}")
        if temperature < 0 or (top_k is not None and top_k < 1):
            raise ValueError(f"generate: temperature={temperature} must not be negative, top_k={top_k} must be at least 1")
        draw = np.random.default_rng(seed)
        mode = self.training
        self.eval()
        try:
            with ag.no_grad():
                for _ in range(max_new_tokens):
                    logits = self(known[:, -self.block_size :])[:, -1]
                    known = np.concatenate([known, _drawn(logits.to_host(), temperature, top_k, draw)], 1)
        finally:
            self.train(mode)
        return known


def _shape(tokens: Any) -> tuple[int, ...]:
    import numpy as np

    return np.shape(tokens)


def _drawn(logits: Any, temperature: float, top_k: int | None, draw: Any) -> Any:
    """One token for each row of logits."""
    import numpy as np

    logits = np.asarray(logits, np.float64)
    if temperature == 0:
        return logits.argmax(-1)[:, None]
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        least = np.partition(logits, -top_k, -1)[:, -top_k, None]
        logits = np.where(logits < least, -np.inf, logits)
    # The largest of logits with Gumbel noise is a draw from their softmax.
    return (logits + draw.gumbel(size=logits.shape)).argmax(-1)[:, None]

"""A small GPT: a transformer that predicts the next token."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from netcl import autograd as ag
from netcl._netcl import IndexTensor, Tensor
from netcl._netcl.nn import KVCache, constant_, draw_tokens, normal_
from netcl.nn._arguments import depth, positive, queue_first
from netcl.nn.container import ModuleList
from netcl.nn.decoder import TiedLinear, TransformerBlock
from netcl.nn.dropout import Dropout
from netcl.nn.embedding import Embedding
from netcl.nn.module import Module
from netcl.nn.normalization import LayerNorm

__all__ = ["GPT"]


class GPT(Module):
    """Predicts the next token: ``GPT(queue, vocab_size=96, block_size=64, n_layer=2, n_head=4, n_embd=64)``.

    Takes token numbers (batch, length) with at most ``block_size`` places and gives logits (batch, length, vocab_size). The
    head is the table of tokens itself. ``generate`` goes on from a beginning.
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
        depth("GPT", n_layer=n_layer)
        self.vocab_size, self.block_size = vocab_size, block_size
        self.n_layer, self.n_head, self.n_embd = n_layer, n_head, n_embd
        self.dropout, self.bias = dropout, bias
        self.wte = Embedding(queue, vocab_size, n_embd, dtype=dtype)
        self.wpe = Embedding(queue, block_size, n_embd, dtype=dtype)
        self.drop = Dropout(dropout)
        self.h = ModuleList(
            TransformerBlock(queue, n_embd, n_head, dropout=dropout, bias=bias, dtype=dtype) for _ in range(n_layer)
        )
        self.ln_f = LayerNorm(queue, n_embd, bias=bias, dtype=dtype)
        self.lm_head = TiedLinear(self.wte.weight)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                constant_(weight, 0.0)
            elif weight.ndim == 2:
                # What is added up along the shortcuts starts smaller, so that the sum keeps its size.
                normal_(weight, 0.0, 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02)

    def forward(self, tokens: Any, cache: KVCache | None = None, *, targets: Any = None) -> Tensor:
        """The logits of what comes after each token; with a cache, of tokens that follow those it has seen.

        With ``targets``, the tokens that do come next (as many, in any shape; -100 leaves one out), the mean cross-entropy
        instead, for which only some rows of the logits are ever in memory.
        """
        x = self._features(tokens, cache)
        if targets is not None:
            return ag.linear_cross_entropy(x, self.lm_head.weight, targets)
        return self.lm_head(x)

    def _features(self, tokens: Any, cache: KVCache | None) -> Tensor:
        """What the head sees of each token."""
        shape = tuple(getattr(tokens, "shape", None) or _shape(tokens))
        start = 0 if cache is None else cache.length
        if len(shape) != 2 or not 1 <= shape[1] <= self.block_size - start:
            raise ValueError(f"GPT takes tokens (batch, 1 to {self.block_size - start}); these have shape {shape}")
        wpe = self.wpe.weight
        x = self.drop(self.wte(tokens) + (ag.slice(wpe, 0, 0, shape[1]) if cache is None else cache.rows(wpe, shape[1])))
        for layer, block in enumerate(self.h):
            x = block(x, cache, layer)
        if cache is not None:
            cache.advance(shape[1])
        return self.ln_f(x)

    def generate(
        self,
        tokens: Any,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int | None = None,
        *,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        each: Callable[[Any], Any] | None = None,
    ) -> Any:
        """An int64 array of the tokens given and those drawn after them, one at a time; for texts of different lengths a list.

        ``temperature=0`` takes the likeliest token; ``top_k`` draws among the k likeliest, ``top_p`` among the likeliest that
        together have this probability; a ``repetition_penalty`` above 1 makes tokens that are there already less likely; a
        ``seed`` makes the drawing repeatable, else numbers come from the process-wide generator. ``each`` gets the tokens of a
        step as an array (batch,) as soon as they are drawn, and ends the texts with ``False``.

        The step from one token to the next is recorded once and replayed: hooks see the first tokens only. The mode (``train``
        or ``eval``) is restored afterwards.
        """
        import numpy as np

        texts = [np.array(text, np.int64) for text in tokens]
        if not texts or any(text.ndim != 1 or text.size < 1 for text in texts):
            shapes = ", ".join(str(text.shape) for text in texts[:4])
            raise ValueError(f"generate takes tokens (batch, at least 1); these texts have the shapes {shapes or 'of nothing'}")
        mode, weight = self.training, self.wte.weight
        cache = KVCache(
            self.n_layer, len(texts), self.n_head, self.n_embd // self.n_head, self.block_size, weight.queue, weight.dtype
        )

        def scores(tokens: IndexTensor, cache: KVCache) -> Tensor:
            return self.lm_head(self._features(tokens, cache)[:, -1])

        self.eval()
        try:
            with ag.no_grad():
                sampling = (temperature, top_k, top_p, repetition_penalty, seed)
                drawn = draw_tokens(scores, cache, [text.tolist() for text in texts], max_new_tokens, *sampling, each)
        finally:
            self.train(mode)
        rows = [np.array(text, np.int64) for text in drawn]
        return np.stack(rows) if len({len(text) for text in texts}) == 1 else rows


def _shape(tokens: Any) -> tuple[int, ...]:
    import numpy as np

    return np.shape(tokens)

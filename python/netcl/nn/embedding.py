"""Tables of vectors."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import assign, normal_
from netcl.nn._arguments import parameter, positive, queue_first
from netcl.nn.module import Module

__all__ = ["Embedding"]


class Embedding(Module):
    """A vector for each of ``num_embeddings`` indices: ``Embedding(queue, 1000, 64)(indices)``.

    The weight has shape ``(num_embeddings, embedding_dim)`` and starts normal with the deviation ``init_std``. The row
    ``padding_idx`` starts as zeros and gets no gradient.
    """

    _settings = ("num_embeddings", "embedding_dim", "padding_idx")
    weight: Tensor

    @queue_first
    def __init__(
        self,
        queue: Any,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        init_std: float = 1.0,
        dtype: str | None = None,
    ) -> None:
        positive("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(f"Embedding: padding_idx={padding_idx} is no index of {num_embeddings} rows")
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.weight = normal_(parameter(queue, (num_embeddings, embedding_dim), dtype=dtype), 0.0, init_std)
        if padding_idx is not None:
            row = self.weight.detach()[padding_idx]
            assign(row, Tensor.from_shape(row.queue, row.shape, row.dtype))

    def forward(self, indices: Any) -> Tensor:
        return ag.embedding(indices, self.weight, self.padding_idx)

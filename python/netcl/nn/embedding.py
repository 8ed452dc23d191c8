"""Tables of vectors."""

from __future__ import annotations

from typing import Any

from netcl._netcl import Tensor
from netcl._netcl import nn as _nn
from netcl.nn._layer import Layer, constructor

__all__ = ["Embedding"]


class Embedding(Layer):
    """A vector for each of ``num_embeddings`` indices: ``Embedding(queue, 1000, 64)(indices)``.

    The weight has shape ``(num_embeddings, embedding_dim)`` and starts normal with the deviation ``init_std``. The row
    ``padding_idx`` starts as zeros and gets no gradient.
    """

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    weight: Tensor

    @constructor
    def __init__(
        self,
        queue: Any,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        init_std: float = 1.0,
        dtype: str | None = None,
    ) -> None: ...

    def forward(self, indices: Any) -> Tensor:
        return _nn.embedding(self._layer, self.__dict__, indices)

"""Tables of vectors."""

from __future__ import annotations

from typing import Any

from netcl._netcl import Tensor, nn as _nn
from netcl.nn._layer import KW_ONLY, Parametric, given

__all__ = ["Embedding", "EmbeddingBag"]


class Embedding(Parametric, also=("sparse", "max_norm", "norm_type", "scale_grad_by_freq", "_weight")):
    """A vector for each of ``num_embeddings`` indices: ``Embedding(queue, 1000, 64)(indices)``.

    The weight has shape ``(num_embeddings, embedding_dim)`` and starts normal with the deviation ``init_std``. The row
    ``padding_idx`` starts as zeros and gets no gradient.
    """

    num_embeddings: int = given()
    embedding_dim: int = given()
    padding_idx: int | None = None
    _: KW_ONLY
    init_std: float = 1.0
    weight: Tensor

    def _make(self, queue: Any = None, dtype: Any = None, **settings: Any) -> None:
        values = settings.pop("_weight", None)
        if settings.pop("max_norm", None) is not None or settings.pop("scale_grad_by_freq", False):
            raise ValueError("Embedding: max_norm and scale_grad_by_freq are not supported; netcl.renorm limits rows")
        # Gradients are dense whatever PyTorch's program says of them.
        settings.pop("sparse", None)
        settings.pop("norm_type", None)
        super()._make(queue, dtype, **settings)
        if values is not None:
            self.load_state_dict({"weight": values})

    @classmethod
    def from_pretrained(cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None, **more: Any) -> Embedding:
        """A table of given values, which are trained only without ``freeze``."""
        if isinstance(embeddings, Tensor):
            more.setdefault("dtype", embeddings.dtype)
        table = cls(*embeddings.shape, padding_idx, _weight=embeddings, device=getattr(embeddings, "queue", None), **more)
        return table.freeze() if freeze else table

    def forward(self, indices: Any) -> Tensor:
        return _nn.embedding(self._layer, self.__dict__, indices)


class EmbeddingBag(Parametric):
    """Rows of a table that are put together to one row per bag: their ``"sum"``, ``"mean"`` or ``"max"``.

        table = EmbeddingBag(queue, 1000, 64, mode="sum")
        table([[1, 2], [4, 4]])                 # a bag in each row: (2, 64)
        table([1, 2, 4, 4, 3], offsets=[0, 2])  # bags of two and three

    With ``include_last_offset`` the last offset is the end of the last bag. The index ``padding_idx`` belongs to no bag.
    """

    num_embeddings: int = given()
    embedding_dim: int = given()
    mode: str = "mean"
    include_last_offset: bool = False
    padding_idx: int | None = None
    _: KW_ONLY
    init_std: float = 1.0
    weight: Tensor

    def forward(self, indices: Any, offsets: Any = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return _nn.embedding_bag(self._layer, self.__dict__, indices, offsets, per_sample_weights)

"""EmbeddingBag: sums, means or maxima of rows of a table."""

from __future__ import annotations

from typing import Any, Self

from ampkit import ops
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.tensor import Tensor

from ..factory import refuse
from .embedding import Embedding


class EmbeddingBag(Embedding):
    """The sum, mean or maximum of the rows of `weight` that a bag names; see `ops.embedding_bag`.

    input [B, L], or [n] with offsets [B], where each bag begins -> [B, embedding_dim]. weight [num_embeddings,
    embedding_dim] starts as N(0, 1); the row at padding_idx starts as zeros, and is in no bag. max_norm,
    scale_grad_by_freq and sparse are PyTorch's, and not here: they raise ArgumentError.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ):
        refuse("EmbeddingBag", max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError("EmbeddingBag", "mode 'sum', 'mean' or 'max'", repr(mode))
        super().__init__(num_embeddings, embedding_dim, padding_idx, _weight=_weight, device=device, dtype=dtype)
        self.mode, self.include_last_offset = mode, include_last_offset

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Self:
        """An EmbeddingBag over the rows of `embeddings` [n, dim], frozen unless told otherwise."""
        if embeddings.ndim != 2:
            raise ShapeError("EmbeddingBag.from_pretrained", "embeddings [n, dim]", f"shape {tuple(embeddings.shape)}")
        words = (max_norm, norm_type, scale_grad_by_freq, mode, sparse)
        made = cls(*embeddings.shape, *words, embeddings, include_last_offset, padding_idx)
        made.weight.requires_grad = not freeze
        return made

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return ops.embedding_bag(
            input,
            self.weight,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"

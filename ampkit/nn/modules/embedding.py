"""Embedding, the rows of a table by index, and EmbeddingBag, their sums, means or maxima."""

from __future__ import annotations

from typing import Any, Self

from ampkit import ops
from ampkit.base.errors import ArgumentError, ShapeError, check_choice
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor

from .. import init
from ..factory import check_sizes, new_parameter
from ..module import Module

__all__ = ["Embedding", "EmbeddingBag"]


class Embedding(Module):
    """Rows of `weight` by index: input [...] of integers -> [..., embedding_dim].

    weight [num_embeddings, embedding_dim] starts as N(0, 1); the row at padding_idx starts as zeros and gets no
    gradient. max_norm scales rows that are used, before they are read and in place, to at most that norm_type-norm.
    scale_grad_by_freq divides a row's gradient by its number of uses in the batch. sparse has no effect:
    gradients are dense.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        where = type(self).__name__
        check_sizes(where, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            needs = f"padding_idx from {-num_embeddings} to {num_embeddings - 1}"
            raise ArgumentError(where, needs, repr(padding_idx))
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.sparse = sparse
        if _weight is None:
            self.weight = new_parameter((num_embeddings, embedding_dim), device, dtype)
            self.reset_parameters()
        elif _weight.shape != (num_embeddings, embedding_dim):
            raise ShapeError(where, f"weight [{num_embeddings}, {embedding_dim}]", f"shape {tuple(_weight.shape)}")
        else:
            self.weight = Parameter(_weight, not _freeze)
        if _freeze:
            self.weight.requires_grad = False

    def reset_parameters(self) -> None:
        """Initialize the table again."""
        init.normal_(self.weight)
        self._zero_padding_row()

    def _zero_padding_row(self) -> None:
        """Set the row at padding_idx, if there is one, to zeros."""
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Self:
        """An Embedding over the rows of `embeddings` [n, dim], frozen unless freeze=False."""
        if embeddings.ndim != 2:
            raise ShapeError("Embedding.from_pretrained", "embeddings [n, dim]", f"shape {tuple(embeddings.shape)}")
        n, dim = embeddings.shape
        return cls(n, dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, embeddings, freeze)

    def forward(self, input: Tensor) -> Tensor:
        options = self.max_norm, self.norm_type, self.scale_grad_by_freq
        return ops.embedding(input, self.weight, self.padding_idx, *options)

    def extra_repr(self) -> str:
        rest = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{rest}"


class EmbeddingBag(Embedding):
    """The sum, mean or maximum of the rows of `weight` at each bag of indices; see `ops.embedding_bag`.

    input [B, L], or [n] with offsets [B], the start of each bag -> [B, embedding_dim]. weight [num_embeddings,
    embedding_dim] starts as N(0, 1); the row at padding_idx starts as zeros and is left out of all
    bags. max_norm, scale_grad_by_freq and sparse are those of Embedding; mode "max" has no scale_grad_by_freq.
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
        check_choice("EmbeddingBag", "mode", mode, "sum", "mean", "max")
        options = {"sparse": sparse, "_weight": _weight, "device": device, "dtype": dtype}
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, **options)
        self.mode, self.include_last_offset = mode, include_last_offset

    @classmethod
    def from_pretrained(  # type: ignore[override]  # PyTorch's order of arguments
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
        """An EmbeddingBag over the rows of `embeddings` [n, dim], frozen unless freeze=False."""
        if embeddings.ndim != 2:
            raise ShapeError("EmbeddingBag.from_pretrained", "embeddings [n, dim]", f"shape {tuple(embeddings.shape)}")
        n, dim = embeddings.shape
        scales = max_norm, norm_type, scale_grad_by_freq
        bag = cls(n, dim, *scales, mode, sparse, embeddings, include_last_offset, padding_idx)
        bag.weight.requires_grad = not freeze
        return bag

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return ops.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"

"""Losses of pairs, triples and distributions as modules; see `ops` for what each computes and `nn/modules/loss.py`."""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.core.tensor import Tensor

from .loss import _Loss


class _Margin(_Loss):
    def __init__(self, margin: float = 0.0, size_average: Any = None, reduce: Any = None, reduction: str = "mean"):
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def extra_repr(self) -> str:
        return f"margin={self.margin}"


class MarginRankingLoss(_Margin):
    """max(0, margin - target (input1 - input2)), target 1 or -1: all [...]."""

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return ops.margin_ranking_loss(input1, input2, target, self.margin, reduction=self.reduction)


class CosineEmbeddingLoss(_Margin):
    """1 - cosine where target is 1, max(0, cosine - margin) where it is -1: input1, input2 [N, n], target [N]."""

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return ops.cosine_embedding_loss(input1, input2, target, self.margin, reduction=self.reduction)


class HingeEmbeddingLoss(_Margin):
    """A distance where target is 1, max(0, margin - distance) where it is -1: both [...]."""

    def __init__(self, margin: float = 1.0, size_average: Any = None, reduce: Any = None, reduction: str = "mean"):
        super().__init__(margin, size_average, reduce, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.hinge_embedding_loss(input, target, self.margin, reduction=self.reduction)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target input)), target 1 or -1: both [...]."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.soft_margin_loss(input, target, reduction=self.reduction)


class TripletMarginLoss(_Loss):
    """max(0, margin + |anchor - positive| - |anchor - negative|) in the p-norm: all [N, n]."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
    ):
        super().__init__(size_average, reduce, reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        options = (self.margin, self.p, self.eps, self.swap)
        return ops.triplet_margin_loss(anchor, positive, negative, *options, reduction=self.reduction)


class PoissonNLLLoss(_Loss):
    """Minus the log-likelihood of counts under Poisson's distribution of rate exp(log_input): both [...]."""

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: Any = None,
        eps: float = 1e-8,
        reduce: Any = None,
        reduction: str = "mean",
    ):
        super().__init__(size_average, reduce, reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        options = {"log_input": self.log_input, "full": self.full, "eps": self.eps, "reduction": self.reduction}
        return ops.poisson_nll_loss(log_input, target, **options)


class GaussianNLLLoss(_Loss):
    """(log(var) + (input - target)^2 / var) / 2, var at least eps: all broadcast."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean"):
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor) -> Tensor:
        return ops.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)

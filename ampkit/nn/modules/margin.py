"""Margin losses over classes as modules; see `ops` for what each computes and `nn/modules/loss.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor

from .loss import _Loss


class MultiMarginLoss(_Loss):
    """max(0, margin - input_y + input_i)^p over the classes i other than the label y: input [N, C], target [N].

    weight [C]: a factor per label. Crammer and Singer 2001, JMLR 2, 265-292.
    """

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
    ):
        super().__init__(size_average, reduce, reduction)
        if p not in (1, 2):
            raise ArgumentError("MultiMarginLoss", "p 1 or 2", repr(p))
        self.register_buffer("weight", weight)
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.multi_margin_loss(input, target, self.p, self.margin, self.weight, reduction=self.reduction)


class MultiLabelMarginLoss(_Loss):
    """max(0, 1 - input_y + input_i) over labels y and classes i that are none: input [N, C], target [N, C], -1 ends."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.multilabel_margin_loss(input, target, reduction=self.reduction)


class MultiLabelSoftMarginLoss(_Loss):
    """The mean over classes of the cross entropy of sigmoid(input) with target, in [0, 1]: both [..., C].

    weight: a factor per class.
    """

    def __init__(
        self, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)


class TripletMarginWithDistanceLoss(_Loss):
    """max(0, margin + d(anchor, positive) - d(anchor, negative)), d `distance_function`, or the Euclidean distance."""

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ):
        super().__init__(reduction=reduction)
        if not margin > 0:
            raise ArgumentError("TripletMarginWithDistanceLoss", "a positive margin", repr(margin))
        self.distance_function, self.margin, self.swap = distance_function, margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        options = {"distance_function": self.distance_function, "margin": self.margin, "swap": self.swap}
        return ops.triplet_margin_with_distance_loss(anchor, positive, negative, **options, reduction=self.reduction)

"""Losses as modules.

reduction: "mean", "sum" or "none"; size_average and reduce say the same in the words that PyTorch had before, and win
over it.
"""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import reduction_of

from ..module import Module


class _Loss(Module):
    reductions: tuple[str, ...] = ("mean", "sum", "none")

    def __init__(self, size_average: Any = None, reduce: Any = None, reduction: str = "mean"):
        super().__init__()
        if size_average is not None or reduce is not None:
            reduction = reduction_of(size_average, reduce)
        if reduction not in self.reductions:
            words = ", ".join(map(repr, self.reductions[:-1])) + f" or {self.reductions[-1]!r}"
            raise ArgumentError(type(self).__name__, f"reduction {words}", repr(reduction))
        self.reduction = reduction


class CrossEntropyLoss(_Loss):
    """-log softmax(input)[target]: input [N, C, ...], target [N, ...] of labels or [N, C, ...] of probabilities.

    weight [C]: a factor per class. ignore_index: a label that counts for nothing. label_smoothing: the part of the
    target that is spread over all classes (Szegedy et al. 2015, arXiv:1512.00567, section 7). Computed in float32.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ):
        super().__init__(size_average, reduce, reduction)
        if not 0 <= label_smoothing <= 1:
            raise ArgumentError("CrossEntropyLoss", "label_smoothing from 0 to 1", repr(label_smoothing))
        self.register_buffer("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(_Loss):
    """-input[target]: log-probabilities input [N, C, ...], labels target [N, ...]; see CrossEntropyLoss."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
    ):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.nll_loss(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class MSELoss(_Loss):
    """(input - target)^2: both [...]. Computed in float32."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """|input - target|: both [...]. Computed in float32."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """|d| - beta/2, and d^2 / (2 beta) where |d| < beta, with d = input - target: both [...].

    Girshick 2015, arXiv:1504.08083, eq. 3.
    """

    def __init__(self, size_average: Any = None, reduce: Any = None, reduction: str = "mean", beta: float = 1.0):
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """delta (|d| - delta/2), and d^2 / 2 where |d| < delta, with d = input - target: both [...].

    Huber 1964, Annals of Mathematical Statistics 35, 73-101.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0):
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class KLDivLoss(_Loss):
    """target (log(target) - input): log-probabilities input, probabilities target, or with log_target their logarithms.

    Both [...]. reduction: also "batchmean", the sum over the length of the first axis, which is the divergence itself.
    """

    reductions = ("mean", "batchmean", "sum", "none")

    def __init__(self, size_average: Any = None, reduce: Any = None, reduction: str = "mean", log_target: bool = False):
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class BCELoss(_Loss):
    """Cross entropy of probabilities with targets in [0, 1]: both [...]; refused in autocast: use BCEWithLogitsLoss."""

    def __init__(
        self, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Cross entropy of sigmoid(input) with targets in [0, 1]: both [...]. Computed in float32, safe in autocast.

    weight: a factor per element, pos_weight: per positive target; both broadcast.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.binary_cross_entropy_with_logits(
            input, target, weight=self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class CTCLoss(_Loss):
    """Minus the log-probability of label sequences under all their alignments to frames; see `ops.ctc_loss`.

    log_probs [T, N, C] or [T, C], targets [N, S], [sum of target_lengths] or [S]. Computed in float32.
    Graves et al. 2006, ICML.
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False):
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:
        return ops.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )

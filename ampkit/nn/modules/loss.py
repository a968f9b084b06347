"""Losses as modules; see `ops` for the formulas. All are computed in float32 (float64 for float64).

reduction: "mean", "sum" or "none". size_average and reduce, PyTorch's deprecated arguments, override it.
"""

# Annotations are objects here: libraries resolve those of a loss in namespaces of their own.
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar
from typing import Any, ClassVar

from ampkit import ops
from ampkit.base.errors import ArgumentError, check_choice
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import reduction_of

from ..op_module import OpModule

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss",
    "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss", "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss",
    "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip


class _Loss(OpModule):
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")

    def __post_init__(self, size_average: bool | None = None, reduce: bool | None = None) -> None:
        if size_average is not None or reduce is not None:
            self.reduction = reduction_of(size_average, reduce)
        if not isinstance(self.reduction, str) or self.reduction not in self.reductions:
            choices = ", ".join(map(repr, self.reductions[:-1])) + f" or {self.reductions[-1]!r}"
            raise ArgumentError(type(self).__name__, f"reduction {choices}", repr(self.reduction))
        for name in ("weight", "pos_weight"):
            if hasattr(self, name):
                tensor = getattr(self, name)
                delattr(self, name)
                self.register_buffer(name, tensor)

    def extra_repr(self) -> str:
        return ""


class _TargetLoss(_Loss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return self.call_op(input, target)


class _PairLoss(_TargetLoss, op=ops.mse_loss):
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class MSELoss(_PairLoss, op=ops.mse_loss):
    """(input - target)^2: both [...]."""


class L1Loss(_PairLoss, op=ops.l1_loss):
    """|input - target|: both [...]."""


class SmoothL1Loss(_PairLoss, op=ops.smooth_l1_loss):
    """|d| - beta/2, and d^2 / (2 beta) where |d| < beta, with d = input - target: both [...].

    Girshick 2015, arXiv:1504.08083, eq. 3.
    """

    beta: float = 1.0


class HuberLoss(_TargetLoss, op=ops.huber_loss):
    """delta (|d| - delta/2), and d^2 / 2 where |d| < delta, with d = input - target: both [...].

    Huber 1964, Annals of Mathematical Statistics 35, 73-101.
    """

    reduction: str = "mean"
    delta: float = 1.0


class SoftMarginLoss(_PairLoss, op=ops.soft_margin_loss):
    """log(1 + exp(-target input)), target 1 or -1: both [...]."""


class KLDivLoss(_PairLoss, op=ops.kl_div):
    """target (log(target) - input): log-probabilities input, probabilities target (log_target: log-probabilities).

    Both [...]. reduction: also "batchmean", the sum divided by the length of the first axis: the KL divergence.
    """

    reductions = ("mean", "batchmean", "sum", "none")

    log_target: bool = False


class PoissonNLLLoss(_Loss, op=ops.poisson_nll_loss):
    """Negative log-likelihood of counts under a Poisson distribution of rate exp(input): both [...].

    log_input=False: of rate input, plus eps. full: with Stirling's approximation of log(target!).
    """

    log_input: bool = True
    full: bool = False
    size_average: InitVar[bool | None] = None
    eps: float = 1e-8
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        return self.call_op(log_input, target)


class GaussianNLLLoss(_Loss, op=ops.gaussian_nll_loss):
    """(log(var) + (input - target)^2 / var) / 2, var at least eps: all broadcast. full: plus log(2 pi) / 2."""

    _: KW_ONLY
    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"

    def forward(self, input: Tensor, target: Tensor, var: Tensor) -> Tensor:
        return self.call_op(input, target, var)


class _WeightedLoss(_TargetLoss, op=ops.binary_cross_entropy):
    weight: Tensor | None = None
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class BCELoss(_WeightedLoss, op=ops.binary_cross_entropy):
    """Cross entropy of probabilities with targets in [0, 1]: both [...]; banned in autocast: use BCEWithLogitsLoss."""


class BCEWithLogitsLoss(_WeightedLoss, op=ops.binary_cross_entropy_with_logits):
    """Cross entropy of sigmoid(input) with targets in [0, 1]: both [...]. Computed in float32, safe in autocast.

    weight: a factor per element, pos_weight: per positive target; both broadcast.
    """

    pos_weight: Tensor | None = None


class MultiLabelSoftMarginLoss(_WeightedLoss, op=ops.multilabel_soft_margin_loss):
    """The mean over classes of the cross entropy of sigmoid(input) with target in [0, 1]: both [..., C].

    weight: a factor per class.
    """


class _ClassLoss(_TargetLoss, op=ops.nll_loss):
    weight: Tensor | None = None
    size_average: InitVar[bool | None] = None
    ignore_index: int = -100
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class CrossEntropyLoss(_ClassLoss, op=ops.cross_entropy):
    """-log softmax(input)[target]: input [N, C, ...], target [N, ...] of labels or [N, C, ...] of probabilities.

    weight [C]: a factor per class. ignore_index: the label of elements to leave out. label_smoothing: the part of the
    target that is spread over all classes (Szegedy et al. 2015, arXiv:1512.00567, section 7).
    """

    label_smoothing: float = 0.0

    def __post_init__(self, size_average: bool | None = None, reduce: bool | None = None) -> None:
        super().__post_init__(size_average, reduce)
        if not 0 <= self.label_smoothing <= 1:
            raise ArgumentError("CrossEntropyLoss", "label_smoothing from 0 to 1", repr(self.label_smoothing))


class NLLLoss(_ClassLoss, op=ops.nll_loss):
    """-input[target]: log-probabilities input [N, C, ...], labels target [N, ...]; see CrossEntropyLoss."""


class CTCLoss(_Loss, op=ops.ctc_loss):
    """Negative log-probability of label sequences, summed over their alignments to frames; see `ops.ctc_loss`.

    log_probs [T, N, C] or [T, C], targets [N, S], [sum of target_lengths] or [S]. Graves et al. 2006, ICML.
    """

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:
        return self.call_op(log_probs, targets, input_lengths, target_lengths)


class MultiLabelMarginLoss(_PairLoss, op=ops.multilabel_margin_loss):
    """max(0, 1 - input_y + input_i) over labels y and all other classes i: input [N, C], target [N, C], -1 ends."""


class MultiMarginLoss(_TargetLoss, op=ops.multi_margin_loss):
    """max(0, margin - input_y + input_i)^p over the classes i other than the label y: input [N, C], target [N].

    weight [C]: a factor per label. Crammer and Singer 2001, JMLR 2, 265-292.
    """

    p: int = 1
    margin: float = 1.0
    weight: Tensor | None = None
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"

    def __post_init__(self, size_average: bool | None = None, reduce: bool | None = None) -> None:
        super().__post_init__(size_average, reduce)
        check_choice("MultiMarginLoss", "p", self.p, 1, 2)


class HingeEmbeddingLoss(_TargetLoss, op=ops.hinge_embedding_loss):
    """A distance where target is 1, max(0, margin - distance) where it is -1: both [...]."""

    margin: float = 1.0
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"

    def extra_repr(self) -> str:
        return f"margin={self.margin}"


class _MarginLoss(_Loss, op=ops.margin_ranking_loss):
    margin: float = 0.0
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return self.call_op(input1, input2, target)

    def extra_repr(self) -> str:
        return f"margin={self.margin}"


class MarginRankingLoss(_MarginLoss, op=ops.margin_ranking_loss):
    """max(0, margin - target (input1 - input2)), target 1 or -1: all [...]."""


class CosineEmbeddingLoss(_MarginLoss, op=ops.cosine_embedding_loss):
    """1 - cosine where target is 1, max(0, cosine - margin) where it is -1: input1, input2 [N, n], target [N]."""


class _TripletLoss(_Loss):
    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return self.call_op(anchor, positive, negative)


class TripletMarginLoss(_TripletLoss, op=ops.triplet_margin_loss):
    """max(0, margin + |anchor - positive| - |anchor - negative|) in the p-norm: all [N, n]."""

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class TripletMarginWithDistanceLoss(_TripletLoss, op=ops.triplet_margin_with_distance_loss):
    """max(0, margin + d(anchor, positive) - d(anchor, negative)), d `distance_function`, or the Euclidean distance."""

    _: KW_ONLY
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None
    margin: float = 1.0
    swap: bool = False
    reduction: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.margin > 0:
            raise ArgumentError("TripletMarginWithDistanceLoss", "a positive margin", repr(self.margin))

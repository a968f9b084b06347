"""LinearCrossEntropyLoss: the output layer of a classifier and its cross entropy, without the logits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.arguments import shown
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_reduction, checked, int_tuple

from ..factory import check_sizes
from ..module import Module
from .linear import Linear

__all__ = ["LinearCrossEntropyLoss", "LinearCrossEntropyOptions"]


@dataclass(frozen=True, slots=True)
class LinearCrossEntropyOptions:
    """How PyTorch slices the rows of `linear_cross_entropy`, by its names and defaults; without effect here."""

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: Any = None


class LinearCrossEntropyLoss(Module):
    """`ops.linear_cross_entropy` with the weights of a Linear: input [in_features] or [N, in_features].

    target: labels [] or [N, *out_features] from 0 to num_classes - 1, or probabilities [num_classes] or [N,
    num_classes, *out_features] -> the shape of labels, or []. linear.weight [num_classes prod(out_features),
    in_features], with `bias` also linear.bias. weight [num_classes]: a factor per class. The other arguments are those
    of the function. Raises ArgumentError for sizes that are not positive integers, an unknown reduction and a
    label_smoothing outside [0, 1], ShapeError for a weight of another shape.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ):
        super().__init__()
        where = type(self).__name__
        if not isinstance(out_features, (tuple, list)):
            raise DTypeError(where, "out_features as a tuple of sizes", shown(out_features))
        check_sizes(where, num_classes=num_classes)
        sizes = int_tuple(where, "out_features", out_features, 1, len(out_features)) if out_features else ()
        if weight is not None and weight.shape != (num_classes,):
            raise ShapeError(where, f"weight [{num_classes}]", f"{list(weight.shape)}")
        if not 0 <= label_smoothing <= 1:
            raise ArgumentError(where, "label_smoothing from 0 to 1", repr(label_smoothing))
        check_reduction(where, reduction)
        self.num_classes, self.out_features, self.reduction = num_classes, sizes, reduction
        self.ignore_index, self.label_smoothing, self.options = ignore_index, label_smoothing, options
        self.register_buffer("weight", weight)
        self.linear = Linear(in_features, prod((num_classes, *sizes)), bias, device, dtype)

    @checked
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        lead = (self.num_classes, *self.out_features)
        bias = self.linear.bias
        return ops.linear_cross_entropy(
            input,
            self.linear.weight.reshape(*lead, self.linear.in_features),
            target,
            linear_bias=None if bias is None else bias.reshape(lead),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )

    def extra_repr(self) -> str:
        names = ("num_classes", "out_features", "reduction", "ignore_index", "label_smoothing", "options")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

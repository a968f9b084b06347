"""AdaptiveLogSoftmaxWithLoss: an output layer for large vocabularies, whose rare classes have small layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ampkit import ops
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.arguments import is_whole, shown
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import checked

from ..module import Module
from .container import ModuleList, Sequential
from .linear import Linear

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class ASMoutput(NamedTuple):
    """output [N]: the log-probability of each target; loss []: minus their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """A softmax over classes sorted by falling frequency, in clusters: input [N, in_features] or [in_features].

    target [N] or [], integers from 0 to n_classes - 1 -> (output, loss), see ASMoutput. cutoffs: where clusters begin,
    growing integers between 0 and n_classes. The classes before the first cutoff, and one number for each further
    cluster, are the outputs of `head`, a Linear, with a bias if head_bias; cluster i has in `tail[i]` two Linears
    without bias, over a layer of in_features / div_value ** (i + 1), which only run for rows with such a target. The
    log-probabilities are those of `log_softmax`: float32 under autocast.
    Raises ArgumentError for other cutoffs and a layer of no width, ShapeError and DTypeError for an input and a target
    that do not fit, RangeError for a target out of range. Grave et al. 2017, arXiv:1609.04309.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        where, starts = type(self).__name__, list(cutoffs)
        if not starts or not all(map(is_whole, starts)) or any(a >= b for a, b in pairwise([0, *starts, n_classes])):
            needs = f"cutoffs as growing integers between 0 and n_classes, {n_classes}"
            raise ArgumentError(where, needs, shown(cutoffs))
        if not div_value > 0 or in_features // div_value ** (len(starts)) < 1:
            needs = f"div_value that leaves the last of {len(starts)} clusters a layer of width 1 or more"
            raise ArgumentError(where, needs, f"{div_value} for in_features {in_features}")
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*starts, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = starts[0], len(starts)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, device, dtype)
        self.tail = ModuleList()
        for i, (start, end) in enumerate(pairwise(self.cutoffs)):
            width = int(in_features // div_value ** (i + 1))
            layers = Linear(in_features, width, False, device, dtype), Linear(width, end - start, False, device, dtype)
            self.tail.append(Sequential(*layers))

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        for layer in [self.head, *(layer for cluster in self.tail for layer in cluster)]:
            layer.reset_parameters()

    @checked
    def forward(self, input: Tensor, target: Tensor) -> ASMoutput:
        where = type(self).__name__
        rows = self._rows(where, input)
        if target.shape != input.shape[:-1]:
            raise ShapeError(where, f"target of shape {list(input.shape[:-1])}", f"{list(target.shape)}")
        if target.is_floating_point() or target.dtype.name == "bool":
            raise DTypeError(where, "a target of integers", str(target.dtype))
        labels = target.reshape(-1)
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < self.n_classes:
            needs, got = f"targets from 0 to {self.n_classes - 1}", f"{int(labels.min())} to {int(labels.max())}"
            raise RangeError(where, needs, got)
        head = ops.log_softmax(self.head(rows), -1)
        entry, further = labels.clamp(max=self.shortlist_size - 1), []
        for i, (start, end) in enumerate(pairwise(self.cutoffs)):
            (found,) = ((labels >= start) & (labels < end)).nonzero(as_tuple=True)
            if found.numel():
                entry = entry.index_fill(0, found, self.shortlist_size + i)
                own = ops.log_softmax(self.tail[i](rows[found]), -1)
                further.append((found, own.gather(1, (labels[found] - start).unsqueeze(1)).squeeze(1)))
        output = head.gather(1, entry.unsqueeze(1)).squeeze(1)
        for found, own in further:
            output = output.index_add(0, found, own)
        return ASMoutput(output.reshape(target.shape), -output.mean())

    @checked
    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probabilities of all classes: input [N, in_features] -> [N, n_classes], without N likewise."""
        return self._of_all(self._rows("log_prob", input)).reshape(*input.shape[:-1], self.n_classes)

    @checked
    def predict(self, input: Tensor) -> Tensor:
        """The likeliest class of each row, int64: that of `log_prob`, without the clusters that no row needs."""
        rows = self._rows("predict", input)
        best = self.head(rows).argmax(1)
        (found,) = (best >= self.shortlist_size).nonzero(as_tuple=True)
        if found.numel():
            best = best.index_copy(0, found, self._of_all(rows[found]).argmax(1))
        return best.reshape(input.shape[:-1])

    def _rows(self, where: str, input: Tensor) -> Tensor:
        if input.ndim not in (1, 2) or input.shape[-1] != self.in_features:
            needs = f"input [N, {self.in_features}] or [{self.in_features}]"
            raise ShapeError(where, needs, f"{list(input.shape)}")
        return input.reshape(-1, self.in_features)

    def _of_all(self, rows: Tensor) -> Tensor:
        head, first = ops.log_softmax(self.head(rows), -1), self.shortlist_size
        tails = [ops.log_softmax(cluster(rows), -1) + head[:, first + i, None] for i, cluster in enumerate(self.tail)]
        return ops.cat([head[:, :first], *tails], 1)

    def extra_repr(self) -> str:
        names = ("in_features", "n_classes", "cutoffs", "div_value", "head_bias")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

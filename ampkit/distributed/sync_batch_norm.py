"""Batch normalization by the statistics of all ranks' batches together."""

from __future__ import annotations

from typing import Any

from .. import backends, ops
from ..autograd import Function
from ..base.errors import ShapeError
from ..core.autograd.recompute import is_recomputing
from ..core.policy import autocast
from ..core.tensor import Tensor
from ..ops.nn.batch_norm import batch_norm_, update_running_statistics
from .collectives import all_gather_into_tensor, all_reduce
from .process_group import ProcessGroup

__all__ = ["sync_batch_norm"]


class _AllGather(Function):
    """values [k] of every rank -> [ranks, k]; the gradient of a rank's values is the sum of all ranks' for them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        whole = ops.empty(group.size() * len(values), dtype=values.dtype, device=values.device)
        all_gather_into_tensor(whole, values.contiguous(), group)
        return whole.reshape(group.size(), -1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _ReduceScatter.apply(dy, ctx.group), None


class _ReduceScatter(Function):
    """[ranks, k] on every rank -> [k], the sum over the ranks of the row that belongs to this one."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        total = values.clone().contiguous()
        all_reduce(total, group=group)
        return total[group.rank()]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _AllGather.apply(dy, ctx.group), None


def sync_batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, training: bool, momentum: float, eps: float, group: ProcessGroup,
) -> Tensor:  # fmt: skip
    """`ops.batch_norm` whose batch is that of all ranks of `group`, which may have different numbers of samples.

    Each rank's mean and variance are computed in float32 (float64 for float64 input), and combined in float64 in rank
    order, so all ranks have the same bits. Raises ShapeError for one value per channel on all ranks together.
    Chan, Golub, LeVeque 1983, Am. Statistician 37, eq. 1.5.
    """
    if not training:
        return ops.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    with autocast(str(input.device.type), enabled=False):
        mean, var, unbiased = _statistics(input, group)
    if running_mean is not None and running_var is not None and not is_recomputing():
        update_running_statistics(running_mean.array, running_var.array, mean.array, unbiased.array, 1.0, momentum)
        running_mean.changed()
        running_var.changed()
    return batch_norm_(input, weight, bias, mean, var, None, eps)


def _statistics(input: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """(mean [C], biased variance [C], unbiased variance [C]) of all ranks' values."""
    wide = input if input.dtype.name == "float64" else input.float()
    dims, channels = [0, *range(2, input.ndim)], input.shape[1]
    count = input.numel() // channels
    mean = wide.mean(dims) if count else wide.sum(dims)
    var = wide.var(dims, correction=0) if count else wide.sum(dims)
    own = ops.full((1,), float(count), dtype="float64", device=input.device)
    mine = ops.cat([mean.double(), var.double(), own])
    means, variances, counts = _AllGather.apply(mine, group).split([channels, channels, 1], 1)
    total = counts.detach().sum()
    backends.backend_of(total.array).raise_if(total.array, total.array < 2, _need_more)
    share = counts.detach() / total
    whole = (share * means).sum(0)
    spread = (share * (variances + (means - whole) ** 2)).sum(0)
    unbiased = spread.detach() * (total / (total - 1))
    return whole.to(wide.dtype), spread.to(wide.dtype), unbiased.to(wide.dtype)


def _need_more(count: float, position: Any) -> None:
    needs = "more than one value per channel in training, on all ranks together"
    raise ShapeError("SyncBatchNorm", needs, f"{count:.0f}", "use a larger batch, or eval mode")

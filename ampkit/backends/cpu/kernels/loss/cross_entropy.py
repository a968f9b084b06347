"""CPU kernels of cross_entropy over labels, a block of rows at a time: no softmax of the whole batch is in memory.

exp(score - score of the label), summed over a row, is exp(loss), so no maximum is needed. oneDNN's exp returns infinity
for NaN; rows whose sum overflows or is not finite are computed again as the reference does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.eltwise import computes
from ampkit.backends.cpu.onednn.primitive import HostArray, empty
from ampkit.backends.cpu.onednn.reorder import FORMATS, fill
from ampkit.backends.cpu.onednn.softmax import exponentials
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.loss.class_labels import checked_labels, label_grads, label_weights, split_ignored
from ampkit.ops.loss.cross_entropy import cross_entropy_

_LARGE = 1 << 16  # scores; for fewer, NumPy is as fast
_BLOCK = 1 << 20  # scores: enough work for a call, and intermediate results stay in the cache
_TRUSTED = np.float32(1e14)  # sums below are exact enough, and of finite scores
_ONE = np.ones((1, 1), np.float32)


def _fits(input: HostArray) -> bool:
    known = input.ndim == 2 and input.size >= _LARGE and input.dtype in FORMATS and computes(float32)
    return known and bool(input.flags.c_contiguous)


def _label_indices(rows: HostArray, labels: HostArray) -> HostArray:
    """Where in the flat `rows` [R, C] the scores of `labels` [R, 1] stand: [R]."""
    return np.arange(0, rows.size, rows.shape[1]) + labels.reshape(-1)


def _at(rows: HostArray, indices: HostArray) -> HostArray:
    return in_format(rows.reshape(-1)[indices], float32).reshape(-1, 1)


def _powers(rows: HostArray, shift: HostArray, scale: HostArray = _ONE) -> Iterator[tuple[slice, HostArray]]:
    """scale * exp(rows - shift) a block at a time, in float32: which rows, and theirs, to be used up before the next.

    rows [R, C], shift [R, 1], scale [1, 1]. NaN gives infinity, or stays.
    """
    count, classes = rows.shape
    step = min(count, max(1, _BLOCK // classes))
    buffer = empty((step, classes), float32)
    for start in range(0, count, step):
        at = slice(start, min(start + step, count))
        block, out = in_format(rows[at], float32), buffer[: at.stop - start]
        if not exponentials(block, shift[at], scale, out):
            np.multiply(np.exp(block - shift[at], out=out), scale, out=out)
        yield at, out


def _anew(scores: HostArray, of_label: Any) -> tuple[Any, Any]:
    """The loss and the log-sum-exp of one row as the reference computes them."""
    wide = in_format(scores, float32)
    peak = wide.max()
    log = np.log(np.exp(wide - peak).sum())
    return log - (of_label - peak), log + peak


@cross_entropy_.on("cpu", when=lambda input, *more: _fits(input) and not more[-1], min_elements=_LARGE)
def cross_entropy_cpu(
    input: HostArray, target: HostArray, weight: HostArray | None, ignore_index: int, reduction: str,
    label_smoothing: float, *, dtype: DType,
) -> Any:  # fmt: skip
    labels, counts = checked_labels("cross_entropy", target, input.shape[1], ignore_index, 1)
    at, sums = _at(input, _label_indices(input, labels)), empty(labels.shape, float32)
    for rows, powers in _powers(input, at):
        np.add.reduce(powers, 1, keepdims=True, out=sums[rows])
    loss = np.log(sums)
    lse = loss + at
    for row in np.flatnonzero(~(sums < _TRUSTED)):
        loss[row], lse[row] = _anew(input[row], at[row])
    share = label_weights(None if weight is None else in_format(weight, float32), labels, counts, at, 1)
    loss = np.where(counts, loss * share, 0)
    out = loss.sum() / share.sum() if reduction == "mean" else loss.sum() if reduction == "sum" else loss.reshape(-1)
    out = in_format(np.asarray(out), dtype)
    saved = Saved(input=input, target=target, weight=weight, lse=lse)
    if reduction == "mean" and weight is not None:
        saved.out = out
    return out, saved


def _back_fits(dy: Any, saved: Saved, needs: Any, ignore_index: int, reduction: str, label_smoothing: float) -> bool:
    plain = needs[0] is not None and needs[2] is None and not label_smoothing
    return plain and _fits(saved.input) and bool(saved.lse.dtype == float32)


@cross_entropy_.on_backward("cpu", when=_back_fits)
def cross_entropy_backward_cpu(
    dy: HostArray, saved: Saved, needs: Any, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    x, lse, dx = saved.input, saved.lse, empty(saved.input.shape, needs[0])
    labels, counts = split_ignored(saved.target, ignore_index, 1)
    weight = None if saved.weight is None else in_format(saved.weight, float32)
    share = label_weights(weight, labels, counts, lse, 1)
    grad = np.where(counts, label_grads(in_format(dy, float32), reduction, share, 1), np.float32(0)) * share
    steepest = grad[np.abs(grad).argmax()].reshape(1, 1)
    one_for_all = weight is None and reduction != "none"
    if not (one_for_all and x.dtype == needs[0] and exponentials(x, lse, steepest, dx)):
        for rows, powers in _powers(x, lse, steepest if one_for_all else _ONE):
            fill(dx[rows], powers if one_for_all else np.multiply(powers, grad[rows], out=powers))
    if one_for_all:
        dx[~counts.reshape(-1)] = 0
    indices = _label_indices(x, labels)
    dx.reshape(-1)[indices] = in_format(np.expm1(_at(x, indices) - lse) * grad, needs[0]).reshape(-1)
    dx[np.isnan(lse.reshape(-1))] = np.nan
    return dx

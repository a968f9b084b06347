"""Kernels of cross_entropy and nll_loss over labels: a block per row of scores, which is read once each way.

No probabilities are held: the backward makes them anew of the scores and one number per row. A label that is no class
makes the loss and its row's gradient NaN, until it is looked at on the host. Not yet run on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, to_float32
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED, blocks_for, launch, typed
from ampkit.base.dtypes import DType, float32, int64
from ampkit.core.autograd.saved import Saved
from ampkit.ops.loss.class_labels import label_error
from ampkit.ops.loss.cross_entropy import cross_entropy_, nll_loss

Array = Any


def _known(input: Array) -> bool:
    return input.ndim > 0 and input.dtype in STORED and 0 < input.size <= MAX_ELEMENTS


def _rows(scores: Array) -> Array:
    """[N, C, ...] as rows [N, ..., C]: a copy where they do not lie so."""
    return contiguous(np.moveaxis(scores, 1, -1) if scores.ndim > 2 else scores)


def _whole(rows: Array) -> Array:
    return np.moveaxis(rows, -1, 1) if rows.ndim > 2 else rows


def _kept(input: Array) -> Array:
    """Memory for a number of each row, with an axis of length 1 for the classes."""
    axis = 1 if input.ndim > 1 else 0
    return backends.backend_of(input).empty((*input.shape[:axis], 1, *input.shape[axis + 1 :]), float32)


def _labels(target: Array) -> Array:
    return contiguous(target if target.dtype == int64 else backends.backend_of(target).cast(target, int64))


def _threads(cols: int) -> int:
    return 32 if cols <= 512 else 128 if cols <= 4096 else 256


def _reduced(loss: Array, share: Array | None, shape: tuple[int, ...], reduction: str, dtype: DType) -> tuple[Any, Any]:
    """The answer of a loss per label [rows], and what the mean divided by."""
    there, total = backends.backend_of(loss), None
    if reduction == "none":
        out = loss.reshape(shape)
    else:
        out = there.empty((), float32)
        total = None if reduction == "sum" else there.empty((), float32)
        given = loss, None if total is None else share, out, total, np.int64(loss.size)
        launch("loss/cross_entropy", "cross_entropy_sum", 1, 1024 if loss.size > 256 else 256, *given)
    return out if dtype == float32 else there.cast(out, dtype), total


def _inspect(where: str, target: Array, bad: Array, classes: int, ignore: int) -> None:
    backends.backend_of(target).raise_if(target, bad.reshape(target.shape), label_error(where, classes, ignore))


@cross_entropy_.on("cuda", when=lambda input, *more, **params: _known(input))
def cross_entropy_cuda(
    input: Array, target: Array, weight: Array | None, ignore_index: int, reduction: str, label_smoothing: float, *,
    dtype: DType,
) -> Any:  # fmt: skip
    there, x, rows = backends.backend_of(input), _rows(input), target.size
    classes, labels, scale = x.shape[-1], _labels(target), to_float32(weight)
    loss, bad = there.empty((rows,), float32), there.empty((rows,), np.dtype(bool))
    lse = _kept(input)
    share = there.empty((rows,), float32) if reduction == "mean" else None
    sizes = np.int64(classes), np.int64(ignore_index), np.float32(label_smoothing)
    entry = typed("cross_entropy_forward", x.dtype)
    launch("loss/cross_entropy", entry, rows, _threads(classes), x, labels, scale, loss, lse, share, bad, *sizes)
    _inspect("cross_entropy", target, bad, classes, ignore_index)
    out, total = _reduced(loss, share, target.shape, reduction, dtype)
    saved = Saved(input=input, target=target, weight=weight, lse=lse, total=total)
    if reduction == "mean" and weight is not None:
        saved.out = out
    return out, saved


def _back_fits(dy: Array, saved: Saved, needs: Any, ignore_index: int, reduction: str, label_smoothing: float) -> bool:
    plain = "total" in vars(saved) and needs[2] is None and needs[0] == saved.input.dtype
    return plain and dy.dtype in STORED and _known(saved.input)


@cross_entropy_.on_backward("cuda", when=_back_fits)
def cross_entropy_backward_cuda(
    dy: Array, saved: Saved, needs: Any, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    x, weight = _rows(saved.input), to_float32(saved.weight)
    dx, classes = backends.backend_of(x).empty(x.shape, x.dtype), x.shape[-1]
    weights = weight.sum() if weight is not None and label_smoothing else None
    arrays = to_float32(dy), x, _labels(saved.target), weight, weights, saved.lse, saved.total, dx
    sizes = np.int64(classes), np.int64(ignore_index), np.float32(label_smoothing), np.bool_(reduction == "none")
    launch(
        "loss/cross_entropy",
        typed("cross_entropy_backward", x.dtype),
        saved.lse.size,
        _threads(classes),
        *arrays,
        *sizes,
    )
    return _whole(dx)


@nll_loss.on("cuda", when=lambda input, *more, **params: _known(input))
def nll_loss_cuda(
    input: Array, target: Array, weight: Array | None, ignore_index: int, reduction: str, *, dtype: DType
) -> Any:
    there, x, rows = backends.backend_of(input), _rows(input), target.size
    classes, labels, scale = x.shape[-1], _labels(target), to_float32(weight)
    loss, bad = there.empty((rows,), float32), there.empty((rows,), np.dtype(bool))
    share = _kept(input)
    sizes = np.int64(rows), np.int64(classes), np.int64(ignore_index)
    entry = typed("nll_loss_forward", x.dtype)
    launch("loss/cross_entropy", entry, blocks_for(rows, 128), 128, x, labels, scale, loss, share, bad, *sizes)
    _inspect("nll_loss", target, bad, classes, ignore_index)
    out, total = _reduced(loss, share, target.shape, reduction, dtype)
    return out, Saved(input=input, target=target, weight=weight, weights=share, total=total)


def _nll_back_fits(dy: Array, saved: Saved, needs: Any, ignore_index: int, reduction: str) -> bool:
    return _back_fits(dy, saved, needs, ignore_index, reduction, 0.0)


@nll_loss.on_backward("cuda", when=_nll_back_fits)
def nll_loss_backward_cuda(dy: Array, saved: Saved, needs: Any, ignore_index: int, reduction: str) -> Any:
    x, rows = saved.input, saved.weights.size
    dx = backends.backend_of(x).zeros((*x.shape[:1], *x.shape[2:], x.shape[1]) if x.ndim > 2 else x.shape, x.dtype)
    arrays = to_float32(dy), _labels(saved.target), saved.weights, saved.total, dx
    sizes = np.int64(rows), np.int64(dx.shape[-1]), np.int64(ignore_index), np.bool_(reduction == "none")
    launch("loss/cross_entropy", typed("nll_loss_backward", x.dtype), blocks_for(rows, 128), 128, *arrays, *sizes)
    return _whole(dx)

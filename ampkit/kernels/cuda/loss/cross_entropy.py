"""CUDA kernels of cross_entropy and nll_loss with class indices: a block per row of logits, read once per direction.

Probabilities are not stored: the backward recomputes them from the logits and one log-sum-exp per row. A label out of
range makes the loss and the gradient of its row NaN; the host raises when it reads the flag.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import cast, contiguous, supports_rows, to_float32, to_int64
from ampkit.backends.cuda.launch.row_alignment import empty_aligned, has_spaced_rows, is_large
from ampkit.backends.cuda.nvrtc import STORED, blocks_for, launch, typed
from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.loss import register_label_loss
from ampkit.ops.loss.class_labels import label_error
from ampkit.ops.loss.cross_entropy import cross_entropy_, nll_loss


def _supports(input: Array, *more: Any, **params: Any) -> bool:
    return input.ndim > 0 and supports_rows(input, input.shape[min(1, input.ndim - 1)])


def _rows(scores: Array) -> Array:
    """[N, C, ...] as contiguous rows [N, ..., C], copied if needed."""
    return contiguous(np.moveaxis(scores, 1, -1) if scores.ndim > 2 else scores)


def _spaced_rows(scores: Array) -> Array:
    """The same, but for rows of a matrix that lie apart in memory, as those of large logits do."""
    return scores if has_spaced_rows(scores) else _rows(scores)


def _step(rows: Array) -> np.int64:
    """Values from row to row."""
    return np.int64(rows.strides[-2] // rows.itemsize if rows.ndim > 1 else 0)


def _from_rows(rows: Array) -> Array:
    """[N, ..., C] as [N, C, ...], a view."""
    return np.moveaxis(rows, -1, 1) if rows.ndim > 2 else rows


def _empty_per_row(input: Array) -> Array:
    """Allocate one float32 value per row, with an axis of size 1 for the classes."""
    axis = 1 if input.ndim > 1 else 0
    return backends.backend_of(input).empty((*input.shape[:axis], 1, *input.shape[axis + 1 :]), float32)


def _threads(cols: int) -> int:
    return 32 if cols <= 512 else 128 if cols <= 4096 else 256


def _reduced(
    loss: Array, counted: Array | None, shape: tuple[int, ...], reduction: str, dtype: DType
) -> tuple[Any, Any]:
    """Reduce the loss per label [rows]; returns the loss in `dtype`, and the divisor of a mean or None.

    counted: the weight of each label in a mean.
    """
    backend, total = backends.backend_of(loss), None
    if reduction == "none":
        out = loss.reshape(shape)
    else:
        out = backend.empty((), float32)
        total = None if reduction == "sum" else backend.empty((), float32)
        args = loss, None if total is None else counted, out, total, np.int64(loss.size)
        launch("loss/cross_entropy", "cross_entropy_sum", 1, 1024 if loss.size > 256 else 256, *args)
    return cast(out, dtype), total


def _raise_if_bad(where: str, target: Array, bad: Array, classes: int, ignore: int) -> None:
    """Raise for labels out of range, asynchronously. bad: bool per label."""
    backends.backend_of(target).raise_if(target, bad.reshape(target.shape), label_error(where, classes, ignore))


def _cross_entropies(
    input: Array, target: Array, weight: Array | None, ignore_index: int, reduction: str, label_smoothing: float,
    dtype: DType,
) -> Any:  # fmt: skip
    backend, x, rows = backends.backend_of(input), _spaced_rows(input), target.size
    classes, labels, scale = x.shape[-1], to_int64(target), to_float32(weight)
    loss, bad = backend.empty((rows,), float32), backend.empty((rows,), np.dtype(bool))
    lse = _empty_per_row(input)
    counted = backend.empty((rows,), float32) if reduction == "mean" else None
    sizes = np.int64(classes), _step(x), np.int64(ignore_index), np.float32(label_smoothing)
    entry = typed("cross_entropy_forward", x.dtype)
    launch("loss/cross_entropy", entry, rows, _threads(classes), x, labels, scale, loss, lse, counted, bad, *sizes)
    _raise_if_bad("cross_entropy", target, bad, classes, ignore_index)
    out, total = _reduced(loss, counted, target.shape, reduction, dtype)
    return out, lse, total


def _supports_grad(dy: Array, saved: Saved, dtype: DType) -> bool:
    plain = "total" in vars(saved) and dtype == saved.input.dtype
    return plain and dy.dtype in STORED and _supports(saved.input)


def _gradient(
    dy: Array, saved: Saved, dtype: DType, ignore_index: int, reduction: str, label_smoothing: float
) -> Array:
    x, weight = _spaced_rows(saved.input), to_float32(saved.weight)
    dx, classes = _empty_gradient(x), x.shape[-1]
    weights = weight.sum() if weight is not None and label_smoothing else None
    arrays = to_float32(dy), x, to_int64(saved.target), weight, weights, saved.lse, saved.total, dx
    sizes = np.int64(classes), _step(x), _step(dx), np.int64(ignore_index)
    entry = typed("cross_entropy_backward", x.dtype)
    options = np.float32(label_smoothing), np.bool_(reduction == "none")
    launch("loss/cross_entropy", entry, saved.lse.size, _threads(classes), *arrays, *sizes, *options)
    return _from_rows(dx)


def _empty_gradient(x: Array) -> Array:
    # With rows aligned for the products that follow, where a vocabulary is large.
    large = x.ndim == 2 and is_large(x.shape, x.dtype)
    return empty_aligned(x, x.shape, x.dtype) if large else backends.backend_of(x).empty(x.shape, x.dtype)


def _nll_losses(
    input: Array, target: Array, weight: Array | None, ignore_index: int, reduction: str, dtype: DType
) -> Any:
    backend, x, rows = backends.backend_of(input), _rows(input), target.size
    classes, labels, scale = x.shape[-1], to_int64(target), to_float32(weight)
    loss, bad = backend.empty((rows,), float32), backend.empty((rows,), np.dtype(bool))
    counted = _empty_per_row(input)
    sizes = np.int64(rows), np.int64(classes), np.int64(ignore_index)
    entry = typed("nll_loss_forward", x.dtype)
    launch("loss/cross_entropy", entry, blocks_for(rows, 128), 128, x, labels, scale, loss, counted, bad, *sizes)
    _raise_if_bad("nll_loss", target, bad, classes, ignore_index)
    out, total = _reduced(loss, counted, target.shape, reduction, dtype)
    return out, counted, total


def _nll_gradient(dy: Array, saved: Saved, dtype: DType, ignore_index: int, reduction: str) -> Array:
    x, rows = saved.input, saved.weights.size
    dx = backends.backend_of(x).zeros((*x.shape[:1], *x.shape[2:], x.shape[1]) if x.ndim > 2 else x.shape, x.dtype)
    arrays = to_float32(dy), to_int64(saved.target), saved.weights, saved.total, dx
    sizes = np.int64(rows), np.int64(dx.shape[-1]), np.int64(ignore_index), np.bool_(reduction == "none")
    launch("loss/cross_entropy", typed("nll_loss_backward", x.dtype), blocks_for(rows, 128), 128, *arrays, *sizes)
    return _from_rows(dx)


register_label_loss("cuda", cross_entropy_, "lse", _cross_entropies, _gradient, _supports, _supports_grad)
register_label_loss("cuda", nll_loss, "weights", _nll_losses, _nll_gradient, _supports, _supports_grad)

"""CUDA kernels of cross_entropy and nll_loss with class indices: a block per row of logits, read once per direction.

Probabilities are not stored: the backward recomputes them from the logits and one log-sum-exp per row. A label out of
range makes the loss and the gradient of its row NaN; the host raises when it reads the flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import cast, contiguous, supports_rows, to_float32, to_int64
from ampkit.backends.cuda.launch.prologue_chains import launched
from ampkit.backends.cuda.launch.row_alignment import empty_aligned, has_spaced_rows, is_large
from ampkit.backends.cuda.launch.rows import Grid
from ampkit.backends.cuda.launch.template_chains import TemplateCall
from ampkit.backends.cuda.launch.template_source import Template
from ampkit.backends.cuda.nvrtc import C_NAMES, STORED, blocks_for, launch, typed
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.loss import register_label_loss
from ampkit.ops.loss.class_labels import label_error
from ampkit.ops.loss.cross_entropy import cross_entropy_, nll_loss

PACK = 8  # values that a thread takes at once; as in cross_entropy.cuh


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
    out, total = _outputs(loss, shape, reduction)
    if reduction == "none":
        out = loss.reshape(shape)
    else:
        _sum(loss, counted, out, total)
    return cast(out, dtype), total


def _outputs(like: Array, shape: tuple[int, ...], reduction: str) -> tuple[Array, Any]:
    """Allocate the loss, of `shape` or one number, and the divisor of a mean or None."""
    backend = backends.backend_of(like)
    out = backend.empty(shape if reduction == "none" else (), float32)
    return out, backend.empty((), float32) if reduction == "mean" else None


def _sum(loss: Array, counted: Array | None, out: Array, total: Any) -> None:
    args = loss, None if total is None else counted, out, total, np.int64(loss.size)
    launch("loss/cross_entropy", "cross_entropy_sum", 1, 1024 if loss.size > 256 else 256, *args)


def _raise_if_bad(where: str, target: Array, bad: Array, classes: int, ignore: int) -> None:
    """Raise for labels out of range, asynchronously. bad: bool per label."""
    backends.backend_of(target).raise_if(target, bad.reshape(target.shape), label_error(where, classes, ignore))


class _Losses:
    """The kernels of cross_entropy: the loss of each label, and their sum.

    Reads scores, labels, weight, target; stores the loss, the log-sum-exp of each label, and the divisor of a mean. See
    prologue_chains.KernelSequence.
    """

    title, backward, shared, rereads, checks = "CrossEntropy", False, 0, False, True

    def __init__(self, x: Array, rows: int, reduction: str, ignore_index: int, smoothing: float):
        classes = x.shape[-1]
        self.blocks, self.threads = rows, _threads(classes)
        self.reduction, self.ignore, self.step = reduction, ignore_index, _step(x)
        self.numbers = np.int64(classes), np.int64(ignore_index), np.float32(smoothing)
        self.template = template(False, x.dtype, classes)

    def begin(self, reads: Sequence[Any], outs: Sequence[Any]) -> tuple[Any, ...]:
        x, labels, weight, _ = reads
        backend, (out, lse, _) = backends.backend_of(x), outs
        loss = out if self.reduction == "none" else backend.empty((self.blocks,), float32)
        counted = backend.empty((self.blocks,), float32) if self.reduction == "mean" else None
        return labels, weight, loss, lse, counted, backend.empty((self.blocks,), np.dtype(bool)), *self.numbers

    def first(self, loaded: Array, own: tuple[Any, ...]) -> None:
        entry = typed("cross_entropy_forward", loaded.dtype)
        launch("loss/cross_entropy", entry, self.blocks, self.threads, loaded, *own, self.step)

    def rest(self, reads: Sequence[Any], outs: Sequence[Any], own: tuple[Any, ...]) -> None:
        (x, *_, target), (out, _, total), (_, _, loss, _, counted, bad, *_) = reads, outs, own
        _raise_if_bad("cross_entropy", target, bad, x.shape[-1], self.ignore)
        if self.reduction != "none":
            _sum(loss, counted, out, total)


@lru_cache(64)
def template(backward: bool, dtype: DType, classes: int) -> Template:
    """The kernel of the losses, or of the gradient of the scores, for chains."""
    width, name = 1 if classes % PACK else PACK, C_NAMES[dtype]
    row = f"chain_row<{width}, {name}>({{loads}}, cols)"
    sizes = "long long cols", "long long ignore", "float smoothing"
    if backward:
        vectors = [f"const float* {each}" for each in ("weight", "weights", "lse", "total")]
        own = ["const float* dy", "const long long* labels", *vectors, *sizes, "bool per_row"]
        own += ["long long x_step", "long long step"]
        given = "dy, labels, weight, weights, lse, total, cols, ignore, smoothing, per_row"
        call = f"row_cross_entropy_backward({row}, chain_row<{width}, {name}>({{store}}, cols), {given})"
    else:
        own = ["const long long* labels", "const float* weight", "float* loss", "float* lse", "float* label_weight"]
        own += ["bool* invalid_label", *sizes]
        given = "labels, weight, loss, lse, label_weight, invalid_label, cols, ignore, smoothing"
        call = f"row_cross_entropy({row}, {given})"
    title = f"cross_entropy{'_backward' if backward else ''}"
    return Template(title, "cross_entropy", call, ", ".join(own), str(_threads(classes)), width)


def _cross_entropies(
    input: Array, target: Array, weight: Array | None, ignore_index: int, reduction: str, label_smoothing: float,
    dtype: DType,
) -> Any:  # fmt: skip
    x, lse = _spaced_rows(input), _empty_per_row(input)
    kernels = _Losses(x, target.size, reduction, ignore_index, label_smoothing)
    out, total = _outputs(x, target.shape, reduction)
    launched(kernels, (x, to_int64(target), to_float32(weight), target), (out, lse, total))
    return cast(out, dtype), lse, total


def _supports_grad(dy: Array, saved: Saved, dtype: DType) -> bool:
    plain = "total" in vars(saved) and dtype == saved.input.dtype
    return plain and dy.dtype in STORED and _supports(saved.input)


def _gradient(
    dy: Array, saved: Saved, dtype: DType, ignore_index: int, reduction: str, label_smoothing: float
) -> Array:
    x, weight = _spaced_rows(saved.input), to_float32(saved.weight)
    dx, classes = _empty_gradient(x), x.shape[-1]
    weights = _total(weight) if weight is not None and label_smoothing else None
    vectors = to_float32(dy), to_int64(saved.target), weight, weights, saved.lse, saved.total
    numbers = np.int64(classes), np.int64(ignore_index), np.float32(label_smoothing), np.bool_(reduction == "none")
    dense = x.flags.c_contiguous and dx.flags.c_contiguous
    made = template(True, x.dtype, classes) if dense else None
    config = Grid(saved.lse.size, _threads(classes), 0, 0)
    entry, steps = typed("cross_entropy_backward", x.dtype), (_step(x), _step(dx))
    arrays = (x,), vectors, dx, ()
    TemplateCall(
        "CrossEntropy", True, "loss/cross_entropy", entry, *arrays, (*numbers, *steps), classes, config, made
    ).launch()
    return _from_rows(dx)


def _total(weight: Array) -> Array:
    if queue.waiting:
        queue.flush((weight,))
    return weight.sum()


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


_waits = {"launches": True}
register_label_loss("cuda", cross_entropy_, "lse", _cross_entropies, _gradient, _supports, _supports_grad, **_waits)
register_label_loss("cuda", nll_loss, "weights", _nll_losses, _nll_gradient, _supports, _supports_grad)

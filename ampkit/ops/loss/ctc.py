"""Connectionist temporal classification: the likelihood of a label sequence, summed over its alignments to frames.

The states of an alignment are the labels with blanks before, between and after them. From frame to frame it stays,
moves to the next state, or skips a blank between two different labels. alpha and beta are the forward and backward
log-probabilities of the states.
"""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import DeviceError, DTypeError, RangeError, ShapeError
from ampkit.core.arguments import shown
from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_reduction, check_values
from ..reduction.dot_products import matmul_arrays
from ..shape.view import reshape
from .class_labels import check_mean

__all__ = ["ctc_loss"]

# The logarithm of zero: finite, so that no difference of two is NaN; the sum over 1e8 frames still fits in float32.
NEVER = -1e30


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The negative log-probability of each target, summed over its alignments to the frames of its input.

    log_probs [T, N, C] logarithms of probabilities; targets [N, S], arbitrary beyond the end of each, or
    concatenated [sum of target_lengths]: classes other than `blank`; input_lengths, target_lengths [N], tensors or
    sequences of integers -> [N], or []. Without N: [T, C], [S], lengths that are numbers -> []. The mean is over the
    batch, of each loss divided by the length of its target (at least 1). A target without an alignment has an infinite
    loss and a NaN gradient, or 0 for both with `zero_infinity`. Computed in float32 (float64 for float64).
    Raises ShapeError for shapes that do not fit and for a mean over nothing, DTypeError for labels or lengths that are
    not integers, RangeError for those out of range and for a blank among the labels, ArgumentError for an
    unknown reduction. Graves et al. 2006, ICML, eq. 6-8, 10, 14-15.
    """
    check_reduction("ctc_loss", reduction)
    if log_probs.ndim not in (2, 3) or not log_probs.shape[0] or not log_probs.shape[-1]:
        raise ShapeError("ctc_loss", "log_probs [T, N, C] or [T, C], T and C from 1", f"{tuple(log_probs.shape)}")
    unbatched, blank = log_probs.ndim == 2, index(blank)
    frames, classes = log_probs.shape[0], log_probs.shape[-1]
    if targets.device != log_probs.device:
        raise DeviceError("ctc_loss", "targets where log_probs are", f"{targets.device} and {log_probs.device}")
    scores = reshape(log_probs, (frames, 1, classes)) if unbatched else log_probs
    if not 0 <= blank < classes:
        raise RangeError("ctc_loss", f"a blank from 0 to {classes - 1}", f"{blank}")
    padded = _checked_targets(scores, targets.array[None] if unbatched and targets.ndim == 1 else targets.array)
    lengths = _lengths(scores, "input_lengths", input_lengths, frames)
    most = padded.shape[1] if padded.ndim == 2 else padded.size
    counts = _lengths(scores, "target_lengths", target_lengths, most)
    labels = _labels(padded, counts, frames, classes, blank)
    loss = ctc_loss_(scores, *map(Tensor, (labels, lengths, counts)), blank, reduction, zero_infinity)
    return reshape(loss, ()) if unbatched else loss


def _checked_targets(scores: Tensor, targets: Any) -> Any:
    # Targets of a batch: [N, S], or concatenated [sum of target_lengths].
    if targets.dtype.kind not in "iu":
        raise DTypeError("ctc_loss", "integer targets", targets.dtype.name, "cast them with .long()")
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and len(targets) != scores.shape[1]):
        needs = f"targets [{scores.shape[1]}, S], or [sum of target_lengths]"
        raise ShapeError("ctc_loss", needs, f"{tuple(targets.shape)}")
    return targets


def _lengths(scores: Tensor, name: str, lengths: Any, most: int) -> Any:
    # [N] int64 from 0 to `most`, on the device of the scores.
    batch = scores.shape[1]
    try:
        array = lengths.array if isinstance(lengths, Tensor) else np.asarray(lengths)
    except ValueError:  # ragged lists
        raise DTypeError("ctc_loss", f"{name} of integers", shown(lengths)) from None
    if array.dtype.kind not in "iu" and array.size:
        raise DTypeError("ctc_loss", f"{name} of integers", array.dtype.name)
    if array.shape != (batch,) and (array.ndim or batch != 1):
        raise ShapeError("ctc_loss", f"{name} of shape ({batch},)", f"{tuple(array.shape)}")
    array = array.reshape(batch).astype(np.int64)
    check_values("ctc_loss", array, (array < 0) | (array > most), f"{name} from 0 to {most}")
    array = np.minimum(np.maximum(array, 0), most)  # a GPU raises later; until then nothing reads beyond the end
    return backends.backend_of(scores.array).asarray(array) if isinstance(array, np.ndarray) else array


def _labels(targets: Any, counts: Any, frames: int, classes: int, blank: int) -> Any:
    """[N, S] labels: blank after the end of each target, -1 for one that is not a class.

    S is cut to the number of frames: longer targets have no alignment.
    """
    if targets.ndim == 1:
        targets = _split(targets, counts, frames)
    targets = targets.astype(np.int64)[:, :frames]
    inside = np.arange(targets.shape[1], like=targets) < counts[:, None]
    bad = inside & ((targets < 0) | (targets >= classes) | (targets == blank))
    check_values("ctc_loss", targets, bad, f"labels from 0 to {classes - 1} other than blank={blank}")
    return np.where(bad, -1, np.where(inside, targets, blank))


def _split(targets: Any, counts: Any, frames: int) -> Any:
    ends, total = np.cumsum(counts), targets.size
    last = np.arange(counts.size, like=counts) == counts.size - 1

    def fail(value: int, position: Any) -> None:
        raise ShapeError("ctc_loss", f"target_lengths that add up to {total}, the size of targets", f"a sum of {value}")

    backends.backend_of(ends).raise_if(ends, last & (ends != total), fail)
    index = (ends - counts)[:, None] + np.arange(min(total, frames), like=targets)
    return np.take(targets, np.minimum(np.maximum(index, 0), total - 1))


@op(cast=Cast.FP32, integers="refuse")
def ctc_loss_(
    log_probs: Array, targets: Index, input_lengths: Index, target_lengths: Index, blank, reduction, zero_infinity
):
    """`ctc_loss` of a batch with targets from `_labels`: NaN for a target with a label of -1."""
    labels, inside = plain(targets), _column(input_lengths)
    states, skip = _states(labels, log_probs.dtype, blank)
    frames = _state_log_probs(log_probs, states)
    never = np.full_like(skip, NEVER, shape=(len(states), 2))
    state, alpha = np.where(np.arange(states.shape[1], like=states) == 0, 0, np.full_like(skip, NEVER)), []
    for t in range(len(log_probs)):
        wide = np.concatenate((never, state), 1)
        moved = _log_sum(wide[:, 2:], wide[:, 1:-1], wide[:, :-2] + skip) + frames[t]
        state = np.where(t < inside, moved, state)
        alpha.append(state)
    final = np.where(_final_states(states, target_lengths), state, NEVER)
    top = plain(final).max(1, keepdims=True)
    log = (np.log(np.exp(final - top).sum(1, keepdims=True)) + top).reshape(-1)
    loss = np.where(plain(log) <= NEVER / 2, np.inf, -log)
    loss = np.where((labels < 0).any(1), np.nan, loss)
    saved = Saved(log_probs=log_probs, targets=targets, input_lengths=input_lengths, target_lengths=target_lengths)
    saved.alpha, saved.loss = np.stack(alpha), loss
    return reduce_loss(loss, plain(target_lengths), reduction, zero_infinity), saved


@ctc_loss_.check
def ctc_loss_check(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity):
    check_mean("ctc_loss", log_probs, reduction)


@ctc_loss_.backward
def ctc_loss_backward(dy, saved, needs, blank, reduction, zero_infinity):
    labels, inside = saved.targets, _column(saved.input_lengths)
    states, skip = _states(labels, saved.log_probs.dtype, blank)
    frames = _state_log_probs(saved.log_probs, states)
    never = np.full_like(skip, NEVER, shape=(len(states), 2))
    ahead = np.concatenate((skip, never), 1)[:, 2:]
    loss = saved.loss[:, None]
    state, posteriors = np.where(_final_states(states, saved.target_lengths), 0, np.full_like(skip, NEVER)), []
    for t in reversed(range(len(frames))):
        posterior = np.where(loss == np.inf, 0 if zero_infinity else np.nan, np.exp(saved.alpha[t] + state + loss))
        posteriors.append(np.where(t < inside, posterior, 0))
        wide = np.concatenate((state + frames[t], never), 1)
        state = np.where(t < inside, _log_sum(wide[:, :-2], wide[:, 1:-1], wide[:, 2:] + ahead), state)
    grad = unreduced_grad(dy, saved.target_lengths, reduction)
    return -_sum_by_class(np.stack(posteriors[::-1], 1), labels, blank, saved.log_probs.shape) * grad[:, None]


def reduce_loss(loss: Any, counts: Any, reduction: str, zero_infinity: bool) -> Any:
    """The reduction of a loss per sequence [N]."""
    if zero_infinity:
        loss = np.where(plain(loss) == np.inf, 0, loss)
    if reduction == "mean":
        return (loss / np.maximum(counts, 1).astype(loss.dtype)).mean()
    return loss.sum() if reduction == "sum" else loss


def unreduced_grad(dy: Any, counts: Any, reduction: str) -> Any:
    """The gradient of the loss of each sequence [N], given dy of the reduced loss."""
    if reduction == "mean":
        return dy / (np.maximum(counts, 1) * len(counts)).astype(dy.dtype)
    return dy + np.zeros(counts.shape, dy.dtype, like=dy)


def _column(lengths: Any) -> Any:
    return plain(lengths)[:, None]


def _states(labels: Any, dtype: Any, blank: int) -> tuple[Any, Any]:
    """(the class of each state, 0 where a skip may lead to it and NEVER elsewhere), both [N, 2 S + 1]."""
    batch, most = labels.shape
    states = np.full_like(labels, blank, shape=(batch, 2 * most + 1))
    states[:, 1::2] = np.maximum(labels, 0)
    skip = np.full_like(states, NEVER, dtype=dtype)
    skip[:, 3::2] = np.where(labels[:, 1:] == labels[:, :-1], NEVER, 0)
    return states, skip


def _state_log_probs(log_probs: Any, states: Any) -> Any:
    # [T, N, 2 S + 1]
    places = np.broadcast_to(states, (len(log_probs), *states.shape))
    return np.maximum(np.take_along_axis(log_probs, places, 2), NEVER)


def _final_states(states: Any, counts: Any) -> Any:
    # An alignment ends at the last label or at the blank after it.
    offset = np.arange(states.shape[1], like=states) - 2 * _column(counts)
    return (offset == 0) | (offset == -1)


def _log_sum(a: Any, b: Any, c: Any) -> Any:
    top = np.maximum(np.maximum(plain(a), plain(b)), plain(c))
    return np.log(np.exp(a - top) + np.exp(b - top) + np.exp(c - top)) + top


def _sum_by_class(posteriors: Any, labels: Any, blank: int, shape: Any) -> Any:
    # Sum posteriors [N, T, 2 S + 1] of states into [T, N, C] of classes. A matrix product with the equality of labels
    # adds up equal ones; all of them then write the sum of the first, so the order of writes does not matter.
    frames, batch, classes = shape
    out = np.zeros((batch, frames, classes), posteriors.dtype, like=posteriors)
    if labels.shape[1]:
        same = labels[:, :, None] == labels[:, None]
        first, each = np.argmax(same, 2)[:, None], (batch, frames, labels.shape[1])
        sums = matmul_arrays(posteriors[:, :, 1::2].copy(), same.astype(posteriors.dtype))
        sums = np.take_along_axis(sums, np.broadcast_to(first, each), 2)
        np.put_along_axis(out, np.broadcast_to(np.maximum(labels, 0)[:, None], each), sums, 2)
    out[:, :, blank] = posteriors[:, :, ::2].sum(2)
    return np.moveaxis(out, 0, 1)

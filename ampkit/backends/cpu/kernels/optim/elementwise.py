"""CPU kernels of elementwise optimizers and of gradient norms, over chunks of flat memory.

Adam and SGD run as fused oneDNN primitives, all others as NumPy on several threads. On a CPU a skipped step returns
early; the reference, which must not wait for a device, computes both outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.cpu.onednn.binary import PIECE, calling, two
from ampkit.backends.cpu.onednn.gemm import column_sums
from ampkit.backends.cpu.onednn.library import library
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, Call, HostArray, Layout, cached, empty
from ampkit.backends.cpu.onednn.reorder import FORMATS, reorder
from ampkit.backends.cpu.parallel_map import parallel_map
from ampkit.base.dtypes import float32
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.optim.adam import Adam
from ampkit.optim.clip import power_sum, scale_gradients
from ampkit.optim.elementwise import Elementwise, Step, scalars_of, update, update_chunk
from ampkit.optim.flat.memory import chunks, narrow, read_scalar
from ampkit.optim.sgd import SGD


class _Steps(NamedTuple):
    """The steps of an update on a piece: what they read, and -> what they write."""

    mean: Call  # gradient, 1 - b1 -> mean
    square: Call  # gradient, gradient -> square
    move: Call  # square, 1 / (1 - b2^t), mean, -lr / (1 - b1^t) / stay, master, stay = 1 - lr weight_decay -> master


def _steps(size: int, first: float, second: float, eps: float) -> _Steps:
    row, number = (Layout.dense((n,), float32) for n in (size, 1))
    inverse = ("sqrt", 0.0, 0.0), ("linear", 1.0, eps), ("pow", 1.0, -1.0)

    return _Steps(
        calling("mul", row, number, ("sum", first)),
        calling("mul", row, row, ("linear", 1 - second, 0.0), ("sum", second)),
        calling("mul", row, number, *inverse, ("mul", row), ("mul", number), ("add", row), ("mul", number)),
    )


Moments = Sequence[HostArray | None]


def _fused(rule: type[Elementwise], weights: HostArray, step: Step) -> bool:
    """Whether oneDNN is there, and large enough masters in float32 for it, of just this optimizer."""
    ours = step.rule.update_elements is rule.update_elements and step.rule.scalars is rule.scalars
    plain = ours and not step.options["maximize"] and type(weights) is np.ndarray and weights.dtype == float32
    return plain and weights.size >= MIN_ELEMENTS and library() is not None


def _adam_fits(weights: HostArray, gradient: HostArray, moments: Moments, copies: list[HostArray], step: Step) -> bool:
    return _fused(Adam, weights, step) and moments[2] is None and not step.l2


@update.on("cpu", when=_adam_fits)
def adam_update_cpu(
    weights: HostArray, gradient: HostArray, moments: Moments, copies: list[HostArray], step: Step
) -> None:
    if not _real(weights, copies, step):
        return
    eps, weight_decay = step.options["eps"], step.options["weight_decay"]
    mean, square = (moment for moment in moments if moment is not None)
    first, second = step.values["betas"].tolist()
    count, rate = int(read_scalar(step.steps)) + 1, float(read_scalar(step.values["lr"]))
    stay = 1 - rate * weight_decay
    if not stay:  # nothing can be divided by it; what is not finite becomes NaN
        with ignore_fp_errors():
            weights *= np.float32(0)
        stay = 1.0
    numbers = [1 - first, 1 / (1 - second**count), stay, -rate / (1 - first**count) / stay]
    share, correction, stays, factor = (np.array([number], np.float32) for number in numbers)
    for start in range(0, weights.size, PIECE):
        p, g, m, v = (array[start : start + PIECE] for array in (weights, gradient, mean, square))
        size = p.size
        do = cached(("adam", size, first, second, eps), partial(_steps, size, first, second, eps))
        do.mean(g, share, m)
        do.square(g, g, v)
        do.move(v, correction, p, m, factor, p, stays)
        for copy in copies:
            narrow(p, copy[start : start + PIECE])


def _real(weights: HostArray, copies: list[HostArray], step: Step) -> bool:
    """Whether the step is real; if not, all that is left to do is done."""
    if step.all_finite is None or read_scalar(step.all_finite):
        return True
    for copy in copies:  # after any step they count as fresh, and one that was just made is not filled yet
        narrow(weights, copy)
    return False


@narrow.on("cpu", when=lambda master, copy: library() is not None and {master.dtype, copy.dtype} <= FORMATS)
def narrow_cpu(master: HostArray, copy: HostArray) -> None:
    if not master.size or not reorder(master, copy):
        narrow.reference.run(master, copy)


# SGD


class _Moves(NamedTuple):
    """The steps of an update on a piece: what they read, and -> what they write."""

    decay: Call  # master, weight_decay, gradient -> grad
    hold: Call  # buffer, momentum -> buffer
    take: Call  # grad, 1 - dampening -> added to buffer
    ahead: Call  # buffer, momentum, grad -> scratch
    move: Call  # grad, buffer or scratch, -lr -> added to master


def _moves(size: int) -> _Moves:
    row, number = (Layout.dense((n,), float32) for n in (size, 1))

    by_number, more, plus = (calling("mul", row, number, *after) for after in ((), (("sum", 1.0),), (("add", row),)))
    return _Moves(plus, by_number, more, plus, more)


def _sgd_fits(weights: HostArray, gradient: HostArray, moments: Moments, copies: list[HostArray], step: Step) -> bool:
    return _fused(SGD, weights, step)


@update.on("cpu", when=_sgd_fits)
def sgd_update_cpu(
    weights: HostArray, gradient: HostArray, moments: Moments, copies: list[HostArray], step: Step
) -> None:
    if not _real(weights, copies, step):
        return
    (buffer,), weight_decay, nesterov = moments, step.options["weight_decay"], step.options["nesterov"]
    first = read_scalar(step.steps) == 0
    share = 1 if first else 1 - step.options["dampening"]  # the first gradient enters the buffer undamped
    numbers = (weight_decay, float(read_scalar(step.values["momentum"])), share, -float(read_scalar(step.values["lr"])))
    penalty, push, take, factor = (np.array([number], np.float32) for number in numbers)
    grad, scratch = (empty((min(PIECE, weights.size),), float32) for _ in range(2))
    for start in range(0, weights.size, PIECE):
        p, d = weights[start : start + PIECE], gradient[start : start + PIECE]
        size = p.size
        do = cached(("sgd", size), partial(_moves, size))
        if weight_decay:
            do.decay(p, penalty, grad[:size], d)
            d = grad[:size]
        if buffer is not None:
            m = buffer[start : start + PIECE]
            do.hold(m, push, m)
            do.take(d, take, m)
            if nesterov:
                do.ahead(m, push, scratch[:size], d)
            d = scratch[:size] if nesterov else m
        do.move(d, factor, p)
        for copy in copies:
            narrow(p, copy[start : start + PIECE])


# all others


@update.on("cpu", when=lambda weights, *rest: type(weights) is np.ndarray)
def update_cpu(weights: HostArray, gradient: HostArray, moments: Moments, copies: list[HostArray], step: Step) -> None:
    """Run the reference update chunk-parallel; bit-identical to the serial reference."""
    if not _real(weights, copies, step):
        return
    step = step._replace(all_finite=None)
    numbers = scalars_of(step, gradient.dtype)

    @ignore_fp_errors()
    def work(part: slice) -> None:
        update_chunk(weights, gradient, moments, copies, step, numbers, part)

    parallel_map(work, list(chunks(weights.size)))


# norms

_COLUMNS = 512
_SMALLEST = 1e-24  # a smaller sum may be of squares that underflow in float32


@power_sum.on("cpu", when=lambda values, order, scratch: order == 2 and library() is not None)
def power_sum_cpu(values: HostArray, order: float, scratch: HostArray) -> Any:
    # Not `dot`: NumPy's BLAS threads would spin on after it, on the cores that oneDNN's threads need.
    if values.dtype == float32 and values.size >= MIN_ELEMENTS:
        total = _sum_of_squares(values)
        if _SMALLEST < total < np.inf:
            return total
    total = np.zeros(())
    for part in chunks(values.size):
        wide = scratch[: part.stop - part.start]
        np.copyto(wide, values[part])
        total += np.multiply(wide, wide, out=wide).sum()
    return total


def _sum_of_squares(values: HostArray) -> Any:
    # Column sums of up to PIECE / _COLUMNS squares in float32; the sum of these in float64.
    whole = values.size - values.size % _COLUMNS
    scratch, rest = empty((min(PIECE, whole),), float32), values[whole:].astype(np.float64)
    total = np.asarray((rest * rest).sum())
    for start in range(0, whole, PIECE):
        piece = values[start : min(start + PIECE, whole)]
        squares = scratch[: piece.size]
        two("mul", piece, piece, squares)
        sums: Any = column_sums(squares.reshape(-1, _COLUMNS), float32)
        total = total + sums.sum(dtype=np.float64)
    return total


@scale_gradients.on(
    "cpu",
    when=lambda values, factor, all_finite: (
        values.dtype == float32 and values.size >= MIN_ELEMENTS and library() is not None
    ),
)
def scale_gradients_cpu(values: HostArray, factor: HostArray, all_finite: HostArray) -> None:
    number = np.array([factor], np.float32)
    if not read_scalar(all_finite):
        values[...] = 0
    elif number[0] != 1:
        for start in range(0, values.size, PIECE):
            piece = values[start : start + PIECE]
            cached(("scale_gradients", piece.size), partial(_scaling, piece.size))(piece, number, piece)


def _scaling(size: int) -> Call:
    return calling("mul", Layout.dense((size,), float32), Layout.dense((1,), float32))

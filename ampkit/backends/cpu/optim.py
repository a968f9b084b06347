"""Bodies of the optimizers: the updates of Adam and SGD in fused steps of oneDNN, a piece of flat memory at a time, and
the norm of gradients.

On a CPU the flag of a step that is not real is looked at, where the reference, which must not wait for a device,
multiplies by it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...core.dtypes import float32
from ...flat import chunks, look, narrow
from ...optim.adam import adam_update
from ...optim.clip import power_sum
from ...optim.sgd import sgd_update
from .binary import PIECE, calling, two
from .dnnl import library
from .formats import FORMATS, reorder
from .gemm import column_sums
from .onednn import WORTH, Call, HostArray, Layout, empty, prepared


class _Steps(NamedTuple):
    """The steps of an update on a piece: what they read, and -> what they write."""

    mean: Call  # gradient, 1 - b1 -> mean
    square: Call  # gradient, gradient -> square
    root: Call  # square, 1 / (1 - b2^t) -> root + eps
    decay: Call  # master, 1 - lr weight_decay -> master
    move: Call  # mean, root, -lr / (1 - b1^t) -> master


def _steps(size: int, first: float, second: float, eps: float) -> _Steps:
    row, number = (Layout.dense((n,), float32) for n in (size, 1))

    return _Steps(
        calling("mul", row, number, ("sum", first)),
        calling("mul", row, row, ("linear", 1 - second, 0.0), ("sum", second)),
        calling("mul", row, number, ("sqrt", 0.0, 0.0), ("linear", 1.0, eps)),
        calling("mul", row, number),
        calling("div", row, row, ("mul", number), ("sum", 1.0)),
    )


def _fits(master: HostArray, *others: Any, eps: float, weight_decay: float, decoupled: bool, maximize: bool) -> bool:
    largest = others[3]
    plain = largest is None and not maximize and (decoupled or not weight_decay)
    return (
        plain
        and library() is not None
        and type(master) is np.ndarray
        and master.dtype == float32
        and master.size >= WORTH
    )


@adam_update.on("cpu", when=_fits)
def adam_update_cpu(
    master: HostArray, gradient: HostArray, mean: HostArray, square: HostArray, largest: None, steps: HostArray,
    lr: HostArray, betas: HostArray, go: HostArray | None, copies: list[HostArray], scratch: Any,
    *, eps: float, weight_decay: float, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    if go is not None and not look(go):
        _rewrite(master, copies)
        return
    first, second = betas.tolist()
    count, rate = int(look(steps)) + 1, float(look(lr))
    numbers = [1 - first, 1 / (1 - second**count), 1 - rate * weight_decay, -rate / (1 - first**count)]
    share, correction, shrink, step = (np.array([number], np.float32) for number in numbers)
    room = empty((min(PIECE, master.size),), float32)
    for start in range(0, master.size, PIECE):
        p, g, m, v = (array[start : start + PIECE] for array in (master, gradient, mean, square))
        root, size = room[: p.size], p.size
        do = prepared(("adam", size, first, second, eps), partial(_steps, size, first, second, eps))
        do.mean(g, share, m)
        do.square(g, g, v)
        do.root(v, correction, root)
        if weight_decay:
            do.decay(p, shrink, p)
        do.move(m, root, p, step)
        for copy in copies:
            narrow(p, copy[start : start + PIECE])


def _rewrite(master: HostArray, copies: list[HostArray]) -> None:
    # After any step the copies count as fresh, and one that was just made for a neighbour is not filled yet.
    for copy in copies:
        narrow(master, copy)


@narrow.on("cpu", when=lambda master, copy: library() is not None and {master.dtype, copy.dtype} <= FORMATS)
def narrow_cpu(master: HostArray, copy: HostArray) -> None:
    if not master.size or not reorder(master, copy):
        narrow.reference.run(master, copy)


# SGD


class _Moves(NamedTuple):
    """The steps of an update on a piece: what they read, and -> what they write."""

    decay: Call  # master, weight_decay, gradient -> slope
    hold: Call  # buffer, momentum -> buffer
    take: Call  # slope, 1 - dampening -> added to buffer
    ahead: Call  # buffer, momentum, slope -> room
    move: Call  # slope, buffer or room, -lr -> added to master


def _moves(size: int) -> _Moves:
    row, number = (Layout.dense((n,), float32) for n in (size, 1))

    by_number, more, plus = (calling("mul", row, number, *after) for after in ((), (("sum", 1.0),), (("add", row),)))
    return _Moves(plus, by_number, more, plus, more)


def _sgd_fits(master: HostArray, *others: Any, maximize: bool, **options: Any) -> bool:
    plain = type(master) is np.ndarray and master.dtype == float32 and not maximize
    return plain and master.size >= WORTH and library() is not None


@sgd_update.on("cpu", when=_sgd_fits)
def sgd_update_cpu(
    master: HostArray, gradient: HostArray, buffer: HostArray | None, steps: HostArray, lr: HostArray,
    momentum: HostArray, go: HostArray | None, copies: list[HostArray], scratch: Any,
    *, dampening: float, weight_decay: float, nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    if go is not None and not look(go):
        _rewrite(master, copies)
        return
    share = 1 if look(steps) == 0 else 1 - dampening  # the first gradient starts the buffer whole
    numbers = (weight_decay, float(look(momentum)), share, -float(look(lr)))
    penalty, push, take, step = (np.array([number], np.float32) for number in numbers)
    slope, room = (empty((min(PIECE, master.size),), float32) for _ in range(2))
    for start in range(0, master.size, PIECE):
        p, d = master[start : start + PIECE], gradient[start : start + PIECE]
        size = p.size
        do = prepared(("sgd", size), partial(_moves, size))
        if weight_decay:
            do.decay(p, penalty, slope[:size], d)
            d = slope[:size]
        if buffer is not None:
            m = buffer[start : start + PIECE]
            do.hold(m, push, m)
            do.take(d, take, m)
            if nesterov:
                do.ahead(m, push, room[:size], d)
            d = room[:size] if nesterov else m
        do.move(d, step, p)
        for copy in copies:
            narrow(p, copy[start : start + PIECE])


# norms

_COLUMNS = 512
_SMALLEST = 1e-24  # a sum of squares below: of numbers whose squares float32 does not hold


@power_sum.on("cpu", when=lambda values, order, scratch: order == 2 and library() is not None)
def power_sum_cpu(values: HostArray, order: float, scratch: HostArray) -> Any:
    # Not by `dot`: the threads of NumPy's BLAS would go on spinning, on the CPUs that oneDNN's want.
    if values.dtype == float32 and values.size >= WORTH:
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
    # In float32 over up to PIECE / _COLUMNS squares, in float64 over these sums.
    whole = values.size - values.size % _COLUMNS
    room, rest = empty((min(PIECE, whole),), float32), values[whole:].astype(np.float64)
    total = np.asarray((rest * rest).sum())
    for start in range(0, whole, PIECE):
        piece = values[start : min(start + PIECE, whole)]
        squares = room[: piece.size]
        two("mul", piece, piece, squares)
        sums: Any = column_sums(squares.reshape(-1, _COLUMNS), float32)
        total = total + sums.sum(dtype=np.float64)
    return total

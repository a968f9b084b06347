"""A recurrent layer over all steps of its sequences: what does not depend on the state in one product, then the walk.

Sequences lie packed: the first rows of all of them, then the second rows, and so on, the longest sequence first;
`sizes` says how many sequences have so many steps, and never grows. States have a row per sequence and are written in
place, step by step, so those of a sequence that ended stay as they are, and one that has not begun still has its first.
A walk against time begins with the shortest part. Backward is the same walk turned round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ampkit import backends
from ampkit.base.dtypes import DType, accumulator
from ampkit.core.autograd.saved import Saved

from .rnn_cell import (
    column_sums,
    gru_step,
    gru_step_backward,
    lstm_step,
    lstm_step_backward,
    matmul_by,
    matmul_into,
    rnn_step,
    rnn_step_backward,
    to_accumulator,
    write_rounded,
)

__all__: list[str] = []

Array = Any
Sizes = Sequence[int]


class RNNOperands(NamedTuple):
    """The tensors of a layer: rows [R, I], first states [N, P] and [N, H], weights as PyTorch lays them."""

    input: Array
    hx: Array | None
    cx: Array | None
    w_ih: Array
    w_hh: Array
    b_ih: Array | None
    b_hh: Array | None
    w_hr: Array | None

    @classmethod
    def of(cls, saved: Saved) -> RNNOperands:
        return cls(*(getattr(saved, name, None) for name in cls._fields))


def walk(sizes: Sizes, reverse: bool) -> list[tuple[slice, int]]:
    """Per step, in the order of the recurrence, its rows and how many they are."""
    found = [(slice(end - n, end), n) for end, n in zip(accumulate(sizes), sizes, strict=True)]
    return found[::-1] if reverse else found


def _empty(like: Array, rows: int, width: int, dtype: DType) -> Array:
    return backends.backend_of(like).empty((rows, width), dtype)


def _state(first: Array | None, like: Array, rows: int, width: int, dtype: DType) -> Array:
    # A state to write into: that of the caller stays as it is.
    if first is None:
        return backends.backend_of(like).zeros((rows, width), dtype)
    made = _empty(like, rows, width, dtype)
    write_rounded(first, made)
    return made


def _projected(g: RNNOperands, bias: Array | None) -> Array:
    """What the input gives to the gates, for all steps, in the accumulator."""
    gates = _empty(g.input, g.input.shape[0], g.w_ih.shape[0], accumulator(g.input.dtype))
    matmul_into(g.input, g.w_ih.T, gates, bias)
    return gates


def _biases(g: RNNOperands) -> Array | None:
    if g.b_ih is None or g.b_hh is None:
        both = g.b_hh if g.b_ih is None else g.b_ih
        return None if both is None else to_accumulator(both)
    return to_accumulator(g.b_ih) + to_accumulator(g.b_hh)


def _save(g: RNNOperands, **items: Array) -> Saved:
    return Saved(**g._asdict(), **items)


def _steps(g: RNNOperands, sizes: Sizes, reverse: bool) -> Iterator[tuple[slice, int, bool]]:
    # Also whether there is a product: none with first states of zero.
    for count, (at, n) in enumerate(walk(sizes, reverse)):
        yield at, n, count > 0 or g.hx is not None


# forward: each gives the rows out, the last states, and what the backward needs


def rnn_forward(g: RNNOperands, sizes: Sizes, reverse: bool, relu: bool) -> Any:
    """tanh or ReLU of what input and state give. -> out, h_n, saved."""
    dtype, width = g.input.dtype, g.w_hh.shape[1]
    gates = _projected(g, _biases(g))
    hidden = _state(g.hx, gates, sizes[0], width, dtype)
    rounded = None if dtype == gates.dtype else _empty(gates, len(gates), width, dtype)
    recur = matmul_by(g.w_hh.T, sizes[0])
    for at, n, worth in _steps(g, sizes, reverse):
        if worth:
            recur(hidden[:n], gates[at], None, True)
        rnn_step(gates[at], hidden[:n], None if rounded is None else rounded[at], relu)
    out = gates if rounded is None else rounded
    return out, hidden, _save(g, out=out, gates=gates)


def lstm_forward(g: RNNOperands, sizes: Sizes, reverse: bool) -> Any:
    """-> out, h_n, c_n, saved."""
    gates = _projected(g, _biases(g))
    dtype, wide, (width, rows) = g.input.dtype, gates.dtype, (g.w_hh.shape[0] // 4, len(gates))
    hidden = _state(g.hx, gates, sizes[0], g.w_hh.shape[1], dtype)
    cell = _state(g.cx, gates, sizes[0], width, wide)
    before, out = _empty(gates, rows, width, wide), _empty(gates, rows, g.w_hh.shape[1], dtype)
    mixed = None if g.w_hr is None else _empty(gates, rows, width, dtype)
    recur = matmul_by(g.w_hh.T, sizes[0])
    for at, n, worth in _steps(g, sizes, reverse):
        if worth:
            recur(hidden[:n], gates[at], None, True)
        if mixed is None:
            lstm_step(gates[at], cell[:n], before[at], hidden[:n], out[at])
        else:
            lstm_step(gates[at], cell[:n], before[at], None, mixed[at])
            matmul_into(mixed[at], g.w_hr.T, out[at])  # type: ignore[union-attr]
            hidden[:n] = out[at]
    return out, hidden, cell, _save(g, out=out, gates=gates, before=before, mixed=mixed)


def gru_forward(g: RNNOperands, sizes: Sizes, reverse: bool) -> Any:
    """-> out, h_n, saved."""
    gates = _projected(g, None if g.b_ih is None else to_accumulator(g.b_ih))
    dtype, wide, (width, rows) = g.input.dtype, gates.dtype, (g.w_hh.shape[1], len(gates))
    state = _state(g.hx, gates, sizes[0], width, wide)
    hidden = state if dtype == wide else _state(g.hx, gates, sizes[0], width, dtype)
    inner, bias = _empty(gates, sizes[0], 3 * width, wide), None if g.b_hh is None else to_accumulator(g.b_hh)
    kept, out = _empty(gates, rows, width, wide), _empty(gates, rows, width, dtype)
    recur = matmul_by(g.w_hh.T, sizes[0])
    for at, n in walk(sizes, reverse):
        recur(hidden[:n], inner[:n], bias)
        gru_step(gates[at], inner[:n], state[:n], kept[at], None if hidden is state else hidden[:n], out[at])
    return out, state, _save(g, out=out, gates=gates, kept=kept)


# backward: gradients in the order of RNNOperands


def _dense(dy: Array, *others: Array) -> tuple[Array, ...]:
    # The slopes of rows side by side, as kernels read them.
    return dy if dy.flags.c_contiguous else dy.copy(), *others


def rnn_backward(dys: Any, saved: Saved, needs: Any, sizes: Sizes, reverse: bool, relu: bool) -> Any:
    g, (dy, dh) = RNNOperands.of(saved), _dense(*dys)
    dh = _state(dh, dy, *dh.shape, accumulator(dy.dtype))
    slopes = _empty(dy, *saved.gates.shape, g.w_hh.dtype)
    recur = matmul_by(g.w_hh, sizes[0])
    for at, n in reversed(walk(sizes, reverse)):
        rnn_step_backward(saved.gates[at], dy[at], dh[:n], slopes[at], relu)
        recur(slopes[at], dh[:n])
    return _gradients(g, needs, slopes, slopes, saved.out, sizes, reverse, dh)


def lstm_backward(dys: Any, saved: Saved, needs: Any, sizes: Sizes, reverse: bool) -> Any:
    g, (dy, dh, dc) = RNNOperands.of(saved), _dense(*dys)
    wide = saved.gates.dtype
    dh, dc = (_state(d, dy, *d.shape, wide) for d in (dh, dc))
    slopes = _empty(dy, *saved.gates.shape, g.w_hh.dtype)
    recur = matmul_by(g.w_hh, sizes[0])
    shorter = None if g.w_hr is None else _Shorter(g, to_accumulator(dy), dc.shape)
    for at, n in reversed(walk(sizes, reverse)):
        given = (dy[at], dh[:n]) if shorter is None else (None, shorter.back(at, n, dh))
        lstm_step_backward(saved.gates[at], saved.before[at], *given, dc[:n], slopes[at])
        recur(slopes[at], dh[:n])
    found = _gradients(g, needs, slopes, slopes, saved.out, sizes, reverse, dh, dc)
    return *found, _product(shorter.rows.T, saved.mixed, needs[7]) if shorter is not None else None


class _Shorter:
    """Backward through the projection of an LSTM's output: rows, the slopes of what it gave, are kept for its own."""

    def __init__(self, g: RNNOperands, dy: Array, shape: tuple[int, int]):
        self.weight, self.dy = g.w_hr, dy
        self.rows = _empty(dy, *dy.shape, g.w_hh.dtype)
        self.longer = _empty(dy, *shape, dy.dtype)

    def back(self, at: slice, n: int, dh: Array) -> Array:
        write_rounded(dh[:n] + self.dy[at], self.rows[at])
        matmul_into(self.rows[at], self.weight, self.longer[:n])
        return self.longer[:n]


def gru_backward(dys: Any, saved: Saved, needs: Any, sizes: Sizes, reverse: bool) -> Any:
    g, (dy, dh) = RNNOperands.of(saved), _dense(*dys)
    dh = _state(dh, dy, *dh.shape, saved.gates.dtype)
    to_x, to_h = (_empty(dy, *saved.gates.shape, g.w_hh.dtype) for _ in range(2))
    previous = _previous(saved.out, g.hx, sizes, reverse)
    recur = matmul_by(g.w_hh, sizes[0])
    for at, n in reversed(walk(sizes, reverse)):
        gru_step_backward(saved.gates[at], saved.kept[at], previous[at], dy[at], dh[:n], to_x[at], to_h[at])
        recur(to_h[at], dh[:n], None, True)
    return _gradients(g, needs, to_x, to_h, previous, sizes, reverse, dh, is_previous=True)


def _gradients(
    g: RNNOperands, needs: Any, to_x: Array, to_h: Array, out: Array, sizes: Sizes, reverse: bool, *states: Array,
    is_previous: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    # Of all but w_hr: one product each over all steps.
    dx, dw_ih = _product(to_x, g.w_ih, needs[0]), _product(to_x.T, g.input, needs[3])
    dw_hh = None
    if needs[4] is not None:
        previous = out if is_previous else _previous(out, g.hx, sizes, reverse)
        dw_hh = _product(to_h.T, previous, needs[4])
    db = [None if need is None else column_sums(rows) for rows, need in zip((to_x, to_h), needs[5:7], strict=True)]
    dh, dc = (*states, None)[:2]
    return dx, dh, dc, dw_ih, dw_hh, *db


def _product(a: Array, b: Array, need: DType | None) -> Array | None:
    if need is None:
        return None
    wide = a.dtype == accumulator(a.dtype)
    out = _empty(a, a.shape[0], b.shape[1], a.dtype if wide else need)
    matmul_into(a, b, out)
    return out


def _previous(out: Array, hx: Array | None, sizes: Sizes, reverse: bool) -> Array:
    """The state that each row began with."""
    made, steps = _empty(out, *out.shape, out.dtype), walk(sizes, reverse)
    rows, n = steps[0]
    made[rows] = 0 if hx is None else hx[:n]
    if sizes[0] == sizes[-1]:
        now, last = (slice(None, -n), slice(n, None)) if reverse else (slice(n, None), slice(None, -n))
        made[now] = out[last]
        return made
    for (last, m), (at, n) in pairwise(steps):
        both = at.start + min(m, n)
        made[at.start : both] = out[last.start : last.start + min(m, n)]
        if n > m:
            made[both : at.stop] = 0 if hx is None else hx[m:n]
    return made

"""A recurrent layer over all steps of its sequences: one product with the input, then a loop over time.

Sequences are packed time-major, as in PackedSequence: the first rows of all of them, then the second rows, the longest
sequence first. `sizes` is the number of sequences at each step and never grows. States have a row per sequence and are
updated in place step by step: the rows of a sequence that ended stay, those of one that has not begun are its initial
state. Reverse time begins with the fewest sequences. The backward loops over the same steps in reverse order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ampkit import backends
from ampkit.base.dtypes import Array, DType, accumulator
from ampkit.core.autograd.saved import Saved
from ampkit.core.casts import cast, to_accumulator

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
    write_rounded,
)

Sizes = Sequence[int]


class RNNOperands(NamedTuple):
    """The tensors of a layer: packed rows [R, I], initial states [N, P] and [N, H], weights in PyTorch's layout."""

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


def steps_of(sizes: Sizes, reverse: bool) -> list[tuple[slice, int]]:
    """(packed rows, their number) of each step, in the order of the recurrence."""
    found = [(slice(end - n, end), n) for end, n in zip(accumulate(sizes), sizes, strict=True)]
    return found[::-1] if reverse else found


def _empty(like: Array, rows: int, width: int, dtype: DType) -> Array:
    return backends.backend_of(like).empty((rows, width), dtype)


def _state(first: Array | None, like: Array, rows: int, width: int, dtype: DType) -> Array:
    # A copy of the initial state to update in place; zeros if it is None.
    if first is None:
        return backends.backend_of(like).zeros((rows, width), dtype)
    state = _empty(like, rows, width, dtype)
    write_rounded(first, state)
    return state


def _input_gates(operands: RNNOperands, bias: Array | None) -> Array:
    """The product of the input with w_ih for all steps, plus bias, in the accumulator dtype."""
    gates = _empty(operands.input, operands.input.shape[0], operands.w_ih.shape[0], accumulator(operands.input.dtype))
    matmul_into(operands.input, operands.w_ih.T, gates, bias)
    return gates


def _biases(operands: RNNOperands) -> Array | None:
    if operands.b_ih is None or operands.b_hh is None:
        both = operands.b_hh if operands.b_ih is None else operands.b_ih
        return None if both is None else to_accumulator(both)
    return to_accumulator(operands.b_ih) + to_accumulator(operands.b_hh)


def _save(operands: RNNOperands, **items: Array) -> Saved:
    return Saved(**operands._asdict(), **items)


def _steps(operands: RNNOperands, sizes: Sizes, reverse: bool) -> Iterator[tuple[slice, int, bool]]:
    # (rows, their number, whether to multiply the state): initial states of zero need no product.
    for count, (at, n) in enumerate(steps_of(sizes, reverse)):
        yield at, n, count > 0 or operands.hx is not None


# forward: (output rows [R, P], final states, Saved)


def rnn_forward(operands: RNNOperands, sizes: Sizes, reverse: bool, relu: bool) -> Any:
    """tanh or ReLU cells: (out, h_n, Saved)."""
    dtype, width = operands.input.dtype, operands.w_hh.shape[1]
    gates = _input_gates(operands, _biases(operands))
    hidden = _state(operands.hx, gates, sizes[0], width, dtype)
    rounded = None if dtype == gates.dtype else _empty(gates, len(gates), width, dtype)
    multiply_state = matmul_by(operands.w_hh.T, sizes[0])
    for at, n, has_state in _steps(operands, sizes, reverse):
        if has_state:
            multiply_state(hidden[:n], gates[at], None, True)
        rnn_step(gates[at], hidden[:n], None if rounded is None else rounded[at], relu)
    out = gates if rounded is None else rounded
    return out, hidden, _save(operands, out=out, gates=gates)


def lstm_forward(operands: RNNOperands, sizes: Sizes, reverse: bool) -> Any:
    """LSTM cells: (out, h_n, c_n, Saved)."""
    gates = _input_gates(operands, _biases(operands))
    dtype, wide, (width, rows) = operands.input.dtype, gates.dtype, (operands.w_hh.shape[0] // 4, len(gates))
    hidden = _state(operands.hx, gates, sizes[0], operands.w_hh.shape[1], dtype)
    cell = _state(operands.cx, gates, sizes[0], width, wide)
    previous_cell, out = _empty(gates, rows, width, wide), _empty(gates, rows, operands.w_hh.shape[1], dtype)
    unprojected = None if operands.w_hr is None else _empty(gates, rows, width, dtype)
    multiply_state = matmul_by(operands.w_hh.T, sizes[0])
    for at, n, has_state in _steps(operands, sizes, reverse):
        if has_state:
            multiply_state(hidden[:n], gates[at], None, True)
        if unprojected is None:
            lstm_step(gates[at], cell[:n], previous_cell[at], hidden[:n], out[at])
        else:
            lstm_step(gates[at], cell[:n], previous_cell[at], None, unprojected[at])
            matmul_into(unprojected[at], operands.w_hr.T, out[at])  # type: ignore[union-attr]  # unprojected means w_hr
            hidden[:n] = out[at]
    saved = _save(operands, out=out, gates=gates, previous_cell=previous_cell, unprojected=unprojected)
    return out, hidden, cell, saved


def gru_forward(operands: RNNOperands, sizes: Sizes, reverse: bool) -> Any:
    """GRU cells: (out, h_n, Saved)."""
    gates = _input_gates(operands, None if operands.b_ih is None else to_accumulator(operands.b_ih))
    dtype, wide, (width, rows) = operands.input.dtype, gates.dtype, (operands.w_hh.shape[1], len(gates))
    state = _state(operands.hx, gates, sizes[0], width, wide)
    hidden = state if dtype == wide else _state(operands.hx, gates, sizes[0], width, dtype)
    hidden_gates = _empty(gates, sizes[0], 3 * width, wide)
    bias = None if operands.b_hh is None else to_accumulator(operands.b_hh)
    hidden_n, out = _empty(gates, rows, width, wide), _empty(gates, rows, width, dtype)
    multiply_state = matmul_by(operands.w_hh.T, sizes[0])
    for at, n in steps_of(sizes, reverse):
        multiply_state(hidden[:n], hidden_gates[:n], bias)
        gru_step(gates[at], hidden_gates[:n], state[:n], hidden_n[at], None if hidden is state else hidden[:n], out[at])
    return out, state, _save(operands, out=out, gates=gates, hidden_n=hidden_n)


# backward: gradients in the order of RNNOperands; the weights' in one product over all steps


def _contiguous(dy: Array, *others: Array) -> tuple[Array, ...]:
    # Kernels read dy row by row.
    return dy if dy.flags.c_contiguous else dy.copy(), *others


def rnn_backward(dys: Any, saved: Saved, needs: Any, sizes: Sizes, reverse: bool, relu: bool) -> Any:
    operands, (dy, dh) = RNNOperands.of(saved), _contiguous(*dys)
    dh = _state(dh, dy, len(dh), dh.shape[1], accumulator(dy.dtype))
    dgates = _empty(dy, len(saved.gates), saved.gates.shape[1], operands.w_hh.dtype)
    multiply_weight = matmul_by(operands.w_hh, sizes[0])
    for at, n in reversed(steps_of(sizes, reverse)):
        rnn_step_backward(saved.gates[at], dy[at], dh[:n], dgates[at], relu)
        multiply_weight(dgates[at], dh[:n])
    return _gradients(saved, needs, dgates, dgates, saved.out, sizes, reverse, dh)


def lstm_backward(dys: Any, saved: Saved, needs: Any, sizes: Sizes, reverse: bool) -> Any:
    operands, (dy, dh, dc) = RNNOperands.of(saved), _contiguous(*dys)
    wide = saved.gates.dtype
    dh, dc = (_state(d, dy, len(d), d.shape[1], wide) for d in (dh, dc))
    dgates = _empty(dy, len(saved.gates), saved.gates.shape[1], operands.w_hh.dtype)
    multiply_weight = matmul_by(operands.w_hh, sizes[0])
    projection = None if operands.w_hr is None else _ProjectionBackward(operands, to_accumulator(dy), dc.shape)
    for at, n in reversed(steps_of(sizes, reverse)):
        dy_dh = (dy[at], dh[:n]) if projection is None else (None, projection.step(at, n, dh))
        lstm_step_backward(saved.gates[at], saved.previous_cell[at], *dy_dh, dc[:n], dgates[at])
        multiply_weight(dgates[at], dh[:n])
    found = _gradients(saved, needs, dgates, dgates, saved.out, sizes, reverse, dh, dc)
    return *found, None if projection is None else _of_weight(saved, projection.rows, saved.unprojected, needs[7])


class _ProjectionBackward:
    """Backward through the output projection w_hr of an LSTM; `rows`, the gradients of its outputs, give w_hr's own."""

    def __init__(self, operands: RNNOperands, dy: Array, cell_shape: tuple[int, int]):
        self.weight, self.dy = operands.w_hr, dy
        self.rows = _empty(dy, len(dy), dy.shape[1], operands.w_hh.dtype)
        self.dhidden = _empty(dy, *cell_shape, dy.dtype)

    def step(self, at: slice, n: int, dh: Array) -> Array:
        """The gradient [n, H] of o tanh(c) at one step."""
        write_rounded(dh[:n] + self.dy[at], self.rows[at])
        matmul_into(self.rows[at], self.weight, self.dhidden[:n])
        return self.dhidden[:n]


def gru_backward(dys: Any, saved: Saved, needs: Any, sizes: Sizes, reverse: bool) -> Any:
    operands, (dy, dh) = RNNOperands.of(saved), _contiguous(*dys)
    dh = _state(dh, dy, len(dh), dh.shape[1], saved.gates.dtype)
    dx_gates, dh_gates = (_empty(dy, len(saved.gates), saved.gates.shape[1], operands.w_hh.dtype) for _ in range(2))
    previous = _previous(saved.out, operands.hx, sizes, reverse)
    multiply_weight = matmul_by(operands.w_hh, sizes[0])
    for at, n in reversed(steps_of(sizes, reverse)):
        states = saved.gates[at], saved.hidden_n[at], previous[at]
        gru_step_backward(*states, dy[at], dh[:n], dx_gates[at], dh_gates[at])
        multiply_weight(dh_gates[at], dh[:n], None, True)
    return _gradients(saved, needs, dx_gates, dh_gates, previous, sizes, reverse, dh, is_previous=True)


def _gradients(
    saved: Saved, needs: Any, dx_gates: Array, dh_gates: Array, out: Array, sizes: Sizes, reverse: bool,
    *states: Array, is_previous: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    # Of all operands but w_hr.
    operands = RNNOperands.of(saved)
    dx, dw_ih = _product(dx_gates, operands.w_ih, needs[0]), _of_weight(saved, dx_gates, operands.input, needs[3])
    dw_hh = None
    if needs[4] is not None:
        previous = out if is_previous else _previous(out, operands.hx, sizes, reverse)
        dw_hh = _of_weight(saved, dh_gates, previous, needs[4])
    db = [None if n is None else _of_bias(saved, g) for g, n in zip((dx_gates, dh_gates), needs[5:7], strict=True)]
    dh, dc = (*states, None)[:2]
    return dx, dh, dc, dw_ih, dw_hh, *db


def _product(a: Array, b: Array, need: DType | None) -> Array | None:
    if need is None:
        return None
    wide = a.dtype == accumulator(a.dtype)
    out = _empty(a, a.shape[0], b.shape[1], a.dtype if wide else need)
    matmul_into(a, b, out)
    return out


def _of_weight(saved: Saved, rows: Array, values: Array, need: DType | None) -> Array | None:
    # rows^T values; under `vmap`, where the rows of `saved.samples` samples take turns, one product for each of them.
    samples = getattr(saved, "samples", None)
    if samples is None or need is None:
        return _product(rows.T, values, need)
    a, b = (to_accumulator(x).reshape(-1, samples, x.shape[1]) for x in (rows, values))
    return cast(a.transpose(1, 2, 0).copy() @ b.swapaxes(0, 1).copy(), need)


def _of_bias(saved: Saved, rows: Array) -> Array:
    samples = getattr(saved, "samples", None)
    if samples is None:
        return column_sums(rows)
    return column_sums(rows.reshape(-1, samples * rows.shape[1])).reshape(samples, rows.shape[1])


def _previous(out: Array, hx: Array | None, sizes: Sizes, reverse: bool) -> Array:
    """[R, P]: the state before the step of each packed row."""
    previous, steps = _empty(out, len(out), out.shape[1], out.dtype), steps_of(sizes, reverse)
    rows, n = steps[0]
    previous[rows] = 0 if hx is None else hx[:n]
    if sizes[0] == sizes[-1]:
        now, last = (slice(None, -n), slice(n, None)) if reverse else (slice(n, None), slice(None, -n))
        previous[now] = out[last]
        return previous
    for (last, m), (at, n) in pairwise(steps):
        end = at.start + min(m, n)
        previous[at.start : end] = out[last.start : last.start + min(m, n)]
        if n > m:
            previous[end : at.stop] = 0 if hx is None else hx[m:n]
    return previous

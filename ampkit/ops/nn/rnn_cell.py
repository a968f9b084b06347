"""What recurrent layers are made of: one step of a cell, forward and backward, and the product it needs.

Each writes into arrays that it is given, a row per sequence: a layer makes its arrays once for all steps. Gates and
states are in the accumulator; `hidden`, `out` and the slopes in the format of the layer, for the next product to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.dispatch import Primitive

__all__: list[str] = []

Array = Any


def write_rounded(array: Array, *outs: Array | None) -> None:
    """Write `array`, rounded once, to `outs`, of one format; None takes nothing."""
    found = [out for out in outs if out is not None]
    rounded = cast_like(array, found[0])
    for out in found:
        out[...] = rounded


def cast_like(array: Array, like: Array) -> Array:
    """`array` in the format of `like`."""
    return array if array.dtype == like.dtype else backends.backend_of(array).cast(array, like.dtype)


def to_accumulator(array: Array) -> Array:
    """`array` in its accumulator."""
    wide = accumulator(array.dtype)
    return array if array.dtype == wide else backends.backend_of(array).cast(array, wide)


# products


def _multiply(a: Array, b: Array, out: Array, bias: Array | None = None, more: bool = False) -> None:
    found = to_accumulator(a) @ to_accumulator(b)
    if bias is not None:
        found += bias
    if more:
        out += cast_like(found, out)
    else:
        write_rounded(found, out)


# (a [M, K], b [K, N], out [M, N], bias [N] like out or None, more): out = a @ b + bias, or with `more` out += a @ b.
matmul_into = Primitive("matmul_into", "nn.rnn", _multiply)


def _by_weight(weight: Array, rows: int) -> Callable[..., None]:
    def times(a: Array, out: Array, bias: Array | None = None, more: bool = False) -> None:
        matmul_into(a, weight, out, bias, more)

    return times


# (weight [K, N], rows): what multiplies matrices of up to so many rows by it, step after step: (a, out, bias, more), as
# `matmul_into`; they lie row after row.
matmul_by = Primitive("matmul_by", "nn.rnn", _by_weight)


def _column_sums(rows: Array) -> Array:
    return blocked_sum(to_accumulator(rows), 0)


column_sums = Primitive("column_sums", "nn.rnn", _column_sums)  # [M, N] -> [N], in the accumulator


# gates


def _sigmoid(x: Array) -> None:
    # In place; exp(-x) may be infinite, which gives 0.
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1
    np.divide(1, x, out=x)


def parts(gates: Array, count: int) -> list[Array]:
    """[n, count H] as `count` views [n, H]."""
    width = gates.shape[1] // count
    return [gates[:, i * width : (i + 1) * width] for i in range(count)]


# tanh or ReLU: Elman 1990


def _rnn_step(gates: Array, hidden: Array, out: Array | None, relu: bool) -> None:
    np.maximum(gates, 0, out=gates) if relu else np.tanh(gates, out=gates)
    write_rounded(gates, hidden, out)


def _rnn_step_backward(gates: Array, dy: Array, dh: Array, slopes: Array, relu: bool) -> None:
    d = dh + to_accumulator(dy)
    write_rounded(d * (gates > 0) if relu else d * (1 - gates * gates), slopes)


# (gates [n, H]: what the products left, then the state; hidden and out, or None: written with it, relu)
rnn_step = Primitive("rnn_step", "nn.rnn", _rnn_step)
# (gates as above, dy, dh [n, H], slopes [n, H]: written, relu)
rnn_step_backward = Primitive("rnn_step_backward", "nn.rnn", _rnn_step_backward)


# LSTM: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000


def _lstm_step(gates: Array, cell: Array, before: Array, hidden: Array | None, out: Array) -> None:
    i, f, g, o = parts(gates, 4)
    new = np.tanh(g)
    _sigmoid(gates)  # of all, and once too many: whole rows take less time than parts of them
    g[...] = new
    before[...] = cell
    cell *= f
    cell += i * g
    write_rounded(o * np.tanh(cell), hidden, out)


def _lstm_step_backward(gates: Array, before: Array, dy: Array | None, dh: Array, dc: Array, slopes: Array) -> None:
    i, f, g, o = parts(gates, 4)
    high = np.tanh(f * before + i * g)
    d = dh if dy is None else dh + to_accumulator(dy)
    dc += d * o * (1 - high * high)
    bends = 1 - gates
    bends *= gates
    parts(bends, 4)[2][...] = 1 - g * g
    to = slopes if slopes.dtype == gates.dtype else np.empty_like(gates)
    for part, one, other in zip(parts(to, 4), (dc, dc, dc, d), (g, before, i, high), strict=True):
        np.multiply(one, other, out=part)
    to *= bends
    dc *= f
    if to is not slopes:
        write_rounded(to, slopes)


# (gates [n, 4 H]: what the products left, then the gates i, f, g, o; cell [n, H]: the state, before and after; before,
# hidden or None, out [n, H]: written)
lstm_step = Primitive("lstm_step", "nn.rnn", _lstm_step)
# (gates, before as above, dy or None, dh, dc [n, H]: of the cell after, then before; slopes [n, 4 H]: written)
lstm_step_backward = Primitive("lstm_step_backward", "nn.rnn", _lstm_step_backward)


# GRU: Cho et al. 2014, with the reset gate after the product


def _gru_step(gates: Array, inner: Array, state: Array, kept: Array, hidden: Array | None, out: Array) -> None:
    r, z, n = parts(gates, 3)
    two = 2 * r.shape[1]
    both = gates[:, :two] + inner[:, :two]  # new memory: whole rows take less time than parts of them
    _sigmoid(both)
    gates[:, :two] = both
    kept[...] = inner[:, two:]
    n += r * kept
    np.tanh(n, out=n)
    state -= n
    state *= z
    state += n
    write_rounded(state, hidden, out)


def _gru_step_backward(
    gates: Array, kept: Array, previous: Array, dy: Array, dh: Array, to_x: Array, to_h: Array
) -> None:
    r, z, n = parts(gates, 3)
    dr, dz, dn = parts(to_x, 3)
    dh += to_accumulator(dy)
    d = dh * (1 - z) * (1 - n * n)
    write_rounded(d, dn)
    write_rounded(d * kept * r * (1 - r), dr)
    write_rounded(dh * (to_accumulator(previous) - n) * z * (1 - z), dz)
    both = 2 * r.shape[1]
    to_h[:, :both] = to_x[:, :both]
    write_rounded(d * r, to_h[:, both:])
    dh *= z


# (gates [n, 3 H]: the input's share, then the gates r, z, n; inner [n, 3 H]: the state's share; state [n, H]: before,
# then after; kept [n, H]: the last third of inner; hidden or None, out [n, H]: written)
gru_step = Primitive("gru_step", "nn.rnn", _gru_step)
# (gates, kept as above, previous: the state before, dy [n, H], dh [n, H]: of the state after, then what does not go
# through the products; to_x, to_h [n, 3 H]: the slopes of the two shares, written)
gru_step_backward = Primitive("gru_step_backward", "nn.rnn", _gru_step_backward)

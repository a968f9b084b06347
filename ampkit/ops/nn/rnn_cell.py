"""One step of a recurrent cell, forward and backward, and its matrix products, as primitives that write in place.

A layer allocates the arrays once for all steps; each has a row per sequence. Gates and states have the accumulator
dtype; `hidden`, `out` and the gradients of the gates have the dtype of the layer, in which the next product reads them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ampkit.base.dtypes import Array
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.casts import cast, to_accumulator
from ampkit.core.dispatch import primitive


def write_rounded(array: Array, *outs: Array | None) -> None:
    """Write `array`, rounded once, to each of `outs` that is not None; they have one dtype."""
    found = [out for out in outs if out is not None]
    rounded = cast(array, found[0].dtype)
    for out in found:
        out[...] = rounded


@primitive("nn.rnn")
def matmul_into(a: Array, b: Array, out: Array, bias: Array | None = None, accumulate: bool = False) -> None:
    """out = a @ b + bias, or with `accumulate` out += a @ b.

    a [M, K], b [K, N], out [M, N], bias [N] in out's dtype.
    """
    product = to_accumulator(a) @ to_accumulator(b)
    if bias is not None:
        product += bias
    if accumulate:
        out += cast(product, out.dtype)
    else:
        write_rounded(product, out)


@primitive("nn.rnn")
def matmul_by(weight: Array, rows: int) -> Callable[..., None]:
    """`matmul_into` with this weight [K, N] as a function (a, out, bias, accumulate).

    For contiguous a of at most `rows` rows. It is called at every step; a kernel packs the weight once.
    """

    def times(a: Array, out: Array, bias: Array | None = None, accumulate: bool = False) -> None:
        matmul_into(a, weight, out, bias, accumulate)

    return times


@primitive("nn.rnn")
def column_sums(rows: Array) -> Array:
    """[M, N] -> [N], in the accumulator dtype."""
    return blocked_sum(to_accumulator(rows), 0)


def _sigmoid(x: Array) -> None:
    # In place; where exp(-x) overflows, the result is 0.
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1
    np.divide(1, x, out=x)


def split_gates(gates: Array, count: int) -> list[Array]:
    """[n, count H] as `count` views [n, H]."""
    width = gates.shape[1] // count
    return [gates[:, i * width : (i + 1) * width] for i in range(count)]


# tanh or ReLU: Elman 1990


@primitive("nn.rnn")
def rnn_step(gates: Array, hidden: Array, out: Array | None, relu: bool) -> None:
    """gates [n, H]: in, the pre-activation; out, the state. hidden, out: written, the rounded state."""
    np.maximum(gates, 0, out=gates) if relu else np.tanh(gates, out=gates)
    write_rounded(gates, hidden, out)


@primitive("nn.rnn")
def rnn_step_backward(state: Array, dy: Array, dh: Array, dgates: Array, relu: bool) -> None:
    """state: gates as `rnn_step` left them; dy, dh [n, H]; dgates [n, H]: written."""
    dstate = dh + to_accumulator(dy)
    write_rounded(dstate * (state > 0) if relu else dstate * (1 - state * state), dgates)


# LSTM: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000


@primitive("nn.rnn")
def lstm_step(gates: Array, cell: Array, previous_cell: Array, hidden: Array | None, out: Array) -> None:
    """gates [n, 4 H]: in, the pre-activations; out, the gates i, f, g, o. cell [n, H]: updated in place.

    previous_cell, hidden, out [n, H]: written.
    """
    i, f, g, o = split_gates(gates, 4)
    new = np.tanh(g)
    _sigmoid(gates)  # of all four, although g is replaced: whole rows are faster than parts of them
    g[...] = new
    previous_cell[...] = cell
    cell *= f
    cell += i * g
    write_rounded(o * np.tanh(cell), hidden, out)


@primitive("nn.rnn")
def lstm_step_backward(
    gates: Array, previous_cell: Array, dy: Array | None, dh: Array, dc: Array, dgates: Array
) -> None:
    """gates, previous_cell as `lstm_step` left them; dy, dh [n, H]; dgates [n, 4 H]: written.

    dc [n, H]: in, of the new cell state; out, of the previous one.
    """
    i, f, g, o = split_gates(gates, 4)
    tanh_cell = np.tanh(f * previous_cell + i * g)
    dhidden = dh if dy is None else dh + to_accumulator(dy)
    dc += dhidden * o * (1 - tanh_cell * tanh_cell)
    derivative = 1 - gates  # of sigmoid: s (1 - s); of tanh: 1 - g^2
    derivative *= gates
    split_gates(derivative, 4)[2][...] = 1 - g * g
    wide = dgates if dgates.dtype == gates.dtype else np.empty_like(gates)
    factors = (dc, g), (dc, previous_cell), (dc, i), (dhidden, tanh_cell)
    for part, (a, b) in zip(split_gates(wide, 4), factors, strict=True):
        np.multiply(a, b, out=part)
    wide *= derivative
    dc *= f
    if wide is not dgates:
        write_rounded(wide, dgates)


# GRU: Cho et al. 2014, with the reset gate after the product


@primitive("nn.rnn")
def gru_step(
    gates: Array, hidden_gates: Array, state: Array, hidden_n: Array, hidden: Array | None, out: Array
) -> None:
    """gates [n, 3 H]: in, the products with the input; out, the gates r, z, n.

    hidden_gates [n, 3 H]: the products with the state. state [n, H]: updated in place. hidden_n [n, H]: written, the
    last third of hidden_gates. hidden, out [n, H]: written, the rounded state.
    """
    r, z, n = split_gates(gates, 3)
    two = 2 * r.shape[1]
    rz = gates[:, :two] + hidden_gates[:, :two]  # a copy: whole rows are faster than parts of them
    _sigmoid(rz)
    gates[:, :two] = rz
    hidden_n[...] = hidden_gates[:, two:]
    n += r * hidden_n
    np.tanh(n, out=n)
    state -= n
    state *= z
    state += n
    write_rounded(state, hidden, out)


@primitive("nn.rnn")
def gru_step_backward(
    gates: Array, hidden_n: Array, previous: Array, dy: Array, dh: Array, dx_gates: Array, dh_gates: Array
) -> None:
    """gates, hidden_n as `gru_step` left them; previous [n, H]: the state before the step; dy [n, H].

    dh [n, H]: in, of the new state; out, of the previous one without what the products pass on. dx_gates, dh_gates
    [n, 3 H]: written.
    """
    r, z, n = split_gates(gates, 3)
    dr, dz, dn = split_gates(dx_gates, 3)
    dh += to_accumulator(dy)
    dn_wide = dh * (1 - z) * (1 - n * n)
    write_rounded(dn_wide, dn)
    write_rounded(dn_wide * hidden_n * r * (1 - r), dr)
    write_rounded(dh * (to_accumulator(previous) - n) * z * (1 - z), dz)
    two = 2 * r.shape[1]
    dh_gates[:, :two] = dx_gates[:, :two]
    write_rounded(dn_wide * r, dh_gates[:, two:])
    dh *= z

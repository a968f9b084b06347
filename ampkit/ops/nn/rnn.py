"""Recurrent cells and layers: Elman, LSTM and GRU.

A layer op runs one layer in one direction over whole sequences (see rnn_loop.py): one product with the input for all
steps, a loop over time, and in the backward one product for the gradient of each weight. A cell is a sequence of one
step. Gates, the LSTM's cell state and the GRU's state are float32 (float64 for float64) at all steps; between 16-bit
tensors the product with the state reads it rounded to 16 bits, as it is output.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core.op import Array, Op, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..named import named
from ..pointwise.conversion import to
from .rnn_double_backward import gru_unrolled, is_traced, lstm_unrolled, rnn_unrolled
from .rnn_loop import RNNOperands, gru_backward, gru_forward, lstm_backward, lstm_forward, rnn_backward, rnn_forward

__all__ = ["gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"]


def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """tanh(input w_ih^T + b_ih + hx w_hh^T + b_hh): input [N, I], hx [N, H], w_ih [H, I], w_hh [H, H] -> [N, H].

    Sums in float32, rounded once. Raises ShapeError for shapes that do not fit. Elman 1990, Cognitive Science 14.
    """
    return rnn_tanh_cell_(input, hx, w_ih, w_hh, b_ih, b_hh)[0]


def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """`rnn_tanh_cell` with ReLU for tanh."""
    return rnn_relu_cell_(input, hx, w_ih, w_hh, b_ih, b_hh)[0]


def lstm_cell(
    input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM: input [N, I], hx (h [N, H], c [N, H]), w_ih [4 H, I], w_hh [4 H, H] -> (h, c).

    Gates i, f, g, o, in this order, of input w_ih^T + b_ih + h w_hh^T + b_hh; c' = f c + i g, h' = o tanh(c'), in
    float32; both are rounded once. Raises ShapeError for shapes that do not fit, DTypeError unless hx is two Tensors.
    Hochreiter and Schmidhuber 1997, Neural Computation 9; Gers et al. 2000, Neural Computation 12.
    """
    pair = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    if len(pair) != 2 or not all(isinstance(state, Tensor) for state in pair):
        raise DTypeError("lstm_cell", "hx as two Tensors (h, c)", f"{len(pair)} of {type(hx).__name__}")
    h, _, c = lstm_cell_(input, *pair, w_ih, w_hh, b_ih, b_hh)
    return h, to(c, dtype=h.dtype)


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of a GRU: input [N, I], hx [N, H], w_ih [3 H, I], w_hh [3 H, H] -> [N, H].

    Gates r, z and the new state n, in this order: n = tanh(x_n + r h_n), where x = input w_ih^T + b_ih and
    h = hx w_hh^T + b_hh; h' = (1 - z) n + z hx, in float32, rounded once. Raises ShapeError for shapes that do not fit.
    Cho et al. 2014, arXiv:1406.1078, with the reset gate after the product, as cuDNN has it.
    """
    return gru_cell_(input, hx, w_ih, w_hh, b_ih, b_hh)[0]


# layers: one direction of one layer over packed sequences, see rnn_loop.py


def _without_cell_state(name: str, gates: int, forward: Any, unrolled: Any, backward: Any) -> tuple[Op, Op]:
    # The ops of a layer and of a cell, a layer's single step, whose only state is its output.
    @op(cast=Cast.LOW, integers="refuse")
    @named(f"{name}_", "A layer: input [R, I], hx [N, H] or None for zeros, sizes: rows of each step -> [R, H], h_n.")
    def layer(
        input: Array, hx: Array | None, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None, sizes, reverse
    ):  # fmt: skip
        operands = RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None)
        return (unrolled if is_traced(operands) else forward)(operands, sizes, reverse)

    @layer.check
    def check_layer(input, hx, w_ih, w_hh, b_ih, b_hh, sizes, reverse):
        _check_layer(name, gates, RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), sizes)

    @layer.backward
    def layer_backward(dy, saved, needs, sizes, reverse):
        dx, dh, _, *others = backward(dy, saved, (*needs[:2], None, *needs[2:]), sizes, reverse)
        return dx, dh, *others

    @op(cast=Cast.LOW, integers="refuse")
    @named(f"{name}_cell_", f"`{name}_cell` -> (h, h).")
    def cell(input: Array, hx: Array, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None):
        return layer.forward.reference.run(input, hx, w_ih, w_hh, b_ih, b_hh, (input.shape[0],), False)

    @cell.check
    def check_cell(input, hx, w_ih, w_hh, b_ih, b_hh):
        _check(f"{name}_cell", gates, RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), _rows(input))

    @cell.backward
    def cell_backward(dy, saved, needs):
        return layer_backward.reference.run(dy, saved, needs, (saved.out.shape[0],), False)

    return layer, cell


rnn_tanh_, rnn_tanh_cell_ = _without_cell_state(
    "rnn_tanh", 1, *(partial(f, relu=False) for f in (rnn_forward, rnn_unrolled, rnn_backward))
)
rnn_relu_, rnn_relu_cell_ = _without_cell_state(
    "rnn_relu", 1, *(partial(f, relu=True) for f in (rnn_forward, rnn_unrolled, rnn_backward))
)
gru_, gru_cell_ = _without_cell_state("gru", 3, gru_forward, gru_unrolled, gru_backward)


@op(cast=Cast.LOW, integers="refuse")
def lstm_(
    input: Array, hx: Array | None, cx: Array | None, w_ih: Array, w_hh: Array, b_ih: Array | None,
    b_hh: Array | None, w_hr: Array | None, sizes, reverse
):  # fmt: skip
    """A layer of LSTM cells: hx [N, P], cx [N, H], w_hr [P, H] or None, then P = H -> [R, P], h_n, c_n."""
    operands = RNNOperands(input, hx, cx, w_ih, w_hh, b_ih, b_hh, w_hr)
    return (lstm_unrolled if is_traced(operands) else lstm_forward)(operands, sizes, reverse)


@lstm_.check
def lstm_check(input, hx, cx, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse):
    _check_layer("lstm", 4, RNNOperands(input, hx, cx, w_ih, w_hh, b_ih, b_hh, w_hr), sizes)


lstm_.backward(lstm_backward)


@op(cast=Cast.LOW, integers="refuse")
def lstm_cell_(
    input: Array, hx: Array, cx: Array, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None
):  # fmt: skip
    """`lstm_cell` -> (h, h, c)."""
    return lstm_.forward.reference.run(input, hx, cx, w_ih, w_hh, b_ih, b_hh, None, (input.shape[0],), False)


@lstm_cell_.check
def lstm_cell_check(input, hx, cx, w_ih, w_hh, b_ih, b_hh):
    _check("lstm_cell", 4, RNNOperands(input, hx, cx, w_ih, w_hh, b_ih, b_hh, None), _rows(input))


@lstm_cell_.backward
def lstm_cell_backward(dy, saved, needs):
    return lstm_backward(dy, saved, (*needs, None), (saved.out.shape[0],), False)[:7]


def _rows(array: Any) -> int:
    return (np.shape(array) or (0,))[0]


def _check(where: str, gates: int, operands: RNNOperands, batch: int) -> None:
    w_ih, w_hh = np.shape(operands.w_ih), np.shape(operands.w_hh)
    if len(w_ih) != 2 or len(w_hh) != 2 or w_ih[0] % gates or w_hh[0] != w_ih[0]:
        raise ShapeError(where, f"w_ih [{gates} H, I] and w_hh [{gates} H, P]", f"{list(w_ih)} and {list(w_hh)}")
    width = w_ih[0] // gates
    output = width if operands.w_hr is None else _rows(operands.w_hr)
    needs = {"w_hh": (w_ih[0], output), "b_ih": w_ih[:1], "b_hh": w_ih[:1], "w_hr": (output, width)}
    needs |= {"hx": (batch, output), "cx": (batch, width)}
    if np.ndim(operands.input) != 2 or np.shape(operands.input)[1] != w_ih[1]:
        raise ShapeError(where, f"input [N, {w_ih[1]}]", f"{list(np.shape(operands.input))}")
    for name, shape in needs.items():
        found = getattr(operands, name)
        if found is not None and np.shape(found) != shape:
            raise ShapeError(where, f"{name} {list(shape)}", f"{list(np.shape(found))}")


def _check_layer(where: str, gates: int, operands: RNNOperands, sizes: Any) -> None:
    rows = _rows(operands.input)
    if not sizes or list(sizes) != sorted(sizes, reverse=True) or sum(sizes) != rows:
        raise ShapeError(where, f"sizes that never grow and add up to {rows} rows", f"{list(sizes)[:8]}")
    _check(where, gates, operands, sizes[0])


# ops that a backend may run on arrays as they are stored, without a cast
OPS = (rnn_tanh_, rnn_relu_, gru_, lstm_, rnn_tanh_cell_, rnn_relu_cell_, gru_cell_, lstm_cell_)

"""Recurrent cells and layers: Elman's, LSTM and GRU.

A layer op runs one direction of one layer over whole sequences: the product with the input for all steps at once, then
the walk over time (recurrence.py); its backward does the same, and makes the gradient of each weight in one product.
A cell is a sequence of one step. Gates, the LSTM's cell state and the GRU's state are float32 (float64 for float64)
from the first step to the last; between 16-bit tensors the product with the state reads it rounded to 16 bits, as the
output has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core.op import Array, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..pointwise.conversion import to
from .rnn_double_backward import gru_unrolled, lstm_unrolled, on_tape, rnn_unrolled
from .rnn_loop import RNNOperands, gru_backward, gru_forward, lstm_backward, lstm_forward, rnn_backward, rnn_forward

__all__ = ["gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"]


# cells, as PyTorch calls them


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

    Gates r, z and the new state n, in this order: n = tanh(x_n + r h_n) for the shares x of input w_ih^T + b_ih and h
    of hx w_hh^T + b_hh; h' = (1 - z) n + z hx, in float32, rounded once. Raises ShapeError for shapes that do not fit.
    Cho et al. 2014, arXiv:1406.1078, with the reset gate after the product, as cuDNN has it.
    """
    return gru_cell_(input, hx, w_ih, w_hh, b_ih, b_hh)[0]


# layers: one direction of one layer over sequences that lie packed, see recurrence.py


@op(cast=Cast.LOW, integers="refuse")
def rnn_tanh_(
    input: Array, hx: Array | None, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None, sizes, reverse
):  # fmt: skip
    """A layer of tanh cells. input [R, I], hx [N, H] or None for zeros, sizes: rows of each step -> [R, H], h_n."""
    return _rnn(RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), sizes, reverse, relu=False)


@op(cast=Cast.LOW, integers="refuse")
def rnn_relu_(
    input: Array, hx: Array | None, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None, sizes, reverse
):  # fmt: skip
    """A layer of ReLU cells, as `rnn_tanh_`."""
    return _rnn(RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), sizes, reverse, relu=True)


@op(cast=Cast.LOW, integers="refuse")
def gru_(
    input: Array, hx: Array | None, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None, sizes, reverse
):  # fmt: skip
    """A layer of GRU cells, as `rnn_tanh_`."""
    return _gru(RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), sizes, reverse)


@op(cast=Cast.LOW, integers="refuse")
def lstm_(
    input: Array, hx: Array | None, cx: Array | None, w_ih: Array, w_hh: Array, b_ih: Array | None,
    b_hh: Array | None, w_hr: Array | None, sizes, reverse
):  # fmt: skip
    """A layer of LSTM cells: hx [N, P], cx [N, H], w_hr [P, H] or None, then P = H -> [R, P], h_n, c_n."""
    return _lstm(RNNOperands(input, hx, cx, w_ih, w_hh, b_ih, b_hh, w_hr), sizes, reverse)


@op(cast=Cast.LOW, integers="refuse")
def rnn_tanh_cell_(input: Array, hx: Array, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None):
    """`rnn_tanh_cell`, and its output once more."""
    return _rnn(RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), (_rows(input),), False, relu=False)


@op(cast=Cast.LOW, integers="refuse")
def rnn_relu_cell_(input: Array, hx: Array, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None):
    """`rnn_relu_cell`, and its output once more."""
    return _rnn(RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), (_rows(input),), False, relu=True)


@op(cast=Cast.LOW, integers="refuse")
def gru_cell_(input: Array, hx: Array, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None):
    """`gru_cell`, and its output once more."""
    return _gru(RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), (_rows(input),), False)


@op(cast=Cast.LOW, integers="refuse")
def lstm_cell_(
    input: Array, hx: Array, cx: Array, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None
):  # fmt: skip
    """`lstm_cell` -> h, h once more, c."""
    return _lstm(RNNOperands(input, hx, cx, w_ih, w_hh, b_ih, b_hh, None), (_rows(input),), False)


def _rows(rows: Any) -> int:
    return rows.shape[0]


def _rnn(g: RNNOperands, sizes: Any, reverse: bool, relu: bool) -> Any:
    return (rnn_unrolled if on_tape(g) else rnn_forward)(g, sizes, reverse, relu)


def _gru(g: RNNOperands, sizes: Any, reverse: bool) -> Any:
    return (gru_unrolled if on_tape(g) else gru_forward)(g, sizes, reverse)


def _lstm(g: RNNOperands, sizes: Any, reverse: bool) -> Any:
    return (lstm_unrolled if on_tape(g) else lstm_forward)(g, sizes, reverse)


# their backwards


def _one_state(backward: Any, dy: Any, saved: Any, needs: Any, *more: Any) -> Any:
    # The gradients of a layer without cell state and projection, out of those of RNNOperands.
    dx, dh, _, *others = backward(dy, saved, (*needs[:2], None, *needs[2:]), *more)
    return dx, dh, *others


def _one_step(saved: Any) -> tuple[tuple[int], bool]:
    return (saved.out.shape[0],), False


@rnn_tanh_.backward
def rnn_tanh_backward(dy, saved, needs, sizes, reverse):
    return _one_state(rnn_backward, dy, saved, needs, sizes, reverse, False)


@rnn_relu_.backward
def rnn_relu_backward(dy, saved, needs, sizes, reverse):
    return _one_state(rnn_backward, dy, saved, needs, sizes, reverse, True)


@gru_.backward
def gru_layer_backward(dy, saved, needs, sizes, reverse):
    return _one_state(gru_backward, dy, saved, needs, sizes, reverse)


@lstm_.backward
def lstm_layer_backward(dy, saved, needs, sizes, reverse):
    return lstm_backward(dy, saved, needs, sizes, reverse)


@rnn_tanh_cell_.backward
def rnn_tanh_cell_backward(dy, saved, needs):
    return _one_state(rnn_backward, dy, saved, needs, *_one_step(saved), False)


@rnn_relu_cell_.backward
def rnn_relu_cell_backward(dy, saved, needs):
    return _one_state(rnn_backward, dy, saved, needs, *_one_step(saved), True)


@gru_cell_.backward
def gru_cell_backward(dy, saved, needs):
    return _one_state(gru_backward, dy, saved, needs, *_one_step(saved))


@lstm_cell_.backward
def lstm_cell_backward(dy, saved, needs):
    return lstm_backward(dy, saved, (*needs, None), *_one_step(saved))[:7]


# their checks


def _check(where: str, gates: int, g: RNNOperands, batch: int) -> None:
    w_ih, w_hh = np.shape(g.w_ih), np.shape(g.w_hh)
    if len(w_ih) != 2 or len(w_hh) != 2 or w_ih[0] % gates or w_hh[0] != w_ih[0]:
        raise ShapeError(where, f"w_ih [{gates} H, I] and w_hh [{gates} H, P]", f"{list(w_ih)} and {list(w_hh)}")
    width = w_ih[0] // gates
    short = width if g.w_hr is None else (np.shape(g.w_hr) or (0,))[0]
    needs = {"w_hh": (w_ih[0], short), "b_ih": w_ih[:1], "b_hh": w_ih[:1], "w_hr": (short, width)}
    needs |= {"hx": (batch, short), "cx": (batch, width)}
    if np.ndim(g.input) != 2 or np.shape(g.input)[1] != w_ih[1]:
        raise ShapeError(where, f"input [N, {w_ih[1]}]", f"{list(np.shape(g.input))}")
    for name, shape in needs.items():
        found = getattr(g, name)
        if found is not None and np.shape(found) != shape:
            raise ShapeError(where, f"{name} {list(shape)}", f"{list(np.shape(found))}")


def _check_layer(where: str, gates: int, g: RNNOperands, sizes: Any) -> None:
    if not sizes or list(sizes) != sorted(sizes, reverse=True) or sum(sizes) != (np.shape(g.input) or (0,))[0]:
        raise ShapeError(where, "sizes that never grow, and as many rows", f"{list(sizes)[:8]}, {np.shape(g.input)}")
    _check(where, gates, g, sizes[0])


def _bind_checks() -> None:
    for layer, cell, gates in ((rnn_tanh_, rnn_tanh_cell_, 1), (rnn_relu_, rnn_relu_cell_, 1), (gru_, gru_cell_, 3)):

        def check_layer(input, hx, w_ih, w_hh, b_ih, b_hh, sizes, reverse, name=layer.name, gates=gates):
            _check_layer(name, gates, RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), sizes)

        def check_cell(input, hx, w_ih, w_hh, b_ih, b_hh, name=cell.name, gates=gates):
            _check(
                name, gates, RNNOperands(input, hx, None, w_ih, w_hh, b_ih, b_hh, None), (np.shape(input) or (0,))[0]
            )

        layer.check(check_layer)
        cell.check(check_cell)


_bind_checks()


@lstm_.check
def lstm_check(input, hx, cx, w_ih, w_hh, b_ih, b_hh, w_hr, sizes, reverse):
    _check_layer("lstm", 4, RNNOperands(input, hx, cx, w_ih, w_hh, b_ih, b_hh, w_hr), sizes)


@lstm_cell_.check
def lstm_cell_check(input, hx, cx, w_ih, w_hh, b_ih, b_hh):
    _check("lstm_cell", 4, RNNOperands(input, hx, cx, w_ih, w_hh, b_ih, b_hh, None), (np.shape(input) or (0,))[0])


# those that run on arrays as they are stored, where a backend's products do
OPS = (rnn_tanh_, rnn_relu_, gru_, lstm_, rnn_tanh_cell_, rnn_relu_cell_, gru_cell_, lstm_cell_)

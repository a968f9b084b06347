"""Recurrent layers and cells as ONNX's LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....base.errors import ArgumentError
from ..graph import Graph, Value
from ..registry import onnx_op
from ..trace import WHERE

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}  # the places here of the gates in ONNX's order


def _layer(name: str, kind: str, **attributes: Any) -> None:
    @onnx_op(name)
    def layer(
        g: Graph, input: Value, hx: Value | None, w_ih: Value, w_hh: Value, b_ih: Value | None, b_hh: Value | None,
        sizes: Sequence[int], reverse: bool,
    ) -> Any:  # fmt: skip
        return _run(g, kind, input, (hx,), w_ih, w_hh, (b_ih, b_hh), sizes, reverse, attributes)

    @onnx_op(f"{name}_cell")
    def cell(
        g: Graph, input: Value, hx: Value, w_ih: Value, w_hh: Value, b_ih: Value | None, b_hh: Value | None
    ) -> Any:
        sizes = (input.shape[0],)
        return _run(g, kind, input, (hx,), w_ih, w_hh, (b_ih, b_hh), sizes, False, attributes)


_layer("rnn_tanh", "RNN", activations=["Tanh"])
_layer("rnn_relu", "RNN", activations=["Relu"])
_layer("gru", "GRU", linear_before_reset=1)


@onnx_op("lstm")
def lstm(
    g: Graph, input: Value, hx: Value | None, cx: Value | None, w_ih: Value, w_hh: Value, b_ih: Value | None,
    b_hh: Value | None, w_hr: Value | None, sizes: Sequence[int], reverse: bool,
) -> Any:  # fmt: skip
    if w_hr is not None:
        raise ArgumentError(WHERE, "an LSTM without proj_size, which ONNX's has not", g.label)
    return _run(g, "LSTM", input, (hx, cx), w_ih, w_hh, (b_ih, b_hh), sizes, reverse, {})


@onnx_op("lstm_cell")
def lstm_cell(
    g: Graph, input: Value, hx: Value, cx: Value, w_ih: Value, w_hh: Value, b_ih: Value | None, b_hh: Value | None
) -> Any:
    return _run(g, "LSTM", input, (hx, cx), w_ih, w_hh, (b_ih, b_hh), (input.shape[0],), False, {})


def _run(
    g: Graph, kind: str, x: Value, states: Sequence[Value | None], w_ih: Value, w_hh: Value,
    biases: tuple[Value | None, Value | None], sizes: Sequence[int], reverse: bool, attributes: dict[str, Any],
) -> Any:  # fmt: skip
    """Rows of output in the order of the op, and final states: [R, H], [N, H], and of an LSTM the cells [N, H]."""
    if len(set(sizes)) > 1:
        raise ArgumentError(WHERE, "sequences of one length", f"packed ones of several in {g.label}")
    steps, batch, width = len(sizes), int(sizes[0]), w_hh.shape[1]
    rows = g.reshape(x, steps, batch, x.shape[1])
    weights = [g.unsqueeze(_in_order(g, kind, w), 0) for w in (w_ih, w_hh)]
    first = [None if state is None else g.unsqueeze(state, 0) for state in states]
    made = getattr(g, kind)(
        rows, *weights, _both_biases(g, kind, biases, w_hh.shape[0]), None, *_zeros_for_none(g, first, batch, width),
        hidden_size=width, direction="reverse" if reverse else "forward", outputs=1 + len(states), **attributes,
    )  # fmt: skip
    out, *last = made
    return [g.reshape(out, steps * batch, width), *(g.squeeze(state, 0) for state in last)]


def _zeros_for_none(g: Graph, states: Sequence[Value | None], batch: int, width: int) -> list[Value | None]:
    if all(state is None for state in states):
        return []
    zeros = g.Expand(g.constant(np.zeros((1, 1, 1), g.dtype)), g.sizes(1, batch, width))
    return [zeros if state is None else state for state in states]


def _in_order(g: Graph, kind: str, weight: Value) -> Any:
    """A weight or bias with its gates in ONNX's order."""
    order = _GATES[kind]
    if len(order) == 1:
        return weight
    width = weight.shape[0] // len(order)
    parts = g.Split(weight, g.ints(*(width,) * len(order)), axis=0, outputs=len(order))
    return g.Concat(*(parts[i] for i in order), axis=0)


def _both_biases(g: Graph, kind: str, biases: tuple[Value | None, Value | None], rows: int) -> Any:
    if all(bias is None for bias in biases):
        return None
    zeros = g.constant(np.zeros(rows, g.dtype))
    both = [zeros if bias is None else _in_order(g, kind, bias) for bias in biases]
    return g.unsqueeze(g.Concat(*both, axis=0), 0)

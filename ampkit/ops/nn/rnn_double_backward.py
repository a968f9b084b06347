"""Recurrent layers unrolled into differentiable ops on new arrays, which double backward traces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array
from ampkit.core.autograd.traced_array import TracedArray, apply, plain
from ampkit.core.tensor import Tensor

from ..pointwise.smooth_activations import sigmoid
from .rnn_cell import split_gates
from .rnn_loop import RNNOperands, Sizes, steps_of

# (input gates, *states) -> the new states; the first of them is the output
Step = Callable[..., tuple[Array, ...]]


def is_traced(operands: RNNOperands) -> bool:
    return any(isinstance(array, TracedArray) for array in operands)


def rnn_unrolled(operands: RNNOperands, sizes: Sizes, reverse: bool, relu: bool) -> tuple[Array, ...]:
    def step(x: Array, h: Array) -> tuple[Array]:
        gate = x + _add_bias(h @ operands.w_hh.T, operands.b_hh)
        return (np.maximum(gate, 0) if relu else np.tanh(gate),)

    return _unroll(step, operands, sizes, reverse, _initial(operands, operands.hx, sizes))


def lstm_unrolled(operands: RNNOperands, sizes: Sizes, reverse: bool) -> tuple[Array, ...]:
    def step(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        i, f, new, o = split_gates(x + _add_bias(h @ operands.w_hh.T, operands.b_hh), 4)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(new)
        h = _sigmoid(o) * np.tanh(c)
        return h if operands.w_hr is None else h @ operands.w_hr.T, c

    h, c = _initial(operands, operands.hx, sizes), _initial(operands, operands.cx, sizes, operands.w_hh.shape[0] // 4)
    return _unroll(step, operands, sizes, reverse, h, c)


def gru_unrolled(operands: RNNOperands, sizes: Sizes, reverse: bool) -> tuple[Array, ...]:
    def step(x: Array, h: Array) -> tuple[Array]:
        (r, z, n), (h_r, h_z, h_n) = split_gates(x, 3), split_gates(_add_bias(h @ operands.w_hh.T, operands.b_hh), 3)
        new, update = np.tanh(n + _sigmoid(r + h_r) * h_n), _sigmoid(z + h_z)
        return (new + update * (h - new),)

    return _unroll(step, operands, sizes, reverse, _initial(operands, operands.hx, sizes))


def _unroll(step: Step, operands: RNNOperands, sizes: Sizes, reverse: bool, *first: Array) -> tuple[Array, ...]:
    input_gates = _add_bias(operands.input @ operands.w_ih.T, operands.b_ih)
    steps = steps_of(sizes, reverse)
    states, outs, ended = [s[: steps[0][1]] for s in first], [], []
    for at, n in steps:
        if n < (rows := states[0].shape[0]):
            ended.append([s[n:] for s in states])
            states = [s[:n] for s in states]
        elif n > rows:
            states = [np.concatenate([s, f[rows:n]]) for s, f in zip(states, first, strict=True)]
        states = list(step(input_gates[at], *states))
        outs.append(states[0])
    last = [np.concatenate([s, *(e[i] for e in reversed(ended))]) for i, s in enumerate(states)]
    return np.concatenate(outs[::-1] if reverse else outs), *last


def _initial(operands: RNNOperands, first: Array | None, sizes: Sizes, width: int | None = None) -> Array:
    if first is not None:
        return first
    like = plain(operands.w_hh)
    return TracedArray(Tensor(backends.backend_of(like).zeros((sizes[0], width or like.shape[1]), like.dtype)))


def _add_bias(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + bias


def _sigmoid(x: Array) -> Array:
    return apply(sigmoid, x)

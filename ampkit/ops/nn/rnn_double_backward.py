"""Recurrent layers out of steps that are ops, each making new arrays: what second derivatives run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.core.autograd.traced_array import TracedArray, apply, plain
from ampkit.core.tensor import Tensor

from ..pointwise.activation import sigmoid
from .rnn_loop import RNNOperands, Sizes, walk

__all__: list[str] = []

Array = Any
# (what the input gives, states) -> the states after; the first of them is the output
Step = Callable[..., tuple[Array, ...]]


def on_tape(g: RNNOperands) -> bool:
    return any(isinstance(array, TracedArray) for array in g)


def rnn_unrolled(g: RNNOperands, sizes: Sizes, reverse: bool, relu: bool) -> tuple[Array, ...]:
    def step(x: Array, h: Array) -> tuple[Array]:
        gate = x + _add_bias(h @ g.w_hh.T, g.b_hh)
        return (np.maximum(gate, 0) if relu else np.tanh(gate),)

    return _unrolled(step, g, sizes, reverse, _start(g, g.hx, sizes))


def lstm_unrolled(g: RNNOperands, sizes: Sizes, reverse: bool) -> tuple[Array, ...]:
    def step(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        i, f, new, o = _parts(x + _add_bias(h @ g.w_hh.T, g.b_hh), 4)
        c = _gate(f) * c + _gate(i) * np.tanh(new)
        h = _gate(o) * np.tanh(c)
        return h if g.w_hr is None else h @ g.w_hr.T, c

    width = g.w_hh.shape[0] // 4
    return _unrolled(step, g, sizes, reverse, _start(g, g.hx, sizes), _start(g, g.cx, sizes, width))


def gru_unrolled(g: RNNOperands, sizes: Sizes, reverse: bool) -> tuple[Array, ...]:
    def step(x: Array, h: Array) -> tuple[Array]:
        (r, z, n), (to_r, to_z, to_n) = _parts(x, 3), _parts(_add_bias(h @ g.w_hh.T, g.b_hh), 3)
        new, kept = np.tanh(n + _gate(r + to_r) * to_n), _gate(z + to_z)
        return (new + kept * (h - new),)

    return _unrolled(step, g, sizes, reverse, _start(g, g.hx, sizes))


def _unrolled(step: Step, g: RNNOperands, sizes: Sizes, reverse: bool, *first: Array) -> tuple[Array, ...]:
    projected = _add_bias(g.input @ g.w_ih.T, g.b_ih)
    steps = walk(sizes, reverse)
    states, outs, ended = [s[: steps[0][1]] for s in first], [], []
    for at, n in steps:
        if n < (rows := states[0].shape[0]):
            ended.append([s[n:] for s in states])
            states = [s[:n] for s in states]
        elif n > rows:
            states = [np.concatenate([s, f[rows:n]]) for s, f in zip(states, first, strict=True)]
        states = list(step(projected[at], *states))
        outs.append(states[0])
    last = [np.concatenate([s, *(e[i] for e in reversed(ended))]) for i, s in enumerate(states)]
    return np.concatenate(outs[::-1] if reverse else outs), *last


def _start(g: RNNOperands, first: Array | None, sizes: Sizes, width: int | None = None) -> Array:
    if first is not None:
        return first
    like = plain(g.w_hh)
    return TracedArray(Tensor(backends.backend_of(like).zeros((sizes[0], width or like.shape[1]), like.dtype)))


def _add_bias(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + bias


def _gate(x: Array) -> Array:
    return apply(sigmoid, x)


def _parts(x: Array, count: int) -> list[Array]:
    width = x.shape[1] // count
    return [x[:, i * width : (i + 1) * width] for i in range(count)]

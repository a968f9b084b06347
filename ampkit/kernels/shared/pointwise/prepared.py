"""clamp, nan_to_num, glu, prelu and the sum of two gradients: functions of functions.h whose operands or gradients take
preparation.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array, DType, finfo, float32
from ampkit.core.autograd.accumulate import sum_of_two
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise.piecewise_activations import prelu
from ampkit.ops.pointwise.selection import clamp, nan_to_num
from ampkit.ops.pointwise.smooth_activations import glu

from ..launcher import Launcher, grad_dtype, gradients, register_backward, round_scalars, supports, supports_backward


def register_prepared(launcher: Launcher) -> None:
    """Register these ops on the launcher's backend."""
    _register_clamp(launcher)
    _register_nan_to_num(launcher)
    _register_glu(launcher)
    _register_prelu(launcher)
    _register_sum_of_two(launcher)


def _register_clamp(launcher: Launcher) -> None:
    def forward(input: Array, min: Any, max: Any, *, dtype: DType) -> Any:
        out = launcher.forward("Clamp", round_scalars(clamp, (input, *_bounds(min, max))), dtype)
        return out, Saved(input=input, min=min, max=max)

    def backward(dy: Array, saved: Any, needs: Any) -> Any:
        operands = (saved.input, *_bounds(saved.min, saved.max))
        dtypes = [None if need is None else grad_dtype(need, a, dy) for need, a in zip(needs, operands, strict=True)]
        return gradients(launcher, clamp, "Clamp", dy, operands, dtypes)

    launcher.on(clamp, forward, supports, launches=True)
    launcher.on_backward(clamp, backward, supports_backward, launches=True)


def _bounds(min: Any, max: Any) -> tuple[Any, Any]:
    """The bounds of clamp; a missing one is an infinity."""
    return -inf if min is None else min, inf if max is None else max


def _register_nan_to_num(launcher: Launcher) -> None:
    def forward(input: Array, nan: Any, posinf: Any, neginf: Any, *, dtype: DType) -> Any:
        limits, kind = finfo(input.dtype), input.dtype.type
        values = nan or 0.0, limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
        out = launcher.forward("NanToNum", (input, *[float(kind(value)) for value in values]), dtype)
        return out, Saved(input=input)

    launcher.on(nan_to_num, forward, supports, launches=True)
    register_backward(launcher, nan_to_num, lambda nan, posinf, neginf: ("NanToNum", ()), "input")


def _register_glu(launcher: Launcher) -> None:
    def forward(input: Array, dim: int, *, dtype: DType) -> Any:
        return launcher.forward("Glu", np.split(input, 2, dim), dtype), Saved(input=input)

    def backward(dy: Array, saved: Any, needs: Any, dim: int) -> Any:
        """Compute both halves in one launch: dy, value and gate are broadcast along a new axis of size 2."""
        x, axis = saved.input, dim % dy.ndim
        parts = [a.reshape((*dy.shape[:axis], -1, *dy.shape[axis:])) for a in (dy, *np.split(x, 2, axis))]
        half = np.arange(2, dtype=float32, like=x).reshape((2, *(1,) * (dy.ndim - axis)))
        return launcher.forward("GluGrad", (*parts, half), needs[0]).reshape(x.shape)

    launcher.on(glu, forward, supports, launches=True)
    launcher.on_backward(glu, backward, supports_backward)


def _register_prelu(launcher: Launcher) -> None:
    def forward(input: Array, weight: Array, *, dtype: DType) -> Any:
        out = launcher.forward("PRelu", (input, _broadcast_weight(weight, input)), dtype)
        return out, Saved(input=input, weight=weight, shape=weight.shape)

    def backward(dy: Array, saved: Any, needs: Any) -> Any:
        x = getattr(saved, "input", 0.0)  # not saved where no wanted gradient reads it
        weight = 0.0 if needs[0] is None else _broadcast_weight(saved.weight, dy)
        grads = launcher.backward("PRelu", dy, (x, weight), (needs[0], None if needs[1] is None else float32))
        if needs[1] is None:
            return grads
        per_channel = prod(saved.shape) > 1
        total = launcher.sum_over(grads[1], tuple([i for i in range(dy.ndim) if i != 1 or not per_channel]))
        return grads[0], backends.backend_of(dy).cast(total.reshape(saved.shape), needs[1])

    launcher.on(prelu, forward, supports, launches=True)
    launcher.on_backward(prelu, backward, supports_backward)


def _broadcast_weight(weight: Array, input: Array) -> Array:
    """The weight, one or one per channel, in a shape that broadcasts to the input."""
    return weight.reshape(tuple([-1 if i == min(1, input.ndim - 1) else 1 for i in range(input.ndim)]))


def _register_sum_of_two(launcher: Launcher) -> None:
    def sum_in_first(held: Array, gradient: Array) -> Array:
        return launcher.forward("Add", (held, gradient, 1.0), held.dtype)

    launcher.on(sum_of_two, sum_in_first, supports, launches=True)

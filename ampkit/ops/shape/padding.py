"""Padding by what is inside: mirrored, repeated or wrapped round; and its transpose, which adds it back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

from ..indexing.subscript import wide

__all__: list[str] = []

_WORDS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # PyTorch's, and NumPy's


@op(cast=Cast.KEEP, moves=True)
def extend(input: Array, widths, mode):
    """input with `widths` (before, after) more elements along each axis, taken from inside as `mode` says."""
    return np.pad(input, widths, mode=_WORDS[mode]), Saved()  # type: ignore[call-overload]


@extend.check
def extend_check(input, widths, mode):
    if mode not in _WORDS:
        raise ArgumentError("pad", "mode 'constant', 'reflect', 'replicate' or 'circular'", repr(mode))
    for (before, after), n in zip(widths, input.shape, strict=True):
        most = {"reflect": n - 1, "circular": n}.get(mode, before + after if n else 0)
        if max(before, after) > max(most, 0):
            raise ShapeError("pad", f"at most {max(most, 0)} more in mode {mode!r} beside {n}", f"{(before, after)}")


@extend.backward
def extend_backward(dy, saved, needs, widths, mode):
    return apply(add_edges, wide(dy), widths, mode)


@op(cast=Cast.KEEP)
def add_edges(input: Array, widths, mode):
    """input without `widths` at its edges, what lay there added where `extend` took it from."""
    for axis, (before, after) in enumerate(widths):
        if before or after:
            input = np.moveaxis(_added(np.moveaxis(input, axis, 0), before, after, mode), 0, axis)
    return input, Saved()


@add_edges.backward
def add_edges_backward(dy, saved, needs, widths, mode):
    return apply(extend, dy, widths, mode)


def _added(x: Any, before: int, after: int, mode: str) -> Any:
    n = len(x) - before - after
    first, inner, last = x[:before], x[before : before + n].copy(), x[before + n :]
    if mode == "reflect":
        inner[1 : before + 1] += first[::-1]
        inner[n - 1 - after : n - 1] += last[::-1]
    elif mode == "replicate":
        inner[0] += first.sum(0)
        inner[-1] += last.sum(0)
    else:
        inner[n - before :] += first
        inner[:after] += last
    return inner

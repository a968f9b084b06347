"""pad: with a constant, or reflected, replicated or circular values of the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.casts import to_accumulator
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_addressable, check_representable
from ..indexing.getitem import getitem
from ..pointwise.conversion import stored_like

__all__ = ["pad"]
_NUMPY_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # PyTorch's mode -> np.pad's


@op(cast=Cast.KEEP, moves=True)
def pad_from_input(input: Array, widths, mode):
    """input padded by `widths` (before, after) along each axis with its own values: reflect, replicate or circular."""
    padded = np.pad(input, widths, mode=_NUMPY_MODES[mode])  # type: ignore[call-overload]  # NumPy types modes as literals
    return stored_like(plain(input), padded), Saved()


@pad_from_input.check
def pad_from_input_check(input, widths, mode):
    if mode not in _NUMPY_MODES:
        raise ArgumentError("pad", "mode 'constant', 'reflect', 'replicate' or 'circular'", repr(mode))
    for (before, after), n in zip(widths, input.shape, strict=True):
        most = {"reflect": n - 1, "circular": n}.get(mode, before + after if n else 0)
        if max(before, after) > max(most, 0):
            raise ShapeError("pad", f"at most {max(most, 0)} more in mode {mode!r} beside {n}", f"{(before, after)}")


@pad_from_input.backward
def pad_from_input_backward(dy, saved, needs, widths, mode):
    return apply(pad_from_input_transpose, to_accumulator(dy), widths, mode)


@op(cast=Cast.KEEP)
def pad_from_input_transpose(input: Array, widths, mode):
    """The transpose of `pad_from_input`: crop `widths`, adding the cropped values to their source elements."""
    for axis, (before, after) in enumerate(widths):
        if before or after:
            input = np.moveaxis(_fold_edges(np.moveaxis(input, axis, 0), before, after, mode), 0, axis)
    return input, Saved()


@pad_from_input_transpose.backward
def pad_from_input_transpose_backward(dy, saved, needs, widths, mode):
    return apply(pad_from_input, dy, widths, mode)


def _fold_edges(x: Any, before: int, after: int, mode: str) -> Any:
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


@op(cast=Cast.KEEP, moves=True)
def pad_(input: Array, widths, value):
    """input padded by `widths` (before, after) along each axis with `value`."""
    filler = input.dtype.type(value)
    padded = np.pad(input, widths, constant_values=filler) if widths else input.copy()
    return stored_like(plain(input), padded), Saved()


pad_.check(lambda input, widths, value: check_representable("pad", input.dtype, value))


@pad_.backward
def pad_backward(dy, saved, needs, widths, value):
    return dy[tuple([slice(before, n - after) for (before, after), n in zip(widths, dy.shape, strict=True)])]


def _clip_replicate_widths(pair: tuple[int, int], n: int) -> tuple[int, int]:
    # A negative width that removes all n elements while the other side replicates one: keep that one element.
    rest = n + sum(pair) - 1
    if not n or rest < 0 or max(pair) <= 0 or n + min(pair) > 0:
        return pair
    return (1 - n, rest) if pair[0] < 0 else (rest, 1 - n)


def _cropped(input: Tensor, pairs: list[tuple[int, int]], mode: str) -> tuple[Tensor, list[tuple[int, int]]]:
    # input without what negative widths cut off, and the others.
    if mode == "replicate":
        pairs = [_clip_replicate_widths(pair, n) for pair, n in zip(pairs, input.shape, strict=True)]
    for (before, after), n in zip(pairs, input.shape, strict=True):
        if n + min(before, 0) + min(after, 0) < 0:
            raise ShapeError("pad", f"to cut at most {n} elements of an axis of {n}", f"{(before, after)}")
    cut = tuple([slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, input.shape, strict=True)])
    return getitem(input, cut), [(max(a, 0), max(b, 0)) for a, b in pairs]


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """input padded; pad: widths (before, after) of the last axis, then of the one before it, ...

    mode "constant" pads with `value` (0), "reflect" mirrors without repeating the edge, "replicate" repeats the edge,
    "circular" wraps around. A negative width crops. Raises ShapeError for an odd number of widths or too many, and for
    more than the axis allows to mirror or wrap; ArgumentError for another mode, or a value with these modes.
    """
    if mode != "constant" and (value or not isinstance(mode, str)):
        raise ArgumentError("pad", "a mode, and no value but with mode 'constant'", f"{mode!r} and {value}")
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ShapeError("pad", f"an even number of widths, at most {2 * input.ndim}", f"{len(pad)}")
    pairs = [(0, 0)] * (input.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    if min(pad, default=0) < 0:
        input, pairs = _cropped(input, pairs, mode)
    check_addressable("pad", tuple([n + a + b for n, (a, b) in zip(input.shape, pairs, strict=True)]))
    return pad_(input, tuple(pairs), value or 0) if mode == "constant" else pad_from_input(input, tuple(pairs), mode)

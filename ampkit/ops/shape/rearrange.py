"""Layout: elements repeated, shifted, turned round, masked or padded. Values move; every dtype passes through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.dtypes import is_float
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..creation.ranges import arange
from ..indexing.masks import kept, reach
from ..indexing.subscript import getitem, index_select, wide
from ..pointwise.selection import need_to_hold
from .axes import addressable, axes, axis, sizes
from .padding import extend
from .view import flatten

__all__ = ["flip", "pad", "repeat", "repeat_interleave", "roll", "tile", "tril", "triu"]


@op(cast=Cast.KEEP, moves=True)
def repeat_(input: Array, sizes):
    """input laid out `sizes` times along each axis."""
    return np.tile(input, sizes), Saved(shape=input.shape)


@repeat_.check
def repeat_check(input, sizes):
    if len(sizes) < input.ndim or any(n < 0 for n in sizes):
        raise ShapeError("repeat", f"at least {input.ndim} sizes from 0", f"{tuple(sizes)}")
    shape = (1,) * (len(sizes) - input.ndim) + tuple(input.shape)
    addressable("repeat", tuple([n * max(m, 1) for n, m in zip(sizes, shape, strict=True)]))


@repeat_.backward
def repeat_backward(dy, saved, needs, sizes):
    shape = (1,) * (len(sizes) - len(saved.shape)) + saved.shape
    pairs = [n for pair in zip(sizes, shape, strict=True) for n in pair]
    return blocked_sum(wide(dy).reshape(tuple(pairs)), tuple(range(0, len(pairs), 2))).reshape(saved.shape)


def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """input laid out `sizes` times along each axis, missing leading axes added. Copies."""
    return repeat_(input, sizes("repeat", repeats))


def tile(input: Tensor, *dims: Any) -> Tensor:
    """`repeat`, where sizes may be fewer than the axes: the leading ones are 1."""
    given = sizes("tile", dims)
    return repeat_(input, (1,) * (input.ndim - len(given)) + given)


@op(cast=Cast.KEEP, moves=True)
def repeat_interleave_(input: Array, repeats, dim):
    """Each element along `dim` `repeats` times in a row."""
    return np.repeat(input, repeats, dim), Saved(shape=input.shape)


@repeat_interleave_.check
def repeat_interleave_check(input, repeats, dim):
    addressable("repeat_interleave", (repeats, input.size))


@repeat_interleave_.backward
def repeat_interleave_backward(dy, saved, needs, repeats, dim):
    at = dim % len(saved.shape) + 1
    split = (*saved.shape[:at], repeats, *saved.shape[at:])
    return blocked_sum(wide(dy).reshape(split), at)


def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: CompatArg = None
) -> Tensor:
    """Each element along `dim` `repeats` times in a row; without dim, of the flattened input.

    repeats: a number, or a tensor [n] of integers, one per element. Of such a tensor alone: its positions, each
    repeated. Raises ArgumentError for a negative number, ShapeError for as many numbers as do not fit.
    """
    if repeats is None:
        return repeat_interleave(arange(input.numel()), input)
    at = 0 if dim is None else axis("repeat_interleave", dim, input.ndim)
    if dim is None or not input.ndim:
        input = flatten(input)
    if isinstance(repeats, Tensor) and repeats.numel() != 1:
        return index_select(input, at, _positions(repeats, input.shape[at]))
    times = repeats.item() if isinstance(repeats, Tensor) else repeats
    if not isinstance(times, int) or isinstance(times, bool) or times < 0:
        raise ArgumentError("repeat_interleave", "repeats as a number from 0, or a tensor of them", repr(times))
    return repeat_interleave_(input, times, at)


def _positions(repeats: Tensor, length: int) -> Tensor:
    if repeats.dtype.kind not in "iu" or repeats.ndim != 1 or len(repeats) != length:
        got = f"{repeats.dtype.name} of shape {tuple(repeats.shape)}"
        raise ShapeError("repeat_interleave", f"{length} integers, one per element", got)
    if (repeats.array < 0).any():
        raise ArgumentError("repeat_interleave", "repeats from 0", f"{repeats.array.min()}")
    return Tensor(np.repeat(np.arange(length, like=repeats.array), repeats.array))


# shifts and masks


@op(cast=Cast.KEEP, moves=True)
def flip_(input: Array, dims):
    """input with the order along `dims` reversed."""
    return np.flip(input, dims).copy(), Saved()


@flip_.backward
def flip_backward(dy, saved, needs, dims):
    return np.flip(dy, dims)


def flip(input: Tensor, *dims: Any) -> Tensor:
    """input with the order along `dims` reversed."""
    given = sizes("flip", dims)
    return flip_(input, axes("flip", given, input.ndim) if given else ())


@op(cast=Cast.KEEP, moves=True)
def roll_(input: Array, shifts, dims):
    """input shifted along `dims`, what leaves at one end entering at the other."""
    return np.roll(input, shifts, dims), Saved()


@roll_.backward
def roll_backward(dy, saved, needs, shifts, dims):
    return np.roll(dy, tuple([-s for s in shifts]) if type(shifts) is tuple else -shifts, dims)


def roll(input: Tensor, shifts: int | Sequence[int], dims: Any = None) -> Tensor:
    """input shifted along `dims`, what leaves at one end entering at the other; without dims, the flattened input."""
    if isinstance(shifts, Tensor):
        raise DTypeError("roll", "shifts as numbers", "a Tensor")
    by = tuple(shifts) if isinstance(shifts, (tuple, list)) else (shifts,)
    if dims is None:
        if len(by) != 1:
            raise ArgumentError("roll", "one shift, or a dim for each", f"{len(by)} shifts without dims")
        return roll_(input, by[0], None)
    over = axes("roll", dims, input.ndim)
    if len(by) != len(over):
        raise ArgumentError("roll", "as many shifts as dims", f"{len(by)} and {len(over)}")
    return roll_(input, by, over)


@op(cast=Cast.KEEP, moves=True)
def tril(input: Array, diagonal: int = 0):
    """The lower triangles of the matrices [..., rows, columns]: zero above the diagonal numbered `diagonal`."""
    return _masked(input, reach(input, *input.shape[-2:], diagonal)), Saved()


@op(cast=Cast.KEEP, moves=True)
def triu(input: Array, diagonal: int = 0):
    """The upper triangles of the matrices [..., rows, columns]: zero below the diagonal numbered `diagonal`."""
    return _masked(input, np.logical_not(reach(input, *input.shape[-2:], diagonal - 1))), Saved()


def _masked(x: Any, mask: Any) -> Any:
    return kept(x, mask) if is_float(x.dtype) else x * mask.astype(x.dtype)


@tril.backward
def tril_backward(dy, saved, needs, diagonal):
    return kept(dy, reach(plain(dy), *dy.shape[-2:], diagonal))


@triu.backward
def triu_backward(dy, saved, needs, diagonal):
    return kept(dy, np.logical_not(reach(plain(dy), *dy.shape[-2:], diagonal - 1)))


def tril_check(input, diagonal):
    if input.ndim < 2:
        raise ShapeError("tril and triu", "at least 2 axes", f"shape {tuple(input.shape)}")


tril.check(tril_check)
triu.check(tril_check)


@op(cast=Cast.KEEP, moves=True)
def pad_(input: Array, widths, value):
    """input with `widths` (before, after) more elements of `value` along each axis."""
    filler = input.dtype.type(value)
    return np.pad(input, widths, constant_values=filler) if widths else input.copy(), Saved()


@pad_.check
def pad_check(input, widths, value):
    need_to_hold("pad", input.dtype, value)


@pad_.backward
def pad_backward(dy, saved, needs, widths, value):
    return dy[tuple([slice(before, n - after) for (before, after), n in zip(widths, dy.shape, strict=True)])]


def _beside_one(pair: tuple[int, int], n: int) -> tuple[int, int]:
    # Widths that cut all n elements away and repeat the last of them, as widths that leave that one.
    rest = n + sum(pair) - 1
    if not n or rest < 0 or max(pair) <= 0 or n + min(pair) > 0:
        return pair
    return (1 - n, rest) if pair[0] < 0 else (rest, 1 - n)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """input with more elements around it; pad: (before, after) of the last axis, then the one before it.

    They are `value` (0); or with mode "reflect" mirrored at the outer element, "replicate" the outer element repeated,
    "circular" those of the other end. A negative number cuts away. Raises ShapeError for an odd number of widths or too
    many, and for more than there is to mirror or to wrap; ArgumentError for another mode, or a value with these.
    """
    if mode != "constant" and (value or not isinstance(mode, str)):
        raise ArgumentError("pad", "a mode, and no value but with mode 'constant'", f"{mode!r} and {value}")
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ShapeError("pad", f"an even number of widths, at most {2 * input.ndim}", f"{len(pad)}")
    pairs = [(0, 0)] * (input.ndim - len(pad) // 2) + [tuple(pad[i : i + 2]) for i in range(len(pad) - 2, -1, -2)]
    if mode == "replicate":
        pairs = [_beside_one(pair, n) for pair, n in zip(pairs, input.shape, strict=True)]
    for (before, after), n in zip(pairs, input.shape, strict=True):
        if n + min(before, 0) + min(after, 0) < 0:
            raise ShapeError("pad", f"to cut at most {n} elements of an axis of {n}", f"{(before, after)}")
    cut = tuple([slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, input.shape, strict=True)])
    inner = getitem(input, cut) if any(n < 0 for n in pad) else input
    widths = tuple([(max(a, 0), max(b, 0)) for a, b in pairs])
    addressable("pad", tuple([n + a + b for n, (a, b) in zip(inner.shape, widths, strict=True)]))
    return pad_(inner, widths, value or 0) if mode == "constant" else extend(inner, widths, mode)

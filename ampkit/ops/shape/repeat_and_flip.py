"""Repeating, flipping, rolling, rotating, and windows of an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.arguments import is_whole
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.casts import to_accumulator
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_addressable, normalize_axes, normalize_axis, normalize_axis_of, parse_shape
from ..creation.ranges import arange
from ..indexing.index_select import index_select
from .view import flatten, movedim, reshape, transpose

__all__ = ["flip", "fliplr", "flipud", "repeat", "repeat_interleave", "roll", "rot90", "tile"]


@op(cast=Cast.KEEP, moves=True, opaque=True)
def repeat_(input: Array, sizes):
    """input tiled `sizes` times along each axis."""
    return np.tile(input, sizes), Saved(shape=input.shape)


@repeat_.check
def repeat_check(input, sizes):
    if len(sizes) < input.ndim or any(n < 0 for n in sizes):
        raise ShapeError("repeat", f"at least {input.ndim} sizes from 0", f"{tuple(sizes)}")
    shape = (1,) * (len(sizes) - input.ndim) + tuple(input.shape)
    check_addressable("repeat", tuple([n * max(m, 1) for n, m in zip(sizes, shape, strict=True)]))


@repeat_.backward
def repeat_backward(dy, saved, needs, sizes):
    shape = (1,) * (len(sizes) - len(saved.shape)) + saved.shape
    pairs = [n for pair in zip(sizes, shape, strict=True) for n in pair]
    return blocked_sum(to_accumulator(dy).reshape(tuple(pairs)), tuple(range(0, len(pairs), 2))).reshape(saved.shape)


def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """input tiled `repeats` times along each axis, with new leading axes where needed. A copy."""
    return repeat_(input, parse_shape("repeat", repeats))


def tile(input: Tensor, *dims: Any) -> Tensor:
    """`repeat` that accepts fewer sizes than axes: missing leading ones are 1."""
    sizes = parse_shape("tile", dims)
    return repeat_(input, (1,) * (input.ndim - len(sizes)) + sizes)


@op(cast=Cast.KEEP, moves=True, opaque=True)
def repeat_interleave_(input: Array, repeats, dim):
    """Each element along `dim` `repeats` times in a row."""
    if not input.size:  # NumPy would count to `repeats`
        shape = [n * repeats if axis == dim else n for axis, n in enumerate(input.shape)]
        return np.empty_like(input, shape=tuple(shape)), Saved(shape=input.shape)
    return np.repeat(input, repeats, dim), Saved(shape=input.shape)


repeat_interleave_.check(lambda input, repeats, dim: check_addressable("repeat_interleave", (repeats, input.size)))


@repeat_interleave_.backward
def repeat_interleave_backward(dy, saved, needs, repeats, dim):
    at = dim % len(saved.shape) + 1
    split = (*saved.shape[:at], repeats, *saved.shape[at:])
    return blocked_sum(to_accumulator(dy).reshape(split), at)


def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: CompatArg = None
) -> Tensor:
    """Each element along `dim` `repeats` times in a row; without dim, of the flattened input.

    repeats: a number, or a tensor [n] of integers, one per element. Called with a tensor alone, each index i repeated
    tensor[i] times. Raises ArgumentError for a negative number, ShapeError for a tensor of another length.
    """
    if repeats is None:
        return repeat_interleave(arange(input.numel()), input)
    at = 0 if dim is None else normalize_axis("repeat_interleave", dim, input.ndim)
    if dim is None or not input.ndim:
        input = flatten(input)
    if isinstance(repeats, Tensor) and repeats.numel() != 1:
        return index_select(input, at, _repeated_positions(repeats, input.shape[at]))
    times = repeats.item() if isinstance(repeats, Tensor) else repeats
    if not isinstance(times, int) or isinstance(times, bool) or times < 0:
        raise ArgumentError("repeat_interleave", "repeats as a number from 0, or a tensor of them", repr(times))
    return repeat_interleave_(input, times, at)


def _repeated_positions(repeats: Tensor, length: int) -> Tensor:
    if repeats.array.dtype.kind not in "iu" or repeats.ndim != 1 or len(repeats) != length:
        got = f"{repeats.dtype.name} of shape {tuple(repeats.shape)}"
        raise ShapeError("repeat_interleave", f"{length} integers, one per element", got)
    if (repeats.array < 0).any():
        raise ArgumentError("repeat_interleave", "repeats from 0", f"{repeats.array.min()}")
    return Tensor(np.repeat(np.arange(length, like=repeats.array), repeats.array))


@op(cast=Cast.KEEP, moves=True, opaque=True)
def flip_(input: Array, dims):
    """input with the order along `dims` reversed."""
    return np.flip(input, dims).copy(), Saved()


@flip_.backward
def flip_backward(dy, saved, needs, dims):
    return np.flip(dy, dims)


def flip(input: Tensor, *dims: Any) -> Tensor:
    """input with the order along `dims` reversed."""
    over = parse_shape("flip", dims)
    return flip_(input, normalize_axes("flip", over, input.ndim) if over else ())


@op(cast=Cast.KEEP, moves=True, opaque=True)
def roll_(input: Array, shifts, dims):
    """input rolled along `dims`: elements shifted past the end re-enter at the start."""
    return np.roll(input, shifts, dims), Saved()


@roll_.backward
def roll_backward(dy, saved, needs, shifts, dims):
    return np.roll(dy, tuple([-s for s in shifts]) if type(shifts) is tuple else -shifts, dims)


def roll(input: Tensor, shifts: int | Sequence[int], dims: Any = None) -> Tensor:
    """input rolled along `dims`: elements shifted past the end re-enter at the start; without dims, flattened first."""
    if isinstance(shifts, Tensor):
        raise DTypeError("roll", "shifts as numbers", "a Tensor")
    by = (shifts,) if is_whole(shifts) else tuple(cast(Any, shifts))
    if dims is None:
        if len(by) != 1:
            raise ArgumentError("roll", "one shift, or a dim for each", f"{len(by)} shifts without dims")
        return roll_(input, by[0], None)
    over = normalize_axes("roll", dims, input.ndim)
    if len(by) != len(over):
        raise ArgumentError("roll", "as many shifts as dims", f"{len(by)} and {len(over)}")
    return roll_(input, by, over)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """input rotated k times by 90 degrees, from the first of two `dims` towards the second. A copy.

    Raises ShapeError unless dims are two different axes.
    """
    over = normalize_axes("rot90", tuple(dims), input.ndim) if len(dims) else ()
    if len(over) != 2:
        raise ShapeError("rot90", "two different dims", f"{dims} of shape {tuple(input.shape)}")
    if k % 2 == 0:
        return flip(input, over if k % 4 else ())
    return transpose(flip(input, over[1] if k % 4 == 1 else over[0]), *over)


def fliplr(input: Tensor) -> Tensor:
    """input with the order of its second axis reversed."""
    return flip(input, normalize_axis_of("fliplr", input, 1))


def flipud(input: Tensor) -> Tensor:
    """input with the order of its first axis reversed."""
    return flip(input, normalize_axis_of("flipud", input, 0))


def unfold_axis(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` along an axis, one every `step`: [.., n, ..] -> [.., windows, .., size]. A copy.

    A 0-d tensor counts as an axis of one element: [] -> [size]. Raises ShapeError for windows longer than the axis,
    ArgumentError for a step below 1.
    """
    if not input.ndim:
        return reshape(unfold_axis(reshape(input, 1), dimension, size, step), -1)[:size]
    at = normalize_axis_of("unfold", input, dimension)
    if step < 1 or size < 0:
        raise ArgumentError("unfold", "a size from 0 and a step from 1", f"size={size}, step={step}")
    if size > input.shape[at]:
        raise ShapeError("unfold", f"windows of at most {input.shape[at]}", f"{size}")
    starts = np.arange(0, input.shape[at] - size + 1, step)
    indices = backends.backend_of(input.array).constant((starts[:, None] + np.arange(size)).reshape(-1))
    taken = index_select(input, at, Tensor(indices))
    rows = reshape(taken, (*input.shape[:at], len(starts), size, *input.shape[at + 1 :]))
    return movedim(rows, at + 1, -1)

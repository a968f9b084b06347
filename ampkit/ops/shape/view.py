"""Shape and order of axes: reshape, squeeze, permute, transpose, broadcast_to, pixel_shuffle.

Results share memory where they can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core.arguments import shown
from ampkit.core.dispatch import always, of_contiguous
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_base import Shape

from ..argument_checks import (
    broadcast_shape,
    broadcasts_to,
    check_addressable,
    normalize_axes,
    normalize_axis,
    normalize_axis_of,
    parse_shape,
)

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_shapes", "broadcast_tensors", "broadcast_to",
    "channel_shuffle", "expand", "flatten", "moveaxis", "movedim", "permute", "pixel_shuffle", "pixel_unshuffle",
    "ravel", "reshape", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unflatten", "unsqueeze",
]  # fmt: skip


@op(cast=Cast.KEEP, moves=True, view=True)
def reshape_(input: Array, shape):
    """The elements of input in row-major order, in another shape."""
    return input.reshape(shape), Saved(shape=input.shape)


@reshape_.check
def reshape_check(input, shape):
    known = math.prod([n for n in shape if n != -1])
    missing = shape.count(-1)
    fits = input.size == known if not missing else missing == 1 and known and not input.size % known
    if not fits:
        needs = f"a shape of {input.size} elements, to hold {tuple(input.shape)}"
        raise ShapeError("reshape", needs, f"{tuple(shape)}")


@reshape_.backward
def reshape_backward(dy, saved, needs, shape):
    return dy.reshape(saved.shape)


reshape_.forward.reference.views = reshape_backward.reference.views = of_contiguous


def reshape(input: Tensor, *shape: Any) -> Tensor:
    """The elements of input in row-major order, in another shape; one -1 is inferred.

    Shares memory where the layout allows. Raises ShapeError if the number of elements differs.
    """
    return reshape_(input, parse_shape("reshape", shape))


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """input with the axes start_dim to end_dim merged into one. Raises ShapeError if start_dim is after end_dim."""
    first, last = normalize_axis("flatten", start_dim, input.ndim), normalize_axis("flatten", end_dim, input.ndim)
    if first > last:
        raise ShapeError("flatten", "start_dim before end_dim", f"{start_dim} and {end_dim}")
    shape = tuple(input.shape)
    middle = math.prod(shape[first : last + 1])
    return reshape_(input, (*shape[:first], middle, *shape[last + 1 :]))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """input with axis `dim` split into axes of `sizes`; one -1 is inferred."""
    at, shape, parts = normalize_axis_of("unflatten", input, dim), tuple(input.shape), list(sizes)
    if -1 in parts:
        parts[parts.index(-1)] = shape[at] // max(1, -math.prod(parts))
    if math.prod(parts) != shape[at]:
        raise ShapeError("unflatten", f"sizes whose product is {shape[at]}", f"{tuple(sizes)}")
    return reshape_(input, (*shape[:at], *parts, *shape[at + 1 :]))


def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """input without its axes of length 1, or without those among `dim` that have length 1."""
    squeezed = () if isinstance(dim, (tuple, list)) and not dim else normalize_axes("squeeze", dim, input.ndim)
    return reshape_(input, tuple([n for i, n in enumerate(input.shape) if n != 1 or i not in squeezed]))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """input with a new axis of length 1 at `dim`. Raises RangeError outside [-ndim - 1, ndim]."""
    at, shape = normalize_axis("unsqueeze", dim, input.ndim + 1), tuple(input.shape)
    return reshape_(input, (*shape[:at], 1, *shape[at:]))


@op(cast=Cast.KEEP, moves=True, view=True)
def permute_(input: Array, dims):
    """input with its axes in the order `dims`."""
    return input.transpose(dims), Saved()


@permute_.check
def permute_check(input, dims):
    if sorted(dims) == list(range(input.ndim)):  # most calls
        return
    if len(normalize_axes("permute", dims, input.ndim)) != input.ndim or len(dims) != input.ndim:
        raise ShapeError("permute", f"each of {input.ndim} dims once", f"{tuple(dims)}")


@permute_.backward
def permute_backward(dy, saved, needs, dims):
    order = [d % len(dims) for d in dims]
    return dy.transpose(tuple([order.index(i) for i in range(len(order))]))


permute_backward.reference.views = always


def permute(input: Tensor, *dims: Any) -> Tensor:
    """input with its axes in the order `dims`; shares memory. Raises ShapeError unless `dims` is a permutation."""
    return permute_(input, parse_shape("permute", dims))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """input with two axes swapped; shares memory."""
    a, b = normalize_axis("transpose", dim0, input.ndim), normalize_axis("transpose", dim1, input.ndim)
    order = list(range(input.ndim))
    if order:
        order[a], order[b] = b, a
    return permute_(input, tuple(order))


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; a vector is returned unchanged. Raises ShapeError for more than two axes."""
    if input.ndim > 2:
        raise ShapeError("t", "at most 2 axes", f"shape {tuple(input.shape)}", "use transpose or .mT")
    return transpose(input, 0, 1) if input.ndim == 2 else input


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """input with the axes `source` moved to `destination`, the other axes in order; shares memory."""
    from_axes = normalize_axes("movedim", source if isinstance(source, (tuple, list)) else (source,), input.ndim)
    to_axes = normalize_axes(
        "movedim", destination if isinstance(destination, (tuple, list)) else (destination,), input.ndim
    )
    if len(from_axes) != len(to_axes):
        raise ShapeError("movedim", "as many destinations as sources", f"{len(from_axes)} and {len(to_axes)}")
    order = [i for i in range(input.ndim) if i not in from_axes]
    for target, source_axis in sorted(zip(to_axes, from_axes, strict=True)):
        order.insert(target, source_axis)
    return permute_(input, tuple(order))


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """`transpose`, under NumPy's name."""
    return transpose(input, axis0, axis1)


moveaxis, swapdims = movedim, transpose


def _map_tensors(where: str, function: Any, tensors: tuple[Any, ...]) -> Any:
    args = tensors[0] if len(tensors) == 1 else tensors
    if isinstance(args, Tensor):
        return function(args)
    found = list(args)
    if foreign := [t for t in found if not isinstance(t, Tensor)]:
        raise DTypeError(where, "Tensors", f"{shown(foreign[0])} among them")
    return tuple([function(t) for t in found])


def atleast_1d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """One tensor, or several, with at least one axis: [] -> [1]."""
    return _map_tensors("atleast_1d", lambda t: reshape(t, 1) if not t.ndim else t, tensors)


def atleast_2d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """One tensor, or several, with at least two axes: [n] -> [1, n]."""
    return _map_tensors(
        "atleast_2d", lambda t: reshape(t, *(1,) * (2 - t.ndim), *t.shape) if t.ndim < 2 else t, tensors
    )


def atleast_3d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """One tensor, or several, with at least three axes: [n] -> [1, n, 1], [n, m] -> [n, m, 1]."""
    return _map_tensors(
        "atleast_3d", lambda t: reshape(atleast_2d(t), *atleast_2d(t).shape, 1) if t.ndim < 3 else t, tensors
    )


def ravel(input: Tensor) -> Tensor:
    """The flattened tensor, in row-major order; shares memory where it can."""
    return flatten(input)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Rearrange groups of r^2 channels to blocks of r x r pixels: [..., C r^2, H, W] -> [..., C, H r, W r].

    Raises ShapeError if r^2 does not divide the channels. Shi et al. 2016, arXiv:1609.05158, eq. 4.
    """
    r = upscale_factor
    lead, (channels, high, wide) = input.shape[:-3], _image_shape("pixel_shuffle", input)
    if r < 1 or channels % (r * r):
        raise ShapeError("pixel_shuffle", f"channels that {r} * {r} divides", f"{channels}")
    blocks = reshape(input, (*lead, channels // (r * r), r, r, high, wide))
    n = len(lead)
    blocks = permute(blocks, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshape(blocks, (*lead, channels // (r * r), high * r, wide * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Rearrange blocks of r x r pixels to groups of r^2 channels: [..., C, H r, W r] -> [..., C r^2, H, W].

    Raises ShapeError if r does not divide height and width.
    """
    r = downscale_factor
    lead, (channels, high, wide) = input.shape[:-3], _image_shape("pixel_unshuffle", input)
    if r < 1 or high % r or wide % r:
        raise ShapeError("pixel_unshuffle", f"a height and a width that {r} divides", f"{high} and {wide}")
    blocks = reshape(input, (*lead, channels, high // r, r, wide // r, r))
    n = len(lead)
    blocks = permute(blocks, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshape(blocks, (*lead, channels * r * r, high // r, wide // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Interleave the channels of `groups` groups: [N, C, ...] -> [N, C, ...].

    Raises ShapeError if groups does not divide the channels. Zhang et al. 2017, arXiv:1707.01083, sec. 3.1.
    """
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise ShapeError("channel_shuffle", f"input [N, C, ...] with {groups} groups of channels", f"{input.shape}")
    batch, channels, *size = input.shape
    split = reshape(input, (batch, groups, channels // groups, *size))
    return reshape(permute(split, (0, 2, 1, *range(3, split.ndim))), input.shape)


def _image_shape(where: str, input: Tensor) -> tuple[int, ...]:
    if input.ndim < 3:
        raise ShapeError(where, "input [..., C, H, W]", f"shape {tuple(input.shape)}")
    return input.shape[-3:]


@op(cast=Cast.KEEP, moves=True, view=True, numpy=np.broadcast_to)
def broadcast_to(input: Array, shape):
    """input repeated along axes of length 1, and along new leading axes, to `shape`; shares memory.

    The result can be changed in place unless it shows an element several times.
    Raises ShapeError if input does not broadcast to it.
    """
    # NumPy makes each of its broadcasts read-only, also one that repeats nothing.
    by = np.reshape if input.size == math.prod(shape) else np.broadcast_to
    try:
        return by(input, shape), Saved()
    except TypeError:  # of bools, which count as 0 and 1 elsewhere
        return by(input, tuple(map(int, shape))), Saved()


@broadcast_to.check
def broadcast_to_check(input, shape):
    check_addressable("broadcast_to", parse_shape("broadcast_to", (shape,)))
    if not isinstance(shape, (tuple, list)):
        raise DTypeError("broadcast_to", "a shape", repr(shape))
    if min(shape, default=0) < 0 or not broadcasts_to(input.shape, tuple(shape)):
        raise ShapeError("broadcast_to", f"a shape that {tuple(input.shape)} broadcasts to", f"{tuple(shape)}")


@broadcast_to.backward
def broadcast_to_backward(dy, saved, needs, shape):
    return dy  # the tape sums what broadcasting repeated


broadcast_to.forward.reference.views = broadcast_to_backward.reference.views = of_contiguous  # it may reshape


def expand(input: Tensor, *size: Any) -> Tensor:
    """input repeated along its axes of length 1, and along new leading axes; -1 keeps the length. Shares memory."""
    shape = list(parse_shape("expand", size))
    new = len(shape) - input.ndim
    for i, n in enumerate(shape):
        if n == -1 and i >= new >= 0:
            shape[i] = input.shape[i - new]
    return broadcast_to(input, tuple(shape))


def broadcast_shapes(*shapes: int | Sequence[int]) -> Shape:
    """The shape that `shapes` broadcast to. Raises ShapeError if they do not."""
    parsed = [parse_shape("broadcast_shapes", (s,)) for s in shapes]
    return Shape(broadcast_shape("broadcast", *parsed))


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, broadcast to their common shape; the results share memory."""
    shape = tuple(broadcast_shapes(*(t.shape for t in tensors)))
    return tuple([broadcast_to(t, shape) for t in tensors])

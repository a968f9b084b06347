"""Memory formats: in which order the axes of an array are stored.

"contiguous_format" stores the last axis innermost; "channels_last" stores images [N, C, H, W] as [N, H, W, C], and
"channels_last_3d" volumes [N, C, D, H, W] as [N, D, H, W, C]; "preserve_format" is the order of the source, if that is
dense, else contiguous_format.
"""

from __future__ import annotations

from typing import Any

from .errors import ArgumentError, ShapeError

# The values of `layout`: of arrays, and of sparse tensors.
strided, sparse_coo, sparse_csr, sparse_csc = "strided", "torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc"

# The values of `memory_format`.
contiguous_format, preserve_format = "contiguous_format", "preserve_format"
channels_last, channels_last_3d = "channels_last", "channels_last_3d"

_AXES = {channels_last: 4, channels_last_3d: 5}
_FORMATS = (contiguous_format, preserve_format, *_AXES)


def need_format(where: str, memory_format: Any, ndim: int | None = None) -> str:
    """memory_format, one of the formats. Raises ArgumentError; ShapeError if it has another number of axes."""
    if not isinstance(memory_format, str) or memory_format not in _FORMATS:
        raise ArgumentError(where, f"memory_format as one of {', '.join(_FORMATS)}", repr(memory_format)[:80])
    if ndim is not None and _AXES.get(memory_format, ndim) != ndim:
        raise ShapeError(where, f"{_AXES[memory_format]} axes for {memory_format}", f"{ndim}")
    return memory_format


def is_stored_as(array: Any, memory_format: str) -> bool:
    """Whether an array is stored in that format; False where the format has another number of axes."""
    if memory_format in _AXES:
        return bool(array.ndim == _AXES[memory_format] and with_channels_inner(array).flags.c_contiguous)
    return bool(array.flags.c_contiguous)


def stored_order(array: Any, memory_format: str | None) -> tuple[int, ...]:
    """The axes of a copy in that format, from the outermost in memory to the innermost."""
    axes = range(array.ndim)
    if memory_format in _AXES:
        return (0, *axes[2:], 1)
    if memory_format in (None, preserve_format) and not array.flags.c_contiguous:
        order = tuple(sorted(axes, key=lambda axis: -array.strides[axis]))
        if array.transpose(order).flags.c_contiguous:
            return order
    return tuple(axes)


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `order`."""
    places = [0] * len(order)
    for place, axis in enumerate(order):
        places[axis] = place
    return tuple(places)


def channels_are_last(array: Any) -> bool:
    """Whether the axes of images [N, C, *size] are stored in the order N, *size, C, with gaps or without."""
    if array.flags.c_contiguous or array.ndim < 3 or not array.strides[1]:
        return False
    inner = 0
    for axis in (1, *range(array.ndim - 1, 1, -1), 0):
        if array.strides[axis] < inner or not array.shape[axis]:
            return False
        inner = array.strides[axis] * array.shape[axis]
    return True


def with_channels_inner(array: Any) -> Any:
    """[N, C, *size] -> [N, *size, C], a view."""
    return array.transpose(0, *range(2, array.ndim), 1)

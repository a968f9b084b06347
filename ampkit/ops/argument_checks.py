"""Checks of arguments: dims, shapes, operands and values; and `checked`, which checks a function's annotations.

Ops check their tensors themselves (see core/cast_plan.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, wraps
from inspect import isfunction
from math import prod
from operator import index
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base import dtypes
from ampkit.base.errors import AmpkitError, ArgumentError, DTypeError, OutOfMemoryError, RangeError, ShapeError
from ampkit.base.formats import need_arithmetic
from ampkit.core.arguments import MOST, Checks, shown
from ampkit.core.autograd.traced_array import plain
from ampkit.core.nested import tensors_in
from ampkit.core.tensor import Tensor

# functions whose tensors may be on several devices; the first one's becomes current
_OF_SEVERAL_DEVICES = {"to", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"}


def checked(function: Any) -> Any:
    """Wrap a function or method so that it raises DTypeError or ArgumentError for arguments its annotations exclude.

    Ops, classes and functions from outside ampkit are returned unchanged.
    """
    if not isfunction(function) or not function.__module__.startswith("ampkit."):
        return function
    outer, _, inner = function.__qualname__.partition(".")
    is_method = bool(inner) and "<locals>" not in inner
    names_method = is_method and inner != "forward" and not inner.startswith("_")
    checks: list[Checks] = []  # built at the first call: annotations name classes that are defined later

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not checks:
            checks.append(Checks(function))
        where = type(args[0]).__name__ if is_method and args else outer
        if names_method:
            where = f"{where}.{inner}"
        args, kwargs = checks[0](where, args, kwargs)
        device = None if backends.gpus is None else _enter(where, args, kwargs)
        try:
            return function(*args, **kwargs)
        except MemoryError as error:
            raise backends.out_of_memory_error([a.array for a in args if isinstance(a, Tensor)], error) from None
        finally:
            if device is not None:
                backends.gpus.leave(device)

    return call


def _enter(where: str, args: Any, kwargs: Any) -> Any:
    # Make the device of the tensors current; DeviceError if there are several.
    arrays = [t._array for t in tensors_in((args, kwargs))]
    return backends.gpus.enter(where, arrays[:1] if where in _OF_SEVERAL_DEVICES else arrays)


def check_all(names: dict[str, Any]) -> None:
    """Replace the public functions of a module by their `checked` versions; names: the module's `globals()`."""
    for name, item in list(names.items()):
        if not name.startswith("_") and isfunction(item) and item.__module__ == names["__name__"]:
            names[name] = checked(item)


def check_methods(*classes: type, but: Sequence[str] = ()) -> None:
    """Replace the public methods that each class itself defines by their `checked` versions.

    Not `forward`, nor those of `but`: they are called for each of many modules, and check what is wrong themselves.
    """
    for kind in classes:
        for name, item in list(vars(kind).items()):
            if not name.startswith("_") and name not in ("forward", *but) and isfunction(item):
                setattr(kind, name, checked(item))


def normalize_axis(where: str, dim: Any, ndim: int) -> int:
    """Return `dim` as an axis in [0, ndim); a 0-d tensor accepts -1 and 0.

    Raises RangeError outside [-ndim, ndim), DTypeError for a non-integer.
    """
    if type(dim) is int and -ndim <= dim < ndim:  # most calls
        return dim % ndim
    try:
        if type(dim) is bool:
            raise TypeError
        dim = index(dim)
    except TypeError:
        raise DTypeError(where, "dim as an integer", repr(dim)) from None
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise RangeError(where, f"dim from {-max(ndim, 1)} to {max(ndim, 1) - 1}", f"{dim}")
    return dim % max(ndim, 1)


def normalize_axis_of(where: str, input: Any, dim: Any) -> int:
    """`normalize_axis` for `input`; raises ShapeError for a 0-d tensor."""
    if not input.ndim:
        raise ShapeError(where, "a tensor with at least one axis", "a 0-d tensor")
    return normalize_axis(where, dim, input.ndim)


def normalize_axes(where: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """Return `dim`, one axis or several, as a tuple of axes in [0, ndim); None and () mean all axes.

    Raises ShapeError for a repeated axis, RangeError for an axis out of range.
    """
    if type(dim) is int and -ndim <= dim < ndim:  # most calls
        return (dim % ndim,)
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return tuple(range(ndim))
    if not isinstance(dim, (tuple, list)):
        axis = normalize_axis(where, dim, ndim)
        return (axis,) if ndim else ()  # a 0-d tensor accepts dim 0 and -1, which select no axis
    found = tuple([d % ndim if type(d) is int and -ndim <= d < ndim else normalize_axis(where, d, ndim) for d in dim])
    if len(set(found)) < len(found):
        raise ShapeError(where, "each dim once", f"{tuple(dim)}")
    return found if ndim else ()


_MAX_ELEMENTS = 1 << 47  # as many bytes as a 64-bit process can address


def check_addressable(where: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape`; raise OutOfMemoryError if it has more elements than any memory holds."""
    if prod([max(n, 1) for n in shape]) >= _MAX_ELEMENTS:
        raise OutOfMemoryError(where, "a shape that memory can hold", f"{shape}")
    return shape


def check_count(where: str, name: str, value: Any) -> int:
    """Return `value` as a number of elements; raise ArgumentError below 0, OutOfMemoryError beyond any memory."""
    if value < 0:
        raise ArgumentError(where, f"{name} from 0", f"{value}")
    return check_addressable(where, (int(value),))[0]


def parse_shape(where: str, given: tuple[Any, ...]) -> tuple[int, ...]:
    """Parse a shape from variadic integers or one sequence: `view(2, 3)`, `view((2, 3))`.

    Raises DTypeError for non-integers, ArgumentError for sizes beyond 64 bits.
    """
    found = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    try:
        shape = tuple([index(n) for n in found])
    except TypeError:
        raise DTypeError(where, "a shape of integers", ", ".join(map(shown, found))) from None
    if shape and max(shape) > MOST:
        raise ArgumentError(where, "sizes within 64 bits", f"{shape}")
    return shape


def describe_int_tuple(axes: int) -> str:
    """Describe in words what `int_tuple` accepts for `axes` axes."""
    return {1: "an integer", 2: "an integer or a pair"}.get(axes, f"an integer or {axes}")


_MAX_INT = 1 << 40  # products of two such numbers still fit in 64 bits with room for strides


def are_ints(values: tuple[Any, ...]) -> bool:
    """Whether all values are Python integers, and none of them a bool."""
    return set(map(type, values)) <= {int}


def int_tuple(where: str, name: str, value: Any, least: int, axes: int = 2) -> tuple[int, ...]:
    """Return `value`, an integer or one per axis, as a tuple of `axes` integers.

    Raises ArgumentError for anything else and for integers below `least`.
    """
    if type(value) is int and least <= value < _MAX_INT:  # most calls
        return (value,) * axes
    if type(value) is tuple and len(value) == axes and are_ints(value) and least <= min(value) <= max(value) < _MAX_INT:
        return value
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    found = tuple(value) if isinstance(value, (list, tuple)) else (value,) * axes
    if len(found) != axes or not all(isinstance(v, (int, np.integer)) and v >= least for v in found):
        need = describe_int_tuple(axes) + (" of them" if axes > 1 else "")
        raise ArgumentError(where, f"{name} as {need}, at least {least}", repr(value))
    if any(v >= _MAX_INT for v in found):
        raise ArgumentError(where, f"{name} below {_MAX_INT}", shown(value))
    return tuple([int(v) for v in found])


def broadcast_or_none(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that `shapes` broadcast to, or None."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def broadcast_shape(where: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that `shapes` broadcast to; raise ShapeError if they do not."""
    shape = broadcast_or_none(*shapes)
    if shape is None:
        raise ShapeError(where, "shapes that broadcast", " and ".join(str(tuple(shape)) for shape in shapes))
    return shape


def check_representable(where: str, dtype: dtypes.DType, value: float) -> None:
    """Raise ArgumentError if `dtype` cannot represent `value`: -1e9, usual in attention masks, overflows float16."""
    if dtype in dtypes.NARROW:
        raise DTypeError(where, "a dtype with arithmetic", dtypes.name_of(dtype), "fill it in float32, and cast it")
    if dtypes.is_float(dtype):
        limits = _limits(dtype)
        if math.isfinite(value) and abs(value) > limits.max:
            cure = f'use float("-inf"), or finfo(input.dtype).min = {limits.min:g}'
            raise ArgumentError(where, f"a value that {dtype.name} holds (largest {limits.max:g})", f"{value:g}", cure)
    elif dtype != dtypes.bool_ and (not math.isfinite(value) or value != int(value)):
        raise ArgumentError(where, f"a whole number, for {dtype.name}", f"{value}", "cast the tensor: x.float()")
    elif dtype != dtypes.bool_ and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise ArgumentError(where, f"a number that {dtype.name} holds", f"{value}", "cast the tensor: x.long()")


_limits = cache(dtypes.finfo)


def check_ndim(where: str, name: str, array: Any, axes: str) -> None:
    shape = np.shape(array)
    if len(shape) != axes.count(",") + 1:
        raise ShapeError(where, f"{name} {axes}", f"{name} {list(shape)}")


def check_factor(where: str, name: str, array: Any, other: str, like: Any, axes: str, like_axes: str) -> None:
    """Raise ShapeError unless `like` has the axes `like_axes` and `array` the axes `axes`.

    In `axes`, {i} stands for the length of axis i of `like`: `"[{1}, N]"` for a second matrix.
    """
    check_ndim(where, other, like, like_axes)
    shape, lengths, found = np.shape(array), like.shape, _axes_of(axes)
    fits = len(shape) == len(found)
    for n, axis in zip(shape, found, strict=False):
        fits = fits and (axis is None or lengths[axis] == n)
    if not fits:
        wanted = axes.format(*lengths)
        raise ShapeError(where, f"{name} {wanted} for {other} {list(lengths)}", f"{name} {list(shape)}")


@cache
def _axes_of(axes: str) -> list[int | None]:
    # "[{0}, {2}, N]" -> [0, 2, None]
    return [int(part[1:-1]) if part.startswith("{") else None for part in axes.strip("[]").split(", ")]


def broadcasts_to(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to the shape `full`."""
    return len(shape) <= len(full) and all(n in (1, m) for n, m in zip(shape[::-1], full[::-1], strict=False))


def check_addend(where: str, input: Any, shape: tuple[int, ...]) -> None:
    if not broadcasts_to(np.shape(input), shape):
        raise ShapeError(where, f"input that broadcasts to {list(shape)}", f"input {list(np.shape(input))}")


REDUCTIONS = ("none", "mean", "sum")


def check_reduction(where: str, reduction: Any, allowed: tuple[str, ...] = REDUCTIONS) -> None:
    """Raise ArgumentError unless `reduction` is one of `allowed`."""
    if reduction not in allowed:
        raise ArgumentError(where, f"reduction {', '.join(map(repr, allowed))}", repr(reduction))


def integer_factor(where: str, name: str, factor: Any, *operands: Any) -> Any:
    """Return `factor`, as an int if all operands are integers, which a float would promote.

    Raises ArgumentError for a fraction with integer operands.
    """
    kinds = {a.dtype.kind for a in operands if hasattr(a, "dtype")}
    if not isinstance(factor, float) or not kinds <= {"b", "i", "u"}:
        return factor
    if not math.isfinite(factor) or factor != int(factor):
        raise ArgumentError(where, f"a whole {name} for integers", f"{factor}", "cast first: x.float()")
    return int(factor)


def check_values(
    where: str, values: Any, bad: Any, needs: str, cure: str | None = None, error: type[AmpkitError] = RangeError
) -> None:
    """Raise `error` for the first of `values` that the mask `bad` marks. On a GPU the error comes from a later call."""

    def fail(value: Any, position: Any) -> None:
        raise error(where, needs, f"{value} at position {position}", cure)

    backends.backend_of(values).raise_if(values, bad, fail)


def check_floating(where: str, input: Tensor) -> None:
    """Raise DTypeError unless the elements are floating-point numbers."""
    if not input.is_floating_point():
        raise DTypeError(where, "a floating-point tensor", input.dtype.name, "cast it: x.float()")
    need_arithmetic(where, input)


def check_index_range(name: str, index: Any, length: int, lowest: int = 0) -> None:
    """Raise RangeError for an index outside [lowest, length). On a GPU the error comes from a later call."""
    if isinstance(index, np.ndarray) and index.size:  # making a mask takes longer
        if lowest == 0 and index.dtype == np.int64:  # negative numbers, read as unsigned ones, are the largest
            found = index.view(np.uint64).max() < length
        else:
            found = lowest <= index.min() and index.max() < length
        if found:
            return
    check_values(name, index, (index < lowest) | (index >= length), f"indices from {lowest} to {length - 1}")


def check_integer_index(name: str, index: Any) -> None:
    """Raise DTypeError for an index of floats or booleans."""
    if plain(index).dtype.kind not in "iu":
        raise DTypeError(name, "an index of integers", dtypes.name_of(plain(index).dtype))


def axis_length(input: Any, dim: int) -> int:
    """Return the length of axis `dim`; a 0-d tensor counts as length 1."""
    return input.shape[dim] if input.ndim else 1

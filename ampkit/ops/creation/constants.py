"""Tensors of constants, zeros, ones, full, eye and their `*_like` forms, and of data: numbers, lists, arrays, buffers.

Everywhere: dtype (the default dtype, float32, by default), device (the CPU), requires_grad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.bool_bytes import need_bool_bytes
from ampkit.backends.format_casts import byte_of
from ampkit.base import dtypes
from ampkit.base.dtypes import DIFFERENTIABLE, NARROW, DType, bool_, int64
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.capture.recorder import recorders
from ampkit.core.dispatch.batching.array import own_of_each
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor

from ..argument_checks import check_addressable, check_count, check_representable, check_values, parse_shape
from ..named import named
from ..pointwise.comparison import eq
from ..pointwise.conversion import to
from ..shape.view import unsqueeze

__all__ = [
    "as_tensor", "asarray", "empty", "empty_like", "eye", "from_numpy", "frombuffer", "full", "full_like", "one_hot",
    "ones", "ones_like", "scalar_tensor", "tensor", "zero_", "zeros", "zeros_like",
]  # fmt: skip


def tensor_from_values(
    values: Any, dtype: Any, device: Any, requires_grad: bool, default: DType | None = None, constant: bool = False
) -> Tensor:
    default = dtypes.default() if default is None else default
    wanted = default if dtype is None else dtypes.parse(dtype)
    with ignore_fp_errors():
        made = (
            backends.cpu.cast(np.asarray(values), wanted)
            if wanted in NARROW
            else np.asarray(values).astype(wanted, copy=False)
        )
    there = backends.get(device)
    return Tensor(there.constant(made) if constant else there.asarray(made), requires_grad)


def parse_size(where: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    shape = parse_shape(where, size)
    if any(n < 0 for n in shape):
        raise ShapeError(where, "sizes from 0", f"{shape}")
    return check_addressable(where, shape)


def _filled(shape: tuple[int, ...], value: Any, dtype: DType, device: Any, requires_grad: bool) -> Tensor:
    # The value is converted once, not at every element of an array in its own dtype.
    with ignore_fp_errors():
        one = _element(value, dtype)
    made = backends.cpu.full(shape, one) if one.ndim == 0 else np.full(shape, one)
    return Tensor(backends.get(device).constant(made), requires_grad)


def _element(value: Any, dtype: DType) -> Any:
    return np.asarray(byte_of(value, dtype)).view(dtype) if dtype in NARROW else np.asarray(value).astype(dtype)


def full(size: Any, fill_value: float, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of `size`, filled with `fill_value`; bool, int64 or float32 by its type.

    Raises ArgumentError for a number that an integer `dtype` cannot represent.
    """
    kind = {bool: bool_, int: int64}.get(type(fill_value), dtypes.default())
    wanted = kind if dtype is None else dtypes.parse(dtype)
    if wanted not in DIFFERENTIABLE:
        check_representable("full", wanted, fill_value)
    return _filled(parse_size("full", (size,)), fill_value, wanted, device, requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    return Tensor(backends.get(device).zeros(parse_size("zeros", size), wanted), requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    return _filled(parse_size("ones", size), 1, wanted, device, requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of uninitialized memory."""
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    return Tensor(backends.get(device).empty(parse_size("empty", size), wanted), requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The identity matrix [n, m], m = n by default."""
    n, m = check_count("eye", "n", n), check_count("eye", "m", n if m is None else m)
    check_addressable("eye", (n, m))
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    made = backends.cpu.full((n, m), np.zeros((), wanted))
    made.reshape(-1)[: m * min(n, m) : m + 1] = _element(1, wanted)
    return Tensor(backends.get(device).constant(made), requires_grad)


def _constant_like(make: Callable[..., Tensor], what: str) -> Callable[..., Tensor]:
    @named(f"{make.__name__}_like", f"{what}, with input's shape, dtype and device.")
    def like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        made = make(tuple(input.shape), **options_like(input, dtype, device, requires_grad))
        made.array = own_of_each(made.array, input.array)
        return made

    return like


def options_like(input: Tensor, dtype: Any, device: Any, requires_grad: bool) -> dict[str, Any]:
    device = input.device if device is None else device
    return {"dtype": input.dtype if dtype is None else dtype, "device": device, "requires_grad": requires_grad}


zeros_like = _constant_like(zeros, "Zeros")
ones_like = _constant_like(ones, "Ones")
empty_like = _constant_like(empty, "Uninitialized memory")


def full_like(
    input: Tensor, fill_value: float, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`fill_value` throughout, with input's shape, dtype and device."""
    made = full(tuple(input.shape), fill_value, **options_like(input, dtype, device, requires_grad))
    made.array = own_of_each(made.array, input.array)
    return made


def zero_(input: Tensor) -> Tensor:
    """`Tensor.zero_`: overwrite every element of input with 0."""
    return input.zero_()


_MANY = 1 << 12  # elements of one-hot vectors; comparing more labels with each class takes longer than marking it


def as_tensor(data: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """Convert `data` to a tensor; no copy if it is a tensor or array of this dtype and device already."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if (
        isinstance(data, np.ndarray)
        and (dtype is None or data.dtype == dtypes.parse(dtype))
        and device in (None, "cpu")
    ):
        return from_numpy(data)
    return tensor(data, dtype, device)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor that shares the memory of a NumPy array.

    Of an array of a subclass (np.matrix, np.memmap) it takes the memory alone. Raises DTypeError for anything but an
    array of numbers in native byte order, ArgumentError for bools whose bytes are neither 0 nor 1, and for a
    np.ma.MaskedArray that hides elements.
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError("from_numpy", "a NumPy array", type(array).__name__, "use ampkit.tensor(...)")
    return _shared("from_numpy", backends.plain(array, "from_numpy"))


def _shared(where: str, array: np.ndarray[Any, Any]) -> Tensor:
    need_bool_bytes(where, array)
    made = Tensor(array)
    made.exposed()
    return made


def asarray(
    obj: Any, *, dtype: Any = None, device: str | None = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """Convert `obj` to a tensor off the tape; copies only if needed, or always with copy=True.

    Raises ArgumentError for copy=False, which cannot be guaranteed.
    """
    if copy is False:
        raise ArgumentError("asarray", "copy None or True", "False", "use ampkit.from_numpy for a NumPy array")
    made = tensor(obj, dtype, device) if copy else as_tensor(obj, dtype, device).detach()
    return made.requires_grad_(requires_grad)


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A tensor [n] over the memory of a buffer, such as bytes: `count` elements (-1: all) starting at byte `offset`.

    Read-only memory gives a tensor that raises on in-place ops. Raises DTypeError for an object that is not a buffer,
    ArgumentError if the buffer is too small, or for bools whose bytes are neither 0 nor 1.
    """
    try:
        found = np.frombuffer(buffer, dtypes.parse(dtype), count, offset)
    except ValueError as error:
        raise ArgumentError("frombuffer", "a buffer that holds these elements", str(error)) from None
    except (TypeError, BufferError):
        raise DTypeError("frombuffer", "a buffer", f"a {type(buffer).__name__}") from None
    return _shared("frombuffer", found).requires_grad_(requires_grad)


def scalar_tensor(
    s: Tensor | float, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A 0-d tensor of a number, float32 by default."""
    return tensor(s, dtypes.default() if dtype is None else dtype, device, requires_grad)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """One-hot vectors of class indices: [...] integers -> [..., num_classes] int64.

    num_classes=-1 means the largest class + 1. Raises RangeError for a class outside [0, num_classes).
    """
    labels = tensor.array
    if labels.dtype.kind not in "iu":
        raise DTypeError("one_hot", "integers", dtypes.name_of(labels.dtype))
    classes = (int(labels.max()) + 1 if labels.size else 0) if num_classes == -1 else num_classes
    check_addressable("one_hot", (labels.size, max(classes, 0)))
    check_values("one_hot", labels, (labels < 0) | (labels >= classes), f"classes from 0 to {classes - 1}")
    if recorders:  # which follow ops
        return to(eq(unsqueeze(tensor, -1), Tensor(np.arange(classes, like=labels))), dtype=int64)
    if isinstance(labels, np.ndarray) and labels.flags.c_contiguous and labels.size * classes >= _MANY:
        out = backends.cpu.full((*labels.shape, max(int(classes), 0)), np.zeros((), np.int64))
        out.reshape(-1)[np.arange(labels.size) * out.shape[-1] + labels.reshape(-1).astype(np.int64)] = 1
        return Tensor(out)
    return Tensor((labels[..., None] == np.arange(classes, like=labels)).astype(np.int64))

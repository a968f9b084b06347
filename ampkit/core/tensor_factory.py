"""`tensor`, from values to a Tensor, and `FloatTensor` and its like, PyTorch's older names for a dtype on a device."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError, ShapeError
from .fp_errors import ignore_fp_errors
from .tensor import Tensor
from .tensor_base import Shape


@ignore_fp_errors()
def tensor(data: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """A new tensor with a copy of `data`: numbers, nested lists, an array, a Tensor.

    Python floats become float32 (or see set_default_dtype), integers int64; arrays keep their dtype without `dtype`.
    Raises DTypeError for values that are no numbers, ShapeError for ragged lists, DeviceError for an unknown device.
    """
    values = data.array if isinstance(data, Tensor) else data
    wanted = None if dtype is None else dtypes.parse(dtype)
    made = backends.get(device).asarray(_array(values, wanted))
    return Tensor(made, requires_grad)


def _array(values: Any, wanted: dtypes.DType | None) -> Array:
    if hasattr(values, "dtype") and hasattr(values, "shape"):
        kind = dtypes.parse(values.dtype)
        return np.array(values, kind if wanted is None else wanted)
    try:
        made = np.array(_plain(values))
    except ValueError as error:
        raise ShapeError("tensor", "nested lists of equal lengths", str(error).partition(".")[0]) from None
    except OverflowError as error:
        raise ArgumentError("tensor", "numbers in range", str(error)) from None
    if made.dtype.kind not in "bif" and made.size:
        raise DTypeError("tensor", "numbers", f"values of type {made.dtype}")
    return made.astype(wanted or (made.dtype if made.dtype.kind in "bi" else dtypes.default()))


def _plain(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.tolist()
    return [_plain(v) for v in values] if isinstance(values, (list, tuple)) else values


KINDS = {
    "Double": dtypes.float64, "Float": dtypes.float32, "Half": dtypes.float16, "BFloat16": dtypes.bfloat16,
    "Long": dtypes.int64, "Int": dtypes.int32, "Short": dtypes.int16, "Char": dtypes.int8, "Byte": dtypes.uint8,
    "Bool": dtypes.bool_,
}  # fmt: skip


class TensorType:
    """A dtype on a kind of device: `FloatTensor(2, 3)` of a shape, `FloatTensor([1, 2])` of values, which are copied.

    `isinstance(x, FloatTensor)`, `x.type(FloatTensor)` and `x.type() == "torch.FloatTensor"` ask and cast.
    """

    def __init__(self, name: str, dtype: dtypes.DType, device: str):
        self.name, self.dtype, self.device = name, dtype, device

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007  (in annotations: `FloatTensor | None`)

    __ror__ = __or__

    def __call__(self, *args: Any) -> Tensor:
        return made_of(args, self.dtype, self.device)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype == self.dtype and value.device.type == self.device

    def __repr__(self) -> str:
        return self.name


def made_of(args: tuple[Any, ...], dtype: dtypes.DType, device: str | None) -> Tensor:
    """What a constructor of PyTorch's older kind makes: zeros of a shape, or a tensor of values."""
    if len(args) == 1 and not isinstance(args[0], (int, Shape)):
        return tensor(args[0], dtype, device)
    shape = tuple(args[0]) if args and isinstance(args[0], Shape) else args or (0,)
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise ArgumentError("Tensor", "values, or sizes from 0", repr(args)[:80])
    return Tensor(backends.get(device).zeros(shape, dtype))


BY_NAME = {
    f"{space}.{kind}Tensor": TensorType(f"{space}.{kind}Tensor", dtype, device)
    for space, device in (("torch", "cpu"), ("torch.cuda", "cuda"))
    for kind, dtype in KINDS.items()
}


def type_of(value: Tensor) -> str:
    """The older name of a tensor's dtype and device: "torch.cuda.HalfTensor"."""
    return next(name for name, kind in BY_NAME.items() if kind.__instancecheck__(value))


def type_named(name: Any) -> Any:
    """The TensorType of an older name; other values as they are. Raises DTypeError for an unknown name."""
    if isinstance(name, str) and name.startswith("torch."):
        if name not in BY_NAME:
            raise DTypeError("type", f"one of {', '.join(BY_NAME)}", repr(name))
        return BY_NAME[name]
    return name


def set_default_tensor_type(t: Any) -> None:
    """Make `t`, a TensorType or its name, the default dtype and device: see set_default_dtype, set_default_device."""
    kind = type_named(t)
    if not isinstance(kind, TensorType):
        raise DTypeError("set_default_tensor_type", "a type such as 'torch.FloatTensor'", repr(t)[:80])
    dtypes.set_default(kind.dtype)
    backends.set_default_device(kind.device)

"""`tensor`, from values to a Tensor, and `FloatTensor` and its like, PyTorch's older names for a dtype on a device."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes, public_dtypes
from ..base.array_kinds import need_unmasked
from ..base.errors import ArgumentError, DTypeError, ShapeError
from .arguments import is_number
from .dlpack import is_foreign, to_tensor
from .fp_errors import ignore_fp_errors
from .tensor import Tensor
from .tensor_base import Shape

_NO_VALUES = (type, public_dtypes.dtype)  # which have a dtype and a shape, as arrays do


@ignore_fp_errors()
def tensor(data: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """A new tensor with a copy of `data`: numbers, arrays, tensors (of other libraries too), nested lists of them.

    Without `dtype` arrays, tensors and NumPy's numbers keep theirs, Python floats become float32 (or see
    set_default_dtype), integers int64, and a list has the dtype that its items promote to.
    Raises DTypeError for values that are no numbers, ShapeError for ragged lists, ArgumentError for an integer that the
    dtype does not hold, DeviceError for an unknown device.
    """
    wanted = None if dtype is None else dtypes.parse(dtype)
    if is_foreign(data):
        data = to_tensor(data)
    values = data.array if isinstance(data, Tensor) else data
    made = backends.get(device).asarray(_array(values, wanted))
    return Tensor(made, requires_grad)


def _array(values: Any, wanted: dtypes.DType | None) -> Array:
    if hasattr(values, "dtype") and hasattr(values, "shape") and not isinstance(values, _NO_VALUES):
        need_unmasked(values, "tensor")
        values = dtypes.stored(values)
        if wanted in dtypes.NARROW or values.dtype in dtypes.NARROW:
            kind = dtypes.parse(values.dtype) if wanted is None else wanted
            return np.asarray(backends.backend_of(values).cast(values, kind))
        kind = wanted if wanted is not None and values.dtype.kind in "biu" else dtypes.parse(values.dtype)
        return np.array(_of_bools(values), kind if wanted is None else wanted)
    found: set[dtypes.DType] = set()
    plain = _plain(values, found)
    kind = wanted or (dtypes.promote(*found) if found else dtypes.default())
    try:
        made = np.array(plain, dtypes.float64 if kind in dtypes.DIFFERENTIABLE else kind)
    except (ValueError, OverflowError) as error:
        if "cannot convert" in str(error) or isinstance(error, OverflowError):
            raise ArgumentError("tensor", f"numbers that {kind.name} holds", str(error)) from None
        raise ShapeError("tensor", "nested lists of equal lengths", str(error).partition(".")[0]) from None
    return backends.cpu.cast(made, kind) if kind in dtypes.NARROW else made.astype(kind, copy=False)


def _plain(values: Any, found: set[dtypes.DType]) -> Any:
    # What NumPy makes an array of, with the dtypes of its items added to `found`.
    if isinstance(values, (list, tuple)):
        types = set(map(type, values))
        if not _PYTHON.issuperset(types):
            return [_plain(value, found) for value in values]
        found.update(map(_of_python, types))
        return values
    if type(values) in _PYTHON:
        found.add(_of_python(type(values)))
        return values
    if is_foreign(values):
        values = to_tensor(values)
    if isinstance(values, Tensor):
        values = backends.backend_of(values.array).to_numpy(values.array)
    if not hasattr(values, "dtype") or isinstance(values, _NO_VALUES):
        return _converted(values, found)
    need_unmasked(values, "tensor")
    kind = dtypes.parse(values.dtype)
    found.add(kind)
    return _of_bools(backends.cpu.cast(dtypes.stored(values), dtypes.float32) if kind in dtypes.NARROW else values)


def _of_bools(values: Any) -> Any:
    # NumPy, too, casts a byte of 2 to 2.
    if isinstance(values, np.ndarray) and values.dtype == dtypes.bool_ and values.size:
        raw = values.view(np.uint8)
        return raw != 0 if raw.max() > 1 else values
    return values


def _converted(values: Any, found: set[dtypes.DType]) -> Any:
    # An object that NumPy reads, such as a range or an image, or a number of another class, such as a fraction.
    made = np.array(values)
    if made.dtype.kind not in "biuf":
        if not is_number(values):
            raise DTypeError("tensor", "numbers", f"values of type {type(values).__name__}")
        made = np.array(float(values))
    own = made.dtype if hasattr(values, "__array__") or made.dtype.kind != "f" else dtypes.default()
    found.add(dtypes.parse(own))
    return made


_PYTHON = frozenset({bool, int, float})


def _of_python(kind: type) -> dtypes.DType:
    return dtypes.default() if kind is float else dtypes.bool_ if kind is bool else dtypes.int64


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
        self.name, self.dtype, self.device = name, public_dtypes.DTYPES[dtype], device

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007  (in annotations: `FloatTensor | None`)

    __ror__ = __or__

    def __call__(self, *args: Any) -> Tensor:
        return made_of(args, self.dtype.dtype, self.device)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype is self.dtype and value.device.type == self.device

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
    space = "torch" if value.device.type == "cpu" else "torch.cuda"
    newer = f"{space}.{value.dtype.name.capitalize()}Tensor"
    return next((name for name, kind in BY_NAME.items() if kind.__instancecheck__(value)), newer)


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

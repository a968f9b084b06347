"""DLPack import and export: share memory with another library without a copy (dmlc/dlpack, dlpack.h, version 0.8).

NumPy makes and reads the capsules of CPU memory, CuPy those of GPU memory. NumPy has no bfloat16: a bfloat16 array is
exported as uint16, and the type code in the capsule is rewritten to kDLBfloat. So are formats below 16 bits.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .. import backends
from ..backends.bool_bytes import need_bool_bytes
from ..base import dtypes
from ..base.array_kinds import need_unmasked
from ..base.errors import DTypeError, StateError, switch
from ..base.formats import is_packed
from .tensor import Tensor

_UINT, _BFLOAT = 1, 4  # DLDataTypeCode: kDLUInt, kDLBfloat
# kDLFloat8_*, kDLFloat4_e2m1fn, of which two lanes of 4 bits are one element (DLPack 1.1)
_NARROW = {
    10: dtypes.float8_e4m3fn, 11: dtypes.float8_e4m3fnuz, 12: dtypes.float8_e5m2, 13: dtypes.float8_e5m2fnuz,
    14: dtypes.float8_e8m0fnu, 17: dtypes.float4_e2m1fn_x2,
}  # fmt: skip
_CODES = {dtype: code for code, dtype in _NARROW.items()}
_GPU = (2, 13)  # DLDeviceType: kDLCUDA, kDLCUDAManaged


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Managed(ctypes.Structure):  # the first fields of DLManagedTensor, up to its dtype
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _Capsule:
    """A DLPack producer that returns an existing capsule."""

    def __init__(self, capsule: Any, device: tuple[int, int]):
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def _type_of(capsule: Any) -> _Type:
    return _Managed.from_address(_pointer(capsule, b"dltensor")).dtype


def export(tensor: Tensor, **options: Any) -> Any:
    """The DLPack capsule of `tensor`'s memory. Raises StateError for a tensor that requires grad."""
    if tensor.requires_grad:
        raise StateError("__dlpack__", "a tensor that requires no grad", "one that does", "use .detach()")
    options.pop("max_version", None)  # always an unversioned capsule, whose type code may be rewritten
    if tensor.array.dtype in dtypes.NARROW:
        return _export_codes(tensor, options)
    if tensor.array.dtype != dtypes.bfloat16:
        return tensor.exposed().__dlpack__(**options)
    capsule = tensor.exposed().view(np.uint16).__dlpack__(**options)
    _type_of(capsule).code = _BFLOAT
    return capsule


def _export_codes(tensor: Tensor, options: dict[str, Any]) -> Any:
    capsule = tensor.exposed().view(np.uint8).__dlpack__(**options)
    about = _type_of(capsule)
    about.code = _CODES[tensor.array.dtype]
    about.bits, about.lanes = (4, 2) if is_packed(tensor.array.dtype) else (8, 1)
    return capsule


def _stored_as(capsule: Any) -> dtypes.DType | None:
    """The dtype of a capsule that NumPy lacks, which is made one of unsigned integers; None for others."""
    about = _type_of(capsule)
    found = dtypes.bfloat16 if about.code == _BFLOAT else _NARROW.get(about.code)
    if found is None or about.bits * about.lanes != 8 * found.itemsize:
        return None
    about.code, about.bits, about.lanes = _UINT, 8 * found.itemsize, 1
    return found


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor that shares the memory of an object with `__dlpack__`, such as an array of PyTorch, JAX or CuPy.

    The shared memory is read-only: call `.clone()` before modifying it in place, or pass copy=True. device: the device
    to move the tensor to.

    Raises DTypeError for an object without `__dlpack__`, for memory that cannot be shared, or for an unknown dtype.
    """
    if not hasattr(ext_tensor, "__dlpack__"):
        raise DTypeError("from_dlpack", "an object with __dlpack__", type(ext_tensor).__name__)
    need_unmasked(ext_tensor, "from_dlpack")
    try:
        capsule, location = ext_tensor.__dlpack__(), ext_tensor.__dlpack_device__()
    except (BufferError, TypeError) as error:  # what the protocol raises for memory that cannot be shared
        raise DTypeError("from_dlpack", "memory that can be shared", str(error)) from None
    held = _stored_as(capsule)
    gpu: Any = backends.get(f"cuda:{location[1]}") if location[0] in _GPU else None
    try:
        array = (np if gpu is None else gpu.xp).from_dlpack(_Capsule(capsule, location))
    except (BufferError, RuntimeError) as error:  # NumPy's for a dtype it lacks
        raise DTypeError("from_dlpack", f"one of {', '.join(dtypes.NAMES)}", str(error)) from None
    made = array if held is None else array.view(held)
    dtypes.parse(made.dtype)
    need_bool_bytes("from_dlpack", made)
    copied = copy is not None and switch("from_dlpack", "copy", copy)
    with backends.device_guard(made):
        tensor = Tensor(made.copy() if copied else made)
    if not copied:
        tensor.exposed()
    return tensor if device is None else tensor.to(device)


def is_foreign(value: Any) -> bool:
    """Whether `value` is a tensor or an array of another library than NumPy and ampkit, with `__dlpack__`."""
    return hasattr(value, "__dlpack__") and not isinstance(value, (Tensor, np.ndarray, type))


def to_tensor(foreign: Any, copy: bool = True) -> Tensor:
    """A tensor of the values of another library's, off the tapes of both. Raises as `from_dlpack` does."""
    return from_dlpack(foreign.detach() if getattr(foreign, "requires_grad", False) else foreign, copy=copy)


def _device(tensor: Tensor) -> tuple[int, int]:
    return tensor.array.__dlpack_device__()


for _name, _method in (("__dlpack__", export), ("__dlpack_device__", _device)):
    setattr(Tensor, _name, _method)

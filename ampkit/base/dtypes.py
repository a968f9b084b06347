"""Formats: the dtypes of ampkit, how they promote, what they accumulate in, and their limits.

These are NumPy's dtypes, which arrays have; bfloat16 is the one of `ml_dtypes`. Users see `public_dtypes.dtype`
instead. ampkit never relies on the promotion of NumPy or CuPy, which differ from each other where bfloat16 is involved.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from . import public_dtypes
from .errors import DTypeError

DType = np.dtype[Any]
Array = Any  # a NumPy or CuPy array; both follow NumPy's array protocols

float64: DType = np.dtype(np.float64)
float32: DType = np.dtype(np.float32)
float16: DType = np.dtype(np.float16)
bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
int64: DType = np.dtype(np.int64)
int32: DType = np.dtype(np.int32)
int16: DType = np.dtype(np.int16)
int8: DType = np.dtype(np.int8)
uint8: DType = np.dtype(np.uint8)
bool_: DType = np.dtype(np.bool_)
# Below 16 bits: dtypes of storage, which arithmetic refuses; see `formats.py`.
float8_e4m3fn: DType = public_dtypes.STORED["float8_e4m3fn"]
float8_e4m3fnuz: DType = public_dtypes.STORED["float8_e4m3fnuz"]
float8_e5m2: DType = public_dtypes.STORED["float8_e5m2"]
float8_e5m2fnuz: DType = public_dtypes.STORED["float8_e5m2fnuz"]
float8_e8m0fnu: DType = public_dtypes.STORED["float8_e8m0fnu"]
float4_e2m1fn_x2: DType = public_dtypes.STORED["float4_e2m1fn_x2"]

FLOATS = frozenset({float64, float32, float16, bfloat16})
LOW = frozenset({float16, bfloat16})  # the 16-bit formats that a policy can ask for
NAMES = {d.name: d for d in (float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8, bool_)}
NARROW = frozenset(public_dtypes.STORED.values())  # the formats below 16 bits
DIFFERENTIABLE = FLOATS | NARROW  # through which gradients flow
NAMED = NAMES | public_dtypes.STORED  # what a tensor can have, by name
KNOWN = frozenset(NAMED.values())
_ACCUMULATOR = {**dict.fromkeys((float32, *LOW, *NARROW), float32), float64: float64}


def parse(dtype: Any) -> DType:
    """NumPy's dtype that `dtype` names: a dtype of ampkit or NumPy, a Python type (`float` is float32) or a name.

    Raises DTypeError for anything else, and for formats ampkit has no arithmetic for (complex, strings, objects).
    """
    given, dtype = dtype, _numpy_dtype(dtype)
    if isinstance(dtype, np.dtype) and dtype in KNOWN:
        return dtype
    if dtype is float:
        return float32
    if not isinstance(dtype, (str, type, np.dtype)):  # of which NumPy would make structures, with a warning
        raise DTypeError("dtype", f"one of {', '.join(NAMES)}", f"a {type(dtype).__name__}")
    try:
        return NAMED[dtype if isinstance(dtype, str) else np.dtype(dtype).newbyteorder("=").name]
    except (KeyError, TypeError, ValueError):
        raise DTypeError("dtype", f"one of {', '.join(NAMES)}", repr(given)) from None


def _numpy_dtype(dtype: Any) -> Any:
    """The dtype of arrays of one of ampkit; anything else as it is."""
    if not isinstance(dtype, public_dtypes.dtype):
        return dtype
    return public_dtypes.STORED.get(dtype.name, dtype.dtype)


def name_of(dtype: DType) -> str:
    """The name of a dtype: "float8_e4m3fn", where NumPy's own is that of a structure of 8 bits."""
    return str(public_dtypes.DTYPES[dtype].name) if dtype in public_dtypes.DTYPES else dtype.name


def stored(array: Any) -> Any:
    """An array as tensors hold it: of an 8-bit dtype of ml_dtypes a view of its bytes with the name of the format."""
    found = None if array.dtype in KNOWN else public_dtypes.STORED.get(array.dtype.name)
    return array if found is None else np.asarray(array).view(found)


def need_native(dtype: DType, where: str) -> None:
    """Raise DTypeError unless `dtype`, of an array, is one of ampkit in the byte order of this machine."""
    if dtype in KNOWN:
        return
    if dtype.newbyteorder("=") in KNOWN:
        raise DTypeError(where, "native byte order", str(dtype), "ampkit.tensor(array) copies it into this order")
    raise DTypeError(where, f"an array of {', '.join(NAMES)}", str(dtype), _CURES.get(dtype.kind))


_CURES = {
    "O": "stack arrays of one shape by np.stack, cast numbers by array.astype(float)",
    "V": "take one field of a structured array: array['name']",
    "c": "keep real and imaginary part apart: array.real, array.imag",
    "u": "cast it: array.astype('int64')",
    "f": "cast it: array.astype('float64')",
    "M": "cast it: array.astype('int64')",
    "m": "cast it: array.astype('int64')",
}
_default = float32
default_observers: list[Callable[[], None]] = []  # called when the default dtype has changed


def default() -> DType:
    """The dtype of new tensors without another, except of integers: float32, or what `set_default` says."""
    return _default


def set_default(dtype: Any) -> None:
    """Let `default` be another floating-point dtype. Raises DTypeError for others."""
    global _default
    if not is_float(parse(dtype)):
        raise DTypeError("set_default_dtype", "a floating-point dtype", name_of(parse(dtype)))
    _default = parse(dtype)
    for observer in default_observers:
        observer()


def rounded(number: float, dtype: DType) -> float:
    """A Python number rounded to a 16-bit `dtype`; an integer that the format holds exactly stays an integer."""
    if isinstance(number, int) and -256 <= number <= 256:
        return number
    return _rounded(number, dtype) if number else number  # 0.0 and -0.0 are one key of a cache


@lru_cache(256)  # most programs use the same few numbers again and again
def _rounded(number: float, dtype: DType) -> float:
    if -65504 <= number <= 65504:
        return float(dtype.type(number))
    with np.errstate(over="ignore"):
        return float(dtype.type(float(number)))


def is_float(dtype: DType) -> bool:
    """Whether `dtype` is one of the four floating-point formats."""
    return dtype in FLOATS


def accumulator(dtype: DType) -> DType:
    """The format that sums over `dtype` are carried in: float32 for narrower formats, int64 for integers and bool."""
    return _ACCUMULATOR.get(dtype, int64)


@cache
def promote(*dtypes: DType) -> DType:
    """The narrowest dtype that holds values of all `dtypes`; bool < integers < floats.

    float16 with bfloat16 gives float32, and an integer never widens a float. Raises DTypeError for a format below 16
    bits beside another dtype.
    """
    if not NARROW.isdisjoint(dtypes) and len({*dtypes}) > 1:
        got = " and ".join(map(name_of, dtypes))
        raise DTypeError("promotion", "dtypes with arithmetic", got, "cast first: x.to(ampkit.bfloat16)")
    floats = {d for d in dtypes if d in FLOATS}
    if not floats:
        return dtypes[0] if dtypes[0] in NARROW else np.result_type(*dtypes)
    if len(floats) == 1:
        return next(iter(floats))
    return float64 if float64 in floats else float32


class iinfo:
    """Limits of an integer format, PyTorch's names: bits, max, min, dtype. Raises DTypeError for another dtype.

    Of NumPy's unsigned formats too, which no tensor has.
    """

    def __init__(self, type: Any):
        dtype = _numpy_dtype(type)
        dtype = dtype if isinstance(dtype, np.dtype) and dtype.kind == "u" else parse(dtype)
        if dtype.kind not in "iu":
            raise DTypeError("iinfo", "an integer dtype", dtype.name, "use finfo")
        info = np.iinfo(dtype)
        self.dtype, self.bits, self.max, self.min = dtype.name, int(info.bits), int(info.max), int(info.min)

    def __repr__(self) -> str:
        return f"iinfo({self.dtype}, min={self.min}, max={self.max})"


class finfo:
    """Limits of a floating-point format, PyTorch's names: bits, eps, max, min, tiny, smallest_normal, resolution,
    dtype. resolution: 10 to the power of the decimal digits that the format keeps, with a minus.

    By default of the default dtype; of float4_e2m1fn_x2 those of one of its two values. Raises DTypeError for another
    dtype.
    """

    def __init__(self, dtype: Any = None):
        found = default() if dtype is None else parse(dtype)
        if found not in DIFFERENTIABLE:
            raise DTypeError("finfo", "a floating-point dtype", found.name, "use iinfo")
        self.dtype = name_of(found)
        info: Any = ml_dtypes.finfo(getattr(ml_dtypes, self.dtype.removesuffix("_x2")) if found in NARROW else found)
        self.bits = int(info.bits)
        self.eps, self.max, self.min = float(info.eps), float(info.max), float(info.min)
        self.tiny = self.smallest_normal = float(info.smallest_normal)
        self.resolution = 10.0 ** -int(info.precision)

    def __repr__(self) -> str:
        return f"finfo({self.dtype}, eps={self.eps:g}, max={self.max:g}, smallest_normal={self.tiny:g})"

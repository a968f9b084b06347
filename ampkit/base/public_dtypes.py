"""dtype: a format of numbers as users see it, with PyTorch's attributes; NumPy takes it wherever it takes a dtype.

Arrays, kernels and tables of ampkit hold NumPy's dtypes (`dtypes.py`), whose comparisons cost no Python. `Tensor.dtype`
and other public answers look up the object of a NumPy dtype in DTYPES, and `dtypes.parse` takes its `dtype` again.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self

import ml_dtypes
import numpy as np

from .errors import DTypeError

# name: NumPy's type; whether it is floating-point, complex, signed; PyTorch's abbreviation
FORMATS: dict[str, tuple[Any, str, str]] = {
    "float64": (np.float64, "float signed", "f64"),
    "float32": (np.float32, "float signed", "f32"),
    "float16": (np.float16, "float signed", "f16"),
    "bfloat16": (ml_dtypes.bfloat16, "float signed", "bf16"),
    "int64": (np.int64, "signed", "i64"),
    "int32": (np.int32, "signed", "i32"),
    "int16": (np.int16, "signed", "i16"),
    "int8": (np.int8, "signed", "i8"),
    "uint8": (np.uint8, "", "u8"),
    "bool": (np.bool_, "", "b8"),
    # Of no tensor: libraries compare with them, and files may have them.
    "complex128": (np.complex128, "complex signed", "c128"),
    "complex64": (np.complex64, "complex signed", "c64"),
    "uint64": (np.uint64, "", "u64"),
    "uint32": (np.uint32, "", "u32"),
    "uint16": (np.uint16, "", "u16"),
    # Below 16 bits: see STORED.
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, "float signed", "f8e4m3fn"),
    "float8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, "float signed", "f8e4m3fnuz"),
    "float8_e5m2": (ml_dtypes.float8_e5m2, "float signed", "f8e5m2"),
    "float8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, "float signed", "f8e5m2fnuz"),
    "float8_e8m0fnu": (ml_dtypes.float8_e8m0fnu, "float", "f8e8m0fnu"),
    "float4_e2m1fn_x2": ([("float4_e2m1fn_x2", np.uint8)], "float signed", "f4e2m1fnx2"),
}
# The dtypes in which arrays of NumPy and CuPy hold the formats below 16 bits: a byte with the name of its format, which
# both move, and neither computes with. float4_e2m1fn_x2 has two values in a byte.
STORED: dict[str, np.dtype[Any]] = {
    name: np.dtype([(name, np.uint8)]) for name in FORMATS if name.startswith(("float8", "float4"))
}
_COMPLEX = {"float64": "complex128", "float32": "complex64", "bfloat16": "complex64"}
_REAL = {"complex128": "float64", "complex64": "float32"}
_space = "ampkit"


def show_as(space: str) -> None:
    """Let the text of every dtype begin with `space` from now on: "torch" where `torch` means ampkit."""
    global _space
    _space = space


class dtype:
    """A format of numbers: `ampkit.float32`, `tensor.dtype`. There is one object for each format.

    is_floating_point, is_complex, is_signed, itemsize (bytes), name, abbr: what the format is. dtype: NumPy's, which
    NumPy reads where it takes a dtype; the attributes of that one, such as `kind` and `type`, are here too.
    It compares equal to NumPy's dtype, its type and its name, and hashes as NumPy's dtype. The text is
    "ampkit.float32", or "torch.float32" in a process that has imported `ampkit.as_torch`.
    """

    __slots__ = ("_hash", "abbr", "dtype", "is_complex", "is_floating_point", "is_signed", "itemsize", "name")
    dtype: np.dtype[Any]
    name: str
    abbr: str
    itemsize: int
    is_floating_point: bool
    is_complex: bool
    is_signed: bool
    _hash: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        raise DTypeError("dtype", "no call", "one", "name it: ampkit.float32, or getattr(ampkit, 'float32')")

    def to_real(self) -> Self:
        """The format of a complex one's parts; itself where it is real."""
        return dtype_named(_REAL.get(self.name, self.name))

    def to_complex(self) -> Self:
        """The complex format whose parts are of this one. Raises DTypeError where there is none."""
        if self.is_complex:
            return self
        if self.name not in _COMPLEX:
            raise DTypeError("to_complex", f"one of {', '.join(_COMPLEX)}", self.name)
        return dtype_named(_COMPLEX[self.name])

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return self.dtype == other if isinstance(other, (np.dtype, type, str)) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(self.dtype, name):
            return getattr(self.dtype, name)
        raise AttributeError(f"'{_space}.dtype' object has no attribute {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"'{_space}.dtype' object takes no attribute: {name!r}", name=name, obj=self)

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __repr__(self) -> str:
        return f"{_space}.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_named, (self.name,)


def _made(name: str) -> Any:
    kind, words, abbr = FORMATS[name]
    numpy, made = np.dtype(kind), object.__new__(dtype)
    values = {
        "dtype": numpy, "name": name, "abbr": abbr, "itemsize": numpy.itemsize, "_hash": hash(numpy),
        "is_floating_point": "float" in words, "is_complex": "complex" in words, "is_signed": "signed" in words,
    }  # fmt: skip
    for slot, value in values.items():
        object.__setattr__(made, slot, value)
    return made


_NAMED: dict[str, Any] = {name: _made(name) for name in FORMATS}
DTYPES: dict[np.dtype[Any], dtype] = {each.dtype: each for each in _NAMED.values()}
DTYPES |= {stored: _NAMED[name] for name, stored in STORED.items()}


def dtype_named(name: str) -> Any:
    """The dtype of a name in FORMATS."""
    return _NAMED[name]


float64: dtype = _NAMED["float64"]
float32: dtype = _NAMED["float32"]
float16: dtype = _NAMED["float16"]
bfloat16: dtype = _NAMED["bfloat16"]
int64: dtype = _NAMED["int64"]
int32: dtype = _NAMED["int32"]
int16: dtype = _NAMED["int16"]
int8: dtype = _NAMED["int8"]
uint8: dtype = _NAMED["uint8"]
bool_: dtype = _NAMED["bool"]
float8_e4m3fn: dtype = _NAMED["float8_e4m3fn"]
float8_e4m3fnuz: dtype = _NAMED["float8_e4m3fnuz"]
float8_e5m2: dtype = _NAMED["float8_e5m2"]
float8_e5m2fnuz: dtype = _NAMED["float8_e5m2fnuz"]
float8_e8m0fnu: dtype = _NAMED["float8_e8m0fnu"]
float4_e2m1fn_x2: dtype = _NAMED["float4_e2m1fn_x2"]

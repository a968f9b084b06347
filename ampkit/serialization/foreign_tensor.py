"""ForeignTensor: a tensor of a file in a dtype that no tensor of ampkit has, such as complex64."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from .. import backends
from ..base import dtypes
from ..base.errors import DTypeError
from ..core.tensor import Tensor
from ..core.tensor_base import Shape

DTYPES = {name: np.dtype(name) for name in ("complex64", "complex128", "uint16", "uint32", "uint64")}


# What makes a tensor of another layout one that can be read, by the first word of its format.
_IN_PYTORCH = {
    "sparse": "in PyTorch, save x.to_dense()",
    "quantized": "in PyTorch, save x.dequantize()",
    "meta": "it has no values: in PyTorch, load them before saving",
}


class ForeignTensor:
    """A tensor that `load` found in a dtype or a layout that ampkit has not; it stands among the others of the file.

    name: its name in the file, if it has one. format: its dtype or layout in words. shape: its sizes. `numpy()` and
    `to(dtype)` convert it, if its values were read; whatever else is asked of it raises DTypeError with the cure.
    """

    __slots__ = ("_array", "format", "name", "shape")

    def __init__(self, array: np.ndarray[Any, Any] | None, format: str, shape: tuple[int, ...], name: str = ""):
        self._array, self.format, self.shape, self.name = array, format, Shape(shape), name

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values in NumPy's dtype. Raises DTypeError for a format that these lack."""
        if self._array is None:
            needs = f"a tensor of {', '.join([*dtypes.NAMES, *DTYPES])}"
            raise DTypeError("numpy", needs, self._said(), _IN_PYTORCH.get(self.format.partition("_")[0]))
        return self._array

    def to(self, dtype: Any) -> Tensor:
        """A Tensor of `dtype`. Raises DTypeError for complex values, of which a Tensor would lose a part."""
        values = self.numpy()
        if values.dtype.kind == "c":
            raise DTypeError("to", "a tensor of real numbers", self._said(), "use x.numpy().real and x.numpy().imag")
        return Tensor(backends.cpu.cast(values, dtypes.parse(dtype)))

    def refuse(self, where: str) -> NoReturn:
        """Raise the error for a use of this tensor in `where`."""
        if self._array is None:
            self.numpy()
        cure = "convert it: x.to(ampkit.float32), or x.numpy(), which gives an array of NumPy"
        raise DTypeError(where, f"a tensor of {', '.join(dtypes.NAMES)}", self._said(), cure)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python and libraries look for in any object
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self.refuse(name)

    def __repr__(self) -> str:
        return f"ForeignTensor({self.format}, {list(self.shape)})"

    def _said(self) -> str:
        return f"one of {self.format} of shape {list(self.shape)}" + (f" as {self.name!r}" if self.name else "")


def _refusing(name: str) -> Any:
    def method(self: ForeignTensor, *_: Any) -> NoReturn:
        self.refuse(name.strip("_"))

    return method


for _operation in ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod", "and", "or", "xor"):
    for _name in (f"__{_operation}__", f"__r{_operation}__"):
        setattr(ForeignTensor, _name, _refusing(_name))
for _name in (
    "__neg__", "__abs__", "__invert__", "__getitem__", "__setitem__", "__len__", "__iter__", "__float__", "__int__",
    "__bool__", "__lt__", "__le__", "__gt__", "__ge__", "__array__",
):  # fmt: skip
    setattr(ForeignTensor, _name, _refusing(_name))

"""Cases: one situation of one op each, with inputs that are drawn."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backends
from ..base import dtypes
from ..base.dtypes import float64
from ..base.errors import ArgumentError
from ..core.op import ops as registry
from ..core.tensor import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Draw:
    """An input to be drawn: `normal`, `uniform`, `integers`, `definite` and `booleans` make one."""

    kind: str
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0

    def make(self, generator: np.random.Generator) -> Array:
        """Values in float64, int64 or bool."""
        if self.kind == "integers":
            return np.asarray(generator.integers(int(self.low), int(self.high), self.shape), np.int64)
        if self.kind == "booleans":
            return np.asarray(generator.integers(0, 2, self.shape), np.bool_)
        if self.kind == "definite":
            factor = generator.normal(size=self.shape)
            return np.asarray(factor @ np.swapaxes(factor, -1, -2) / self.shape[-1] + np.eye(self.shape[-1]))
        drawn = (
            generator.normal(size=self.shape)
            if self.kind == "normal"
            else generator.uniform(self.low, self.high, self.shape)
        )
        return np.asarray(drawn, np.float64)

    def __repr__(self) -> str:
        return "x".join(map(str, self.shape)) or "scalar"


def normal(*shape: int) -> Draw:
    """Standard normal values, floating-point."""
    return Draw("normal", shape)


def uniform(low: float, high: float, *shape: int) -> Draw:
    """Values from [low, high), floating-point."""
    return Draw("uniform", shape, low, high)


def integers(low: int, high: int, *shape: int) -> Draw:
    """int64 values from [low, high)."""
    return Draw("integers", shape, low, high)


def definite(*shape: int) -> Draw:
    """Symmetric positive definite matrices [.., M, M], whose eigenvalues are 1 and more."""
    return Draw("definite", shape)


def booleans(*shape: int) -> Draw:
    """True and False, evenly."""
    return Draw("booleans", shape)


class Case:
    """One situation of one op: `Case("clamp", normal(3, 4), min=-0.5)`.

    inputs, params: what the op is called with; draws in them, or in lists among them, become tensors. smooth: whether
    second derivatives exist and are checked. The name is that of a function of `ampkit.ops`, or else of an op.
    """

    def __init__(self, name: str, /, *inputs: Any, smooth: bool = True, **params: Any):
        self.name, self.inputs, self.params, self.smooth = name, inputs, params, smooth

    @property
    def function(self) -> Callable[..., Any]:
        """What the case calls. Raises ArgumentError if there is no such operation."""
        from .. import ops

        found = getattr(ops, self.name, None) or registry.get(self.name)
        if found is None:
            raise ArgumentError("Case", "the name of an operation", repr(self.name))
        return found

    def arrays(self) -> list[Array]:
        """The drawn inputs in the order they appear: the same values every time."""
        generator = np.random.default_rng(zlib.crc32(repr(self).encode()))
        return [draw.make(generator) for draw in _draws([*self.inputs, *self.params.values()])]

    def tensors(self, dtype: Any = float64, arrays: list[Array] | None = None) -> list[Tensor]:
        """The drawn inputs as tensors of the default device, floats in `dtype` with requires_grad.

        On a CPU their arrays refuse writes.
        """
        made = [a.astype(dtype) if a.dtype == float64 else a.copy() for a in arrays or self.arrays()]
        for array in made:
            array.flags.writeable = False
        return [placed(a, dtypes.is_float(a.dtype)) for a in made]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Run the operation with `tensors` for the draws; its outputs as a list."""
        left = iter(tensors)
        inputs = [_fill(item, left) for item in self.inputs]
        params = {name: _fill(value, left) for name, value in self.params.items()}
        out = self.function(*inputs, **params)
        return [out] if isinstance(out, Tensor) else list(out)

    def __repr__(self) -> str:
        more = [f"{name}={value!r}" for name, value in self.params.items()]
        return f"{self.name}({', '.join([*map(repr, self.inputs), *more])})"


def placed(array: Array, requires_grad: bool = False) -> Tensor:
    """The values as a tensor of the default device."""
    return Tensor(backends.get().asarray(array), requires_grad)


def _draws(items: Any) -> list[Draw]:
    found = []
    for item in items:
        if isinstance(item, Draw):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            found.extend(_draws(item))
    return found


def _fill(item: Any, left: Iterator[Tensor]) -> Any:
    if isinstance(item, Draw):
        return next(left)
    return type(item)([_fill(i, left) for i in item]) if isinstance(item, (list, tuple)) else item

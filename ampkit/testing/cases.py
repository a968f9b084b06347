"""Test cases: an op, its arguments, and the random inputs to draw."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backends
from ..base.dtypes import float64, is_float
from ..base.errors import ArgumentError
from ..core.op import ops as registry
from ..core.tensor import Tensor
from .closeness import Array


@dataclass(frozen=True)
class Draw:
    """A random input of a Case, made by `normal`, `uniform`, `integers`, `definite` or `booleans`.

    kind: the distribution. shape: of the array. low, high: the bounds of "uniform" and "integers".
    """

    kind: str
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0

    def make(self, generator: np.random.Generator) -> Array:
        """Draw the values: an array of `shape` in float64, int64 or bool."""
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
    """Symmetric positive definite matrices [.., M, M] with eigenvalues of at least 1."""
    return Draw("definite", shape)


def booleans(*shape: int) -> Draw:
    """True or False with equal probability."""
    return Draw("booleans", shape)


class Case:
    """A test case of one op: `Case("clamp", normal(3, 4), min=-0.5)`.

    name: a function of `ampkit.ops`, or a registered op. inputs, params: its positional and keyword arguments; each
    Draw in them, or in lists and tuples among them, is drawn and becomes a tensor. smooth: whether second derivatives
    exist and are checked.
    """

    def __init__(self, name: str, /, *inputs: Any, smooth: bool = True, **params: Any):
        self.name, self.inputs, self.params, self.smooth = name, inputs, params, smooth

    @property
    def function(self) -> Callable[..., Any]:
        """The function under test. Raises ArgumentError if no function or op has the name."""
        from .. import ops

        found = getattr(ops, self.name, None) or registry.get(self.name)
        if found is None:
            raise ArgumentError("Case", "the name of an operation", repr(self.name))
        return found

    def arrays(self) -> list[Array]:
        """The drawn inputs in order of appearance; seeded by the case's repr, so the values are always the same."""
        generator = np.random.default_rng(zlib.crc32(repr(self).encode()))
        return [draw.make(generator) for draw in _draws([*self.inputs, *self.params.values()])]

    def tensors(self, dtype: Any = float64, arrays: list[Array] | None = None) -> list[Tensor]:
        """The drawn inputs as tensors on the default device, floats in `dtype` with requires_grad.

        arrays: the values to use instead of `self.arrays()`. On a CPU the arrays are read-only.
        """
        made = [a.astype(dtype) if a.dtype == float64 else a.copy() for a in arrays or self.arrays()]
        for array in made:
            array.flags.writeable = False
        return [placed(a, is_float(a.dtype)) for a in made]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Call the function with `tensors` in place of the Draws; returns its outputs as a list."""
        left = iter(tensors)
        inputs = [_fill(item, left) for item in self.inputs]
        params = {name: _fill(value, left) for name, value in self.params.items()}
        out = self.function(*inputs, **params)
        return [out] if isinstance(out, Tensor) else list(out)

    def __repr__(self) -> str:
        more = [f"{name}={value!r}" for name, value in self.params.items()]
        return f"{self.name}({', '.join([*map(repr, self.inputs), *more])})"


def placed(array: Array, requires_grad: bool = False) -> Tensor:
    """`array` as a tensor on the default device."""
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

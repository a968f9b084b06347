"""Changes in place: `add_`, `zero_`, `x[i] = v`, `x += y`. They write through `Tensor.write_`, which counts the change
and refuses a tensor that the tape needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import dtypes, random
from ..core.errors import ArgumentError, DTypeError, RangeError, ShapeError, StateError
from ..core.quiet import quietly
from ..core.recording import is_grad_enabled, no_grad
from ..core.scaletag import ZEROED
from ..core.tensor import Tensor
from .assign import assign
from .index import in_turn, part_of

__all__: list[str] = []


def changes(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function(self, ...)` as a method that writes its answer into self, in self's dtype.

    Raises StateError where the change would be lost to the tape, DTypeError for floats into integers, ShapeError if the
    answer is larger than self.
    """

    def change(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in (*args, *kwargs.values())):
            cure = "write it out of place, or use .detach()"
            raise StateError(f"{function.__name__}_", "operands that require no grad", "one that does", cure)
        self.need_writable()
        with no_grad():
            made = function(self, *args, **kwargs)
        return write(self, made)

    change.__name__ = f"{function.__name__}_"
    change.__doc__ = f"`{function.__name__}` in place."
    return change


def turns(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function(self, ...)`, which gives another view of self, as a method that makes self that view: `unsqueeze_`.

    Raises StateError for a tensor that requires grad.
    """

    def change(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.requires_grad:
            cure = f"use what x.{function.__name__}(...) returns"
            raise StateError(f"{function.__name__}_", "a tensor that requires no grad", "one that does", cure)
        self.array, self.copies = function(self, *args, **kwargs).array, None
        return self

    change.__name__ = f"{function.__name__}_"
    change.__doc__ = f"`{function.__name__}` in place: the tensor itself has other axes from now on."
    return change


def write(self: Tensor, values: Tensor) -> Tensor:
    """Overwrite self with `values`, rounded to self's dtype. Raises DTypeError, ShapeError, StateError."""
    if dtypes.is_float(values.dtype):
        _need_float(self)
    if values.shape != self.shape:
        raise ShapeError("in-place change", f"an answer of shape {tuple(self.shape)}", f"{tuple(values.shape)}")
    return self.write_(values.array)


def _need_float(self: Tensor) -> None:
    if not dtypes.is_float(self.dtype):
        raise DTypeError("in-place change", f"whole numbers, for {self.dtype.name}", "floats", "cast first: x.float()")


def augments(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`x += y` and the like: in place where nothing is recorded, else a new tensor on the tape.

    A leaf that requires grad is refused outside of no_grad, as by `add_`.
    """
    in_place = changes(function)

    def augment(self: Tensor, other: Any) -> Tensor:
        recorded = self.node is not None or (isinstance(other, Tensor) and other.requires_grad)
        if recorded and is_grad_enabled() and not (self.requires_grad and self.is_leaf):
            return function(self, other)
        return in_place(self, other) if self.node is None else function(self, other)

    return augment


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Overwrite with the values of src, broadcast and rounded to self's dtype; non_blocking changes nothing."""
    return self.write_(_fitting("copy_", self.shape, src.to(self.device).array))  # type: ignore[attr-defined]


def _fitting(where: str, shape: tuple[int, ...], values: Any) -> Any:
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        needs = f"values that broadcast to {tuple(shape)}"
        raise ShapeError(where, needs, f"shape {tuple(np.shape(values))}") from None


def fill_(self: Tensor, value: Any) -> Tensor:
    """Overwrite every element with a number."""
    return self.write_(value.item() if isinstance(value, Tensor) else value)


def zero_(self: Tensor) -> Tensor:
    """Overwrite every element with 0; as a gradient it is then of no scale."""
    self.write_(0)
    self.tag = ZEROED
    return self


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with normal numbers of the given mean and deviation."""
    if std < 0:
        raise ArgumentError("normal_", "std from 0", f"{std}")
    return _fill_random(self, lambda g: mean + std * g.standard_normal(self.shape, _float(self)), generator)


def uniform_(self: Tensor, a: float = 0.0, b: float = 1.0, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with uniform numbers from [a, b)."""
    if not a <= b:
        raise ArgumentError("uniform_", "a <= b", f"a={a}, b={b}")
    return _fill_random(self, lambda g: a + (b - a) * g.random(self.shape, _float(self)), generator)


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with 1 with probability p, a number or a tensor, else 0. Raises ArgumentError outside [0, 1]."""
    share = np.asarray(p.array if isinstance(p, Tensor) else p, np.float64)
    if not ((share >= 0) & (share <= 1)).all():
        raise ArgumentError("bernoulli_", "p from 0 to 1", f"{p}")
    return _fill_random(self, lambda g: g.random(self.shape) < share, generator)


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with exponential numbers of the rate lambd. Raises ArgumentError unless it is positive."""
    if not lambd > 0:
        raise ArgumentError("exponential_", "lambd above 0", f"{lambd}")
    return _fill_random(self, lambda g: g.standard_exponential(self.shape, _float(self)) / lambd, generator)


def log_normal_(self: Tensor, mean: float = 1, std: float = 2, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with numbers whose logarithms are normal, of the given mean and deviation."""
    if not std > 0:
        raise ArgumentError("log_normal_", "std above 0", f"{std}")
    return _fill_random(self, lambda g: np.exp(mean + std * g.standard_normal(self.shape, _float(self))), generator)


def cauchy_(self: Tensor, median: float = 0, sigma: float = 1, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with numbers from Cauchy's distribution, sigma being half of its width at half of its height."""
    if not sigma > 0:
        raise ArgumentError("cauchy_", "sigma above 0", f"{sigma}")
    return _fill_random(self, lambda g: median + sigma * g.standard_cauchy(self.shape), generator)


def geometric_(self: Tensor, p: float, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with how many tries the first success takes, each succeeding with probability p: 1, 2, ..."""
    if not 0 < p < 1:
        raise ArgumentError("geometric_", "p between 0 and 1", f"{p}")
    return _fill_random(self, lambda g: g.geometric(p, self.shape), generator)


def random_(self: Tensor, *bounds: int, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with whole numbers: `random_(to)` from [0, to), `random_(from, to)` from [from, to), or of all.

    All are those that the dtype holds exactly. Raises ArgumentError for an empty range.
    """
    low, high = bounds if len(bounds) == 2 else (0, bounds[0] if bounds else _exact(self))
    if not low < high:
        raise ArgumentError("random_", "a range of whole numbers", f"from {low} to {high}")
    return _fill_random(self, lambda g: g.integers(low, high, self.shape), generator)


def _exact(self: Tensor) -> int:
    if dtypes.is_float(self.dtype):
        return 2 ** (1 - int(np.log2(float(dtypes.finfo(self.dtype).eps)))) + 1
    return 2 if self.dtype == dtypes.bool_ else int(np.iinfo(self.dtype).max)


def fill_diagonal_(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Overwrite the diagonal [i, i, ...] with a number; wrap: begin it anew below the square of a tall matrix.

    Raises ShapeError for fewer than two axes.
    """
    if self.ndim < 2:
        raise ShapeError("fill_diagonal_", "at least two axes", f"shape {tuple(self.shape)}")
    values = self.array.copy()
    np.fill_diagonal(values, fill_value, wrap)
    return self.write_(values)


def _float(self: Tensor) -> Any:
    return np.float64 if self.dtype == dtypes.float64 else np.float32


def _fill_random(self: Tensor, draw: Callable[[np.random.Generator], Any], generator: random.Stream | None) -> Tensor:
    values = draw(random.generator(*(generator or random.default).take()))
    from .create import tensor

    return self.write_(tensor(values, self.dtype, self.device).array)


def setitem(self: Tensor, index: Any, value: Any) -> None:
    """self[index] = value, in place: a number or a tensor that broadcasts to what index names.

    Of several for one place the last stays. Raises StateError for a tensor that the tape needs or a value that requires
    grad, RangeError, ShapeError.
    """
    if isinstance(value, Tensor):
        if value.requires_grad and is_grad_enabled():
            cure = "build it out of place (where, scatter, cat), or use .detach()"
            raise StateError("x[index] = value", "a value that requires no grad", "one that does", cure)
        value = value.array
    if dtypes.is_float(getattr(value, "dtype", dtypes.float32 if isinstance(value, float) else self.dtype)):
        _need_float(self)
    parts = tuple([part_of(i) for i in index]) if type(index) is tuple else part_of(index)
    self.need_writable()
    try:
        target = self.array
        if type(parts) is tuple and any(hasattr(part, "dtype") for part in parts):
            first, parts = in_turn(parts)
            target = target if first is None else target[first]
        with quietly():
            assign(target, parts, value)
    except IndexError as error:
        raise RangeError("x[index] = value", f"indices within shape {tuple(self.shape)}", str(error)) from None
    except ValueError as error:
        raise ShapeError("x[index] = value", "a value that broadcasts to the place", str(error)) from None
    self.changed()

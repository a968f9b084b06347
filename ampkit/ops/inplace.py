"""In-place ops: `add_`, `zero_`, `x[i] = v`, `x += y`; core/autograd/inplace.py records them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.format_casts import byte_of
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError, StateError
from ampkit.base.formats import need_arithmetic
from ampkit.core import random
from ampkit.core.arguments import is_number, shown
from ampkit.core.autograd.grad_mode import enable_grad
from ampkit.core.autograd.inplace import change, is_recorded, need_float, take, write
from ampkit.core.autograd.scale_tag import ZEROED
from ampkit.core.autograd.views import become_view, need_changeable
from ampkit.core.dispatch.batching.array import need_room
from ampkit.core.dispatch.batching.draws import need_own_memory, of_samples, on_host
from ampkit.core.dlpack import is_foreign, to_tensor
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor

from .argument_checks import check_representable
from .creation.draw_ranges import check_bounds, check_float, draw_dtype, finite, integers, uniform
from .indexing.deterministic_scatter import assign_last_wins
from .indexing.getitem import basic_getitem, parse_index, split_mixed_index
from .indexing.index_select import index_put_
from .pointwise.conversion import to
from .shape.view import broadcast_to, reshape


def in_place_method(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method that writes the result of `function(self, ...)` into self: see core/autograd/inplace.py."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return change(function, self, *args, **kwargs)

    method.__name__ = f"{function.__name__}_"
    method.__doc__ = f"`{function.__name__}` in place."
    return method


def in_place_view_method(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method that turns self into the view `function(self, ...)`: `unsqueeze_`.

    The method raises StateError for a leaf that requires grad.
    """

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.requires_grad and self.is_leaf:
            cure = f"use what x.{function.__name__}(...) returns"
            raise StateError(f"{function.__name__}_", "a tensor that is no leaf, or requires no grad", "one", cure)
        with enable_grad():
            become_view(self, function(self, *args, **kwargs))
        return self

    method.__name__ = f"{function.__name__}_"
    method.__doc__ = f"`{function.__name__}` in place: changes the tensor's own shape."
    return method


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Overwrite with the values of src, broadcast and rounded to self's dtype; non_blocking changes nothing."""
    return _write_tensor("copy_", self, src.to(self.device))


def _write_tensor(where: str, self: Tensor, values: Tensor) -> Tensor:
    need_changeable(self)
    lead = values.ndim - self.ndim
    if lead > 0 and values.shape[:lead] == (1,) * lead:  # as assignment allows
        values = reshape(values, values.shape[lead:])
    try:
        values = broadcast_to(values, tuple(self.shape))
    except ShapeError:
        needs = f"values that broadcast to {tuple(self.shape)}"
        raise ShapeError(where, needs, f"shape {tuple(values.shape)}") from None
    return take(self, to(values, dtype=self.dtype)) if is_recorded(self, values) else write(self, values.array)


def fill_(self: Tensor, value: Tensor | float) -> Tensor:
    """Overwrite every element with a number. Raises ArgumentError if an integer dtype cannot represent it."""
    return write(self, _check_fill_value("fill_", self, value.item() if isinstance(value, Tensor) else value))


def _check_fill_value(where: str, self: Tensor, number: float) -> float:
    # Return `number`; ArgumentError if self's integer dtype cannot represent it once truncated.
    if self.array.dtype not in dtypes.DIFFERENTIABLE and self.array.dtype != dtypes.bool_:
        if not math.isfinite(number):
            raise ArgumentError(where, f"a number that {self.dtype.name} holds", f"{number}", "cast first: x.float()")
        check_representable(where, self.array.dtype, int(number))
    return number


def zero_(self: Tensor) -> Tensor:
    """Overwrite every element with 0; as a gradient it then carries no loss scale."""
    write(self, 0)
    self._scale_tag = ZEROED
    return self


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with samples of a normal distribution; those beyond the dtype's range become its largest number."""
    check_float("normal_", self.array.dtype)
    if std < 0:
        raise ArgumentError("normal_", "std from 0", f"{std}")
    rounded = finite if math.isfinite(mean) and math.isfinite(std) else lambda values, dtype: values
    return _fill_random(
        self,
        lambda g, shape: rounded(mean + std * g.standard_normal(shape, draw_dtype(self.array.dtype)), self.array.dtype),
        generator,
    )


def uniform_(self: Tensor, a: float = 0.0, b: float = 1.0, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with uniform samples from [a, b); with a, rounded to the dtype, if that has no number in between.

    Raises ArgumentError unless a <= b, for bounds beyond the dtype's range too, DTypeError for integers.
    """
    check_bounds("uniform_", self.array.dtype, a, b)
    return _fill_random(self, lambda g, shape: uniform(g, shape, self.array.dtype, a, b), generator)


def bernoulli_(self: Tensor, p: Tensor | float = 0.5, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with 1 with probability p, a number or a tensor, else 0. Raises ArgumentError outside [0, 1]."""
    probability = np.asarray(on_host(p, rank=self.ndim)[0], np.float64)
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ArgumentError("bernoulli_", "p from 0 to 1", f"{p}")
    broadcast_to(p if isinstance(p, Tensor) else Tensor(probability), tuple(self.shape))
    return _fill_random(self, lambda g, shape: g.random(shape) < probability, generator)


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with samples of an exponential distribution of rate lambd, all above 0 and finite.

    Raises ArgumentError unless lambd > 0, DTypeError for integers.
    """
    stored = self.array.dtype
    check_float("exponential_", stored)
    if not lambd > 0:
        raise ArgumentError("exponential_", "lambd above 0", f"{lambd}")
    return _fill_random(
        self,
        lambda g, shape: finite(g.standard_exponential(shape, draw_dtype(stored)) / lambd, stored, True),
        generator,
    )


def log_normal_(self: Tensor, mean: float = 1, std: float = 2, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with log-normal samples, all above 0 and finite; mean and std are those of the logarithm."""
    stored = self.array.dtype
    check_float("log_normal_", stored)
    if not std > 0:
        raise ArgumentError("log_normal_", "std above 0", f"{std}")
    return _fill_random(
        self,
        lambda g, shape: finite(np.exp(mean + std * g.standard_normal(shape, draw_dtype(stored))), stored, True),
        generator,
    )


def cauchy_(self: Tensor, median: float = 0, sigma: float = 1, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with samples of a Cauchy distribution, all finite; sigma is its half width at half maximum."""
    stored = self.array.dtype
    check_float("cauchy_", stored)
    if not sigma > 0:
        raise ArgumentError("cauchy_", "sigma above 0", f"{sigma}")
    return _fill_random(self, lambda g, shape: finite(median + sigma * g.standard_cauchy(shape), stored), generator)


def geometric_(self: Tensor, p: float, *, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with geometric samples: the number of trials up to the first success of probability p.

    Those beyond the dtype's range become its largest number.
    """
    if not 0 < p < 1:
        raise ArgumentError("geometric_", "p between 0 and 1", f"{p}")
    return _fill_random(self, lambda g, shape: np.minimum(g.geometric(p, shape), _largest(self)), generator)


def random_(self: Tensor, *bounds: int, generator: random.Stream | None = None) -> Tensor:
    """Overwrite with integers: `random_(to)` from [0, to), `random_(from, to)` from [from, to).

    Without bounds, to the largest integer that the dtype holds exactly. Raises ArgumentError for an empty range, and as
    `randint` for one that the dtype does not hold.
    """
    need_arithmetic("random_", self)
    if len(bounds) > 2:
        raise ArgumentError("random_", "at most two bounds", f"{len(bounds)}")
    low, high = bounds if len(bounds) == 2 else (0, bounds[0] if bounds else _exact_integers(self))
    if not low < high:
        raise ArgumentError("random_", "a range of whole numbers", f"from {low} to {high}")
    return _fill_random(self, lambda g, shape: integers("random_", g, shape, self.array.dtype, low, high), generator)


def _largest(self: Tensor) -> float:
    stored = self.array.dtype
    if stored == dtypes.bool_:
        return 1
    return dtypes.finfo(stored).max if dtypes.is_float(stored) else int(np.iinfo(stored).max)


def _exact_integers(self: Tensor) -> int:
    if dtypes.is_float(self.array.dtype):
        return 2 ** (1 - int(np.log2(float(dtypes.finfo(self.array.dtype).eps)))) + 1
    return 2 if self.array.dtype == dtypes.bool_ else int(np.iinfo(self.array.dtype).max) + 1


def fill_diagonal_(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Overwrite the diagonal [i, i, ...] with a number; wrap: repeat it in the rest of a tall matrix.

    Raises ShapeError for fewer than two axes, and for more than two of unequal lengths.
    """
    if self.ndim < 2 or (self.ndim > 2 and len(set(self.shape)) > 1):
        raise ShapeError("fill_diagonal_", "two axes, or more of equal lengths", f"shape {tuple(self.shape)}")
    with ignore_fp_errors(), backends.device_guard(self.array):
        narrow, number = self.array.dtype in dtypes.NARROW, _check_fill_value("fill_diagonal_", self, fill_value)
        values = (self.array.view(dtypes.uint8) if narrow else self.array).copy()
        np.fill_diagonal(values, byte_of(number, self.array.dtype) if narrow else number, wrap)
    return write(self, values.view(self.array.dtype))


def _fill_random(self: Tensor, draw: Callable[..., Any], generator: random.Stream | None) -> Tensor:
    # draw(generator, shape): under `vmap`, of all samples, whose axes come first.
    need_own_memory(self.array)

    def made(g: np.random.Generator, sizes: tuple[int, ...]) -> Tensor:
        with ignore_fp_errors():
            return tensor(draw(g, (*sizes, *self.shape)), self.dtype, self.device)

    return write(self, of_samples(made, generator).array)


def setitem(self: Tensor, index: Any, value: Any) -> None:
    """self[index] = value, in place; value: a number or a tensor that broadcasts to self[index].

    Of repeated indices the last wins. Raises StateError for a tensor that must not change (see
    `views.need_changeable`), RangeError, ShapeError, DTypeError for floats into integers.
    """
    if not isinstance(value, (Tensor, int, float)):
        value = _assignable(value)
    source = getattr(value, "array", value)
    given = getattr(source, "dtype", dtypes.float32 if isinstance(source, float) else self.array.dtype)
    if given in dtypes.DIFFERENTIABLE:
        need_float(self)
    if not dtypes.NARROW.isdisjoint((self.array.dtype, given)) and not isinstance(value, (int, float)):
        value = to(value, dtype=self.dtype) if isinstance(value, Tensor) else tensor(value, self.dtype, self.device)
        source = value.array
    parts = parse_index(index)
    need_changeable(self)
    several = not isinstance(value, (int, float)) and getattr(source, "ndim", 2) > 1
    if several and any(getattr(part, "dtype", None) == dtypes.bool_ for part in parts):
        value = _for_mask(self, value)
        source = getattr(value, "array", value)
    try:
        if type(value) is int and self.array.dtype in dtypes.DIFFERENTIABLE:
            source = value = float(value)  # which ml_dtypes takes beyond 64 bits too
        with backends.device_guard(self.array, source, *parts, where="x[index] = value"):
            if is_recorded(self, value):
                _assign_recorded(self, parts, value)
            else:
                _assign(self, parts, source)
    except IndexError as error:
        raise RangeError("x[index] = value", f"indices within shape {tuple(self.shape)}", str(error)) from None
    except OverflowError as error:
        raise ArgumentError("x[index] = value", f"a number that {self.dtype.name} holds", str(error)) from None
    except (TypeError, ValueError) as error:  # a TypeError: for a mask of several axes
        raise ShapeError("x[index] = value", "a value that broadcasts to x[index]", str(error)) from None


def _for_mask(self: Tensor, value: Any) -> Any:
    # Without leading axes of length 1: the elements where a mask is True are one axis.
    value = value if hasattr(value, "reshape") else tensor(value, None, self.device)
    shape = list(value.shape)
    while len(shape) > 1 and shape[0] == 1:
        shape.pop(0)
    return value.reshape(shape)


def _assignable(value: Any) -> Any:
    # An array or a list, as NumPy reads it; a tensor of another library or a number of another class as ours.
    if is_foreign(value):
        return to_tensor(value)
    if is_number(value) and not isinstance(value, np.generic):
        return float(value)
    try:
        dtype = np.asarray(value).dtype
    except ValueError:  # rows of several lengths
        dtype = np.dtype(object)
    if dtype.kind not in "biuf" and dtype not in dtypes.FLOATS:
        raise DTypeError("x[index] = value", "numbers", shown(value))
    return value


def _assign(self: Tensor, parts: Any, value: Any) -> None:
    arrays = any(hasattr(part, "dtype") for part in parts)
    first, parts = split_mixed_index(parts) if arrays else (None, parts)
    array = self.array
    need_room(array, value)
    if array.dtype in dtypes.NARROW:
        value = value.view(dtypes.uint8) if hasattr(value, "dtype") else byte_of(value, array.dtype)
        array = array.view(dtypes.uint8)
    target = array if first is None else array[first]
    with ignore_fp_errors():
        assign_last_wins(target, parts, value)
    self.changed(None if arrays else array[parts if ... in parts else (*parts, ...)])


def _assign_recorded(self: Tensor, parts: Any, value: Any) -> None:
    """`_assign` on the tape: a basic index overwrites a view of self; index arrays, an `index_put_` of such a view."""
    arrays = any(hasattr(part, "dtype") for part in parts)
    first, parts = split_mixed_index(parts) if arrays else (parts, ())
    view = self if first is None else basic_getitem(self, first)
    if arrays:
        copied = tuple([p.copy() if hasattr(p, "dtype") else p for p in parts])
        values = value if isinstance(value, Tensor) else tensor(value, self.dtype, self.device)
        change(index_put_, view, values, copied, False)
    elif isinstance(value, Tensor):
        _write_tensor("x[index] = value", view, value)
    else:
        write(view, value)

"""Transform: an invertible map with the logarithm of its Jacobian's determinant; inverses and compositions of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..base.errors import ArgumentError, StateError, UndefinedError
from ..core.arguments import checked_constructor
from ..core.tensor import Tensor
from ..ops.argument_checks import check_methods
from . import constraints
from .distribution import sum_rightmost


class Transform:
    """A differentiable map y = t(x) whose inverse is t.inv, and log |dy / dx| is `log_abs_det_jacobian(x, y)`.

    A subclass has `domain`, `codomain`, `_call(x)`, `_inverse(y)` and `log_abs_det_jacobian`. cache_size=1: the last
    pair is kept, so that t.inv(t(x)) is x itself. bijective: whether the inverse is one; then `sign` is that of the
    derivative, for maps of numbers.
    """

    bijective = False
    _made_of: tuple[str, ...] = ()  # the arguments of the constructor before cache_size, by attribute
    domain: constraints.Constraint
    codomain: constraints.Constraint
    sign: Any = property(lambda self: self._no_sign())

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checked_constructor(cls)
        check_methods(cls)

    def __init__(self, cache_size: int = 0):
        if cache_size not in (0, 1):
            raise ArgumentError(type(self).__name__, "cache_size 0 or 1", repr(cache_size))
        self._cache_size = cache_size
        self._cached_x_y: tuple[Any, Any] = (None, None)

    @property
    def event_dim(self) -> int:
        """Axes of one value; raises StateError where x and y differ in it."""
        if self.domain.event_dim != self.codomain.event_dim:
            got = f"{self.domain.event_dim} and {self.codomain.event_dim}"
            raise StateError(f"{type(self).__name__}.event_dim", "as many axes of x as of y", got)
        return self.domain.event_dim

    @property
    def inv(self) -> Transform:
        """The inverse."""
        return InverseTransform(self)

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The same transform with a cache of 0 or 1 pairs."""
        if self._cache_size == cache_size:
            return self
        kind: Any = next(each for each in type(self).__mro__ if "_made_of" in vars(each))
        if kind is not Transform:
            return kind(*[getattr(self, name) for name in kind._made_of], cache_size=cache_size)
        if type(self).__init__ is Transform.__init__:
            return type(self)(cache_size=cache_size)
        raise UndefinedError(f"{type(self).__name__}.with_cache", "the method in the subclass", "none")

    def __call__(self, x: Tensor) -> Tensor:
        """y = t(x)."""
        if not self._cache_size:
            return self._call(x)
        held, found = self._cached_x_y
        if x is held:
            return found
        y = self._call(x)
        self._cached_x_y = x, y
        return y

    def _inv_call(self, y: Tensor) -> Tensor:
        if not self._cache_size:
            return self._inverse(y)
        found, held = self._cached_x_y
        if y is held:
            return found
        x = self._inverse(y)
        self._cached_x_y = x, y
        return x

    def _no_sign(self) -> Any:
        raise UndefinedError(f"{type(self).__name__}.sign", "a bijection of numbers", "another transform")

    def _call(self, x: Tensor) -> Tensor:
        raise UndefinedError(f"{type(self).__name__}", "a transform with _call", "one without")

    def _inverse(self, y: Tensor) -> Tensor:
        raise UndefinedError(f"{type(self).__name__}.inv", "a transform with an inverse", "one without")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |det dy / dx| at x and y = t(x): the shape of x without the axes of a value."""
        raise UndefinedError(f"{type(self).__name__}.log_abs_det_jacobian", "a transform with it", "one without")

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of y for that of x."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of x for that of y."""
        return tuple(shape)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


checked_constructor(Transform)
check_methods(Transform)


class InverseTransform(Transform):
    """The inverse of a transform: what its `inv` is."""

    def __init__(self, transform: Transform):
        super().__init__()
        self._inv = transform

    domain = property(lambda self: self._inv.codomain)
    codomain = property(lambda self: self._inv.domain)
    bijective = property(lambda self: self._inv.bijective)
    sign = property(lambda self: self._inv.sign)
    inv = property(lambda self: self._inv)

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._inv.with_cache(cache_size).inv

    def __call__(self, x: Tensor) -> Tensor:
        return self._inv._inv_call(x)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self._inv.forward_shape(shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InverseTransform) and self._inv == other._inv

    __hash__ = Transform.__hash__

    def __repr__(self) -> str:
        return f"InverseTransform({self._inv!r})"


class ComposeTransform(Transform):
    """Several transforms, one after the other, the first of `parts` first."""

    _made_of = ("parts",)

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0):
        super().__init__(cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)

    bijective = property(lambda self: all(part.bijective for part in self.parts))
    sign = property(lambda self: math.prod(part.sign for part in self.parts))

    domain = property(lambda self: self._domain())
    codomain = property(lambda self: self._codomain())

    def _domain(self) -> constraints.Constraint:
        if not self.parts:
            return constraints.real
        n = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            n = max(n + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim)
        return _of_axes(self.parts[0].domain, n)

    def _codomain(self) -> constraints.Constraint:
        if not self.parts:
            return constraints.real
        n = self.parts[0].domain.event_dim
        for part in self.parts:
            n = max(n + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim)
        return _of_axes(self.parts[-1].codomain, n)

    @property
    def inv(self) -> Transform:
        return ComposeTransform([part.inv for part in reversed(self.parts)])

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inv_call(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total: Any = ops.zeros_like(x)
        if not self.parts:
            return total
        total, n, last = 0, self.domain.event_dim, len(self.parts) - 1
        for i, part in enumerate(self.parts):
            after = y if i == last else part(x)
            total = total + sum_rightmost(part.log_abs_det_jacobian(x, after), n - part.domain.event_dim)
            n += part.codomain.event_dim - part.domain.event_dim
            x = after
        return total

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = Transform.__hash__

    def __repr__(self) -> str:
        return f"ComposeTransform({self.parts!r})"


def _of_axes(constraint: constraints.Constraint, n: int) -> constraints.Constraint:
    more = n - constraint.event_dim
    return constraints.independent(constraint, more) if more else constraint


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """`base_transform`, of values with `reinterpreted_batch_ndims` axes more: log-determinants are summed over them."""

    _made_of = ("base_transform", "reinterpreted_batch_ndims")

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0):
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size) if cache_size else base_transform
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    bijective = property(lambda self: self.base_transform.bijective)
    sign = property(lambda self: self.base_transform.sign)
    domain = property(lambda self: constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims))
    codomain = property(
        lambda self: constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)
    )

    def _call(self, x: Tensor) -> Tensor:
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.base_transform.inverse_shape(shape)

    def __repr__(self) -> str:
        return f"IndependentTransform({self.base_transform!r}, {self.reinterpreted_batch_ndims})"


class ReshapeTransform(Transform):
    """The trailing axes of x, of shape `in_shape`, read as `out_shape`."""

    _made_of = ("in_shape", "out_shape")
    bijective = True

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0):
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            got = f"{self.in_shape} and {self.out_shape}"
            raise ArgumentError("ReshapeTransform", "shapes of as many elements", got)

    domain = property(lambda self: constraints.independent(constraints.real, len(self.in_shape)))
    codomain = property(lambda self: constraints.independent(constraints.real, len(self.out_shape)))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return ops.zeros(tuple(x.shape[: x.ndim - len(self.in_shape)]), dtype=x.dtype, device=x.device)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return _exchanged(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return _exchanged(shape, self.out_shape, self.in_shape)


def _exchanged(shape: Sequence[int], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    cut = len(shape) - len(old)
    if cut < 0 or tuple(shape[cut:]) != old:
        raise ArgumentError("ReshapeTransform", f"a shape that ends with {old}", f"{tuple(shape)}")
    return (*shape[:cut], *new)


class _Joined(Transform):
    # Transforms of the parts of a tensor along an axis.
    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int):
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) if cache_size else t for t in tseq], dim

    bijective = property(lambda self: all(t.bijective for t in self.transforms))

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        raise NotImplementedError

    def _join(self, parts: Sequence[Tensor], n: int = 0) -> Tensor:
        raise NotImplementedError

    def _call(self, x: Tensor) -> Tensor:
        return self._join([t(part) for t, part in zip(self.transforms, self._parts(x), strict=True)])

    def _inverse(self, y: Tensor) -> Tensor:
        return self._join([t.inv(part) for t, part in zip(self.transforms, self._parts(y), strict=True)])


class CatTransform(_Joined):
    """Transforms of the parts, of `lengths`, of a tensor along `dim`."""

    _made_of = ("transforms", "dim", "lengths")

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None, cache_size: int = 0
    ):
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)

    event_dim = property(lambda self: max(t.event_dim for t in self.transforms))
    length = property(lambda self: sum(self.lengths))
    domain = property(lambda self: constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths))
    codomain = property(lambda self: constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths))

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        return x.split(self.lengths, self.dim)

    def _join(self, parts: Sequence[Tensor], n: int = 0) -> Tensor:
        return ops.cat(list(parts), self.dim + n if self.dim < 0 else self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        found, most = [], self.event_dim
        for t, a, b in zip(self.transforms, self._parts(x), self._parts(y), strict=True):
            found.append(sum_rightmost(t.log_abs_det_jacobian(a, b), most - t.event_dim))
        if (self.dim if self.dim < 0 else self.dim - x.ndim) + most < 0:  # an axis of the batch
            return self._join(found, most)
        total = found[0]
        for one in found[1:]:
            total = total + one
        return total


class StackTransform(_Joined):
    """Transforms of the slices of a tensor along `dim`."""

    _made_of = ("transforms", "dim")

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0):
        super().__init__(tseq, dim, cache_size)

    domain = property(lambda self: constraints.stack([t.domain for t in self.transforms], self.dim))
    codomain = property(lambda self: constraints.stack([t.codomain for t in self.transforms], self.dim))

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        return x.unbind(self.dim)

    def _join(self, parts: Sequence[Tensor], n: int = 0) -> Tensor:
        return ops.stack(list(parts), self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        parts = zip(self.transforms, self._parts(x), self._parts(y), strict=True)
        return self._join([t.log_abs_det_jacobian(a, b) for t, a, b in parts])

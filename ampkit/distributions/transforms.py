"""Transforms by PyTorch's names: of numbers, onto vectors of sum 1 and onto triangular matrices."""

from __future__ import annotations

import math
from typing import Any

from .. import ops
from ..base import dtypes
from ..base.errors import ShapeError
from ..core.tensor import Tensor
from . import constraints
from .distribution import Distribution
from .transform import (
    CatTransform,
    ComposeTransform,
    IndependentTransform,
    ReshapeTransform,
    StackTransform,
    Transform,
    identity_transform,
)

__all__ = [
    "AbsTransform", "AffineTransform", "CatTransform", "ComposeTransform", "CorrCholeskyTransform",
    "CumulativeDistributionTransform", "ExpTransform", "IndependentTransform", "LowerCholeskyTransform",
    "PositiveDefiniteTransform", "PowerTransform", "ReshapeTransform", "SigmoidTransform", "SoftmaxTransform",
    "SoftplusTransform", "StackTransform", "StickBreakingTransform", "TanhTransform", "Transform",
    "identity_transform",
]  # fmt: skip


class _WithoutParameters(Transform):
    # Two of one class are equal.
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    __hash__ = Transform.__hash__


class _OfNumbers(_WithoutParameters):
    # Increasing and bijective.
    bijective, sign = True, 1
    domain = constraints.real


class ExpTransform(_OfNumbers):
    """y = exp(x)."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class SigmoidTransform(_OfNumbers):
    """y = 1 / (1 + exp(-x)), kept away from 0 and 1 by the spacing of the dtype."""

    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        limits = dtypes.finfo(x.dtype)
        return ops.sigmoid(x).clamp(limits.tiny, 1 - limits.eps)

    def _inverse(self, y: Tensor) -> Tensor:
        limits = dtypes.finfo(y.dtype)
        y = y.clamp(limits.tiny, 1 - limits.eps)
        return y.log() - ops.log1p(-y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -ops.softplus(-x) - ops.softplus(x)


class SoftplusTransform(_OfNumbers):
    """y = log(1 + exp(x))."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return ops.softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-ops.expm1(-y)).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -ops.softplus(-x)


class TanhTransform(_OfNumbers):
    """y = tanh(x)."""

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return ops.tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return ops.atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - ops.softplus(-2 * x))  # log(1 - tanh(x)^2) without cancellation


class AbsTransform(_WithoutParameters):
    """y = |x|, whose inverse is y."""

    domain, codomain = constraints.real, constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class PowerTransform(Transform):
    """y = x ** exponent, of positive numbers; exponent a number or a tensor."""

    _made_of = ("exponent",)
    bijective = True
    domain = codomain = constraints.positive

    def __init__(self, exponent: Tensor | float, cache_size: int = 0):
        super().__init__(cache_size)
        self.exponent = exponent if isinstance(exponent, Tensor) else ops.tensor(float(exponent))

    sign = property(lambda self: self.exponent.sign())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and bool((self.exponent == other.exponent).all())

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape: Any) -> tuple[int, ...]:
        return ops.broadcast_shapes(tuple(shape), tuple(self.exponent.shape))

    inverse_shape = forward_shape


class AffineTransform(Transform):
    """y = loc + scale * x, numbers or tensors; event_dim: trailing axes that are one value."""

    _made_of = ("loc", "scale", "_event_dim")
    bijective = True

    def __init__(self, loc: Tensor | float, scale: Tensor | float, event_dim: int = 0, cache_size: int = 0):
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    event_dim = property(lambda self: self._event_dim)
    domain = codomain = property(
        lambda self: constraints.independent(constraints.real, self._event_dim) if self._event_dim else constraints.real
    )

    @property
    def sign(self) -> Any:
        """The sign of scale."""
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return (self.scale > 0) - (self.scale < 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AffineTransform):
            return False
        pairs = ((self.loc, other.loc), (self.scale, other.scale))
        return all(a is b or bool(ops.tensor(a == b).all()) for a, b in pairs)

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        n, shape = self._event_dim, tuple(x.shape)
        if isinstance(self.scale, Tensor):
            found = self.scale.abs().log()
        else:
            found = ops.tensor(math.log(abs(self.scale)), dtype=x.dtype, device=x.device)
        if n:
            found = found.expand(ops.broadcast_shapes(tuple(found.shape), shape[-n:])).sum(tuple(range(-n, 0)))
            shape = shape[:-n]
        return found.expand(shape)

    def forward_shape(self, shape: Any) -> tuple[int, ...]:
        given = [tuple(getattr(v, "shape", ())) for v in (self.loc, self.scale)]
        return ops.broadcast_shapes(tuple(shape), *given)

    inverse_shape = forward_shape


class CumulativeDistributionTransform(Transform):
    """y = the cdf of a distribution over numbers at x."""

    _made_of = ("distribution",)
    bijective, sign = True, 1
    codomain = constraints.unit_interval

    def __init__(self, distribution: Distribution, cache_size: int = 0):
        super().__init__(cache_size)
        self.distribution = distribution

    domain = property(lambda self: self.distribution.support)

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob(x)


class SoftmaxTransform(_WithoutParameters):
    """y = softmax(x) of vectors, whose inverse is log(y); x + c has the same y."""

    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return ops.softmax(x, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(_WithoutParameters):
    """Vectors of K - 1 numbers onto those of K that sum to 1, a piece of what is left at a time.

    Stan Reference Manual, "Unit simplex".
    """

    bijective = True
    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        z = ops.sigmoid(x - _left(x.shape[-1], x).log())
        rest = (1 - z).cumprod(-1)
        return ops.pad(z, (0, 1), value=1.0) * ops.pad(rest, (1, 0), value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        cut = y[..., :-1]
        rest = (1 - cut.cumsum(-1)).clamp(min=dtypes.finfo(y.dtype).tiny)
        return cut.log() - rest.log() + _left(cut.shape[-1], y).log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        x = x - _left(x.shape[-1], x).log()
        return (-x + ops.logsigmoid(x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Any) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Any) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] - 1)


def _left(n: int, like: Tensor) -> Tensor:
    return ops.arange(n, 0, -1, dtype=like.dtype, device=like.device)


class LowerCholeskyTransform(_WithoutParameters):
    """Square matrices to lower triangular ones: exp of the diagonal, 0 above it."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(_WithoutParameters):
    """L L^T of the matrix L that LowerCholeskyTransform makes."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        low = LowerCholeskyTransform()(x)
        return low @ low.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(ops.linalg_cholesky(y))


class CorrCholeskyTransform(Transform):
    """Vectors of D (D - 1) / 2 numbers onto Cholesky factors [D, D] of correlation matrices, by partial correlations.

    tanh(x) fills the triangle below the diagonal; each row is broken like a stick by squares. Stan Reference Manual,
    "Cholesky factors of correlation matrices".
    """

    bijective = True
    domain, codomain = constraints.real_vector, constraints.corr_cholesky

    def _call(self, x: Tensor) -> Tensor:
        eps = dtypes.finfo(x.dtype).eps
        r = _triangle(ops.tanh(x).clamp(-1 + eps, 1 - eps))
        left = (1 - r.square()).sqrt().cumprod(-1)
        identity = ops.eye(r.shape[-1], dtype=r.dtype, device=r.device)
        return (r + identity) * ops.pad(left[..., :-1], (1, 0), value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        left = 1 - (y * y).cumsum(-1)
        left = ops.pad(left[..., :-1], (1, 0), value=1.0)
        rows, columns = ops.tril_indices(y.shape[-1], y.shape[-1], -1)
        return ops.atanh(y[..., rows, columns] / left[..., rows, columns].sqrt())

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # dy_ij / dr_ij is the square root of what is left of the row; dr / dx is 1 - tanh(x)^2.
        left = 1 - (y * y).cumsum(-1)
        rows, columns = ops.tril_indices(y.shape[-1], y.shape[-1], -2)
        logs = 0.5 * left[..., rows, columns].log().sum(-1)
        return logs - 2 * (x + ops.softplus(-2 * x) - math.log(2)).sum(-1)

    def forward_shape(self, shape: Any) -> tuple[int, ...]:
        d = _rows_of_triangle(shape[-1])
        return (*shape[:-1], d, d)

    def inverse_shape(self, shape: Any) -> tuple[int, ...]:
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)


def _rows_of_triangle(n: int) -> int:
    # The D with D (D - 1) / 2 = n.
    d = round((1 + math.sqrt(1 + 8 * n)) / 2)
    if d * (d - 1) // 2 != n:
        raise ShapeError("CorrCholeskyTransform", "vectors of D (D - 1) / 2 numbers", f"{n}")
    return d


def _triangle(x: Tensor) -> Tensor:
    # [.., D (D - 1) / 2] -> [.., D, D], row by row below the diagonal.
    d = _rows_of_triangle(x.shape[-1])
    place = ops.zeros(d, d, dtype="int64", device=x.device)
    rows, columns = ops.tril_indices(d, d, -1)
    place[rows, columns] = ops.arange(1, x.shape[-1] + 1, device=x.device)
    return ops.pad(x, (1, 0))[..., place]

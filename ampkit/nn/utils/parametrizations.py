"""weight_norm, spectral_norm and orthogonal as parametrizations.

Computed in float32 (float64 for float64 weights), also under autocast, and rounded once to the weight's dtype.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ampkit import ops
from ampkit.base.dtypes import accumulator
from ampkit.base.errors import ArgumentError, RangeError
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.autograd.recompute import is_recomputing
from ampkit.core.policy import autocast
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_all

from .. import init
from ..factory import is_size
from ..module import Module
from ..modules.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .orthogonal import orthogonal
from .parametrize import register_parametrization

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Make `module.<name>` g v / |v|: `original0` is g, the norms, `original1` is v; returns the module.

    The norm is taken over all axes but `dim`, or over all of them for None. The weight keeps its values. State dicts
    with g and v as `<name>_g` and `<name>_v` load too. Create the optimizer afterwards.
    Raises ArgumentError for an unknown name, RangeError for a wrong dim, StateError if an optimizer holds the weight.
    Salimans and Kingma 2016, arXiv:1602.07868, eq. 2.
    """
    return register_parametrization(module, name, WeightNorm(dim), unsafe=True)


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Make `module.<name>` W / sigma, sigma the largest singular value of W [n, rest]; returns the module.

    n is the axis `dim`, by default 1 for transposed convolutions and 0 for others. The singular vectors are buffers,
    updated by n_power_iterations steps of the power method whenever the weight is read in training mode; the second run
    of `recompute` does not update them.
    Raises ArgumentError for an unknown name or a count below 1, RangeError for a wrong dim.
    Miyato et al. 2018, arXiv:1802.05957, section 2.1 and algorithm 1.
    """
    norm = SpectralNorm(getattr(module, name, None), n_power_iterations, axis_for(module, dim), eps)
    return register_parametrization(module, name, norm)


class WeightNorm(Module):
    """(g, v) -> g v / |v|."""

    legacy_names: ClassVar[dict[str, str]] = {"original0": "_g", "original1": "_v"}

    def __init__(self, dim: int | None = 0):
        super().__init__()
        self.dim = dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return scale_to_norm(weight_g, weight_v, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(norms of the weight, weight)."""
        return norms(weight, self.dim), weight


class SpectralNorm(Module):
    """W -> W / sigma, with the first singular vectors of W as buffers; a vector is divided by its norm."""

    def __init__(self, weight: Any, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12):
        super().__init__()
        self.dim, self.eps = dim, eps
        self.n_power_iterations = checked_iterations(n_power_iterations)
        if isinstance(weight, Tensor) and weight.ndim > 1:
            for name, vector in zip(("_u", "_v"), initial_vectors(weight, dim, eps), strict=True):
                self.register_buffer(name, vector)
            iterate(weight, self._u, self._v, dim, eps, 15)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim < 2:
            return scale_to_norm(ops.ones((), dtype=weight.dtype, device=weight.device), weight, None, self.eps)
        if self.training:
            iterate(weight, self._u, self._v, self.dim, self.eps, self.n_power_iterations)
        return divide_by_sigma(weight, self._u, self._v, self.dim)

    def right_inverse(self, value: Tensor) -> Tensor:
        """The weight itself."""
        return value


# computation, shared with weights.py


def norms(weight: Tensor, dim: int | None) -> Tensor:
    """The norm of `weight` over all axes but `dim`, which have length 1 in the result; over all, [], for None or -1."""
    with no_grad(), autocast(enabled=False):
        return _norms(weight, dim)


def _norms(weight: Tensor, dim: int | None) -> Tensor:
    if dim is None or dim == -1:  # as PyTorch has it
        return ops.norm(weight)
    _need_dim("weight_norm", weight, dim)
    over = [i for i in range(weight.ndim) if i != dim % weight.ndim]
    return ops.norm(weight, dim=over, keepdim=True) if over else ops.abs(weight)


def scale_to_norm(g: Tensor, v: Tensor, dim: int | None, eps: float = 0.0) -> Tensor:
    """g v / |v|; 0 where v is 0. eps: the minimum of the divisor."""
    with autocast(enabled=False):
        wide = v.to(accumulator(v.array.dtype))
        size = _norms(wide, dim)
        size = ops.clamp(size, eps) if eps else ops.where(size == 0, 1.0, size)
        return (wide * (g.to(wide.dtype) / size)).to(v.dtype)


def divide_by_sigma(weight: Tensor, u: Tensor, v: Tensor, dim: int) -> Tensor:
    """W / (u W v) with u [n] and v [rest] as constants; 0 where W is 0."""
    with autocast(enabled=False):
        wide = weight.to(accumulator(weight.array.dtype))
        u, v = (vector.detach().clone().to(wide.dtype) for vector in (u, v))
        sigma = ops.dot(u, ops.mv(matrix(wide, dim), v))
        return (wide / ops.where(sigma == 0, 1.0, sigma)).to(weight.dtype)


def iterate(weight: Tensor, u: Tensor, v: Tensor, dim: int, eps: float, steps: int, u_first: bool = True) -> None:
    """Update u [n] and v [rest] in place by `steps` of the power method, unless that gives zeros or NaN.

    The second run of `recompute` changes nothing.
    """
    if is_recomputing():
        return
    with no_grad(), autocast(enabled=False):
        m = matrix(weight.detach().to(accumulator(weight.array.dtype)), dim)
        left, right = u.detach().to(m.dtype), v.detach().to(m.dtype)
        for _ in range(steps):
            if not u_first:
                right = _unit(ops.mv(m.t(), left), eps)
            left = _unit(ops.mv(m, right), eps)
            if u_first:
                right = _unit(ops.mv(m.t(), left), eps)
        valid = ops.dot(left, left) * ops.dot(right, right) > 0
        u._write(ops.where(valid, left, u.detach()))
        v._write(ops.where(valid, right, v.detach()))


def initial_vectors(weight: Tensor, dim: int, eps: float) -> tuple[Tensor, Tensor]:
    """Random unit vectors u [n] and v [rest] to start from."""
    _need_dim("spectral_norm", weight, dim)
    with no_grad(), autocast(enabled=False):
        shape = matrix(weight.detach(), dim).shape
        vectors = [ops.empty(n, dtype=weight.dtype, device=weight.device) for n in shape]
        return _unit(init.normal_(vectors[0]), eps), _unit(init.normal_(vectors[1]), eps)


def _need_dim(where: str, weight: Tensor, dim: Any) -> None:
    if not isinstance(dim, int) or not -weight.ndim <= dim < weight.ndim:
        raise RangeError(where, f"dim below {weight.ndim}", repr(dim))


def _unit(vector: Tensor, eps: float) -> Tensor:
    return ops.normalize(vector, dim=0, eps=eps)


def matrix(weight: Tensor, dim: int) -> Tensor:
    """weight as [n, rest], n its axis `dim`."""
    front = ops.movedim(weight, dim, 0)
    return ops.reshape(front, (front.shape[0], -1))


def axis_for(module: Module, dim: int | None) -> int:
    """`dim`, or the axis of a layer's outputs."""
    if dim is not None:
        return dim
    return 1 if isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)) else 0


def checked_iterations(count: Any) -> int:
    """`count`. Raises ArgumentError unless it is a positive integer."""
    if not is_size(count):
        raise ArgumentError("spectral_norm", "n_power_iterations from 1", repr(count))
    return int(count)


check_all(globals())

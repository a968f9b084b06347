"""The von Mises distribution of angles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import ops
from ..core.tensor import Tensor
from ..ops.pointwise.incomplete_gamma import i0e, i1e
from . import constraints, draws
from .distribution import LOG_2PI, Distribution, parameters

__all__ = ["VonMises"]


class VonMises(Distribution):
    """Density exp(k cos(x - loc)) / (2 pi I0(k)), k = `concentration`: samples are angles in [-pi, pi).

    The variance is the circular one, 1 - I1(k) / I0(k).
    """

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Tensor | float, concentration: Tensor | float, validate_args: bool | None = None):
        self.loc, self.concentration = parameters(loc, concentration)
        super().__init__(self.loc.shape, (), validate_args)

    mean = property(lambda self: self.loc)
    mode = property(lambda self: self.loc)
    variance = property(lambda self: 1 - i1e(self.concentration) / i0e(self.concentration))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        loc, concentration = self.loc.detach(), self.concentration.detach()

        def draw(g: np.random.Generator, mean: np.ndarray, k: np.ndarray) -> np.ndarray:
            found = mean + g.vonmises(0.0, k, shape)
            return (found + np.pi) % (2 * np.pi) - np.pi

        return draws.from_host(draw, loc, concentration)

    def log_prob(self, value: Tensor) -> Tensor:
        k = self.concentration
        return k * (ops.cos(value - self.loc) - 1) - LOG_2PI - i0e(k).log()

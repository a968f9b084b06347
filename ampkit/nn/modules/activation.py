"""Activations: modules over the functions of `ops`, input [...] -> [...].

inplace=True writes the output into the input.
"""

from __future__ import annotations

from ampkit import ops
from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor

from ..module import Module


class _Inplace(Module):
    def __init__(self, inplace: bool = False):
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class ReLU(_Inplace):
    """max(0, x)."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.relu(input, inplace=self.inplace)


class SiLU(_Inplace):
    """x sigmoid(x). Elfwing, Uchibe, Doya 2017, arXiv:1702.03118."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.silu(input, inplace=self.inplace)


class Mish(_Inplace):
    """x tanh(softplus(x)). Misra 2019, arXiv:1908.08681."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.mish(input, inplace=self.inplace)


class LeakyReLU(_Inplace):
    """x for x >= 0, else negative_slope x. Maas, Hannun, Ng 2013, ICML."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False):
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input: Tensor) -> Tensor:
        return ops.leaky_relu(input, self.negative_slope, inplace=self.inplace)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(_Inplace):
    """x for x >= 0, else alpha (exp(x) - 1). Clevert, Unterthiner, Hochreiter 2015, arXiv:1511.07289."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        return ops.elu(input, self.alpha, inplace=self.inplace)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class Softplus(Module):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        return ops.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Tanh(Module):
    """tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.tanh(input)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.sigmoid(input)


class GELU(Module):
    """x Phi(x), Phi the normal distribution; or its tanh form. Hendrycks and Gimpel 2016, arXiv:1606.08415."""

    def __init__(self, approximate: str = "none"):
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ArgumentError("GELU", "approximate 'none' or 'tanh'", repr(approximate))
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return ops.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class _Along(Module):
    def __init__(self, dim: int | None = None):
        super().__init__()
        if not isinstance(dim, int):
            raise ArgumentError(type(self).__name__, "dim, the axis to normalize over", repr(dim))
        self.dim = dim

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax(_Along):
    """exp(x) / sum(exp(x)) along `dim`. Raises ArgumentError if dim is left out: there is no axis to guess."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.softmax(input, self.dim)


class LogSoftmax(_Along):
    """log(softmax(x)) along `dim`. Raises ArgumentError if dim is left out."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.log_softmax(input, self.dim)

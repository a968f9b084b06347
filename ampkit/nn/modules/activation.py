"""Activations, each the module of an op: input [...] -> [...] unless said otherwise.

inplace=True writes the output into the input.
"""

from __future__ import annotations

import warnings
from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError, ShapeError, check_choice
from ampkit.core.arguments import shown
from ampkit.core.tensor import Tensor

from .. import init as initializers
from ..factory import check_sizes, new_parameter
from ..module import Module
from ..op_module import UnaryOpModule

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "SELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
    "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softmax2d",
    "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold",
]  # fmt: skip


class ReLU(UnaryOpModule, op=ops.relu):
    """max(0, x)."""

    inplace: bool = False


class ReLU6(UnaryOpModule, op=ops.relu6):
    """min(max(0, x), 6)."""

    inplace: bool = False


class LeakyReLU(UnaryOpModule, op=ops.leaky_relu):
    """x for x >= 0, else negative_slope x. Maas, Hannun, Ng 2013, ICML."""

    negative_slope: float = 0.01
    inplace: bool = False


class RReLU(UnaryOpModule, op=ops.rrelu):
    """x for x >= 0, else a x: a is drawn from [lower, upper) per element in training mode, else it is their mean.

    Xu, Wang, Chen and Li 2015, arXiv:1505.00853. Raises ArgumentError unless lower <= upper.
    """

    lower: float = 1 / 8
    upper: float = 1 / 3
    inplace: bool = False

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ArgumentError("RReLU", "lower <= upper", f"{self.lower} and {self.upper}")


class PReLU(Module):
    """x for x >= 0, else weight x: weight [1], or [C] with num_parameters=C for input [N, C, ...], starts as `init`.

    He et al. 2015, arXiv:1502.01852, eq. 1.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None):
        super().__init__()
        check_sizes("PReLU", num_parameters=num_parameters)
        self.num_parameters, self.init = num_parameters, init
        self.weight = new_parameter((num_parameters,), device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to `init`."""
        initializers.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return ops.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class ELU(UnaryOpModule, op=ops.elu):
    """x for x >= 0, else alpha (exp(x) - 1). Clevert, Unterthiner, Hochreiter 2015, arXiv:1511.07289."""

    alpha: float = 1.0
    inplace: bool = False


class SELU(UnaryOpModule, op=ops.selu):
    """The self-normalizing ELU. Klambauer et al. 2017, arXiv:1706.02515."""

    inplace: bool = False


class CELU(UnaryOpModule, op=ops.celu):
    """x for x >= 0, else alpha (exp(x / alpha) - 1). Barron 2017, arXiv:1704.07483."""

    alpha: float = 1.0
    inplace: bool = False


class GELU(UnaryOpModule, op=ops.gelu):
    """x Phi(x), Phi the normal CDF; approximate="tanh": its tanh form. Hendrycks and Gimpel 2016, arXiv:1606.08415."""

    approximate: str = "none"

    def __post_init__(self) -> None:
        check_choice("GELU", "approximate", self.approximate, "none", "tanh")


class SiLU(UnaryOpModule, op=ops.silu):
    """x sigmoid(x). Elfwing, Uchibe, Doya 2017, arXiv:1702.03118."""

    inplace: bool = False


class Mish(UnaryOpModule, op=ops.mish):
    """x tanh(softplus(x)). Misra 2019, arXiv:1908.08681."""

    inplace: bool = False


class Hardswish(UnaryOpModule, op=ops.hardswish):
    """x hardsigmoid(x). Howard et al. 2019, arXiv:1905.02244."""

    inplace: bool = False


class Hardsigmoid(UnaryOpModule, op=ops.hardsigmoid):
    """(x + 3) / 6 clamped to [0, 1]."""

    inplace: bool = False


class Hardtanh(UnaryOpModule, op=ops.hardtanh):
    """x clamped to [min_val, max_val]. Raises ArgumentError unless min_val < max_val."""

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False

    def __post_init__(self) -> None:
        if not self.min_val < self.max_val:
            raise ArgumentError("Hardtanh", "min_val < max_val", f"{self.min_val} and {self.max_val}")


class Threshold(UnaryOpModule, op=ops.threshold):
    """x where x > threshold, else value."""

    threshold: float
    value: float
    inplace: bool = False


class Hardshrink(UnaryOpModule, op=ops.hardshrink):
    """x where |x| > lambd, else 0."""

    lambd: float = 0.5


class Softshrink(UnaryOpModule, op=ops.softshrink):
    """sign(x) max(|x| - lambd, 0)."""

    lambd: float = 0.5


class Tanhshrink(UnaryOpModule, op=ops.tanhshrink):
    """x - tanh(x)."""


class Softsign(UnaryOpModule, op=ops.softsign):
    """x / (1 + |x|)."""


class Softplus(UnaryOpModule, op=ops.softplus):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""

    beta: float = 1.0
    threshold: float = 20.0


class Tanh(UnaryOpModule, op=ops.tanh):
    """tanh(x)."""


class Sigmoid(UnaryOpModule, op=ops.sigmoid):
    """1 / (1 + exp(-x))."""


class LogSigmoid(UnaryOpModule, op=ops.logsigmoid):
    """log(1 / (1 + exp(-x)))."""


class GLU(UnaryOpModule, op=ops.glu):
    """The first half along `dim` times the sigmoid of the second: [.., 2 n, ..] -> [.., n, ..]."""

    dim: int = -1


class _AlongDim(UnaryOpModule, op=ops.softmax):
    dim: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        if self.dim is not None:
            return super().forward(input)
        dim = int(getattr(input, "ndim", 0) not in (0, 1, 3))
        name = type(self).__name__
        warnings.warn(f"{name} without dim takes {dim} here, as PyTorch does: say {name}(dim=...)", stacklevel=3)
        return self._op(input, dim)


class Softmax(_AlongDim, op=ops.softmax):
    """exp(x) / sum(exp(x)) along `dim`; without one along axis 0 of 0, 1 or 3 axes, else 1, with a warning."""


class LogSoftmax(_AlongDim, op=ops.log_softmax):
    """log(softmax(x)) along `dim`; without one as Softmax."""


class Softmin(_AlongDim, op=ops.softmin):
    """softmax(-x) along `dim`; without one as Softmax."""


class Softmax2d(Module):
    """softmax over the channels of each pixel: input [N, C, H, W] or [C, H, W]. Raises ShapeError for other shapes."""

    def forward(self, input: Tensor) -> Tensor:
        if getattr(input, "ndim", 0) not in (3, 4):
            raise ShapeError("Softmax2d", "input [N, C, H, W] or [C, H, W]", f"{shown(input)}")
        return ops.softmax(input, -3)

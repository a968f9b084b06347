"""More activations, input [...] -> [...] unless said otherwise; see `ops` for what each computes.

inplace=True writes the output into the input.
"""

from __future__ import annotations

from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.arguments import shown
from ampkit.core.tensor import Tensor

from .. import init as fill
from ..factory import new, sizes
from ..module import Module
from .activation import _Along, _Inplace


class ReLU6(_Inplace):
    """min(max(0, x), 6)."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.relu6(input, inplace=self.inplace)


class Hardtanh(_Inplace):
    """x held between min_val and max_val. Raises ArgumentError unless min_val < max_val."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False):
        super().__init__(inplace)
        if not min_val < max_val:
            raise ArgumentError("Hardtanh", "min_val < max_val", f"{min_val} and {max_val}")
        self.min_val, self.max_val = min_val, max_val

    def forward(self, input: Tensor) -> Tensor:
        return ops.hardtanh(input, self.min_val, self.max_val, inplace=self.inplace)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Hardsigmoid(_Inplace):
    """(x + 3) / 6 held between 0 and 1."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.hardsigmoid(input, inplace=self.inplace)


class Hardswish(_Inplace):
    """x hardsigmoid(x). Howard et al. 2019, arXiv:1905.02244."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.hardswish(input, inplace=self.inplace)


class SELU(_Inplace):
    """The self-normalizing ELU. Klambauer et al. 2017, arXiv:1706.02515."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.selu(input, inplace=self.inplace)


class CELU(_Inplace):
    """x for x >= 0, else alpha (exp(x / alpha) - 1). Barron 2017, arXiv:1704.07483."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        return ops.celu(input, self.alpha, inplace=self.inplace)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class Threshold(_Inplace):
    """x where it is above threshold, else value."""

    def __init__(self, threshold: float, value: float, inplace: bool = False):
        super().__init__(inplace)
        self.threshold, self.value = threshold, value

    def forward(self, input: Tensor) -> Tensor:
        return ops.threshold(input, self.threshold, self.value, inplace=self.inplace)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, value={self.value}"


class RReLU(_Inplace):
    """x above 0, else a slope times x: drawn from [lower, upper) while training, otherwise their mean.

    Xu, Wang, Chen and Li 2015, arXiv:1505.00853. Raises ArgumentError unless lower <= upper.
    """

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False):
        super().__init__(inplace)
        if not lower <= upper:
            raise ArgumentError("RReLU", "lower <= upper", f"{lower} and {upper}")
        self.lower, self.upper = lower, upper

    def forward(self, input: Tensor) -> Tensor:
        return ops.rrelu(input, self.lower, self.upper, self.training, inplace=self.inplace)

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}"


class LogSigmoid(Module):
    """log(1 / (1 + exp(-x)))."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.logsigmoid(input)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.softsign(input)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.tanhshrink(input)


class _Shrink(Module):
    def __init__(self, lambd: float = 0.5):
        super().__init__()
        self.lambd = lambd

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(_Shrink):
    """x where |x| > lambd, else 0."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.hardshrink(input, self.lambd)


class Softshrink(_Shrink):
    """x moved towards 0 by lambd, and 0 where it would pass it."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.softshrink(input, self.lambd)


class PReLU(Module):
    """x for x >= 0, else weight x: weight [1], or [C] with num_parameters=C for input [N, C, ...], starts as `init`.

    He et al. 2015, arXiv:1502.01852, eq. 1.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None):
        super().__init__()
        sizes("PReLU", num_parameters=num_parameters)
        self.num_parameters, self.init = num_parameters, init
        self.weight = new((num_parameters,), device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to `init`."""
        fill.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return ops.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class GLU(Module):
    """The first half along `dim` times the sigmoid of the second: [.., 2 n, ..] -> [.., n, ..]."""

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return ops.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmin(_Along):
    """softmax of -x along `dim`. Raises ArgumentError if dim is left out."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.softmin(input, self.dim)


class Softmax2d(Module):
    """softmax over the channels of each pixel: input [N, C, H, W] or [C, H, W]. Raises ShapeError for other shapes."""

    def forward(self, input: Tensor) -> Tensor:
        if getattr(input, "ndim", 0) not in (3, 4):
            raise ShapeError("Softmax2d", "input [N, C, H, W] or [C, H, W]", f"{shown(input)}")
        return ops.softmax(input, -3)

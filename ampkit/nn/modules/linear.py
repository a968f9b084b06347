"""Identity and Linear."""

from __future__ import annotations

import math
from typing import Any

from ampkit import ops
from ampkit.core.tensor import Tensor

from .. import init
from ..factory import new, sizes
from ..module import Module


class Identity(Module):
    """Returns its input; takes, and does not mind, any arguments."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """input @ weight.T + bias: input [..., in_features] -> [..., out_features].

    weight [out_features, in_features], bias [out_features]; both start uniform in +-1/sqrt(in_features).
    Raises ArgumentError for sizes that are no positive integers.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__()
        sizes("Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = new((out_features, in_features), device, dtype)
        self.register_parameter("bias", new((out_features,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        reset(self)

    def forward(self, input: Tensor) -> Tensor:
        return ops.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def reset(module: Any) -> None:
    """Draw weight and bias of a linear or convolution layer: both uniform in +-1/sqrt(fan_in).

    For the weight that is kaiming_uniform_ with the slope sqrt(5), PyTorch's default.
    """
    init.kaiming_uniform_(module.weight, a=math.sqrt(5))
    if module.bias is not None:
        bound = 1 / math.sqrt(init.fan_in(module.weight))
        init.uniform_(module.bias, -bound, bound)

"""Identity, Linear and Bilinear, and distances between vectors."""

from __future__ import annotations

import math
from typing import Any

from ampkit import ops
from ampkit.core.tensor import Tensor

from .. import init
from ..factory import check_sizes, new_parameter
from ..module import Module
from ..op_module import OpModule

__all__ = ["Bilinear", "CosineSimilarity", "Identity", "Linear", "PairwiseDistance"]


class Identity(Module):
    """Return the input; the constructor ignores its arguments."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """input @ weight.T + bias: input [..., in_features] -> [..., out_features].

    weight [out_features, in_features], bias [out_features]; both start uniform in +-1/sqrt(in_features).
    Raises ArgumentError for sizes that are not positive integers.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__()
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = new_parameter((out_features, in_features), device, dtype)
        self.register_parameter("bias", new_parameter((out_features,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weight and bias again."""
        init_uniform(self)

    def forward(self, input: Tensor) -> Tensor:
        return ops.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """input1 @ weight[k] @ input2 + bias[k] for each output k: [..., in1], [..., in2] -> [..., out_features].

    weight [out_features, in1_features, in2_features], bias [out_features]; both start uniform in
    +-1/sqrt(in1_features).
    Raises ArgumentError for sizes that are not positive integers.
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        check_sizes("Bilinear", in1_features=in1_features, in2_features=in2_features, out_features=out_features)
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = new_parameter((out_features, in1_features, in2_features), device, dtype)
        self.register_parameter("bias", new_parameter((out_features,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weight and bias again."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return ops.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class CosineSimilarity(OpModule, op=ops.cosine_similarity):
    """The cosine of the angle between vectors along `dim`: x1, x2 [.., n, ..] -> [..]; see `ops.cosine_similarity`."""

    dim: int = 1
    eps: float = 1e-8

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.call_op(x1, x2)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps over the last axis: x1, x2 [..., n] -> [...]; see `ops.pairwise_distance`."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False):
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return ops.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)

    def extra_repr(self) -> str:
        return f"p={self.norm}, eps={self.eps}, keepdim={self.keepdim}"


def init_uniform(module: Any) -> None:
    """Initialize weight and bias of a linear or convolution layer: both uniform in +-1/sqrt(fan_in).

    For the weight that is kaiming_uniform_ with a negative slope of sqrt(5), PyTorch's default.
    """
    init.kaiming_uniform_(module.weight, a=math.sqrt(5))
    if module.bias is not None:
        bound = 1 / math.sqrt(init.fan_in(module.weight))
        init.uniform_(module.bias, -bound, bound)

"""Bilinear: a matrix between two inputs for each output."""

from __future__ import annotations

import math
from typing import Any

from ampkit import ops
from ampkit.core.tensor import Tensor

from .. import init
from ..factory import new, sizes
from ..module import Module


class Bilinear(Module):
    """input1 times a matrix times input2, for each output, plus bias: [..., in1], [..., in2] -> [..., out_features].

    weight [out_features, in1_features, in2_features], bias [out_features]; both start uniform in
    +-1/sqrt(in1_features).
    Raises ArgumentError for sizes that are no positive integers.
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
        sizes("Bilinear", in1_features=in1_features, in2_features=in2_features, out_features=out_features)
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = new((out_features, in1_features, in2_features), device, dtype)
        self.register_parameter("bias", new((out_features,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
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

"""Dropout."""

from __future__ import annotations

from .. import ops
from ..core.tensor import Tensor
from .making import probability
from .module import Module


class Dropout(Module):
    """While training, zero each element with probability p and multiply the rest by 1/(1-p); otherwise the identity.

    input [...] -> [...]. inplace is accepted for PyTorch's sake: the output is new memory either way.
    Srivastava et al. 2014, JMLR 15, 1929-1958.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False):
        super().__init__()
        self.p, self.inplace = probability("Dropout", p), inplace

    def forward(self, input: Tensor) -> Tensor:
        return ops.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"

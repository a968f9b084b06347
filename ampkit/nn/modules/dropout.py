"""Dropout, of elements and of whole channels."""

from __future__ import annotations

from ampkit import ops
from ampkit.core.tensor import Tensor

from ..factory import probability
from ..module import Module


class Dropout(Module):
    """While training, zero each element with probability p and multiply the rest by 1/(1-p); otherwise the identity.

    input [...] -> [...]. inplace=True writes the output into the input.
    Srivastava et al. 2014, JMLR 15, 1929-1958.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False):
        super().__init__()
        self.p, self.inplace = probability(type(self).__name__, p), inplace

    def forward(self, input: Tensor) -> Tensor:
        return ops.dropout(input, self.p, self.training, inplace=self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout):
    """`Dropout` of whole channels: input [N, C, L] or [C, L] -> the same. Tompson et al. 2014, arXiv:1411.4280."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.dropout1d(input, self.p, self.training, inplace=self.inplace)


class Dropout2d(Dropout):
    """`Dropout` of whole channels: input [N, C, H, W] or [C, H, W] -> the same; see Dropout1d."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.dropout2d(input, self.p, self.training, inplace=self.inplace)


class Dropout3d(Dropout):
    """`Dropout` of whole channels: input [N, C, D, H, W] or [C, D, H, W] -> the same; see Dropout1d."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.dropout3d(input, self.p, self.training, inplace=self.inplace)


class AlphaDropout(Dropout):
    """While training, set elements to SELU's least value, keeping mean 0 and variance 1: [...] -> [...].

    Klambauer et al. 2017, arXiv:1706.02515.
    """

    def forward(self, input: Tensor) -> Tensor:
        return ops.alpha_dropout(input, self.p, self.training, inplace=self.inplace)


class FeatureAlphaDropout(Dropout):
    """`AlphaDropout` of whole channels: input [N, C, ...] -> the same."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.feature_alpha_dropout(input, self.p, self.training, inplace=self.inplace)

"""Dropout, of elements and of whole channels."""

from __future__ import annotations

from ampkit import ops

from ..factory import check_probability
from ..op_module import UnaryOpModule

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class Dropout(UnaryOpModule, op=ops.dropout):
    """In training mode, zero each element with probability p and multiply the rest by 1/(1-p); else the identity.

    input [...] -> [...]. inplace=True writes the output into the input.
    Srivastava et al. 2014, JMLR 15, 1929-1958.
    """

    p: float = 0.5
    inplace: bool = False

    def __post_init__(self) -> None:
        self.p = check_probability(type(self).__name__, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout, op=ops.dropout1d):
    """`Dropout` of whole channels: input [N, C, L] or [C, L] -> the same. Tompson et al. 2014, arXiv:1411.4280."""


class Dropout2d(Dropout, op=ops.dropout2d):
    """`Dropout` of whole channels: input [N, C, H, W] or [C, H, W] -> the same; see Dropout1d."""


class Dropout3d(Dropout, op=ops.dropout3d):
    """`Dropout` of whole channels: input [N, C, D, H, W] or [C, D, H, W] -> the same; see Dropout1d."""


class AlphaDropout(Dropout, op=ops.alpha_dropout):
    """In training mode, set elements to SELU's infimum and rescale to keep mean 0 and variance 1: [...] -> [...].

    Klambauer et al. 2017, arXiv:1706.02515.
    """


class FeatureAlphaDropout(Dropout, op=ops.feature_alpha_dropout):
    """`AlphaDropout` of whole channels: input [N, C, ...] -> the same."""

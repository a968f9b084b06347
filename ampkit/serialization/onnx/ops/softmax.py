"""Softmax, its logarithm, and log-sum-exp."""

from ..registry import map_formulas
from .reduction import axes_of

map_formulas(
    {
        "softmax": lambda g, x, dim, dtype: g.Softmax(x, axis=dim) if x.ndim else g.Exp(g.Sub(x, x)),
        "log_softmax": lambda g, x, dim, dtype: g.LogSoftmax(x, axis=dim) if x.ndim else g.Sub(x, x),
        "logsumexp": lambda g, x, dim, keepdim: g.reduce("ReduceLogSumExp", x, axes_of(dim, x.ndim), keepdim),
    }
)

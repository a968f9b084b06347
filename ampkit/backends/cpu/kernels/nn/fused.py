"""Kernels of chains of ops: those of their links, one after the other.

oneDNN has GELU behind a product, but does not give what went into it, which the gradient needs; and its ReLU behind a
product makes 0 of NaN.
"""

from __future__ import annotations

from ampkit.ops.nn.fused import (
    linear_gelu_linear,
    linear_gelu_linear_backward_by_op,
    linear_gelu_linear_by_op,
    saved_hidden,
)

linear_gelu_linear.on("cpu", wants_cache=True)(linear_gelu_linear_by_op)
linear_gelu_linear.on_backward("cpu", when=saved_hidden, wants_cache=True)(linear_gelu_linear_backward_by_op)
